"""Reads damaged files and says what went wrong: `python file_net.py FOLDER [MOST [SEED [KIND…]]]`.

A process of its own, which forks for every kind of file before torch has any thread. The results
are printed and go to FOLDER/results.json: for each kind how many files were read, and a sentence
for each problem. Exit code 1 where there is one.
MOST: files of a kind, 0: all that `damages` gives; SEED: which, and where they are damaged;
KIND: names of READERS, without one all of them.

Allowed: a refusal (ValueError or OSError) that names the file, a fallback, or the very content that
the good file has. Never: another exception, executed code, more than BYTES of memory or SECONDS of
time for one file, a change of any file in the folder.
"""

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from file_damage import Damage, damages
from file_readers import READERS, Reader, make_run

BYTES, SECONDS = 1_500_000_000, 20


# What is never left out where only some of the files are read.
ALWAYS = ("empty", "bomb", "pickle", "deep", "claims", "of objects", "of many")


def main(folder: Path, most: int = 0, seed: int = 0, kinds: Sequence[str] = ()) -> int:
    """How many problems there are; each is printed."""
    unknown = [kind for kind in kinds if kind not in READERS]
    if unknown:
        sys.exit(f"file_net: no kind {unknown[0]!r}; there are {', '.join(READERS)}")
    make_run_in_child(folder / "run")
    results = {}
    for name in kinds or tuple(READERS):
        results[name] = problems_of(name, folder / name.replace(" ", "-"), most, seed)
        (folder / "results.json").write_text(json.dumps(results))
        count, problems = results[name]
        print(f"{name}: {count} files, {len(problems)} problems", *problems, sep="\n", flush=True)
    return sum(len(problems) for _, problems in results.values())


def make_run_in_child(out: Path) -> None:
    child = os.fork()
    if child == 0:
        make_run(out)
        os._exit(0)
    os.waitpid(child, 0)


def problems_of(name: str, folder: Path, most: int = 0, seed: int = 0) -> tuple[int, list[str]]:
    """How many files were read, and a sentence for each that was not read as it should be."""
    folder.mkdir(parents=True)
    report = folder / "report.txt"
    child = os.fork()
    if child == 0:
        _in_child(READERS[name], folder, report, most, seed)
    _, status = os.waitpid(child, 0)
    lines = report.read_text(errors="replace").splitlines()
    done = [json.loads(line) for line in lines if line.endswith("]")]
    problems = [f"{what}: {why}" for what, why in done if why]
    if os.waitstatus_to_exitcode(status):
        last = done[-1][0] if done else "the good file"
        problems.append(f"after {last}: the process ended with {os.waitstatus_to_exitcode(status)}")
    return len(done), problems


def _in_child(reader: Reader, folder: Path, report: Path, most: int, seed: int) -> None:
    code = 1
    try:
        with report.open("w") as out:
            sys.stderr = (folder / "said.txt").open("w+")
            for what, why in _cases(reader, folder, most, seed):
                out.write(json.dumps([what, why]) + "\n")
                out.flush()
        code = 0
    except BaseException:
        with report.open("a") as out:
            out.write(json.dumps(["making the good file", traceback.format_exc()]) + "\n")
    finally:
        os._exit(code)


def _cases(reader: Reader, folder: Path, most: int, seed: int) -> Iterator[tuple[str, str]]:
    warnings.simplefilter("ignore")
    (folder / "good").mkdir()
    path, marker = reader.make(folder / "good"), folder / "executed"
    good, content = reader.read(path), path.read_bytes()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    for what, damaged in chosen(damages(path, content, marker, seed), most, seed):
        path.write_bytes(damaged)
        before = _fingerprint(folder / "good")
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of work: the machine may be busy
        signal.alarm(30 * SECONDS)  # whose default action, as that of the other, ends the process
        why = _outcome(reader, path, good)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        if marker.exists():
            marker.unlink()
            why = "code in the file was executed"
        if _fingerprint(folder / "good") != before:
            why = "a file was changed, made or removed"
        yield what, why
    shutil.rmtree(folder / "good")


def chosen(every: list[Damage], most: int, seed: int) -> list[Damage]:
    """At most about `most` of them; those of ALWAYS are never left out."""
    if most == 0 or len(every) <= most:
        return every
    kept = [one for one in every if any(word in one[0] for word in ALWAYS)]
    others = [one for one in every if not any(word in one[0] for word in ALWAYS)]
    return kept + random.Random(seed).sample(others, max(0, min(len(others), most - len(kept))))


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
    return {
        str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files if "lock" not in p.name
    }


if __name__ == "__main__":
    sys.exit(int(main(Path(sys.argv[1]), *map(int, sys.argv[2:4]), kinds=sys.argv[4:]) > 0))
