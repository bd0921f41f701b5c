"""Compiles every Triton kernel ahead of time and prints one JSON line each; no GPU needed.

Run as a process of its own (test_aot.py does): a process that interprets kernels cannot compile
them. Each kernels/<op>.py lists what to compile in AOT: (kernel, argument types, constants,
warps). Usage: python aot_compile.py TARGET... with targets such as sm_80 or gfx942; each kernel is
compiled as for aligned tensors, and for sm_80:odd as for any.
"""

import contextlib
import importlib
import io
import json
import os
import pkgutil
import re
import sys
import tempfile

os.environ.pop("TRITON_INTERPRET", None)
os.environ |= {"TRITON_ALWAYS_COMPILE": "1", "TRITON_DUMP_PTXAS_LOG": "1"}
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="c2v_sim_aot_")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import c2v_sim.kernels


def gpu_target(name: str) -> GPUTarget:
    if name.startswith("sm_"):
        return GPUTarget("cuda", int(name.removeprefix("sm_")), 32)
    return GPUTarget("hip", name, 64)


def compile_one(kernel, types, constants, warps, target: str, *, aligned: bool) -> dict:
    # Pointers and sizes as at run time: torch allocations are 16-byte aligned, and the sizes
    # that matter divide by 16. Others, too, reach a kernel: Triton then compiles it without this.
    signature = types | dict.fromkeys(constants, "constexpr")
    position = {name: i for i, name in enumerate(kernel.arg_names)}
    divisible = [n for n, t in types.items() if aligned and t.startswith(("*", "i"))]
    attrs = {(position[n],): [["tt.divisibility", 16]] for n in divisible}
    source = ASTSource(
        fn=kernel,
        signature={n: signature[n] for n in kernel.arg_names},
        constexprs={(position[n],): v for n, v in constants.items()},
        attrs=attrs,
    )
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        compiled = triton.compile(source, target=gpu_target(target), options={"num_warps": warps})
    text = log.getvalue()
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", text)]
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", text)]
    return {
        "shared": compiled.metadata.shared,
        "registers": max(registers, default=None),
        "spills": max(spills, default=None),
    }


def main(targets: list[str]) -> None:
    for info in pkgutil.iter_modules(c2v_sim.kernels.__path__):
        module = importlib.import_module(f"c2v_sim.kernels.{info.name}")
        for kernel, types, constants, warps in getattr(module, "AOT", ()):
            for wanted in targets:
                target, _, odd = wanted.partition(":")
                row = {"op": info.name, "kernel": kernel.__name__, "target": wanted}
                row |= {"constants": {k: str(v) for k, v in constants.items()}, "warps": warps}
                try:
                    row |= compile_one(kernel, types, constants, warps, target, aligned=not odd)
                except Exception as error:
                    row["error"] = f"{type(error).__name__}: {error}"
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
