"""Labels → sample ids per client.

In: `y_train` [N] and `y_test` [N_test] class labels, for some partitioners a domain or a client id
per sample. Out: a `Partition`, for each of M clients its int64 training and test sample ids; every
id at most once, no client without training samples. All draws come from `rng(seed, PARTITION)`.
The ids lie in flat arrays (data/client_ids.py); `partition.train[i]` is a slice.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from c2v_sim.data import partitioners
from c2v_sim.data.client_ids import ClientIds
from c2v_sim.data.partitioners import Dealt, Request
from c2v_sim.system.archive import read_npz
from c2v_sim.system.files import replacing
from c2v_sim.system.seeding import PARTITION, rng

PARTITIONERS: dict[str, Callable[[Request], Dealt]] = {
    "dirichlet": partitioners.dirichlet,
    "iid": partitioners.iid,
    "shards": partitioners.shards,
    "by-domain": partitioners.by_domain,
    "natural": partitioners.natural,
}
MOST_CLASSES = 2**20
FILE_ARRAYS = (
    *("train_ids", "train_sizes", "test_ids", "test_sizes"),
    *("domains", "convention", "sha256"),
)


@dataclass(frozen=True, eq=False, init=False)
class Partition:
    """Who holds which samples. `domains` maps client → domain where clients follow domains."""

    train: ClientIds  # M × int64 [N_i]
    test: ClientIds  # M × int64 [N_test_i], may be empty for a client
    convention: str
    domains: tuple[int, ...] | None = None

    def __init__(
        self,
        train: Sequence[np.ndarray],
        test: Sequence[np.ndarray],
        convention: str,
        domains: tuple[int, ...] | None = None,
    ) -> None:
        """Ids that are not ClientIds are copied: the partition must not change with its source."""
        for name, lists in (("train", train), ("test", test)):
            ids = lists if isinstance(lists, ClientIds) else ClientIds.of(lists)
            if not ids.each_once:
                raise ValueError(
                    f"Partition: {name} ids must be >= 0 and belong to one client only"
                )
            object.__setattr__(self, name, ids)
        object.__setattr__(self, "convention", convention)
        object.__setattr__(self, "domains", domains)
        if not len(self.train) or len(self.train) != len(self.test):
            raise ValueError(
                f"Partition: train and test must list the same clients (at least one), "
                f"got {len(self.train)} and {len(self.test)}"
            )
        empty = np.flatnonzero(self.sizes == 0)
        if len(empty):
            raise ValueError(f"Partition: clients without training samples: {empty[:10].tolist()}")
        if domains is not None and len(domains) != self.clients:
            raise ValueError(
                f"Partition: domains must name {self.clients} clients, got {len(domains)}"
            )

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def sizes(self) -> np.ndarray:
        """Training samples per client, int64 [M]."""
        return self.train.sizes

    @cached_property
    def tested(self) -> int:
        """Clients with test samples."""
        return int(np.count_nonzero(self.test.sizes))

    @cached_property
    def sha256(self) -> str:
        """Hash of the ids: equal exactly when every client holds the same ids in the same order."""
        digest = hashlib.sha256()
        for ids in (self.train, self.test):
            for array in (np.array([len(ids)]), ids.sizes, ids.flat):
                digest.update(np.ascontiguousarray(array, dtype="<i8").data)
        return digest.hexdigest()

    def only(self, clients: np.ndarray, convention: str) -> Partition:
        """Some of the clients, in the order of `clients`, numbered anew."""
        chosen = clients.tolist()
        train, test = ([ids[i] for i in chosen] for ids in (self.train, self.test))
        domains = None if self.domains is None else tuple(self.domains[i] for i in chosen)
        return Partition(train, test, convention, domains)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a compressed npz; the file appears complete or not at all."""
        with replacing(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file,
                convention=self.convention,
                sha256=self.sha256,
                domains=np.array(self.domains or (), dtype=np.int64),
                train_ids=self.train.flat,
                train_sizes=self.train.sizes,
                test_ids=self.test.flat,
                test_sizes=self.test.sizes,
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Partition:
        """Read what `save` wrote; ValueError names a file that is damaged or something else."""
        try:
            arrays = read_npz(path, FILE_ARRAYS)
            train = _unjoin(arrays["train_ids"], arrays["train_sizes"])
            test = _unjoin(arrays["test_ids"], arrays["test_sizes"])
            domains = tuple(arrays["domains"].ravel().tolist()) or None
            partition = cls(train, test, str(arrays["convention"]), domains)
        except ValueError as error:
            raise ValueError(f"{path}: not a readable partition file ({error})") from error
        if partition.sha256 != str(arrays["sha256"]):
            raise ValueError(
                f"{path}: sample ids do not match the stored hash; the file is damaged"
            )
        return partition


def _unjoin(ids: np.ndarray, sizes: np.ndarray) -> ClientIds:
    if not all(array.ndim == 1 and array.dtype.kind in "iu" for array in (ids, sizes)):
        raise ValueError("ids and sizes must be whole numbers [N]")
    return ClientIds(ids, sizes)


def make_partition(
    kind: str,
    y_train: np.ndarray,
    y_test: np.ndarray,
    *,
    clients: int | None = None,
    seed: int = 0,
    alpha: float = 0.1,
    lda: str = "per_client",
    shards_per_client: int = 2,
    domain_train: np.ndarray | None = None,
    domain_test: np.ndarray | None = None,
    clients_per_domain: int | None = None,
    natural_train: np.ndarray | None = None,
    natural_test: np.ndarray | None = None,
) -> Partition:
    """Distribute samples by `PARTITIONERS[kind]`; an impossible request raises ValueError.

    `clients` may be left out where the data decides it (`natural`, `by-domain` with
    `clients_per_domain`). Options that the kind does not use are ignored.
    """
    if kind not in PARTITIONERS:
        raise ValueError(f"partition must be one of {', '.join(PARTITIONERS)}, got {kind!r}")
    request = Request(
        y_train=_checked_labels("y_train", y_train),
        y_test=_checked_labels("y_test", y_test),
        clients=clients,
        generator=rng(seed, PARTITION),
        alpha=alpha,
        lda=lda,
        shards_per_client=shards_per_client,
        domain_train=domain_train,
        domain_test=domain_test,
        clients_per_domain=clients_per_domain,
        natural_train=natural_train,
        natural_test=natural_test,
    )
    if not len(request.y_train):
        raise ValueError("partition: y_train is empty; there is nothing to distribute")
    dealt = PARTITIONERS[kind](request)
    return Partition(dealt.train, dealt.test, dealt.convention, dealt.domains)


def _checked_labels(name: str, labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iu"):
        raise ValueError(
            f"partition: {name} must be integer labels [N], got {labels.dtype} {labels.shape}"
        )
    if labels.min(initial=0) < 0:
        raise ValueError(f"partition: {name} must be >= 0, got {labels.min()}")
    if labels.max(initial=0) >= MOST_CLASSES:  # arrays with a place for every class are made
        raise ValueError(
            f"partition: {name} must be below {MOST_CLASSES}, got {labels.max()}; number the "
            "classes from 0: numpy.unique(y, return_inverse=True)[1]"
        )
    return labels.astype(np.int64, copy=False)
