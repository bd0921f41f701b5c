"""A sweep file becomes cells, and whatever cannot run is refused before anything does."""

import tomllib
from pathlib import Path

import pytest

from c2v_sim.config import RunConfig
from c2v_sim.run.presets import preset
from c2v_sim.sweep.file import cell_folder, make_sweep, read_sweep
from c2v_sim.sweep.shipped import shipped_sweeps
from c2v_sim.system.errors import ConfigError

GRID = """
title = "A title"
about = "What it is about."
preset = "quick"

[base]
rounds = 3
tau = 0.3
moon_mu = 0.7

[axes]
algorithm = ["fedavg", "moon"]
seed = [0, 1]

[axes.case]
original = {}
"glob 0.1/x" = { improve = ["sampling"], tau = 0.1 }
all = { improve = ["sampling", "local"], local_weight = 2.0 }

[[skip]]
algorithm = "moon"
case = "all"

[table]
rows = ["algorithm"]
columns = "case"
"""


def sweep(text, **settings):
    return make_sweep(tomllib.loads(text), text, settings)


def test_the_grid_is_the_product_of_the_axes_without_what_is_skipped():
    grid = sweep(GRID)
    assert grid.axes == {
        "algorithm": ("fedavg", "moon"),
        "seed": ("0", "1"),
        "case": ("original", "glob 0.1/x", "all"),
    }
    names = [cell.name for cell in grid.cells]
    assert names[:3] == ["fedavg-0-original", "fedavg-0-glob_0.1_x", "fedavg-0-all"]
    assert len(names) == len(set(names)) == 2 * 2 * 3 - 2
    assert (grid.title, grid.about, grid.text) == ("A title", "What it is about.", GRID)
    assert (grid.table.rows, grid.table.columns, grid.table.kind) == (
        ("algorithm",),
        "case",
        "accuracy",
    )


def test_each_cell_has_the_settings_of_preset_base_and_its_choices():
    cells = {cell.name: cell for cell in sweep(GRID).cells}
    steered = cells["moon-1-glob_0.1_x"]
    assert steered.labels == {"algorithm": "moon", "seed": "1", "case": "glob 0.1/x"}
    config = steered.config
    assert (config.algorithm, config.seed, config.improve) == ("moon", 1, ("sampling",))
    assert (config.tau, config.moon_mu, config.rounds) == (0.1, 0.7, 3)
    assert config.train_size == preset("quick").train_size
    # what a cell has no use for is back at its default
    assert cells["fedavg-0-original"].config.tau == RunConfig().tau
    assert cells["fedavg-0-original"].config.moon_mu == RunConfig().moon_mu
    assert cells["fedavg-0-all"].config.tau == 0.3
    assert cells["fedavg-0-all"].config.local_weight == 2.0


def test_settings_go_over_the_base():
    assert {cell.config.rounds for cell in sweep(GRID, rounds=9).cells} == {9}


def test_a_cell_has_a_folder(tmp_path):
    cell = sweep(GRID).cells[1]
    assert cell_folder(tmp_path, cell) == tmp_path / "cells" / "fedavg-0-glob_0.1_x"


AXIS = "[axes]\nseed = [0, 1]\n"
TABLE = "[axes]\nlr = [0.1]\nseed = [0]\n[table]\nrows = ['lr']\ncolumns = 'seed'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axis = 1\n" + AXIS, "unknown entry 'axis'; known: title"),
        ("base = 3\n" + AXIS, "base must be a table, got 3"),
        ("skip = 3\n" + AXIS, "skip must be a list of tables, got 3"),
        ("title = 3\n" + AXIS, "title must be a text, got 3"),
        ("title = 'x'", r"\[axes\] must name at least one axis"),
        ("[axes]\nseed = []", "axis 'seed' must be a list of different values"),
        ("[axes]\nseed = [1, 1]", "axis 'seed' must be a list of different values"),
        ("[axes]\nseed = 1", "axis 'seed' must be a list of different values"),
        ("[axes]\ncase = ['a']", "axis 'case' is a list, so it must be a setting of a run"),
        ("[axes.case]\na = 1", "axis 'case' must be"),
        (AXIS + "[base]\nround = 3", "cell 0: unknown setting 'round'; did you mean rounds"),
        (AXIS + "[base]\nrounds = 0", "cell 0: rounds must be at least 1, got 0"),
        (AXIS + "[base]\nrounds = 'x'", "cell 0: rounds must be a whole number"),
        (AXIS + "[base]\ntau = 0.3", r"\[base\] tau = 0.3 has no effect in any cell: no cell"),
        (AXIS + "[base]\nseed = 3", r"\[base\] seed = 3 has no effect in any cell: axis seed"),
        (AXIS + "[base]\nseed = 0", r"\[base\] seed = 0 has no effect in any cell: axis seed"),
        (AXIS + "[axes.case]\na = {tau = 0.1}", "cell 0-a: tau = 0.1 has no effect"),
        (AXIS + "[axes.case]\na = {seed = 1}", "two axes set seed, the second is case = a"),
        (AXIS + "[axes.case]\na = {}\nb = {}", "cells 0-a and 0-b have the same settings"),
        ("[axes.case]\n'a b' = {seed = 1}\na_b = {}", "2 cells are called a_b"),
        (AXIS + "[[skip]]\nseed = 7", "skip: there is no seed = 7"),
        (AXIS + "[[skip]]\ncase = 7", "skip: there is no case = 7"),
        (AXIS + "[[skip]]\n", "skip must be a table of axis = label"),
        (AXIS + "[[skip]]\nseed = 0\n[[skip]]\nseed = 1", "every cell of the grid is skipped"),
        (AXIS + "[table]\nrows = ['case']\ncolumns = 'seed'", "must name axes, got 'case'"),
        (AXIS + "[table]\nrows = ['seed']", "must name axes, got ''"),
        (AXIS + "[table]\nfoo = 1", r"\[table\] may have rows"),
        (AXIS + "[table]\nrows = 3", r"\[table\] rows must be a list of axes, got 3"),
        (AXIS + "[table]\nrows = 'seed'", r"\[table\] rows must be a list of axes, got 'seed'"),
        (AXIS + "[table]\ncolumns = ['seed']", r"\[table\] columns must be a text"),
        (TABLE + "paper = 'tau'", "'tau' is no table of the paper; known: main_table.shakesp"),
        (TABLE + "paper = 'tau_table'", "'tau_table' needs reference, the sweep with the paper"),
        (TABLE + "reference = 'paper/taus'", "'paper/taus' is neither a file nor a shipped sweep"),
        (
            AXIS + "lr = [0.1, 0.2]\nmodel = ['cnn', 'mlp']\n"
            "[table]\nrows = ['lr']\ncolumns = 'seed'",
            "has no place for axis model",
        ),
        ("preset = 'huge'\n" + AXIS, "preset must be one of quick, paper"),
        (
            AXIS + "[base]\nimprove = ['sampling']\nindex_dropout = 1.0",
            r"cell 0: index_dropout must be in \[0, 1\), got 1.0",
        ),
    ],
)
def test_what_cannot_run_is_refused_by_name(text, message):
    with pytest.raises(ConfigError, match=message):
        sweep(text)


def test_a_file_is_named_in_its_errors(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[axes")
    with pytest.raises(ConfigError, match=r"mine\.toml is not a TOML file"):
        read_sweep(file)
    file.write_text("[axes]\n")
    with pytest.raises(ConfigError, match=r"mine\.toml: \[axes\] must"):
        read_sweep(file)
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"mine\.toml is not a TOML file"):
        read_sweep(file)
    with pytest.raises(ConfigError, match="nowhere is neither a file nor a shipped sweep; shipped"):
        read_sweep("nowhere")


@pytest.mark.parametrize("name", shipped_sweeps())
def test_every_shipped_sweep_is_one(name):
    read = read_sweep(name)
    assert read.title
    assert "[table]" in read.text
    assert Path(name).parts[0] in ("small", "paper", "study")
