"""Latent Dirichlet allocation of labels: the three conventions of the literature.

In: labels `y_train` [N] and `y_test` [N_test] (int64), M clients, alpha > 0, one generator. Out:
for each client its training and its test sample ids, as two lists of M arrays.

- `per_client`: r_i ~ Dirichlet(alpha · 1_K); every client gets N // M samples, each label drawn
  from r_i restricted to the classes that still have samples (N mod M samples stay unused).
- `prior`: the same with r_i ~ Dirichlet(alpha · class shares), much more skewed at equal alpha.
- `per_class`: each class is cut among the clients by p ~ Dirichlet(alpha · 1_M); sizes vary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

IdLists = Sequence[np.ndarray]
Generator = np.random.Generator

MIN_SIZE = 10  # per_class: smallest client that the published implementations accept
MAX_ATTEMPTS = 1000  # per_class: redraws before the request counts as impossible
# Parameters beyond these overflow or underflow; the distribution is at its limit already.
ALPHA_LIMITS = (1e-100, 1e100)


def per_client(
    y_train: np.ndarray, y_test: np.ndarray, clients: int, generator: Generator, alpha: float
) -> tuple[IdLists, IdLists]:
    """Equal sizes, class shares drawn per client."""
    return _equal_sizes(
        y_train, y_test, clients, generator, np.full(_classes(y_train, y_test), alpha)
    )


def prior(
    y_train: np.ndarray, y_test: np.ndarray, clients: int, generator: Generator, alpha: float
) -> tuple[IdLists, IdLists]:
    """Equal sizes, class shares drawn per client around the data's own shares."""
    counts = np.bincount(y_train, minlength=_classes(y_train, y_test))
    return _equal_sizes(y_train, y_test, clients, generator, alpha * counts / len(y_train))


def per_class(
    y_train: np.ndarray, y_test: np.ndarray, clients: int, generator: Generator, alpha: float
) -> tuple[IdLists, IdLists]:
    """Every class cut among the clients; redrawn until each client has `MIN_SIZE` samples."""
    if len(y_train) < MIN_SIZE * clients:
        raise ValueError(
            f"dirichlet: per_class needs {MIN_SIZE} samples per client; with {len(y_train)} "
            f"samples clients must be <= {len(y_train) // MIN_SIZE}, got {clients}"
        )
    classes = _classes(y_train, y_test)
    members = _members(y_train, classes)
    smallest = 0
    for _ in range(MAX_ATTEMPTS):
        pools, shares, sizes = [], [], np.zeros(clients, dtype=np.int64)
        for c in range(classes):
            pools.append(members[c].copy())
            generator.shuffle(pools[c])
            shares.append(_class_shares(alpha, sizes, len(y_train) / clients, generator))
            sizes += np.diff(_cuts(shares[c], len(pools[c])))
        smallest = max(smallest, sizes.min())
        if sizes.min() >= MIN_SIZE:
            test_pools = _members(y_test, classes)
            for pool in test_pools:
                generator.shuffle(pool)
            return _by_client(pools, shares), _by_client(test_pools, shares)
    raise ValueError(
        f"dirichlet: per_class left some client with fewer than {MIN_SIZE} samples in each of "
        f"{MAX_ATTEMPTS} draws (at best {smallest}); use fewer clients than {clients}, an alpha "
        f"larger than {alpha}, or lda per_client, which gives equal sizes"
    )


LDA: dict[str, Callable[..., tuple[IdLists, IdLists]]] = {
    "per_client": per_client,
    "prior": prior,
    "per_class": per_class,
}


def _classes(y_train: np.ndarray, y_test: np.ndarray) -> int:
    return 1 + int(max(y_train.max(), y_test.max(initial=0)))


def _members(y: np.ndarray, classes: int) -> list[np.ndarray]:
    """Ascending sample ids of each class."""
    return np.split(np.argsort(y, kind="stable"), np.cumsum(np.bincount(y, minlength=classes))[:-1])


def _equal_sizes(
    y_train: np.ndarray,
    y_test: np.ndarray,
    clients: int,
    generator: Generator,
    concentration: np.ndarray,  # [K]
) -> tuple[IdLists, IdLists]:
    train_pools = _members(y_train, len(concentration))
    test_pools = _members(y_test, len(concentration))
    for pool in train_pools + test_pools:
        generator.shuffle(pool)
    shares = generator.dirichlet(concentration.clip(*ALPHA_LIMITS), size=clients)  # [M, K]
    sizes = np.full(clients, len(y_train) // clients)
    test_sizes = np.full(clients, len(y_test) // clients)
    if len(y_test) < clients:
        test_sizes[: len(y_test)] = 1  # not enough for all: still better than none at all
    train = _fill(train_pools, shares, sizes, generator)
    return train, _fill(test_pools, shares, test_sizes, generator)


def _fill(pools: IdLists, shares: np.ndarray, sizes: np.ndarray, generator: Generator) -> IdLists:
    """Client after client, `sizes[i]` times: draw a label from `shares[i]`, pop that pool's end."""
    left = np.array([len(pool) for pool in pools])
    filled = []
    for share, size in zip(shares, sizes, strict=True):
        before = left.copy()
        labels = _draw_labels(share, left, generator.random(size))
        ids = np.empty(size, dtype=np.int64)
        for c in map(int, np.flatnonzero(before - left)):
            ids[labels == c] = pools[c][left[c] : before[c]][::-1]
        filled.append(ids)
    return filled


def _draw_labels(share: np.ndarray, left: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """One label for each number of `uniform`; decrements `left` [K], the samples per class.

    The distribution changes only when a class runs out, so whole blocks between such events are
    drawn at once. When no class of this client is left, the remaining counts are the distribution;
    it changes with every draw.
    """
    labels = np.empty(len(uniform), dtype=np.int64)
    done = 0
    while done < len(uniform):
        weights = np.where(left > 0, share, 0.0)
        by_counts = weights.sum() < 1e-12
        if by_counts:
            weights = left.astype(float)
        block = uniform[done : done + 1] if by_counts else uniform[done:]
        drawn = np.searchsorted(np.cumsum(weights / weights.sum()), block, side="right")
        # Rounding may leave the last cumulative share just below 1.
        drawn = np.minimum(drawn, np.flatnonzero(weights)[-1])
        taken = np.bincount(drawn, minlength=len(left))
        used = len(drawn)
        for c in np.flatnonzero((taken >= left) & (taken > 0)):
            used = min(used, 1 + np.flatnonzero(drawn == c)[left[c] - 1])
        labels[done : done + used] = drawn[:used]
        left -= np.bincount(drawn[:used], minlength=len(left))
        done += used
    return labels


def _class_shares(alpha: float, sizes: np.ndarray, full: float, generator: Generator) -> np.ndarray:
    """Shares [M] of one class; clients that hold `full` samples or more take no part."""
    drawn = generator.dirichlet(np.full(len(sizes), alpha).clip(*ALPHA_LIMITS))
    takes_part = sizes < full
    if not takes_part.any():  # every training sample is placed: a class of the test set only
        return drawn
    shares = np.where(takes_part, drawn, 0.0)
    if shares.sum() == 0:  # alpha so small that full clients drew everything
        shares[generator.choice(np.flatnonzero(takes_part))] = 1.0
    return shares / shares.sum()


def _cuts(shares: np.ndarray, samples: int) -> np.ndarray:
    """Borders [M+1] of the clients' pieces of a class; the last piece ends with the class."""
    inner = np.floor(np.cumsum(shares)[:-1] * samples).astype(np.int64)
    return np.concatenate([[0], inner.clip(max=samples), [samples]])


def _by_client(pools: IdLists, shares: Sequence[np.ndarray]) -> IdLists:
    pieces = [
        np.split(pool, _cuts(share, len(pool))[1:-1])
        for pool, share in zip(pools, shares, strict=True)
    ]
    return [np.concatenate(of_client) for of_client in zip(*pieces, strict=True)]
