"""What a run leaves after its last round: the global model, a summary, the accuracy curve."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from c2v_sim.run.files import ACCURACIES, MODEL, PICTURE, RESULT, to_json, write_text
from c2v_sim.simulator.records import Result
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system import tensor_file
from c2v_sim.system.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_results(
    path: Path, simulator: Simulator, result: Result, *, recorded: bool = True
) -> dict[str, OSError]:
    """Write the three files; those that could not be written, and why.

    The summary comes last, and only if the others and the records of all rounds (`recorded`) are
    on disk: where it is, the directory is complete, and a sweep has no reason to come back.
    """
    dataset = simulator.federation.dataset.name
    facts = {"dataset": dataset, "model": simulator.config.model, "round": simulator.round}
    about = {"about": json.dumps(facts)}  # one text: of several the file's order is random
    if simulator.client_accuracy is None:  # resumed after its last round
        simulator.evaluate()
    text = to_json(summary(simulator, result))
    picture = accuracy_figure(result, f"{dataset}, {simulator.config.algorithm}")
    writers: dict[str, Callable[[Path], object]] = {
        MODEL: lambda file: tensor_file.save(file, simulator.global_model(), about),
        PICTURE: lambda file: write_atomically(file, lambda p: picture.savefig(p, format="png")),
        RESULT: lambda file: write_text(file, text),
    }
    failed: dict[str, OSError] = {}
    for name, write in writers.items():
        try:
            if name == RESULT and (failed or not recorded):
                raise OSError("it is written last, when all else is there")
            write(path / name)
        except OSError as error:
            failed[name] = error
    return failed


def summary(simulator: Simulator, result: Result) -> dict[str, object]:
    best, final = result.best, result.final
    accuracies = simulator.client_accuracy
    return {
        "dataset": simulator.federation.dataset.name,
        "algorithm": simulator.config.algorithm,
        "rounds": simulator.round,
        "clients": simulator.federation.partition.clients,
        "tested_clients": simulator.federation.tested,
        "best_accuracy": best.accuracy,
        "best_round": best.round,
        "final_accuracy": final.accuracy,
        "final_accuracy_weighted": final.accuracy_weighted,
        "final_accuracy_worst10": final.accuracy_worst10,
        "final_accuracy_global": final.accuracy_global,
        "seconds": round(sum(sum(r.seconds.values()) for r in result.records), 2),
        "final_client_accuracy": None
        if accuracies is None
        else [None if np.isnan(a) else round(float(a), 6) for a in accuracies],
    }


def accuracy_figure(result: Result, title: str) -> Figure:
    """The accuracy curve."""
    from matplotlib.figure import Figure  # slow to import; no window system is touched

    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.subplots()
    rounds = [r.round for r in result.evaluated]
    for name in ("accuracy", "accuracy_global", "accuracy_worst10"):
        values = [100 * (getattr(r, name) or 0.0) for r in result.evaluated]
        axes.plot(rounds, values, marker=".", label=ACCURACIES[name])
    axes.set(title=title, xlabel="round", ylabel="test accuracy (%)", ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
