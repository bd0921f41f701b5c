"""--tensorboard: the records of a run as event files in <run>/tensorboard.

Everything shown is in the records, so a log begins with those of the rounds already done: they
are written anew, and older event files are removed. A log is therefore complete whichever
of a run's resumes had the flag, and after a kill. Optional: pip install 'c2v_sim[tensorboard]'.
"""

from __future__ import annotations

import time
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from c2v_sim.config import to_toml
from c2v_sim.run.files import to_json
from c2v_sim.run.trackers.contents import curve, facts, package, scalars
from c2v_sim.simulator.records import Result, RoundRecord
from c2v_sim.simulator.simulator import Simulator

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


class TensorBoard:
    """A run's event files in <folder>/tensorboard."""

    def __init__(self, folder: Path | str | None) -> None:
        self.new_writer = package(FOLDER, "torch.utils.tensorboard").SummaryWriter
        self.folder = Path(folder or ".")
        self.out = self.folder / FOLDER
        self.waiting: list[RoundRecord] = []  # rounds before a resume, until all of them are here

    def __str__(self) -> str:
        return f"the log in {self.out}"

    def on_start(self, simulator: Simulator) -> None:
        self.simulator, self.done = simulator, simulator.round
        self.older = list(self.out.glob("events.out.tfevents.*"))
        # From the beginning: a resume without the flag leaves no gap. TensorBoards that are
        # watching drop what they have read.
        self.writer: SummaryWriter = self.new_writer(str(self.out), purge_step=0)
        name, settings = simulator.federation.dataset.name, to_toml(simulator.config)
        self.writer.add_text("settings", f"trained on {name}\n\n```toml\n{settings}```", 0)
        produced = to_json(facts(simulator, self.folder))
        self.writer.add_text("manifest", f"```json\n{produced}```", 0)
        self.writer.flush()
        if not self.done:
            self._remove_older()

    def on_round(self, record: RoundRecord) -> None:
        self.waiting.append(record)
        if record.round >= self.done:
            self._write()
            self._remove_older()

    def on_finish(self, result: Result) -> None:
        picture = curve(self.simulator, result)
        if picture is not None:
            self.writer.add_figure("accuracy", picture, result.records[-1].round, close=False)
        self.writer.close()

    def _write(self) -> None:
        """The waiting rounds, as if they had just been trained, one after the other: that is what
        "relative" time shows."""
        domains = self.simulator.federation.domain_names
        lasted = [sum(record.seconds.values()) for record in self.waiting]
        begin = time.time() - sum(lasted)
        for record, ended in zip(self.waiting, accumulate(lasted), strict=True):
            for tag, value in scalars(record, domains).items():
                self.writer.add_scalar(tag, value, record.round, walltime=begin + ended)
        self.writer.flush()
        self.waiting.clear()

    def _remove_older(self) -> None:
        """All of it is in the new one; file names of the same second have no order."""
        for file in self.older:
            file.unlink()
        self.older.clear()
