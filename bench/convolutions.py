"""Every convolution of cnn, resnet8 and resnet18, one thread: torch's and ours, time and error.

    python bench/convolutions.py [--repeats N] [--models cnn resnet18] [--json FILE]
    python bench/convolutions.py --steps [--norms batch group]

The two alternate, and the ratio is that of medians of CPU time. GFLOP/s are counted as those of a
direct convolution, whatever was done; errors are Frobenius norms of the difference to float64,
relative to that of the result. Layers that torch keeps (`pays` in ops/layers/convolution.py) are
marked; `s2` means stride 2. `--steps` compares whole steps instead, forward and backward. torch's
library asks ONEDNN_MAX_CPU_ISA for its vectors (AVX2), torch and c2v_sim ask
ATEN_CPU_CAPABILITY (avx2).
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from c2v_sim.models import build_model
from c2v_sim.models.faster.layers import take_over_layers
from c2v_sim.ops.layers.convolution import convolution, convolution_backward_torch, pays
from c2v_sim.system.machine import cpu_name, keep_freed_memory

BATCH = {"cnn": 50, "resnet8": 50, "resnet18": 25}


def layers(model: str) -> dict[tuple[int, ...], int]:
    """(side, channels, filters, taps, padding, stride) of convolutions that can be taken over."""
    network = build_model(model, classes=10, input_shape=(32, 32, 3), norm="group", seed=0)
    take_over_layers(network)
    found: dict[tuple[int, ...], int] = {}

    def note(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if "_conv_forward" in vars(module):
            filters, channels, taps, _ = module.weight.shape
            steps = (module.padding[0], module.stride[0])
            key = (inputs[0].shape[2], channels, filters, taps, *steps)
            found[key] = found.get(key, 0) + 1

    for module in network.modules():
        module.register_forward_hook(note)
    network(torch.zeros(1, 3, 32, 32))
    return found


def medians(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            begin = time.process_time()
            run()
            times[name].append(time.process_time() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def error(got: Tensor, exact: Tensor) -> float:
    return ((got.double() - exact).norm() / exact.norm()).item()


def compare(batch: int, layer: tuple[int, ...], repeats: int) -> dict[str, object]:
    side, channels, filters, taps, padding, stride = layer
    steps = {"padding": padding, "stride": stride}
    torch.manual_seed(0)
    x = torch.randn(batch, channels, side, side).relu_().to(memory_format=torch.channels_last)
    w = torch.randn(filters, channels, taps, taps).mul_((channels * taps * taps) ** -0.5)
    w = w.to(memory_format=torch.channels_last)
    y = F.conv2d(x, w, **steps)
    dy = torch.randn_like(y)
    ours = {"forward": lambda: convolution(x, w, **steps, backend="native")}
    torchs: dict[str, Callable[[], object]] = {"forward": lambda: F.conv2d(x, w, **steps)}
    backward = torch.ops.c2v_sim.convolution_backward
    for name, need in {"dx": (True, False), "dw": (False, True), "both": (True, True)}.items():
        sizes = (padding, stride, *need, False)
        ours[name] = lambda sizes=sizes: backward(dy, x, w, *sizes)
        torchs[name] = lambda sizes=sizes: convolution_backward_torch(dy, x, w, *sizes)
    row: dict[str, object] = {"layer": layer, "batch": batch}
    row["pays"] = pays(x, filters, channels, taps, **steps)
    exact = [t.double().requires_grad_() for t in (x, w)]
    y64 = F.conv2d(exact[0], exact[1], **steps)
    y64.backward(dy.double())
    truth = (y64.detach(), exact[0].grad, exact[1].grad)
    for side_name, runs in (("ours", ours), ("torch", torchs)):
        results = (runs["forward"](), *runs["both"]()[:2])  # type: ignore[misc]
        row[f"error {side_name}"] = [error(r, t) for r, t in zip(results, truth, strict=True)]
    flops = 2 * y.numel() * channels * taps * taps
    for name in ours:
        seconds = medians({"torch": torchs[name], "ours": ours[name]}, repeats)
        work = flops * (2 if name == "both" else 1)
        row[name] = {k: work / s / 1e9 for k, s in seconds.items()}
    return row


def show(model: str, count: int, row: dict[str, object]) -> None:
    side, channels, filters, taps, _, stride = row["layer"]  # type: ignore[misc]
    text = f"{model:9}{count}× {taps}×{taps} {channels:>3}→{filters:<3} at {side}²"
    text = (text + (" s2" if stride == 2 else "")).ljust(34)
    for name in ("forward", "dx", "dw", "both"):
        rate: dict[str, float] = row[name]  # type: ignore[assignment]
        text += f"| {rate['torch']:4.0f} {rate['ours']:4.0f} {rate['ours'] / rate['torch']:5.2f} "
    errors = zip(row["error torch"], row["error ours"], strict=True)  # type: ignore[call-overload]
    text += "| " + "  ".join(f"{a:.0e} {b:.0e}" for a, b in errors)
    print(text + ("" if row["pays"] else "  (torch)"), flush=True)


def compare_steps(model: str, norm: str, repeats: int) -> None:
    plain = build_model(model, classes=10, input_shape=(32, 32, 3), norm=norm, seed=0)
    plain = plain.to(memory_format=torch.channels_last)
    ours = copy.deepcopy(plain)
    take_over_layers(ours)
    x = torch.randn(BATCH[model], 3, 32, 32).to(memory_format=torch.channels_last)
    y = torch.arange(BATCH[model]) % 10

    def step(network: torch.nn.Module) -> None:
        network.zero_grad(set_to_none=False)
        F.cross_entropy(network(x), y).backward()

    step(plain), step(ours)
    seconds = medians({"torch": lambda: step(plain), "ours": lambda: step(ours)}, repeats)
    a, b = seconds["torch"], seconds["ours"]
    print(f"{model}, {norm} norm: torch {1e3 * a:.1f} ms, ours {1e3 * b:.1f} ms, ratio {a / b:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--models", nargs="+", default=list(BATCH), choices=BATCH)
    parser.add_argument("--json", default="")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--norms", nargs="+", default=["group"], choices=("batch", "group"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.steps:
        keep_freed_memory()
        print(f"{cpu_name()}, one thread, a step of forward and backward")
        for model in args.models:
            for norm in args.norms:
                compare_steps(model, norm, args.repeats)
        return
    print(f"{cpu_name()}, one thread. GFLOP/s of torch and ours and their ratio; then the relative")
    print("errors of y, dx, dw: torch's and ours.")
    print(" " * 34 + "".join(f"| {n:16}" for n in ("forward", "dx", "dw", "both gradients")))
    rows = []
    for model in args.models:
        for layer, count in layers(model).items():
            rows.append(compare(BATCH[model], layer, args.repeats))
            show(model, count, rows[-1])
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"cpu": cpu_name(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
