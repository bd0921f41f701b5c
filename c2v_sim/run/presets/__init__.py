"""The shipped presets: one TOML file each."""

import tomllib
from importlib import resources

from c2v_sim.config import RunConfig
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.settings import overlay

PRESETS = ("quick", "paper")


def preset(name: str) -> RunConfig:
    """The preset of that name."""
    if name not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}; got {name!r}")
    text = resources.files(__name__).joinpath(f"{name}.toml").read_text()
    return overlay(RunConfig(), tomllib.loads(text))
