"""Runs on ranks that fail, are stopped or killed: one message, no hang, and the same bits after."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from kill_driver import bits
from rank_misfortunes import RUN

from c2v_sim.run import __main__ as run

SUPPORT = Path(__file__).parents[1] / "support"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT)}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("misfortunes")
    environment = os.environ | ENVIRONMENT | {"C2V_DATA": str(folder / "data")}
    command = [sys.executable, "-P", str(SUPPORT / "rank_misfortunes.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "results.json").read_text())


# Case -> exit codes of the ranks, and what is said once.
ENDS = {
    "client fails": ([1, 1], ["rank 1 on", "round 3, client", "ZeroDivisionError", "--resume"]),
    "rank fails": ([1, 1, 1], ["rank 2 on", "round 2", "where nobody expects it", "--resume"]),
    "terminated": ([143, 143], ["terminated after round 2", "--resume"]),
    "interrupted alone": ([130], ["interrupted after round 1", "--resume"]),
    "killed, first": ([1, -9], ["rank 0 lost the others", "round 3", "after round 2", "--resume"]),
    "first killed, first": ([-9, 1], ["rank 1 lost the others", "round 3", "--resume"]),
    "not finite": ([1, 1], ["round 1, client", "not finite"]),
    "seeds": ([2, 2], ["rank 1 on", "seed", "2 there, 1 on rank 0"]),
    "versions": ([2, 2], ["rank 1 on", "version of torch", "1.13 there"]),
    "no data": ([2, 2], ["rank 1 on", "pacs"]),
    "bad input": ([2, 2], ["participation must be in (0, 1], got 2.0"]),
    "bad flag": ([2, 2], ["argument --model: invalid choice"]),
    "alone": ([2], ["did not meet the other 1 at localhost", "within 1 s", "--rank-timeout"]),
}


@pytest.mark.parametrize("case", ENDS)
def test_one_message_says_what_ended_the_run(results, case):
    codes, words = ENDS[case]
    assert results[case]["codes"] == codes, results[case]["said"]
    lines = [line for line in results[case]["said"].splitlines() if ": error: " in line]
    assert len(lines) == 1, results[case]["said"]
    assert all(word in lines[0] for word in words), lines[0]
    assert results[case]["said"].count("Traceback") == (case in ("client fails", "rank fails"))


@pytest.mark.parametrize(
    "case", ["terminated, resumed", "interrupted alone, resumed", "killed", "first killed"]
)
def test_going_on_ends_in_the_bits_of_a_run_that_nobody_stopped(results, case):
    assert set(results[case]["codes"]) == {0}, results[case]["said"]
    assert results[case]["bits"] == results["reference"]["bits"]


def test_ranks_without_a_client_idle_and_the_run_says_so(results):
    assert results["idle"]["codes"] == [0, 0, 0, 0]
    assert "4 ranks, of which 2 idle: a cohort has 2 clients" in results["idle"]["said"]
    assert results["idle"]["said"].count("round 4/4") == 1


@pytest.mark.parametrize(
    ("flags", "started", "words"),
    [
        (["--ranks", "3"], "2", "torchrun has started 2 already"),
        (["--max-restarts", "1"], None, "--max-restarts goes with --ranks"),
        (["--ranks", "2", "--rank-timeout", "0"], None, "--rank-timeout above 0, got 0 and 0"),
        (["--ranks", "2", "--max-restarts", "-1"], None, "at least 0"),
    ],
)
def test_flags_about_ranks_without_effect_are_refused(monkeypatch, capsys, flags, started, words):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if started else ():
        monkeypatch.setenv(name, started)
    assert run.main(flags) == 2
    assert words in capsys.readouterr().err


def wait_for_rounds(out, count, process):
    """Until so many rounds are recorded."""
    file = out / "rounds.jsonl"
    while not file.exists() or file.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def rank_of(process):
    with_rank = process.environ().get("RANK")
    return None if with_rank is None else int(with_rank)


@pytest.mark.slow
def test_ranks_by_one_flag_killed_then_terminated(tmp_path, monkeypatch):
    """--ranks starts torchrun: a rank that is killed is started anew, SIGTERM reaches all."""
    monkeypatch.setenv("C2V_DATA", str(tmp_path / "data"))
    arguments = RUN.replace("--rounds 4", "--rounds 60").replace("epochs 1", "epochs 8").split()
    assert run.main([*arguments, "--out", str(tmp_path / "alone")]) == 0
    out = tmp_path / "shared"
    command = [sys.executable, "-P", "-m", "c2v_sim.run", *arguments, "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--ranks", "2", "--max-restarts", "1"], stderr=subprocess.PIPE, text=True
    )
    wait_for_rounds(out, 3, process)
    children = psutil.Process(process.pid).children()
    os.kill(next(c.pid for c in children if rank_of(c) == 1), signal.SIGKILL)
    done = (out / "rounds.jsonl").read_bytes().count(b"\n")
    while any(c.is_running() and c.status() != psutil.STATUS_ZOMBIE for c in children):
        time.sleep(0.02)
    wait_for_rounds(out, done + 3, process)
    process.terminate()
    said = process.communicate()[1]
    assert process.returncode == 143, said
    assert said.count("lost the others") == said.count("terminated after round") == 1, said
    assert "resumed" in said
    assert run.main(["--resume", str(out)]) == 0
    assert bits(out) == bits(tmp_path / "alone")
