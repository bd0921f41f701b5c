"""Instructions whose result is not the nearest float: exact value, then an error within the bound.

The PTX manual bounds the error of `div.full`, `ex2.approx`, … and says no more. Here the result is
the exact one moved by the whole bound or by a fraction of it, up or down, as a hash of the operands
decides: the same operands give the same bits, and a kernel that only works with exact roots or
quotients is found. `ftz` sets subnormal operands and results to zero.
"""

import numpy as np
from ptx_parse import PtxError

# Relative to the result. The manual, PTX ISA, gives the bounds in section 9.7.3, "Floating Point
# Instructions", https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions;
# behind each are the part and what it says. An ulp of a float32 is at most 2^-23 of it and at least
# half of that: bounds in ulp are taken as the wider of both.
ULP = 2.0**-23
RELATIVE = {
    ("div", "full"): 2 * ULP,  # 9.7.3.8: 2 ulp over the full range
    ("div", "approx"): 2 * ULP,  # 9.7.3.8: 2 ulp for a divisor in [2^-126, 2^126]; above that 0
    ("rcp", "approx"): ULP,  # 9.7.3.13: 1 ulp over the full range
    ("sqrt", "approx"): ULP,  # 9.7.3.15: relative 2^-23 over positive finite numbers
    ("rsqrt", "approx"): 2.0**-22.9,  # 9.7.3.16: relative, over positive finite numbers
    ("lg2", "approx"): 2.0**-22,  # 9.7.3.20: absolute for operands in (0.5, 2), else relative
    ("ex2", "approx"): 2 * ULP,  # 9.7.3.21: 2 ulp from the result rounded correctly, full range
    ("tanh", "approx"): 2.0**-11,  # 9.7.3.22: relative, over the full range
}
EXACT = {
    "div": np.divide,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcp": lambda x: 1 / x,
    "ex2": np.exp2,
    "lg2": np.log2,
    "tanh": np.tanh,
}
SMALLEST = float(np.finfo(np.float32).tiny)


def approximate(opcode: tuple[str, ...], *operands: np.ndarray) -> np.ndarray:
    """float32 operands -> a float32 result that the instruction may give."""
    name, mode = opcode[:2]
    if (name, mode) not in RELATIVE:
        raise PtxError(f"no error bound is known for {'.'.join(opcode)}")
    flush = "ftz" in opcode
    inputs = [flushed(x) if flush else x for x in operands]
    exact = EXACT[name](*(x.astype(np.float64) for x in inputs))
    if mode == "approx" and name == "div":  # beyond 2^126 the reciprocal is flushed
        exact = np.where((abs(inputs[1]) > 2.0**126) & np.isfinite(inputs[1]), 0 * exact, exact)
    bound = RELATIVE[name, mode]
    scale = np.maximum(abs(exact), 1.0) if name == "lg2" else abs(exact)
    with np.errstate(invalid="ignore"):
        moved = exact + bound * _direction(inputs) * scale
    result = np.where(np.isfinite(exact), moved, exact).astype(np.float32)
    return flushed(result) if flush else result


def _direction(operands: list[np.ndarray]) -> np.ndarray:
    """Numbers in [-1, 1], a quarter of them at each end; a function of the operands' bits."""
    mixed = np.zeros(operands[0].shape, np.uint32)
    for x in operands:
        mixed = (mixed ^ x.view(np.uint32)) * np.uint32(0x9E3779B1)
        mixed ^= mixed >> np.uint32(15)
    return np.clip(mixed.astype(np.float64) * (4 / 2**32) - 2, -1, 1)


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(abs(x) < SMALLEST, np.copysign(np.zeros_like(x), x), x)
