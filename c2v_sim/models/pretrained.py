"""Weights from a file: a state dict (.pth, .safetensors, .pkl) → into a model, all or nothing.

Key names are the model's own; ResNet18 and MobileNetV2 have torchvision's. Where the file has
another number of classes, the classifier keeps its new weights and everything else is loaded.
"""

import hashlib
import pickle
import struct
import traceback
import zipfile
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, _weights_only_unpickler, nn

from c2v_sim.models.plain_pickle import read_plain_pickle
from c2v_sim.system.text import in_bytes

SHOWN = 10  # keys of a kind that an error names
# What torch and safetensors raise on files that are damaged or something else.
DAMAGED = (
    *(pickle.UnpicklingError, safetensors.SafetensorError, struct.error, EOFError),
    *(RuntimeError, LookupError, ValueError, AssertionError, zipfile.BadZipFile),
)
# The same, where torch calls what it allows with whatever arguments the file has; else mistakes.
OF_ARGUMENTS = (TypeError, AttributeError, OverflowError)


@dataclass(frozen=True)
class Pretrained:
    """What a model started from, for the record of a run."""

    file: str  # name without folder
    sha256: str
    classifier: str  # "loaded", or why it is new
    source: str = "a file"  # or the address, or the package, that it was fetched from


def load_pretrained(model: nn.Module, path: str | Path, source: str = "a file") -> Pretrained:
    """Load the state dict at `path` into `model`; ValueError lists the keys that do not match."""
    path = Path(path).expanduser()
    with torch.no_grad():
        given, own = read_state_dict(path), model.state_dict()
    head = _classifier_keys(model)
    classifier = "loaded"
    if all(key in given and _same_but_classes(given[key], own[key]) for key in head):
        counts = [len(tensors[head[0]]) for tensors in (given, own)]
        if counts[0] != counts[1]:
            classifier = f"new: {path.name} has {counts[0]} classes, the model {counts[1]}"
            given = {key: tensor for key, tensor in given.items() if key not in head}
            given |= {key: own[key] for key in head}
    _check(path, given, own)
    model.load_state_dict(given, strict=False)  # batch counts may be missing, see _check
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Pretrained(path.name, digest, classifier, source)


def _while_unpickling(error: Exception) -> bool:
    """Whether an error came out of torch's reading of a pickle."""
    places = traceback.extract_tb(error.__traceback__)
    return any(place.filename == _weights_only_unpickler.__file__ for place in places)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of a file; nothing in it is executed."""
    try:
        if path.suffix == ".safetensors":
            path.open("rb").close()  # says why it cannot be; safetensors says: no such file
            return load_file(path)
        if path.suffix == ".pkl":
            state = read_plain_pickle(path.read_bytes())
        else:
            _check_sizes(path)
            state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"pretrained: cannot read {path}: {error.strerror or error}") from error
    except (*DAMAGED, *OF_ARGUMENTS) as error:
        if "allocate memory" in str(error):  # torch's RuntimeError where Python has MemoryError
            raise
        if isinstance(error, OF_ARGUMENTS) and not _while_unpickling(error):
            raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"pretrained: {path} is not a .pth, .safetensors or .pkl file of tensors "
            f"(truncated, damaged, or a whole pickled model?): {first}"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(
            f"pretrained: {path} must hold a state dict, name → tensor; save model.state_dict()"
        )
    return dict(state)


def _check_sizes(path: Path) -> None:
    """Refuse an archive that would become larger than its file: torch.save compresses nothing."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > path.stat().st_size:
            raise ValueError(f"its archive claims {in_bytes(size)}")


def _classifier_keys(model: nn.Module) -> list[str]:
    head = {id(p) for p in model.classifier.parameters()}  # type: ignore[union-attr]
    return [name for name, p in model.named_parameters() if id(p) in head]


def _same_but_classes(a: Tensor, b: Tensor) -> bool:
    return a.dim() == b.dim() and a.shape[1:] == b.shape[1:]


def _check(path: Path, given: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    # Files of old versions of torch do not count batches; the count starts at 0 then.
    missing = [k for k in own if k not in given and not k.endswith("num_batches_tracked")]
    problems = {
        "missing": missing,
        "unexpected": [k for k in given if k not in own],
        "of another shape": [
            f"{k} {tuple(given[k].shape)} instead of {tuple(own[k].shape)}"
            for k in given
            if k in own and given[k].shape != own[k].shape
        ],
    }
    if any(problems.values()):
        lines = [f"  {kind} ({len(k)}): {_some(k)}" for kind, k in problems.items() if k]
        raise ValueError(f"pretrained: {path} does not fit the model:\n" + "\n".join(lines))


def _some(keys: list[str]) -> str:
    more = f", and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + more
