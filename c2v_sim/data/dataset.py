"""What a data set is: samples, labels, and where they came from.

The content hash is SHA-256 over, for each array in the order x_train, y_train, x_test, y_test,
domain_train, domain_test (the last two where they exist): the line "<field> <dtype> <shape>\\n"
(for example "x_train uint8 50000x32x32x3\\n"), then its bytes in C order, integers little-endian.
Windows count as two arrays: "x_train.text" and "x_train.starts <dtype> <shape> of <length>".
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from c2v_sim.data.text_windows import Windows
from c2v_sim.system.errors import DataError

# Images are uint8 [N, H, W, C]; uint8 of other shapes are byte features, int32 symbol numbers.
FEATURES = (torch.float32, torch.uint8, torch.int32)
ARRAYS = ("x_train", "y_train", "x_test", "y_test", "domain_train", "domain_test")


@dataclass(frozen=True, eq=False)  # equality of tensors is not a bool; compare sha256
class Dataset:
    """Images, labels and, where the data has them, domains (feature shift)."""

    name: str  # as every output must print it
    x_train: Tensor | Windows = field(repr=False)  # images uint8 [N, H, W, C], or see FEATURES
    y_train: Tensor = field(repr=False)  # int64 [N]
    x_test: Tensor | Windows = field(repr=False)
    y_test: Tensor = field(repr=False)
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # of x / 255, per channel
    std: tuple[float, ...]
    source: str
    sha256: str  # see the module's docstring
    domain_train: Tensor | None = field(default=None, repr=False)  # int64 [N]
    domain_test: Tensor | None = field(default=None, repr=False)
    domain_names: tuple[str, ...] = ()
    client_train: Tensor | None = field(default=None, repr=False)  # int64 [N]
    client_test: Tensor | None = field(default=None, repr=False)
    client_names: tuple[str, ...] = ()  # of data with its own clients (partition natural)
    standin_for: str | None = None

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def take(self, split: str, ids: Tensor) -> "Dataset":
        """The data set with only the samples `ids` of its `split`, train or test."""
        fields = {name: getattr(self, name) for name in ARRAYS}
        fields[f"client_{split}"] = getattr(self, f"client_{split}")
        for name, array in fields.items():
            if name.endswith(split) and array is not None:
                fields[name] = array.take(ids) if isinstance(array, Windows) else array[ids]
        return dataclasses.replace(self, sha256=content_hash(fields), **fields)

    def first(self, split: str, count: int) -> "Dataset":
        """The first samples of a split, for probes: the hash stays that of the whole."""
        new = {}
        for name in (f"{part}_{split}" for part in ("x", "y", "domain", "client")):
            array = getattr(self, name)
            if array is not None:
                ids = torch.arange(min(count, len(array)))
                windows = isinstance(array, Windows)
                new[name] = array.take(ids) if windows else array[: len(ids)]
        return dataclasses.replace(self, **new)

    def __post_init__(self) -> None:
        for split in ("train", "test"):
            x: Tensor | Windows = getattr(self, f"x_{split}")
            images = x.dtype == torch.uint8 and x.ndim == 4
            known = isinstance(x, Windows) or (x.dtype in FEATURES and x.ndim >= 2)
            if len(x) == 0 or not known:
                raise DataError(
                    f"{self.name}: x_{split} must be uint8 images [N, H, W, C], float32 or uint8 "
                    f"features [N, …], int32 sequences [N, T] or Windows, with N > 0, got "
                    f"{x.dtype} {tuple(x.shape)}"
                )
            if isinstance(x, Windows) and int(x.text.max()) >= self.classes:
                raise DataError(
                    f"{self.name}: the text of x_{split} must have symbols in "
                    f"0..{self.classes - 1}, got {int(x.text.max())}"
                )
            self._check_labels(f"y_{split}", len(x), self.classes)
            if self.domain_names:
                self._check_labels(f"domain_{split}", len(x), len(self.domain_names))
            if self.client_names:
                self._check_labels(f"client_{split}", len(x), len(self.client_names))
        train, test = ((tuple(x.shape[1:]), x.dtype) for x in (self.x_train, self.x_test))
        if train != test:
            raise DataError(
                f"{self.name}: train samples are {train[0]} {train[1]}, "
                f"test samples {test[0]} {test[1]}; they must agree"
            )
        channels = self.x_train.shape[3] if images else 0
        if not len(self.mean) == len(self.std) == channels or min(self.std, default=1) <= 0:
            raise DataError(
                f"{self.name}: mean and std must have {channels} numbers and std be positive, "
                f"got {self.mean} and {self.std}"
            )

    def _check_labels(self, key: str, n: int, kinds: int) -> None:
        y = getattr(self, key)
        if y is None or y.dtype != torch.int64 or y.shape != (n,):
            got = None if y is None else f"{y.dtype} {tuple(y.shape)}"
            raise DataError(f"{self.name}: {key} must be int64 [{n}], got {got}")
        low, high = (int(v) for v in torch.aminmax(y))
        if low < 0 or high >= kinds:
            raise DataError(f"{self.name}: {key} must be in 0..{kinds - 1}, got {low}..{high}")


def content_hash(arrays: Mapping[str, Tensor | Windows]) -> str:
    """SHA-256 of the arrays as the module's docstring defines it; about 0.1 s per 200 MB."""
    digest = hashlib.sha256()

    def add(name: str, tensor: Tensor, more: str = "") -> None:
        array = tensor.contiguous().numpy()
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        shape = "x".join(map(str, array.shape))
        digest.update(f"{name} {array.dtype.name} {shape}{more}\n".encode())
        digest.update(np.ascontiguousarray(array).data)

    for name in ARRAYS:
        array = arrays.get(name)
        if isinstance(array, Windows):
            add(f"{name}.text", array.text)
            add(f"{name}.starts", array.starts, f" of {array.length}")
        elif array is not None:
            add(name, array)
    return digest.hexdigest()


def dataset_of(
    tensors: Mapping[str, Tensor],
    *,
    name: str,
    class_names: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    source: str,
    domain_names: tuple[str, ...] = (),
    standin_for: str | None = None,
) -> Dataset:
    """A data set of `tensors` that are called as its fields are, with their hash."""
    return Dataset(
        name=name,
        x_train=tensors["x_train"],
        y_train=tensors["y_train"],
        x_test=tensors["x_test"],
        y_test=tensors["y_test"],
        class_names=class_names,
        mean=mean,
        std=std,
        source=source,
        sha256=content_hash(tensors),
        domain_train=tensors.get("domain_train"),
        domain_test=tensors.get("domain_test"),
        domain_names=domain_names,
        standin_for=standin_for,
    )
