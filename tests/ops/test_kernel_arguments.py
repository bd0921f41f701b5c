"""Triton can start every kernel: the function that it generates to take the arguments takes ours.

At the first launch Triton writes a Python function with the names of the kernel's arguments, beside
names of its own (`params`, `options`, `backend`, …); an argument of such a name cannot be passed.
Neither the interpreter nor ahead-of-time compilation goes through that function, so it is called
here, as `JITFunction.run` does.
"""

import importlib
import pkgutil

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

import c2v_sim.kernels

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "i64": torch.int64,
          "i8": torch.int8}  # fmt: skip
NUMBERS = {"i32": 7, "i64": 2**40, "fp32": 0.5}
# What JITFunction.run adds to the keywords of a launch.
ADDED = {"num_warps": 4, "debug": False, "instrumentation_mode": ""}


def compiled_kernels():
    """(operator, kernel, types, constants) of every entry of an AOT list."""
    for info in pkgutil.iter_modules(c2v_sim.kernels.__path__):
        module = importlib.import_module(f"c2v_sim.kernels.{info.name}")
        for kernel, types, constants, _ in getattr(module, "AOT", ()):
            yield info.name, kernel, types, constants


def bind(function, types: dict, constants: dict) -> tuple[dict, dict]:
    """What is passed by name, and the types that Triton sees when it is."""
    kernel = JITFunction(function)
    backend = make_backend(GPUTarget("cuda", 80, 32))
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    values = {
        n: torch.zeros(4, dtype=DTYPES[t[1:]]) if t.startswith("*") else NUMBERS[t]
        for n, t in types.items()
    }
    in_order = [values[n] for n in kernel.arg_names if n in values]
    bound, special, options = binder(*in_order, **constants, **ADDED)
    _, signature, _, _ = kernel._pack_args(backend, constants | ADDED, bound, special, options)
    assert all(bound[n] is values[n] for n in values)
    return bound, {n: signature[n] for n in types}


@pytest.mark.parametrize(
    ("function", "types", "constants"),
    [pytest.param(k.fn, t, c, id=f"{op}-{k.__name__}") for op, k, t, c in compiled_kernels()],
)
def test_the_arguments_reach_the_kernel(function, types, constants):
    bound, seen = bind(function, types, constants)
    assert seen == types  # the ahead-of-time check compiles what is launched
    assert {n: bound[n] for n in constants} == constants


def with_options(x, options, N: tl.constexpr):
    tl.store(x, options)


def with_params(params, size, N: tl.constexpr):
    tl.store(params, size)


def with_backend(x, backend, N: tl.constexpr):
    tl.store(x, backend)


@pytest.mark.parametrize("function", [with_options, with_params, with_backend])
def test_a_name_of_triton_is_found(function):
    pointer, number = list(JITFunction(function).arg_names)[:2]
    with pytest.raises((SyntaxError, TypeError, AttributeError)):
        bind(function, {pointer: "*fp32", number: "i32"}, {"N": 4})
