"""The first cohort, trained once for all runs of a sweep that begin alike.

The first round's cohort is drawn uniformly whatever the index, and starts from the same model, so
runs that differ only in what comes after local training (sampling, aggregation, tau, gamma, ...)
train the same rows in round 1. The first of them keeps what it trained, a file named after a hash
of all that decides those bits; the others take it over, and are told how long it took.

    file     rows float32 [K, size], integers int64 [K, n], losses [K], seconds [1]
"""

import dataclasses
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from c2v_sim.algorithms import Algorithm
from c2v_sim.config import FIELDS, FREE_ON_RESUME, RunConfig
from c2v_sim.index.client_index import federation_facts
from c2v_sim.run import files as run_directory
from c2v_sim.simulator.records import RoundRecord
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system import tensor_file

FORMAT = 1
LARGEST = 1_000_000_000  # bytes; more is hardly faster read than trained
# Hooks of an algorithm that act before or in local training.
HOOKS = ("before_round", "begin", "step_terms", "local_loss", "loss")
# Settings that act after the first local training, or only on where and how fast a run goes.
LATER = FREE_ON_RESUME | {"rounds", "eval_every", "state_dtype", "tau", "gamma", "lambda1"}
LATER |= {"server_momentum", "improve"}
OF_THE_INDEX = {name for name in FIELDS if name.startswith(("index", "local_weight"))}


def likely_group(config: RunConfig) -> str:
    """The same for runs that should have the same first cohort; the run itself decides."""
    local = "local" in config.improve
    left_out = LATER if local else LATER | OF_THE_INDEX
    facts = {name: getattr(config, name) for name in FIELDS if name not in left_out}
    return json.dumps([local, facts])


class FirstCohort:
    """Takes the place of the simulator's `train`: in round 1 it reads what `folder` has."""

    def __init__(self, folder: Path, simulator: Simulator) -> None:
        self.folder, self.simulator = folder, simulator
        self.hash = ""  # of a cohort that was taken over
        self.correction = 0.0  # seconds: + the training elsewhere, - what sharing took here
        self._train = simulator.train
        if simulator.cohort.data.nbytes <= LARGEST:
            simulator.train = self

    def __call__(self, *arguments: Any) -> Tensor:  # [K]
        """As train_cohort."""
        _, _, cohort, _, _, clients, _, _, round, on_client = arguments
        if round != 1:
            return self._train(*arguments)
        begin = time.perf_counter()
        name = self._identity(clients)
        kept = tensor_file.read(self.folder / f"{name}.safetensors")
        if kept is None:
            start = time.perf_counter()
            losses = self._train(*arguments)
            trained = time.perf_counter() - start
            self._keep(name, losses, trained)
            self.correction = trained - (time.perf_counter() - begin)
            return losses
        cohort.data.copy_(kept["rows"])
        cohort.integers.copy_(kept["integers"])
        for client in clients.tolist():
            on_client(client)
        self.hash = name
        self.correction = kept["seconds"].item() - (time.perf_counter() - begin)
        return kept["losses"].to(cohort.data.device)

    def finish(self, record: RoundRecord, out: Path) -> RoundRecord:
        """The record of round 1 with the time that its training took; the manifest says whose."""
        took = record.seconds["train"] + self.correction
        try:
            run_directory.note_first_cohort(out, self.hash)
        except OSError as error:  # a full disk does not end a run
            print(
                f"warning: the manifest says nothing of the first cohort: {error}", file=sys.stderr
            )
        return dataclasses.replace(record, seconds=record.seconds | {"train": round(took, 4)})

    def _keep(self, name: str, losses: Tensor, seconds: float) -> None:
        cohort = self.simulator.cohort
        tensors = {
            "rows": cohort.data.cpu(),
            "integers": cohort.integers.cpu(),
            "losses": losses.cpu(),
            "seconds": torch.tensor([seconds], dtype=torch.float64),
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tensor_file.write(self.folder / f"{name}.safetensors", tensors)
        except OSError as error:  # a full disk: the others train by themselves
            print(f"warning: the first cohort is not shared: {error}", file=sys.stderr)

    def _identity(self, clients: np.ndarray) -> str:
        """A hash of what decides the bits of round 1: all that `train` is given."""
        run = self.simulator
        state = {"data": run.server.data.cpu(), "integers": run.server.integers.cpu()}
        regulariser, config = run.algorithm.regulariser, run.config
        facts = {
            "format": FORMAT,
            "versions": run_directory.versions(),
            "device": [run.device.type, config.deterministic],
            "federation": federation_facts(run.federation),
            "clients": clients.tolist(),
            "model": repr(run.model),
            "start": tensor_file.checksum(state),
            "how": repr(run.how),
            "algorithm": algorithm_facts(run.algorithm),
            "regulariser": regulariser
            and [
                regulariser.weight,
                regulariser.orthogonality,
                regulariser.detach,
                tensor_file.checksum({"index": regulariser.index.cpu()}),
            ],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def algorithm_facts(algorithm: Algorithm) -> Any:
    """Name and settings of an algorithm; one that trains as FedAvg does is FedAvg here."""
    if all(getattr(type(algorithm), hook) is getattr(Algorithm, hook) for hook in HOOKS):
        return Algorithm.name
    return [algorithm.name, run_directory.vars_of(algorithm)]
