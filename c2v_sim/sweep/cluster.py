"""--ray: the processes of a sweep on a Ray cluster, where sweep/jobs.py has them on this machine.

A job is a Ray task that asks for its cores, memory and GPU, and starts the same process there. The
sweep's directory (and the data folder, where indices are cached) must be on a file system that all
nodes see. A node that dies loses only the jobs it had: Ray tries them again elsewhere, and they go
on from their checkpoints.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from c2v_sim.sweep.jobs import SECONDS_BETWEEN_CHECKS, Job
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.files import LOCK
from c2v_sim.system.interrupt import Interrupt

RETRIES = 5  # of a job whose node died
SECONDS_UNTIL_FREE = 120.0  # until the lock of a process on a node that died is free


def connect(address: str) -> Any:
    """Ray, connected to the cluster at `address`; empty: to the one here, or to one of its own."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"--ray needs a package that is not there ({error}); "
            "install it with: pip install 'c2v_sim[ray]'"
        ) from error
    try:
        if not ray.is_initialized():
            ray.init(address or None, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise ConfigError(
            f"--ray {address}: no cluster answers there ({error}); start one with `ray start "
            "--head`, or leave the address out"
        ) from error
    return ray


def resources(job: Job, cluster: dict[str, float]) -> dict[str, float]:
    """What a task of Ray asks for; refused where no cluster of that size is there."""
    wanted = {"CPU": float(job.cores), "memory": float(job.needs), "GPU": float(job.gpus)}
    for name, amount in wanted.items():
        if amount > cluster.get(name, 0.0):
            raise ConfigError(
                f"--ray: {job.name} needs {amount:g} {name}, and the whole cluster has "
                f"{cluster.get(name, 0.0):g}"
            )
    return {"num_cpus": wanted["CPU"], "memory": wanted["memory"], "num_gpus": wanted["GPU"]}


def run_on_ray(
    jobs: list[Job],
    at_once: int,
    interrupt: Interrupt,
    *,
    ended: Callable[[Job, int], None],
    watch: Callable[[list[Job]], None] = lambda running: None,
    take: Callable[[Job], bool] = lambda job: True,
) -> None:
    """run_jobs (sweep/jobs.py) on the cluster, whose size says how many run at once."""
    import ray

    assert interrupt.stop is not None
    # The function itself travels, so that a task that only waits for a process needs no torch.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    start, cluster = ray.remote(run_process), ray.cluster_resources()
    running: dict[Any, Job] = {}
    for job in jobs:
        if take(job):
            task = start.options(max_retries=RETRIES, name=job.name, **resources(job, cluster))
            job.started = time.monotonic()
            job.log.touch()  # it is looked at before the task has begun
            running[task.remote(*facts(job))] = job
    told = False
    while running:
        if interrupt.stop.is_set() and not told:
            told = True
            for reference in running:
                ray.cancel(reference)
        done, _ = ray.wait(list(running), num_returns=1, timeout=SECONDS_BETWEEN_CHECKS)
        for reference in done:
            job = running.pop(reference)
            ended(job, exit_code(ray, reference, job))
        watch(list(running.values()))


def exit_code(ray: Any, reference: Any, job: Job) -> int:
    """Of a task that has ended; 1 where Ray gave it up, which the log then says."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        with job.log.open("a") as log:
            log.write(f"c2v_sim: error: Ray gave it up after {RETRIES} tries: {error}\n")
        return 1


def facts(job: Job) -> tuple:
    """The arguments of run_process, in types of Python's own."""
    names = ("C2V_DATA", "PYTHONPATH")
    environment = {n: os.environ[n] for n in names if n in os.environ}
    folder = None if job.folder is None else str(job.folder.resolve())
    return job.command, job.command_again, folder, str(job.log.resolve()), environment, os.getcwd()


def run_process(
    command: list[str],
    command_again: list[str],
    folder: str | None,
    log: str,
    environment: dict[str, str],
    where: str,
) -> int:
    """On a node: the process of a job, begun or gone on with; its exit code."""
    if folder is not None and Path(folder).exists():
        command = command_again
        wait_until_free(Path(folder))
    parent = os.getpid()
    with open(log, "ab") as file:
        process = subprocess.Popen(
            [sys.executable, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            cwd=where if os.path.isdir(where) else None,
            start_new_session=True,
            preexec_fn=(lambda: die_with(parent)) if sys.platform == "linux" else None,
        )
    try:
        return process.wait()
    except KeyboardInterrupt:  # ray.cancel: the run ends in order
        process.send_signal(signal.SIGINT)
        return process.wait()


def die_with(parent: int) -> None:
    """In a new process: the system kills it when the process `parent` ends, however it does."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def wait_until_free(folder: Path) -> None:
    """Until a process that was here before has let go of the directory."""
    lock = FileLock(folder / LOCK, timeout=SECONDS_UNTIL_FREE)
    try:
        lock.acquire()
        lock.release()
    except Timeout:
        return  # the run says who has it
