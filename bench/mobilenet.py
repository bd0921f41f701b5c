"""MobileNetV2 (64×64 images, one thread): depthwise layers and whole step, torch's and ours.

    python bench/mobilenet.py [--batch N] [--repeats N]

The two alternate in CPU time; a ratio is the median of those of pairs. The bandwidth of a layer
counts what must be read and written once (forward x, y; both gradients dy, x, dx), as a share of
that of a copy measured in the same run.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.models import build_model
from c2v_sim.models.faster.layers import take_over_layers
from c2v_sim.ops.layers.depthwise_convolution import depthwise_convolution_backward_torch
from c2v_sim.system.machine import cpu_name, keep_freed_memory

SHAPE = (64, 64, 3)


def pairs(plain: Callable, ours: Callable, repeats: int) -> tuple[float, float, float]:
    """Median seconds of both, and of plain / ours."""
    seconds: list[list[float]] = [[], []]
    for t in range(repeats + 1):
        for which in (0, 1) if t % 2 else (1, 0):
            begin = time.process_time()
            (plain, ours)[which]()
            seconds[which].append(time.process_time() - begin)
    first, second = (s[1:] for s in seconds)
    ratio = statistics.median(a / b for a, b in zip(first, second, strict=True))
    return statistics.median(first), statistics.median(second), ratio


def depthwise_layers(network: nn.Module) -> dict[tuple[int, int, int], int]:
    """(channels, side, stride) and how many of it."""
    found: dict[tuple[int, int, int], int] = {}

    def note(module: nn.Conv2d, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        key = (module.in_channels, inputs[0].shape[2], module.stride[0])
        found[key] = found.get(key, 0) + 1

    each = [m for m in network.modules() if isinstance(m, nn.Conv2d) and m.groups > 1]
    hooks = [m.register_forward_hook(note) for m in each]
    network(torch.zeros(2, SHAPE[2], *SHAPE[:2]))
    for hook in hooks:
        hook.remove()
    return found


def compare_layer(layer: tuple[int, int, int], batch: int, repeats: int, copied: float) -> str:
    channels, side, stride = layer
    x = torch.randn(batch, channels, side, side).to(memory_format=torch.channels_last)
    w = torch.randn(channels, 1, 3, 3)
    dy = torch.randn_like(F.conv2d(x, w, None, stride, 1, groups=channels))
    native = torch.ops.c2v_sim
    cases = {
        "forward": (
            lambda: F.conv2d(x, w, None, stride, 1, groups=channels),
            lambda: native.depthwise_convolution(x, w, stride),
            x.numel() + dy.numel(),
        ),
        "both gradients": (
            lambda: depthwise_convolution_backward_torch(dy, x, w, stride, True, True),
            lambda: native.depthwise_convolution_backward(dy, x, w, stride, True, True),
            2 * x.numel() + dy.numel(),
        ),
    }
    text = f"{channels:>4} at {side:>2}², stride {stride}: "
    for name, (plain, ours, floats) in cases.items():
        a, b, ratio = pairs(plain, ours, repeats)
        share = 100 * 4 * floats / b / copied
        text += f"{name} {1e3 * a:6.3f} {1e3 * b:6.3f} ms {ratio:5.2f}, {share:3.0f} %; "
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    plain = build_model("mobilenetv2", classes=7, input_shape=SHAPE, norm="batch", seed=0)
    plain = plain.to(memory_format=torch.channels_last)
    ours = copy.deepcopy(plain)
    take_over_layers(ours)
    source = torch.randn(16 << 20)
    into = torch.empty_like(source)
    seconds = pairs(lambda: into.copy_(source), lambda: into.copy_(source), 7)[0]
    copied = 2 * 4 * source.numel() / seconds
    print(f"{cpu_name()}, one thread, batch {options.batch}; a copy: {copied / 1e9:.0f} GB/s")
    for layer in depthwise_layers(plain):
        print(compare_layer(layer, options.batch, options.repeats, copied), flush=True)
    x = torch.randn(options.batch, SHAPE[2], *SHAPE[:2]).to(memory_format=torch.channels_last)
    y = torch.arange(options.batch) % 7

    def step(network: nn.Module) -> None:
        network.zero_grad()
        F.cross_entropy(network(x), y).backward()

    a, b, ratio = pairs(lambda: step(plain), lambda: step(ours), options.repeats)
    print(f"step: torch {1e3 * a:.0f} ms, ours {1e3 * b:.0f} ms, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
