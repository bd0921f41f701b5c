"""Generations on disk: whole, checked, and the older one taken when the newest is damaged."""

import errno
import json
import shutil

import pytest
import torch
from federations import image_federation
from planted import planted

from c2v_sim import IndexConfig, RunConfig, Simulator, build_index
from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.run import checkpoint
from c2v_sim.run import files as run_directory
from c2v_sim.run.checkpoint import (
    generations,
    load_checkpoint,
    read_tensors,
    save_checkpoint,
    write_tensors,
)
from c2v_sim.system import tensor_file
from c2v_sim.system.errors import CheckpointError, Interrupted

CONFIG = RunConfig(model="linear", rounds=4, participation=0.5, local_epochs=1, lanes=1)


@pytest.fixture
def simulator():
    made = Simulator(image_federation(), CONFIG)
    yield made
    made.close()


def save(folder, simulator):
    return save_checkpoint(folder / "checkpoints", simulator, folder / run_directory.ROUNDS)


def load(folder, simulator):
    return load_checkpoint(folder / "checkpoints", simulator, folder / run_directory.ROUNDS)


def train_and_save(folder, simulator, rounds=3):
    """A generation after every round; the state after each, by round."""
    states = {}
    for record in simulator.rounds():
        run_directory.append_round(folder, record)
        save(folder, simulator)
        states[record.round] = {n: t.clone() for n, t in simulator.state().items()}
        if record.round == rounds:
            return states
    raise AssertionError("the run is shorter than asked for")


def test_tensors_come_back_whatever_the_pieces(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "rows": torch.randn(37, 101, generator=generator),
        "transposed": torch.randn(30, 20, generator=generator).T,
        "empty": torch.zeros(1, 0, dtype=torch.int64),
        "ids": torch.arange(777),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "flags": torch.arange(9) % 2 == 0,
    }
    for size in (1000, 1001, 4096, 10**6):
        monkeypatch.setattr(checkpoint, "FILE_BYTES", size)
        folder = tmp_path / str(size)
        folder.mkdir()
        manifest = json.loads(json.dumps(write_tensors(folder, tensors, "data")))
        assert all(f.stat().st_size < size + 1024 for f in folder.iterdir())  # and a header
        assert len(manifest["files"]) == len(list(folder.iterdir()))
        got = read_tensors(folder, manifest)
        assert got.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert got[name].dtype == tensor.dtype, name
            assert torch.equal(got[name], tensor), name
    assert len(manifest["files"]) == 1


def test_the_two_newest_generations_are_kept_and_the_newest_is_loaded(tmp_path, simulator):
    states = train_and_save(tmp_path, simulator)
    assert [p.name for p in generations(tmp_path / "checkpoints")] == ["000002", "000003"]
    fresh = Simulator(image_federation(), CONFIG)
    lines = load(tmp_path, fresh)
    assert fresh.round == 3
    assert [r.round for r in run_directory.parse_rounds(lines)] == [1, 2, 3]
    for name, tensor in states[3].items():
        assert torch.equal(fresh.state()[name], tensor), name
    assert [r.round for r in fresh.rounds()] == [4]
    fresh.close()


def copied(simulator):
    return {name: tensor.clone() for name, tensor in simulator.state().items()}


def same_tensors(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# No model for features has a batch norm for FedBN: tests/simulator/test_same_bits.py resumes it.
VARIANTS = {name: {"algorithm": name} for name in ALGORITHMS if name != "fedbn"}
for name in ("fedrep", "fedproto"):  # a linear model has nothing to share
    VARIANTS[name] |= {"model": "mlp"}
VARIANTS |= {name: {"sampling": name} for name in ("clustered-similarity", "divfl")}
VARIANTS["steered"] = {"improve": ("sampling", "aggregation"), "index": "feature-average"}
VARIANTS["moving index"] = {"improve": ("local",), "index": "local-model-weights"}
VARIANTS["half rows"] = {"algorithm": "feddyn", "state_dtype": "bfloat16"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_stopped_in_a_round_and_resumed_elsewhere_gives_the_same_bits(tmp_path, variant):
    """The stop comes before the fifth step of round 3; the state is then that of round 2."""
    federation, images, labels = planted(clients_per_domain=2, samples=12, classes=3)
    changes = {"batch_size": 4, "local_epochs": 2, "lr": 0.1, **VARIANTS[variant]}
    config = RunConfig(**{**vars(CONFIG), **changes})
    naive = IndexConfig(index="feature-average")
    index = build_index(federation, naive, embeddings=(images, labels))

    def started():
        return Simulator(federation, config, index=index if "steered" in variant else None)

    whole = started()
    list(whole.rounds())
    stopped = started()
    ask, asked, after = stopped.lanes.stopped, [], {}

    def asked_before_every_step():
        asked.append(stopped.round + 1)
        if asked.count(3) == 5:
            stopped.stop.set()
        return ask()

    stopped.lanes.stopped = asked_before_every_step
    rounds = stopped.rounds()
    for record in rounds:
        run_directory.append_round(tmp_path, record)
        after = copied(stopped)
        if record.round == 2:
            break
    with pytest.raises(Interrupted):
        next(rounds)
    assert stopped.round == 2
    assert same_tensors(stopped.state(), after)
    save(tmp_path, stopped)
    resumed = started()
    load(tmp_path, resumed)
    assert same_tensors(resumed.state(), after)
    assert [r.round for r in resumed.rounds()] == [3, 4]
    assert same_tensors(resumed.state(), whole.state())
    for simulator in (whole, stopped, resumed):
        simulator.close()


def without_padding(layout, tensor):
    """What an arena row, or several, looked like before rows were padded."""
    parts = {layout.trainable: layout.parameters, layout.size: layout.parameters + layout.buffers}
    slots = parts.get(tensor.shape[-1] if tensor.dim() else 0)
    if slots is None:
        return tensor
    return torch.cat([tensor[..., slot.offset : slot.end] for slot in slots], dim=-1)


@pytest.mark.parametrize("changes", [{"algorithm": "feddyn"}, {"algorithm": "moon"}, {}], ids=str)
def test_a_checkpoint_from_before_rows_were_padded_goes_on(tmp_path, changes):
    sampled = {} if changes else {"sampling": "divfl", "algorithm": "fedadam"}
    settings = {"model": "resnet8", "norm": "batch", "batch_size": 4, **changes, **sampled}
    config = RunConfig(**{**vars(CONFIG), "rounds": 3, **settings})
    whole, resumed = (Simulator(image_federation(clients=4), config) for _ in range(2))
    for record in whole.rounds():
        run_directory.append_round(tmp_path, record)
        if record.round == 2:
            old = {n: without_padding(whole.layout, t) for n, t in whole.state().items()}
            save_checkpoint(
                tmp_path / "checkpoints", whole, tmp_path / run_directory.ROUNDS, state=old
            )
    assert old["server"].shape[1] == whole.layout.parameter_count + whole.layout.buffer_count
    load(tmp_path, resumed)
    assert [r.round for r in resumed.rounds()] == [3]
    got, wanted = (
        {n: without_padding(s.layout, t) for n, t in s.state().items()} for s in (resumed, whole)
    )
    assert same_tensors(got, wanted)
    for simulator in (whole, resumed):
        simulator.close()


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": (
        lambda p: flip_a_byte(p / "state-000.safetensors"),
        "the bytes of state-000.safetensors do not match their checksum",
    ),
    "a lost file": (
        lambda p: (p / "state-000.safetensors").unlink(),
        "state-000.safetensors is missing",
    ),
    "a cut file": (
        lambda p: (p / "state-000.safetensors").write_bytes(b"short"),
        "do not match their checksum",
    ),
    "a lost manifest": (lambda p: (p / "manifest.json").unlink(), "manifest.json is missing"),
    "half a manifest": (
        lambda p: (p / "manifest.json").write_text('{"round": 3,'),
        "manifest.json cannot be read",
    ),
    "an edited manifest": (
        lambda p: (p / "manifest.json").write_text(
            (p / "manifest.json").read_text().replace('"round": 3', '"round": 2')
        ),
        "the text of manifest.json does not match its checksum",
    ),
    "lost records": (
        lambda p: (p.parents[1] / "rounds.jsonl").write_bytes(
            b"".join((p.parents[1] / "rounds.jsonl").read_bytes().splitlines(True)[:2])
        ),
        "rounds.jsonl no longer begins with its 3 records",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_generation_is_named_and_the_older_one_taken(tmp_path, simulator, capsys, kind):
    states = train_and_save(tmp_path, simulator)
    damage, message = DAMAGE[kind]
    damage(tmp_path / "checkpoints" / "000003")
    lines = load(tmp_path, simulator)
    warning = capsys.readouterr().err
    assert message in warning
    assert "000003" in warning
    assert "of round 2" in warning
    assert simulator.round == len(lines) == 2
    assert torch.equal(simulator.state()["server"], states[2]["server"])
    # The damaged one gives way when the run comes to the same round again.
    (tmp_path / run_directory.ROUNDS).write_bytes(b"".join(lines))
    again = train_and_save(tmp_path, simulator)
    assert torch.equal(again[3]["server"], states[3]["server"])
    load(tmp_path, simulator)
    assert simulator.round == 3
    assert capsys.readouterr().err == ""


def test_an_earlier_checkpoint_than_a_damaged_one_removes_it(tmp_path, simulator):
    train_and_save(tmp_path, simulator)
    flip_a_byte(tmp_path / "checkpoints" / "000003" / "state-000.safetensors")
    load(tmp_path, simulator)
    save(tmp_path, simulator)  # as an interruption right after the resume
    assert [p.name for p in generations(tmp_path / "checkpoints")] == ["000002"]


def test_two_damaged_generations_are_refused_with_both_reasons(tmp_path, simulator):
    train_and_save(tmp_path, simulator)
    flip_a_byte(tmp_path / "checkpoints" / "000003" / "state-000.safetensors")
    (tmp_path / "checkpoints" / "000002" / "manifest.json").unlink()
    with pytest.raises(CheckpointError) as error:
        load(tmp_path, simulator)
    text = str(error.value)
    assert "000003: the bytes of state-000.safetensors" in text
    assert "000002: manifest.json is missing" in text
    assert f"delete {tmp_path / 'checkpoints'} and resume again" in text
    shutil.rmtree(tmp_path / "checkpoints")
    assert load(tmp_path, simulator) == []


def test_another_models_checkpoint_is_refused(tmp_path, simulator):
    train_and_save(tmp_path, simulator)
    other = Simulator(image_federation(), RunConfig(**{**vars(CONFIG), "model": "mlp"}))
    with pytest.raises(CheckpointError, match="belongs to another model than mlp"):
        load(tmp_path, other)
    other.close()


def test_leftovers_of_a_kill_are_removed(tmp_path, simulator):
    states = train_and_save(tmp_path, simulator, rounds=1)
    leftover = tmp_path / "checkpoints" / ".000002.partial"
    leftover.mkdir()
    (leftover / "state-000.safetensors").write_bytes(b"half")
    load(tmp_path, simulator)
    assert not leftover.exists()
    assert torch.equal(simulator.state()["server"], states[1]["server"])


def test_a_failing_write_leaves_the_older_generations_alone(tmp_path, simulator, monkeypatch):
    train_and_save(tmp_path, simulator, rounds=2)
    before = {p: p.read_bytes() for p in (tmp_path / "checkpoints").rglob("*.*") if p.is_file()}
    run_directory.append_round(tmp_path, next(simulator.rounds()))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensor_file, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, simulator)
    after = {p: p.read_bytes() for p in (tmp_path / "checkpoints").rglob("*.*") if p.is_file()}
    assert after == before
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
