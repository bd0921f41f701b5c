"""Labels → sample ids per client.

In: `y_train` [N] and `y_test` [N_test] class labels, for some partitioners a domain or a client id
per sample. Out: a `Partition`, for each of M clients its int64 training and test sample ids; every
id at most once, no client without training samples. All draws come from `rng(seed, PARTITION)`.
"""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from c2v_sim.data.dirichlet import LDA, MIN_SIZE
from c2v_sim.system.files import replacing
from c2v_sim.system.seeding import PARTITION, rng

FILE_ARRAYS = (
    *("train_ids", "train_sizes", "test_ids", "test_sizes"),
    *("domains", "convention", "sha256"),
)
# What numpy and zipfile raise on damaged files.
UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, TypeError),
    *(ValueError, AttributeError, RuntimeError, MemoryError),
)


@dataclass(frozen=True, eq=False)
class Partition:
    """Who holds which samples. `domains` maps client → domain where clients follow domains."""

    train: tuple[np.ndarray, ...]  # M × int64 [N_i]
    test: tuple[np.ndarray, ...]  # M × int64 [N_test_i], may be empty for a client
    convention: str
    domains: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            lists = tuple(_copied_ids(ids) for ids in getattr(self, name))
            object.__setattr__(self, name, lists)
            joined = np.concatenate(lists) if lists else np.empty(0, np.int64)
            if joined.min(initial=0) < 0 or len(np.unique(joined)) < len(joined):
                raise ValueError(
                    f"Partition: {name} ids must be >= 0 and belong to one client only"
                )
        if not self.train or len(self.train) != len(self.test):
            raise ValueError(
                f"Partition: train and test must list the same clients (at least one), "
                f"got {len(self.train)} and {len(self.test)}"
            )
        empty = [client for client, ids in enumerate(self.train) if not len(ids)]
        if empty:
            raise ValueError(f"Partition: clients without training samples: {empty[:10]}")
        if self.domains is not None and len(self.domains) != self.clients:
            raise ValueError(
                f"Partition: domains must name {self.clients} clients, got {len(self.domains)}"
            )

    @property
    def clients(self) -> int:
        return len(self.train)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Training samples per client, int64 [M]."""
        return np.array([len(ids) for ids in self.train], dtype=np.int64)

    @cached_property
    def sha256(self) -> str:
        """Hash of the ids: equal exactly when every client holds the same ids in the same order."""
        digest = hashlib.sha256()
        for lists in (self.train, self.test):
            sizes = np.array([len(lists), *map(len, lists)])
            for array in (sizes, *lists):
                digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a compressed npz; the file appears complete or not at all."""
        path = Path(path)
        arrays: dict[str, Any] = {
            "convention": self.convention,
            "sha256": self.sha256,
            "domains": np.array(self.domains or (), dtype=np.int64),
        }
        for name, lists in (("train", self.train), ("test", self.test)):
            arrays[f"{name}_ids"] = np.concatenate(lists)
            arrays[f"{name}_sizes"] = np.array([len(ids) for ids in lists], dtype=np.int64)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Partition:
        """Read what `save` wrote; ValueError names a file that is damaged or something else."""
        with open(path, "rb") as raw:
            try:
                with np.load(raw, allow_pickle=False) as file:
                    arrays = {name: file[name] for name in FILE_ARRAYS}
                train = _unjoin(arrays["train_ids"], arrays["train_sizes"])
                test = _unjoin(arrays["test_ids"], arrays["test_sizes"])
                domains = tuple(arrays["domains"].tolist()) or None
                partition = cls(train, test, str(arrays["convention"]), domains)
            except UNREADABLE as error:
                raise ValueError(f"{path}: not a readable partition file ({error})") from error
        if partition.sha256 != str(arrays["sha256"]):
            raise ValueError(
                f"{path}: sample ids do not match the stored hash; the file is damaged"
            )
        return partition


def _copied_ids(ids: np.ndarray) -> np.ndarray:
    ids = np.array(ids, dtype=np.int64)  # a copy: the partition must not change with its source
    if ids.ndim != 1:
        raise ValueError(f"Partition: ids of a client must be [N_i], got {ids.shape}")
    return ids


def _unjoin(ids: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    if sizes.sum() != len(ids):
        raise ValueError(f"{len(ids)} ids for sizes that sum to {sizes.sum()}")
    return tuple(np.split(ids, np.cumsum(sizes)[:-1]))


def dirichlet(
    y_train: np.ndarray,
    y_test: np.ndarray,
    clients: int | None,
    generator: np.random.Generator,
    *,
    alpha: float = 0.1,
    lda: str = "per_client",
) -> Partition:
    """Label shift, the stronger the smaller alpha, in one of the conventions `LDA`."""
    if not (alpha > 0 and math.isfinite(alpha)):
        raise ValueError(f"dirichlet: alpha must be a positive number, got {alpha}")
    if lda not in LDA:
        raise ValueError(f"dirichlet: lda must be one of {', '.join(LDA)}, got {lda!r}")
    clients = _checked_clients("dirichlet", clients, len(y_train))
    train, test = LDA[lda](y_train, y_test, clients, generator, alpha)
    sizes = f"at least {MIN_SIZE} each" if lda == "per_class" else "equal sizes"
    return Partition(tuple(train), tuple(test), f"dirichlet {lda} alpha={alpha} {sizes}")


def iid(
    y_train: np.ndarray, y_test: np.ndarray, clients: int | None, generator: np.random.Generator
) -> Partition:
    """Uniformly random; all samples are used, sizes differ by at most one."""
    clients = _checked_clients("iid", clients, len(y_train))
    train, test = (
        np.array_split(generator.permutation(len(y)), clients) for y in (y_train, y_test)
    )
    return Partition(tuple(train), tuple(test), "iid")


def shards(
    y_train: np.ndarray,
    y_test: np.ndarray,
    clients: int | None,
    generator: np.random.Generator,
    *,
    shards_per_client: int = 2,
) -> Partition:
    """Samples sorted by label and cut into equal shards, `shards_per_client` random ones each.

    Client i gets the test shards of the same numbers, hence about the same labels.
    """
    clients = _checked_clients("shards", clients, len(y_train))
    most = len(y_train) // clients
    if not 1 <= shards_per_client <= most:
        raise ValueError(
            f"shards: shards_per_client must be 1..{most} with {len(y_train)} samples and "
            f"{clients} clients, got {shards_per_client}"
        )
    owned = generator.permutation(clients * shards_per_client).reshape(clients, -1)
    train, test = _deal(y_train, owned), _deal(y_test, owned)
    return Partition(train, test, f"shards {shards_per_client} per client")


def _deal(y: np.ndarray, owned: np.ndarray) -> tuple[np.ndarray, ...]:
    """Cut the samples, sorted by label, into as many shards as `owned` [M, S] numbers."""
    pieces = np.array_split(np.argsort(y, kind="stable"), owned.size)
    return tuple(np.concatenate([pieces[shard] for shard in of_client]) for of_client in owned)


def by_domain(
    y_train: np.ndarray,
    y_test: np.ndarray,
    clients: int | None,
    generator: np.random.Generator,
    *,
    domain_train: np.ndarray | None = None,
    domain_test: np.ndarray | None = None,
    clients_per_domain: int | None = None,
) -> Partition:
    """Every client sees one domain; client id = clients_per_domain · domain + part."""
    domain_train, domain_test = _checked_ids(
        "by-domain", "domains", y_train, y_test, domain_train, domain_test
    )
    count = _domain_count(domain_train, domain_test)
    parts = _parts_per_domain(count, clients, clients_per_domain)
    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    for domain in range(count):
        ids = np.flatnonzero(domain_train == domain)
        if len(ids) < parts:
            raise ValueError(
                f"by-domain: domain {domain} has {len(ids)} training samples; clients_per_domain "
                f"must be <= {len(ids)}, got {parts}"
            )
        train += np.array_split(generator.permutation(ids), parts)
        test_ids = np.flatnonzero(domain_test == domain)
        test += np.array_split(generator.permutation(test_ids), parts)
    domains = tuple(client // parts for client in range(count * parts))
    return Partition(tuple(train), tuple(test), f"by-domain {parts} clients per domain", domains)


def _domain_count(domain_train: np.ndarray, domain_test: np.ndarray) -> int:
    found = np.unique(domain_train)
    if not np.array_equal(found, np.arange(len(found))):
        raise ValueError(
            f"by-domain: training domains must be numbered 0, 1, 2, … without gaps, got {found}"
        )
    strange = np.setdiff1d(domain_test, found)
    if len(strange):
        raise ValueError(f"by-domain: test samples of domains {strange} that no client trains on")
    return len(found)


def _parts_per_domain(domains: int, clients: int | None, clients_per_domain: int | None) -> int:
    if clients_per_domain is None:
        if clients is None or clients < domains or clients % domains:
            raise ValueError(
                f"by-domain: clients must be a multiple of the {domains} domains, got {clients}"
            )
        return clients // domains
    if clients_per_domain < 1:
        raise ValueError(f"by-domain: clients_per_domain must be >= 1, got {clients_per_domain}")
    if clients not in (None, domains * clients_per_domain):
        raise ValueError(
            f"by-domain: {domains} domains with {clients_per_domain} clients each make "
            f"clients={domains * clients_per_domain}, got clients={clients}"
        )
    return clients_per_domain


def natural(
    y_train: np.ndarray,
    y_test: np.ndarray,
    clients: int | None,
    generator: np.random.Generator,
    *,
    natural_train: np.ndarray | None = None,
    natural_test: np.ndarray | None = None,
) -> Partition:
    """The data says whose each sample is; clients in ascending order of their ids."""
    natural_train, natural_test = _checked_ids(
        "natural", "client ids", y_train, y_test, natural_train, natural_test
    )
    owners, train_owner = np.unique(natural_train, return_inverse=True)
    if clients not in (None, len(owners)):
        raise ValueError(f"natural: the data has clients={len(owners)}, got clients={clients}")
    strange = np.setdiff1d(natural_test, owners)
    if len(strange):
        raise ValueError(
            f"natural: test samples of clients {strange[:10]} without training samples"
        )
    train = _group(train_owner, len(owners))
    test = _group(np.searchsorted(owners, natural_test), len(owners))
    return Partition(train, test, "natural")


def _group(owner: np.ndarray, owners: int) -> tuple[np.ndarray, ...]:
    """Ascending ids of the samples of each owner."""
    ends = np.cumsum(np.bincount(owner, minlength=owners))
    return tuple(np.split(np.argsort(owner, kind="stable"), ends[:-1]))


PARTITIONERS: dict[str, Callable[..., Partition]] = {
    "dirichlet": dirichlet,
    "iid": iid,
    "shards": shards,
    "by-domain": by_domain,
    "natural": natural,
}


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
    options: dict[str, dict[str, Any]] = {
        "dirichlet": {"alpha": alpha, "lda": lda},
        "shards": {"shards_per_client": shards_per_client},
        "by-domain": {
            "domain_train": domain_train,
            "domain_test": domain_test,
            "clients_per_domain": clients_per_domain,
        },
        "natural": {"natural_train": natural_train, "natural_test": natural_test},
    }
    labels = (_checked_labels("y_train", y_train), _checked_labels("y_test", y_test))
    if not len(labels[0]):
        raise ValueError("partition: y_train is empty; there is nothing to distribute")
    return PARTITIONERS[kind](*labels, clients, rng(seed, PARTITION), **options.get(kind, {}))


def _checked_labels(name: str, labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iu"):
        raise ValueError(
            f"partition: {name} must be integer labels [N], got {labels.dtype} {labels.shape}"
        )
    if labels.min(initial=0) < 0:
        raise ValueError(f"partition: {name} must be >= 0, got {labels.min()}")
    return labels.astype(np.int64)


def _checked_clients(kind: str, clients: int | None, samples: int) -> int:
    if clients is None or not 1 <= clients <= samples:
        raise ValueError(
            f"{kind}: clients must be 1..{samples} (one training sample each), got {clients}"
        )
    return clients


def _checked_ids(
    kind: str,
    what: str,
    y_train: np.ndarray,
    y_test: np.ndarray,
    ids_train: np.ndarray | None,
    ids_test: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    if ids_train is None or (ids_test is None and len(y_test)):
        missing = "training" if ids_train is None else "test"
        raise ValueError(
            f"{kind}: the {missing} data has no {what}; use dirichlet, iid or shards instead"
        )
    ids_train = np.asarray(ids_train)
    ids_test = ids_train[:0] if ids_test is None else np.asarray(ids_test)
    for name, ids, y in (("training", ids_train, y_train), ("test", ids_test, y_test)):
        if ids.shape != y.shape or (len(ids) and ids.dtype.kind not in "iuUS"):
            raise ValueError(
                f"{kind}: {what} of the {name} data must be one integer or string a sample "
                f"{y.shape}, got {ids.dtype} {ids.shape}"
            )
    return ids_train, ids_test
