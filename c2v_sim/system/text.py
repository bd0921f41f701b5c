"""Numbers for people: bytes, seconds, shares."""


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
