"""Renders `shapes`, the embedded data set: 32×32 RGB images, 10 objects × 6 drawing styles.

Enters: a split ("train" | "test"), a number of images n, a data seed.
Leaves: images uint8 [n, 32, 32, 3], labels int64 [n], domains int64 [n].

An object is a signed distance f(u, v) in its own coordinates: (u, v) = A⁻¹ (p − c) for pixel p,
with centre c and A = rotation · stretch · size drawn per image. f < 0 is inside; the edge is
anti-aliased over one pixel. A style turns f into colours; clutter, an occluding bar and noise
follow. Labels are shared by all styles (label shift), styles change only the look (feature shift).

Images come in blocks of 600 = 10 classes × 6 styles × 10, each block from its own generator
`default_rng([seed, split, block])`. So every size is balanced up to its last block, image i is
the same whatever n, and threads may render blocks in any order. The arithmetic uses only
correctly rounded operations (+ − × ÷ √ min max floor), never sin or exp: the bytes do not depend
on the processor or on the number of threads.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.random import Generator

Array = np.ndarray  # float32 throughout

# Part of the cache key: raise it whenever any rendered byte changes.
RENDERER_VERSION = 2
SIDE = 32
REPEATS = 10  # images of each class and style in a block
SPLITS = {"train": 0, "test": 1}

# Per channel of x / 255 over the default 50,000 training images.
MEAN = (0.3848, 0.3841, 0.3846)
STD = (0.2348, 0.2349, 0.2348)


# ---- objects: f(u, v), negative inside, about one unit across --------------------------------


def _circle(u: Array, v: Array) -> Array:
    return np.sqrt(u * u + v * v) - 0.85


def _square(u: Array, v: Array) -> Array:
    return np.maximum(np.abs(u), np.abs(v)) - 0.75


def _triangle(u: Array, v: Array) -> Array:
    return np.maximum(0.866 * np.abs(u) + 0.5 * v, -v) - 0.5


def _star(u: Array, v: Array) -> Array:
    # A point is in the pentagram when it is outside at most one of the five edge lines.
    first = np.full_like(u, -9.0)
    second = first.copy()
    for a, b in ((0, -1), (0.951, -0.309), (-0.951, -0.309), (0.588, 0.809), (-0.588, 0.809)):
        line = np.float32(a) * u + np.float32(b) * v
        np.maximum(second, np.minimum(first, line), out=second)
        np.maximum(first, line, out=first)
    return second - 0.31


def _cross(u: Array, v: Array) -> Array:
    a, b = np.abs(u), np.abs(v)
    return np.maximum(np.maximum(a, b) - 0.9, np.minimum(a, b) - 0.28)


def _ring(u: Array, v: Array) -> Array:
    return np.abs(np.sqrt(u * u + v * v) - 0.64) - 0.23


def _heart(u: Array, v: Array) -> Array:
    # A square on its corner, with a disc on each of the two upper sides.
    a = np.abs(u)
    w = v + 0.1
    diamond = 0.7071 * (a + np.abs(w)) - 0.5
    du, dv = a - 0.3536, w - 0.3536
    return np.minimum(diamond, np.sqrt(du * du + dv * dv) - 0.5)


def _arrow(u: Array, v: Array) -> Array:
    a = np.abs(u)
    shaft = np.maximum(a - 0.2, np.abs(v + 0.4) - 0.5)
    head = np.maximum(0.8 * a + 0.6 * v - 0.54, -v)
    return np.minimum(shaft, head)


def _crescent(u: Array, v: Array) -> Array:
    bite = u - 0.45
    return np.maximum(np.sqrt(u * u + v * v) - 0.85, 0.72 - np.sqrt(bite * bite + v * v))


def _house(u: Array, v: Array) -> Array:
    a = np.abs(u)
    walls = np.maximum(a - 0.5, np.abs(v + 0.4) - 0.4)
    roof = np.maximum(0.75 * a + 0.66 * v - 0.59, -v)
    return np.minimum(walls, roof)


OBJECTS: dict[str, Callable[[Array, Array], Array]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
    "heart": _heart,
    "arrow": _arrow,
    "crescent": _crescent,
    "house": _house,
}

# ---- what the styles draw with; every image's own numbers have shape [m, 1, 1] ------------------

PIXEL = (np.arange(SIDE, dtype=np.float32) + 0.5) * np.float32(2 / SIDE) - 1  # centres in (-1, 1)
X, Y = PIXEL[None, None, :], PIXEL[None, :, None]


def _uniform(rng: Generator, m: int, low: float, high: float) -> Array:
    return (low + (high - low) * rng.random((m, 1, 1))).astype(np.float32)


def _colour(rng: Generator, m: int, saturation: tuple, value: tuple) -> Array:
    """Random hues [m, 3, 1, 1]; saturation and value are (low, high)."""
    h, s, v = (_uniform(rng, m, *span)[:, None] for span in ((0, 6), saturation, value))
    k = h + np.array([5, 3, 1], dtype=np.float32)[:, None, None]
    k -= 6 * np.floor(k / 6)
    return v - v * s * np.clip(np.minimum(k, 4 - k), 0, 1)


def _dark_and_light(rng: Generator, m: int) -> tuple[Array, Array]:
    """Two colours [m, 3, 1, 1] that differ in brightness, on some images only a little."""
    dark = _colour(rng, m, (0.3, 1.0), (0.1, 0.5))
    light = _colour(rng, m, (0.1, 0.7), (0.6, 1.0))
    return dark, dark + (light - dark) * _uniform(rng, m, 0.3, 1)[:, None]


def _cover(distance: Array) -> Array:
    """Distance in image units -> coverage [m, 32, 32], a one-pixel ramp at the edge."""
    return np.clip(0.5 - distance * np.float32(SIDE / 2), 0, 1)


def _paint(under: Array, over: Array, alpha: Array) -> Array:
    """Blend colours or images [m, 3, ...] by coverage [m, 32, 32] -> image [m, 3, 32, 32]."""
    blend = (over - under) * alpha[:, None]
    blend += under
    return blend


def _clouds(rng: Generator, m: int, cells: int) -> Array:
    """Smooth random field in [0, 1], [m, 32, 32]: bilinear between (cells + 1)² random knots."""
    knots = rng.random((m, cells + 1, cells + 1)).astype(np.float32)
    step = SIDE // cells
    ramp = (np.arange(step, dtype=np.float32) + 0.5) / np.float32(step)
    rows = knots[:, :-1, None] + (knots[:, 1:, None] - knots[:, :-1, None]) * ramp[:, None]
    rows = rows.reshape(m, SIDE, cells + 1)
    full = rows[..., :-1, None] + (rows[..., 1:, None] - rows[..., :-1, None]) * ramp
    return full.reshape(m, SIDE, SIDE)


def _stripes(rng: Generator, m: int) -> Array:
    """Triangle waves in [0, 1] across a random direction, [m, 32, 32]."""
    a, b = _uniform(rng, m, -4, 4), _uniform(rng, m, -4, 4)
    t = a * X + b * Y + _uniform(rng, m, 0, 1)
    return np.abs(2 * (t - np.floor(t)) - 1)


def _soften(image: Array) -> Array:
    """Binomial 3×3 blur with repeated borders, [m, 32, 32]."""
    for axis in (1, 2):
        padded = np.concatenate(
            [image.take([0], axis), image, image.take([SIDE - 1], axis)], axis=axis
        )
        left, right = np.arange(SIDE), np.arange(2, SIDE + 2)
        image = image * 0.5 + (padded.take(left, axis) + padded.take(right, axis)) * 0.25
    return image


# ---- styles: distance f [m, 32, 32] in image units -> image [m, 3, 32, 32] in about [0, 1] ------


def _flat(f: Array, rng: Generator) -> Array:
    m = len(f)
    ground, fill = _dark_and_light(rng, m)
    back = _paint(ground, _colour(rng, m, (0.2, 0.8), (0.2, 0.9)), 0.4 * _clouds(rng, m, 2))
    return _paint(back, fill, _cover(f))


def _outline(f: Array, rng: Generator) -> Array:
    m = len(f)
    paper = _colour(rng, m, (0.0, 0.15), (0.75, 1.0))
    back = _paint(paper, 0.8 * paper, _clouds(rng, m, 8))
    ink = _colour(rng, m, (0.0, 0.6), (0.05, 0.45))
    return _paint(back, ink, _cover(np.abs(f) - _uniform(rng, m, 0.03, 0.09)))


def _neon(f: Array, rng: Generator) -> Array:
    m = len(f)
    night = _colour(rng, m, (0.3, 1.0), (0.02, 0.25))
    width = _uniform(rng, m, 0.05, 0.14)
    ratio = f / width
    glow = 1 / (1 + ratio * ratio)
    back = _paint(night, 2 * night, _clouds(rng, m, 4))
    return back + _colour(rng, m, (0.4, 1.0), (0.6, 1.0)) * glow[:, None]


def _textured(f: Array, rng: Generator) -> Array:
    m = len(f)
    ground, fill = _dark_and_light(rng, m)
    back = _paint(ground, _colour(rng, m, (0.2, 0.7), (0.3, 0.8)), 0.6 * _stripes(rng, m))
    front = _paint(fill, _colour(rng, m, (0.2, 0.7), (0.3, 0.8)), 0.6 * _stripes(rng, m))
    return _paint(back, front, _cover(f))


def _foggy(f: Array, rng: Generator) -> Array:
    m = len(f)
    fog = _colour(rng, m, (0.0, 0.15), (0.35, 0.65))
    back = _paint(fog, 0.75 * fog, _clouds(rng, m, 4))
    contrast = _uniform(rng, m, 0.15, 0.4)
    alpha = _soften(_soften(_cover(f)))
    return back + (alpha * contrast)[:, None] * _colour(rng, m, (0.0, 0.4), (0.8, 1.0))


def _mosaic(f: Array, rng: Generator) -> Array:
    m = len(f)
    ground, fill = _dark_and_light(rng, m)
    fine = _paint(ground, fill, _cover(f))
    rows = fine[:, :, ::2] + fine[:, :, 1::2]
    tiles = (rows[..., ::2] + rows[..., 1::2]) * 0.25  # [m, 3, 16, 16]
    tiles += 0.25 * (rng.random((m, 1, SIDE // 2, SIDE // 2), dtype=np.float32) - 0.5)
    return tiles.repeat(2, axis=2).repeat(2, axis=3)


STYLES: dict[str, Callable[[Array, Generator], Array]] = {
    "flat": _flat,
    "outline": _outline,
    "neon": _neon,
    "textured": _textured,
    "foggy": _foggy,
    "mosaic": _mosaic,
}
CLASS_NAMES, DOMAIN_NAMES = tuple(OBJECTS), tuple(STYLES)
BLOCK = len(OBJECTS) * len(STYLES) * REPEATS

# ---- one block ------------------------------------------------------------------------------


def _distances(rng: Generator) -> Array:
    """Signed distances in image units, [6 styles, 10 classes, 10 repeats, 32, 32]."""
    grid = (len(STYLES), len(OBJECTS), REPEATS, SIDE, SIDE)
    size = _uniform(rng, BLOCK, 0.55, 0.9)
    stretch = _uniform(rng, BLOCK, 0.8, 1.25)
    # tan(angle / 2): gives sine and cosine without a transcendental function; up to ±29°.
    t = _uniform(rng, BLOCK, -0.26, 0.26)
    cos, sin = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
    reach = 0.5 - 0.4 * size
    x = X - reach * _uniform(rng, BLOCK, -1, 1)
    y = Y - reach * _uniform(rng, BLOCK, -1, 1)
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
        dx, dy = X - _uniform(rng, m, -1, 1), Y - _uniform(rng, m, -1, 1)
        blob = np.sqrt(dx * dx + dy * dy * _uniform(rng, m, 0.3, 3)) - _uniform(rng, m, 0.02, 0.24)
        image = _paint(image, _borrowed(image, rng), _cover(blob))
    a = _uniform(rng, m, -1, 1)
    bar = np.abs(X * a + Y * (1 - np.abs(a)) - _uniform(rng, m, -0.7, 0.7))
    bar -= _uniform(rng, m, -0.15, 0.15)  # a negative width is no bar
    return _paint(image, _borrowed(image, rng), _cover(bar))


def _borrowed(image: Array, rng: Generator) -> Array:
    """The colour of one random pixel of each image [m, 3, 1, 1], so that clutter fits the style."""
    m = len(image)
    row, column = (rng.random((2, m)) * SIDE).astype(np.int64)
    return image[np.arange(m), :, row, column][:, :, None, None]


def _render_block(seed: int, split: int, block: int) -> tuple[np.ndarray, ...]:
    """Images uint8 [600, 32, 32, 3], labels and domains int64 [600] of one block."""
    rng = np.random.default_rng([seed, split, block])
    f = _distances(rng)
    images = np.empty((len(STYLES), len(OBJECTS) * REPEATS, SIDE, SIDE, 3), dtype=np.uint8)
    for d, style in enumerate(STYLES.values()):
        image = _clutter(style(f[d].reshape(-1, SIDE, SIDE), rng), rng)
        noise = rng.integers(0, 256, (2, *image.shape), dtype=np.uint8)
        noise = np.subtract(noise[0], noise[1], dtype=np.float32)
        noise *= _uniform(rng, len(image), 0.02, 0.3)[:, None]
        image *= 255
        image += noise
        image += 0.5  # the cast below cuts off
        images[d] = np.clip(image, 0, 255, out=image).transpose(0, 2, 3, 1)
    domains, labels, _ = np.indices((len(STYLES), len(OBJECTS), REPEATS)).reshape(3, BLOCK)
    order = np.argsort(rng.random(BLOCK), kind="stable")
    return images.reshape(BLOCK, SIDE, SIDE, 3)[order], labels[order], domains[order]


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
