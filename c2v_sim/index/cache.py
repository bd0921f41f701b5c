"""The client index that a run needs: read from where it was built before, or built and kept.

The file's name is a hash of everything that decides its bits: data, partition, embeddings,
settings and device. A damaged file is built anew.
"""

import hashlib
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from c2v_sim.data.federation import Federation
from c2v_sim.data.load import default_data_dir
from c2v_sim.index.client_index import FORMAT, ClientIndex, build_index, federation_facts
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.encoders.embed import Embeddings, embed_dataset
from c2v_sim.index.training import Training
from c2v_sim.system.machine import choose_device
from c2v_sim.system.settings import fixed


def index_embeddings(
    federation: Federation, config: IndexConfig, data_dir: Path | str | None = None
) -> Embeddings:
    """The embeddings of the samples that the index uses, cached in `data_dir`."""
    folder = Path(data_dir or default_data_dir()).expanduser() / "embeddings"
    chosen = federation.limited(config.max_samples, config.seed).dataset
    return embed_dataset(chosen, config.make_encoder(), cache_dir=folder)


def cached_index(
    federation: Federation,
    config: IndexConfig,
    embeddings: Embeddings,
    *,
    data_dir: Path | str | None = None,
    checkpoint: Path | None = None,
    on_point: Callable[[Training], None] = lambda training: None,
    stop: threading.Event | None = None,
) -> ClientIndex:
    """The index of `federation`, cached in `data_dir`; the other arguments as for build_index."""
    folder = Path(data_dir or default_data_dir()).expanduser()
    path = folder / "indices" / f"{identity(federation, embeddings, config)}.safetensors"
    if path.exists():
        try:
            return ClientIndex.load(path, federation)
        except ValueError as error:
            print(f"c2v_sim: {error}; it is built anew", file=sys.stderr)
    index = build_index(
        federation,
        config,
        embeddings=embeddings,
        checkpoint=checkpoint,
        on_point=on_point,
        stop=stop,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    index.save(path)
    return index


def identity(federation: Federation, embeddings: Embeddings, config: IndexConfig) -> str:
    """A hash of what decides the bits of an index."""
    settings = fixed(config) | {"device": choose_device(config.device).type}
    facts = [FORMAT, federation_facts(federation), embeddings.sha256, settings]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
