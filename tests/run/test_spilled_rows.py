"""Client state that goes to a file for which the disk has no space: a sentence, then a resume."""

import resource
from contextlib import contextmanager

import pytest
from plain_run import PLAIN
from safetensors.torch import load_file

from c2v_sim.run import __main__ as run
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.text import in_bytes
from c2v_sim.training import client_rows

TINY = ["--train-size", "64", "--test-size", "16", "--clients", "8", "--participation", "0.25"]
TINY += ["--partition", "iid", "--rounds", "4", "--local-epochs", "1", "--batch-size", "8", *PLAIN]
TINY += ["--model", "linear", "--algorithm", "feddyn", "--checkpoint-every", "1"]
SPILLED = [*TINY, "--state-memory", "0.000001"]
ROW = 4 * 30_730  # bytes


@pytest.fixture(autouse=True)
def one_row_a_chunk(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))
    monkeypatch.setattr(client_rows, "CHUNK_BYTES", 1)


@contextmanager
def full_from_round(first):
    """A file may not be as large as a row from that round on, as on a full disk."""
    before, aggregate = resource.getrlimit(resource.RLIMIT_FSIZE), Simulator._aggregate

    def limited(simulator, t, *arguments):
        if t == first:
            resource.setrlimit(resource.RLIMIT_FSIZE, (ROW - 1, before[1]))
        aggregate(simulator, t, *arguments)

    Simulator._aggregate = limited
    try:
        yield
    finally:
        Simulator._aggregate = aggregate
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_space_for_rows_is_a_sentence_and_the_resume_ends_in_the_same_bits(tmp_path, capfd):
    out, whole = tmp_path / "full", tmp_path / "whole"
    with full_from_round(3):
        assert run.main([*SPILLED, "--out", str(out)]) == 1
    said = capfd.readouterr().err
    reason = f"cannot reserve {in_bytes(ROW)} for the state of clients in {out / 'scratch'}"
    assert f"c2v_sim: error: client rows h: {reason}: File too large. Free some space, or" in said
    assert said.splitlines()[-1].endswith(f"then: python -m c2v_sim.run --resume {out}")
    assert "Traceback" not in said
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == ["000001", "000002"]
    assert run.main(["--resume", str(out)]) == 0
    assert run.main([*TINY, "--out", str(whole)]) == 0
    a, b = (load_file(folder / "model.safetensors") for folder in (out, whole))
    assert {k: v.tolist() for k, v in a.items()} == {k: v.tolist() for k, v in b.items()}
