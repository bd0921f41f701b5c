"""Power-of-choice: of some candidates those with the largest loss train (Cho et al., 2020).

    candidates   d clients, drawn without replacement, proportional to their sizes
    cohort       the k of them on whose training data the global model has the largest loss

Each of the cohort counts 1/k, as in the paper: sizes have had their say among the candidates. It
keeps no state; a round takes a pass of the global model over the candidates' training samples.
"""

from dataclasses import dataclass

import numpy as np

from c2v_sim.training.samplers.sampler import Sampler, SamplerRun
from c2v_sim.training.sampling import by_size


@dataclass
class PowerOfChoice(Sampler):
    candidates: int = 0  # d; 0: twice the cohort
    weighs_answers = True

    def start(self, run: SamplerRun) -> None:
        self.run = run
        if 0 < self.candidates < run.cohort_size:
            raise ValueError(
                f"power_of_choice_candidates must be at least {run.cohort_size}, the clients of a "
                f"cohort, or 0 for twice that; got {self.candidates}"
            )

    def __call__(self, seed: int, t: int, sizes: np.ndarray, k: int) -> np.ndarray:
        drawn = by_size(seed, t, sizes, min(len(sizes), self.candidates or 2 * k))  # ascending
        losses = self.run.local_losses(drawn.tolist())
        return drawn[np.argsort(-losses, kind="stable")[:k]]
