"""All checks of a device by their names."""

from functools import cache, partial

import torch

from c2v_sim.gpu_check.index import check_index
from c2v_sim.gpu_check.limits import measure
from c2v_sim.gpu_check.operators import CHECKED, check_operator
from c2v_sim.gpu_check.outcomes import Check, Facts, NotHere
from c2v_sim.gpu_check.training import cases, check_rounds, check_stacked, stacked_cases

NO_GPU = "torch sees no GPU here"
MODES = {"deterministic": True, "not deterministic": False}
FOR_A_GPU = {
    "operators on cuda and triton": "they take CUDA tensors",
    "recorded steps": "a CPU's lanes record nothing, so that replayed was eager, too",
    "rounds of the other models and algorithms": "they would take a CPU many minutes",
}
measured = cache(measure)  # once in a process


def all_checks(device: torch.device) -> dict[str, Check]:
    """The name of each check -> the check, the quick ones first.

    On a CPU they are the same checks with fewer runs, the native operators and the CPU's lanes;
    what only a GPU can do is there as well, and says that it was not done.
    """
    checks: dict[str, Check] = {"limits": partial(limits, device)}
    for name in CHECKED:
        checks[f"operator {name}"] = partial(operator, name, device)
    for mode, same in MODES.items():
        checks[f"index, federated, {mode}"] = partial(check_index, device, same)
        for case in cases():
            if case.small or device.type == "cuda":
                checks[f"{case.name}, {mode}"] = partial(check_rounds, case, device, same)
        for case in stacked_cases():
            if case.small or device.type == "cuda":
                check = partial(check_stacked, case, device, same)
                checks[f"stacked {case.name}, {mode}"] = check
    if device.type == "cpu":
        checks |= {name: partial(not_on_a_cpu, why) for name, why in FOR_A_GPU.items()}
    return checks


def limits(device: torch.device) -> Facts:
    return {f"{name}/s": value for name, value in measured(device).items()}


def operator(name: str, device: torch.device) -> Facts:
    found = measured(device)
    return check_operator(name, device, found["bandwidth"], found["sgemm"])


def not_on_a_cpu(why: str) -> Facts:
    raise NotHere(f"{NO_GPU}; {why}")
