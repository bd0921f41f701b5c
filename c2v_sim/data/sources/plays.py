"""The plays of Shakespeare as one text → what each role says, as LEAF cuts it.

Enters: the text of Project Gutenberg #100, World Library edition. Leaves: one string per role (a
role = a play and a character), by name.
"""

import re
from itertools import pairwise

from c2v_sim.system.errors import DataError

BYLINE = "by William Shakespeare"
LAST_LINE = 124_195  # counted from 0 after the first line; poems and licence follow
SPEAKER, CONTINUATION = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"    (.*)")
# One play has lost its indentation.
UNINDENTED = "THE COMEDY OF ERRORS"
FLAT_SPEAKER, FLAT_CONTINUATION = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"(.*)")


def parse(text: str) -> dict[str, str]:
    """What each role says: spoken lines joined by spaces, runs of spaces made one.

    Characters with two lines or fewer and plays with one character or none are left out.
    """
    roles: dict[str, list[str]] = {}
    for title, characters in _plays(text.splitlines()[1:]):
        if len(characters) > 1:
            for character, lines in characters.items():
                if len(lines) > 2:
                    roles.setdefault(role_name(title, character), []).extend(lines)
    # Every line ends with a line feed, the last one too.
    return {
        name: re.sub("  +", " ", "".join(f"{line} " for line in lines))
        for name, lines in roles.items()
    }


def role_name(title: str, character: str) -> str:
    """ALL_S_WELL_THAT_ENDS_WELL_HELENA for Helena of "ALL'S WELL THAT ENDS WELL"."""
    return re.sub(r"\W+", "_", f"{title}_{character}".replace(" ", "_"))


def _plays(lines: list[str]) -> list[tuple[str, dict[str, list[str]]]]:
    """(title, lines by character in upper case) for each by-line from the second on."""
    bylines = [i for i, line in enumerate(lines) if BYLINE in line][1:]  # the first: the sonnets
    plays: list[tuple[str, dict[str, list[str]]]] = []
    for begin, end in pairwise([*bylines, len(lines)]):
        if begin > LAST_LINE:
            break
        title = _title(lines, begin)
        plays.append((title, _characters(lines[begin + 1 : min(end, LAST_LINE + 1)], title)))
    return plays


def _title(lines: list[str], byline: int) -> str:
    """The nearest text from two to seven lines above."""
    for i in range(byline - 2, max(byline - 8, -1), -1):
        if lines[i].strip():
            return lines[i].strip()
    raise DataError(
        f"shakespeare: line {byline + 2} ({BYLINE!r}) has no title two to seven lines above it; "
        "the text is not the edition that LEAF uses"
    )


def _characters(lines: list[str], title: str) -> dict[str, list[str]]:
    """Who says which lines of one play."""
    flat = title == UNINDENTED
    speaker, continuation = (FLAT_SPEAKER, FLAT_CONTINUATION) if flat else (SPEAKER, CONTINUATION)
    characters: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        if match := speaker.match(line):
            name = match[1].upper()
            if flat and name.startswith("ACT "):
                current = None
            else:
                current = characters.setdefault(name, [])
                current.append(match[2])
        elif current is not None and (match := continuation.match(line)):
            if flat and match[1].startswith("<"):
                current = None
            else:
                current.append(match[1])
    return characters
