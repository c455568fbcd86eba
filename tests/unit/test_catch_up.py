"""Catching up: every offset once, old partitions first, and into the stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark import catch_up, new_partitions, settle, tables
from lakemark.tables import TableState, Water
from tests.unit.test_tables import TOPIC, T, streaming


@given(
    start=st.lists(st.integers(0, 50), min_size=1, max_size=4),
    more=st.lists(st.integers(0, 500), min_size=4, max_size=4),
    limit=st.integers(1, 200),
)
def test_catching_up_reads_every_offset_once_and_ends_in_the_stream(
    start: list[int], more: list[int], limit: int
) -> None:
    end = {TOPIC: {p: o + more[p] for p, o in enumerate(start)}}
    entry = TableState(
        state=tables.CATCHING_UP, topics=[TOPIC], from_offsets={TOPIC: dict(enumerate(start))}
    )
    read: dict[int, list[tuple[int, int]]] = {}
    for batch in range(2000):
        work = catch_up.slice_of(entry, end, limit=limit)
        if work is None:
            catch_up.advance(entry, {}, {}, end, batch)
            break
        begin, to = work
        for partition, first in begin[TOPIC].items():
            assert first < to[TOPIC][partition]
            read.setdefault(partition, []).append((first, to[TOPIC][partition]))
        catch_up.advance(entry, to, {}, end, batch)
        if entry.state == tables.STREAMING:
            break
    assert entry.state == tables.STREAMING
    for partition, first in enumerate(start):
        pieces = read.get(partition, [])
        at = first
        for begin_at, stop_at in pieces:
            assert begin_at == at
            at = stop_at
        assert at == end[TOPIC][partition]


def test_after_a_new_partition_the_old_ones_are_read_to_their_ends_in_one_piece_first() -> None:
    before = streaming(p0=10, p1=10)
    before.high_waters[TOPIC][1] = Water("00" * 19 + "02", 1, creates=True)
    state = streaming(p0=10, p1=10)
    now = {TOPIC: {0: 30, 1: 12, 2: 7}}
    assert new_partitions.repartitioned(before.offsets, now) == [TOPIC]
    start = settle.start_offsets(before, now)
    assert start == {TOPIC: {0: 10, 1: 10, 2: 0}}
    tables.stop(state, T, to=tables.CATCHING_UP, start=start, before=before)
    entry = state.tables[T]
    new_partitions.repartition(entry, old_ends={TOPIC: {0: 40, 1: 12}}, end=now)
    assert 2 not in entry.high_waters[TOPIC], "what was lost on its way to another comes to it now"
    assert catch_up.slice_of(entry, now, limit=1) == (
        {TOPIC: {0: 10, 1: 10}},
        {TOPIC: {0: 40, 1: 12}},
    )
    catch_up.advance(entry, {TOPIC: {0: 40, 1: 12}}, {}, now, 6)
    assert entry.state == tables.CATCHING_UP  # ahead of the stream in partition 0
    assert catch_up.slice_of(entry, now, limit=1000) == (
        {TOPIC: {2: 0}},
        {TOPIC: {2: 7}},
    )
    later = {TOPIC: {0: 44, 1: 12, 2: 7}}
    catch_up.advance(entry, {TOPIC: {2: 7}}, {}, now, 7)
    assert entry.state == tables.CATCHING_UP
    assert catch_up.slice_of(entry, later, limit=1000) == ({TOPIC: {0: 40}}, {TOPIC: {0: 44}})
    catch_up.advance(entry, {TOPIC: {0: 44}}, {}, later, 8)
    assert entry.state == tables.STREAMING
    assert entry.from_offsets == {}


def test_a_table_that_stands_still_wants_a_new_partition_from_its_beginning() -> None:
    """Not from whatever is left there by then: what expires unread would be missed by nobody."""
    entry = TableState(state=tables.PAUSED, topics=[TOPIC], from_offsets={TOPIC: {0: 4}})
    new_partitions.repartition(
        entry, old_ends={TOPIC: {0: 9}}, end={TOPIC: {0: 9, 1: 3}, "other": {0: 1}}
    )
    assert entry.from_offsets == {TOPIC: {0: 4, 1: 0}}
    assert entry.old_ends == {TOPIC: {0: 9}}


def test_partitions_that_come_together_are_one_change() -> None:
    """The second of them gets its first record later, and a batch's log may leave it out."""
    before, state = streaming(p0=10), streaming(p0=10)
    before.tables, state.tables = {}, {T: TableState(topics=[TOPIC])}
    state.offsets = new_partitions.known_ends(before.offsets, {TOPIC: {0: 12, 1: 3}})
    new_partitions.follow(
        state,
        before=before,
        start=before.offsets,
        end_offsets=lambda _: {TOPIC: {0: 12, 1: 4, 2: 0, 3: 5}},
    )
    assert state.offsets == {TOPIC: {0: 12, 1: 3, 2: 0, 3: 0}}
    assert state.tables[T].old_ends == {TOPIC: {0: 12}}
    assert new_partitions.repartitioned(state.offsets, {TOPIC: {0: 12, 1: 3, 2: 1, 3: 5}}) == []


@pytest.mark.parametrize(("count", "multiple"), [(4, True), (6, True), (3, False), (5, False)])
def test_keys_that_moved_between_old_partitions_take_a_run_with_a_sweep(count, multiple) -> None:
    before, state = streaming(p0=10, p1=10), streaming(p0=10, p1=10)
    state.batch = 7
    state.tables["public.paused"] = TableState(state=tables.PAUSED, topics=[TOPIC])
    ends = {TOPIC: dict.fromkeys(range(count), 20)}
    state.offsets = new_partitions.known_ends(before.offsets, ends)
    new_partitions.follow(state, before=before, start=before.offsets, end_offsets=lambda _: ends)
    for entry in state.tables.values():
        assert bool(entry.resnapshot) is not multiple
        assert entry.resnapshot_since == (-1 if multiple else 7)


def test_an_empty_new_partition_changes_nothing() -> None:
    assert new_partitions.repartitioned({TOPIC: {0: 5}}, {TOPIC: {0: 9, 1: 0}}) == []
    assert new_partitions.repartitioned({}, {TOPIC: {0: 9, 1: 3}}) == []
