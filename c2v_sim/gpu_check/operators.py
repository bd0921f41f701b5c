"""Every operator's fused backends against its definition in float64, on the device.

Sizes are 1, primes, and one beside a block's; tensors lie at addresses as torch gives them, and one
number beyond, where vectorised loads are not possible. Then each is timed at a size that matters,
beside torch's reference and as a share of what the machine can do, measured in the same process.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from c2v_sim.gpu_check import problems
from c2v_sim.gpu_check.limits import median_seconds
from c2v_sim.gpu_check.outcomes import CheckFailed, NotHere
from c2v_sim.gpu_check.problems import Problem
from c2v_sim.gpu_check.tolerance import beyond_norm, beyond_torch, largest_error
from c2v_sim.ops._dispatch import OPERATORS

FUSED = {"cpu": ("native",), "cuda": ("cuda", "triton")}
Make = Callable[..., Problem]
Size = tuple[int, ...]


@dataclass(frozen=True)
class Checked:
    """How one operator is checked."""

    makes: tuple[Make, ...]  # variants of the problem
    sizes: tuple[Size, ...]
    timed: Make
    large: Size  # where it is timed on a GPU
    on_cpu: Size  # and on a CPU
    beyond: Callable[[Tensor, Tensor, Tensor], str] = field(default=beyond_torch)


ROWS: tuple[Size, ...] = ((1, 1), (3, 7), (2, 1023), (2, 1025), (10, 4097))
FORMS = ("unit", "cosine", "raw")
CHECKED = {
    "weighted_sum": Checked(
        (problems.weighted_sum,), ROWS, problems.weighted_sum, (10, 2**24), (10, 2**20)
    ),
    "weighted_sum_add": Checked(
        (problems.add_weighted,), ROWS, problems.add_weighted, (1, 2**24), (1, 2**20)
    ),
    "sgd_step": Checked(
        tuple(partial(problems.sgd_step, case=c) for c in ("plain", "momentum", "everything")),
        ROWS,
        problems.sgd_step_timed,
        (1, 2**24),
        (1, 2**20),
    ),
    "fused_ffn": Checked(
        (problems.fused_ffn, partial(problems.fused_ffn, dropout=0.1)),
        ((1, 16), (31, 64), (33, 65), (130, 2048)),
        partial(problems.fused_ffn, dropout=0.1),
        (4096, 2048),
        (512, 2048),
    ),
    "index_losses": Checked(
        (problems.index_losses,),
        ((1, 1), (7, 31), (63, 512), (65, 512), (129, 33)),
        problems.index_losses,
        (128, 512),
        (128, 512),
    ),
    "projection_orthogonality": Checked(
        tuple(partial(problems.projection_orthogonality, form=form) for form in FORMS),
        ((1, 1, 1), (7, 13, 31), (63, 129, 512), (65, 100, 33)),
        problems.projection_orthogonality,
        (128, 100, 512),
        (128, 100, 512),
    ),
    "client_scores": Checked(
        (problems.client_scores,),
        ((1, 1), (7, 31), (13, 33), (129, 512), (1000, 257)),
        problems.client_scores,
        (100_000, 512),
        (5_000, 512),
    ),
    "convolution": Checked(
        (problems.convolve,),
        ((2, 16, 9, 3), (3, 32, 14, 5)),
        problems.convolve,
        (50, 32, 14, 5),
        (50, 32, 14, 5),
        beyond_norm,
    ),
    "depthwise_convolution": Checked(
        tuple(partial(problems.convolve_each, stride=stride) for stride in (1, 2)),
        ((1, 1, 1), (3, 7, 9), (2, 33, 8)),
        problems.convolve_each,
        (32, 144, 16),
        (32, 144, 16),
    ),
    "max_pool": Checked(
        (problems.pool,), ((1, 1, 2), (3, 7, 9), (2, 32, 28)), problems.pool,
        (50, 32, 28), (50, 32, 28),
    ),
    "normalize": Checked(
        tuple(partial(problems.normal, groups=groups) for groups in (0, 1)),
        ((2, 1, 2), (3, 7, 9), (2, 32, 28)),
        problems.normal,
        (50, 32, 16),
        (50, 32, 16),
    ),
    "pooled_convolution": Checked(
        (problems.convolve_and_pool,),
        ((2, 16, 9, 3), (3, 32, 14, 5)),
        problems.convolve_and_pool,
        (50, 32, 14, 5),
        (50, 32, 14, 5),
        beyond_norm,
    ),
    "short_attention": Checked(
        (problems.attention,),
        ((1, 1, 1, 1), (3, 7, 2, 5), (2, 33, 3, 4), (4, 32, 8, 4)),
        problems.attention,
        (128, 32, 8, 4),
        (128, 32, 8, 4),
    ),
    "dropout_mask": Checked(
        (problems.mask,),
        ((1, 1), (7, 31), (9, 129), (65, 256)),
        problems.mask,
        (2**16, 256),
        (2**12, 256),
    ),
}  # fmt: skip


def check_operator(
    name: str, device: torch.device, bandwidth: float, sgemm: float
) -> dict[str, object]:
    """The facts about one operator; CheckFailed that names the backends, sizes and errors."""
    checked, operator = CHECKED[name], OPERATORS[name]
    facts: dict[str, object] = {}
    wrong: list[str] = []
    reasons = []
    for backend in FUSED[device.type]:
        if reason := operator.unavailable(backend, torch.zeros(1, 1, device=device)):
            reasons.append(f"{backend}: {reason}")
            continue
        found, error = compare(checked, device, backend)
        wrong += found
        large = checked.large if device.type == "cuda" else checked.on_cpu
        facts[backend] = {
            "largest error": error,
            "size": list(large),
            **timed(checked.timed(*large), device, backend, bandwidth, sgemm),
        }
    facts["not here"] = reasons
    if wrong:
        raise CheckFailed("; ".join(wrong), facts)
    if len(reasons) == len(FUSED[device.type]):
        raise NotHere("; ".join(reasons))
    return facts


def compare(checked: Checked, device: torch.device, backend: str) -> tuple[list[str], float]:
    """What is wrong, in words, and the largest error at all."""
    wrong, largest = [], 0.0
    for make in checked.makes:
        for size in checked.sizes:
            problem = make(*size)
            doubles = [t.to(device, torch.float64) for t in problem.tensors]
            exact = problem.run(doubles, "torch")
            plain = [t.to(device) for t in problem.tensors]
            for tensors, place in ((plain, ""), ([beside(t) for t in plain], ", unaligned")):
                torch32, got = problem.run(tensors, "torch"), problem.run(tensors, backend)
                for number, (a, b, c) in enumerate(zip(got, torch32, exact, strict=True)):
                    largest = max(largest, largest_error(a, c))
                    if why := checked.beyond(a, b, c):
                        wrong.append(f"{backend} at {size}{place}, result {number}: {why}")
    return wrong, largest


def beside(tensor: Tensor) -> Tensor:
    """The same numbers, one number beyond where torch lets memory begin."""
    room = tensor.new_empty(tensor.numel() + 1)
    return room[1:].view(tensor.shape).copy_(tensor)


def timed(
    problem: Problem, device: torch.device, backend: str, bandwidth: float, sgemm: float
) -> dict[str, float]:
    """Seconds of the backend and of torch's reference, and the share of the machine's limit."""
    tensors = [t.to(device) for t in problem.tensors]
    times = {
        name: median_seconds(lambda name=name: problem.run(tensors, name), device)  # type: ignore[misc]
        for name in (backend, "torch")
    }
    facts = {"seconds": times[backend], "torch by it": times["torch"] / times[backend]}
    if problem.bytes:
        facts["of bandwidth"] = problem.bytes / times[backend] / bandwidth
    if problem.flops:
        facts["of sgemm"] = problem.flops / times[backend] / sgemm
    return facts


def without_check(names: Iterable[str]) -> set[str]:
    """Operators that nobody checks; a gradient is checked with its operator."""
    return {name.removesuffix("_backward") for name in names} - set(CHECKED)
