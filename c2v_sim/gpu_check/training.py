"""Whole rounds on the device: eager against replayed, and one lane against several, bit for bit.

Clients are uneven: one sample, remainders of one, whole batches. With `--deterministic` every way
must end in the same bits. Without it a GPU promises none: then the ways must agree within
ROUNDING of the distance that was trained, and whether the bits agree is told.
"""

import dataclasses
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.config import RunConfig
from c2v_sim.data.federation import Federation
from c2v_sim.gpu_check.limits import wait_for
from c2v_sim.gpu_check.outcomes import CheckFailed, Facts
from c2v_sim.simulator.simulator import Simulator

SIZES = (1, 2, 3, 8, 9, 16, 17, 25, 40, 57)  # samples of the clients; batches are of 8
ROUNDING = 0.05
LANES = 4


@dataclass(frozen=True)
class Case:
    """A run that is checked; `algorithm`, `norm` and so on are settings of it."""

    model: str = "mlp"
    side: int = 32
    settings: tuple[tuple[str, object], ...] = ()
    small: bool = False  # whether a CPU checks it, too

    @property
    def name(self) -> str:
        words = [f"{key}={value}" for key, value in self.settings]
        return " ".join(["rounds of", self.model, *words])


def cases() -> list[Case]:
    """Every algorithm with the mlp, and every kind of network with FedAvg."""
    small = ("fedavg", "feddyn", "scaffold")
    of_mlp = [
        Case(side=16, settings=(("algorithm", a),), small=a in small)
        for a in ALGORITHMS
        if a != "fedbn"
    ]
    with_fedbn = Case("resnet8", 16, (("algorithm", "fedbn"),))
    return [
        *of_mlp,
        with_fedbn,
        Case("cnn", 16, (("augment", "crop-flip"),), small=True),
        Case("resnet8", 16, (("norm", "batch"),), small=True),
        Case("resnet8", 16, (("norm", "group"),)),
        Case("resnet18"),
        Case("mobilenetv2"),
        Case("cct"),
        Case("lstm"),
    ]


def federation(case: Case) -> Federation:
    """Uneven clients of random samples whose class can be seen."""
    random = np.random.default_rng(0)
    sizes = SIZES[1:] if case.model == "mobilenetv2" else SIZES  # its last maps are of 1×1
    ids = np.repeat(np.arange(len(sizes)), sizes)
    y = random.integers(0, 4, len(ids))
    if case.model == "lstm":
        x = (random.integers(0, 20, (len(ids), 20)) + 15 * y[:, None]).astype(np.int32)
    else:
        noise = random.integers(0, 128, (len(ids), case.side, case.side, 3))
        x = (noise + 30 * y[:, None, None, None]).astype(np.uint8)
    return Federation.from_arrays(x, y, ids, test_fraction=0, class_names=list("abcd"))


@dataclass(frozen=True)
class Trained:
    state: dict[str, Tensor]
    start: Tensor
    seconds: float  # of the last round
    recorded: int  # kinds of step, over all lanes


def trained(case: Case, device: torch.device, *, lanes: int, replay: bool, same: bool) -> Trained:
    """Three rounds of all clients; without `replay` no step is recorded."""
    settings = {"rounds": 3, "participation": 1.0, "batch_size": 8, "local_epochs": 2, "lr": 0.01}
    config = RunConfig(
        model=case.model,
        device=device.type,
        lanes=lanes,
        deterministic=same,
        momentum=0.0 if dict(case.settings).get("algorithm") == "scaffold" else 0.9,
        stacked="never",
        eval_every=0,
        **settings,  # type: ignore[arg-type]
    )
    config = dataclasses.replace(config, **dict(case.settings))  # type: ignore[arg-type]
    algorithm = ALGORITHMS[config.algorithm](config)
    algorithm.capturable = algorithm.capturable and replay
    simulator = Simulator(federation(case), config, algorithm=algorithm)
    start = simulator.server.data[0].cpu().clone()
    try:
        rounds = simulator.rounds()
        next(rounds), next(rounds)
        wait_for(device)
        begun = time.perf_counter()
        next(rounds)
        wait_for(device)
        taken = time.perf_counter() - begun
        state = {name: t.cpu().clone() for name, t in simulator.state().items()}
        return Trained(state, start, taken, simulator.lanes.recorded)
    finally:
        simulator.close()


WAYS = {  # name -> lanes, replay
    "eager, 1 lane": (1, False),
    "replayed, 1 lane": (1, True),
    f"eager, {LANES} lanes": (LANES, False),
    f"replayed, {LANES} lanes": (LANES, True),
}


def check_rounds(case: Case, device: torch.device, same: bool) -> Facts:
    """All WAYS of one case; what is replayed is what was recorded, where the device can record."""
    ends: dict[str, Trained] = {}
    for name, (lanes, replay) in WAYS.items():
        ends[name] = trained(case, device, lanes=lanes, replay=replay, same=same)
    reference, *others = ends.values()
    moved = (model_in(reference) - reference.start).abs().max().item()
    facts: Facts = {
        name: {
            "seconds of a round": end.seconds,
            "recorded": end.recorded,
            "same bits": same_bits(end, reference),
            "largest difference": (model_in(end) - model_in(reference)).abs().max().item(),
        }
        for name, end in ends.items()
    }
    facts["trained distance"] = moved
    wrong = []
    if not moved > 0:
        wrong.append("nothing was trained")
    for name, end in zip(list(ends)[1:], others, strict=True):
        difference = (model_in(end) - model_in(reference)).abs().max().item()
        if same and not same_bits(end, reference):
            wrong.append(f"{name} has other bits than eager, 1 lane (by {difference:.3g})")
        elif not difference <= ROUNDING * moved:
            wrong.append(f"{name} is {difference:.3g} off, after a way of {moved:.3g}")
        if WAYS[name][1] and device.type == "cuda" and records(case) and not end.recorded:
            wrong.append(f"{name}: no step was recorded")
    if wrong:
        raise CheckFailed("; ".join(wrong), facts)
    return facts


def records(case: Case) -> bool:
    return case.model != "cct"  # its attention asks the host for a seed


def model_in(end: Trained) -> Tensor:
    """The global model's row."""
    return end.state["server"][0]


def same_bits(a: Trained, b: Trained) -> bool:
    return a.state.keys() == b.state.keys() and all(
        torch.equal(a.state[name], b.state[name]) for name in a.state
    )
