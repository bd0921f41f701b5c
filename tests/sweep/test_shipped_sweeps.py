"""The shipped sweeps: they parse, they fit the paper's tables, the small ones fit two CPU cores."""

from pathlib import Path

import pytest

from c2v_sim.config import index_settings
from c2v_sim.sweep.file import read_sweep
from c2v_sim.sweep.shipped import shipped_sweeps
from c2v_sim.sweep.tables.paper import paper_entry, paper_tables, paper_value
from c2v_sim.sweep.tables.results import rows_of

YAML = Path(__file__).parents[3] / "shared" / "paper_tables.yaml"
NAMES = shipped_sweeps()
SMALL = [name for name in NAMES if name.startswith("small/")]
PAPER = [name for name in NAMES if name.startswith("paper/")]
STUDY = [name for name in NAMES if name.startswith("study/")]

# Measured on one core of a small server: samples a second, images of 32×32. The last two networks:
# about half of what a newer one reached.
TRAIN = {"cnn": 1100, "lstm": 150, "mobilenetv2": 250, "resnet18-imagenet": 100}
EVALUATE = {"cnn": 4000, "lstm": 450, "mobilenetv2": 700, "resnet18-imagenet": 450}
ALGORITHM = {"moon": 0.65, "fediir": 1 / 3}  # times the rate
LOCAL, START = 0.75, 2.5  # times the rate; seconds of a process
INDEX_PAIRS = 385  # pairs a second that the index network learns
# Training and test samples, clients
SIZES = {
    "shapes": (9000, 1800, 60),
    "cifar10": (50_000, 10_000, 100),
    "shakespeare": (170_000, 40_000, 28),  # a twentieth of the text
}


def test_every_table_of_the_paper_has_a_sweep_in_both_scales():
    tables = {read_sweep(name).table.paper for name in PAPER}
    assert {name.split(".")[0] for name in tables if name} == set(paper_tables()) - {"meta"}
    mains = {name for name in tables if name.startswith("main_table.")}
    assert mains == {f"main_table.{data}" for data in paper_tables()["main_table"]}
    assert {read_sweep(name).table.paper for name in SMALL} == tables
    assert {"paper/diversity", "paper/decoder", "small/diversity", "small/decoder"} <= set(NAMES)


@pytest.mark.parametrize("name", [*SMALL, *PAPER])
def test_every_place_has_its_value_in_the_paper(name):
    sweep = read_sweep(name)
    if not sweep.table.paper:
        assert sweep.table.kind == "index"  # figures: no numbers
        return
    ran = {tuple(cell.labels[axis] for axis in axes_of(sweep)) for cell in sweep.cells}
    if sweep.table.kind == "time":
        ran = {(*labels, "training_total") for labels in ran}
    for labels in ran:
        assert paper_value(sweep.table.paper, list(labels))[0] is not None, labels
    if name in PAPER:  # and the other way round: nothing of the paper is left out
        assert len(ran) == places(paper_entry(sweep.table.paper.split(".")), sweep.table.kind)


@pytest.mark.parametrize("name", STUDY)
def test_a_study_takes_no_stand_in_for_data(name):
    assert all(cell.config.require_real_data for cell in read_sweep(name).cells)


def axes_of(sweep):
    return [*sweep.table.rows, *([sweep.table.columns] if sweep.table.columns else [])]


def places(entry, kind):
    """Numbers in an entry of the paper's tables; a row of times counts once."""
    if not isinstance(entry, dict):
        return 1
    if kind == "time":
        return len(entry)
    return sum(places(value, kind) for key, value in entry.items() if key != "mi")


@pytest.mark.parametrize("name", SMALL)
def test_a_small_sweep_has_its_counterpart_at_the_papers_scale(name):
    sweep = read_sweep(name)
    reference = read_sweep(sweep.table.reference)
    assert sweep.table.reference.startswith("paper/")
    assert (reference.table.rows, reference.table.kind) == (sweep.table.rows, sweep.table.kind)
    for axis, labels in sweep.axes.items():
        assert set(labels) <= set(reference.axes[axis])
    assert {tuple(row.values()) for row in rows_of(sweep)} <= {
        tuple(row.values()) for row in rows_of(reference)
    }


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_scale_is_the_papers(name):
    sweep = read_sweep(name)
    meta = paper_tables()["meta"]
    assert sweep.table.reference == name
    assert len(sweep.axes["seed"]) == meta["seeds"]
    for cell in sweep.cells:
        config = cell.config
        assert (config.rounds, config.local_epochs) == (meta["rounds"], meta["local_epochs"])
        assert config.participation == meta["participation"]
        assert config.require_real_data  # days on a stand-in would be lost
        assert config.momentum == (0.9 if config.dataset == "domainnet" else 0.0)
        if config.needs_client_index:
            assert config.index_encoder == "clip"
            assert name == "paper/index-epochs" or config.index_epochs == meta["ign_epochs"]
        if "local" in config.improve and name != "paper/local-weight":
            assert config.regulariser_weight == meta["reg_weight"][config.index_strategy]


@pytest.mark.parametrize("name", SMALL)
def test_a_small_sweep_takes_two_cores_less_than_half_an_hour(name):
    cells = read_sweep(name).cells
    runs = sum(run_cost(cell.config) for cell in cells)
    needed = [cell.config for cell in cells if cell.config.needs_client_index]
    indices = {index_settings(config): config for config in needed}
    total = runs + sum(index_cost(config) for config in indices.values())
    assert total < 3600, f"{total:.0f} core-seconds"


def run_cost(config):
    train, test, clients = SIZES[config.dataset]
    cohort = max(1, int(config.participation * clients + 1e-9))
    rate = TRAIN[config.model] * ALGORITHM.get(config.algorithm, 1.0)
    rate *= LOCAL if "local" in config.improve else 1.0
    learned = config.rounds * cohort * train / clients * config.local_epochs
    evaluated = -(-config.rounds // config.eval_every) * test
    return START + learned / rate + evaluated / EVALUATE[config.model]


def index_cost(config):
    train, _, clients = SIZES[config.dataset]
    own = min(config.index_max_samples or train, train // clients)
    encoded = own * clients / 3  # evaluation: a third of a training step
    if config.index != "dsa-ign":
        return encoded / INDEX_PAIRS
    if config.index_strategy == "global":
        learned = config.index_epochs * clients * min(own, 128)
    else:
        learned = -(-config.index_epochs // 10) * 10 * max(1, clients // 10) * own
    return (learned + encoded) / INDEX_PAIRS


def test_the_papers_numbers_are_those_of_the_tables():
    assert paper_value("main_table.cifar10_resnet18", ["feddyn", "glob_i_ii_iii"]) == (70.59, 3.86)
    assert paper_value("main_table", ["shakespeare_lstm", "fedavg", "original"]) == (49.93, 0.12)
    assert paper_value("ablation_table", ["omit_sim", "i_ii_iii"]) == (54.35, None)
    assert paper_value("ablation_table", ["only_label_index", "i_ii_iii"]) == (None, None)
    assert paper_value("tau_table", ["moon", "glob_0.5"]) == (42.80, None)
    assert paper_value("epochs_table", ["feddyn", "fed_100"]) == (80.75, None)
    assert paper_value("weight_table", ["fedavgm", "fed_5.0"]) == (70.04, None)
    of_cct = paper_value("architecture_table", ["cct_7_3x1_scratch", "moon", "global"])
    assert of_cct == (33.73, 0.03)
    assert paper_value("simulation_time_s", ["client2vec", "generate_index"]) == (632, None)
    assert paper_value("main_table", ["cifar10_resnet18", "fedavg"]) == (None, None)  # no number


def test_the_papers_numbers_are_those_of_the_specification():
    yaml = pytest.importorskip("yaml")
    if not YAML.is_file():
        pytest.skip(f"no {YAML}")
    theirs = yaml.safe_load(YAML.read_text())
    expected = {"meta": theirs.pop("meta")}
    for table, rows in theirs.items():
        columns = rows.pop("columns")
        expected[table] = {label: named(row, columns) for label, row in rows.items()}
    assert paper_tables() == expected


def named(row, columns):
    if isinstance(row, dict):
        return {label: named(inner, columns) for label, inner in row.items()}
    pairs = zip(columns, row, strict=True)
    return {column: value for column, value in pairs if value is not None}
