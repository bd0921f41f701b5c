"""State that every client keeps between its participations: one row per client, made when needed.

    rows = ClientRows("h", clients=100, width=878538, device=device, budget=Budget(...))
    rows.write(client, row);  rows.read(client, out)        # zeros for a client never written

Rows lie in chunks. A chunk goes to the device while the budget lasts, then to host memory (pinned,
for a GPU), then to a memory-mapped file whose space is reserved first. Where a row lies never shows
in its value.

Where several ranks share a run, each stores the rows of its own clients alone (RankedRows), so that
the memory of a rank falls with their number.
"""

import math
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from c2v_sim.system import ranks
from c2v_sim.system.errors import NoRoom
from c2v_sim.system.files import reserve
from c2v_sim.system.text import in_bytes

CHUNK_BYTES = 64 << 20
CPU = torch.device("cpu")


@dataclass
class Budget:
    """Bytes still free for client rows, and the folder for what does not fit."""

    device: int  # 0 where the device is the host
    host: int
    folder: Path | None = None  # None: the system's folder for temporary files

    def take(self, row_bytes: int, most: int) -> tuple[str, int]:
        """Where the next rows go, "device", "host" or "file", and how many: all that still fit
        there, at most `most`."""
        for place in ("device", "host"):
            left = getattr(self, place)
            rows = min(most, left // row_bytes)
            if rows:
                setattr(self, place, left - rows * row_bytes)
                return place, rows
        return "file", most


class ClientRows:
    """Rows [width] of up to `clients` clients, stored as float32 or bfloat16."""

    def __init__(
        self,
        name: str,
        clients: int,
        width: int,
        *,
        device: torch.device,
        budget: Budget,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.name, self.clients, self.width = name, clients, width
        self.device, self.dtype = device, dtype
        self._budget = budget
        self._slots: dict[int, int] = {}  # client -> number of its row
        self._chunks: list[Tensor] = []
        self._starts: list[int] = []  # number of each chunk's first row
        self._allocated = 0  # rows
        self._chunk_rows = max(1, min(clients, CHUNK_BYTES // self.row_bytes))
        self.places: list[str] = []  # of the chunks

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    def __contains__(self, client: int) -> bool:
        return client in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    def read(self, client: int, out: Tensor) -> Tensor:
        """Copy the client's row into `out` [width] and return it; zeros where there is none."""
        if client not in self._slots:
            return out.zero_()
        return out.copy_(self._row(self._slots[client]), non_blocking=True)

    def write(self, client: int, row: Tensor) -> Tensor:
        """Keep `row` [width] for the client; returns what is kept, as float32 on the device."""
        if not 0 <= client < self.clients:
            raise ValueError(
                f"client rows {self.name}: client must be 0..{self.clients - 1}, got {client}"
            )
        slot = self._slots.get(client, len(self._slots))
        if slot == self._allocated:
            self._add_chunk()
        self._slots[client] = slot
        kept = row.to(self.dtype)
        self._row(slot).copy_(kept, non_blocking=True)
        return kept.to(torch.float32)

    def _row(self, slot: int) -> Tensor:
        number = bisect_right(self._starts, slot) - 1
        return self._chunks[number][slot - self._starts[number]]

    def _add_chunk(self) -> None:
        place, rows = self._budget.take(self.row_bytes, self._chunk_rows)
        self._chunks.append(self._new_chunk(place, (rows, self.width)))
        self.places.append(place)
        self._starts.append(self._allocated)
        self._allocated += rows

    def _new_chunk(self, place: str, shape: tuple[int, int]) -> Tensor:
        if place == "device":
            return torch.empty(shape, dtype=self.dtype, device=self.device)
        if place == "host":
            return torch.empty(shape, dtype=self.dtype, pin_memory=self.device.type == "cuda")
        mapped = self._map_file(shape[0] * self.row_bytes)
        return torch.from_numpy(mapped).view(self.dtype).view(shape)

    def _map_file(self, size: int) -> np.memmap:
        """`size` bytes of a file without a name: it is gone with the process, however that ends."""
        folder = self._budget.folder or Path(tempfile.gettempdir())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                reserve(file, size)
                return np.memmap(file, np.uint8, "r+", shape=size)
        except OSError as error:
            raise NoRoom(
                error.errno,
                f"client rows {self.name}: cannot reserve {in_bytes(size)} for the state of clients"
                f" in {folder}: {error.strerror or error}",
            ) from error

    def state(self) -> dict[str, Tensor]:
        """`ids` int64 [n] in the order of writing, and the chunks `rows.0`, `rows.1`, …"""
        tensors = {"ids": torch.tensor(list(self._slots), dtype=torch.int64)}
        for number, (chunk, start) in enumerate(zip(self._chunks, self._starts, strict=True)):
            if start < len(self):  # after load_state, fewer chunks may be in use
                tensors[f"rows.{number}"] = chunk[: len(self) - start]
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state` gave; the size of the chunks may have been another."""
        self._slots.clear()
        for client, row in zip(tensors["ids"].tolist(), _rows_of(tensors), strict=True):
            self.write(client, row)


class RankedRows(ClientRows):
    """The same over several ranks: client i's row lies on its owner, rank i mod size.

    `read`, `write`, `state` and `load_state` are called by all ranks alike, in the same order.
    While clients train, each on one rank, `lent` brings the rows to where they are needed.
    """

    def __init__(self, name: str, clients: int, width: int, **options: Any) -> None:
        super().__init__(name, clients, width, **options)
        own = math.ceil(clients / ranks.size())
        self._chunk_rows = max(1, min(own, CHUNK_BYTES // self.row_bytes))
        self._known: dict[int, None] = {}  # clients with a row on any rank, in the order of writing
        self._lent: dict[int, Tensor] | None = None  # while clients train: theirs

    def __contains__(self, client: int) -> bool:
        return client in self._known

    def __len__(self) -> int:
        return len(self._known)

    def read(self, client: int, out: Tensor) -> Tensor:
        if client not in self._known:
            return out.zero_()
        if self._lent is None:
            row = self._own(client)
            ranks.share((row, owner_of(client)))
        elif client in self._lent:
            row = self._lent[client]
        else:
            raise ValueError(
                f"client rows {self.name}: the row of client {client} was asked for while another "
                "client trains; with several ranks a client reads its own row alone"
            )
        return out.copy_(row)

    def write(self, client: int, row: Tensor) -> Tensor:
        self._known.setdefault(client)
        if owner_of(client) == ranks.rank():
            return super().write(client, row)
        return row.to(self.dtype).to(torch.float32)

    def _own(self, client: int) -> Tensor:
        """The row on its owner; memory for it elsewhere."""
        row = torch.empty(self.width, dtype=self.dtype, device=self.device)
        if owner_of(client) == ranks.rank():
            row.copy_(self._row(self._slots[client]))
        return row

    @contextmanager
    def lent(self, clients: Sequence[int], trainers: Sequence[int]) -> Iterator[None]:
        """Inside, client i of `clients` trains on rank `trainers[i]`, which can read its row."""
        self._lent = {}
        for client, trainer in zip(clients, trainers, strict=True):
            if client in self._known and ranks.rank() in (trainer, owner_of(client)):
                row = self._own(client)
                ranks.hand(row, owner_of(client), trainer)
                if trainer == ranks.rank():
                    self._lent[client] = row
        try:
            yield
        finally:
            self._lent = None

    def state(self) -> dict[str, Tensor]:
        """That of all ranks, on rank 0; of the rows elsewhere nothing."""
        ids = torch.tensor(list(self._known), dtype=torch.int64)
        # Together they may be more than one rank has memory for: a file takes the rest.
        budget = replace(self._budget, device=0)
        whole = ClientRows(
            self.name, self.clients, self.width, device=CPU, budget=budget, dtype=self.dtype
        )
        for client in self._known:
            if ranks.rank() in (0, owner_of(client)):
                row = self._own(client)
                ranks.hand(row, owner_of(client), 0)
                if ranks.is_first():
                    whole.write(client, row)
        return whole.state() | {"ids": ids}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state` gave on rank 0, where alone it is looked at."""
        self._slots.clear()
        self._known = dict.fromkeys(ranks.broadcast(tensors["ids"].tolist() if tensors else []))
        rows = _rows_of(tensors) if tensors else iter(())
        for client in self._known:
            row = torch.empty(self.width, dtype=self.dtype, device=self.device)
            if ranks.is_first():
                row.copy_(next(rows))
            ranks.hand(row, 0, owner_of(client))
            if owner_of(client) == ranks.rank():
                super().write(client, row)


def owner_of(client: int) -> int:
    """The rank that stores what a client keeps."""
    return client % ranks.size()


def _rows_of(tensors: dict[str, Tensor]) -> Iterator[Tensor]:
    for number in range(len(tensors) - 1):
        yield from tensors[f"rows.{number}"]


@contextmanager
def lent(
    all_rows: Iterable[ClientRows], clients: Sequence[int], trainers: Sequence[int]
) -> Iterator[None]:
    """Every client's rows are inside where it trains; with one rank they are anyway."""
    with ExitStack() as stack:
        for rows in all_rows:
            if isinstance(rows, RankedRows):
                stack.enter_context(rows.lent(clients, trainers))
        yield
