"""Stage 5: a federation -> one vector a client, β_i = [β_i^f; β_i^l].

    β_i^f = mean_j u_ij     over the client's training samples, DSA-IGN in eval mode    [M, 512]
    β_i^l = mean_j L_ij                                                                 [M, 512]
    A_ij = ( cos(β_i^f, β_j^f) + cos(β_i^l, β_j^l) ) / 2

Naive indices for the ablations have one part v with A_ij = cos(v_i, v_j): the mean of D
(feature-average), or the means of D by class, zero for an absent class (class-prototypes). The
index of local model weights changes while a model trains, so it is not one of these.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from c2v_sim.data.federation import Federation, limited_ids
from c2v_sim.data.partition import Partition
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.dsa_ign import LOSSES, WIDTH, IndexNetwork
from c2v_sim.index.encoders.embed import Embeddings, embed_dataset, given_embeddings
from c2v_sim.index.quality import quality
from c2v_sim.index.training import Pairs, Training, train_network
from c2v_sim.ops.index_losses import cosines_torch
from c2v_sim.system import tensor_file
from c2v_sim.system.files import write_atomically
from c2v_sim.system.machine import choose_device, intra_op_threads

FORMAT = 1
EVAL_BATCH = 512
PARTS = ("feature", "label")


@dataclass(frozen=True, eq=False)
class ClientIndex:
    """The clients' vectors and where they came from; a part with no columns is absent."""

    feature: Tensor  # float32 [M, D_f], not normalised
    label: Tensor  # float32 [M, D_l]
    sizes: Tensor  # int64 [M], training samples
    label_counts: Tensor  # int64 [M, K], of the training samples
    domains: Tensor | None  # int64 [M], where clients follow domains
    provenance: dict[str, Any]  # plain data: data, partition, settings, losses, quality

    def __post_init__(self) -> None:
        clients = len(self.sizes)
        for name, dims in (("feature", 2), ("label", 2), ("label_counts", 2), ("domains", 1)):
            tensor = getattr(self, name)
            if tensor is not None and (tensor.dim() != dims or len(tensor) != clients):
                expected = f"[{clients}, …]" if dims == 2 else f"[{clients}]"
                raise ValueError(
                    f"ClientIndex: {name} must be {expected}, got {tuple(tensor.shape)}"
                )
        if not (self.feature.isfinite().all() and self.label.isfinite().all()):
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

    def only(self, part: str) -> "ClientIndex":
        """The index with one part alone, for the ablations: `feature` or `label`."""
        if part not in self.parts:
            raise ValueError(f"ClientIndex: part must be one of {self.parts}, got {part!r}")
        (other,) = set(PARTS) - {part}
        provenance = self.provenance | {"part": part}
        return replace(self, provenance=provenance, **{other: getattr(self, other)[:, :0]})

    def similarity(self, part: str | None = None) -> Tensor:  # [M, M]
        """A, or the cosines of one part. For pictures: training takes ops.client_scores."""
        if part is not None and part not in self.parts:
            raise ValueError(f"ClientIndex: part must be one of {self.parts}, got {part!r}")
        names = self.parts if part is None else (part,)
        tensors = [getattr(self, name) for name in names]
        return torch.stack([cosines_torch(t, t) for t in tensors]).mean(0)

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
        differing = [name for name in ("data", "partition") if now[name] != made[name]]
        if differing and not allow_other:
            shown = "; ".join(
                f"{n} {made[n]['name']} ({made[n]['sha256'][:12]}) there, "
                f"{now[n]['name']} ({now[n]['sha256'][:12]}) here"
                for n in differing
            )
            raise ValueError(
                f"the index was made for another federation: {shown}. Build the index anew with "
                "the same data and partition settings, or override with allow_other=True"
            )

    def plot_similarity(self, path: Path | str) -> list[Path]:
        """Heat maps of A and β^f over clients: <path>.png and <path>.svg."""
        from c2v_sim.index import plots as index_plots  # it imports this module

        return index_plots.plot_similarity(self, Path(path))

    def plot_domains(self, path: Path | str) -> list[Path]:
        """Mean cosine of β^f between domains: <path>.png and <path>.svg."""
        from c2v_sim.index import plots as index_plots

        return index_plots.plot_domains(self, Path(path))

    def plot_projection(self, path: Path | str) -> list[Path]:
        """The clients in two dimensions: <path>.png and <path>.svg."""
        from c2v_sim.index import plots as index_plots

        return index_plots.plot_projection(self, Path(path))

    def save(self, path: Path | str) -> None:
        """One safetensors file, whole or absent."""
        about = {
            "c2v_sim": "client index",
            "format": str(FORMAT),
            "provenance": json.dumps(self.provenance),
            "sha256": tensor_file.checksum(self._tensors()),
        }
        tensors = self._tensors()
        write_atomically(Path(path), lambda p: save_file(tensors, str(p), metadata=about))

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
            with safe_open(str(path), framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ValueError(f"the index {path} cannot be read: {error}") from error
        if about.get("c2v_sim") != "client index" or about.get("format") != str(FORMAT):
            raise ValueError(f"{path} is not a client index of format {FORMAT}")
        if tensor_file.checksum(tensors) != about["sha256"]:
            raise ValueError(f"the index {path} is damaged: its checksum differs; build it anew")
        domains = tensors.pop("domains", None)
        index = cls(**tensors, domains=domains, provenance=json.loads(about["provenance"]))
        if federation is not None:
            index.check(federation, allow_other=allow_other)
        return index


def federation_facts(federation: Federation) -> dict[str, dict[str, str]]:
    """Name and hash of data and partition: what an index belongs to."""
    dataset, partition = federation.dataset, federation.partition
    return {
        "data": {"name": dataset.name, "sha256": dataset.sha256},
        "partition": {"name": partition.convention, "sha256": partition.sha256},
    }


def build_index(
    federation: Federation,
    config: IndexConfig | None = None,
    *,
    embeddings: Embeddings | tuple[Tensor, Tensor] | None = None,
    cache_dir: Path | None = None,
    checkpoint: Path | None = None,
    on_point: Callable[[Training], None] = lambda training: None,
    stop: threading.Event | None = None,
) -> ClientIndex:
    """The client index of `federation`.

    embeddings: in place of those by `config.encoder`: Embeddings, or images [N, 512] and labels
    [K, 512]. cache_dir: of embeddings. checkpoint: a file from which an interrupted training goes
    on. on_point: called after every epoch (global) or round (federated) with the losses so far.
    stop: once set, the step in flight is finished, the checkpoint written and Interrupted raised.
    """
    config, start = config or IndexConfig(), time.perf_counter()
    fresh = checkpoint is None or not checkpoint.exists()
    dataset, partition = federation.dataset, federation.partition
    chosen = federation.limited(config.max_samples, config.seed)
    used, y = chosen.partition, chosen.dataset.y_train
    if embeddings is None:
        embeddings = embed_dataset(chosen.dataset, config.make_encoder(), cache_dir=cache_dir)
    elif not isinstance(embeddings, Embeddings):
        embeddings = given_embeddings(dataset, *embeddings)
    images = embeddings.images
    if chosen is not federation and len(images) == len(dataset.y_train):  # given for all samples
        kept = limited_ids(partition, config.max_samples, config.seed)
        images = images[torch.from_numpy(np.concatenate(kept))]
    pairs = Pairs(images, embeddings.labels, y, choose_device(config.device))
    counts = federation.label_counts
    curve: list[list[float]] = []
    if config.index == "dsa-ign":
        identity = f"{dataset.sha256} {partition.sha256} {embeddings.sha256}"
        network, curve = train_network(
            pairs,
            used,
            config,
            checkpoint=checkpoint,
            identity=identity,
            on_point=on_point,
            stop=stop,
        )
        feature = feature_index(network, pairs, used, config)
        label = (counts.double() @ embeddings.labels.double()).float() / counts.sum(1)[:, None]
    else:
        feature = NAIVE[config.index](images, used, y, chosen.label_counts)
        label = torch.zeros(partition.clients, 0)
    provenance = {
        "federation": federation_facts(federation),
        "encoder": embeddings.encoder,
        "embeddings_sha256": embeddings.sha256,
        "settings": json.loads(json.dumps(asdict(config))),  # as a file gives it back
        "losses": list(LOSSES),
        "curve": curve,
        "class_names": list(dataset.class_names),
        "domain_names": list(dataset.domain_names),
    }
    sizes = torch.from_numpy(partition.sizes)
    domains = None if partition.domains is None else torch.tensor(partition.domains)
    index = ClientIndex(feature, label, sizes, counts, domains, provenance)
    control = feature_average(images, used)
    provenance["quality"] = quality(index.feature, index.label, counts, domains, control)
    # Of a resumed training only the last part was seen, which is no answer.
    provenance["seconds"] = round(time.perf_counter() - start, 2) if fresh else None
    return index


def feature_index(
    network: IndexNetwork, pairs: Pairs, partition: Partition, config: IndexConfig
) -> Tensor:  # [M, 512]
    """β^f: the mean of u over each client's training samples."""
    out = torch.zeros(partition.clients, WIDTH)
    with torch.inference_mode(), intra_op_threads(config.threads):
        for i, ids in enumerate(partition.train):
            total = torch.zeros(WIDTH, dtype=torch.float64, device=pairs.device)
            for batch in torch.from_numpy(ids).to(pairs.device).split(EVAL_BATCH):
                u = network.encode(pairs.images[batch])[:, WIDTH:]
                total += u.sum(0, dtype=torch.float64)
            out[i] = total / len(ids)
    return out


def feature_average(images: Tensor, partition: Partition, *_: Tensor) -> Tensor:  # [M, 512]
    """v_i = mean_j D_ij."""
    means = [images[torch.from_numpy(ids)].double().mean(0) for ids in partition.train]
    return torch.stack(means).float()


def class_prototypes(
    images: Tensor, partition: Partition, y: Tensor, counts: Tensor
) -> Tensor:  # [M, K · 512]
    """v_i = the means of D over each class, side by side; zeros for a class the client lacks."""
    rows = []
    for ids, count in zip(partition.train, counts, strict=True):
        own = torch.from_numpy(ids)
        sums = torch.zeros(len(count), images.shape[1], dtype=torch.float64)
        sums.index_add_(0, y[own], images[own].double())
        rows.append((sums / count.clamp(min=1)[:, None]).flatten())
    return torch.stack(rows).float()


NAIVE: dict[str, Callable[..., Tensor]] = {
    "feature-average": feature_average,
    "class-prototypes": class_prototypes,
}
