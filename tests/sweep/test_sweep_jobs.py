"""Processes of a sweep: how many at once, in which order, and how they end with it."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from c2v_sim.run.reader import reason
from c2v_sim.sweep import jobs as sweep_jobs
from c2v_sim.sweep.jobs import Job, fits, run_jobs, shares_of
from c2v_sim.system.interrupt import Interrupt

SAY = "import sys, time; from pathlib import Path; print(sys.argv[1], flush=True); "


def meet(folder, name, other):
    """Code that ends once `name` and `other` have both begun: only side by side they can."""
    wait = f"while not Path({str(folder / other)!r}).exists(): time.sleep(0.01)"
    return f"Path({str(folder / name)!r}).touch()\n{wait}\n"


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch):
    monkeypatch.setattr(sweep_jobs, "SECONDS_BETWEEN_CHECKS", 0.01)


def job(folder, name, code="", **options):
    return Job(name, [sys.executable, "-c", SAY + code, name], folder / f"{name}.log", **options)


def interrupt():
    asked = Interrupt()
    asked.stop = threading.Event()
    return asked


def test_all_run_at_most_so_many_at_once_with_codes_and_logs(tmp_path):
    codes = [meet(tmp_path, str(i), str(i ^ 1)) + f"sys.exit({i})" for i in range(4)]
    jobs = [job(tmp_path, f"job{i}", code) for i, code in enumerate(codes)]
    ended, most = {}, []
    run_jobs(
        jobs,
        2,
        interrupt(),
        ended=lambda job, code: ended.update({job.name: code}),
        watch=lambda running: most.append(len(running)),
    )
    assert ended == {f"job{i}": i for i in range(4)}
    assert max(most) <= 2
    assert jobs[2].tail() == ["job2"]


def test_the_last_jobs_share_the_places_that_nobody_else_fills():
    assert shares_of(4, at_once=2, places=2) == [1, 1, 1, 1]
    assert shares_of(3, at_once=2, places=2) == [1, 1, 2]
    assert shares_of(1, at_once=2, places=2) == [2]
    assert shares_of(2, at_once=1, places=2) == [2, 2]  # --jobs 1
    assert shares_of(11, at_once=8, places=8) == [1] * 8 + [2] * 3
    assert shares_of(5, at_once=4, places=2) == [1, 1, 1, 1, 2]  # more jobs than places
    assert shares_of(0, at_once=2, places=2) == []


@pytest.mark.parametrize(
    ("code", "log", "said"),
    [
        (
            1,
            ["round 1", "c2v_sim: error: not finite; lower it. Done: here"],
            "not finite; lower it",
        ),
        (-9, ["round 13/60  ETA 1 s"], "killed by SIGKILL, perhaps for want of memory"),
        (-15, [], "killed by SIGTERM"),
        (1, ["ValueError: why"], "exit code 1: ValueError: why"),
        (3, [], "exit code 3"),
    ],
)
def test_why_a_job_failed(code, log, said):
    assert reason(code, log) == said


def test_a_log_is_appended_and_its_tail_is_short(tmp_path):
    (tmp_path / "a.log").write_text("before\n" * 30)
    a = job(tmp_path, "a", "raise ValueError('why')")
    run_jobs([a], 1, interrupt(), ended=lambda job, code: None)
    assert len(a.tail()) == 15
    assert a.tail(1) == ["ValueError: why"]
    assert (tmp_path / "a.log").read_text().startswith("before")


def test_memory_decides_who_starts_beside_others(tmp_path, monkeypatch):
    available = 1000
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: type("Memory", (), {"available": available})
    )
    big, small = job(tmp_path, "big", needs=2000), job(tmp_path, "small", needs=500)
    assert fits(big, [])  # alone it may try
    running = job(tmp_path, "running", "time.sleep(60)", needs=0)
    running.start()
    try:
        assert fits(small, [running])
        assert not fits(big, [running])
        running.needs = running.memory() + 10**9  # it will still grow
        assert not fits(small, [running])
    finally:
        running.process.kill()
        running.process.wait()
    assert running.peak > 0


def test_a_signal_is_passed_on_and_nothing_new_starts(tmp_path):
    handler = "import signal; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True); "
    jobs = [job(tmp_path, name, handler + "time.sleep(60)") for name in ("a", "b", "c")]
    asked, ended = interrupt(), {}

    def look(running):
        if all("up" in j.log.read_text() for j in jobs[:2] if j.log.exists()) and len(running) == 2:
            asked.number = signal.SIGTERM
            asked.stop.set()

    run_jobs(jobs, 2, asked, ended=lambda job, code: ended.update({job.name: code}), watch=look)
    assert ended == {"a": 7, "b": 7}
    assert jobs[2].process is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_sweep_takes_its_processes_along(tmp_path):
    script = f"""
import sys, threading
from pathlib import Path
from c2v_sim.system.interrupt import Interrupt
from c2v_sim.sweep.jobs import Job, run_jobs
asked = Interrupt(); asked.stop = threading.Event()
code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
job = Job("j", [sys.executable, "-c", code], Path({str(tmp_path)!r}) / "j.log")
run_jobs([job], 1, asked, ended=lambda job, code: None)
"""
    parent = subprocess.Popen([sys.executable, "-P", "-c", script])
    log, end = tmp_path / "j.log", time.monotonic() + 60
    while not (log.exists() and log.read_text().strip()) and time.monotonic() < end:
        time.sleep(0.05)
    child = psutil.Process(int(log.read_text()))
    assert os.getsid(child.pid) != os.getsid(parent.pid)  # Ctrl-C does not reach it
    parent.kill()
    parent.wait()
    child.wait(timeout=30)
