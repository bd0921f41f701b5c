"""--mlflow: a run in MLflow, at $MLFLOW_TRACKING_URI or in the folder `mlruns` here.

A resume goes on in the same MLflow run, wherever it began; rounds that are there already are not
logged twice (trained again, they have the same bits). Optional: pip install 'c2v_sim[mlflow]'.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from pathlib import Path
from typing import Any

from c2v_sim.config import RunConfig, to_toml
from c2v_sim.run.files import CONFIG, MANIFEST, PICTURE
from c2v_sim.run.trackers.contents import (
    PROJECT,
    curve,
    facts,
    is_whole,
    package,
    remember,
    remembered,
    run_name,
    scalars,
    summary,
)
from c2v_sim.simulator.records import Result, RoundRecord
from c2v_sim.simulator.simulator import Simulator

MOST_PARAMETERS = 100  # in one call


class MLflow:
    """A run of MLflow; `tracking_uri` and `experiment` in place of MLflow's variables."""

    def __init__(
        self,
        folder: Path | str | None = None,
        tracking_uri: str | None = None,
        experiment: str | None = None,
    ) -> None:
        self.mlflow = package("mlflow")
        self.folder = None if folder is None else Path(folder)
        self.uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or local_store()
        self.experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)

    def __str__(self) -> str:
        return "the log in MLflow"

    def on_start(self, simulator: Simulator) -> None:
        self.simulator = simulator
        known = remembered(self.folder, "mlflow")
        self.uri = known.get("tracking_uri", self.uri)
        if self.uri.startswith("file:"):  # which MLflow opens only where this is said
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self.client = self.mlflow.MlflowClient(tracking_uri=self.uri)
        self.run_id: str = known.get("run_id") or self._new_run(simulator)
        self.client.update_run(self.run_id, status="RUNNING")
        remember(self.folder, "mlflow", {"tracking_uri": self.uri, "run_id": self.run_id})
        history = self.client.get_metric_history(self.run_id, "train/loss") if known else []
        self.shown = max((point.step for point in history), default=0)
        self.client.log_text(self.run_id, to_toml(simulator.config), CONFIG)
        self.client.log_dict(self.run_id, facts(simulator, self.folder), MANIFEST)

    def on_round(self, record: RoundRecord) -> None:
        if record.round > self.shown:
            self._log(scalars(record, self.simulator.federation.domain_names), record.round)

    def on_finish(self, result: Result) -> None:
        if result.records:
            self._log(summary(result), result.records[-1].round)
        picture = curve(self.simulator, result)
        if picture is not None:
            self.client.log_figure(self.run_id, picture, PICTURE)
        status = "FINISHED" if is_whole(self.simulator) else "KILLED"
        self.client.set_terminated(self.run_id, status)

    def _new_run(self, simulator: Simulator) -> str:
        found = self.client.get_experiment_by_name(self.experiment)
        place = found.experiment_id if found else self.client.create_experiment(self.experiment)
        name = run_name(simulator, self.folder)
        run_id: str = self.client.create_run(place, run_name=name).info.run_id
        parameters = [
            self.mlflow.entities.Param(*pair) for pair in settings_shown(simulator.config)
        ]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            some = parameters[first : first + MOST_PARAMETERS]
            self.client.log_batch(run_id, params=some)
        return run_id

    def _log(self, values: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metric: Any = self.mlflow.entities.Metric
        shown = [metric(allowed(tag), value, now, step) for tag, value in values.items()]
        self.client.log_batch(self.run_id, metrics=shown)


def local_store() -> str:
    return (Path.cwd() / "mlruns").as_uri()


def settings_shown(config: RunConfig) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in dataclasses.asdict(config).items()]


def allowed(tag: str) -> str:
    """A name that MLflow takes, whatever a domain is called."""
    return re.sub(r"[^\w\-. /]", "_", tag)
