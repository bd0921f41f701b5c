"""A data set of Hugging Face's package `datasets` → arrays for `Federation.from_arrays`.

Enters: a datasets.Dataset, a DatasetDict with `train` (and `test`), or the folder of one that was
saved. Leaves: samples, classes and the client of each, as arrays. Images become uint8 [N, H, W, C],
texts what the user's tokenizer gives, columns of numbers features.

Clients are those of a column, or the parts that a partitioner of `flwr_datasets` makes: it deals
the training samples as it would for Flower, also those that it repeats or leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from c2v_sim.data.as_numpy import as_numpy

Tokenizer = Callable[[list[str]], Any]  # texts -> [n, T] numbers, or a mapping with "input_ids"
ROW = "c2v_sim row"  # a column of our own: which sample it was before it was dealt
INSTALL = "pip install 'c2v_sim[huggingface]'"


@dataclass(frozen=True)
class Columns:
    """What is read of every row."""

    inputs: Sequence[str]
    label: str
    client: str | None
    tokenizer: Tokenizer | None
    size: tuple[int, int] | None


@dataclass(frozen=True)
class Part:
    """Samples, classes and clients of the training or of the test rows."""

    x: np.ndarray
    y: np.ndarray
    owner: np.ndarray


def splits(dataset: Any) -> tuple[Any, Any | None]:
    """The training rows and, where there are some, the test rows."""
    if isinstance(dataset, (str, Path)):
        dataset = _from_disk(Path(dataset))
    if not isinstance(dataset, Mapping):
        return dataset, None
    if "train" not in dataset:
        raise ValueError(
            f"from_huggingface: the data set must have a part `train`, got {', '.join(dataset)}; "
            "give one of its parts"
        )
    return dataset["train"], dataset.get("test")


def _from_disk(folder: Path) -> Any:
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise RuntimeError(
            f"from_huggingface: a folder is read by `datasets`, which is not installed: {INSTALL}"
        ) from error
    return load_from_disk(str(folder.expanduser()))


def columns_of(rows: Any, given: str | Sequence[str] | None, known: Columns) -> Columns:
    """Which columns are the samples: the given ones, or all but label and client."""
    names = list(rows.column_names)
    inputs = [given] if isinstance(given, str) else list(given or ())
    inputs = inputs or [name for name in names if name not in (known.label, known.client)]
    for name in (*inputs, known.label, *([known.client] if known.client else [])):
        if name not in names:
            raise ValueError(f"from_huggingface: no column {name!r}; there are {', '.join(names)}")
    return Columns(inputs, known.label, known.client, known.tokenizer, known.size)


def class_names(rows: Any, label: str) -> list[str] | None:
    """The names that the data set itself has for its classes."""
    return getattr(rows.features[label], "names", None)


def read(rows: Any, columns: Columns, partitioner: Any | None = None) -> Part:
    """The rows as arrays; a partitioner says whose they are, and in which order they come."""
    y = np.asarray(rows.with_format("numpy")[columns.label][:])
    if partitioner is None:
        owner = np.asarray(rows.with_format("numpy")[columns.client][:])
        return Part(samples(rows, columns), y, owner)
    ids, owner = dealt(rows, partitioner)
    return Part(samples(rows, columns)[ids], y[ids], owner)


def dealt(rows: Any, partitioner: Any) -> tuple[np.ndarray, np.ndarray]:
    """Sample ids in the order of the clients, and the client of each."""
    partitioner.dataset = rows.add_column(ROW, list(range(len(rows))))
    parts = [
        np.asarray(partitioner.load_partition(k).with_format("numpy")[ROW][:], dtype=np.int64)
        for k in range(partitioner.num_partitions)
    ]
    owner = np.repeat(np.arange(len(parts)), [len(ids) for ids in parts])
    return np.concatenate(parts), owner


def samples(rows: Any, columns: Columns) -> np.ndarray:
    """The input columns as one array [N, …]."""
    first = rows.select(range(1))[0]
    values = [first[name] for name in columns.inputs]
    if len(values) == 1 and isinstance(values[0], Image.Image):
        return _images(rows, columns.inputs[0], columns.size)
    if len(values) == 1 and isinstance(values[0], str):
        return _tokens(rows, columns.inputs[0], columns.tokenizer)
    arrays = [np.asarray(rows.with_format("numpy")[name][:]) for name in columns.inputs]
    wrong = [n for n, a in zip(columns.inputs, arrays, strict=True) if a.dtype.kind not in "biuf"]
    if wrong:
        raise ValueError(
            f"from_huggingface: {', '.join(wrong)} must be numbers of one shape in every row; name "
            "the columns of the samples with inputs=…"
        )
    if len(arrays) == 1 and arrays[0].ndim > 1:
        return arrays[0]
    flat = [a.reshape(len(a), -1).astype(np.float32) for a in arrays]
    return np.concatenate(flat, axis=1)


def _images(rows: Any, name: str, size: tuple[int, int] | None) -> np.ndarray:
    """uint8 [N, H, W, 1] where the first image is grey, else [N, H, W, 3]."""
    out: list[np.ndarray] = []
    mode = ""
    for row in rows.select_columns([name]):
        mode = mode or ("L" if row[name].mode in ("1", "L") else "RGB")
        image = row[name].convert(mode)
        if size is not None and image.size != (size[1], size[0]):
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        out.append(np.asarray(image, dtype=np.uint8).reshape(image.height, image.width, -1))
        if out[-1].shape != out[0].shape:
            raise ValueError(
                f"from_huggingface: the images of {name} differ in size ({out[0].shape[:2]} and "
                f"{out[-1].shape[:2]}); give size=(H, W)"
            )
    return np.stack(out)


def _tokens(rows: Any, name: str, tokenizer: Tokenizer | None) -> np.ndarray:
    if tokenizer is None:
        raise ValueError(
            f"from_huggingface: {name} is text; give tokenizer=…, which turns a list of n texts "
            "into numbers [n, T]"
        )
    found = tokenizer(list(rows[name][:]))
    named = isinstance(found, Mapping)  # as the tokenizers of transformers answer
    return as_numpy(name, found["input_ids"] if named else found)
