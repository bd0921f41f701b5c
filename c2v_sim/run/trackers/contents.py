"""What every tracker shows of a run, and where it remembers its own name for it.

trackers.json in the run directory keeps, for each tracker, what a resume needs to go on in the
same place.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from c2v_sim.run.files import ACCURACIES, MANIFEST, JsonObject, read_json, to_json, write_text
from c2v_sim.run.manifest import manifest
from c2v_sim.run.results import accuracy_figure, figure_title
from c2v_sim.simulator.records import Result, RoundRecord
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = "trackers.json"
PROJECT = "c2v_sim"  # where a tracker files its runs, unless told otherwise


def package(extra: str, module: str | None = None) -> ModuleType:
    """The tracker's package; ConfigError with the remedy where it is not there."""
    try:
        return importlib.import_module(module or extra)
    except ImportError as error:
        raise ConfigError(
            f"--{extra} needs a package that is not there ({error}); "
            f"install it with: pip install 'c2v_sim[{extra}]'"
        ) from error


def scalars(record: RoundRecord, domains: Sequence[str]) -> dict[str, float]:
    """What is shown of a round, by tag; accuracies only where it was evaluated."""
    shown = {f"accuracy/{name}": getattr(record, name) for name in ACCURACIES}
    by_domain = zip(domains, record.accuracy_domains or (), strict=False)
    shown |= {f"accuracy_by_domain/{name}": value for name, value in by_domain}
    shown |= {"train/loss": record.train_loss}
    shown |= {f"seconds/{stage}": value for stage, value in record.seconds.items()}
    return {tag: value for tag, value in shown.items() if value is not None}


def facts(simulator: Simulator, folder: Path | None) -> JsonObject:
    """The manifest: that of the run directory, or what can be said without one."""
    if folder is not None and (folder / MANIFEST).is_file():
        return read_json(folder / MANIFEST)
    return manifest(simulator, "own program", "")


def summary(result: Result) -> dict[str, float]:
    """What the run came to so far; empty before the first evaluation."""
    if not result.evaluated:
        return {}
    best, final = result.best, result.final
    shown = {"best_accuracy": best.accuracy, "best_round": best.round}
    shown["final_accuracy"] = final.accuracy
    return {name: value for name, value in shown.items() if value is not None}


def curve(simulator: Simulator, result: Result) -> Figure | None:
    """The accuracy curve, as accuracy.png has it; None before the first evaluation."""
    title = figure_title(simulator.federation.dataset.name, simulator.config)
    return accuracy_figure(result, title) if result.evaluated else None


def is_whole(simulator: Simulator) -> bool:
    """Whether the last round is done."""
    return simulator.round >= simulator.config.rounds


def run_name(simulator: Simulator, folder: Path | None) -> str:
    """`runs/first`, or what is trained."""
    if folder is not None:
        return "/".join(folder.resolve().parts[-2:])
    return figure_title(simulator.federation.dataset.name, simulator.config)


def remembered(folder: Path | None, tracker: str) -> JsonObject:
    """What `remember` kept; empty in a run that is new to the tracker."""
    if folder is None or not (folder / NAMES).is_file():
        return {}
    return read_json(folder / NAMES).get(tracker) or {}


def remember(folder: Path | None, tracker: str, known: JsonObject) -> None:
    """Keep what a resume needs to go on in the same place."""
    if folder is not None and folder.is_dir():
        others = read_json(folder / NAMES) if (folder / NAMES).is_file() else {}
        write_text(folder / NAMES, to_json(others | {tracker: known}))
