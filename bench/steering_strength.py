"""How strongly a client index steers, without any training.

    python bench/steering_strength.py INDEX.safetensors [--cohort 10] [--rounds 100] [--seeds 5]

Draws the cohorts that a run would draw, and prints for uniform sampling, for uniform sampling with
the rest that an index gives, and for case study i at several temperatures

    even     how even the chances of those who may come are: exp(entropy) / their number
    likest   the largest chance by the smallest
    like     mean similarity A of a client to the cohort before
    apart 1, apart 5   total variation between the classes of the samples that train in 1 and in 5
             rounds and those of all clients; small: the rounds see what everybody has

and for case study ii the largest weight of a cohort by the smallest, at several lambda1 and gamma.
An index is written by `python -m c2v_sim.index`, and stays in the directory of a run that uses one.
"""

import argparse
import math

import numpy as np
import torch

from c2v_sim.index.client_index import ClientIndex
from c2v_sim.simulator.steering import Steering
from c2v_sim.training.sampling import who_may

POLICIES = {  # their temperatures; an infinite one makes no difference between clients
    "uniform": math.inf,
    "rested": math.inf,
    "i, tau 1": 1.0,
    "i, tau 0.5": 0.5,
    "i, tau 0.1": 0.1,
}
WEIGHTS = {"lambda1 1, gamma 0.5": (1.0, 0.5), "1, 0.9": (1.0, 0.9), "0.1, 0.5": (0.1, 0.5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("index")
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    index = ClientIndex.load(given.index)
    print(f"{len(index.sizes)} clients, {given.cohort} a round, {given.rounds} rounds\n")
    print("| sampling | even | likest | like | apart 1 | apart 5 |\n|---|---|---|---|---|---|")
    for name in POLICIES:
        runs = [cohorts_of(index, name, seed, given) for seed in range(given.seeds)]
        print(f"| {name} |", " | ".join(f"{v:.3f}" for v in np.mean(runs, axis=0)), "|")
    print("\n| aggregation | largest weight by smallest, median |\n|---|---|")
    for name, (lambda1, gamma) in WEIGHTS.items():
        ratios = [weights_of(index, seed, given, lambda1, gamma) for seed in range(given.seeds)]
        print(f"| {name} | {np.median(ratios):.2f} |")


def steering(
    index: ClientIndex,
    seed: int,
    k: int,
    tau: float = 1.0,
    lambda1: float = 1.0,
    gamma: float = 0.5,
) -> Steering:
    parts = [getattr(index, name) for name in index.parts]
    return Steering(
        parts[0],
        parts[1] if len(parts) == 2 else None,
        index.sizes.numpy(),
        k,
        ("sampling", "aggregation"),
        seed=seed,
        tau=tau,
        gamma=gamma,
        lambda1=lambda1,
    )


def cohorts_of(index: ClientIndex, name: str, seed: int, given: argparse.Namespace) -> list[float]:
    """The columns of one policy's row."""
    tau = POLICIES[name]
    steers = steering(index, seed, given.cohort, tau)
    steers.rest = 0 if name == "uniform" else steers.rest
    even, likest, like, seen = [], [], [], []
    for t in range(1, given.rounds + 1):
        may = who_may(steers.last.numpy(), t, steers.rest, given.cohort)
        cohort = steers.cohort(t)
        if t > 1:
            able = may["eligible"]
            among = steers.scores if able is None else steers.scores[torch.as_tensor(able)]
            p = torch.softmax(among / tau, 0)
            even.append(float(torch.exp(-(p * p.log()).sum())) / len(p))
            likest.append(float(p.max() / p.min()))
            like.append(float(steers.scores[torch.from_numpy(cohort)].mean()))
        seen.append(index.label_counts[torch.from_numpy(cohort)].sum(0).double())
        steers.finish(t, cohort, *steers.similarity_to(cohort))
    everybody = index.label_counts.sum(0).double()
    five = [sum(seen[t : t + 5]) for t in range(0, len(seen) - 4, 5)]
    return [
        float(np.mean(even)),
        float(np.median(likest)),
        float(np.mean(like)),
        *(float(np.mean([apart(c, everybody) for c in counts])) for counts in (seen, five)),
    ]


def apart(counts: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Total variation between two distributions over classes, given as counts [K]."""
    return (counts / counts.sum() - others / others.sum()).abs().sum() / 2


def weights_of(
    index: ClientIndex, seed: int, given: argparse.Namespace, lambda1: float, gamma: float
) -> list[float]:
    """Of each round's weights by case study ii, with cohorts by i, the largest by the smallest."""
    steers = steering(index, seed, given.cohort, lambda1=lambda1, gamma=gamma)
    ratios = []
    for t in range(1, given.rounds + 1):
        cohort = steers.cohort(t)
        similarity = steers.similarity_to(cohort)
        p = steers.weights(cohort, similarity.history, index.sizes[torch.from_numpy(cohort)])
        ratios.append(float(p.max() / p.min()))
        steers.finish(t, cohort, *similarity)
    return ratios


if __name__ == "__main__":
    main()
