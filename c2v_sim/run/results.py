"""What a run leaves after its last round: the global model, a summary, the accuracy curve."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from c2v_sim.config import RunConfig
from c2v_sim.run.files import ACCURACIES, MODEL, PICTURE, RESULT, cost_so_far, to_json, write_text
from c2v_sim.simulator.cost import Cost
from c2v_sim.simulator.groups.clusters import all_clusters, models_of
from c2v_sim.simulator.records import Result
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system import tensor_file
from c2v_sim.system.files import write_atomically
from c2v_sim.system.text import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MINUS = "\N{MINUS SIGN}"
DRAWN = ("accuracy", "accuracy_global", "accuracy_worst10")  # the main curve first
MAIN_CURVE: dict[str, Any] = {"linewidth": 2.6, "zorder": 4}  # above all others
OTHER_CURVE: dict[str, Any] = {"linewidth": 1.2, "zorder": 2, "alpha": 0.8}
ORIGINAL_CURVE: dict[str, Any] = {
    **{"label": f"{ACCURACIES[DRAWN[0]]}, original", "color": "0.25"},
    **{"linestyle": "--", "linewidth": 1.8, "zorder": 3},
}


def write_results(
    path: Path, simulator: Simulator, result: Result, *, recorded: bool = True
) -> dict[str, OSError]:
    """Write the files (no picture without accuracies); those that could not be written, and why.

    The summary comes last, and only if the others and the records of all rounds (`recorded`) are
    on disk: where it is, the directory is complete, and a sweep has no reason to come back.
    """
    dataset = simulator.federation.dataset.name
    facts = {"dataset": dataset, "model": simulator.config.model, "round": simulator.round}
    about = {"about": json.dumps(facts)}  # one text: of several the file's order is random
    text = to_json(summary(simulator, result, cost_so_far(path, result.records)))
    writers: dict[str, Callable[[Path], object]] = {
        MODEL: lambda file: tensor_file.save(file, models(simulator), about),
    }
    if result.evaluated:
        picture = accuracy_figure(result, figure_title(dataset, simulator.config))
        png = saved_as_png(picture)
        writers[PICTURE] = lambda file: write_atomically(file, png)
    writers[RESULT] = lambda file: write_text(file, text)
    failed: dict[str, OSError] = {}
    for name, write in writers.items():
        try:
            if name == RESULT and (failed or not recorded):
                raise OSError("it is written last, when all else is there")
            write(path / name)
        except OSError as error:
            failed[name] = error
    return failed


def models(simulator: Simulator) -> dict[str, Tensor]:
    """The global model by names of tensors; of several, those of cluster c begin `cluster<c>.`."""
    count = models_of(simulator.algorithm)
    if count == 1:
        return simulator.global_model()
    return {
        f"cluster{number}.{name}": tensor
        for number in range(count)
        for name, tensor in simulator.global_model(number).items()
    }


def saved_as_png(picture: Figure) -> Callable[[Path], None]:
    return lambda path: picture.savefig(path, format="png")


def summary(simulator: Simulator, result: Result, cost: Cost) -> dict[str, object]:
    best, final = result.best, result.final
    accuracies = simulator.client_accuracy
    return {
        "dataset": simulator.federation.dataset.name,
        "algorithm": simulator.config.algorithm,
        "rounds": simulator.round,
        "clients": simulator.federation.partition.clients,
        "tested_clients": simulator.federation.tested,
        "tested": simulator.algorithm.tested,
        "clusters": all_clusters(simulator.algorithm),
        "best_accuracy": best.accuracy,
        "best_round": best.round if result.evaluated else None,
        "final_accuracy": final.accuracy,
        "final_accuracy_weighted": final.accuracy_weighted,
        "final_accuracy_worst10": final.accuracy_worst10,
        "final_accuracy_global": final.accuracy_global,
        "held_out_accuracy": final.held_out,
        "seconds": round(cost.total, 2),
        "seconds_rounds": round(cost.rounds, 2),
        "seconds_index": cost.index,
        "index_origin": cost.origin,
        "final_client_accuracy": None
        if accuracies is None
        else [None if np.isnan(a) else round(float(a), 6) for a in accuracies],
    }


def figure_title(dataset: str, config: RunConfig) -> str:
    """`shapes, cnn, fedavg + sampling, local, seed 0`."""
    improved = f" + {', '.join(config.improve)}" if config.improve else ""
    return f"{dataset}, {config.model}, {config.algorithm}{improved}, seed {config.seed}"


def accuracy_figure(result: Result, title: str, original: Result | None = None) -> Figure:
    """The accuracy curves, the main one on top; beside that of the `original`, with the gain."""
    from matplotlib.figure import Figure  # slow to import; no window system is touched
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes, best = figure.subplots(), result.best
    heading = f"{title}\nbest {percent(best.accuracy)} in round {best.round}"
    for place, name in enumerate(DRAWN):
        style = {"color": f"C{place}", "label": ACCURACIES[name], "marker": "."}
        axes.plot(*points(result, name), **(OTHER_CURVE if place else MAIN_CURVE) | style)
    if original is not None:
        axes.plot(*points(original, DRAWN[0]), **ORIGINAL_CURVE)
        gain = 100 * ((best.accuracy or 0.0) - (original.best.accuracy or 0.0))
        heading += f"; gain over the original's best: {gain:+.2f} points".replace("-", MINUS)
    axes.set_title(heading, fontsize=10, wrap=True)
    axes.set(xlabel="round", ylabel="test accuracy (%)")
    axes.margins(y=0.08)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0), min(high, 100.0))  # no room for what cannot be
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=9)
    return figure


def points(result: Result, name: str) -> tuple[list[int], list[float]]:
    """Rounds and accuracies in %, where they are known."""
    known = [(r.round, value) for r in result.evaluated if (value := getattr(r, name)) is not None]
    return [t for t, _ in known], [100 * value for _, value in known]
