"""Experiment: where the time of a client index goes.

    python bench/index_cost.py [--dataset shapes] [--clients 100] [--samples 128] [--epochs 1]
                               [--dropout 0] [--threads 2] [--average-all]

A table of stages: embedding the samples (builtin encoder), training DSA-IGN on them (GLOBAL, as the
server does) and averaging u over every client's samples, with --average-all over all that it
holds. CPU seconds beside those of the wall: on a machine with other work only the former say what a
stage needs; half of them is what two quiet cores could reach at best.
"""

import argparse
import dataclasses
import itertools
import statistics
import time

from c2v_sim import IndexConfig, RunConfig
from c2v_sim.index.build import feature_index
from c2v_sim.index.encoders.embed import embed_dataset
from c2v_sim.index.training import Pairs, train_network
from c2v_sim.run.build import build_federation
from c2v_sim.system.machine import choose_device, keep_freed_memory


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def show(stage: str, count: int, marks: list[tuple[float, float]]) -> None:
    """A line; of several passes the median."""
    pairs = list(itertools.pairwise(marks))
    wall, cpu = (statistics.median(b[i] - a[i] for a, b in pairs) for i in (0, 1))
    each = 1000 * cpu / count
    print(f"{stage:<24}{count:>8,}{wall:>10.2f} s{cpu:>10.2f} s{each:>10.3f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--dataset", default="shapes")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--average-all", action="store_true")
    given = parser.parse_args()
    keep_freed_memory()
    run = RunConfig(dataset=given.dataset, clients=given.clients, alpha=0.5)
    federation, _ = build_federation(run)
    used = federation.limited(0 if given.average_all else given.samples, 0)
    config = IndexConfig(epochs=given.epochs, dropout=given.dropout, threads=given.threads)
    config = dataclasses.replace(config, upload=given.samples)
    print(f"{'stage':<24}{'samples':>8}{'wall':>12}{'CPU':>12}{'CPU each':>13}")
    marks = [clocks()]
    embeddings = embed_dataset(used.dataset, "builtin", cache=False, progress=False)
    show("embed", len(used.dataset.y_train), [*marks, clocks()])
    pairs = Pairs(embeddings.images, embeddings.labels, used.dataset.y_train, choose_device("cpu"))
    marks = [clocks()]
    network, _ = train_network(
        pairs, used.partition, config, on_point=lambda training: marks.append(clocks())
    )
    seen = sum(min(given.samples, len(ids)) for ids in used.partition.train)
    show("train, an epoch", seen, marks)
    marks = [clocks()]
    feature_index(network, pairs, used.partition)
    show("average", len(used.dataset.y_train), [*marks, clocks()])


if __name__ == "__main__":
    main()
