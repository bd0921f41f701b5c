"""The client index of a run: found or built in the run's directory before the first round."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from c2v_sim.config import RunConfig, index_settings
from c2v_sim.data.federation import Federation
from c2v_sim.index.build import index_embeddings, obtain_index
from c2v_sim.index.client_index import BUILT, CACHE, ClientIndex
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.encoders.embed import Embeddings
from c2v_sim.index.estimate import index_cost
from c2v_sim.index.training import OnPoint
from c2v_sim.run import files as run_directory
from c2v_sim.run.progress import IndexProgress
from c2v_sim.run.resume import check_index
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system import ranks
from c2v_sim.system.settings import Affects, names_affecting

CHECKPOINT = "index_training.safetensors"
SETTINGS = "settings.json"  # of a directory in which `python -m c2v_sim.index` works
# The settings of a run that say what the federation is.
FEDERATION = names_affecting(RunConfig, Affects.DATA | Affects.CLIENTS)


def prepare_index(simulator: Simulator, resumed: Path | None) -> Embeddings | None:
    """What can be wrong with an index is found here, before the run directory is made.

    An index in a file is taken at once; for one that is to be built, the embeddings are computed.
    """
    config, federation = simulator.config, simulator.federation
    if not config.needs_client_index:
        return None
    settings, file = index_settings(config), config.index_file
    if resumed is not None and (resumed / run_directory.INDEX).exists():
        file = str(resumed / run_directory.INDEX)
    file = ranks.broadcast(file)
    if not file:
        announce(federation, settings, config.data_dir)
        return index_embeddings(federation, settings, config.data_dir)
    index = obtain_index(federation, settings, file=file)
    if resumed is not None and (resumed / run_directory.INDEX).exists():
        check_index(resumed, index)
    simulator.use_index(index)
    return None


def announce(federation: Federation, settings: IndexConfig, data_dir: Path | str) -> None:
    """Say what an index will cost before it is paid, or that it is there already."""
    cost = index_cost(federation, settings, data_dir)
    say_index("in the cache" if cost is None else cost.words())


def say_index(words: str) -> None:
    print(f"client index: {words}", file=sys.stderr, flush=True)


def say_origin(index: ClientIndex) -> None:
    """What it took, and who paid it."""
    took = "a time that was not recorded" if index.seconds is None else f"{index.seconds:.1f} s"
    if index.origin == BUILT:
        say_index(f"took {took}")
    elif index.origin == CACHE:
        say_index(f"from the cache; it took {took} when it was built")
    else:
        say_index(f"from a file; it took {took} when it was built")


def bring_index(simulator: Simulator, out: Path, embeddings: Embeddings | None) -> None:
    """Build the index that is still missing, and leave it in the run directory."""
    config = simulator.config
    if embeddings is not None:
        settings = index_settings(config)
        with shown_training(settings) as on_point:
            index = obtain_index(
                simulator.federation,
                settings,
                data_dir=config.data_dir,
                embeddings=embeddings,
                checkpoint=out / CHECKPOINT,
                on_point=on_point,
                stop=simulator.stop,
            )
        say_origin(index)
        simulator.use_index(index)
    if not ranks.is_first():
        return
    if simulator.index is not None:
        if not (out / run_directory.INDEX).exists():
            run_directory.add_index(out, simulator.index)
        (out / CHECKPOINT).unlink(missing_ok=True)  # also of a process that ended just before


@contextmanager
def shown_training(settings: IndexConfig) -> Iterator[OnPoint]:
    """What is to be called after every point of the training, so that its progress is shown."""
    if settings.index != "dsa-ign":
        yield lambda training: None  # nothing is trained
        return
    bar = IndexProgress(settings)
    try:
        yield bar.point
    finally:
        bar.close()


def directory_settings(config: RunConfig, settings: IndexConfig) -> dict[str, object]:
    """What SETTINGS holds: the federation and the index."""
    return {name: getattr(config, name) for name in FEDERATION} | asdict(settings)
