"""Finds, downloads and reads Shakespeare's plays, and makes the samples of LEAF from its roles.

Enters: a folder with the raw text (Project Gutenberg #100, World Library edition), which plays.py
cuts into one string per role. Leaves: `Split`, one text of all chosen roles, uint8 [T], in which
training and test windows are start positions; then the data set, with roles as clients. The target
of a window is the character after it.

Order of work, as in LEAF (niid, split by sample): parse, sample whole roles, drop small roles,
split each by time. LEAF samples roles in the order in which the file system lists them; here they
are sorted by name and then shuffled with the seed, so that a seed means the same everywhere.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from c2v_sim.data.dataset import Dataset, content_hash
from c2v_sim.data.sources import made_up_speech
from c2v_sim.data.sources.download import fetch
from c2v_sim.data.sources.plays import parse
from c2v_sim.data.sources.source import Request, Source, StandIn
from c2v_sim.data.text_windows import Windows
from c2v_sim.system.archive import read_zip
from c2v_sim.system.errors import DataError, Unreachable
from c2v_sim.system.seeding import PARTITION, rng

# LEAF's 80 symbols.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
UNKNOWN = len(ALPHABET) - 1  # LEAF's find() gives -1 for other characters, which means the last
WINDOW = 80

TEXT, ARCHIVE, MEMBER = "shakespeare.txt", "1994-01-100.zip", "100.txt"
MOST_BYTES = 2**26  # of the text, which has 5.6 MB
URLS = (  # where LEAF fetches it, and where the site has moved it since
    f"https://www.gutenberg.org/files/100/old/{ARCHIVE}",
    f"https://www.gutenberg.org/files/100/old/old/{ARCHIVE}",
)
# Of all roles' names and texts. Headers and line ends of the file vary between its postings (and
# hence the file's checksum); what is trained on must not.
ROLES_SHA256 = "2868ac2b812aa1a5cab6e96d94f74362cc2a641f0f504988e8fca99e08f1d140"


def load(request: Request) -> Dataset:
    """The plays; another text than the published one is refused."""
    if request.train_size or request.test_size:
        raise DataError(
            "shakespeare: choose its size by sample_fraction, not train_size, test_size"
        )
    roles, source = find(request.folder) or download(request.folder, request.progress)
    return _dataset(request, roles, source)


def load_standin(request: Request) -> Dataset:
    """Made-up speech, cut in the same way."""
    return _dataset(request, made_up_speech.speech(), "made up by c2v_sim", "shakespeare")


SOURCE = Source(
    "Shakespeare",
    load,
    standin=StandIn("made-up speech", load_standin),
    remedy=f"place {TEXT} (Project Gutenberg #100, World Library edition, posted 2011) or "
    f"{ARCHIVE} (from {URLS[0]}) in {{folder}}, or name the folder that has it with --data-dir",
    own_clients=True,
    chosen_by_seed=True,
    text=True,
    model="lstm",
    settings=("sample_fraction", "min_samples", "train_fraction"),
)


def _dataset(
    request: Request, roles: dict[str, str], source: str, standin_for: str | None = None
) -> Dataset:
    parts = split(
        roles,
        sample_fraction=request.sample_fraction,
        min_samples=request.min_samples,
        train_fraction=request.train_fraction,
        seed=request.seed,
    )
    text = torch.from_numpy(parts.text)
    train, test = torch.from_numpy(parts.x_train), torch.from_numpy(parts.x_test)
    x_train, x_test = Windows(text, train, WINDOW), Windows(text, test, WINDOW)
    y_train, y_test = text[train + WINDOW].long(), text[test + WINDOW].long()
    arrays: dict[str, torch.Tensor | Windows] = {
        "x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test
    }  # fmt: skip
    return Dataset(
        name=f"{standin_for}-standin(made-up-speech)" if standin_for else "shakespeare",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        class_names=tuple(ALPHABET),
        mean=(),
        std=(),
        source=f"{source}, sample_fraction {request.sample_fraction}, min_samples "
        f"{request.min_samples}, train_fraction {request.train_fraction}, seed {request.seed}",
        sha256=content_hash(arrays),
        client_train=torch.from_numpy(parts.client_train),
        client_test=torch.from_numpy(parts.client_test),
        client_names=parts.names,
        standin_for=standin_for,
    )


def find(folder: Path) -> tuple[dict[str, str], str] | None:
    """The roles in the folder's text or archive and the file's name, or None; damage is an error.

    Another text than the published one is refused.
    """
    for name in (TEXT, ARCHIVE):
        if os.path.exists(folder / name):
            return _checked_roles(folder / name), name
    return None


def download(folder: Path, progress: bool = True) -> tuple[dict[str, str], str]:
    """The roles of Project Gutenberg's archive; `Unreachable` with the reasons if offline."""
    reasons = []
    for url in URLS:
        try:
            path = fetch(url, folder / ARCHIVE, None, progress=progress)
        except Unreachable as error:
            reasons.append(str(error))
            continue
        try:
            return _checked_roles(path), url
        except DataError:
            path.unlink(missing_ok=True)  # never mistaken for good data by the next run
            raise
    raise Unreachable(
        f"shakespeare is not in {folder} and could not be downloaded ({'; '.join(reasons)})"
    )


def _checked_roles(path: Path) -> dict[str, str]:
    try:
        (content,) = (
            read_zip(path, [MEMBER], MOST_BYTES) if path.suffix == ".zip" else [path.read_bytes()]
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"shakespeare: cannot read {path} (truncated or damaged?): {error}; "
            "replace it, or remove it to have the data downloaded"
        ) from error
    roles = parse(content.decode("utf-8", errors="replace"))
    found = roles_hash(roles)
    if found != ROLES_SHA256:
        raise DataError(
            f"shakespeare: {path} is not the edition that LEAF uses (Project Gutenberg #100, World "
            f"Library, posted 2011): its {len(roles)} roles have SHA-256 {found[:12]}…, expected "
            f"{ROLES_SHA256[:12]}…; replace it by that text, or remove it to have it downloaded"
        )
    return roles


def roles_hash(roles: dict[str, str]) -> str:
    """SHA-256 of the lines "<role>\\t<text>\\n", sorted by role."""
    digest = hashlib.sha256()
    for name in sorted(roles):
        digest.update(f"{name}\t{roles[name]}\n".encode())
    return digest.hexdigest()


class Split(NamedTuple):
    text: np.ndarray  # uint8 [T], symbol numbers
    x_train: np.ndarray  # int64 [N], where windows start
    x_test: np.ndarray
    client_train: np.ndarray  # int64 [N], whose: a place in `names`
    client_test: np.ndarray
    names: tuple[str, ...]  # of the roles, sorted


def encode(text: str) -> np.ndarray:  # uint8 [len(text)]
    """The number of each character in ALPHABET; UNKNOWN for others."""
    table = np.full(129, UNKNOWN, dtype=np.uint8)
    table[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    return table[np.minimum(points, 128)]


def sample_roles(sizes: dict[str, int], fraction: float, seed: int) -> dict[str, int]:
    """How many of the first windows of which roles: whole roles in random order until `fraction`
    of all windows; the last one is cut."""
    names = sorted(name for name in sizes if sizes[name] > 0)
    wanted = int(fraction * sum(sizes[name] for name in names))
    taken: dict[str, int] = {}
    for k in rng(seed, PARTITION).permutation(len(names)):
        if wanted == 0:
            break
        taken[names[k]] = min(sizes[names[k]], wanted)
        wanted -= taken[names[k]]
    return taken


def split(
    roles: dict[str, str],
    *,
    sample_fraction: float,
    min_samples: int,
    train_fraction: float,
    seed: int,
) -> Split:
    """Training and test windows of the sampled roles.

    A role's n windows: the first max(1, int(train_fraction · n)) train; the test windows begin
    WINDOW - 1 later, so that no character of a test window is in a training window. (The last
    training target is the first character of the first test window, as in LEAF.)
    """
    taken = sample_roles(
        {name: len(text) - WINDOW for name, text in roles.items()}, sample_fraction, seed
    )
    texts, names, length = [], [], 0
    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    for name, n in sorted(taken.items()):
        first_test = max(1, int(train_fraction * n)) + WINDOW - 1
        if n < min_samples or first_test >= n:
            continue
        train.append(length + np.arange(first_test - WINDOW + 1))
        test.append(length + np.arange(first_test, n))
        texts.append(encode(roles[name][: n + WINDOW]))
        names.append(name)
        length += n + WINDOW
    if not names:
        raise DataError(
            f"shakespeare: of {len(taken)} sampled roles none has {min_samples} samples and a test "
            f"part (sample_fraction {sample_fraction}, min_samples {min_samples}, train_fraction "
            f"{train_fraction}, seed {seed}); raise sample_fraction or lower the others"
        )
    owner = np.arange(len(names))
    return Split(
        np.concatenate(texts),
        np.concatenate(train),
        np.concatenate(test),
        np.repeat(owner, [len(part) for part in train]),
        np.repeat(owner, [len(part) for part in test]),
        tuple(names),
    )
