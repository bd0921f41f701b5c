"""Embeddings that clients sent -> their client index, where no one holds the data in one place.

    samples  M × [N_i, 512]   what each client's encoder made of its training samples
    labels   M × [N_i]        their classes
    classes  [K, 512]         the embeddings of the class names

The vectors have the bits of build_index on a federation whose clients hold these samples.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from c2v_sim.data.dataset import dataset_of
from c2v_sim.data.federation import Federation
from c2v_sim.data.partition import Partition
from c2v_sim.index.build import build_index
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.config import IndexConfig


def index_from_embeddings(
    samples: Sequence[Tensor],
    labels: Sequence[Tensor],
    classes: Tensor,
    config: IndexConfig | None = None,
    *,
    class_names: Sequence[str] | None = None,
) -> ClientIndex:
    """The index of the clients that sent `samples` and `labels`, in their order.

    class_names: for pictures; without them classes are called by their numbers.
    """
    check_sent(samples, labels, len(classes))
    names = tuple(map(str, class_names or range(len(classes))))
    x, y = torch.cat(list(samples)).float(), torch.cat(list(labels)).long()
    tensors = {"x_train": x, "y_train": y, "x_test": x[:1], "y_test": y[:1]}  # no test is made
    dataset = dataset_of(
        tensors,
        name="embeddings",
        class_names=names,
        mean=(),
        std=(),
        source="embeddings that clients sent",
    )
    ends = np.cumsum([len(own) for own in labels])
    train = tuple(np.split(np.arange(len(y)), ends[:-1]))
    nobody = tuple(np.empty(0, np.int64) for _ in train)
    federation = Federation(dataset, Partition(train, nobody, "sent by the clients"))
    return build_index(federation, config, embeddings=(x, classes))


def check_sent(samples: Sequence[Tensor], labels: Sequence[Tensor], classes: int) -> None:
    """ValueError that names the first client whose tensors cannot be so."""
    if len(samples) != len(labels) or not len(samples):
        raise ValueError(
            "index_from_embeddings: samples and labels must be of the same clients (at least one), "
            f"got {len(samples)} and {len(labels)}"
        )
    for client, (x, y) in enumerate(zip(samples, labels, strict=True)):
        if x.dim() != 2 or y.shape != x.shape[:1] or not len(y):
            raise ValueError(
                f"index_from_embeddings: client {client} must send samples [n, D] and labels [n], "
                f"n > 0, got {list(x.shape)} and {list(y.shape)}"
            )
        if y.is_floating_point() or int(y.min()) < 0 or int(y.max()) >= classes:
            raise ValueError(
                f"index_from_embeddings: the labels of client {client} must be integers in "
                f"0..{classes - 1}, got {y.dtype} {y.min().item()}..{y.max().item()}"
            )
