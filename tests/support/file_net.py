"""Reads damaged files in a process of its own and says what went wrong: `problems_of(name, …)`.

Allowed: a refusal (ValueError or OSError) that names the file, a fallback, or the very content that
the good file has. Never: another exception, executed code, more than BYTES of memory or SECONDS of
time for one file, a change of any file in the folder.
"""

import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from file_damage import damages
from file_readers import READERS, Reader

BYTES, SECONDS = 1_500_000_000, 20


def problems_of(name: str, folder: Path, seed: int = 0, flips: int = 12) -> tuple[int, list[str]]:
    """How many files were read, and a sentence for each that was not read as it should be."""
    folder.mkdir(parents=True)
    report = folder / "report.txt"
    child = os.fork()
    if child == 0:
        _in_child(READERS[name], folder, report, seed, flips)
    _, status = os.waitpid(child, 0)
    lines = report.read_text(errors="replace").splitlines()
    done = [json.loads(line) for line in lines if line.endswith("]")]
    problems = [f"{what}: {why}" for what, why in done if why]
    if os.waitstatus_to_exitcode(status):
        last = done[-1][0] if done else "the good file"
        problems.append(f"after {last}: the process ended with {os.waitstatus_to_exitcode(status)}")
    return len(done), problems


def _in_child(reader: Reader, folder: Path, report: Path, seed: int, flips: int) -> None:
    code = 1
    try:
        with report.open("w") as out:
            sys.stderr = (folder / "said.txt").open("w+")
            for what, why in _cases(reader, folder, seed, flips):
                out.write(json.dumps([what, why]) + "\n")
                out.flush()
        code = 0
    except BaseException:
        with report.open("a") as out:
            out.write(json.dumps(["making the good file", traceback.format_exc()]) + "\n")
    finally:
        os._exit(code)


def _cases(reader: Reader, folder: Path, seed: int, flips: int) -> Iterator[tuple[str, str]]:
    warnings.simplefilter("ignore")
    (folder / "good").mkdir()
    path, marker = reader.make(folder / "good"), folder / "executed"
    good, content = reader.read(path), path.read_bytes()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    for what, damaged in damages(path, content, marker, seed, flips):
        path.write_bytes(damaged)
        before = _fingerprint(folder / "good")
        signal.alarm(SECONDS)
        why = _outcome(reader, path, good)
        signal.alarm(0)
        if marker.exists():
            marker.unlink()
            why = "code in the file was executed"
        if _fingerprint(folder / "good") != before:
            why = "a file was changed, made or removed"
        yield what, why
    shutil.rmtree(folder / "good")


def _outcome(reader: Reader, path: Path, good: object) -> str:
    """What is wrong with how the file was read; empty: nothing."""
    sys.stderr.seek(0)
    sys.stderr.truncate()
    names = (path.name, str(path.parent), str(path.parents[1]))
    try:
        found = reader.read(path)
    except (ValueError, OSError) as error:
        return "" if any(name in str(error) for name in names) else f"names no file: {error!r:.300}"
    except MemoryError:
        return f"more than {BYTES / 1e9} GB of memory"
    except Exception as error:
        return "".join(traceback.format_exception(error)[-3:])[-700:]
    if found == good:
        return ""
    sys.stderr.seek(0)
    said = sys.stderr.read()
    return "" if path.name in said or str(path.parent) in said else "other content, without a word"


def _fingerprint(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files if "lock" not in p.name}
