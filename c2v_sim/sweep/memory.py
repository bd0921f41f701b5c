"""What the cells of a sweep take in memory, and that their data is there, before any of them runs.

bytes = process + 2 × data + 4 P (k + 1) + lanes × lane_bytes + client rows + embeddings

with the rows and distances that a sampler keeps among the client rows.
"""

import torch

from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.config import FIELDS, RunConfig
from c2v_sim.data.dataset import Dataset
from c2v_sim.data.load import DATASETS
from c2v_sim.data.resident import ResidentData
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.models import logits
from c2v_sim.run.build import load_data
from c2v_sim.simulator.model import assemble
from c2v_sim.sweep.file import Cell
from c2v_sim.system.settings import Affects, values_affecting
from c2v_sim.training.memory import lane_bytes

PROCESS = 450_000_000  # bytes of Python with torch, measured
ROWS = {"feddyn": 1, "moon": 1, "scaffold": 1}  # rows that each client keeps


def data_key(config: RunConfig) -> tuple:
    """The same for cells with the same data set."""
    seed = config.seed if DATASETS[config.dataset].chosen_by_seed else 0
    return (seed, *values_affecting(config, Affects.DATA))


def memory_needs(cells: list[Cell]) -> dict[str, int]:
    """Cell -> bytes that it will take. Every data set is loaded once: what is missing is known
    before the first cell, and no two cells make the same cache."""
    needs: dict[str, int] = {}
    by_data: dict[tuple, list[Cell]] = {}
    for cell in cells:
        by_data.setdefault(data_key(cell.config), []).append(cell)
    for alike in by_data.values():
        dataset = load_data(alike[0].config)
        known: dict[tuple, int] = {}
        for cell in alike:
            config = cell.config
            key = values_affecting(config, Affects.MEMORY)
            if key not in known:
                known[key] = expected_bytes(config, dataset)
            needs[cell.name] = known[key]
    return needs


def expected_bytes(config: RunConfig, dataset: Dataset) -> int:
    """Memory of the run that `config` describes, on a CPU."""
    cpu = torch.device("cpu")
    data = ResidentData(dataset.x_train, dataset.y_train, dataset.mean, dataset.std, cpu)
    x, _ = data.batch(torch.zeros(2, dtype=torch.int64))
    algorithm = ALGORITHMS[config.algorithm](config)
    model = assemble(config, dataset, algorithm, None, x[:1], None).model
    row = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    lane = lane_bytes(model, lambda: logits(model, x), len(x), config.batch_size)
    clients = config.clients_per_domain * len(dataset.domain_names) or config.clients or 100
    cohort = config.cohort_of(clients)
    participants = min(clients, config.rounds * cohort)
    states = row * ROWS.get(config.algorithm, 0) * participants
    states += bytes_of_last_updates(config, row, clients, participants)
    samples = sum(getattr(part, "nbytes", 0) for part in (dataset.x_train, dataset.x_test))
    embeddings = 4 * WIDTH * len(dataset.y_train) if config.needs_client_index else 0
    lanes = max(1, config.lanes)
    return PROCESS + 2 * samples + row * (cohort + 1) + states + lanes * lane + embeddings


def bytes_of_last_updates(config: RunConfig, row: int, clients: int, participants: int) -> int:
    """Of a sampler that keeps them: a row or a sketch each, and the distances between all."""
    if config.sampling not in FIELDS["update_sketch"].needs["sampling"]:
        return 0
    kept = min(4 * config.update_sketch, row) or row
    return kept * participants + 4 * clients**2
