"""The run directory: what its files are called, and how they are written.

config.toml        every setting
manifest.json      what produced the run (run/manifest.py)
partition.npz      which sample belongs to which client
held_out.npz       the same of clients that never train, with --hold-out-clients
clients.npz        label_counts [M, K] of the training samples, test_sizes [M], domains [M] or [0]
index.safetensors  the client index, where one steers the run
rounds.jsonl       one record per round, written as soon as the round is done
rounds.csv         the same as a table, written with every checkpoint
tensorboard/       the same as event files, with --tensorboard (run/trackers/)
trackers.json      what --wandb and --mlflow call the run, for a resume
checkpoints/       where `--resume` goes on: the two newest generations (run/checkpoint.py)
model.safetensors  the final global model, or those of all clusters; accuracy.png: the curve;
                   result.json: the summary (run/results.py)

run/reader.py reads a directory back.
"""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from c2v_sim.config import RunConfig, to_toml
from c2v_sim.data.federation import Federation
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.run.build import HELD_OUT
from c2v_sim.run.manifest import manifest
from c2v_sim.simulator.cost import Cost, cost_of
from c2v_sim.simulator.records import STAGES, RoundRecord
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.files import flush, make_directory, write_atomically
from c2v_sim.system.parse import is_a, parse_json_object

CONFIG, MANIFEST, PARTITION = "config.toml", "manifest.json", "partition.npz"
CLIENTS, INDEX = "clients.npz", "index.safetensors"
ROUNDS, TABLE, CHECKPOINTS = "rounds.jsonl", "rounds.csv", "checkpoints"
MODEL, PICTURE, RESULT = "model.safetensors", "accuracy.png", "result.json"
SCRATCH = "scratch"  # for client state beyond the memory
RESULTS = (RESULT, MODEL, PICTURE)  # of a finished run; the first says that it is one

JsonObject = dict[str, Any]  # as it was read from a file: its writer decides what is in it

# The accuracies of a record, and what people call them.
ACCURACIES = {
    "accuracy": "mean over clients",
    "accuracy_weighted": "weighted by samples",
    "accuracy_worst10": "worst 10 % of clients",
    "accuracy_global": "whole test set",
}
PLAIN_COLUMNS = (
    "dataset",
    "round",
    "train_loss",
    "tested",
    *ACCURACIES,
)  # of rounds.csv, for every run


def create_run_directory(
    path: Path, simulator: Simulator, label: str, command: str, *, numbered: bool = False
) -> Path:
    """Make `path` with what is known before training: all or nothing; where it is.

    Where `path` exists: FileExistsError or, if `numbered`, another with a counter.
    """
    facts = to_json(manifest(simulator, label, command))

    def fill(folder: Path) -> None:
        (folder / CHECKPOINTS).mkdir()
        (folder / CONFIG).write_text(config_text(simulator, simulator.config))
        (folder / MANIFEST).write_text(facts)
        simulator.federation.partition.save(folder / PARTITION)
        if simulator.federation.held_out is not None:
            simulator.federation.held_out.save(folder / HELD_OUT)
        save_clients(folder / CLIENTS, simulator.federation)

    return make_directory(path, fill, numbered=numbered)


def config_text(simulator: Simulator, config: RunConfig) -> str:
    return f"# trained on {simulator.federation.dataset.name}\n" + to_toml(config)


def save_clients(path: Path, federation: Federation) -> None:
    """What each client holds, for pictures: a partition's sample ids alone do not say it."""
    partition = federation.partition
    np.savez_compressed(
        path,
        label_counts=federation.label_counts.numpy(),  # [M, K]
        test_sizes=partition.test.sizes,  # [M]
        domains=np.array(partition.domains or (), dtype=np.int64),  # [M], or [0] without
    )


def add_index(path: Path, index: ClientIndex) -> None:
    """Keep the index that steers the run, and say in the manifest where it came from."""
    facts = read_json(path / MANIFEST)
    about = {k: v for k, v in index.provenance.items() if k not in ("curve", "federation")}
    about["sha256"] = index.sha256
    about["origin"] = index.origin
    facts |= {"encoder": index.provenance["encoder"], "index": about}
    write_text(path / MANIFEST, to_json(facts))
    index.save(path / INDEX)


def cost_so_far(path: Path, records: Sequence[RoundRecord]) -> Cost:
    """What the run in `path` took, whose rounds so far are `records`."""
    return cost_of(records, read_json(path / MANIFEST)["index"])


# ---- the records of rounds ------------------------------------------------------------------


def append_round(path: Path, record: RoundRecord) -> None:
    """Add one line to rounds.jsonl; a kill of this process cannot take it back."""
    with (path / ROUNDS).open("ab") as file:
        file.write(to_line(record))


def flush_rounds(path: Path) -> None:
    """Wait until the lines of rounds.jsonl are on disk: a power failure cannot take them."""
    flush(path / ROUNDS)


def rewrite_rounds(path: Path, records: Sequence[RoundRecord]) -> None:
    """Replace rounds.jsonl: a resumed run drops rounds after its checkpoint."""
    lines = b"".join(map(to_line, records))
    write_atomically(path / ROUNDS, lambda p: p.write_bytes(lines))


def to_line(record: RoundRecord) -> bytes:
    return json.dumps(dataclasses.asdict(record)).encode() + b"\n"


def parse_rounds(lines: Sequence[bytes]) -> list[RoundRecord]:
    """The records in lines of rounds.jsonl; ValueError or TypeError for a line that is none."""
    records = [RoundRecord(**parse_json_object(line)) for line in lines]
    for record in records:
        for field in dataclasses.fields(record):
            value = getattr(record, field.name)
            if not is_a(value, field.type):
                raise ValueError(f"{field.name} cannot be {value!r:.40}")
        if len(record.cohort) != len(record.weights) or min(record.cohort, default=0) < 0:
            raise ValueError("cohort and weights must name the same clients")
        if not all(map(math.isfinite, record.weights)):
            raise ValueError("weights must be finite")
    return records


def without_accuracy(line: bytes) -> bytes:
    """The line of the same round, had it not been evaluated."""
    (record,) = parse_rounds([line])
    cleared: JsonObject = dict.fromkeys((*ACCURACIES, "accuracy_domains"))
    return to_line(dataclasses.replace(record, **cleared))


def count_rounds(path: Path) -> int:
    """How many rounds the run in `path` has recorded so far."""
    file = path / ROUNDS
    return file.read_bytes().count(b"\n") if file.exists() else 0


def to_csv(records: Sequence[RoundRecord], domains: Sequence[str] = ()) -> str:
    """rounds.csv: a line of names, then a row per round; `domains` are those of the partition.

    A list is text with spaces between (cohort, weights), the seconds and the domains have a
    column each, a value that is not there is an empty field. Scores and histories of the clients
    stay in rounds.jsonl.
    """
    text = io.StringIO()
    columns = [*PLAIN_COLUMNS, *(f"accuracy_domain_{name}" for name in domains)]
    columns += [*(f"seconds_{name}" for name in STAGES), "cohort", "weights"]
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    for record in records:
        table.writerow(_row(record, len(domains)))
    return text.getvalue()


def _row(record: RoundRecord, domains: int) -> list[object]:
    by_domain = record.accuracy_domains
    return [
        *(getattr(record, name) for name in PLAIN_COLUMNS),
        *([""] * domains if by_domain is None else by_domain),
        *(record.seconds[name] for name in STAGES),
        " ".join(map(str, record.cohort)),
        " ".join(map(str, record.weights)),
    ]


# ---- texts ----------------------------------------------------------------------------------


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda p: p.write_text(text))


def to_json(data: Mapping[str, object]) -> str:
    return json.dumps(data, indent=2) + "\n"


def read_json(path: Path) -> JsonObject:
    """The object in a JSON file; ValueError, which names the file, where there is none."""
    try:
        return parse_json_object(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is cut off or damaged: {error}") from error
