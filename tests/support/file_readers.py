"""Every file that the program reads: how a small good one is made, and how the program reads it.

`READERS` has a line for each. `read` gives what was understood, in a form that can be compared, or
None where nothing in the file vouches for its content (an image with other pixels is an image).
"""

import dataclasses
import gzip
import hashlib
import io
import json
import pickle
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from federations import image_federation, made_up_index
from PIL import Image
from safetensors.torch import save_file

from c2v_sim import RunConfig, Simulator
from c2v_sim.config import FIELDS, to_toml
from c2v_sim.data.partition import Partition
from c2v_sim.data.sources import cifar10, domainnet, fashion_mnist, image_folders, pacs, shakespeare
from c2v_sim.data.sources.source import Request
from c2v_sim.index import __main__ as index_command
from c2v_sim.index.checkpoint import Training, load_training, save_training
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.models.pretrained import load_pretrained
from c2v_sim.report.groups import group_runs
from c2v_sim.report.page_data import document
from c2v_sim.report.runs import read_runs
from c2v_sim.run import settings as run_settings
from c2v_sim.run.checkpoint import load_checkpoint
from c2v_sim.run.files import add_index, create_run_directory, to_json
from c2v_sim.run.index import directory_settings
from c2v_sim.run.journal import Journal
from c2v_sim.run.results import write_results
from c2v_sim.sweep.file import read_sweep
from c2v_sim.system import tensor_file
from c2v_sim.system.errors import ConfigError, DataError

SMALL = {"model": "linear", "rounds": 2, "participation": 0.5, "local_epochs": 1, "batch_size": 8}
SMALL |= {"lanes": 1, "clients": 6, "improve": ("sampling", "aggregation", "local"), "lr": 0.05}


@dataclass(frozen=True)
class Reader:
    make: Callable[[Path], Path]  # in an empty folder; the file that is to be damaged
    read: Callable[[Path], object]


# ---- data sets -------------------------------------------------------------------------------


def cifar(folder: Path) -> cifar10.Arrays:
    cifar10.RECORDS = 2
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    y = rng.integers(0, 10, 12, dtype=np.uint8)
    return cifar10.Arrays(x[:10], y[:10], x[10:], y[10:])


def cifar_npz(folder: Path) -> Path:
    np.savez(folder / "cifar10.npz", **cifar(folder)._asdict())
    return folder / "cifar10.npz"


def cifar_batches(folder: Path) -> dict[str, bytes]:
    arrays = cifar(folder)
    x, y = np.concatenate(arrays[::2]), np.concatenate(arrays[1::2])
    planes = x.transpose(0, 3, 1, 2).reshape(12, 3072)
    batches = {}
    for k, name in enumerate(cifar10.BATCH_SHA1):
        rows = slice(2 * k, 2 * k + 2)
        batches[name] = pickle.dumps({b"data": planes[rows], b"labels": y[rows].tolist()}, 4)
    return batches


def cifar_archive(folder: Path) -> Path:
    path = folder / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in cifar_batches(folder).items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def cifar_folder(folder: Path) -> Path:
    inside = folder / "cifar-10-batches-py"
    inside.mkdir()
    for name, content in cifar_batches(folder).items():
        (inside / name).write_bytes(content)
    return inside / "test_batch"


def read_cifar(path: Path) -> None:
    folder = path.parent if path.suffix else path.parents[1]
    arrays = cifar10.find(folder)
    cifar10.wrong_batches(arrays[0])


def clothes(folder: Path) -> Path:
    """The test images; the other files are beside them."""
    fashion_mnist.SIDE, fashion_mnist.SYSTEM_FOLDER = 4, folder / "none"
    for field, (name, _, md5) in fashion_mnist.FILES.items():
        fashion_mnist.FILES[field] = (name, 20, md5)
        sizes = (20, 4, 4) if field.startswith("x") else (20,)
        head = np.array([0x800 + len(sizes), *sizes], dtype=">u4").tobytes()
        content = head + np.random.default_rng(0).integers(0, 10, sizes, np.uint8).tobytes()
        (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
    return folder / f"{fashion_mnist.FILES['x_test'][0]}.gz"


def read_clothes(path: Path) -> str:
    try:
        return fashion_mnist.load(Request(path.parent)).sha256
    except DataError as error:  # no miniature has the hash of the published images
        if found := re.search("content hash ([0-9a-f]{64})", str(error)):
            return found[1]
        raise


def pacs_npz(folder: Path) -> Path:
    pacs.SIDE, pacs.COUNTS = 4, dict.fromkeys(pacs.DOMAIN_NAMES, (5,) * 7)
    cells = [(d, c, k) for d in range(4) for c in range(7) for k in range(5)]
    names = [f"{pacs.DOMAIN_NAMES[d]}/{pacs.CLASS_NAMES[c]}/{k}.jpg" for d, c, k in cells]
    x = np.random.default_rng(0).integers(0, 256, (len(cells), 4, 4, 3), dtype=np.uint8)
    label, domain = np.array([c for _, c, _ in cells]), np.array([d for d, _, _ in cells])
    np.savez(
        folder / "pacs64.npz", x=x, label=label, domain=domain, names=np.array(names),
        class_names=np.array(pacs.CLASS_NAMES), domain_names=np.array(pacs.DOMAIN_NAMES),
    )  # fmt: skip
    return folder / "pacs64.npz"


def plays(folder: Path) -> bytes:
    text = "\n".join(f"  ANNA. Line {n} of a play, which is long enough." for n in range(40))
    shakespeare.ROLES_SHA256 = shakespeare.roles_hash(shakespeare.parse(text))
    return text.encode()


def shakespeare_text(folder: Path) -> Path:
    (folder / "shakespeare.txt").write_bytes(plays(folder))
    return folder / "shakespeare.txt"


def shakespeare_zip(folder: Path) -> Path:
    path = folder / shakespeare.ARCHIVE
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(shakespeare.MEMBER, plays(folder))
    return path


def read_plays(path: Path) -> object:
    return shakespeare.find(path.parent)[0]


def image_bytes(kind: str) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def domain_list(folder: Path) -> Path:
    (folder / "real_train.txt").write_text("real/cat/a.jpg 7\nreal/dog/b.jpg 8\n")
    return folder / "real_train.txt"


def domain_zip(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "real.zip", "w") as archive:
        archive.writestr("real/cat/a.jpg", image_bytes("jpeg"))
    return folder / "real.zip"


def read_domain_zip(path: Path) -> None:
    domainnet._decode(path.parent, "real", {"train": ["real/cat/a.jpg"], "test": []}, False)


def photos(kind: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        for client in ("anna", "ben"):
            (folder / client / "cats").mkdir(parents=True)
            (folder / client / "cats" / f"1.{kind}").write_bytes(
                image_bytes({"jpg": "jpeg"}.get(kind, kind))
            )
        return folder / "ben" / "cats" / f"1.{kind}"

    return make


def read_photos(path: Path) -> None:
    image_folders.read(path.parents[2], progress=False)


# ---- a run -----------------------------------------------------------------------------------


@cache
def simulated() -> Simulator:
    federation = image_federation(side=4)
    return Simulator(federation, RunConfig(**SMALL), index=made_up_index(federation))


def make_run(out: Path) -> None:
    """A whole run directory."""
    federation = image_federation(side=4)
    index = made_up_index(federation)
    index.provenance.update(encoder="builtin", settings={}, losses=[], curve=[], quality={})
    simulator = Simulator(federation, RunConfig(**SMALL), index=index)
    create_run_directory(out, simulator, "test", "test")
    add_index(out, index)
    journal = Journal(out, simulator)
    journal.resume()
    for record in simulator.rounds():
        journal.round_done(record)
    journal.checkpoint()
    write_results(out, simulator, journal.result)
    simulator.close()


def run_file(name: str) -> Callable[[Path], Path]:
    """A run directory, of which one file is to be damaged; copied from `../../run` if that is."""

    def make(folder: Path) -> Path:
        out, made = folder / "run", folder.parents[1] / "run"
        shutil.copytree(made, out) if made.exists() else make_run(out)
        return next(out.glob(name))

    return make


def read_report(path: Path) -> None:
    """As `python -m c2v_sim.report` does, up to the file that it writes."""
    data = document(group_runs(*read_runs([path.parent])))
    json.dumps(data, allow_nan=False)


def read_checkpoint(path: Path) -> object:
    out, simulator = path.parents[2], simulated()
    lines = load_checkpoint(out / "checkpoints", simulator, out / "rounds.jsonl")
    return [hashlib.sha256(b"".join(lines)).hexdigest(), tensor_file.checksum(simulator.state())]


def read_partition(path: Path) -> object:
    return Partition.load(path).sha256


def read_index(path: Path) -> object:
    index = ClientIndex.load(path, simulated().federation)
    return tensor_file.checksum(index._tensors())


def index_checkpoint(folder: Path) -> Path:
    training = Training(torch.ones(1, 5), torch.ones(2, 5), [[1.0, 2.0, 3.0, 4.0]])
    save_training(folder / "training.safetensors", training, {"data": "some", "seed": "0"})
    return folder / "training.safetensors"


def read_index_checkpoint(path: Path) -> None:
    training = Training(torch.zeros(1, 5), torch.zeros(2, 5))
    load_training(path, training, {"data": "some", "seed": "0"})


def cache_file(folder: Path) -> Path:
    tensor_file.write(
        folder / "cache.safetensors", {"images": torch.arange(6.0), "y": torch.ones(2)}
    )
    return folder / "cache.safetensors"


def read_cache(path: Path) -> object:
    tensors = tensor_file.read(path)
    return "made anew" if tensors is None else tensor_file.checksum(tensors)


def index_settings_file(folder: Path) -> Path:
    config = RunConfig()
    settings = directory_settings(config, index_command.IndexConfig())
    (folder / "settings.json").write_text(to_json(settings))
    return folder / "settings.json"


# ---- what users write ------------------------------------------------------------------------


def config_file(folder: Path) -> Path:
    (folder / "mine.toml").write_text(to_toml(dataclasses.replace(RunConfig(), **SMALL)))
    return folder / "mine.toml"


def read_config(path: Path) -> None:
    arguments = run_settings.parser().parse_args(["--config", str(path)])
    try:
        run_settings.settings_of(arguments)
    except ConfigError as error:  # settings that contradict one another are named, not the file
        named = any(name in str(error) for name in FIELDS)
        raise ConfigError(f"{error} {path if named else ''}") from error


def sweep_file(folder: Path) -> Path:
    (folder / "mine.toml").write_text(
        'title = "t"\nabout = "a"\npreset = "quick"\n[base]\nrounds = 3\n[axes]\n'
        'algorithm = ["fedavg", "moon"]\nseed = [0, 1]\n[axes.case]\nplain = {}\n'
        'index = { improve = ["sampling"], tau = 0.1 }\n[[skip]]\nalgorithm = "moon"\n'
        'case = "index"\n[table]\nrows = ["algorithm"]\ncolumns = "case"\n'
    )
    return folder / "mine.toml"


def weights(kind: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path, state = folder / f"weights.{kind}", network().state_dict()
        if kind == "pkl":
            path.write_bytes(pickle.dumps(state))
        else:
            save_file(state, path) if kind == "safetensors" else torch.save(state, path)
        return path

    return make


def network() -> torch.nn.Module:
    model = torch.nn.Module()
    model.body, model.classifier = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
    return model


def image_reader(kind: str) -> Reader:
    return Reader(photos(kind), read_photos)


def pretrained_reader(kind: str) -> Reader:
    return Reader(weights(kind), plainly(lambda path: load_pretrained(network(), path)))


def plainly(read: Callable[[Path], object]) -> Callable[[Path], None]:
    """Reads and forgets: nothing in the file vouches for what was understood."""

    def forgetful(path: Path) -> None:
        read(path)

    return forgetful


STATE = "checkpoints/000002"
READERS = {
    "cifar10 npz": Reader(cifar_npz, read_cifar),
    "cifar10 archive": Reader(cifar_archive, read_cifar),
    "cifar10 pickle": Reader(cifar_folder, read_cifar),
    "pacs npz": Reader(pacs_npz, plainly(lambda path: pacs.find(path.parent, False))),
    "fashion-mnist": Reader(clothes, read_clothes),
    "shakespeare text": Reader(shakespeare_text, read_plays),
    "shakespeare zip": Reader(shakespeare_zip, read_plays),
    "domainnet list": Reader(domain_list, plainly(domainnet.read_list)),
    "domainnet zip": Reader(domain_zip, read_domain_zip),
    **{f"{kind} image": image_reader(kind) for kind in ("png", "jpg", "gif", "bmp", "webp", "ppm")},
    "run config": Reader(run_file("config.toml"), read_report),
    "run manifest": Reader(run_file("manifest.json"), read_report),
    "run records": Reader(run_file("rounds.jsonl"), read_report),
    "run clients": Reader(run_file("clients.npz"), read_report),
    "run index": Reader(run_file("index.safetensors"), read_report),
    "run result": Reader(run_file("result.json"), read_report),
    "checkpoint manifest": Reader(run_file(f"{STATE}/manifest.json"), read_checkpoint),
    "checkpoint state": Reader(run_file(f"{STATE}/state-000.safetensors"), read_checkpoint),
    "partition": Reader(run_file("partition.npz"), read_partition),
    "index": Reader(run_file("index.safetensors"), read_index),
    "index training": Reader(index_checkpoint, read_index_checkpoint),
    "index settings": Reader(
        index_settings_file, plainly(lambda path: index_command.read_settings(path.parent))
    ),
    "cache": Reader(cache_file, read_cache),
    "config": Reader(config_file, read_config),
    "sweep": Reader(sweep_file, plainly(read_sweep)),
    "pretrained pth": pretrained_reader("pth"),
    "pretrained safetensors": pretrained_reader("safetensors"),
    "pretrained pkl": pretrained_reader("pkl"),
}
