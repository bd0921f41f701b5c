"""The accuracy curve of a run: the main one on top, an axis that fits, what was trained."""

import pytest

from c2v_sim.config import RunConfig
from c2v_sim.run.results import accuracy_figure, figure_title
from c2v_sim.simulator.records import Result, RoundRecord


def result(*accuracies):
    records = [
        RoundRecord(
            **{"dataset": "shapes", "round": t, "cohort": [0], "weights": [1.0]},
            **{"train_loss": 1.0, "accuracy": a, "accuracy_weighted": a},
            accuracy_worst10=None if a is None else a - 0.1,
            accuracy_global=None if a is None else a + 0.02,
            **{"accuracy_domains": None, "seconds": {}},
        )
        for t, a in enumerate(accuracies, 1)
    ]
    return Result(records)


def drawn(figure):
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def test_the_mean_over_clients_is_thickest_and_above_the_others():
    lines = drawn(accuracy_figure(result(0.3, None, 0.4), "a title", result(0.2, 0.25)))
    main = lines.pop("mean over clients")
    assert set(lines) == {"whole test set", "worst 10 % of clients", "mean over clients, original"}
    assert all(main.get_zorder() > line.get_zorder() for line in lines.values())
    assert all(main.get_linewidth() > line.get_linewidth() for line in lines.values())
    assert main.get_xdata().tolist() == [1, 3]  # a round without evaluation has no point
    assert main.get_ydata().tolist() == pytest.approx([30, 40])


@pytest.mark.parametrize("accuracies", [(0.3, 0.4), (0.1, 0.98), (0.5,)])
def test_the_axis_fits_the_curves(accuracies):
    figure = accuracy_figure(result(*accuracies), "a title")
    low, high = figure.axes[0].get_ylim()
    least, most = 100 * (min(accuracies) - 0.1), 100 * (max(accuracies) + 0.02)
    assert 0 <= low <= least
    assert most <= high <= 100
    assert high - low <= 1.3 * (most - least)


def test_the_title_says_what_was_trained_and_what_was_gained():
    config = RunConfig(model="cnn", algorithm="fedavg", improve=("sampling", "local"), seed=3)
    title = figure_title("cifar10-standin(shapes)", config)
    assert title == "cifar10-standin(shapes), cnn, fedavg + sampling, local, seed 3"
    plain = accuracy_figure(result(0.3, 0.4, 0.35), title).axes[0].get_title()
    assert plain == f"{title}\nbest 40.00 % in round 2"
    for best, gain in ((0.36, "+4.00"), (0.45, "−5.00")):
        beside = accuracy_figure(result(0.3, 0.4), title, result(best, 0.2)).axes[0].get_title()
        words = f"gain over the original's best: {gain} points"
        assert beside == f"{title}\nbest 40.00 % in round 2; {words}"
