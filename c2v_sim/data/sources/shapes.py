"""`shapes`, the embedded data set: 32×32 RGB images, 10 objects × 6 drawing styles, rendered here.

Enters: a split ("train" | "test"), a number of images n, a data seed.
Leaves: images uint8 [n, 32, 32, 3], labels int64 [n], domains int64 [n].

An object is a signed distance f(u, v) in its own coordinates: (u, v) = A⁻¹ (p − c) for pixel p,
with centre c and A = rotation · stretch · size drawn per image. f < 0 is inside; the edge is
anti-aliased over one pixel. A style turns f into colours; clutter, an occluding bar and noise
follow. Labels are shared by all styles (label shift), styles change only the look (feature shift).

Images come in blocks of 600 = 10 classes × 6 styles × 10, each block from its own generator
`default_rng([seed, split, block])`. So every size is balanced up to its last block, image i is
the same whatever n, and threads may render blocks in any order: the bytes depend neither on the
processor (see shape_drawing.py) nor on the number of threads.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from c2v_sim.data.dataset import Dataset, content_hash, dataset_of
from c2v_sim.data.sources.shape_drawing import (
    OBJECTS,
    SIDE,
    STYLES,
    Array,
    X,
    Y,
    cover,
    paint,
    uniform,
)
from c2v_sim.data.sources.source import Request, Source, StandIn
from c2v_sim.system import tensor_file

# Part of the cache key: raise it whenever any rendered byte changes.
RENDERER_VERSION = 2
TRAIN_SIZE, TEST_SIZE, SEED = 50_000, 10_000, 0
REPEATS = 10  # images of each class and style in a block
SPLITS = {"train": 0, "test": 1}
CLASS_NAMES, DOMAIN_NAMES = tuple(OBJECTS), tuple(STYLES)
BLOCK = len(OBJECTS) * len(STYLES) * REPEATS

# Per channel of x / 255 over the default 50,000 training images.
MEAN = (0.3848, 0.3841, 0.3846)
STD = (0.2348, 0.2349, 0.2348)


def load(request: Request, standin_for: str | None = None) -> Dataset:
    """Rendered once for each pair of sizes, then read from the data folder."""
    sizes = {"train": request.train_size or TRAIN_SIZE, "test": request.test_size or TEST_SIZE}
    recipe = f"shapes-v{RENDERER_VERSION}-{SEED}-{sizes['train']}-{sizes['test']}"

    def render_all() -> dict[str, Tensor]:
        if request.progress:
            print(f"rendering {sum(sizes.values()):,} shapes images (once)", file=sys.stderr)
        tensors = {}
        for split, n in sizes.items():
            for name, array in zip(("x", "y", "domain"), render(split, n, SEED), strict=True):
                tensors[f"{name}_{split}"] = torch.from_numpy(array)
        return tensors

    path = request.folder / f"{recipe}.safetensors"
    return dataset_of(
        tensor_file.cached(path, render_all, content_hash),
        name=f"{standin_for}-standin(shapes)" if standin_for else "shapes",
        class_names=CLASS_NAMES,
        domain_names=DOMAIN_NAMES,
        mean=MEAN,
        std=STD,
        source=f"rendered by c2v_sim ({recipe})",
        standin_for=standin_for,
    )


SOURCE = Source("shapes", load, settings=("train_size", "test_size"))


def stand_in(dataset: str, name: str = "rendered shapes") -> StandIn:
    """Shapes in the place of another data set."""
    return StandIn(name, partial(load, standin_for=dataset))


def render(
    split: str, n: int, seed: int = 0, threads: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First n images of a split: (uint8 [n, 32, 32, 3], labels int64 [n], domains int64 [n])."""
    if split not in SPLITS:
        raise ValueError(f"shapes: split must be one of {', '.join(SPLITS)}, got {split!r}")
    if n < 1:
        raise ValueError(f"shapes: the number of {split} images must be at least 1, got {n}")
    images = np.empty((n, SIDE, SIDE, 3), dtype=np.uint8)
    labels, domains = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)

    def fill(block: int) -> None:
        rows = slice(block * BLOCK, min(n, (block + 1) * BLOCK))
        count = rows.stop - rows.start
        part = _render_block(seed, SPLITS[split], block)
        images[rows], labels[rows], domains[rows] = (a[:count] for a in part)

    # NumPy lets go of the interpreter lock inside its loops, so plain threads scale.
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        for _ in pool.map(fill, range(-(-n // BLOCK))):
            pass
    return images, labels, domains


def _render_block(seed: int, split: int, block: int) -> tuple[np.ndarray, ...]:
    """Images uint8 [600, 32, 32, 3], labels and domains int64 [600] of one block."""
    rng = np.random.default_rng([seed, split, block])
    f = _distances(rng)
    images = np.empty((len(STYLES), len(OBJECTS) * REPEATS, SIDE, SIDE, 3), dtype=np.uint8)
    for d, style in enumerate(STYLES.values()):
        image = _clutter(style(f[d].reshape(-1, SIDE, SIDE), rng), rng)
        noise = rng.integers(0, 256, (2, *image.shape), dtype=np.uint8)
        noise = np.subtract(noise[0], noise[1], dtype=np.float32)
        noise *= uniform(rng, len(image), 0.02, 0.3)[:, None]
        image *= 255
        image += noise
        image += 0.5  # the cast below cuts off
        images[d] = np.clip(image, 0, 255, out=image).transpose(0, 2, 3, 1)
    domains, labels, _ = np.indices((len(STYLES), len(OBJECTS), REPEATS)).reshape(3, BLOCK)
    order = np.argsort(rng.random(BLOCK), kind="stable")
    return images.reshape(BLOCK, SIDE, SIDE, 3)[order], labels[order], domains[order]


def _distances(rng: Generator) -> Array:
    """Signed distances in image units, [6 styles, 10 classes, 10 repeats, 32, 32]."""
    grid = (len(STYLES), len(OBJECTS), REPEATS, SIDE, SIDE)
    size = uniform(rng, BLOCK, 0.55, 0.9)
    stretch = uniform(rng, BLOCK, 0.8, 1.25)
    # tan(angle / 2): gives sine and cosine without a transcendental function; up to ±29°.
    t = uniform(rng, BLOCK, -0.26, 0.26)
    cos, sin = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
    reach = 0.5 - 0.4 * size
    x = X - reach * uniform(rng, BLOCK, -1, 1)
    y = Y - reach * uniform(rng, BLOCK, -1, 1)
    u = ((cos * x + sin * y) / (size * stretch)).reshape(grid)
    v = ((sin * x - cos * y) / (size / stretch)).reshape(grid)  # v points up
    f = np.empty(grid, dtype=np.float32)
    for k, shape in enumerate(OBJECTS.values()):
        f[:, k] = shape(u[:, k], v[:, k])
    return f * size.reshape(*grid[:3], 1, 1)


def _clutter(image: Array, rng: Generator) -> Array:
    """Two blobs and, on half of the images, a bar across: all in the image's own colours."""
    m = len(image)
    for _ in range(2):
        dx, dy = X - uniform(rng, m, -1, 1), Y - uniform(rng, m, -1, 1)
        blob = np.sqrt(dx * dx + dy * dy * uniform(rng, m, 0.3, 3)) - uniform(rng, m, 0.02, 0.24)
        image = paint(image, _borrowed(image, rng), cover(blob))
    a = uniform(rng, m, -1, 1)
    bar = np.abs(X * a + Y * (1 - np.abs(a)) - uniform(rng, m, -0.7, 0.7))
    bar -= uniform(rng, m, -0.15, 0.15)  # a negative width is no bar
    return paint(image, _borrowed(image, rng), cover(bar))


def _borrowed(image: Array, rng: Generator) -> Array:
    """The colour of one random pixel of each image [m, 3, 1, 1], so that clutter fits the style."""
    m = len(image)
    row, column = (rng.random((2, m)) * SIDE).astype(np.int64)
    return image[np.arange(m), :, row, column][:, :, None, None]
