"""The state machine of the tables."""

import msgspec

from lakemark.state import stored_form, table_parts, tables
from lakemark.state.table_parts import StoredPosition
from lakemark.state.tables import PipelineState, TableState
from tests.kit.table_states import table_state

T = "public.orders"
TOPIC = "shop.public.orders"


def streaming(**offsets: int) -> PipelineState:
    found = {int(p[1:]): o for p, o in offsets.items()}
    return PipelineState(
        batch=4,
        offsets={TOPIC: found},
        applied={TOPIC: {p: StoredPosition("00" * 19 + f"{p + 1:02x}", p) for p in found}},
        tables={T: TableState(topics=[TOPIC])},
    )


def test_a_stopped_table_remembers_the_first_offset_not_applied_and_the_high_waters_there() -> None:
    before = streaming(p0=10, p1=20)
    state = msgspec.json.decode(stored_form.encode(before), type=PipelineState)
    state.batch = 5
    tables.stop(
        state, T, to=tables.ERRORED, start={TOPIC: {0: 10, 1: 20}}, before=before, code="boom"
    )
    entry = state.tables[T]
    assert (entry.state, entry.code, entry.since_batch) == (tables.ERRORED, "boom", 5)
    assert entry.progress.from_offsets == {TOPIC: {0: 10, 1: 20}}
    assert entry.progress.applied == before.applied


def test_stopping_a_stopped_table_keeps_where_it_stopped_first() -> None:
    before = streaming(p0=10)
    state = streaming(p0=10)
    tables.stop(state, T, to=tables.PAUSED, start={TOPIC: {0: 10}}, before=before)
    tables.stop(state, T, to=tables.ERRORED, start={TOPIC: {0: 99}}, before=before, code="x")
    assert state.tables[T].progress.from_offsets == {TOPIC: {0: 10}}


def test_resume_is_only_for_tables_that_do_not_run() -> None:
    state = streaming(p0=10)
    assert not tables.resume(state, T)
    assert not tables.resume(state, "public.nothing")
    tables.stop(state, T, to=tables.PAUSED, start={TOPIC: {0: 10}}, before=state)
    assert tables.resume(state, T)
    assert state.catching_up() == [T]


def test_own_snapshot_into_an_empty_table_is_its_load() -> None:
    entry = TableState()
    entry.repair.own_rows([700], rows_before=0, batch=2)
    entry.repair.own_rows([700], rows_before=50, batch=2)
    assert entry.repair.resnapshot == ""
    entry.repair.own_rows([900], rows_before=50, batch=2)
    assert "deleted" in entry.repair.resnapshot


def test_own_snapshot_over_rows_may_leave_ghosts() -> None:
    entry = TableState()
    entry.repair.own_rows([700], rows_before=1, batch=2)
    assert entry.repair.resnapshot


def test_the_list_of_keys_to_read_again_is_bounded_but_counted() -> None:
    entry = TableState()
    keys = [f"[{n}]" for n in range(table_parts.REREAD_LIMIT + 5)]
    entry.repair.doubt_keys(keys, batch=3)
    assert list(entry.repair.reread_keys) == keys[: table_parts.REREAD_LIMIT]
    assert entry.repair.reread_missed == 3


def test_what_was_read_again_is_asked_for_no_more() -> None:
    entry = table_state(resnapshot="why", resnapshot_since=4)
    entry.repair.doubt_keys(["[1]", "[2]"], batch=3)
    entry.repair.doubt_keys(["[2]", "[3]"], batch=5)
    entry.repair.were_read(until=4, keys=["[1]", "[2]", "[9]"])
    assert entry.repair.reread_keys == {"[2]": 5, "[3]": 5}
    entry.repair.were_read(until=3)
    assert (entry.repair.reread_keys, entry.repair.resnapshot) == ({"[2]": 5, "[3]": 5}, "why")
    entry.repair.reread_missed = 6
    entry.repair.were_read(until=5)
    assert (entry.repair.reread_keys, entry.repair.resnapshot, entry.repair.reread_missed) == (
        {},
        "",
        6,
    )
    entry.repair.were_read(until=6)
    assert entry.repair.reread_missed == -1


def test_a_run_over_all_rows_makes_a_table_complete_and_one_over_keys_does_not() -> None:
    entry = TableState()
    entry.repair.were_read(until=3, keys=["[1]"])
    assert entry.repair.complete == ""
    entry.repair.were_read(until=-1)
    assert entry.repair.complete == table_parts.BY_SNAPSHOT


def test_rows_that_miss_an_event_until_they_are_read_again():
    state = PipelineState(batch=7, tables={"public.orders": TableState()})
    entry = state.tables["public.orders"]
    entry.repair.doubt_keys(["[1]", "[2]"], batch=7)
    assert entry.repair.stale() == {"[1]", "[2]"}
    entry.repair.were_read(until=7, keys=["[1]"])
    assert entry.repair.stale() == {"[2]"}
    tables.new_epoch(state, {})
    assert entry.repair.stale() is None
    entry.repair.were_read(until=7, keys=["[2]"])
    assert entry.repair.stale() is None, "only a run over the whole table reads every row"
    entry.repair.were_read(until=7)
    assert entry.repair.stale() == frozenset()
