"""The shipped presets: one TOML file each."""

import tomllib
from importlib import resources

from c2v_sim.config import RunConfig
from c2v_sim.system.errors import ConfigError

PRESETS = ("quick", "paper")


def preset(name: str) -> RunConfig:
    """The preset of that name, with settings for an index, should there be one."""
    if name not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}; got {name!r}")
    text = resources.files(__name__).joinpath(f"{name}.toml").read_text()
    return RunConfig(**tomllib.loads(text))
