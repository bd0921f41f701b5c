"""Flat ids and offsets against one array per client, and the sorts that make them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2v_sim.data.client_ids import ClientIds, evenly, grouped, numbered, stable_order

LISTS = [np.array([4, 2]), np.array([], dtype=int), np.array([7]), np.array([0, 1, 3])]


def test_it_reads_like_a_list_of_arrays():
    ids = ClientIds.of(LISTS)
    assert len(ids) == 4
    assert [one.tolist() for one in ids] == [one.tolist() for one in LISTS]
    assert ids[0].tolist() == [4, 2]
    assert ids[np.int64(-1)].tolist() == [0, 1, 3]
    assert [one.tolist() for one in ids[1::2]] == [[], [0, 1, 3]]
    assert ids.sizes.tolist() == [2, 0, 1, 3]
    assert ids.owners.tolist() == [0, 0, 2, 3, 3, 3]
    with pytest.raises(IndexError):
        ids[4]


def test_a_clients_ids_are_a_view():
    ids = ClientIds.of(LISTS)
    assert np.shares_memory(ids[3], ids.flat)


@pytest.mark.parametrize("sizes", [[2, 2], [7, -1]])
def test_sizes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(ValueError, match="6 ids for sizes that sum to"):
        ClientIds(np.arange(6), np.array(sizes))


@pytest.mark.parametrize("far", [0, 10**12])
def test_each_once(far):
    assert ClientIds.of([np.array([0, 5]), np.array([far + 1])]).each_once
    assert not ClientIds.of([np.array([0, far + 5]), np.array([far + 5])]).each_once
    assert not ClientIds.of([np.array([0, -1 - far])]).each_once
    assert ClientIds.of([]).each_once


def test_counts_of_classes():
    classes_of = np.array([0, 1, 1, 2, 0, 0, 0, 2])
    counts = ClientIds.of(LISTS).counts(classes_of, 4)
    wanted = [np.bincount(classes_of[ids], minlength=4).tolist() for ids in LISTS]
    assert counts.tolist() == wanted


@pytest.mark.parametrize(("samples", "clients"), [(10, 3), (3, 5), (6, 6), (0, 2)])
def test_evenly_is_array_split(samples, clients):
    wanted = np.array_split(np.arange(samples), clients)
    assert [i.tolist() for i in evenly(np.arange(samples), clients)] == [i.tolist() for i in wanted]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**33), max_size=40), st.sampled_from([1, 2**14, 2**31]))
def test_the_order_is_numpys_stable_one(values, scale):
    keys = np.array(values, dtype=np.int64) // scale
    assert stable_order(keys).tolist() == np.argsort(keys, kind="stable").tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-40, 40), min_size=1, max_size=40), st.sampled_from([1, 10**6]))
def test_numbers_are_those_of_unique(values, scale):
    for dtype in (np.int8, np.int64) if scale == 1 else (np.int64,):
        names = np.array(values, dtype=dtype) * scale
        different, place = numbered(names)
        wanted, inverse = np.unique(names, return_inverse=True)
        assert different.tolist() == wanted.tolist()
        assert place.tolist() == inverse.tolist()
        by_client = [np.flatnonzero(names == name).tolist() for name in wanted]
        assert [ids.tolist() for ids in grouped(place, len(wanted))] == by_client
