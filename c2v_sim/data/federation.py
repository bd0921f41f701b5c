"""What the simulator trains on: a data set and who holds which of its samples.

`Federation.from_arrays` makes one from a user's own arrays: x [N, …], y [N] and a client id for
each sample, with or without test arrays of the same form; `Federation.from_image_folders` from a
folder of images for each client.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from c2v_sim.data import arrays, huggingface
from c2v_sim.data.as_numpy import Array, laid_out, numbered
from c2v_sim.data.client_ids import ClientIds
from c2v_sim.data.dataset import Dataset
from c2v_sim.data.partition import Partition, make_partition
from c2v_sim.data.sources import image_folders
from c2v_sim.system.seeding import HELD_OUT, UPLOAD, rng


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set together with its partition."""

    dataset: Dataset
    partition: Partition
    held_out: Partition | None = None  # clients that never train, with a numbering of their own

    def __post_init__(self) -> None:
        for part, ids, samples in (
            ("training", self.partition.train, len(self.dataset.y_train)),
            ("test", self.partition.test, len(self.dataset.y_test)),
        ):
            largest = int(ids.flat.max(initial=-1))
            if largest >= samples:
                raise ValueError(
                    f"Federation: the partition names {part} sample {largest}, but "
                    f"{self.dataset.name} has {samples}; it was made for other data"
                )

    @cached_property
    def label_counts(self) -> torch.Tensor:  # int64 [M, K]
        """Training samples of each class that each client holds."""
        y, classes = self.dataset.y_train.numpy(), self.dataset.classes
        return torch.from_numpy(self.partition.train.counts(y, classes))

    @property
    def tested(self) -> int:
        """Clients with test samples: those over which accuracies are means."""
        return self.partition.tested

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The domains that clients follow, in the order of the accuracies by domain; else none."""
        known = self.dataset.domain_names
        found = sorted(set(self.partition.domains or ()))
        return tuple(known[d] if d < len(known) else str(d) for d in found)

    def holding_out(self, share: float, seed: int) -> Federation:
        """The federation of which `share` of the clients, drawn at random, never train."""
        clients, name = self.partition.clients, self.partition.convention
        count = max(1, round(share * clients))
        if count >= clients:
            raise ValueError(
                f"hold_out_clients = {share:g} leaves none of the {clients} clients to train"
            )
        chosen = np.zeros(clients, dtype=bool)
        chosen[rng(seed, HELD_OUT).choice(clients, count, replace=False)] = True
        kept = self.partition.only(np.flatnonzero(~chosen), f"{name}, {count} clients held out")
        held = self.partition.only(np.flatnonzero(chosen), f"{name}, those held out")
        return Federation(self.dataset, kept, held)

    def limited(self, most: int, seed: int) -> Federation:
        """Of each client at most `most` training samples, drawn at random; 0: all of them.

        The samples are numbered anew, client after client, each client's in their old order.
        """
        if most == 0 or self.partition.sizes.max() <= most:
            return self
        kept = ClientIds.of(limited_ids(self.partition, most, seed))
        train = ClientIds(np.arange(len(kept.flat)), kept.sizes)
        dataset = self.dataset.take("train", torch.from_numpy(kept.flat))
        return Federation(dataset, dataclasses.replace(self.partition, train=train))

    @classmethod
    def from_arrays(
        cls,
        x: Array,
        y: Array,
        client_ids: Array,
        *,
        x_test: Array | None = None,
        y_test: Array | None = None,
        client_ids_test: Array | None = None,
        test_fraction: float = 0.2,
        class_names: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        seed: int = 0,
        name: str = "user",
        layout: str = "NHWC",
        map_labels: bool = False,
    ) -> Federation:
        """A federation of the clients named in `client_ids` (integers or strings, one per sample).

        All of them may be NumPy arrays, torch tensors, columns or tables of pandas, or lists.
        x: uint8 images [N, H, W, C] (with layout "NCHW": [N, C, H, W]), normalised by `mean` and
        `std` (default: those of the training images); float features [N, …] or bytes [N, D], which
        reach the model as floats of the same value (the image models expect images); or integer
        sequences [N, T], which reach it as symbol numbers, int64.
        y: classes [N], numbered from 0, or texts, whose classes are numbered in ascending order;
        map_labels: also numbers that begin elsewhere or leave some out.
        Without test arrays, `test_fraction` of each client's samples (rounded down, at least one
        stays for training) become its test set; 0: there are no test samples, and no round is
        evaluated. Arrays that need no other type or order are used as they are, read-only memory
        maps too, where no test samples are taken out of them.
        """
        x = laid_out("x", x, layout)
        x_test = None if x_test is None else laid_out("x_test", x_test, layout)
        y, y_test, class_names = numbered(y, y_test, class_names, map_labels)
        given = arrays.checked("", x, y, client_ids)
        if x_test is None and y_test is None and client_ids_test is None:
            train, test = arrays.split(given, test_fraction, seed)
            origin = f"natural, test set {test_fraction:g} of each client"
            if not len(test.y):
                origin = "natural, no test samples"
        elif x_test is None or y_test is None or client_ids_test is None:
            raise ValueError(
                "from_arrays: give x_test, y_test and client_ids_test, or none of them"
            )
        else:
            train, test = given, arrays.checked("_test", x_test, y_test, client_ids_test)
            origin = "natural, test set given"
        dataset = arrays.dataset(name, train, test, class_names, mean, std)
        partition = make_partition(
            "natural", train.y, test.y, natural_train=train.owner, natural_test=test.owner
        )
        return cls(dataset, dataclasses.replace(partition, convention=origin))

    @classmethod
    def from_huggingface(
        cls,
        dataset: Any,
        *,
        label: str,
        client: str | None = None,
        partitioner: Any | None = None,
        inputs: str | Sequence[str] | None = None,
        tokenizer: huggingface.Tokenizer | None = None,
        size: tuple[int, int] | None = None,
        **options: Any,
    ) -> Federation:
        """A federation of a data set of the package `datasets`: its rows, or the folder of it.

        label: the column of the classes. client: the column that says whose a row is; or
        partitioner: one of `flwr_datasets`, which deals the training rows. inputs: the column or
        columns of the samples (default: all others): one of images (resized to `size` = (H, W),
        where they differ), one of texts (`tokenizer`: n texts -> numbers [n, T]), or numbers.
        options: those of `from_arrays` (test_fraction, seed, name, …). A DatasetDict's `test` is
        the test set where a column names the clients.
        """
        if (client is None) == (partitioner is None):
            raise ValueError("from_huggingface: give client=… (a column) or partitioner=…")
        rows, test_rows = huggingface.splits(dataset)
        known = huggingface.Columns((), label, client, tokenizer, size)
        columns = huggingface.columns_of(rows, inputs, known)
        train = huggingface.read(rows, columns, partitioner)
        if test_rows is not None and partitioner is not None:
            raise ValueError(
                "from_huggingface: a partitioner deals the training rows only; give "
                "dataset['train'], of which a part of each client's rows is for tests"
            )
        if test_rows is not None:
            test = huggingface.read(test_rows, columns)
            options |= {"x_test": test.x, "y_test": test.y, "client_ids_test": test.owner}
        options = {"class_names": huggingface.class_names(rows, label)} | options
        return cls.from_arrays(train.x, train.y, train.owner, **options)

    @classmethod
    def from_image_folders(
        cls,
        root: str | Path,
        *,
        size: tuple[int, int] | None = None,
        test_fraction: float = 0.2,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        seed: int = 0,
        name: str | None = None,
        progress: bool = True,
    ) -> Federation:
        """A federation of the folders in `root`, one per client: <client>/<class>/<image>.

        With <client>/train/<class>/<image> and <client>/test/<class>/<image> the test sets are
        given, otherwise `test_fraction` of each client's images become its test set.
        size: (H, W) that every image is resized to (bilinear); may be left out where all have the
        same. Classes are numbered in the order of their folders' names, over all clients.
        """
        found = image_folders.read(Path(root), size, progress)
        return cls.from_arrays(
            found.x,
            found.y,
            found.of,
            x_test=found.x_test,
            y_test=found.y_test,
            client_ids_test=found.of_test,
            test_fraction=test_fraction,
            class_names=found.class_names,
            mean=mean,
            std=std,
            seed=seed,
            name=name or Path(root).resolve().name,
        )


def limited_ids(partition: Partition, most: int, seed: int) -> list[np.ndarray]:
    """The training samples that `Federation.limited` keeps of each client, ascending."""
    return [
        np.sort(rng(seed, UPLOAD, i, 1).choice(ids, most, replace=False))
        if len(ids) > most
        else ids
        for i, ids in enumerate(partition.train)
    ]
