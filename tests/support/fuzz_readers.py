"""The readers under atheris, guided by coverage: `python fuzz_readers.py [SECONDS [READER…]]`.

Every reader is fuzzed for SECONDS in a process of its own that begins with the good file and the
structured damage of it. The first file that is neither refused by name nor read ends it: the file
is kept as `crash-*` where this was started. Readers whose bytes are guarded by a checksum of the
whole file gain little from flipping bits and are left to file_net.py.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("config", "sweep", "run manifest", "run records", "partition", "pacs npz", "png image")
NAMES += ("index", "cache", "cifar10 pickle", "pretrained pth", "pretrained safetensors")
MOST_BYTES = 1 << 16


def fuzz(name: str, seconds: int) -> None:
    """In this process; it does not return."""
    import atheris

    with atheris.instrument_imports(include=["c2v_sim", "tomllib", "json"]):
        from file_damage import damages
        from file_net import _outcome
        from file_readers import READERS
    folder = Path(tempfile.mkdtemp()) / "a" / "b"
    folder.mkdir(parents=True)
    path, reader = READERS[name].make(folder), READERS[name]
    good, content = reader.read(path), path.read_bytes()
    corpus = Path(tempfile.mkdtemp())
    for number, (_, damaged) in enumerate(damages(path, content, folder / "executed")):
        if len(damaged) <= MOST_BYTES:
            (corpus / str(number)).write_bytes(damaged)
    sys.stderr = (folder.parent / "said.txt").open("w+")

    def one(data: bytes) -> None:
        path.write_bytes(data)
        why = _outcome(reader, path, good)
        if why or (folder / "executed").exists():
            raise RuntimeError(f"{name}: {why or 'code in the file was executed'}")

    limits = [f"-max_total_time={seconds}", f"-max_len={MOST_BYTES}", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], *limits, "-verbosity=0", str(corpus)], one)
    atheris.Fuzz()


def main(seconds: int, names: tuple[str, ...]) -> int:
    failed = []
    for name in names:
        command = [sys.executable, "-P", __file__, "--one", name, str(seconds)]
        done = subprocess.run(command, env=os.environ | {"MPLBACKEND": "agg"})
        print(f"{name}: {'clean' if done.returncode == 0 else 'FAILED'}", flush=True)
        failed += [name] if done.returncode else []
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        fuzz(sys.argv[2], int(sys.argv[3]))
    else:
        seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
        sys.exit(main(seconds, tuple(sys.argv[2:]) or NAMES))
