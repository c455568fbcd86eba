"""The state machine of the tables."""

import msgspec
import pytest

from lakemark.errors import StateVersionError
from lakemark.state import tables
from lakemark.state.tables import LeftOut, PipelineState, StoredPosition, TableState

T = "public.orders"
TOPIC = "shop.public.orders"


def streaming(**offsets: int) -> PipelineState:
    found = {int(p[1:]): o for p, o in offsets.items()}
    return PipelineState(
        batch=4,
        offsets={TOPIC: found},
        high_waters={TOPIC: {p: StoredPosition("00" * 19 + f"{p + 1:02x}", p) for p in found}},
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


FORMAT = b'"format":%d' % tables.FORMAT


def test_a_newer_state_is_refused_by_name() -> None:
    blob = tables.encode(PipelineState()).replace(FORMAT, b'"format":99')
    with pytest.raises(StateVersionError) as caught:
        tables.decode(blob)
    assert "99" in caught.value.message
    assert caught.value.hint


def test_tables_of_a_state_that_did_not_note_it_count_as_complete() -> None:
    """Nobody can tell; what is new from then on is noted."""
    old = tables.encode(
        PipelineState(tables={"public.a": TableState()}, left={"public.b": LeftOut(TableState())})
    )
    state = tables.decode(old.replace(FORMAT, b'"format":1'))
    assert [entry.complete for entry in state.entries()] == [tables.BEFORE] * 2
    state.tables["public.c"] = TableState()
    again = tables.decode(tables.encode(state))
    assert again.tables["public.c"].complete == ""
    assert again.tables["public.a"].complete == tables.BEFORE


def test_a_run_over_all_rows_makes_a_table_complete_and_one_over_keys_does_not() -> None:
    entry = TableState()
    tables.reread(entry, until=3, keys=["[1]"])
    assert entry.complete == ""
    tables.reread(entry, until=-1)
    assert entry.complete == tables.BY_SNAPSHOT


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
