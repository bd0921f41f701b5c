"""--beside-original: an algorithm as it is and with the client index, in one directory.

comparison.json   what this directory is; once both runs are done, the numbers of the table
comparison.md     the table, as it was shown (beside/table.py)
accuracy.png      both curves, and the gain
report.html       both runs on one page
original/         the run directory of the algorithm as it is
client2vec/       that of the same settings with the index: same data, seed and first cohort

Both run directories exist from the beginning, whole and before either is trained, so that each can
be resumed by itself as well. The run command trains what is not finished, one after the other.
"""

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from c2v_sim.config import RunConfig, make_config, saved_config
from c2v_sim.data.federation import Federation
from c2v_sim.run import files as run_directory
from c2v_sim.run.build import build_federation, new_path
from c2v_sim.run.index import prepare_index
from c2v_sim.run.resume import check_federation, check_pretrained, check_settings, warn_of_versions
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.errors import ConfigError, remedy
from c2v_sim.system.files import make_directory

ORIGINAL, CLIENT2VEC = HALVES = ("original", "client2vec")  # in the order of their training
ABOUT, TABLE, PAGE = "comparison.json", "comparison.md", "report.html"
WHAT = "two runs by --beside-original: the algorithm as it is, and with the client index"


@dataclass(frozen=True, eq=False)
class Pair:
    """Two runs of one federation."""

    out: Path
    federation: Federation
    configs: dict[str, RunConfig]  # of each of HALVES
    label: str

    def simulator(self, half: str) -> Simulator:
        scratch = self.out / half / run_directory.SCRATCH
        return Simulator(self.federation, self.configs[half], scratch=scratch)


def is_pair(folder: Path) -> bool:
    """Whether `folder` holds two runs that are compared; refused where nobody can tell."""
    try:
        return (folder / ABOUT).is_file()
    except OSError as error:
        why = f"{error.strerror}{remedy(error, before='; ')}"
        raise ConfigError(f"{folder} cannot be read: {why}") from error


def is_finished(folder: Path, rounds: int) -> bool:
    """Whether nothing is left to do in a run directory whose run is to have `rounds`."""
    written = all((folder / name).exists() for name in run_directory.RESULTS)
    return written and saved_config(folder / run_directory.CONFIG).rounds == rounds


def new_pair(config: RunConfig, label: str, out: Path | None) -> Pair:
    """The pair of a run with the settings `config`; bad input is refused, nothing is written."""
    if not config.eval_every:
        raise ConfigError("--beside-original compares accuracies, so eval_every must be at least 1")
    if not config.improve:
        raise ConfigError(
            "--beside-original compares a run that a client index improves with the original, but "
            "improve is none: leave one of them out, or say what is improved (--improve local)"
        )
    federation, config = build_federation(config)
    kind = f"{config.algorithm}-beside-original"
    out = out or new_path("runs", federation.dataset.name, kind, config.seed)
    configs = {ORIGINAL: without_index(config), CLIENT2VEC: config}
    pair = Pair(out, federation, configs, label)
    for half in HALVES:
        simulator = pair.simulator(half)  # which finds what is wrong with its settings
        try:
            prepare_index(simulator, None)  # the embeddings, if any, are in the cache from now on
        finally:
            simulator.close()
    return pair


def without_index(config: RunConfig) -> RunConfig:
    """The same settings for the algorithm as it is; those of the index become their defaults."""
    return make_config({"improve": ()}, config)


def create_pair(pair: Pair, command: str, *, numbered: bool = False) -> Pair:
    """Make the directories, which must not exist: all or nothing; the pair, where it is.

    numbered: where the name is taken, another with a counter.
    """

    def fill(folder: Path) -> None:
        for half in HALVES:
            simulator = pair.simulator(half)
            try:
                run_directory.create_run_directory(folder / half, simulator, pair.label, command)
            finally:
                simulator.close()
        about = {"what": WHAT, "command": command, "dataset": pair.federation.dataset.name}
        (folder / ABOUT).write_text(run_directory.to_json(about))

    return replace(pair, out=make_directory(pair.out, fill, numbered=numbered))


def resumed_pair(folder: Path, configs: dict[str, RunConfig]) -> Pair:
    """The pair in `folder`, whose runs go on with these settings, both for as many rounds."""
    rounds = max(config.rounds for config in configs.values())
    configs = {half: replace(config, rounds=rounds) for half, config in configs.items()}
    for half, config in configs.items():
        check_settings(folder / half, config)
    saved = folder / CLIENT2VEC / run_directory.PARTITION
    federation, _ = build_federation(configs[CLIENT2VEC], saved)
    pair = Pair(folder, federation, configs, "resumed")
    for half in HALVES:
        check_federation(folder / half, federation)
        with closing(pair.simulator(half)) as simulator:
            check_pretrained(folder / half, simulator.pretrained)
    warn_of_versions(folder / CLIENT2VEC)
    return pair
