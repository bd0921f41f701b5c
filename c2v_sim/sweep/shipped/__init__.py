"""The shipped sweeps: paper/, small/ and study/, one TOML file each, named as in `small/tau`."""

from importlib import resources


def shipped_sweeps() -> list[str]:
    """The names of all of them."""
    root = resources.files(__package__)
    scales = [folder for folder in root.iterdir() if folder.is_dir()]
    files = [(scale.name, file.name) for scale in scales for file in scale.iterdir()]
    return sorted(f"{s}/{f.removesuffix('.toml')}" for s, f in files if f.endswith(".toml"))


def shipped_text(name: str) -> str | None:
    """The file of the sweep of that name; None where there is none."""
    file = resources.files(__package__).joinpath(f"{name.removesuffix('.toml')}.toml")
    return file.read_text() if file.is_file() else None
