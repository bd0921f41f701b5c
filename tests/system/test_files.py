"""Files that are whole or absent, and directories that one process uses at a time."""

import errno
import os
import subprocess
import sys
import threading

import pytest
from filelock import FileLock

from c2v_sim.system.errors import InUse
from c2v_sim.system.files import LOCK, in_use, make_directory, replacing, reserve


def test_writers_of_a_shared_file_do_not_meet(tmp_path):
    """Both are inside at the same time; each ends with a whole file, and nothing is left over."""
    path = tmp_path / "cache"
    inside = threading.Barrier(2, timeout=20)
    names, errors = [], []

    def write(text):
        try:
            with replacing(path, shared=True) as temporary:
                names.append(temporary.name)
                temporary.write_text(text)
                inside.wait()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(set(names)) == 2
    assert path.read_text() in ("one", "two")
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise MemoryError

    with pytest.raises(MemoryError):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_that_its_last_holder_deleted_is_taken_anew(tmp_path, monkeypatch):
    """Opened while another process held it, got after that one deleted it: it keeps nobody out."""
    acquire, taken = FileLock.acquire, []

    def too_late(lock):
        acquire(lock)
        taken.append(lock)
        if len(taken) == 1:
            (tmp_path / LOCK).unlink()

    monkeypatch.setattr(FileLock, "acquire", too_late)
    with in_use(tmp_path):
        assert len(taken) == 2
        with pytest.raises(InUse), in_use(tmp_path):
            pass
    assert not (tmp_path / LOCK).exists()


def test_a_directory_in_use_is_refused_to_another_process(tmp_path):
    program = (
        "import sys; from pathlib import Path; from c2v_sim.system.files import in_use\n"
        "with in_use(Path(sys.argv[1])): print('mine')"
    )

    def other():
        command = [sys.executable, "-P", "-c", program, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    with in_use(tmp_path):
        assert InUse.__name__ in other().stderr
    assert other().stdout == "mine\n"
    assert not (tmp_path / LOCK).exists()


def test_directories_that_want_one_name_get_one_each(tmp_path):
    """All are inside at the same time, as runs that begin in the same second are."""
    inside, waited, made = threading.Barrier(3, timeout=20), set(), []

    def fill(folder):
        name = threading.current_thread().name
        (folder / "file").write_text(name)
        if name not in waited and not made:  # those that try again do not wait
            waited.add(name)
            inside.wait()

    def make(numbered):
        try:
            made.append(make_directory(tmp_path / "run", fill, numbered=numbered).name)
        except FileExistsError as error:
            made.append(error.filename)

    threads = [threading.Thread(target=make, args=(True,), name=str(n)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(made) == ["run", "run-2", "run-3"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "run-2", "run-3"]
    assert {(tmp_path / name / "file").read_text() for name in made} == {"0", "1", "2"}
    make(numbered=False)
    assert made[-1] == str(tmp_path / "run")


@pytest.mark.parametrize("refused", [None, errno.EOPNOTSUPP])
def test_reserved_bytes_are_on_the_disk(tmp_path, monkeypatch, refused):
    """Also where the file system cannot reserve any."""

    def refuse(*_):
        raise OSError(refused, os.strerror(refused))

    if refused:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    size = (1 << 20) + 5000
    with (tmp_path / "rows").open("w+b") as file:
        reserve(file, size)
        found = os.stat(file.fileno())
    assert found.st_size == size
    assert found.st_blocks * 512 >= size
    assert (tmp_path / "rows").read_bytes() == bytes(size)


def test_what_cannot_be_reserved_is_an_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (tmp_path / "rows").open("w+b") as file, pytest.raises(OSError, match="No space left"):
        reserve(file, 10)
    assert (tmp_path / "rows").stat().st_size == 0
