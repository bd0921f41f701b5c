"""Finds, downloads and reads Shakespeare's plays, and cuts them into the roles of LEAF.

Enters: a folder with the raw text (Project Gutenberg #100, World Library edition). Leaves: one
string a role (a role = a play and a character), then `Split`: one text of all chosen roles, uint8
[T], in which training and test windows are start positions. The target of a window is the
character after it.

Order of work, as in LEAF (niid, split by sample): parse, sample whole roles, drop small roles,
split each by time. LEAF samples roles in the order in which the file system lists them; here they
are sorted by name and then shuffled with the seed, so that a seed means the same everywhere.
"""

import hashlib
import os
import re
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from c2v_sim.data.sources.download import fetch
from c2v_sim.system.errors import DataError, Unreachable
from c2v_sim.system.seeding import PARTITION, rng

# LEAF's 80 symbols.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
UNKNOWN = len(ALPHABET) - 1  # LEAF's find() gives -1 for other characters, which means the last
WINDOW = 80

TEXT, ARCHIVE, MEMBER = "shakespeare.txt", "1994-01-100.zip", "100.txt"
URLS = (  # where LEAF fetches it, and where the site has moved it since
    f"https://www.gutenberg.org/files/100/old/{ARCHIVE}",
    f"https://www.gutenberg.org/files/100/old/old/{ARCHIVE}",
)
# Of all roles' names and texts. Headers and line ends of the file vary between its postings (and
# hence the file's checksum); what is trained on must not.
ROLES_SHA256 = "2868ac2b812aa1a5cab6e96d94f74362cc2a641f0f504988e8fca99e08f1d140"

BYLINE = "by William Shakespeare"
LAST_LINE = 124_195  # counted from 0 after the first line; poems and licence follow
SPEAKER, CONTINUATION = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"    (.*)")
# One play has lost its indentation.
UNINDENTED = "THE COMEDY OF ERRORS"
FLAT_SPEAKER, FLAT_CONTINUATION = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"(.*)")


# ---- reading --------------------------------------------------------------------------------


def find(folder: Path) -> tuple[dict[str, str], str] | None:
    """The roles in the folder's text or archive and the file's name, or None; damage is an error.

    Another text than the published one is refused.
    """
    for name in (TEXT, ARCHIVE):
        if os.path.exists(folder / name):
            return _checked_roles(folder / name), name
    return None


def download(folder: Path, progress: bool = True) -> tuple[dict[str, str], str]:
    """The roles of Project Gutenberg's archive; `Unreachable` with the reasons if offline."""
    reasons = []
    for url in URLS:
        try:
            path = fetch(url, folder / ARCHIVE, None, progress=progress)
        except Unreachable as error:
            reasons.append(str(error))
            continue
        try:
            return _checked_roles(path), url
        except DataError:
            path.unlink(missing_ok=True)  # never mistaken for good data by the next run
            raise
    raise Unreachable("; ".join(reasons))


def _checked_roles(path: Path) -> dict[str, str]:
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                content = archive.read(MEMBER)
        else:
            content = path.read_bytes()
    except (OSError, EOFError, KeyError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(
            f"shakespeare: cannot read {path} (truncated or damaged?): {error}; "
            "replace it, or remove it to have the data downloaded"
        ) from error
    roles = parse(content.decode("utf-8", errors="replace"))
    found = roles_hash(roles)
    if found != ROLES_SHA256:
        raise DataError(
            f"shakespeare: {path} is not the edition that LEAF uses (Project Gutenberg #100, World "
            f"Library, posted 2011): its {len(roles)} roles have SHA-256 {found[:12]}…, expected "
            f"{ROLES_SHA256[:12]}…; replace it by that text, or remove it to have it downloaded"
        )
    return roles


def roles_hash(roles: dict[str, str]) -> str:
    """SHA-256 of the lines "<role>\\t<text>\\n", sorted by role."""
    digest = hashlib.sha256()
    for name in sorted(roles):
        digest.update(f"{name}\t{roles[name]}\n".encode())
    return digest.hexdigest()


# ---- parsing --------------------------------------------------------------------------------


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


# ---- samples --------------------------------------------------------------------------------


class Split(NamedTuple):
    text: np.ndarray  # uint8 [T], symbol numbers
    x_train: np.ndarray  # int64 [N], where windows start
    x_test: np.ndarray
    client_train: np.ndarray  # int64 [N], whose: a place in `names`
    client_test: np.ndarray
    names: tuple[str, ...]  # of the roles, sorted


def encode(text: str) -> np.ndarray:  # uint8 [len(text)]
    """The number of each character in ALPHABET; UNKNOWN for others."""
    table = np.full(129, UNKNOWN, dtype=np.uint8)
    table[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    return table[np.minimum(points, 128)]


def sample_roles(sizes: dict[str, int], fraction: float, seed: int) -> dict[str, int]:
    """How many of the first windows of which roles: whole roles in random order until `fraction`
    of all windows; the last one is cut."""
    names = sorted(name for name in sizes if sizes[name] > 0)
    wanted = int(fraction * sum(sizes[name] for name in names))
    taken: dict[str, int] = {}
    for k in rng(seed, PARTITION).permutation(len(names)):
        if wanted == 0:
            break
        taken[names[k]] = min(sizes[names[k]], wanted)
        wanted -= taken[names[k]]
    return taken


def split(
    roles: dict[str, str],
    *,
    sample_fraction: float,
    min_samples: int,
    train_fraction: float,
    seed: int,
) -> Split:
    """Training and test windows of the sampled roles.

    A role's n windows: the first max(1, int(train_fraction · n)) train; the test windows begin
    WINDOW - 1 later, so that no character of a test window is in a training window. (The last
    training target is the first character of the first test window, as in LEAF.)
    """
    taken = sample_roles(
        {name: len(text) - WINDOW for name, text in roles.items()}, sample_fraction, seed
    )
    texts, names, length = [], [], 0
    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    for name, n in sorted(taken.items()):
        first_test = max(1, int(train_fraction * n)) + WINDOW - 1
        if n < min_samples or first_test >= n:
            continue
        train.append(length + np.arange(first_test - WINDOW + 1))
        test.append(length + np.arange(first_test, n))
        texts.append(encode(roles[name][: n + WINDOW]))
        names.append(name)
        length += n + WINDOW
    if not names:
        raise DataError(
            f"shakespeare: of {len(taken)} sampled roles none has {min_samples} samples and a test "
            f"part (sample_fraction {sample_fraction}, min_samples {min_samples}, train_fraction "
            f"{train_fraction}, seed {seed}); raise sample_fraction or lower the others"
        )
    owner = np.arange(len(names))
    return Split(
        np.concatenate(texts),
        np.concatenate(train),
        np.concatenate(test),
        np.repeat(owner, [len(part) for part in train]),
        np.repeat(owner, [len(part) for part in test]),
        tuple(names),
    )
