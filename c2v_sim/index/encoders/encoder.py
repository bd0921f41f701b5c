"""What every encoder is, and what several of them need."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from c2v_sim.system.machine import choose_device, intra_op_threads, usable_cores

WIDTH = 512  # of every embedding: what the index network takes
Block = TypeVar("Block")


class Encoder(Protocol):
    """What embeds. An optional `identity: str` names the exact weights; without it no cache."""

    @property
    def name(self) -> str: ...  # as every output prints it
    def embed_images(self, images: Tensor, /) -> Tensor: ...  # uint8 [N, H, W, 3] -> [N, 512]
    def embed_texts(self, texts: list[str], /) -> Tensor: ...  # -> [T, 512]


def check_images(name: str, images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(
            f"{name}: images must be uint8 [N, H, W, 3], got {images.dtype} {tuple(images.shape)}"
        )


def encoder_device(given: str | torch.device | None) -> torch.device:
    """The given device; without one, the GPU where there is one."""
    return choose_device("auto") if given is None else torch.device(given)


def embed_blocks(
    embed: Callable[[Block], Tensor], blocks: Iterable[Block], device: torch.device
) -> Tensor:
    """The rows of all blocks, [N, 512].

    On the CPU one block per thread, with one-thread operators: no bit depends on the number of
    cores.
    """
    workers = usable_cores() if device.type == "cpu" else 1
    with intra_op_threads(1), ThreadPoolExecutor(workers, "encoder") as threads:
        return torch.cat([torch.empty(0, WIDTH), *threads.map(embed, blocks)])
