"""Windows of a text against the table that they stand for, written out naively."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2v_sim.data.resident import ResidentData
from c2v_sim.data.text_windows import Windows

CPU = torch.device("cpu")


@st.composite
def texts(draw):
    length = draw(st.integers(1, 12))
    symbols = draw(st.lists(st.integers(0, 79), min_size=length + 1, max_size=60))
    start = st.integers(0, len(symbols) - length - 1)  # room for a target after the window
    starts = draw(st.lists(start, min_size=1, max_size=20))
    ids = draw(st.lists(st.integers(0, len(starts) - 1), max_size=20))
    return symbols, starts, length, ids


@given(texts())
@settings(max_examples=200, deadline=None)
def test_a_batch_is_what_the_naive_table_holds(case):
    symbols, starts, length, ids = case
    table = [symbols[s : s + length] for s in starts]
    targets = [symbols[s + length] for s in starts]
    text = torch.tensor(symbols, dtype=torch.uint8)
    windows = Windows(text, torch.tensor(starts), length)
    assert windows.shape == (len(starts), length)
    data = ResidentData(windows, text[windows.starts + length].long(), (), (), CPU)
    x, y = data.batch(torch.tensor(ids, dtype=torch.int64))
    assert x.dtype == y.dtype == torch.int64
    assert x.shape == (len(ids), length)
    assert x.tolist() == [table[i] for i in ids]
    assert y.tolist() == [targets[i] for i in ids]


def test_windows_share_the_text_and_are_taken_without_writing_them_out():
    text = torch.arange(80, dtype=torch.uint8).repeat(1000)
    windows = Windows(text, torch.arange(79_000), 80)
    assert windows.to(CPU).text.data_ptr() == text.data_ptr()
    some = windows.take(torch.tensor([3, 70_001]))
    assert some.text.data_ptr() == text.data_ptr()
    assert torch.equal(some.index_select(0, torch.tensor([1]))[0], text[70_001 : 70_001 + 80])


def test_windows_as_strings():
    windows = Windows(torch.tensor([0, 2, 1, 0], dtype=torch.uint8), torch.tensor([2, 0, 1]), 2)
    assert windows.strings("a b") == [" a", "ab", "b "]
    assert windows.take(slice(1, 3)).strings("a b") == ["ab", "b "]


@pytest.mark.parametrize(
    ("text", "starts", "length", "message"),
    [
        (torch.zeros(9), torch.zeros(1).long(), 3, r"text must be torch.uint8 \[N\], got"),
        (torch.zeros(9).byte(), torch.zeros(1), 3, r"starts must be torch.int64 \[N\], got"),
        (torch.zeros(9).byte(), torch.tensor([0, 7]), 3, r"starts must be in 0..6, got 0..7"),
        (torch.zeros(9).byte(), torch.tensor([-1]), 3, "starts must be in 0..6, got -1..-1"),
        (torch.zeros(9).byte(), torch.tensor([0]), 10, "length must be 1..9, the text's, got 10"),
    ],
)
def test_bad_windows_are_refused(text, starts, length, message):
    with pytest.raises(ValueError, match=message):
        Windows(text, starts, length)
