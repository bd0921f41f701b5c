"""Builds, before the cells of a sweep start, the client index that some of them share.

    python -m c2v_sim.sweep_index --config CELL.toml --checkpoint FILE

The index goes to the cache where `c2v_sim.run` finds it (index/cache.py), the checkpoint lets an
interrupted training go on. Exit codes as those of `c2v_sim.run`.
"""

import argparse
import sys
import threading
from pathlib import Path

from c2v_sim.config import RunConfig, index_settings, make_config, read_toml
from c2v_sim.data.federation import Federation
from c2v_sim.index.cache import index_embeddings
from c2v_sim.run.__main__ import build_federation
from c2v_sim.run.index import shown_index
from c2v_sim.system.errors import Interrupted, TrainingError, fail
from c2v_sim.system.freed_memory import keep_freed_memory
from c2v_sim.system.interrupt import Interrupt


def build(
    federation: Federation, config: RunConfig, checkpoint: Path, stop: threading.Event
) -> None:
    """Put the index that `config` needs into the cache."""
    embeddings = index_embeddings(federation, index_settings(config), config.data_dir)
    shown_index(federation, config, embeddings, checkpoint, stop)
    checkpoint.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(prog="c2v_sim.sweep.index_job")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    arguments = parser.parse_args(argv)
    keep_freed_memory()
    with Interrupt() as interrupt:
        try:
            federation, config = build_federation(make_config(read_toml(arguments.config)))
            stop = interrupt.stop = threading.Event()
            build(federation, config, arguments.checkpoint, stop)
            return 0
        except TrainingError as error:
            return fail(1, str(error))
        except (Interrupted, KeyboardInterrupt):
            return fail(interrupt.code, interrupt.word)
        except (ValueError, OSError, RuntimeError, ImportError) as error:
            return fail(2, str(error))


if __name__ == "__main__":
    sys.exit(main())
