"""Imports the package with one line more per made-up setting, and asks everybody about them.

grain   of the data           patina  of a run, and of its pace and memory
polish  of the machine        gloss   of an index: index_gloss of a run
"""

import importlib.util
import io
import json
import sys
import tomllib
from contextlib import redirect_stdout
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[2] / "c2v_sim"
LINES = {
    "c2v_sim.config.data": (
        "    min_samples: int =",
        '    grain: int = of_data(1, "of the samples", RESULT, least=0)\n',
    ),
    "c2v_sim.config.training": (
        "    rounds: int =",
        '    patina: int = of_training(2, "of the model", PACE | MEMORY, least=1)\n',
    ),
    "c2v_sim.config.machine": (
        "    checkpoint_every: int =",
        '    polish: int = of_machine(3, "of the case", PLACE)\n',
    ),
    "c2v_sim.index.config": (
        "    upload: int =",
        '    gloss: int = of_dsa_ign(4, "of the network", PACE, least=0)\n',
    ),
}


class OneMore(MetaPathFinder, Loader):
    """Loads the modules in LINES with their lines."""

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name in LINES else None

    def exec_module(self, module):
        file = ROOT / f"{module.__name__.removeprefix('c2v_sim.').replace('.', '/')}.py"
        before, lines = LINES[module.__name__]
        start, end = file.read_text().split(before)
        exec(compile(f"{start}{lines}{before}{end}", str(file), "exec"), module.__dict__)


sys.meta_path.insert(0, OneMore())

import torch

from c2v_sim import Federation
from c2v_sim.config import FIELDS, RunConfig, index_settings, make_config, saved_config, to_toml
from c2v_sim.index import __main__ as index_command
from c2v_sim.index.build import cache_path
from c2v_sim.index.checkpoint import Training, fingerprint, load_training, save_training
from c2v_sim.index.config import IndexConfig
from c2v_sim.report.groups import compared, group_runs
from c2v_sim.report.runs import Unstarted
from c2v_sim.run import settings as run_command
from c2v_sim.sweep import memory
from c2v_sim.sweep.__main__ import check_same
from c2v_sim.sweep.estimate import kind
from c2v_sim.sweep.file import Cell, read_sweep
from c2v_sim.sweep.runner import index_key
from c2v_sim.sweep.tables.deviations import compare_run
from c2v_sim.sweep.tables.results import CellRun
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.settings import Affects

STEERED = {"improve": ["sampling"]}
OTHERS = {"grain": 7, "patina": 7, "polish": 7, "index_gloss": 7}


def refusal(action, *arguments):
    try:
        action(*arguments)
    except ConfigError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def with_one(name):
    return make_config(STEERED | {name: OTHERS[name]})


def changing(key):
    """The made-up settings that change what `key` says of a configuration."""
    return {name for name in OTHERS if key(with_one(name)) != key(make_config(STEERED))}


def check_files_and_flags(folder):
    assert set(OTHERS) < set(FIELDS)
    config = make_config(STEERED | OTHERS)
    assert make_config(tomllib.loads(to_toml(config))) == config
    assert refusal(make_config, {"gloss": 1}).startswith("unknown setting 'gloss'; did you mean")
    assert "index_gloss = 7 has no effect with improve = nothing" in refusal(
        make_config, {"index_gloss": 7}
    )
    assert refusal(make_config, {"patina": 0}) == "patina must be at least 1, got 0"
    for command, names in ((run_command, OTHERS), (index_command, ("grain", "gloss"))):
        for name in names:
            flag = "--" + name.replace("_", "-")
            assert f"  {flag} N " in command.parser(everything=True).format_help(), flag
            assert flag not in command.parser().format_help()
    flags = ["--improve", "sampling", "--patina", "7", "--polish", "7", "--index-gloss", "7"]
    config, label = run_command.settings_of(run_command.parser().parse_args(flags))
    assert (config.patina, config.polish, config.index_gloss) == (7, 7, 7)
    assert label == "quick, changed: patina, improve, index_gloss", label
    (folder / "config.toml").write_text(to_toml(config))
    again = ["--resume", str(folder), "--polish", "8"]
    assert run_command.settings_of(run_command.parser().parse_args(again))[0].polish == 8
    again += ["--patina", "8", "--index-gloss", "9"]
    said = refusal(run_command.settings_of, run_command.parser().parse_args(again))
    assert said.endswith("other settings: patina (was 7, now 8); index_gloss (was 7, now 9)"), said
    (folder / "old.toml").write_text("rounds = 3\n")
    assert saved_config(folder / "old.toml") == RunConfig(rounds=3, conv="torch")


def check_index(folder):
    assert index_settings(with_one("index_gloss")).gloss == 7
    assert index_settings(RunConfig()) == IndexConfig()
    arguments = index_command.parser().parse_args(["--grain", "7", "--gloss", "7"])
    run, index = index_command.settings_of(arguments)
    assert (run.grain, index.gloss) == (7, 7)
    old, new = IndexConfig(), IndexConfig(gloss=7)
    assert fingerprint(new, "data")["gloss"] == "7"
    before = {k: v for k, v in fingerprint(old, "data").items() if k != "gloss"}
    training = Training(torch.zeros(1, 3), torch.zeros(2, 3))
    save_training(folder / "before.safetensors", training, before)
    load_training(folder / "before.safetensors", training, fingerprint(old, "data"))
    path = folder / "before.safetensors"
    assert "gloss: 4 there, 7 now" in refusal(
        load_training, path, training, fingerprint(new, "data")
    )
    x = torch.randn(40, 3)
    federation = Federation.from_arrays(x, (x[:, 0] > 0).long(), torch.arange(40) % 4)
    embeddings = SimpleNamespace(sha256="")
    paths = {cache_path(federation, config, embeddings, folder) for config in (old, new)}
    assert len(paths) == 2


def check_sweep(folder):
    assert changing(memory.data_key) == {"grain"}
    assert changing(kind) == changing(lambda c: kind(c, Affects.PACE)) == {"patina"}
    assert changing(index_key) == {"grain", "index_gloss"}
    measured = []
    memory.load_data = lambda config: None
    memory.expected_bytes = lambda config, dataset: measured.append(config) or 0
    memory.memory_needs([Cell(name, {}, with_one(name)) for name in OTHERS])
    assert [config.patina for config in measured] == [2, 7, 2]  # the first: other data
    file, (grown, paper) = folder / "sweep.toml", (folder / "grown.toml", make_config(STEERED))
    file.write_text("[base]\npatina = 5\npolish = 5\n[axes]\nseed = [0]\n")
    grown.write_text("[base]\npatina = 6\npolish = 6\n[axes]\nseed = [0]\n")
    said = refusal(check_same, folder, read_sweep(grown))
    assert "another sweep: patina of cell 0 (was 5, now 6). Name" in said
    for name in OTHERS:
        config = with_one(name)
        cell = Cell(name, {}, config)
        pairs = compare_run(CellRun(cell, "not run", config, "", None), paper)
        word = name.replace("_", " ")
        assert pairs.get(word) == (None if name == "polish" else ("7", str(FIELDS[name].default)))
    naive = make_config(STEERED | {"index": "feature-average"})
    pairs = compare_run(CellRun(Cell("", {}, naive), "not run", naive, "", None), paper)
    assert "index gloss" not in pairs


def check_report():
    def unstarted(name, config):
        return Unstarted(name, json.loads(json.dumps(vars(config))), "")

    for name in OTHERS:
        cells = [unstarted("a", with_one(name)), unstarted("b", make_config(STEERED))]
        groups = group_runs([], cells)
        assert len(groups) == (1 if name == "polish" else 2), name
        if name != "polish":
            word = name.replace("_", " ")
            assert groups[0].label == f"fedavg + sampling; {word} 7", groups[0].label
    old = vars(make_config(STEERED)).copy()
    del old["patina"], old["index_gloss"]
    facts = [compared(Unstarted("", c, ""), {}) for c in (old, vars(make_config(STEERED)))]
    assert json.dumps(facts[0], sort_keys=True) == json.dumps(facts[1], sort_keys=True)


folder = Path(sys.argv[1])
with redirect_stdout(io.StringIO()):
    check_files_and_flags(folder)
    check_index(folder)
    check_sweep(folder)
    check_report()
print("all of them know it")
