"""One vector per client, β_i = [β_i^f; β_i^l], with its provenance: what steers a run.

    A_ij = ( cos(β_i^f, β_j^f) + cos(β_i^l, β_j^l) ) / 2

A naive index has one part v alone: A_ij = cos(v_i, v_j). index/build.py makes an index,
index/plots.py draws it.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from c2v_sim.data.federation import Federation
from c2v_sim.index.matching import Match, match_by, vectors_of
from c2v_sim.ops.index_losses import cosines_torch
from c2v_sim.system import tensor_file
from c2v_sim.system.parse import is_a, parse_json_object
from c2v_sim.system.seeding import CONTROL, rng

FORMAT = 1
BUILT, CACHE, FILE = ORIGINS = ("built", "cache", "file")  # how a process comes by an index
PARTS = ("feature", "label")
KNOWN = "known."  # of the names of what `match` takes, in a file


@dataclass(frozen=True, eq=False)
class ClientIndex:
    """The clients' vectors and where they came from; a part with no columns is absent."""

    feature: Tensor  # float32 [M, D_f], not normalised; where it only steers, bfloat16 will do
    label: Tensor  # float32 [M, D_l]
    sizes: Tensor  # int64 [M], training samples
    label_counts: Tensor  # int64 [M, K], of the training samples
    domains: Tensor | None  # int64 [M], where clients follow domains
    provenance: dict[str, Any]  # plain data: data, partition, settings, losses, quality, seconds
    origin: str = BUILT  # how this process came by it; not saved
    known: dict[str, Tensor] = field(default_factory=dict)  # what else `match` takes

    def __post_init__(self) -> None:
        clients = len(self.sizes)
        for name, dims in (("feature", 2), ("label", 2), ("label_counts", 2), ("domains", 1)):
            tensor = getattr(self, name)
            if tensor is not None and (tensor.dim() != dims or len(tensor) != clients):
                expected = f"[{clients}, …]" if dims == 2 else f"[{clients}]"
                raise ValueError(
                    f"ClientIndex: {name} must be {expected}, got {tuple(tensor.shape)}"
                )
        if not (_finite(self.feature) and _finite(self.label)):
            raise ValueError("ClientIndex: feature and label must be finite")
        if not self.parts:
            raise ValueError("ClientIndex: feature and label have no columns; one must have some")

    @property
    def clients(self) -> int:
        return len(self.sizes)

    @property
    def parts(self) -> tuple[str, ...]:
        """Which of `feature` and `label` this index has."""
        return tuple(name for name in PARTS if getattr(self, name).shape[1] > 0)

    @property
    def quality(self) -> dict[str, float]:
        return self.provenance.get("quality", {})

    @property
    def seconds(self) -> float | None:
        """What it took to make it, embeddings included, whoever did; None: not recorded."""
        return self.provenance.get("seconds")

    @property
    def sha256(self) -> str:
        """Of the vectors and of what they were made of."""
        return tensor_file.checksum(self._tensors())

    def only(self, part: str) -> "ClientIndex":
        """The index with one part alone, for the ablations: `feature` or `label`."""
        if part not in self.parts:
            raise ValueError(f"ClientIndex: part must be one of {self.parts}, got {part!r}")
        (other,) = set(PARTS) - {part}
        provenance = self.provenance | {"part": part}
        return replace(self, provenance=provenance, **{other: getattr(self, other)[:, :0]})

    def shuffled(self, seed: int) -> "ClientIndex":
        """A control: the vectors are dealt to the clients anew, at random."""
        order = torch.from_numpy(rng(seed, CONTROL).permutation(self.clients))
        provenance = self.provenance | {"shuffled": seed}
        parts = {name: getattr(self, name)[order] for name in PARTS}
        return replace(self, provenance=provenance, **parts)

    def similarity(self, part: str | None = None) -> Tensor:  # [M, M]
        """A, or the cosines of one part. For pictures: training takes ops.client_scores."""
        if part is not None and part not in self.parts:
            raise ValueError(f"ClientIndex: part must be one of {self.parts}, got {part!r}")
        names = self.parts if part is None else (part,)
        tensors = [getattr(self, name) for name in names]
        return torch.stack([cosines_torch(t, t) for t in tensors]).mean(0)

    def match(
        self,
        embeddings: Tensor,  # [n, 512], of its samples
        labels: Tensor | None = None,  # [n], their classes; None: not known
        *,
        clusters: Tensor | None = None,  # int64 [M], of the clients of this index
        temperature: float = 0.1,
    ) -> Match:
        """A client that was not there: how alike it is to each client, without training."""
        facts = self.provenance.get("settings", {})
        classes = self.label_counts.shape[1]
        counts = None if labels is None else torch.bincount(labels, minlength=classes)
        own = vectors_of(facts.get("index", ""), facts, self.known, embeddings, counts)
        parts = [name for name in self.parts if name in own]
        if not parts:
            raise ValueError("match: the new client's vector has none of the parts of this index")
        cosines = [cosines_torch(getattr(self, n), own[n][None])[:, 0].double() for n in parts]
        return match_by(torch.stack(cosines).mean(0), temperature, clusters)

    def check(self, federation: Federation, *, allow_other: bool = False) -> None:
        """Raise ValueError unless this index was made for `federation` (data and partition).

        `allow_other` accepts another one with the same number of clients.
        """
        now, made = federation_facts(federation), self.provenance["federation"]
        if federation.partition.clients != self.clients:
            raise ValueError(
                f"the index is of {self.clients} clients, the federation has "
                f"{federation.partition.clients}"
            )
        differing = [name for name in ("data", "partition") if now[name] != made.get(name)]
        if differing and not allow_other:
            shown = "; ".join(
                f"{n} {_named(made.get(n, {}))} there, {_named(now[n])} here" for n in differing
            )
            raise ValueError(
                f"the index was made for another federation: {shown}. Build the index anew with "
                "the same data and partition settings, or override with allow_other=True"
            )

    def save(self, path: Path | str, *, shared: bool = False) -> None:
        """One safetensors file, whole or absent; OSError where it cannot be written.

        shared: other processes may write the same file at the same time.
        """
        about = {
            "c2v_sim": "client index",
            "format": str(FORMAT),
            "provenance": json.dumps(self.provenance),
        }
        known = {f"{KNOWN}{name}": t.cpu().contiguous() for name, t in self.known.items()}
        tensors = self._tensors() | known
        about["sha256"] = tensor_file.checksum(tensors)
        tensor_file.save(Path(path), tensors, about, shared=shared)

    def _tensors(self) -> dict[str, Tensor]:
        names = ("feature", "label", "sizes", "label_counts", "domains")
        tensors = {name: getattr(self, name) for name in names}
        return {name: t.cpu().contiguous() for name, t in tensors.items() if t is not None}

    @classmethod
    def load(
        cls,
        path: Path | str,
        federation: Federation | None = None,
        *,
        allow_other: bool = False,
    ) -> "ClientIndex":
        """Read a saved index; with a `federation`, `check` that it was made for it."""
        try:
            with tensor_file.opened(path) as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ValueError(f"the index {path} cannot be read: {error}") from error
        if about.get("c2v_sim") != "client index" or about.get("format") != str(FORMAT):
            raise ValueError(f"{path} is not a client index of format {FORMAT}")
        if tensor_file.checksum(tensors) != about.get("sha256"):
            raise ValueError(f"the index {path} is damaged: its checksum differs; build it anew")
        domains = tensors.pop("domains", None)
        beside = [name for name in tensors if name.startswith(KNOWN)]
        known = {name.removeprefix(KNOWN): tensors.pop(name) for name in beside}
        try:
            about_it = _provenance(about["provenance"])
            index = cls(**tensors, domains=domains, provenance=about_it, known=known)
        except (KeyError, TypeError, ValueError) as error:  # parts that are missing or misshapen
            raise ValueError(f"the index {path} is damaged: {error}; build it anew") from error
        if federation is not None:
            try:
                index.check(federation, allow_other=allow_other)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        return index


def _finite(values: Tensor) -> bool:
    """Whether all are; by the extremes, which take no memory beside an index of gigabytes."""
    return not values.numel() or all(bool(v.isfinite()) for v in torch.aminmax(values))


def _provenance(text: str) -> dict[str, Any]:
    """What an index's file says of its making; ValueError where a part that is needed is not so."""
    facts = parse_json_object(text)
    if not is_a(facts.get("federation"), dict[str, dict[str, str]]):
        raise ValueError("it does not say for which federation it was made")
    if not is_a(facts.get("quality", {}), dict[str, float | None]):
        raise ValueError("its quality must be numbers")
    return facts


def _named(facts: dict[str, str]) -> str:
    return f"{facts.get('name')} ({facts.get('sha256', '')[:12]})"


def federation_facts(federation: Federation) -> dict[str, dict[str, str]]:
    """Name and hash of data and partition: what an index belongs to."""
    dataset, partition = federation.dataset, federation.partition
    return {
        "data": {"name": dataset.name, "sha256": dataset.sha256},
        "partition": {"name": partition.convention, "sha256": partition.sha256},
    }
