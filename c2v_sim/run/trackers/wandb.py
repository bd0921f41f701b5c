"""--wandb: a run in Weights & Biases, online or, with WANDB_MODE=offline, in <run>/wandb.

Everything that wandb reads from the environment applies (WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE).
A resume goes on in the same run, by its id. Online, wandb knows which rounds it has; an offline run
cannot be reopened, so a resume writes all rounds again under the same id: `wandb sync` of the
newest folder is the whole run. Optional: pip install 'c2v_sim[wandb]'.
"""

from __future__ import annotations

import dataclasses
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from c2v_sim.config import to_toml
from c2v_sim.run.files import CONFIG, MANIFEST, to_json
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Wandb:
    """A run of Weights & Biases; `settings` are those of wandb.init."""

    def __init__(self, folder: Path | str | None = None, **settings: Any) -> None:
        self.wandb, self.settings = package("wandb"), settings
        self.folder = None if folder is None else Path(folder)

    def __str__(self) -> str:
        return "the log in Weights & Biases"

    def on_start(self, simulator: Simulator) -> None:
        self.simulator = simulator
        produced, known = facts(simulator, self.folder), remembered(self.folder, "wandb")
        asked: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "name": run_name(simulator, self.folder),
            "dir": self.folder,
            "config": dataclasses.asdict(simulator.config) | {"manifest": produced},
            "reinit": "create_new",  # a program may train several at a time
            "settings": self.wandb.Settings(console="off"),  # its place is the terminal
        }
        asked |= self.settings | known | ({"resume": "allow"} if known else {})
        self.run = self.wandb.init(**asked)
        about = {"id": self.run.id, "project": self.run.project, "entity": self.run.entity}
        remember(self.folder, "wandb", {name: value for name, value in about.items() if value})
        self._keep({CONFIG: to_toml(simulator.config), MANIFEST: to_json(produced)})

    def on_round(self, record: RoundRecord) -> None:
        if record.round >= self.run.starting_step:  # or it is there, from before a resume
            shown = scalars(record, self.simulator.federation.domain_names)
            self.run.log(shown, step=record.round, commit=True)

    def on_finish(self, result: Result) -> None:
        self.run.summary.update(summary(result))
        picture = curve(self.simulator, result)
        if picture is not None:  # not as a step, which a longer run would need for a round
            self.run.summary["accuracy_curve"] = self._image(picture)
        self.run.finish(exit_code=0 if is_whole(self.simulator) else 1)

    def _keep(self, texts: dict[str, str]) -> None:
        """As files of the run."""
        artifact = self.wandb.Artifact(f"run-{self.run.id}", "run")
        for name, text in texts.items():
            with artifact.new_file(name) as file:
                file.write(text)
        self.run.log_artifact(artifact)

    def _image(self, picture: Figure) -> Any:
        from PIL import Image

        picture.savefig(png := io.BytesIO(), format="png")
        return self.wandb.Image(Image.open(png))
