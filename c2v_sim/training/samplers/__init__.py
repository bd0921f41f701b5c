"""Who trains this round: the samplers by name, with the plain policies of training/sampling.py."""

from collections.abc import Callable
from typing import Any

from c2v_sim.training.samplers.clustered import ClusteredBySimilarity
from c2v_sim.training.samplers.divfl import DivFL
from c2v_sim.training.samplers.power_of_choice import PowerOfChoice
from c2v_sim.training.samplers.sampler import Sampler, as_sampler
from c2v_sim.training.samplers.urns import ClusteredBySize
from c2v_sim.training.sampling import POLICIES

__all__ = ["SAMPLERS", "Sampler", "as_sampler"]

# The settings are a run's (config/, a room above this one).
SAMPLERS: dict[str, Callable[[Any], Sampler]] = {
    **{name: lambda settings: as_sampler(POLICIES[settings.sampling]) for name in POLICIES},
    "power-of-choice": lambda settings: PowerOfChoice(settings.power_of_choice_candidates),
    "clustered-size": lambda settings: ClusteredBySize(),
    "clustered-similarity": lambda settings: ClusteredBySimilarity(
        settings.update_sketch, settings.seed
    ),
    "divfl": lambda settings: DivFL(settings.update_sketch, settings.seed),
}
