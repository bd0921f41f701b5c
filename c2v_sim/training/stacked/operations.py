"""Layers for k clients at once: samples [k·B, …], each client's by weights of its own [k, …].

A convolution is one batched product per layer: the patches of every image beside one another
(im2col) [k, B·H'·W', T·U·C] by the filters [k, T·U·C, O]. Images are channels_last, so patches are
copied in runs of U·C numbers, and the product is the next layer's image as it lies in memory.
Patches are made again in backward, so that only images are kept. A grouped convolution of k groups
would say the same, and is slow. Sums have a fixed order: nothing is added atomically.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[int, int]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [k·B, …, in], weight [k, out, in], bias [k, out] -> [k·B, …, out]."""
    k, out, _ = weight.shape
    rows = x.reshape(k, -1, x.shape[-1])
    y = rows @ weight.mT if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)
    return y.view(*x.shape[:-1], out)


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair
) -> Tensor:
    """x [k·B, C, H, W], weight [k, O, C, T, U], bias [k, O] -> [k·B, O, H', W'], channels_last."""
    out, taps = weight.shape[1], (weight.shape[3], weight.shape[4])
    filters = weight.permute(0, 1, 3, 4, 2).flatten(2)  # [k, O, T·U·C]: no copy of channels_last
    images = x.permute(0, 2, 3, 1)
    y = PatchProduct.apply(images, filters, bias, taps, stride, padding)
    high, wide = sides(images, taps, stride, padding)
    return y.view(len(x), high, wide, out).permute(0, 3, 1, 2)


def sides(images: Tensor, taps: Pair, stride: Pair, padding: Pair) -> Pair:
    """H', W' of a convolution of images [N, H, W, C]."""
    high, wide = (
        (side + 2 * p - t) // s + 1
        for side, t, s, p in zip(images.shape[1:3], taps, stride, padding, strict=True)
    )
    return high, wide


def patches_of(images: Tensor, k: int, taps: Pair, stride: Pair, padding: Pair) -> Tensor:
    """[k·B, H, W, C] -> [k, B·H'·W', T·U·C]."""
    if any(padding):
        images = F.pad(images, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    windows = images.unfold(1, taps[0], stride[0]).unfold(2, taps[1], stride[1])
    return windows.permute(0, 1, 2, 4, 5, 3).reshape(k, -1, taps[0] * taps[1] * images.shape[3])


def images_of(
    patches: Tensor, shape: torch.Size, taps: Pair, stride: Pair, padding: Pair
) -> Tensor:
    """The gradient of patches_of: every patch added where it was, [k·B, H, W, C] = `shape`."""
    count, height, width, channels = shape
    room = patches.new_zeros(count, height + 2 * padding[0], width + 2 * padding[1], channels)
    high, wide = sides(room, taps, stride, (0, 0))
    parts = patches.view(count, high, wide, *taps, channels)
    for i in range(taps[0]):
        for j in range(taps[1]):
            rows = slice(i, i + stride[0] * (high - 1) + 1, stride[0])
            columns = slice(j, j + stride[1] * (wide - 1) + 1, stride[1])
            room[:, rows, columns] += parts[:, :, :, i, j]
    inner = room[:, padding[0] : padding[0] + height, padding[1] : padding[1] + width]
    return inner.contiguous() if any(padding) else inner


class PatchProduct(torch.autograd.Function):
    """patches(images) filters^T + bias, [k, B·H'·W', O]."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        filters: Tensor,
        bias: Tensor | None,
        taps: Pair,
        stride: Pair,
        padding: Pair,
    ) -> Tensor:
        ctx.how = (taps, stride, padding)
        ctx.save_for_backward(images, filters)
        patches = patches_of(images, len(filters), *ctx.how)
        if bias is None:
            return torch.bmm(patches, filters.mT)
        return torch.baddbmm(bias.unsqueeze(1), patches, filters.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        images, filters = ctx.saved_tensors
        need_images, need_filters, need_bias = ctx.needs_input_grad[:3]
        of_images = of_filters = of_bias = None
        if need_filters:
            of_filters = torch.bmm(grad.mT, patches_of(images, len(filters), *ctx.how))
        if need_images:
            of_images = images_of(torch.bmm(grad, filters), images.shape, *ctx.how)
        if need_bias:
            of_bias = grad.sum(1)
        return of_images, of_filters, of_bias, None, None, None


def of_clients(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """y [k·B, C, …] by each client's weight [k, C] and bias [k, C]."""
    if weight is None or bias is None:
        return y
    k, channels = weight.shape
    shape = (k, 1, channels, *(1,) * (y.dim() - 2))
    each = y.unflatten(0, (k, -1))
    return torch.addcmul(bias.view(shape), each, weight.view(shape)).flatten(0, 1)


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Statistics are those of each sample, so only weight and bias are the clients'."""
    return of_clients(F.group_norm(x, groups, None, None, eps), weight, bias)


def batch_norm(
    x: Tensor,
    running: tuple[Tensor, Tensor] | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    real: Tensor,
) -> Tensor:
    """Mean and variance over the samples of each client that are `real` [k, B], 1 or 0.

    The running statistics [k, C] of a client without any stay what they were.
    """
    k, batch = real.shape
    each = x.view(k, batch, *x.shape[1:]) if x.is_contiguous() else x.unflatten(0, (k, batch))
    places = x[0, 0].numel()
    mask = real.view(k, batch, *(1,) * (x.dim() - 1))
    over = [1, *range(3, each.dim())]
    count = (real.sum(1, keepdim=True) * places).clamp(min=1)  # [k, 1]
    at = (k, 1, -1, *(1,) * (x.dim() - 2))
    mean = (each * mask).sum(over) / count  # [k, C]
    centred = each - mean.view(at)
    variance = (centred.square() * mask).sum(over) / count
    if running is not None:
        with torch.no_grad():
            unbiased = variance * (count / (count - 1).clamp(min=1))
            share = momentum * (real.sum(1, keepdim=True) > 0)
            for kept, new in zip(running, (mean, unbiased), strict=True):
                kept.copy_((1 - share) * kept + share * new)
    normal = centred * torch.rsqrt(variance + eps).view(at)
    return of_clients(normal.flatten(0, 1), weight, bias)
