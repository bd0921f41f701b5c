"""Two finished runs → one table: the original, Client2Vec, and what is gained.

The gain of accuracy is in percentage points. To the original's best: its best round, and of
Client2Vec the first one that is at least as accurate; the seconds are those of all rounds up to
there, every stage, and what making the index took, also where it came from the cache.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from c2v_sim.beside.pair import ABOUT, CLIENT2VEC, ORIGINAL, TABLE
from c2v_sim.config import saved_config
from c2v_sim.report.runs import standins
from c2v_sim.run.files import CONFIG, PICTURE, JsonObject, read_json, to_json, write_text
from c2v_sim.run.reader import Run, read_run
from c2v_sim.run.results import accuracy_figure, figure_title
from c2v_sim.simulator.records import Result
from c2v_sim.system.files import write_atomically
from c2v_sim.system.text import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_REACHED, NOT_RECORDED = "not reached", "not recorded"
HEAD = ("", "original", "Client2Vec", "gain")
MEASURE = (
    "Accuracy: the mean over all clients, each on its own test samples. Best: of all rounds, "
    "chosen on this number itself. The mean of the later half of the evaluations depends least on "
    "chance."
)
ACCURACIES = ("best_accuracy", "late_accuracy", "last_accuracy")


def write_comparison(out: Path) -> str:
    """Compare the two finished runs in `out`; the table, which is left there as files too."""
    original, improved = read_run(out / ORIGINAL), read_run(out / CLIENT2VEC)
    numbers = compare(original, improved)
    stand_ins = standins([original, improved], total=2)
    text = "\n".join([title(improved), "", *table_lines(rows_of(numbers)), "", MEASURE, *stand_ins])
    write_text(out / TABLE, f"{text}\n")
    picture = both_curves(original, improved)
    write_atomically(out / PICTURE, lambda file: picture.savefig(file, format="png"))
    about = read_json(out / ABOUT) | numbers | {"stand_ins": stand_ins}
    write_text(out / ABOUT, to_json(about))
    return text


def both_curves(original: Run, improved: Run) -> "Figure":
    config = saved_config(improved.path / CONFIG)
    heading = figure_title(improved.manifest["data"]["name"], config)
    return accuracy_figure(Result(improved.records), heading, Result(original.records))


# ---- numbers --------------------------------------------------------------------------------


def compare(original: Run, improved: Run) -> JsonObject:
    """What the table says; accuracies are shares, None is what there is not."""
    target = Result(original.records).best.accuracy or 0.0
    sides = {ORIGINAL: side(original, target), CLIENT2VEC: side(improved, target)}
    gain = {name: sides[CLIENT2VEC][name] - sides[ORIGINAL][name] for name in ACCURACIES}
    return sides | {"gain": gain}


def side(run: Run, target: float) -> JsonObject:
    """One run: its accuracies, its index, and when it was at least as accurate as `target`."""
    result, index = Result(run.records), run.cost.index
    spent = itertools.accumulate(sum(r.seconds.values()) for r in run.records)
    by_round = zip(run.records, spent, strict=True)
    reached = next(((r.round, s) for r, s in by_round if (r.accuracy or 0.0) >= target), None)
    needed = None if reached is None or index is None else reached[1] + index
    return {
        "improve": run.config["improve"],
        "best_accuracy": result.best.accuracy,
        "best_round": result.best.round,
        "late_accuracy": result.late,
        "last_accuracy": result.final.accuracy,
        "index_seconds": index,
        "rounds_to_original_best": reached and reached[0],
        "seconds_to_original_best": needed,
    }


# ---- texts ----------------------------------------------------------------------------------


def title(improved: Run) -> str:
    """What was trained, with stand-ins by their names."""
    config, manifest = improved.config, improved.manifest
    encoder = f" ({improved.encoder} encoder)" if improved.encoder else ""
    return (
        f"{manifest['data']['name']}, {config['model']}, {config['algorithm']}, seed "
        f"{config['seed']}; the {config['index']} index{encoder} improves "
        f"{', '.join(config['improve'])}. Settings: {manifest['preset']}"
    )


def rows_of(numbers: JsonObject) -> list[tuple[str, ...]]:
    """The cells of the table, row by row, after its head."""
    sides = numbers[ORIGINAL], numbers[CLIENT2VEC]
    best = (f"{percent(s['best_accuracy'])} (round {s['best_round']})" for s in sides)
    late, last = ([percent(s[name]) for s in sides] for name in ACCURACIES[1:])
    gains = (f"{100 * numbers['gain'][name]:+.2f} points" for name in ACCURACIES)
    return [
        ("best accuracy", *best, next(gains)),
        ("mean of the later half", *late, next(gains)),
        ("last accuracy", *last, next(gains)),
        ("making the index", "–", seconds_cell(sides[1]["index_seconds"]), ""),
        ("rounds to the original's best", *map(rounds_cell, sides), ""),
        ("seconds to it, with the index", *map(time_cell, sides), ""),
    ]


def rounds_cell(of_side: JsonObject) -> str:
    return str(of_side["rounds_to_original_best"] or NOT_REACHED)


def time_cell(of_side: JsonObject) -> str:
    reached = of_side["rounds_to_original_best"] is not None
    return seconds_cell(of_side["seconds_to_original_best"]) if reached else NOT_REACHED


def seconds_cell(seconds: float | None) -> str:
    return NOT_RECORDED if seconds is None else f"{seconds:.1f} s"


def table_lines(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A Markdown table, its columns as wide as they must be: it is read on a screen too."""
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]

    def line(cells: tuple[str, ...]) -> str:
        numbers = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)][1:]
        return f"| {' | '.join([cells[0].ljust(widths[0]), *numbers])} |"

    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return [line(HEAD), f"|{rule}|", *map(line, rows)]
