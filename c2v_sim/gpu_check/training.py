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


def stacked_cases() -> list[Case]:
    plain = (("local_epochs", 1),)
    return [
        Case("mlp", 16, plain, small=True),
        Case("cnn", 16, plain, small=True),
        Case("resnet8", 16, (("norm", "batch"), *plain)),
        Case("resnet8", 16, (("norm", "group"), *plain)),
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
    records: bool  # whether any should be


def trained(
    case: Case, device: torch.device, *, lanes: int, replay: bool, same: bool, stacked: str
) -> Trained:
    """Three rounds of all clients; without `replay` no step is recorded."""
    settings = {"rounds": 3, "participation": 1.0, "batch_size": 8, "local_epochs": 2, "lr": 0.01}
    config = RunConfig(
        model=case.model,
        device=device.type,
        lanes=lanes,
        deterministic=same,
        momentum=0.0 if dict(case.settings).get("algorithm") == "scaffold" else 0.9,
        stacked=stacked,
        eval_every=0,
        **settings,  # type: ignore[arg-type]
    )
    config = dataclasses.replace(config, **dict(case.settings))  # type: ignore[arg-type]
    algorithm = ALGORITHMS[config.algorithm](config)
    algorithm.capturable = can_record = algorithm.capturable and replay
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
        recorded = simulator.lanes.recorded
        return Trained(state, start, taken, recorded, device.type == "cuda" and can_record)
    finally:
        simulator.close()


@dataclass(frozen=True)
class Way:
    lanes: int = 1
    replay: bool = False
    stacked: str = "never"


WAYS = {
    "eager, 1 lane": Way(),
    "replayed, 1 lane": Way(replay=True),
    f"eager, {LANES} lanes": Way(LANES),
    f"replayed, {LANES} lanes": Way(LANES, replay=True),
}
STACKED_WAYS = {  # the first is what the others are compared with
    f"stacked, {name}": dataclasses.replace(way, stacked="always") for name, way in WAYS.items()
}


def check_rounds(case: Case, device: torch.device, same: bool) -> Facts:
    """All ways of one case; what is replayed is what was recorded, where the device can record."""
    return compare(case, device, same, WAYS)[1]


def check_stacked(case: Case, device: torch.device, same: bool) -> Facts:
    """The same of stacked clients, who must come near to those on lanes, too."""
    reference, facts = compare(case, device, same, STACKED_WAYS)
    lanes = trained(case, device, same=same, **vars(Way()))
    moved, off = distance(lanes, lanes.start), distance(reference, model_in(lanes))
    facts["off the lanes"] = off
    if not off <= ROUNDING * moved:
        raise CheckFailed(f"stacked is {off:.3g} off the lanes, after a way of {moved:.3g}", facts)
    return facts


def compare(
    case: Case, device: torch.device, same: bool, ways: dict[str, Way]
) -> tuple[Trained, Facts]:
    """The end of the first of `ways`, and the facts about all."""
    ends = {name: trained(case, device, same=same, **vars(way)) for name, way in ways.items()}
    first = next(iter(ends))
    reference = ends[first]
    moved = distance(reference, reference.start)
    facts: Facts = {"trained distance": moved}
    wrong = [] if moved > 0 else ["nothing was trained"]
    for name, end in ends.items():
        off, equal = distance(end, model_in(reference)), same_bits(end, reference)
        facts[name] = {
            "seconds of a round": end.seconds,
            "recorded": end.recorded,
            "same bits": equal,
            "largest difference": off,
        }
        if same and not equal:
            wrong.append(f"{name} has other bits than {first} (by {off:.3g})")
        elif not off <= ROUNDING * moved:
            wrong.append(f"{name} is {off:.3g} off, after a way of {moved:.3g}")
        if end.records and not end.recorded:
            wrong.append(f"{name}: no step was recorded")
    if wrong:
        raise CheckFailed("; ".join(wrong), facts)
    return reference, facts


def distance(end: Trained, model: Tensor) -> float:
    return (model_in(end) - model).abs().max().item()


def model_in(end: Trained) -> Tensor:
    """The global model's row."""
    return end.state["server"][0]


def same_bits(a: Trained, b: Trained) -> bool:
    return a.state.keys() == b.state.keys() and all(
        torch.equal(a.state[name], b.state[name]) for name in a.state
    )
