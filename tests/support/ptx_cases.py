"""What the compiled kernels have to compute: each operator once as PTX, and against float64.

The functions run in the process of ptx_driver.worker(). `offset` is how many elements a tensor
begins after an aligned address: Triton compiles another variant for such pointers, as it does for
sizes and strides that 16 does not divide, or that are 1.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence

import ptx_driver
import torch
from backends import assert_as_good_as_torch
from torch import Tensor

from c2v_sim import ops

STEP = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "max_grad_norm": 2.0, "proximal": 0.1,
        "zero_grads": True}  # fmt: skip


def placed(tensor: Tensor, offset: int, row: int = 0) -> Tensor:
    """A copy that begins `offset` elements after the start of its memory, in rows of `row` more."""
    shape = torch.Size((*tensor.shape[:-1], tensor.shape[-1] + row))
    memory = torch.full((offset + shape.numel(),), 7.0, dtype=tensor.dtype)
    view = memory[offset:].view(shape)[..., : tensor.shape[-1]]
    return view.copy_(tensor)


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def compare(run: Callable[[str, list[Tensor]], Sequence[Tensor]], inputs: list[Tensor]) -> None:
    """run(backend, inputs) as PTX, by torch in float32, and by torch in float64."""
    results = [run("triton", inputs), run("torch", inputs)]
    exact = run("torch", [t.double() if t.is_floating_point() else t for t in inputs])
    for i, (got, torch32, truth) in enumerate(zip(*results, exact, strict=True)):
        assert_as_good_as_torch(got, torch32, truth, f"result {i}")


def with_gradients(value: Tensor, leaves: list[Tensor], along: Tensor | None = None) -> list:
    return [value.detach(), *torch.autograd.grad(value, leaves, along)]


def weighted_sum(rows: int, size: int, offset: int = 0, dtype: str = "float32") -> None:
    arena, weights = draw(0, (rows, size), (rows,))
    arena = placed(arena.to(getattr(torch, dtype)), offset, row=offset)
    exact = weights.double() @ arena.double()
    got, torch32 = (ops.weighted_sum(arena, weights, backend=b) for b in ("triton", "torch"))
    assert_as_good_as_torch(got, torch32, exact)


def sgd_step(rows: int, size: int, offset: int = 0, everything: bool = True) -> None:
    def run(backend: str, inputs: list[Tensor]) -> list[Tensor]:
        params, grads, buffer = (placed(t, offset, row=offset) for t in inputs[:3])
        linear, anchor = inputs[3:]
        if everything:
            ops.sgd_step_(
                params, grads, buffer, linear=linear, anchor=anchor, backend=backend, **STEP
            )
        else:
            ops.sgd_step_(params, grads, lr=0.1, backend=backend)
        return [params, grads, buffer]

    compare(run, draw(1, *[(rows, size)] * 5))


def fused_ffn(
    tokens: int, channels: int, units: int, dropout: float, offset: int = 0, programs: int = 216,
    clients: tuple[int, ...] = (),
) -> None:  # fmt: skip
    """With one program asked for, blocks of tokens are as large as they may be."""
    importlib.import_module("c2v_sim.kernels.fused_ffn").PROGRAMS = programs
    shapes = [(tokens, channels), (units, channels), (units,), (channels, units), (channels,)]
    shapes = [(*clients, *shape) for shape in (*shapes, (tokens, channels))]
    x, w1, b1, w2, b2, grad_y = draw(2, *shapes)
    # On a grid where w1 x + b1 is exact and never 0, so that relu does not depend on rounding.
    x, w1, b1 = (x * 16).round() / 16, (w1 * 16).round() / 64, ((b1 * 512).round() + 0.5) / 1024
    seed = torch.arange(3, 3 + clients[0]) if clients else torch.tensor(3)

    def run(backend: str, inputs: list[Tensor]) -> list[Tensor]:
        leaves = [placed(t, offset).requires_grad_() for t in inputs[:5]]
        y = ops.fused_ffn(*leaves, dropout=dropout, seed=seed, backend=backend)
        return with_gradients(y, leaves, placed(inputs[5], offset))

    compare(run, [x, w1, b1, w2 * units**-0.5, b2, grad_y])


def index_losses(size: int, dim: int, offset: int = 0, counts: tuple[int, ...] = ()) -> None:
    real = torch.tensor(counts) if counts else None

    def run(backend: str, inputs: list[Tensor]) -> list[Tensor]:
        leaves = [placed(t, offset).requires_grad_() for t in inputs]
        losses = ops.index_losses(*leaves, real, backend=backend)
        total = (losses[0] + 2 * losses[1] + 3 * losses[2]).sum()
        return [*(loss.detach() for loss in losses), *torch.autograd.grad(total, leaves)]

    clients = (len(counts),) if counts else ()
    compare(run, draw(3, *[(*clients, size, dim)] * 3))


def projection_orthogonality(
    size: int, clients: int, dim: int, form: str, offset: int = 0, dtype: str = "float32"
) -> None:
    z, index = draw(4, (size, dim), (clients, dim))
    index = index.to(getattr(torch, dtype))

    def run(backend: str, inputs: list[Tensor]) -> list[Tensor]:
        leaf = placed(inputs[0], offset).to(inputs[1].dtype).requires_grad_()
        other = placed(inputs[1], offset)
        loss = ops.projection_orthogonality(leaf, other, form, backend=backend)
        return with_gradients(loss, [leaf])

    compare(run, [z.to(index.dtype), index])


def client_scores(
    clients: int, dim: int, cohort: int, both: bool = True, offset: int = 0,
    dtype: str = "float32", scale: float = 1.0,
) -> None:  # fmt: skip
    features, labels = draw(5, (clients, dim), (clients, dim + 1))
    features[-1] *= scale  # a row whose squares leave float32's range takes the branch in float64
    labels[0] = 0.0
    tensors = [placed(t.to(getattr(torch, dtype)), offset) for t in (features, labels)]
    members, sizes = torch.arange(cohort) % clients, torch.arange(cohort) + 1.0

    def run(backend: str, inputs: list[Tensor]) -> list[Tensor]:
        label_index = inputs[1] if both else None
        return [ops.client_scores(inputs[0], label_index, members, sizes, backend=backend)]

    compare(run, tensors)


def dropout_mask(rows: int, columns: int, first: int = 0, clients: int = 0) -> None:
    seed = torch.arange(5, 5 + clients) if clients else torch.tensor(5)
    got, wanted = (
        ops.dropout_mask(rows, columns, 6554, seed, first=first, backend=backend)
        for backend in ("triton", "torch")
    )
    assert torch.equal(got, wanted)


CASES = {f.__name__: f for f in (weighted_sum, sgd_step, fused_ffn, index_losses,
                                 projection_orthogonality, client_scores,
                                 dropout_mask)}  # fmt: skip


def check(operator: str, arguments: tuple, capability: int = 80) -> list[tuple[str, str]]:
    """Run one case; the kernels that it launched, as (module, name)."""
    ptx_driver.use(capability)
    ptx_driver.launched.clear()
    CASES[operator](*arguments)
    return ptx_driver.launched.copy()


def check_changed(operator: str, arguments: tuple, change: Callable[[str], str]) -> str:
    """The finding, as "Race: …", when the PTX is changed before it runs; "" for none."""
    ptx_driver.use(80)
    with ptx_driver.changed(change):
        try:
            CASES[operator](*arguments)
        except (ptx_driver.PtxError, AssertionError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


def texts(operator: str, arguments: tuple) -> dict[str, str]:
    """The PTX of every kernel that a case launches, by the kernel's name."""
    seen: list[str] = []
    check_changed(operator, arguments, lambda ptx: (seen.append(ptx), ptx)[1])
    return {ptx.partition(".entry ")[2].partition("(")[0]: ptx for ptx in seen}


def all_kernels() -> set[tuple[str, str]]:
    """(module, name) of everything in kernels/ that is launched: what its AOT list names, and
    every function for Triton whose name ends so."""
    import c2v_sim.kernels

    found = set()
    for info in pkgutil.iter_modules(c2v_sim.kernels.__path__):
        module = importlib.import_module(f"c2v_sim.kernels.{info.name}")
        functions = [entry[0] for entry in getattr(module, "AOT", ())]
        functions += [value for name, value in vars(module).items() if name.endswith("_kernel")]
        found |= {(f.fn.__module__, f.fn.__name__) for f in functions}
    return found
