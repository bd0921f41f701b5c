"""Every Triton kernel at the sizes that matter: its grid, what it takes, and how long it must take.

    python bench/gpu_roofline.py

Registers and shared memory are those of the kernels as compiled here for an A100 (sm_80) and an RTX
3090 (sm_86); no GPU is needed. Bytes count every tensor once, as if caches were perfect. The time
is the larger of bytes by bandwidth and operations by the rate of float32, from the vendor's data:
a bound that no run can beat, not a measurement.
"""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from aot_compile import compile_one

from c2v_sim.models import build_model
from c2v_sim.training.arena import layout_of


@dataclass(frozen=True)
class Gpu:
    name: str
    target: str
    multiprocessors: int
    bandwidth: float  # bytes/s
    rate: float  # float32 operations/s, without tensor cores


GPUS = (
    Gpu("A100", "sm_80", 108, 1555e9, 19.5e12),
    Gpu("RTX 3090", "sm_86", 82, 936e9, 35.6e12),
)


@dataclass(frozen=True)
class Launch:
    """One launch: a kernel of kernels/<operator>.py, or a product by the device's library."""

    operator: str
    kernel: str
    size: str
    grid: tuple[int, ...]
    bytes: float
    operations: float
    constants: dict = field(default_factory=dict)  # that tell which variant it is

    def seconds(self, gpu: Gpu) -> float:
        return max(self.bytes / gpu.bandwidth, self.operations / gpu.rate)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def module(operator: str):
    return importlib.import_module(f"c2v_sim.kernels.{operator}")


def rows_of_parameters() -> Iterator[Launch]:
    """Aggregation of 10 clients, and one step of one."""
    block = module("sgd_step").BLOCK
    everything = {"BUFFER": True}
    for name in ("cnn", "resnet18"):
        model = build_model(name, classes=10, input_shape=(32, 32, 3), seed=0)
        p = layout_of(model).trainable
        size, grid = f"{name}, P {p:,}", (cdiv(p, block),)
        yield Launch("weighted_sum", "_weighted_sum_kernel", f"K 10, {size}", grid, 44 * p, 20 * p)
        yield Launch("sgd_step", "_sgd_step_kernel", size, (*grid, 1), 12 * p, 4 * p,
                     {"BUFFER": False})  # fmt: skip
        terms = f"{size}, all terms"
        yield Launch("sgd_step", "_sgd_step_norm_kernel", terms, (*grid, 1), 16 * p, 6 * p)
        yield Launch("sgd_step", "_sgd_step_kernel", terms, (*grid, 1), 32 * p, 13 * p, everything)


def feed_forward(tokens: int = 4096, channels: int = 32, units: int = 2048) -> Iterator[Launch]:
    ffn = module("fused_ffn")
    weights, rows, one = 4 * (2 * channels + 1) * units, 4 * tokens * channels, tokens * units
    size = f"{tokens:,} tokens, {channels} channels, {units:,} units"
    for kernel, shape, matrices, products in (
        ("_forward_kernel", ffn.FORWARD, 2, 2),
        ("_grad_x_kernel", ffn.GRAD_X, 3, 3),
    ):
        block = ffn._block_tokens(shape[0], tokens)
        yield Launch("fused_ffn", kernel, size, (cdiv(tokens, block),), matrices * rows + weights,
                     2 * products * channels * one, {"TOKENS": block, "DROP": True})  # fmt: skip
    slices = min(ffn.MAX_SLICES, cdiv(tokens, ffn.SLICE_TOKENS))
    yield Launch("fused_ffn", "_grad_weights_kernel", size, (cdiv(units, ffn.UNITS), slices),
                 2 * rows + (1 + slices) * weights, 8 * channels * one,
                 {"TOKENS": ffn.GRAD_WEIGHTS[0], "DROP": True})  # fmt: skip


def pairs(batch: int = 128, dim: int = 512) -> Iterator[Launch]:
    losses = module("index_losses")
    rows = losses._rows_of_a_program(batch)
    size, grid = f"B {batch}, D {dim}", (cdiv(batch, rows),)
    own, square = 4 * batch * dim, batch * batch
    yield Launch(
        "index_losses", "_lengths_kernel", size, grid, own, 2 * batch * dim, {"ROWS": rows}
    )
    yield Launch("index_losses", "_similarity_kernel", size, grid, 4 * own, 10 * batch * dim)
    yield Launch("index_losses", "_sums_kernel", f"{size}, diversity", (batch,), 4 * square,
                 10 * square, {"KIND": 1})  # fmt: skip
    yield Launch("index_losses", "_weights_kernel", f"{size}, diversity", (batch,), 8 * square,
                 20 * square, {"KIND": 1})  # fmt: skip
    for clients in (100, 10_000):
        size, products = f"B {batch}, M {clients:,}, D {dim}", batch * clients
        moved = own + 4 * clients * dim + 4 * products
        for what in ("products", "gradient"):
            yield Launch("projection_orthogonality", f"library: {what}", size, (), moved,
                         2 * products * dim)  # fmt: skip
        yield Launch("projection_orthogonality", "_weights_kernel", size, (batch,), 8 * products,
                     5 * products)  # fmt: skip


def scores(cohort: int = 10, dim: int = 512) -> Iterator[Launch]:
    kernels = module("client_scores")
    size, read = f"k {cohort}, D {dim}", 4 * cohort * dim
    yield Launch("client_scores", "_coefficients_kernel", size, (cdiv(cohort, kernels.ROWS),), read,
                 2 * cohort * dim)  # fmt: skip
    grid = (cdiv(dim, kernels.BLOCK), cdiv(cohort, kernels.CHUNK))
    yield Launch("client_scores", "_direction_kernel", size, grid, read, 2 * cohort * dim)
    for clients in (100, 10_000):
        yield Launch("client_scores", "_client_scores_kernel", f"M {clients:,}, two of D {dim}",
                     (cdiv(clients, kernels.ROWS),), 8 * clients * dim,
                     8 * clients * dim)  # fmt: skip


def masks(rows: int = 2**14, columns: int = 256) -> Iterator[Launch]:
    kernels = module("dropout_mask")
    grid = (cdiv(rows, kernels.ROWS), cdiv(columns, kernels.COLUMNS))
    yield Launch("dropout_mask", "_mask_kernel", f"{rows:,} × {columns}, of CCT", grid,
                 rows * columns, 12 * rows * columns)  # fmt: skip


def launches() -> list[Launch]:
    parts = (rows_of_parameters(), feed_forward(), pairs(), scores(), masks())
    return [launch for part in parts for launch in part]


def compiled(launch: Launch, gpu: Gpu, known: dict) -> dict:
    """What the compiler says of the variant of AOT that is launched; None for a library's."""
    for kernel, types, constants, warps in module(launch.operator).AOT:
        if kernel.__name__ == launch.kernel and launch.constants.items() <= constants.items():
            key = kernel.__name__, str(constants), gpu.target
            if key not in known:
                facts = compile_one(kernel, types, constants, warps, gpu.target, aligned=True)
                known[key] = facts | {"threads": 32 * warps}
            return known[key]
    raise KeyError(f"{launch.operator}: AOT has no {launch.kernel} with {launch.constants}")


def table() -> Iterator[str]:
    heads = ["operator", "kernel", "size", "grid × threads", "registers", "shared", "moved"]
    heads += [f"{gpu.name}, at least" for gpu in GPUS]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    known: dict = {}
    for launch in launches():
        bounds = [f"{1e6 * launch.seconds(gpu):.2f} µs" for gpu in GPUS]
        cells = [launch.operator, launch.kernel, launch.size, "", "", ""]
        if launch.grid:
            facts = [compiled(launch, gpu, known) for gpu in GPUS]
            grid = " × ".join(f"{n:,}" for n in launch.grid)
            cells[1] = f"`{launch.kernel}`"
            cells[3] = f"{grid} × {facts[0]['threads']}"
            cells[4] = " / ".join(str(f["registers"]) for f in facts)
            cells[5] = f"{max(f['shared'] for f in facts):,} B"
        yield "| " + " | ".join([*cells, f"{launch.bytes / 1e6:.2f} MB", *bounds]) + " |"


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)
