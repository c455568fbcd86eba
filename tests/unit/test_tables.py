"""The state machine of the tables."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark import settle, tables
from lakemark.errors import StateVersionError
from lakemark.tables import PipelineState, TableState, Water

T = "public.orders"
TOPIC = "shop.public.orders"


def streaming(**offsets: int) -> PipelineState:
    found = {int(p[1:]): o for p, o in offsets.items()}
    return PipelineState(
        batch=4,
        offsets={TOPIC: found},
        high_waters={TOPIC: {p: Water("00" * 19 + f"{p + 1:02x}", p) for p in found}},
        tables={T: TableState(topics=[TOPIC])},
    )


def test_a_stopped_table_remembers_the_first_offset_not_applied_and_the_high_waters_there() -> None:
    before = streaming(p0=10, p1=20)
    state = msgspec.json.decode(tables.encode(before), type=PipelineState)
    state.batch = 5
    tables.stop(
        state, T, to=tables.ERRORED, start={TOPIC: {0: 10, 1: 20}}, before=before, code="boom"
    )
    entry = state.tables[T]
    assert (entry.state, entry.code, entry.since_batch) == (tables.ERRORED, "boom", 5)
    assert entry.from_offsets == {TOPIC: {0: 10, 1: 20}}
    assert entry.high_waters == before.high_waters


def test_stopping_a_stopped_table_keeps_where_it_stopped_first() -> None:
    before = streaming(p0=10)
    state = streaming(p0=10)
    tables.stop(state, T, to=tables.PAUSED, start={TOPIC: {0: 10}}, before=before)
    tables.stop(state, T, to=tables.ERRORED, start={TOPIC: {0: 99}}, before=before, code="x")
    assert state.tables[T].from_offsets == {TOPIC: {0: 10}}


def test_resume_is_only_for_tables_that_do_not_run() -> None:
    state = streaming(p0=10)
    assert not tables.resume(state, T)
    assert not tables.resume(state, "public.nothing")
    tables.stop(state, T, to=tables.PAUSED, start={TOPIC: {0: 10}}, before=state)
    assert tables.resume(state, T)
    assert state.catching_up() == [T]


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
        work = tables.slice_of(entry, end, limit=limit)
        if work is None:
            tables.advance(entry, {}, {}, end, batch)
            break
        begin, to = work
        for partition, first in begin[TOPIC].items():
            assert first < to[TOPIC][partition]
            read.setdefault(partition, []).append((first, to[TOPIC][partition]))
        tables.advance(entry, to, {}, end, batch)
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
    assert tables.repartitioned(before.offsets, now) == [TOPIC]
    start = settle.start_offsets(before, now)
    assert start == {TOPIC: {0: 10, 1: 10, 2: 0}}
    tables.stop(state, T, to=tables.CATCHING_UP, start=start, before=before)
    entry = state.tables[T]
    tables.repartition(entry, old_ends={TOPIC: {0: 40, 1: 12}}, end=now)
    assert entry.high_waters[TOPIC][2] == before.high_waters[TOPIC][1]
    assert entry.high_waters[TOPIC][2].creates, "a transaction may go on in the new partition"
    assert tables.slice_of(entry, now, limit=1) == (
        {TOPIC: {0: 10, 1: 10}},
        {TOPIC: {0: 40, 1: 12}},
    )
    tables.advance(entry, {TOPIC: {0: 40, 1: 12}}, {}, now, 6)
    assert entry.state == tables.CATCHING_UP  # ahead of the stream in partition 0
    assert tables.slice_of(entry, now, limit=1000) == (
        {TOPIC: {2: 0}},
        {TOPIC: {2: 7}},
    )
    later = {TOPIC: {0: 44, 1: 12, 2: 7}}
    tables.advance(entry, {TOPIC: {2: 7}}, {}, now, 7)
    assert entry.state == tables.CATCHING_UP
    assert tables.slice_of(entry, later, limit=1000) == ({TOPIC: {0: 40}}, {TOPIC: {0: 44}})
    tables.advance(entry, {TOPIC: {0: 44}}, {}, later, 8)
    assert entry.state == tables.STREAMING
    assert entry.from_offsets == {}


def test_a_table_that_stands_still_wants_a_new_partition_from_its_beginning() -> None:
    """Not from whatever is left there by then: what expires unread would be missed by nobody."""
    entry = TableState(state=tables.PAUSED, topics=[TOPIC], from_offsets={TOPIC: {0: 4}})
    tables.repartition(entry, old_ends={TOPIC: {0: 9}}, end={TOPIC: {0: 9, 1: 3}, "other": {0: 1}})
    assert entry.from_offsets == {TOPIC: {0: 4, 1: 0}}
    assert entry.old_ends == {TOPIC: {0: 9}}


def test_an_empty_new_partition_changes_nothing() -> None:
    assert tables.repartitioned({TOPIC: {0: 5}}, {TOPIC: {0: 9, 1: 0}}) == []
    assert tables.repartitioned({}, {TOPIC: {0: 9, 1: 3}}) == []


def test_own_snapshot_into_an_empty_table_is_its_load() -> None:
    entry = TableState()
    tables.note_own_snapshot(entry, [700], rows_before=0, batch=2)
    tables.note_own_snapshot(entry, [700], rows_before=50, batch=2)
    assert entry.resnapshot == ""
    tables.note_own_snapshot(entry, [900], rows_before=50, batch=2)
    assert "deleted" in entry.resnapshot


def test_own_snapshot_over_rows_may_leave_ghosts() -> None:
    entry = TableState()
    tables.note_own_snapshot(entry, [700], rows_before=1, batch=2)
    assert entry.resnapshot


def test_the_list_of_keys_to_read_again_is_bounded_but_counted() -> None:
    entry = TableState()
    keys = [f"[{n}]" for n in range(tables.REREAD_LIMIT + 5)]
    tables.note_reread(entry, keys, batch=3)
    assert list(entry.reread_keys) == keys[: tables.REREAD_LIMIT]
    assert entry.reread_missed == 3


def test_what_was_read_again_is_asked_for_no_more() -> None:
    entry = TableState(resnapshot="why", resnapshot_since=4)
    tables.note_reread(entry, ["[1]", "[2]"], batch=3)
    tables.note_reread(entry, ["[2]", "[3]"], batch=5)
    tables.reread(entry, until=4, keys=["[1]", "[2]", "[9]"])
    assert entry.reread_keys == {"[2]": 5, "[3]": 5}
    tables.reread(entry, until=3)
    assert (entry.reread_keys, entry.resnapshot) == ({"[2]": 5, "[3]": 5}, "why")
    entry.reread_missed = 6
    tables.reread(entry, until=5)
    assert (entry.reread_keys, entry.resnapshot, entry.reread_missed) == ({}, "", 6)
    tables.reread(entry, until=6)
    assert entry.reread_missed == -1


def test_a_newer_state_is_refused_by_name() -> None:
    blob = tables.encode(PipelineState()).replace(b'"format":1', b'"format":99')
    with pytest.raises(StateVersionError) as caught:
        tables.decode(blob)
    assert "99" in caught.value.message
    assert caught.value.hint


def test_the_state_survives_its_encoding() -> None:
    state = streaming(p0=10, p1=3)
    tables.stop(state, T, to=tables.PAUSED, start={TOPIC: {0: 10}}, before=state)
    assert tables.decode(tables.encode(state)) == state


def test_rows_that_miss_an_event_until_they_are_read_again():
    state = PipelineState(batch=7, tables={"public.orders": TableState()})
    entry = state.tables["public.orders"]
    tables.note_reread(entry, ["[1]", "[2]"], batch=7)
    assert tables.stale(entry) == {"[1]", "[2]"}
    tables.reread(entry, until=7, keys=["[1]"])
    assert tables.stale(entry) == {"[2]"}
    tables.new_epoch(state, {})
    assert tables.stale(entry) is None
    tables.reread(entry, until=7, keys=["[2]"])
    assert tables.stale(entry) is None, "only a run over the whole table reads every row"
    tables.reread(entry, until=7)
    assert tables.stale(entry) == frozenset()
