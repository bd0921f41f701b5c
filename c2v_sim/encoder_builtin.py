"""The offline encoder `builtin`: fixed features, nothing to download, nothing fitted to your data.

Images: uint8 [N, H, W, 3] -> unit rows [N, 512]. Each is resampled to 32×32; then come
  448  pooled filter responses. Patches p (6×6, every second pixel) lose their mean and are divided
       by their standard deviation; r = f·p for 56 whitened filters f; pooled over the four
       quadrants are the two halves relu(r − ½) and relu(−r − ½);
   64  on a 4×4 grid: mean of the three channels and local contrast.
Every feature is centred and scaled by constants, and the row is normalised.

The filters are patches of rendered `shapes` images (a fixed seed), whitened by the covariance of
such patches, (C + 0.1 I)^-½; the constants are the features' mean and deviation on the same images.
So an image's embedding depends on nothing but the image, within a set as alone.

Texts: -> unit rows [T, 512], the sum over all character n-grams (n = 2, 3, 4, marks at both ends)
of a sign vector: the 512 bits of the n-gram's BLAKE2b hash. Equal texts have equal vectors, texts
that share n-grams similar ones, others nearly orthogonal. A hash has no language, so the words of
our own prompts would only pull all labels together: they are left out.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from c2v_sim import shapes
from c2v_sim.lanes import lane_count, one_thread

WIDTH = 512
VERSION = 1  # part of the cache key: raise it whenever any embedding changes
SIDE, PATCH, STRIDE, GRID = 32, 6, 2, 4
FILTERS = 56  # 56 × 2 halves × 4 quadrants + 4 × 4² = 512
BLOCK = 64  # images at a time: the responses stay in the cache, and no memory is mapped anew
THRESHOLD, CONTRAST_FLOOR, WHITENING = 0.5, 10 / 255, 0.1
PROMPTS = ("A photo of an ", "A photo of a ", "The next character of ", "Character ")
GRAMS = (2, 3, 4)
START, END = "\x02", "\x03"


class BuiltinEncoder:
    name = "builtin"
    identity = f"builtin v{VERSION}"

    def __init__(self) -> None:
        self.filters, self.mean, self.scale = _constants()

    def embed_images(self, images: Tensor) -> Tensor:
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
        summed = F.embedding_bag(torch.tensor(ids), table, torch.tensor(starts), mode="sum")
        return F.normalize(summed, dim=1)


# ---- images ---------------------------------------------------------------------------------


def image_features(images: Tensor, filters: Tensor) -> Tensor:
    """uint8 [N, H, W, 3], filters [56, 3, 6, 6] -> features before centring [N, 512].

    A block a thread, with one-thread operators: no bit depends on the number of cores.
    """

    def features(block: Tensor) -> Tensor:
        x = block.permute(0, 3, 1, 2).float().div_(255)  # [B, 3, H, W], channels_last
        if x.shape[2:] != (SIDE, SIDE):
            x = F.interpolate(x, (SIDE, SIDE), mode="bilinear", antialias=True)
        return _block_features(x, filters)

    cores = lane_count(0, torch.device("cpu"))
    with one_thread(), ThreadPoolExecutor(cores, "builtin") as threads:
        return torch.cat(list(threads.map(features, images.cpu().split(BLOCK))))


def _block_features(x: Tensor, filters: Tensor) -> Tensor:  # [B, 3, 32, 32] -> [B, 512]
    # The filters sum to zero, so the patch's mean needs no subtraction before them.
    mean = F.avg_pool2d(x.mean(1, keepdim=True), PATCH, STRIDE)  # [B, 1, 14, 14]
    square = F.avg_pool2d((x * x).mean(1, keepdim=True), PATCH, STRIDE)
    contrast = (square - mean * mean).clamp_min_(0).add_(CONTRAST_FLOOR**2).sqrt_()
    response = F.conv2d(x, filters, stride=STRIDE).div_(contrast)  # [B, 56, 14, 14]
    # relu(r − t) and relu(−r − t) are the halves of the soft-thresholded s: (|s| ± s) / 2.
    soft = F.softshrink(response, THRESHOLD)
    signed, size = F.adaptive_avg_pool2d(soft, 2), F.adaptive_avg_pool2d(soft.abs_(), 2)
    parts = (
        size + signed,
        size - signed,
        F.adaptive_avg_pool2d(x, GRID),
        F.adaptive_avg_pool2d(contrast, GRID),
    )
    return torch.cat([part.flatten(1) for part in parts], 1)


@lru_cache(maxsize=1)
def _constants() -> tuple[Tensor, Tensor, Tensor]:
    """Filters [56, 3, 6, 6]; mean and 1 / deviation [512] of the features on rendered images."""
    rendered = shapes.render("train", 1200, 0)[0]
    rng = np.random.default_rng(0)
    count = 20_000
    image = rng.integers(len(rendered), size=count)
    top, left = rng.integers(SIDE - PATCH + 1, size=(2, count))
    rows, columns = (corner[:, None] + np.arange(PATCH) for corner in (top, left))
    patches = rendered[image[:, None, None], rows[:, :, None], columns[:, None, :]]  # [n, 6, 6, 3]
    p = patches.transpose(0, 3, 1, 2).reshape(count, -1) / 255  # float64
    p -= p.mean(1, keepdims=True)
    p /= np.sqrt(p.var(1, keepdims=True) + CONTRAST_FLOOR**2)
    values, vectors = np.linalg.eigh(p.T @ p / count)
    # Symmetric, so it does not depend on how eigh chose among equal eigenvectors.
    whiten = vectors / np.sqrt(values + WHITENING) @ vectors.T
    directions = p[:FILTERS] @ whiten
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    filters = directions @ whiten
    filters -= filters.mean(1, keepdims=True)
    kernel = torch.from_numpy(filters.reshape(FILTERS, 3, PATCH, PATCH).astype(np.float32))
    features = image_features(torch.from_numpy(rendered), kernel).double()
    return kernel, features.mean(0).float(), features.std(0).clamp_min(1e-3).reciprocal().float()


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
