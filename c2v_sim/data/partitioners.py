"""The ways to deal samples to clients, each a function of a `Request`.

Dirichlet, iid and shards look at labels, by-domain at domains, natural at whose each sample is. A
new one is a function here and a line in `partition.PARTITIONERS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from c2v_sim.data.client_ids import ClientIds, evenly, grouped, joined, numbered
from c2v_sim.data.dirichlet import LDA, MIN_SIZE

IdLists = Sequence[np.ndarray]  # M × int64 [N_i]


@dataclass(frozen=True)
class Request:
    """What `make_partition` was asked for; every partitioner takes of it what it needs."""

    y_train: np.ndarray  # int64 [N]
    y_test: np.ndarray  # int64 [N_test]
    clients: int | None
    generator: np.random.Generator
    alpha: float
    lda: str
    shards_per_client: int
    domain_train: np.ndarray | None  # [N]
    domain_test: np.ndarray | None
    clients_per_domain: int | None
    natural_train: np.ndarray | None  # [N]
    natural_test: np.ndarray | None


class Dealt(NamedTuple):
    """The fields of a `Partition`."""

    train: IdLists
    test: IdLists
    convention: str
    domains: tuple[int, ...] | None = None


def dirichlet(request: Request) -> Dealt:
    """Label shift, the stronger the smaller alpha, in one of the conventions `LDA`."""
    alpha, lda = request.alpha, request.lda
    if not (alpha > 0 and math.isfinite(alpha)):
        raise ValueError(f"dirichlet: alpha must be a positive number, got {alpha}")
    if lda not in LDA:
        raise ValueError(f"dirichlet: lda must be one of {', '.join(LDA)}, got {lda!r}")
    clients = _checked_clients("dirichlet", request)
    train, test = LDA[lda](request.y_train, request.y_test, clients, request.generator, alpha)
    sizes = f"at least {MIN_SIZE} each" if lda == "per_class" else "equal sizes"
    return Dealt(train, test, f"dirichlet {lda} alpha={alpha} {sizes}")


def iid(request: Request) -> Dealt:
    """Uniformly random; all samples are used, sizes differ by at most one."""
    clients = _checked_clients("iid", request)
    train, test = (
        evenly(request.generator.permutation(len(y)), clients)
        for y in (request.y_train, request.y_test)
    )
    return Dealt(train, test, "iid")


def shards(request: Request) -> Dealt:
    """Samples sorted by label and cut into equal shards, `shards_per_client` random ones each.

    Client i gets the test shards of the same numbers, hence about the same labels.
    """
    clients, each = _checked_clients("shards", request), request.shards_per_client
    samples = len(request.y_train)
    most = samples // clients
    if not 1 <= each <= most:
        raise ValueError(
            f"shards: shards_per_client must be 1..{most} with {samples} samples and "
            f"{clients} clients, got {each}"
        )
    owned = request.generator.permutation(clients * each).reshape(clients, -1)
    train, test = _shards_of(request.y_train, owned), _shards_of(request.y_test, owned)
    return Dealt(train, test, f"shards {each} per client")


def _shards_of(y: np.ndarray, owned: np.ndarray) -> IdLists:
    """Cut the samples, sorted by label, into as many shards as `owned` [M, S] numbers."""
    pieces = evenly(np.argsort(y, kind="stable"), owned.size)
    sizes = pieces.sizes[owned.ravel()]
    # Where each shard begins, less what was put down before it: then the ids follow by counting.
    shift = pieces.offsets[owned.ravel()] - np.cumsum(sizes) + sizes
    flat = pieces.flat[np.repeat(shift, sizes) + np.arange(len(y))]
    return ClientIds(flat, sizes.reshape(owned.shape).sum(axis=1))


def by_domain(request: Request) -> Dealt:
    """Every client sees one domain; client id = clients_per_domain · domain + part."""
    domain_train, domain_test = _checked_ids(
        "by-domain", "domains", request, request.domain_train, request.domain_test
    )
    count = _domain_count(domain_train, domain_test)
    parts = _parts_per_domain(count, request.clients, request.clients_per_domain)
    train: list[ClientIds] = []
    test: list[ClientIds] = []
    for domain in range(count):
        ids = np.flatnonzero(domain_train == domain)
        if len(ids) < parts:
            raise ValueError(
                f"by-domain: domain {domain} has {len(ids)} training samples; clients_per_domain "
                f"must be <= {len(ids)}, got {parts}"
            )
        train.append(evenly(request.generator.permutation(ids), parts))
        test_ids = np.flatnonzero(domain_test == domain)
        test.append(evenly(request.generator.permutation(test_ids), parts))
    domains = tuple(client // parts for client in range(count * parts))
    convention = f"by-domain {parts} clients per domain"
    return Dealt(joined(train), joined(test), convention, domains)


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


def natural(request: Request) -> Dealt:
    """The data says whose each sample is; clients in ascending order of their ids."""
    natural_train, natural_test = _checked_ids(
        "natural", "client ids", request, request.natural_train, request.natural_test
    )
    owners, train_owner = numbered(natural_train)
    if request.clients not in (None, len(owners)):
        raise ValueError(
            f"natural: the data has clients={len(owners)}, got clients={request.clients}"
        )
    if (owners.dtype.kind in "iu") != (natural_test.dtype.kind in "iu"):
        kinds = f"{owners.dtype} and {natural_test.dtype}"
        raise ValueError(f"natural: client ids must be all integers or all strings, got {kinds}")
    test_owner = np.searchsorted(owners, natural_test)
    known = owners[np.minimum(test_owner, len(owners) - 1)] == natural_test
    if not np.all(known):
        strange = np.unique(natural_test[~known])
        raise ValueError(
            f"natural: test samples of clients {strange[:10]} without training samples"
        )
    train, test = grouped(train_owner, len(owners)), grouped(test_owner, len(owners))
    return Dealt(train, test, "natural")


def _checked_clients(kind: str, request: Request) -> int:
    clients, samples = request.clients, len(request.y_train)
    if clients is None or not 1 <= clients <= samples:
        raise ValueError(
            f"{kind}: clients must be 1..{samples} (one training sample each), got {clients}"
        )
    return clients


def _checked_ids(
    kind: str,
    what: str,
    request: Request,
    ids_train: np.ndarray | None,
    ids_test: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    y_train, y_test = request.y_train, request.y_test
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
                f"{kind}: {what} of the {name} data must be one integer or string per sample "
                f"{y.shape}, got {ids.dtype} {ids.shape}"
            )
    return ids_train, ids_test
