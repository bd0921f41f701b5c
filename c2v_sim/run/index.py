"""The client index of a run: found or built in the run's directory before the first round."""

import threading
from pathlib import Path

from c2v_sim.config import RunConfig, index_settings
from c2v_sim.data.federation import Federation
from c2v_sim.index.cache import cached_index, index_embeddings
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.encoders.embed import Embeddings
from c2v_sim.run import files as run_directory
from c2v_sim.run.progress import IndexProgress
from c2v_sim.simulator.simulator import Simulator

CHECKPOINT = "index_training.safetensors"


def prepare_index(simulator: Simulator, resumed: Path | None) -> Embeddings | None:
    """What can be wrong with an index is found here, before the run directory is made.

    An index in a file is taken at once; for one that is to be built, the embeddings are computed.
    """
    config, federation = simulator.config, simulator.federation
    if not config.needs_client_index:
        return None
    if resumed is not None and (resumed / run_directory.INDEX).exists():
        simulator.use_index(ClientIndex.load(resumed / run_directory.INDEX, federation))
    elif config.index_file:
        simulator.use_index(ClientIndex.load(config.index_file, federation))
    else:
        return index_embeddings(federation, index_settings(config), config.data_dir)
    return None


def bring_index(simulator: Simulator, out: Path, embeddings: Embeddings | None) -> None:
    """Build the index that is still missing, and leave it in the run directory."""
    config = simulator.config
    if embeddings is not None:
        federation, stop = simulator.federation, simulator.stop
        simulator.use_index(shown_index(federation, config, embeddings, out / CHECKPOINT, stop))
    if simulator.index is not None and not (out / run_directory.INDEX).exists():
        run_directory.add_index(out, simulator.index)
        (out / CHECKPOINT).unlink(missing_ok=True)


def shown_index(
    federation: Federation,
    config: RunConfig,
    embeddings: Embeddings,
    checkpoint: Path,
    stop: threading.Event,
) -> ClientIndex:
    """The index that `config` asks for, from the cache or built with its progress shown."""
    settings = index_settings(config)
    bar = IndexProgress(settings) if settings.index == "dsa-ign" else None
    try:
        return cached_index(
            federation,
            settings,
            embeddings,
            data_dir=config.data_dir,
            checkpoint=checkpoint,
            on_point=bar.point if bar else lambda training: None,
            stop=stop,
        )
    finally:
        if bar:
            bar.close()
