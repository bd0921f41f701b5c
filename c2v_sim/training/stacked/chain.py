"""Chains of Linear layers and ReLU on the CPU: one batched product for a block of clients.

Weights [k, out, in], inputs [k, B, in]:

    forward    h_0 = x, h_l = relu(h_{l-1} W_l^T + b_l), without relu where the model has none
    backward   d_L = (softmax(h_L) - onehot(y)) / n, d_{l-1} = (d_l W_l) · [h_{l-1} > 0]
    gradients  W_l: d_l^T h_{l-1}, b_l: sum of d_l over the batch
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from c2v_sim import ops
from c2v_sim.models.linear_chain import Chain
from c2v_sim.system.errors import Interrupted
from c2v_sim.training.arena import Layout
from c2v_sim.training.local_training import Data
from c2v_sim.training.optimisers import Sgd
from c2v_sim.training.stacked.batches import Batches


@dataclass(frozen=True)
class Stack:
    """A layer of k models, or its gradients or velocities."""

    weight: Tensor  # [k, out, in]
    bias: Tensor | None  # [k, out]
    relu: bool

    @property
    def tensors(self) -> list[Tensor]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def each(self, change: Callable[[Tensor], Tensor]) -> "Stack":
        bias = None if self.bias is None else change(self.bias)
        return Stack(change(self.weight), bias, self.relu)


def write_gradients(
    layers: list[Stack], gradients: list[Stack], x: Tensor, y: Tensor, share: Tensor
) -> Tensor:  # [k]
    """Overwrite `gradients` with those of sum_b share_b · cross entropy_b; returns that sum.

    x [k, B, in], y [k, B], share [k, B].
    """
    inputs = [x]
    for layer in layers:
        if layer.bias is None:
            out = torch.bmm(inputs[-1], layer.weight.mT)
        else:
            out = torch.baddbmm(layer.bias.unsqueeze(1), inputs[-1], layer.weight.mT)
        inputs.append(out.relu_() if layer.relu else out)
    log_p, target = torch.log_softmax(inputs.pop(), dim=2), y.unsqueeze(2)
    loss = -(log_p.gather(2, target).squeeze(2) * share).sum(dim=1)
    d = log_p.exp_()
    d.scatter_add_(2, target, d.new_full((), -1.0).expand(target.shape))  # p - onehot(y)
    d *= share.unsqueeze(2)
    for number in reversed(range(len(layers))):
        gradient = gradients[number]
        torch.bmm(d.mT, inputs[number], out=gradient.weight)
        if gradient.bias is not None:
            torch.sum(d, dim=1, out=gradient.bias)
        if number:
            d = torch.bmm(d, layers[number].weight)
            if layers[number - 1].relu:
                d.mul_(inputs[number] > 0)
    return loss


def train_block(
    layers: list[Stack],
    data: Data,
    batches: Batches,
    sgd: Sgd,
    stopped: Callable[[], bool],
) -> Tensor:  # [k]
    """Train k models in place; their mean losses."""
    gradients = [layer.each(torch.empty_like) for layer in layers]
    # Without momentum nothing is stored, but one list for both cases keeps the loop simple.
    velocities = [
        layer.each(lambda p: torch.zeros_like(p if sgd.momentum else p[:, :0])) for layer in layers
    ]
    ids, counts = batches.ids.to(data.device), torch.from_numpy(batches.counts).to(data.device)
    position = torch.arange(ids.shape[2], device=data.device)
    total = torch.zeros(counts.shape[1], device=data.device)
    for step, in_step in enumerate(batches.counts):
        if stopped():
            raise Interrupted
        active, width = int(np.count_nonzero(in_step)), int(in_step.max())
        p, g, v = (first_models(each, active) for each in (layers, gradients, velocities))
        x, y = data.batch(ids[step, :active, :width].flatten())
        n = counts[step, :active, None]
        share = (position[:width] < n) / n  # [active, width], 0 in the padding
        loss = write_gradients(p, g, x.reshape(active, width, -1), y.view(active, width), share)
        total[:active] += loss * n[:, 0]
        for value, gradient, velocity in zip(*map(flat, (p, g, v)), strict=True):
            ops.sgd_step_(
                value.flatten(1),
                gradient.flatten(1),
                velocity.flatten(1) if sgd.momentum else None,
                lr=sgd.lr,
                momentum=sgd.momentum,
                weight_decay=sgd.weight_decay,
            )
    return total / counts.sum(dim=0)


def first_models(layers: list[Stack], count: int) -> list[Stack]:
    return [layer.each(lambda p: p[:count]) for layer in layers]


def flat(layers: list[Stack]) -> list[Tensor]:
    return [tensor for layer in layers for tensor in layer.tensors]


def stacks(start: dict[str, Tensor], chain: Chain, count: int) -> list[Stack]:
    """`count` models that begin with the parameters `start`."""

    def copies(name: str) -> Tensor:
        return start[name].expand(count, *start[name].shape).clone()

    return [
        Stack(copies(layer.weight), copies(layer.bias) if layer.bias else None, layer.relu)
        for layer in chain
    ]


def rows_of(layers: list[Stack], chain: Chain, layout: Layout) -> Tensor:  # [k, trainable]
    """Each model's parameters in the order of an arena row."""
    names = [name for layer in chain for name in (layer.weight, layer.bias) if name]
    ends = dict(zip(names, flat(layers), strict=True))
    rows = ends[names[0]].new_zeros(len(ends[names[0]]), layout.trainable)
    for slot in layout.parameters:
        rows[:, slot.offset : slot.end] = ends[slot.name].flatten(1)
    return rows
