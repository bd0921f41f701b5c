"""Every setting of a run: RunConfig, and how it is made, saved and read."""

from c2v_sim.config.run import (
    FIELDS,
    OF_OLDER_RUNS,
    RunConfig,
    index_settings,
    make_config,
    saved_config,
)
from c2v_sim.system.parse import read_toml, to_toml

__all__ = ["FIELDS", "OF_OLDER_RUNS", "RunConfig", "index_settings", "make_config", "read_toml"]
__all__ += ["saved_config", "to_toml"]
