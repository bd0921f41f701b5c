"""Clients' rows: what is written is read, wherever it lies."""

import resource

import pytest
import torch

from c2v_sim.system.errors import NoRoom
from c2v_sim.training import client_rows
from c2v_sim.training.client_rows import Budget, ClientRows

CPU = torch.device("cpu")
WIDTH = 6
ROW = 4 * WIDTH  # bytes


def make(budget, clients=10, dtype=torch.float32):
    return ClientRows("h", clients, WIDTH, device=CPU, budget=budget, dtype=dtype)


def numbered(client):
    return torch.arange(WIDTH) + 10.5 * client


def read(rows, client):
    return rows.read(client, torch.full((WIDTH,), torch.nan))


def test_zeros_until_written_and_then_what_was_written_last():
    rows = make(Budget(0, 10**6))
    assert len(rows) == 0
    assert read(rows, 3).tolist() == [0.0] * WIDTH
    rows.write(3, numbered(1))
    rows.write(0, numbered(2))
    rows.write(3, numbered(4))
    assert 3 in rows
    assert 1 not in rows
    assert len(rows) == 2
    assert torch.equal(read(rows, 3), numbered(4))
    assert torch.equal(read(rows, 0), numbered(2))


@pytest.mark.parametrize("client", [-1, 10])
def test_an_unknown_client_is_refused(client):
    with pytest.raises(ValueError, match=rf"client rows h: client must be 0..9, got {client}"):
        make(Budget(0, 0)).write(client, numbered(0))


def test_rows_fill_the_memory_and_then_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(client_rows, "CHUNK_BYTES", 3 * ROW)
    folder = tmp_path / "not" / "there yet"
    budget = Budget(0, 5 * ROW + 7, folder)
    rows = make(budget)
    for client in range(10):
        rows.write(client, numbered(client))
    assert rows.places == ["host", "host", "file", "file"]  # 3 and 2 rows, then 3 and 3
    assert budget.host == 7
    assert folder.is_dir()
    assert list(folder.iterdir()) == []  # the file is nameless: nothing is left behind
    for client in range(10):
        assert torch.equal(read(rows, client), numbered(client))


def test_a_file_for_which_there_is_no_space_is_an_error_that_names_it(tmp_path, monkeypatch):
    """Not a signal that ends the process when the row is written."""
    monkeypatch.setattr(client_rows, "CHUNK_BYTES", ROW)
    rows = make(Budget(0, 0, tmp_path))
    rows.write(1, numbered(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROW - 1, before[1]))
    try:
        with pytest.raises(NoRoom) as caught:
            rows.write(2, numbered(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    message = f"client rows h: cannot reserve {ROW} B for the state of clients in {tmp_path}: "
    assert str(caught.value) == f"{message}File too large"
    assert 2 not in rows
    rows.write(2, numbered(2))
    assert torch.equal(read(rows, 1), numbered(1))
    assert torch.equal(read(rows, 2), numbered(2))


def test_two_kinds_of_rows_share_one_budget():
    budget = Budget(0, 4 * ROW)
    one, two = make(budget, clients=3), make(budget, clients=3)
    one.write(0, numbered(0))
    for client in range(3):
        two.write(client, numbered(client))
    assert one.places == ["host"]
    assert two.places == ["host", "file"]
    assert torch.equal(read(two, 2), numbered(2))


def test_the_device_comes_first():
    budget = Budget(2 * ROW, ROW)
    rows = make(budget)
    for client in range(4):
        rows.write(client, numbered(client))
    assert rows.places == ["device", "host", "file"]
    assert (budget.device, budget.host) == (0, 0)


@pytest.mark.parametrize("host", [0, 2 * ROW, 10**6])
def test_bfloat16_rounds_alike_everywhere(host):
    rows = make(Budget(0, host), dtype=torch.bfloat16)
    assert rows.row_bytes == 2 * WIDTH
    value = torch.linspace(-1, 1, WIDTH) / 3
    kept = rows.write(5, value)
    assert kept.dtype == torch.float32
    assert torch.equal(kept, value.bfloat16().float())
    assert not torch.equal(kept, value)
    assert torch.equal(read(rows, 5), kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("host", [0, 3 * ROW, 10**6])
def test_state_goes_to_rows_with_other_chunks_and_places(host, dtype, monkeypatch):
    monkeypatch.setattr(client_rows, "CHUNK_BYTES", 2 * ROW)
    rows = make(Budget(0, 4 * ROW), dtype=dtype)
    for client in (7, 2, 9, 0, 4):
        rows.write(client, numbered(client) / 3)
    state = rows.state()
    assert state["ids"].tolist() == [7, 2, 9, 0, 4]
    assert sum(len(t) for name, t in state.items() if name != "ids") == 5
    monkeypatch.setattr(client_rows, "CHUNK_BYTES", 3 * ROW)
    other = make(Budget(0, host), dtype=dtype)
    other.write(1, numbered(1))  # forgotten by load_state
    other.load_state(state)
    assert [c in other for c in range(10)] == [c in rows for c in range(10)]
    for client in range(10):
        assert torch.equal(read(other, client), read(rows, client))


def test_an_earlier_state_is_put_back_over_a_later_one(monkeypatch):
    monkeypatch.setattr(client_rows, "CHUNK_BYTES", 2 * ROW)
    rows = make(Budget(0, 10**6))
    rows.write(6, numbered(6))
    early = {name: t.clone() for name, t in rows.state().items()}
    for client in range(10):
        rows.write(client, numbered(client + 1))
    rows.load_state(early)
    assert {name: t.tolist() for name, t in rows.state().items()} == {
        name: t.tolist() for name, t in early.items()
    }
    assert read(rows, 2).tolist() == [0.0] * WIDTH
    rows.write(2, numbered(2))
    assert torch.equal(read(rows, 2), numbered(2))
    assert torch.equal(read(rows, 6), numbered(6))


def test_no_rows_have_a_state_too():
    rows = make(Budget(0, 0))
    other = make(Budget(0, 0))
    other.write(3, numbered(3))
    other.load_state(rows.state())
    assert len(other) == 0
