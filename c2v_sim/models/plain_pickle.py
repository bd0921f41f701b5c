"""A pickle of tensors that was not written by torch.save → what it holds; nothing is executed.

Such a file names three things: OrderedDict, the function that puts a tensor together, and the
one that reads a storage out of bytes. These, in forms that only build tensors, are all it gets.
"""

import io
import pickle
import pickletools
from collections import OrderedDict

import torch
from torch import Tensor


def _rebuilt(*arguments: object) -> Tensor:
    return torch._utils._rebuild_tensor_v2(*arguments)


def _storage(content: bytes) -> object:
    """torch's own function would load these bytes freely."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


class TensorUnpickler(pickle.Unpickler):
    """Builds plain containers and tensors only: a pickle could otherwise run any code."""

    _allowed = {  # noqa: RUF012  (a constant)
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuilt,
        ("torch.storage", "_load_from_bytes"): _storage,
    }

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a file of tensors")
        return self._allowed[module, name]


def check_claims(content: bytes) -> None:
    """Refuse a pickle that asks for more memory than it has bytes (lengths pickletools checks)."""
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name.endswith("PUT") and (argument or 0) > len(content):
            raise ValueError(f"a memo of {argument} entries")


def read_plain_pickle(content: bytes) -> object:
    """What the pickle holds; ValueError where it is damaged or holds anything but tensors."""
    try:
        check_claims(content)
        return TensorUnpickler(io.BytesIO(content)).load()
    except (OSError, MemoryError):
        raise
    except Exception as error:  # damaged pickles raise nearly every kind
        raise ValueError(str(error) or type(error).__name__) from error
