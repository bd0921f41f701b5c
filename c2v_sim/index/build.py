"""Stage 5: a federation -> its client index. `obtain_index` is how every command gets one.

    β_i^f = mean_j u_ij     over the client's training samples, DSA-IGN in eval mode    [M, 512]
    β_i^l = mean_j L_ij                                                                 [M, 512]

or one of the naive indices (index/naive). The index of local model weights changes while a model
trains, so it is not made here.

An index is cached under a hash of everything that decides its bits: data, partition, embeddings,
settings and device.
"""

import dataclasses
import hashlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from c2v_sim.data.federation import Federation, limited_ids
from c2v_sim.data.load import default_data_dir
from c2v_sim.data.partition import Partition
from c2v_sim.index.checkpoint import Training
from c2v_sim.index.client_index import CACHE, FILE, FORMAT, ClientIndex, federation_facts
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.dsa_ign import LOSSES, IndexNetwork
from c2v_sim.index.encoders.embed import Embeddings, embed_dataset, given_embeddings
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.index.matching import NETWORK
from c2v_sim.index.naive import NAIVE, feature_average
from c2v_sim.index.quality import quality
from c2v_sim.index.training import OnPoint, Pairs, train_network
from c2v_sim.system import ranks
from c2v_sim.system.machine import choose_device, intra_op_threads, usable_cores
from c2v_sim.system.settings import fixed

EVAL_BATCH = 256  # of 512 the attention no longer fits into the cache
# Raised when the same settings come to give other bits: older files in caches are left alone.
RECIPE = 4


def obtain_index(
    federation: Federation,
    config: IndexConfig,
    *,
    file: Path | str = "",
    data_dir: Path | str = "",
    embeddings: Embeddings | None = None,
    checkpoint: Path | None = None,
    on_point: OnPoint = lambda training: None,
    stop: threading.Event | None = None,
) -> ClientIndex:
    """The index of `federation`: the one in `file` if that is named, or else the cached one in
    `data_dir`, or else built there.

    embeddings: those of `index_embeddings`, where they are known already. The other arguments are
    those of `build_index`.
    """
    if file:
        found = ranks.from_first(lambda: ClientIndex.load(file, federation))
        return dataclasses.replace(found, origin=FILE)
    embeddings = embeddings or index_embeddings(federation, config, data_dir)
    path = cache_path(federation, config, embeddings, data_dir)
    cached = ranks.from_first(lambda: _cached(path, federation))
    if cached is not None:
        return dataclasses.replace(cached, origin=CACHE)
    index = build_index(
        federation,
        config,
        embeddings=embeddings,
        checkpoint=checkpoint,
        on_point=on_point,
        stop=stop,
    )
    if ranks.is_first():
        _keep(index, path)
    return index


def _cached(path: Path, federation: Federation) -> ClientIndex | None:
    if os.path.exists(path):
        try:
            return ClientIndex.load(path, federation)
        except ValueError as error:
            print(f"warning: {error}; it is built anew", file=sys.stderr)
    return None


def index_embeddings(
    federation: Federation, config: IndexConfig, data_dir: Path | str = ""
) -> Embeddings:
    """The embeddings of the samples that the index uses, cached in `data_dir`."""
    chosen = federation.limited(config.max_samples, config.seed).dataset
    folder = cache_folder(data_dir) / "embeddings"
    return embed_dataset(chosen, config.make_encoder(), cache_dir=folder)


def cache_folder(data_dir: Path | str) -> Path:
    """`data_dir`; empty: the user's."""
    return Path(data_dir or default_data_dir()).expanduser()


def cache_path(
    federation: Federation, config: IndexConfig, embeddings: Embeddings, data_dir: Path | str
) -> Path:
    """Where the index of these settings is cached."""
    settings = fixed(config) | {"device": choose_device(config.device).type}
    facts = [FORMAT, RECIPE, federation_facts(federation), embeddings.sha256, settings]
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder(data_dir) / "indices" / f"{name}.safetensors"


def _keep(index: ClientIndex, path: Path) -> None:
    """An index that cannot be cached is still good, so failure is only a warning."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        index.save(path, shared=True)
    except OSError as error:
        print(
            f"warning: cannot cache the index in {path.parent} ({error.strerror or error}); every "
            "run will build it anew (choose another folder with --data-dir)",
            file=sys.stderr,
        )


def build_index(
    federation: Federation,
    config: IndexConfig | None = None,
    *,
    embeddings: Embeddings | tuple[Tensor, Tensor] | None = None,
    cache_dir: Path | None = None,
    checkpoint: Path | None = None,
    on_point: OnPoint = lambda training: None,
    stop: threading.Event | None = None,
) -> ClientIndex:
    """The client index of `federation`.

    embeddings: in place of those by `config.encoder`: Embeddings, or images [N, 512] and labels
    [K, 512]. cache_dir: of embeddings. checkpoint: a file from which an interrupted training goes
    on. on_point: called after every epoch (global) or round (federated) with the losses so far.
    stop: once set, the step in flight is finished, the checkpoint written and Interrupted raised.
    """
    config = config or IndexConfig()
    used = federation.limited(config.max_samples, config.seed)
    known = _known_embeddings(federation, used, config, embeddings, cache_dir)
    partition, y = used.partition, used.dataset.y_train
    pairs = Pairs(known.images, known.labels, y, choose_device(config.device))
    counts = federation.label_counts
    training: Training | None = None
    beside: dict[str, Tensor] = {}  # what a client that comes later is matched by
    begin = time.perf_counter()
    if config.index in NAIVE:
        naive, classes = NAIVE[config.index], used.dataset.classes
        budget = {"epsilon": config.epsilon, "delta": config.delta} if naive.private else {}
        vectors = naive.vectors(known.images, partition, y, classes, config.seed, **budget)
        none = torch.zeros(partition.clients, 0)
        feature, label = (vectors, none) if naive.part == "feature" else (none, vectors)
    else:
        identity = f"{federation.dataset.sha256} {federation.partition.sha256} {known.sha256}"
        network, training = train_network(
            pairs,
            partition,
            config,
            checkpoint=checkpoint,
            identity=identity,
            on_point=on_point,
            stop=stop,
        )
        begin = time.perf_counter()
        feature = feature_index(network, pairs, partition)
        label = (counts.double() @ known.labels.double()).float() / counts.sum(1)[:, None]
        beside = {f"{NETWORK}{name}": t.cpu() for name, t in network.state_dict().items()}
        beside["classes"] = known.labels
    stages = {"embed": known.seconds, "train": training.seconds if training else 0.0}
    stages["average"] = time.perf_counter() - begin
    about = _provenance(federation, config, known, training) | seconds_of(stages)
    sizes, domains = torch.from_numpy(federation.partition.sizes), _domains(federation)
    control = feature_average(known.images, partition)
    beside |= {"centre": control.mean(0)} if config.index == "centred-average" else {}
    index = ClientIndex(feature, label, sizes, counts, domains, about, known=beside)
    index.provenance["quality"] = quality(feature, label, counts, domains, control)
    return index


def seconds_of(stages: Mapping[str, float | None]) -> dict[str, object]:
    """For the provenance: the seconds of each stage and of all; None where one is not known.

    Training counts over all interruptions, and embeddings from the cache what they took.
    """
    known = {k: None if v is None or math.isnan(v) else round(v, 2) for k, v in stages.items()}
    values = list(known.values())
    total = None if None in values else round(sum(filter(None, values)), 2)
    return {"seconds": total, "stages": known}


def _known_embeddings(
    federation: Federation,
    used: Federation,
    config: IndexConfig,
    given: Embeddings | tuple[Tensor, Tensor] | None,
    cache_dir: Path | None,
) -> Embeddings:
    """Those of the samples in `used`, taken from the given ones or computed."""
    if given is None:
        return embed_dataset(used.dataset, config.make_encoder(), cache_dir=cache_dir)
    if not isinstance(given, Embeddings):
        given = given_embeddings(federation.dataset, *given)
    if used is federation or len(given.images) != len(federation.dataset.y_train):
        return given
    kept = limited_ids(federation.partition, config.max_samples, config.seed)
    return dataclasses.replace(given, images=given.images[torch.from_numpy(np.concatenate(kept))])


def _domains(federation: Federation) -> Tensor | None:
    domains = federation.partition.domains
    return None if domains is None else torch.tensor(domains)


def _provenance(
    federation: Federation, config: IndexConfig, embeddings: Embeddings, training: Training | None
) -> dict[str, object]:
    return {
        "federation": federation_facts(federation),
        "encoder": embeddings.encoder,
        "embeddings_sha256": embeddings.sha256,
        "settings": json.loads(json.dumps(dataclasses.asdict(config))),  # as a file gives it back
        "losses": list(LOSSES),
        "curve": training.curve if training else [],
        "class_names": list(federation.dataset.class_names),
        "domain_names": list(federation.dataset.domain_names),
    }


def feature_index(network: IndexNetwork, pairs: Pairs, partition: Partition) -> Tensor:  # [M, 512]
    """β^f: the mean of u over each client's training samples.

    On the CPU as many clients at a time as there are cores, each with one-thread operators: no
    bit depends on the number of cores, nor of the ranks that share the clients.
    """

    def mean(ids: np.ndarray) -> Tensor:  # [512]
        total = torch.zeros(WIDTH, dtype=torch.float64, device=pairs.device)
        with torch.inference_mode():
            for batch in torch.from_numpy(ids).to(pairs.device).split(EVAL_BATCH):
                u = network.encode(pairs.images[batch])[:, WIDTH:]
                total += u.sum(0, dtype=torch.float64)
        return (total / len(ids)).float().cpu()

    out, size = torch.zeros(partition.clients, WIDTH), ranks.size()
    mine = partition.train[ranks.rank() :: size]
    cores = max(1, usable_cores() // ranks.local_size())
    workers = cores if pairs.device.type == "cpu" else 1
    with intra_op_threads(1), ThreadPoolExecutor(workers, "average") as threads:
        for i, row in enumerate(threads.map(mean, mine)):
            out[ranks.rank() + i * size] = row
    return ranks.pick(out, [i % size for i in range(partition.clients)])
