"""State that every client keeps between its participations: one row per client, made when needed.

    rows = ClientRows("h", clients=100, width=878538, device=device, budget=Budget(...))
    rows.write(client, row);  rows.read(client, out)        # zeros for a client never written

Rows lie in chunks. A chunk goes to the device while the budget lasts, then to host memory (pinned,
for a GPU), then to a memory-mapped file. Where a row lies never shows in its value.
"""

import tempfile
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

CHUNK_BYTES = 64 << 20


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
        slot = self._slots.setdefault(client, len(self._slots))
        if slot == self._allocated:
            self._add_chunk()
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
        if self._budget.folder is not None:
            self._budget.folder.mkdir(parents=True, exist_ok=True)
        # The file has no name: it is gone with the process, however that ends.
        with tempfile.TemporaryFile(dir=self._budget.folder) as file:
            mapped = np.memmap(file, np.uint8, "w+", shape=shape[0] * self.row_bytes)
        return torch.from_numpy(mapped).view(self.dtype).view(shape)

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
        ids = iter(tensors["ids"].tolist())
        for number in range(len(tensors) - 1):
            for row in tensors[f"rows.{number}"]:
                self.write(next(ids), row)
