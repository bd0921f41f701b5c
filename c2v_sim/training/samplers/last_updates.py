"""What every client did when it last took part, and how far these updates are from one another.

    u_i = theta_i - w, or a sketch of it;   D_ij = measure(u_i, u_j)                        [M, M]

State: a row of P numbers (or of the sketch's width) for every client that has taken part, which
spills to a file as all clients' rows do, and D, 4 M^2 bytes. After a round the k clients' distances
to all others are made anew: k M passes over a row.

A sketch sums the coordinates of an update in `width` random buckets, each with a random sign
(Charikar et al., 2002): inner products and squared distances keep their expectation, with a
relative error around sqrt(2 / width), and the cost does not grow with the model.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from c2v_sim.system.machine import intra_op_threads
from c2v_sim.system.seeding import SKETCH, rng
from c2v_sim.training.memory import check_fits
from c2v_sim.training.samplers.sampler import SamplerRun

Measure = Callable[[Tensor, Tensor], Tensor]  # [n, width], [width] -> [n]
TOGETHER = 1 << 22  # numbers that are compared at once


def distance(rows: Tensor, row: Tensor) -> Tensor:
    """|u_i - u_j|"""
    return torch.linalg.vector_norm(rows - row, dim=1)


def angle(rows: Tensor, row: Tensor) -> Tensor:
    """arccos of the cosine, in [0, pi]; a zero update is at right angles to all."""
    lengths = torch.linalg.vector_norm(rows, dim=1) * torch.linalg.vector_norm(row)
    return torch.arccos(((rows @ row) / lengths.clamp(min=1e-30)).clamp(-1, 1))


class LastUpdates:
    """Kept by `run`; `sketch` = 0 keeps whole updates."""

    def __init__(
        self, run: SamplerRun, measure: Measure, sketch: int, seed: int, owner: str = "sampler"
    ) -> None:
        clients, layout, self.trainable = run.clients, run.layout, run.layout.trainable
        check_fits(run.device, {f"distances between {clients} clients": 4 * clients**2})
        self.measure = measure
        whole = not 0 < sketch < layout.parameter_count
        self.width = self.trainable if whole else sketch
        self.rows = run.client_rows(f"{owner}.update", self.width)
        self.table = run.server_state(f"{owner}.distances", clients, clients)  # D
        self._buckets: Tensor | None = None
        if not whole:
            draw = rng(seed, SKETCH)
            buckets = draw.integers(0, self.width, size=layout.parameter_count)
            signs = 2 * draw.integers(0, 2, size=layout.parameter_count, dtype=np.int8) - 1
            # The padding of a row gets sign 0: it is in no bucket.
            places = (layout.spread(torch.from_numpy(t), self.trainable) for t in (buckets, signs))
            self._buckets, self._signs = (place.to(run.device) for place in places)

    @property
    def known(self) -> np.ndarray:  # bool [M]
        """Who has taken part."""
        return np.array([client in self.rows for client in range(self.rows.clients)])

    def keep(self, clients: np.ndarray, rows: Tensor, origin: Tensor) -> None:
        """`clients` ended at `rows` [n, size]."""
        new = torch.empty(len(clients), self.width, device=rows.device)
        # One thread: the bits of a long sum must not depend on how many there are.
        with intra_op_threads(1):
            for client, row, out in zip(clients.tolist(), rows, new, strict=True):
                out.copy_(self.rows.write(client, self.sketched((row - origin)[: self.trainable])))
            self._compare(torch.from_numpy(clients).to(rows.device), new)

    def sketched(self, update: Tensor) -> Tensor:  # [trainable] -> [width]
        if self._buckets is None:
            return update
        return update.new_zeros(self.width).index_add_(0, self._buckets, update * self._signs)

    def _compare(self, clients: Tensor, new: Tensor) -> None:
        other = torch.empty_like(new[0])
        parts = new.split(max(1, TOGETHER // self.width))
        for j in np.flatnonzero(self.known).tolist():
            self.rows.read(j, other)
            far = torch.cat([self.measure(part, other) for part in parts])
            self.table[clients, j] = far
            self.table[j, clients] = far
        self.table.fill_diagonal_(0)
