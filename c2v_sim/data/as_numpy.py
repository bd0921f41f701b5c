"""Whatever holds a user's samples, labels or clients → a NumPy array.

Enters: NumPy arrays, torch tensors, columns and tables of pandas (or of what has `to_numpy`, such
as polars), lists. A table is features: its columns side by side, float32 [N, columns]. Rows are
taken in their order, whatever a pandas index says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

Array = ArrayLike | torch.Tensor | Any  # Any: columns and tables of packages that need not be there
LAYOUTS = ("NHWC", "NCHW")


def as_numpy(name: str, array: Array) -> np.ndarray:
    """The array that `array` is; ValueError calls it `name`."""
    if isinstance(array, torch.Tensor):
        array = array.detach().cpu()
        array = array.float() if array.is_floating_point() else array  # numpy has no bfloat16
        return array.numpy()
    if hasattr(array, "to_numpy"):
        return _table(name, array) if hasattr(array, "columns") else _texts(array.to_numpy())
    if isinstance(array, (list, tuple)) and any(isinstance(a, torch.Tensor) for a in array):
        array = [as_numpy(name, item) for item in array]
    try:
        return _texts(np.asarray(array))
    except ValueError as error:  # lists of different lengths
        raise ValueError(
            f"from_arrays: {name} must have samples of one shape: pad or cut them ({error})"
        ) from error


def _table(name: str, table: Any) -> np.ndarray:
    """The columns of a table as features."""
    wrong = []
    for column in table.columns:
        values = table[column].to_numpy()
        if values.dtype.kind not in "biuf":
            wrong.append(f"{column} ({values.dtype})")
    if wrong:
        raise ValueError(
            f"from_arrays: the columns of {name} must be numbers, got {', '.join(wrong)}; leave "
            "them out, or turn them into numbers"
        )
    return np.stack([table[c].to_numpy().astype(np.float32) for c in table.columns], axis=1)


def _texts(array: np.ndarray) -> np.ndarray:
    """Texts in an array of objects, as pandas gives them, as an array of texts."""
    if array.dtype == object and array.ndim == 1 and all(isinstance(v, str) for v in array):
        return array.astype(str)
    return array


def laid_out(name: str, x: Array, layout: str) -> np.ndarray:
    """Samples as an array, images as [N, H, W, C]."""
    if layout not in LAYOUTS:
        raise ValueError(f"from_arrays: layout must be {' or '.join(LAYOUTS)}, got {layout!r}")
    array = as_numpy(name, x)
    if layout == "NHWC":
        return array
    if array.dtype != np.uint8 or array.ndim != 4:
        raise ValueError(
            f"from_arrays: layout = {layout} is for uint8 images [N, C, H, W], got {array.dtype} "
            f"{array.shape} as {name}; other samples reach the model as they are, without layout"
        )
    return array.transpose(0, 2, 3, 1)


def numbered(
    y: Array, y_test: Array | None, class_names: Sequence[str] | None, map_labels: bool
) -> tuple[np.ndarray, np.ndarray | None, Sequence[str] | None]:
    """Labels as classes 0, 1, 2, …, and the names of these classes.

    Texts and truth values become the classes of `class_names`, or where there are none those that
    occur, in ascending order; with `map_labels` numbers too. Categories of pandas keep their
    order, also those without samples.
    """
    categories = getattr(getattr(y, "cat", None), "categories", None)
    if class_names is None and categories is not None:
        class_names = [str(name) for name in categories]
    labels = [as_numpy("y", y)] + ([] if y_test is None else [as_numpy("y_test", y_test)])
    if categories is not None or labels[0].dtype.kind == "b":
        labels = [part.astype(str) for part in labels]
    numbers = all(part.dtype.kind in "iuf" and np.isfinite(part).all() for part in labels)
    if all(part.dtype.kind in "US" for part in labels) or (map_labels and numbers):
        labels, class_names = _mapped(labels, class_names)
    return labels[0], labels[1] if y_test is not None else None, class_names


def _mapped(
    labels: list[np.ndarray], class_names: Sequence[str] | None
) -> tuple[list[np.ndarray], Sequence[str]]:
    found = np.unique(np.concatenate(labels))
    texts = found.dtype.kind in "US"
    if texts and class_names is not None:
        unknown = sorted(set(found.tolist()) - set(map(str, class_names)))
        if unknown:
            raise ValueError(
                f"from_arrays: y has classes that class_names has not: {', '.join(unknown[:5])}"
            )
        place = {str(name): k for k, name in enumerate(class_names)}
        number = np.array([place[name] for name in found.tolist()])
    elif class_names is not None and len(class_names) != len(found):
        raise ValueError(
            f"from_arrays: class_names must name the {len(found)} classes of y in ascending order, "
            f"got {len(class_names)} names"
        )
    else:
        number, class_names = np.arange(len(found)), class_names or list(map(str, found.tolist()))
    return [number[np.searchsorted(found, part)] for part in labels], class_names
