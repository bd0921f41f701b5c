"""The offline encoder `builtin`: fixed features, nothing to download, nothing fitted to your data.

Images: uint8 [N, H, W, 3] -> unit rows [N, 512]. Each is resampled to 32×32; then come
  448  filter responses: 24 filters on 6×6 patches (every second pixel), 32 filters on the 6×6
       patches of the image at half size. A patch p loses its mean and is divided by its standard
       deviation; r = f·p; √ of relu(r − ½) and of relu(−r − ½), each averaged over a quadrant;
   64  on a 4×4 grid: mean of the three channels and local contrast.
Every feature is centred and scaled by constants, and the row is normalised.

The filters are k-means centres (on the sphere, up to sign) of whitened patches of 1,200 rendered
`shapes` images; the constants are the features' mean and deviation on the same images. So an
image's embedding depends on nothing but the image, within a set as alone.

Texts: -> unit rows [T, 512], the sum over all character n-grams (n = 2, 3, 4, marks at both ends)
of a sign vector: the 512 bits of the n-gram's BLAKE2b hash. Equal texts have equal vectors, texts
that share n-grams similar ones, others nearly orthogonal. A hash has no language, so the words of
our own prompts would only pull all labels together: they are left out.
"""

import hashlib
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from c2v_sim.data.sources import shapes
from c2v_sim.index.encoders.encoder import WIDTH, check_images, embed_blocks
from c2v_sim.system.machine import intra_op_threads

VERSION = 1  # part of the cache key: raise it whenever any embedding changes
SIDE, PATCH, GRID = 32, 6, 4
# Pixels between patches and filters, at full and at half size: (24 + 32) × 2 halves × 4 quadrants
# + 4 numbers × 4² cells = 512.
SCALES = ((2, 24), (1, 32))
BLOCK = 64  # images at a time: the responses stay in the cache, and no memory is mapped anew
PATCHES = 10_000
THRESHOLD, CONTRAST_FLOOR, WHITENING = 0.5, 10 / 255, 0.1
PROMPTS = ("A photo of an ", "A photo of a ", "The next character of ", "Character ")
GRAMS = (2, 3, 4)
START, END = "\x02", "\x03"


class BuiltinEncoder:
    name = "builtin"
    identity = f"builtin v{VERSION}, shapes v{shapes.RENDERER_VERSION}"  # filters come from these

    def __init__(self) -> None:
        self.filters, self.mean, self.scale = _constants()

    def embed_images(self, images: Tensor) -> Tensor:
        check_images(self.name, images)
        raw = image_features(images, self.filters)
        return F.normalize((raw - self.mean) * self.scale, dim=1)

    def embed_texts(self, texts: list[str]) -> Tensor:
        grams: dict[str, int] = {}
        ids: list[int] = []
        starts: list[int] = []
        for text in texts:
            starts.append(len(ids))
            ids += [grams.setdefault(gram, len(grams)) for gram in text_grams(text)]
        table = torch.stack([_signs(gram) for gram in grams]) if grams else torch.empty(0, WIDTH)
        index, offsets = (torch.tensor(n, dtype=torch.int64) for n in (ids, starts))
        summed = F.embedding_bag(index, table, offsets, mode="sum")
        return F.normalize(summed, dim=1)


# ---- images ---------------------------------------------------------------------------------


def image_features(images: Tensor, filters: list[Tensor]) -> Tensor:
    """uint8 [N, H, W, 3], filters of each scale -> features before centring [N, 512]."""

    def features(block: Tensor) -> Tensor:
        x = block.permute(0, 3, 1, 2).float().div_(255)  # [B, 3, H, W], channels_last
        if x.shape[2:] != (SIDE, SIDE):
            x = F.interpolate(x, (SIDE, SIDE), mode="bilinear", antialias=True)
        return _block_features(x, filters)

    return embed_blocks(features, images.cpu().split(BLOCK), torch.device("cpu"))


def _block_features(x: Tensor, filters: list[Tensor]) -> Tensor:  # [B, 3, 32, 32] -> [B, 512]
    fine, contrast = _responses(x, filters[0], SCALES[0][0])
    coarse, _ = _responses(F.avg_pool2d(x, 2), filters[1], SCALES[1][0])
    # The square root evens out features that are nearly zero on most images.
    responses = torch.cat([fine, coarse], 1).clamp_min_(0).sqrt_()
    grid = [F.adaptive_avg_pool2d(part, GRID).flatten(1) for part in (x, contrast)]
    return torch.cat([responses, *grid], 1)


def _responses(x: Tensor, filters: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Thresholded responses averaged over quadrants [B, 8 K]; the patches' contrast [B, 1, …]."""
    # The filters sum to zero, so the patch's mean needs no subtraction before them.
    mean = F.avg_pool2d(x.mean(1, keepdim=True), PATCH, stride)
    square = F.avg_pool2d((x * x).mean(1, keepdim=True), PATCH, stride)
    contrast = (square - mean * mean).clamp_min_(0).add_(CONTRAST_FLOOR**2).sqrt_()
    soft = F.softshrink(F.conv2d(x, filters, stride=stride).div_(contrast), THRESHOLD)
    # With s = soft, relu(r − t) = (|s| + s) / 2 and relu(−r − t) = (|s| − s) / 2.
    signed, size = F.adaptive_avg_pool2d(soft, 2), F.adaptive_avg_pool2d(soft.abs_(), 2)
    return torch.cat([size + signed, size - signed], 1).div_(2).flatten(1), contrast


# ---- constants ------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _constants() -> tuple[list[Tensor], Tensor, Tensor]:
    """Filters [K, 3, 6, 6] of each scale; mean and 1 / deviation [512] of the features."""
    images = torch.from_numpy(shapes.render("train", 1200, 0)[0])
    x = images.permute(0, 3, 1, 2).double() / 255
    with intra_op_threads(1):
        filters = [
            _filters(pixels.numpy(), count)
            for pixels, (_, count) in zip((x, F.avg_pool2d(x, 2)), SCALES, strict=True)
        ]
        features = image_features(images, filters).double()
        mean, deviation = features.mean(0).float(), features.std(0).clamp_min(1e-3).float()
    return filters, mean, deviation.reciprocal()


def _filters(images: np.ndarray, count: int) -> Tensor:  # [N, 3, S, S] -> [count, 3, 6, 6]
    rng = np.random.default_rng(0)
    image = rng.integers(len(images), size=PATCHES)
    corners = rng.integers(images.shape[2] - PATCH + 1, size=(2, PATCHES))
    rows, columns = (corner[:, None] + np.arange(PATCH) for corner in corners)
    patches = images[image[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    p = patches.transpose(0, 3, 1, 2).reshape(PATCHES, -1)  # [n, 108]
    p = p - p.mean(1, keepdims=True)
    p /= np.sqrt(p.var(1, keepdims=True) + CONTRAST_FLOOR**2)
    values, vectors = np.linalg.eigh(p.T @ p / PATCHES)
    # Symmetric, so it does not depend on how eigh chose among equal eigenvectors.
    whiten = vectors / np.sqrt(values + WHITENING) @ vectors.T
    filters = _sphere_kmeans(p @ whiten, count) @ whiten
    filters -= filters.mean(1, keepdims=True)
    return torch.from_numpy(filters.reshape(count, 3, PATCH, PATCH).astype(np.float32))


def _sphere_kmeans(points: np.ndarray, count: int, iterations: int = 10) -> np.ndarray:
    """Unit centres [count, d]; each point belongs to the centre nearest to it or to its negative.

    Coordinates are rounded to multiples of 2^-12: their products and sums are then exact in
    float64, so that no tie is decided by the order in which a processor adds.
    """

    def unit(rows: np.ndarray) -> np.ndarray:
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.round(rows / np.maximum(lengths, 1e-12) * 4096) / 4096

    points = unit(points)
    centres = points[:count]
    for _ in range(iterations):
        cosines = points @ centres.T
        owner = np.abs(cosines).argmax(1)
        sign = np.sign(np.take_along_axis(cosines, owner[:, None], 1))
        sums = np.zeros_like(centres)
        np.add.at(sums, owner, points * sign)
        centres = np.where(np.any(sums, axis=1, keepdims=True), unit(sums), centres)
    return centres


# ---- texts ----------------------------------------------------------------------------------


def text_grams(text: str) -> list[str]:
    for prompt in PROMPTS:
        if text.startswith(prompt) and len(text) > len(prompt):
            text = text[len(prompt) :]
            break
    marked = START + text + END
    return [marked[i : i + n] for n in GRAMS for i in range(len(marked) - n + 1)]


@lru_cache(maxsize=200_000)
def _signs(gram: str) -> Tensor:
    """±1 [512], the bits of the n-gram's hash."""
    bits = np.unpackbits(np.frombuffer(hashlib.blake2b(gram.encode()).digest(), np.uint8))
    return torch.from_numpy(bits.astype(np.float32) * 2 - 1)
