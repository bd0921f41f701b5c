"""How `shapes` is drawn: ten objects, as signed distances, in six styles, as colours.

An object is f(u, v) in its own coordinates, negative inside, about one unit across. A style turns
the distances of m images [m, 32, 32] into colours [m, 3, 32, 32]; what differs between images has
shape [m, 1, 1]. Only correctly rounded operations are used (+ − × ÷ √ min max floor), never sin or
exp, so that the bytes do not depend on the processor.
"""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator

Array = np.ndarray  # float32 throughout
Span = tuple[float, float]  # low, high

SIDE = 32
PIXEL = (np.arange(SIDE, dtype=np.float32) + 0.5) * np.float32(2 / SIDE) - 1  # centres in (-1, 1)
X, Y = PIXEL[None, None, :], PIXEL[None, :, None]


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


def uniform(rng: Generator, m: int, low: float, high: float) -> Array:
    return (low + (high - low) * rng.random((m, 1, 1))).astype(np.float32)


def _colour(rng: Generator, m: int, saturation: Span, value: Span) -> Array:
    """Random hues [m, 3, 1, 1]; saturation and value are (low, high)."""
    h, s, v = (uniform(rng, m, *span)[:, None] for span in ((0, 6), saturation, value))
    k = h + np.array([5, 3, 1], dtype=np.float32)[:, None, None]
    k -= 6 * np.floor(k / 6)
    return v - v * s * np.clip(np.minimum(k, 4 - k), 0, 1)


def _dark_and_light(rng: Generator, m: int) -> tuple[Array, Array]:
    """Two colours [m, 3, 1, 1] that differ in brightness, on some images only a little."""
    dark = _colour(rng, m, (0.3, 1.0), (0.1, 0.5))
    light = _colour(rng, m, (0.1, 0.7), (0.6, 1.0))
    return dark, dark + (light - dark) * uniform(rng, m, 0.3, 1)[:, None]


def cover(distance: Array) -> Array:
    """Distance in image units -> coverage [m, 32, 32], a one-pixel ramp at the edge."""
    return np.clip(0.5 - distance * np.float32(SIDE / 2), 0, 1)


def paint(under: Array, over: Array, alpha: Array) -> Array:
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
    a, b = uniform(rng, m, -4, 4), uniform(rng, m, -4, 4)
    t = a * X + b * Y + uniform(rng, m, 0, 1)
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
    back = paint(ground, _colour(rng, m, (0.2, 0.8), (0.2, 0.9)), 0.4 * _clouds(rng, m, 2))
    return paint(back, fill, cover(f))


def _outline(f: Array, rng: Generator) -> Array:
    m = len(f)
    paper = _colour(rng, m, (0.0, 0.15), (0.75, 1.0))
    back = paint(paper, 0.8 * paper, _clouds(rng, m, 8))
    ink = _colour(rng, m, (0.0, 0.6), (0.05, 0.45))
    return paint(back, ink, cover(np.abs(f) - uniform(rng, m, 0.03, 0.09)))


def _neon(f: Array, rng: Generator) -> Array:
    m = len(f)
    night = _colour(rng, m, (0.3, 1.0), (0.02, 0.25))
    width = uniform(rng, m, 0.05, 0.14)
    ratio = f / width
    glow = 1 / (1 + ratio * ratio)
    back = paint(night, 2 * night, _clouds(rng, m, 4))
    return back + _colour(rng, m, (0.4, 1.0), (0.6, 1.0)) * glow[:, None]


def _textured(f: Array, rng: Generator) -> Array:
    m = len(f)
    ground, fill = _dark_and_light(rng, m)
    back = paint(ground, _colour(rng, m, (0.2, 0.7), (0.3, 0.8)), 0.6 * _stripes(rng, m))
    front = paint(fill, _colour(rng, m, (0.2, 0.7), (0.3, 0.8)), 0.6 * _stripes(rng, m))
    return paint(back, front, cover(f))


def _foggy(f: Array, rng: Generator) -> Array:
    m = len(f)
    fog = _colour(rng, m, (0.0, 0.15), (0.35, 0.65))
    back = paint(fog, 0.75 * fog, _clouds(rng, m, 4))
    contrast = uniform(rng, m, 0.15, 0.4)
    alpha = _soften(_soften(cover(f)))
    return back + (alpha * contrast)[:, None] * _colour(rng, m, (0.0, 0.4), (0.8, 1.0))


def _mosaic(f: Array, rng: Generator) -> Array:
    m = len(f)
    ground, fill = _dark_and_light(rng, m)
    fine = paint(ground, fill, cover(f))
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
