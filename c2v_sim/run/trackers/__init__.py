"""Trackers: observers (simulator/observers.py) that show a run in somebody else's tool.

    python -m c2v_sim.run --wandb --mlflow
    Simulator(federation, config).run(observers=[Wandb(), MLflow("runs/mine")])

Each takes the run directory (or None) and is refused, with the pip command, where its package is
missing. Settings, what produced the run (the manifest), the numbers of every round and the
accuracy curve arrive in each; a resume goes on in the same place.
"""

import argparse
from pathlib import Path

from c2v_sim.run.trackers.mlflow import MLflow
from c2v_sim.run.trackers.tensorboard import TensorBoard
from c2v_sim.run.trackers.wandb import Wandb

Tracker = TensorBoard | Wandb | MLflow
# The flag of each, and what its help says.
TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}
HELP = {
    "tensorboard": "write event files; --wandb and --mlflow are alike",
    "wandb": "show the run in Weights & Biases, also offline",
    "mlflow": "show the run in MLflow, or in the folder mlruns",
}


def wanted(arguments: argparse.Namespace) -> list[str]:
    """The trackers whose flags were given."""
    return [name for name in TRACKERS if getattr(arguments, name)]


def trackers_of(arguments: argparse.Namespace, folder: Path | None) -> list[Tracker]:
    """The trackers that the flags ask for; ConfigError where a package is missing."""
    return [TRACKERS[name](folder) for name in wanted(arguments)]
