"""Numbers and other values for people: bytes, seconds, shares, what was wrong in an error."""

SHOWN = 200  # characters of a wrong value that an error repeats


def percent(share: float | None, places: int = 2) -> str:
    """A share in [0, 1] as `12.34 %`; a dash where there is none."""
    return "–" if share is None else f"{100 * share:.{places}f} %"


def in_bytes(size: float) -> str:
    """Bytes for people: 3.5 MB, 1.2 GB."""
    for unit in ("B", "KB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def duration(seconds: float) -> str:
    """Seconds for people: 40 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def brief(value: object) -> str:
    """A value as an error repeats it, whatever it is."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def one_line(text: str) -> str:
    """The text with what cannot be printed as Python writes it: a value of the user's may hold line
    breaks, codes that a terminal obeys, or bytes that no encoding has."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_text(value: str) -> bool:
    """Whether a file can hold it: bytes of an argument that are no UTF-8 are surrogates here."""
    return not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)
