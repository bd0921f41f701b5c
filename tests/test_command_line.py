"""A net over the whole command line: generated commands against a model of what must happen."""

import contextlib
import functools
import io
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w
from command_server import Commands
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from settings_cases import Case, commands
from settings_model import expected

from c2v_sim.config import FIELDS
from c2v_sim.run import __main__ as run
from c2v_sim.run.presets import PRESETS

# Of a case that loads its data: little data, little work, nothing from the network.
SMALL = {"dataset": "shapes", "train_size": 60, "test_size": 40, "rounds": 1, "local_epochs": 1}
FROM_ELSEWHERE = ("index_encoder", "index_clip_model", "index_clip_weights", "data_dir")
SMALL_ENOUGH = {n: s for n, s in FIELDS.items() if n not in (*SMALL, *FROM_ELSEWHERE)}
CASES = 20 * settings.default.max_examples  # 2,000, or more with another profile (make fuzz)
REAL = CASES // 40
ONCE = [Phase.generate]  # a process is too slow to look for a smaller case
net = functools.partial(
    settings,
    deadline=None,
    derandomize=settings.default.max_examples == 100,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the commands are started; nothing may be left in it."""
    out = tmp_path_factory.mktemp("here")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(out)
        patch.setenv("C2V_DATA", str(out / "data"))
        yield out


def call(main, arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, standard output and error of a command that runs in this process."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        try:
            code = main(arguments)
        except SystemExit as stop:  # argparse
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def written(case: Case, folder: Path) -> str:
    """The case's file, outside of `folder`."""
    path = folder.parent / "case.toml"
    path.write_text(tomli_w.dumps(case.in_file or {}), encoding="utf-8")
    return str(path)


def check_refusal(code: int, out: str, err: str, names: set[str]) -> None:
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    *_, last = err.splitlines()
    assert last.startswith(("c2v_sim: error: ", "c2v_sim.run: error: "))
    assert any(name in last or name.replace("_", "-") in last for name in names), (last, names)


@net(max_examples=CASES)
@given(case=commands(FIELDS, PRESETS))
@example(case=Case(flags={"index_clip_model": "\x1e"}))  # ends a line
def test_a_command_is_accepted_or_refused_as_the_model_says(folder, case):
    config, at_fault = expected(case)
    arguments = case.arguments(written(case, folder))
    code, out, err = call(run.main, [*arguments, "--print-config"])
    assert os.listdir(folder) == []
    if config is None:
        check_refusal(code, out, err, at_fault)
        return
    assert (code, err) == (0, "")
    assert tomllib.loads(out) == config
    again = folder.parent / "again.toml"
    again.write_text(out, encoding="utf-8")
    assert call(run.main, ["--config", str(again), "--print-config"]) == (0, out, "")


@pytest.fixture(scope="module")
def real():
    with Commands() as commands:
        yield commands


@net(max_examples=REAL, phases=ONCE)
@given(case=commands(FIELDS, PRESETS).filter(lambda case: expected(case)[0] is None))
def test_a_real_process_refuses_before_anything_is_written(folder, real, case):
    arguments = case.arguments(written(case, folder))
    check_refusal(*real.call("run", arguments, folder), expected(case)[1])
    assert os.listdir(folder) == []


def check_end(folder: Path, code: int, err: str) -> None:
    """A result or one clear sentence; nothing is left of what was refused."""
    assert "Traceback" not in err, err
    assert code in (0, 1, 2)
    left = set(os.listdir(folder)) - {"data"}
    assert left == (set() if code == 2 else {"run"}), (left, err)
    if code:
        assert err.splitlines()[-1].startswith("c2v_sim: error: "), err
    for name in left:
        shutil.rmtree(folder / name)


@net(max_examples=REAL, phases=ONCE)
@given(case=commands(SMALL_ENOUGH, (), least=2))
def test_a_real_process_begins_or_refuses_whatever_the_model_accepts(folder, real, case):
    case.flags = SMALL | {"clients": 3} | case.flags
    assume(expected(case)[0] is not None)
    arguments = [*case.arguments(""), "--out", "run"]
    code, _, err = real.call("run", arguments, folder, without=["prepare_index", "execute"])
    check_end(folder, code, err)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"algorithm": "feddyn", "feddyn_alpha": 9, "lda": "per_class", "alpha": 2},
        {
            "algorithm": "moon",
            "participation": 0.3,
            "augment": "crop-flip",
            "improve": ["local"],
            "sampling": "size",
        },
        {"weight_decay": 1.8e198, "momentum": 0.95},  # not finite
        {"improve": ["local", "sampling"], "index": "class-prototypes", "lr": 5e-324},
    ],
)
def test_a_real_process_trains(folder, real, flags):
    case = Case(flags=SMALL | {"clients": 3, "model": "linear"} | flags)
    assert expected(case)[0] is not None
    code, _, err = real.call("run", [*case.arguments(""), "--out", "run"], folder)
    assert code == (1 if "weight_decay" in flags else 0), err
    assert (folder / "run/result.json").exists() == (code == 0)
    check_end(folder, code, err)


def test_a_plain_process_says_the_same(tmp_path):
    """Without the server: the shell's own way, with bytes that are no text."""
    for argument, code, said in (
        (b"--rounds=3", 0, "rounds = 3\n"),
        (b"--rounds=0", 2, "c2v_sim: error: rounds must be at least 1, got 0\n"),
        (
            b"--index-clip-model=\x1b[2J\n\x1e",
            2,
            "index_clip_model = \\x1b[2J\\n\\x1e has no effect",
        ),
        (b"--\x1b[2J", 2, "unrecognized arguments: --\\x1b[2J\n"),
        (b"--pretrained=\xff", 2, "c2v_sim: error: pretrained must be text in UTF-8"),
    ):
        command = [sys.executable, "-P", "-m", "c2v_sim.run", argument, "--print-config"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code
        assert said in (done.stderr if code else done.stdout)
        assert os.listdir(tmp_path) == []
