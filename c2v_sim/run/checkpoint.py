"""Checkpoints from which a run goes on bit-exactly: generations of the simulator's state.

DIR/000010/manifest.json      round, model layout, data set, records, SHA-256 of every file
DIR/000010/state-000.safetensors, state-001…   the tensors of Simulator.state(), in pieces

A generation is made under a temporary name and renamed when it is whole and on disk; then all but
the newest KEPT are deleted. What a tensor is cut into is flat slices, so that a state of many
gigabytes needs one file's worth of memory more to be written. All randomness of a round is drawn
from (seed, round, client), so no generator has a state that must be kept.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from c2v_sim.run.files import JsonObject, without_accuracy
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system import ranks, tensor_file
from c2v_sim.system.errors import CheckpointError
from c2v_sim.system.files import new_directory, partial_directory
from c2v_sim.system.parse import parse_json_object

KEPT = 2
FILE_BYTES = 256 * 2**20
MANIFEST = "manifest.json"


class Damaged(ValueError):
    """One generation cannot be used."""


def save_checkpoint(
    directory: Path, simulator: Simulator, records: Path, state: dict[str, Tensor] | None = None
) -> Path:
    """Write the state after `simulator.round` rounds; `records` is the file of their records.

    state: that of the simulator, where it is known already. Raises OSError where it cannot be
    written; older generations are then still there.
    """
    path = directory / f"{simulator.round:06d}"
    with new_directory(path, replace=True) as temporary:
        manifest: JsonObject = {
            "round": simulator.round,
            "dataset": simulator.federation.dataset.name,
            "layout": layout_name(simulator),
            "records": _about_records(records, simulator),
        }
        manifest |= write_tensors(temporary, state or simulator.state(), manifest["dataset"])
        manifest["sha256"] = _digest(manifest)
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    # One of a later round was found damaged when the run was resumed from an earlier one.
    kept = [p for p in generations(directory) if p.name <= path.name][-KEPT:]
    for old in generations(directory):
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)
    return path


def write_tensors(folder: Path, tensors: dict[str, Tensor], dataset: str) -> JsonObject:
    """Write `tensors` as files of at most FILE_BYTES; what the manifest must say about them."""
    files: dict[str, str] = {}
    about: JsonObject = {
        name: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape), "pieces": []}
        for name, t in tensors.items()
    }
    for number, group in enumerate(_groups(tensors)):
        file = folder / f"state-{number:03d}.safetensors"
        pieces = {}
        for name, begin, end in group:
            pieces[name] = tensors[name].detach().reshape(-1)[begin:end].cpu()
            about[name]["pieces"].append([file.name, begin, end])
        tensor_file.save(file, pieces, {"dataset": dataset})
        files[file.name] = _sha256(file)
    return {"tensors": about, "files": files}


def _groups(tensors: dict[str, Tensor]) -> Iterator[list[tuple[str, int, int]]]:
    """(name, begin, end) of flat slices, file by file; a file has one slice of a tensor at most."""
    group: list[tuple[str, int, int]] = []
    room = FILE_BYTES
    for name, tensor in tensors.items():
        begin, total, size = 0, tensor.numel(), tensor.element_size()
        while True:  # once for an empty tensor too
            end = min(total, begin + max(1, room // size))
            group.append((name, begin, end))
            room -= (end - begin) * size
            if room < size:
                yield group
                group, room = [], FILE_BYTES
            begin = end
            if begin == total:
                break
    if group:
        yield group


def load_checkpoint(directory: Path, simulator: Simulator, records: Path) -> list[bytes]:
    """Bring `simulator` back to the newest sound generation; the lines of its rounds' records.

    Without any generation the run is at its beginning. Where several ranks share the run, rank 0
    reads, and the others are given what they need.
    """
    tensors: dict[str, Tensor] = {}

    def find() -> tuple[int, list[bytes]]:
        t, lines, found = newest_sound(directory, simulator, records)
        tensors.update(found)
        return t, lines

    t, lines = ranks.from_first(find)
    if t:
        simulator.load_state(t, tensors)
    return lines


def newest_sound(
    directory: Path, simulator: Simulator, records: Path
) -> tuple[int, list[bytes], dict[str, Tensor]]:
    """The round of the newest sound generation, the lines of its records, and its tensors.

    A damaged generation is passed over with a warning; CheckpointError if that leaves none.
    Leftovers of a killed writer are removed.
    """
    problems = []
    found = generations(directory)
    for leftover in directory.glob(partial_directory(Path("*")).name):
        shutil.rmtree(leftover, ignore_errors=True)
    for path in reversed(found):
        try:
            manifest = read_manifest(path)
            if manifest["layout"] != layout_name(simulator):
                raise Damaged(f"it belongs to another model than {simulator.config.model}")
            lines = _same_records(manifest["records"], records, simulator.config.rounds)
            tensors = read_tensors(path, manifest)
            simulator.check_state(tensors)
        except (Damaged, KeyError, TypeError, OSError, SafetensorError) as error:
            problems.append(f"{path}: {_sentence(error)}")
            continue
        if problems:
            bad = "; ".join(problems)
            print(
                f"warning: damaged checkpoint ({bad}); going on from the one before, of round "
                f"{manifest['round']}",
                file=sys.stderr,
            )
        return manifest["round"], lines, tensors
    if problems:
        raise CheckpointError(
            f"no checkpoint can be used: {'; '.join(problems)}. To start this run anew from "
            f"round 0, delete {directory} and resume again"
        )
    return 0, [], {}


def generations(directory: Path) -> list[Path]:
    """The generations on disk, oldest first."""
    return sorted(p for p in directory.glob("[0-9]*") if p.is_dir())


def read_manifest(path: Path) -> JsonObject:
    """The manifest of a generation, once every file it names has the bytes that were written."""
    try:
        manifest = parse_json_object((path / MANIFEST).read_bytes())
    except ValueError as error:
        raise Damaged(f"{MANIFEST} cannot be read ({error})") from error
    if _digest(manifest) != manifest["sha256"]:
        raise Damaged(f"the text of {MANIFEST} does not match its checksum")
    for name, expected in manifest["files"].items():
        if _sha256(path / name) != expected:
            raise Damaged(f"the bytes of {name} do not match their checksum")
    return manifest


def read_tensors(path: Path, manifest: JsonObject) -> dict[str, Tensor]:
    """The tensors of a generation, as Simulator.state() gave them."""
    tensors = {
        name: torch.empty(about["shape"], dtype=getattr(torch, about["dtype"]))
        for name, about in manifest["tensors"].items()
    }
    for file in manifest["files"]:
        with safe_open(str(path / file), framework="pt") as pieces:
            for name, about in manifest["tensors"].items():
                for begin, end in (p[1:] for p in about["pieces"] if p[0] == file):
                    tensors[name].view(-1)[begin:end] = pieces.get_tensor(name)
    return tensors


def _about_records(records: Path, simulator: Simulator) -> JsonObject:
    """How many there are and their hash; also what that is once the run was made longer, where the
    last round was evaluated only because it was the last."""
    lines, config = records.read_bytes().splitlines(keepends=True), simulator.config
    about: JsonObject = {"count": simulator.round, "sha256": _hash(lines)}
    last = simulator.round == config.rounds
    if last and config.eval_every and simulator.round % config.eval_every:
        about["sha256_longer"] = _hash([*lines[:-1], without_accuracy(lines[-1])])
    return about


def _same_records(expected: JsonObject, records: Path, rounds: int) -> list[bytes]:
    """The first lines of `records`, which must be those that the checkpoint was made with."""
    lines = records.read_bytes().splitlines(keepends=True)[: expected["count"]]
    if _hash(lines) not in (expected["sha256"], expected.get("sha256_longer")):
        raise Damaged(f"{records.name} no longer begins with its {expected['count']} records")
    if "sha256_longer" in expected and rounds > expected["count"]:
        lines[-1] = without_accuracy(lines[-1])
    return lines


def _hash(lines: list[bytes]) -> str:
    return hashlib.sha256(b"".join(lines)).hexdigest()


def _digest(manifest: JsonObject) -> str:
    text = json.dumps({k: v for k, v in manifest.items() if k != "sha256"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sentence(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{Path(error.filename).name} is missing"
    if isinstance(error, KeyError):
        return f"{MANIFEST} lacks {error}"
    return str(error)


def layout_name(simulator: Simulator) -> str:
    """Names and shapes of the model's tensors in order, to recognise a foreign checkpoint."""
    layout = simulator.layout
    slots = layout.parameters + layout.buffers
    return json.dumps([[s.name, list(s.shape)] for s in slots] + [list(layout.integers)])
