"""Stage 3: a data set -> one unit vector for every training sample and every class, cached.

Enters: a `Dataset` and an encoder: a name from ENCODERS, any object with `embed_images` and
`embed_texts`, or the two tensors themselves. Leaves: `Embeddings`, images [N, 512] in the order of
x_train and labels [K, 512] in the order of class_names, float32, L2-normalised, on the CPU.

The cache file is named after a hash of all that decides its bits: data, encoder with its weights,
prompts. It is made in parts of 2,048 samples that stay on disk when the work is interrupted.
"""

import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from c2v_sim.data.load import Dataset, default_data_dir
from c2v_sim.index.encoders import ENCODERS, make_encoder
from c2v_sim.index.encoders.encoder import WIDTH, Encoder
from c2v_sim.index.encoders.prompts import Samples, labels_to_embed, samples_to_embed
from c2v_sim.system import ranks, tensor_file

PART = 2048
FORMAT = 1  # of the cache; part of its key
SECONDS = "seconds"  # in a file of the cache: what its samples took


@dataclass(frozen=True)
class Embeddings:
    images: Tensor  # float32 [N, 512], unit rows, one per training sample
    labels: Tensor  # float32 [K, 512], unit rows, one per class
    encoder: str  # its name, as every output must print it
    data_sha256: str  # of the Dataset
    sha256: str  # of images and labels
    seconds: float | None = None  # it took to make them, also where they are cached; None: unknown


def embed_dataset(
    dataset: Dataset,
    encoder: str | Encoder | tuple[Tensor, Tensor] = "builtin",
    *,
    sample_texts: Sequence[str] | None = None,
    label_texts: Sequence[str] | None = None,
    cache_dir: Path | None = None,
    cache: bool = True,
    batch_size: int = 512,
    progress: bool = True,
) -> Embeddings:
    """Embed the training samples and the classes of a data set, or read them from the cache.

    encoder: a name, an object as `Encoder` describes, or (images, labels) already embedded.
    sample_texts: one per training sample, in place of its image (default for windows of a text:
        `next_character_prompt`).
    label_texts: one per class (default: `label_prompt` of the class names, or `character_prompt`).
    cache_dir: default "embeddings" in the data folder. cache=False neither reads nor writes.
    batch_size: samples in one call of the encoder.
    """
    if isinstance(encoder, tuple):
        return given_embeddings(dataset, *encoder)
    if batch_size < 1:
        raise ValueError(f"embed_dataset: batch_size must be at least 1, got {batch_size}")
    samples = samples_to_embed(dataset, sample_texts)
    labels = labels_to_embed(dataset, label_texts)
    encoder = make_encoder(encoder) if isinstance(encoder, str) else encoder
    _check_encoder(encoder)
    path = _cache_path(dataset, encoder, sample_texts, labels, cache_dir) if cache else None
    expected = {"images": (len(samples), WIDTH), "labels": (len(labels), WIDTH)}
    tensors = _read(path, expected)
    missing = ranks.any_of(tensors is None)  # the caches of several hosts may differ
    if missing or tensors is None:
        work = _Work(encoder, samples, batch_size, progress, path and path.with_suffix(".parts"))
        tensors = {"images": work.run(), "labels": _checked(encoder.embed_texts(labels), labels)}
        tensors[SECONDS] = torch.tensor(work.seconds, dtype=torch.float64)
        if path and work.parts:
            _store(path, tensors)
            shutil.rmtree(work.parts, ignore_errors=True)
    return _embeddings(dataset, tensors, encoder.name)


def is_cached(dataset: Dataset, encoder: Encoder, cache_dir: Path | None = None) -> bool:
    """Whether `embed_dataset` would find these embeddings in the cache."""
    path = _cache_path(dataset, encoder, None, labels_to_embed(dataset), cache_dir)
    return path is not None and path.exists()


def given_embeddings(
    dataset: Dataset, images: Tensor, labels: Tensor, name: str = "given"
) -> Embeddings:
    """Embeddings made elsewhere, checked and normalised: images [N, 512], labels [K, 512]."""
    tensors = {
        "images": _checked(images, dataset.y_train, "images"),
        "labels": _checked(labels, dataset.class_names, "labels"),
    }
    return _embeddings(dataset, tensors, name)


def _embeddings(dataset: Dataset, tensors: dict[str, Tensor], name: str) -> Embeddings:
    seconds = tensors.pop(SECONDS, None)
    return Embeddings(
        **tensors,
        encoder=name,
        data_sha256=dataset.sha256,
        sha256=tensor_file.checksum(tensors),
        seconds=None if seconds is None else float(seconds),
    )


# ---- checks ---------------------------------------------------------------------------------


def _check_encoder(encoder: object) -> None:
    missing = [m for m in ("name", "embed_images", "embed_texts") if not hasattr(encoder, m)]
    if missing:
        raise ValueError(
            f"embed_dataset: the encoder {encoder!r} has no {' and no '.join(missing)}; it needs "
            f"`name`, `embed_images` and `embed_texts`, or be one of {', '.join(ENCODERS)}"
        )


def _checked(rows: Tensor, samples: Sequence | Tensor, what: str = "the result") -> Tensor:
    """float32 unit rows on the CPU, or an error that says what is wrong with them."""
    expected = (len(samples), WIDTH)
    if not isinstance(rows, Tensor) or not rows.is_floating_point() or rows.shape != expected:
        got = f"{rows.dtype} {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows)
        raise ValueError(f"embeddings: {what} must be a float tensor {list(expected)}, got {got}")
    rows = rows.detach().float().cpu()
    lengths = rows.norm(dim=1)
    bad = ~torch.isfinite(lengths) | (lengths == 0)
    if bad.any():
        raise ValueError(
            f"embeddings: {what} has {int(bad.sum())} rows that are zero, NaN or infinite, the "
            f"first is row {int(bad.nonzero()[0])}; every row must have a direction"
        )
    # Rows of unit length stay as they are, so that a second pass changes no bit.
    return torch.where((lengths - 1).abs()[:, None] < 1e-5, rows, rows / lengths[:, None])


# ---- cache ----------------------------------------------------------------------------------


def _cache_path(
    dataset: Dataset,
    encoder: Encoder,
    sample_texts: Sequence[str] | None,
    labels: list[str],
    cache_dir: Path | None,
) -> Path | None:
    identity = getattr(encoder, "identity", None)
    if not isinstance(identity, str):
        return None  # nothing tells two versions of this encoder apart
    texts = None if sample_texts is None else _text_hash(sample_texts)
    key = [FORMAT, identity, dataset.sha256, len(dataset.x_train), texts, labels]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9]+", "-", f"{dataset.name} {encoder.name}").strip("-")[:80]
    folder = Path(cache_dir).expanduser() if cache_dir else default_data_dir() / "embeddings"
    return folder / f"{readable}-{digest[:16]}.safetensors"


def _text_hash(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode()
        digest.update(f"{len(data)} ".encode() + data)
    return digest.hexdigest()


def _read(path: Path | None, expected: dict[str, tuple[int, int]]) -> dict[str, Tensor] | None:
    """What a cache file holds, if it is just that, and the seconds that it took."""
    tensors = (tensor_file.read(path) if path else None) or {}
    found = {name: tuple(t.shape) for name, t in tensors.items() if name != SECONDS}
    return tensors if found == expected else None


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensor_file.write(path, tensors)


def _store(path: Path, tensors: dict[str, Tensor]) -> bool:
    """Embeddings that cannot be cached are still good, so failure is only a warning."""
    try:
        try:
            _write(path, tensors)
        except FileNotFoundError:  # another process was done first and removed the parts
            _write(path, tensors)
        return True
    except OSError as error:
        print(
            f"warning: cannot cache embeddings in {path.parent} ({error.strerror or error}); "
            "every run will make them anew (choose another folder with cache_dir)",
            file=sys.stderr,
        )
        return False


@dataclass
class _Work:
    """Embeds the samples part by part; finished parts survive an interruption."""

    encoder: Encoder
    samples: Samples
    batch_size: int
    progress: bool
    parts: Path | None  # folder of the parts, None once it proved unusable
    seconds: float = 0.0  # so far, those of kept parts included

    def run(self) -> Tensor:
        total = len(self.samples)
        images = torch.empty(total, WIDTH)
        with tqdm(
            total=total,
            unit="sample",
            desc=f"embed ({self.encoder.name})",
            disable=None if self.progress else True,  # None: only in a terminal
            dynamic_ncols=True,
        ) as bar:
            parts = [slice(start, min(start + PART, total)) for start in range(0, total, PART)]
            owners = [number % ranks.size() for number in range(len(parts))]
            with ranks.same_fate():
                for part, owner in zip(parts, owners, strict=True):
                    if owner == ranks.rank():
                        images[part] = self._part(part, bar)
        ranks.share(*((images[part], owner) for part, owner in zip(parts, owners, strict=True)))
        return images

    def _part(self, part: slice, bar: tqdm) -> Tensor:
        file = self.parts / f"{part.start:09d}.safetensors" if self.parts else None
        kept = _read(file, {"images": (part.stop - part.start, WIDTH)})
        if kept is not None:
            bar.update(part.stop - part.start)
            self.seconds += float(kept.get(SECONDS, 0.0))
            return kept["images"]
        rows, begin = [], time.perf_counter()
        for start in range(part.start, part.stop, self.batch_size):
            batch = self.samples[start : min(start + self.batch_size, part.stop)]
            rows.append(self._embed(batch))
            bar.update(len(batch))
        done = torch.cat(rows)
        took = time.perf_counter() - begin
        self.seconds += took
        if file and not _store(file, {"images": done, SECONDS: torch.tensor(took)}):
            self.parts = None  # one warning is enough
        return done

    def _embed(self, batch: Tensor | Sequence[str]) -> Tensor:
        if isinstance(batch, Tensor):
            return _checked(self.encoder.embed_images(batch), batch)
        return _checked(self.encoder.embed_texts(list(batch)), batch)
