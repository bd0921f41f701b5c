"""A batch of CIFAR-10 as it was published, a pickle → images and labels; nothing is executed."""

import io
import pickle

import numpy as np

from c2v_sim.models.plain_pickle import check_claims

Batch = tuple[np.ndarray, np.ndarray]  # images uint8 [n, 3072] channel by channel, labels [n]


class BatchUnpickler(pickle.Unpickler):
    """Builds plain containers and NumPy arrays only: a pickle could otherwise run any code.

    An array begins empty, whatever the pickle asks for; its state brings shape and bytes.
    """

    _allowed = {  # noqa: RUF012  (a constant)
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: np.empty(0),
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: np.empty(0),
        ("numpy", "ndarray"): None,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a CIFAR-10 batch")
        return self._allowed[module, name]


def read_pickle(content: bytes) -> Batch:
    """One batch; ValueError where the pickle is damaged or something else."""
    try:
        check_claims(content)
        # Python 2 wrote these files.
        batch = BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
        return np.asarray(batch[b"data"]), np.array(batch[b"labels"], dtype=np.uint8)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # damaged pickles raise nearly every kind
        raise ValueError(str(error) or type(error).__name__) from error
