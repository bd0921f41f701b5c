"""What produced a run, as plain data for manifest.json: data, model, versions, commit, machine."""

import dataclasses
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil
import torch

from c2v_sim.algorithms import Algorithm
from c2v_sim.algorithms.clusters.in_clusters import InClusters
from c2v_sim.algorithms.personal.mixture import Mixture
from c2v_sim.config import RunConfig
from c2v_sim.data.federation import Federation
from c2v_sim.models import NORMED_MODELS
from c2v_sim.ops._dispatch import OPERATORS, native_missing
from c2v_sim.simulator.evaluation import PROTOCOL
from c2v_sim.simulator.personal import AT_HOME
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.machine import cpu_name
from c2v_sim.system.settings import Affects, facts_of, fixed

Facts = dict[str, object]


def manifest(simulator: Simulator, label: str, command: str) -> Facts:
    """Everything that is known before training; the index comes later (run/files.py)."""
    config, federation = simulator.config, simulator.federation
    return {
        "preset": label,
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": data_facts(federation),
        "partition": {
            "convention": federation.partition.convention,
            "clients": federation.partition.clients,
            "sha256": federation.partition.sha256,
            "held_out": federation.held_out.clients if federation.held_out else 0,
        },
        "model": {
            "name": config.model,
            "norm": norm_policy(config),
            "parameters": simulator.layout.parameter_count,
            "buffers": simulator.layout.buffer_count,
            "pretrained": simulator.pretrained and dataclasses.asdict(simulator.pretrained),
        },
        "algorithm": {"name": simulator.algorithm.name} | settings_of(simulator.algorithm),
        "encoder": None,
        "index": None,
        "improve": list(config.improve),
        "client_state": simulator.row_plan.sentence,
        "seed": config.seed,
        "settings": kept_settings(config),
        "evaluation": PROTOCOL + AT_HOME[simulator.algorithm.tested],
        "tested": simulator.algorithm.tested,
        "lanes": simulator.lanes.count,
        "backend": backend_facts(simulator.device),
        "versions": versions(),
        "commit": commit(),
        "machine": machine(simulator.device),
    }


def kept_settings(config: RunConfig) -> Facts:
    """The settings that a run has from its beginning to its end, as JSON gives them back."""
    known = facts_of(RunConfig)
    kept = {k: v for k, v in fixed(config).items() if not known[k].affects & Affects.LENGTH}
    return json.loads(json.dumps(kept))


def settings_of(algorithm: Algorithm) -> Facts:
    """The settings of an algorithm that is a dataclass, or of that which clusters train by."""
    while isinstance(algorithm, (InClusters, Mixture)):
        algorithm = algorithm.inner
    return dataclasses.asdict(algorithm) if dataclasses.is_dataclass(algorithm) else {}


def data_facts(federation: Federation) -> Facts:
    dataset = federation.dataset
    return {
        "name": dataset.name,
        "stand_in_for": dataset.standin_for,
        "source": dataset.source,
        "sha256": dataset.sha256,
        "train": len(dataset.y_train),
        "test": len(dataset.y_test),
        "classes": list(dataset.class_names),
        "domains": list(dataset.domain_names),
    }


def norm_policy(config: RunConfig) -> str:
    if config.model not in NORMED_MODELS:
        return "none"
    if config.norm == "batch":
        return "batch norm; running statistics averaged with the aggregation weights"
    return "group norm, 2 groups"


def backend_facts(device: torch.device) -> Facts:
    rows = torch.zeros(1, 1, device=device)
    return {
        "device": str(device),
        "operators": OPERATORS["weighted_sum"].choose(None, rows, rows[0], rows[0]),
        "native_missing": native_missing,
        "intra_op_threads_per_lane": 1,
    }


def versions() -> dict[str, str]:
    names = ("c2v_sim", "torch", "numpy")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}


def commit() -> str | None:
    """The commit of the source tree that is running, with -dirty; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def machine(device: torch.device) -> Facts:
    return {
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }
