"""The run directory while a run trains: each round's record, and the checkpoints.

rounds.jsonl is written first, then the generation that vouches for it, then the same rounds as
rounds.csv; observers (trackers, say) are told of every round. A write error (a full disk) does not
end the run: it is said once, tried again at the next checkpoint with everything that is still in
memory, and `unsaved` says at any time what is not on disk.

Where several ranks share the run, every one has a journal and gives its part of a checkpoint; that
of rank 0 writes.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor
from tqdm import tqdm

from c2v_sim.run import files as run_directory
from c2v_sim.run.checkpoint import load_checkpoint, save_checkpoint
from c2v_sim.simulator.observers import Observer, Observers
from c2v_sim.simulator.records import Result, RoundRecord
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system import ranks
from c2v_sim.system.errors import remedy
from c2v_sim.system.files import remove_leftovers


class Journal:
    """Keeps `out` in step with `simulator`; `result` has the records of all finished rounds."""

    def __init__(self, out: Path, simulator: Simulator, observers: Iterable[Observer] = ()) -> None:
        self.out, self.simulator, self.result = out, simulator, Result()
        self.observers = Observers(observers)
        self.writes = ranks.is_first()
        self.saved_rounds = 0  # whose records are in rounds.jsonl
        self.torn = False  # rounds.jsonl is to be written anew
        self.saved_state = 0  # the round of the newest checkpoint
        self.saved_table = -1  # the last round in rounds.csv; -1: of what is there nothing is known
        self.error: OSError | None = None  # since which not everything is on disk

    def resume(self) -> None:
        """Bring simulator and rounds.jsonl back to the newest checkpoint, or to the beginning."""
        if ranks.is_first():
            remove_leftovers(self.out)
        rounds = self.out / run_directory.ROUNDS
        lines = load_checkpoint(self.out / run_directory.CHECKPOINTS, self.simulator, rounds)
        self.result.records[:] = run_directory.parse_rounds(lines)
        self.saved_state = self.saved_rounds = self.simulator.round
        if not self.writes:
            return
        for leftover in self.out.glob("*.partial"):  # of a process that was killed
            leftover.unlink()
        self.torn = rounds.exists() and rounds.read_bytes() != b"".join(lines)
        self._try(self._save)
        self._try(self._save_table)
        self.observers.start(self.simulator, self.result.records)

    def close(self) -> None:
        """No round comes any more."""
        self.observers.finish(self.result)

    def round_done(self, record: RoundRecord) -> None:
        """Take a finished round's record, and make a checkpoint where one is due."""
        self.result.records.append(record)
        if self.writes and not self.torn:
            self._try(self._append)
        self.observers.round(record)
        if record.round % self.simulator.config.checkpoint_every == 0:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write everything to disk that is not there yet."""
        failed, state = self.error, self.simulator.state()  # to which all ranks contribute
        if not self.writes:
            self.saved_state = self.simulator.round
            return
        if not all([self._try(lambda: self._save(state)), self._try(self._save_table)]):
            return
        self.error = None
        if failed is not None:
            _say(f"{self.out} can be written again; all rounds up to {self.saved_state} are saved")

    def unsaved(self) -> list[str]:
        """What is in memory only, in words."""
        done, out = self.simulator.round, []
        if self.saved_rounds < done:
            out.append(f"the records of rounds {self.saved_rounds + 1} to {done}")
        if self.saved_state < done:
            out.append(f"the state after round {done} ({self.goes_on()})")
        if done and self.saved_table != done:
            out.append(f"{run_directory.TABLE} (the records are in {run_directory.ROUNDS})")
        return out

    @property
    def recorded(self) -> bool:
        """Whether the records of all rounds are on disk, in both forms."""
        return not self.torn and self.saved_table == self.simulator.round

    def goes_on(self) -> str:
        """Where a resume would begin."""
        return f"a resume goes on after round {self.saved_state}"

    def _append(self) -> None:
        self.torn = True  # until the whole line is there
        run_directory.append_round(self.out, self.result.records[-1])
        self.torn = False
        self.saved_rounds += 1

    def _save(self, state: dict[str, Tensor] | None = None) -> None:
        done = self.simulator.round
        if self.torn:
            run_directory.rewrite_rounds(self.out, self.result.records)
            self.torn, self.saved_rounds = False, done
        if self.saved_state != done:
            run_directory.flush_rounds(self.out)
            checkpoints = self.out / run_directory.CHECKPOINTS
            save_checkpoint(checkpoints, self.simulator, self.out / run_directory.ROUNDS, state)
            self.saved_state = done

    def _save_table(self) -> None:
        if self.saved_table != self.simulator.round:
            domains = self.simulator.federation.domain_names
            text = run_directory.to_csv(self.result.records, domains)
            run_directory.write_text(self.out / run_directory.TABLE, text)
            self.saved_table = self.simulator.round

    def _try(self, write: Callable[[], None]) -> bool:
        try:
            write()
            return True
        except OSError as error:
            if self.error is None:
                _say(
                    f"warning: cannot write {error.filename or self.out}: "
                    f"{error.strerror or error}. The run goes on in memory and tries again every "
                    f"{self.simulator.config.checkpoint_every} rounds{remedy(error, before='; ')}"
                )
            self.error = error
            return False


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)  # above the bar, where there is one
