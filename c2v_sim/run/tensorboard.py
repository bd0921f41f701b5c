"""--tensorboard: the records of a run as event files in <run>/tensorboard.

Everything shown is in the records, so a log is opened with those of the rounds already done: they
are written anew, and older event files are removed. A log is therefore complete whichever
of a run's resumes had the flag, and after a kill. Optional: pip install 'c2v_sim[tensorboard]'.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from c2v_sim.config import to_toml
from c2v_sim.run.files import ACCURACIES
from c2v_sim.simulator.records import RoundRecord
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.errors import ConfigError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


def summary_writer() -> type[SummaryWriter]:
    """torch's SummaryWriter; ConfigError with the remedy where the package is not there."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            f"--tensorboard needs a package that is not there ({error}); "
            "install it with: pip install 'c2v_sim[tensorboard]'"
        ) from error
    return SummaryWriter


class TensorBoardLog:
    """A run's event files. A write that fails ends the log with a warning, not the run."""

    def __init__(self, out: Path, simulator: Simulator, done: Sequence[RoundRecord]) -> None:
        self.out, self.domains = out / FOLDER, simulator.federation.domain_names
        self.writer: SummaryWriter  # from _begin on; where that fails the log is broken
        self.broken = False
        name = simulator.federation.dataset.name
        settings = f"trained on {name}\n\n```toml\n{to_toml(simulator.config)}```"
        self._try(lambda: self._begin(settings, done))

    def round_done(self, record: RoundRecord) -> None:
        """Show a round that has just ended."""
        self._try(lambda: self._add([(record, time.time())]))

    def close(self) -> None:
        """End the event file."""
        self._try(lambda: self.writer.close())

    def _begin(self, settings: str, done: Sequence[RoundRecord]) -> None:
        older = list(self.out.glob("events.out.tfevents.*"))
        # From the beginning: a resume without the flag leaves no gap. TensorBoards that are
        # watching drop what they have read.
        self.writer = summary_writer()(str(self.out), purge_step=0)
        self.writer.add_text("settings", settings, 0)
        # As if they had just been trained, one after the other: what "relative" time shows.
        lasted = [sum(record.seconds.values()) for record in done]
        start = time.time() - sum(lasted)
        self._add(zip(done, (start + s for s in accumulate(lasted)), strict=True))
        for file in older:  # all of it is in the new one; names of the same second have no order
            file.unlink()

    def _add(self, rounds: Iterable[tuple[RoundRecord, float]]) -> None:
        for record, ended in rounds:
            for tag, value in scalars(record, self.domains).items():
                self.writer.add_scalar(tag, value, record.round, walltime=ended)
        self.writer.flush()

    def _try(self, write: Callable[[], None]) -> None:
        if self.broken:
            return
        try:
            write()
        except Exception as error:  # OSError, or TensorFlow's own errors where it is installed
            self.broken = True
            line = f"warning: the log in {self.out} ends here: {error}. A resume with --tensorboard"
            tqdm.write(f"{line} writes all of it anew", file=sys.stderr)


def scalars(record: RoundRecord, domains: Sequence[str]) -> dict[str, float]:
    """What is shown of a round, by tag; accuracies only where it was evaluated."""
    shown = {f"accuracy/{name}": getattr(record, name) for name in ACCURACIES}
    by_domain = zip(domains, record.accuracy_domains or (), strict=False)
    shown |= {f"accuracy_by_domain/{name}": value for name, value in by_domain}
    shown |= {"train/loss": record.train_loss}
    shown |= {f"seconds/{stage}": value for stage, value in record.seconds.items()}
    return {tag: value for tag, value in shown.items() if value is not None}
