"""What a batch's reports, outcomes and decided chunks make of the tables."""

import base64
import json

import msgspec
import pyarrow as pa
import pytest

from lakemark.connectors.postgres import positions as lsns
from lakemark.model import control
from lakemark.model.columns import Column
from lakemark.model.comparisons import ComparedChunk, UnlikeRow
from lakemark.model.decoding import REPORT, Report, TableReport
from lakemark.model.events import Learnt
from lakemark.model.offsets import EARLIEST
from lakemark.model.schema import TableSchema
from lakemark.reconcile import outputs
from lakemark.reconcile.chunks import Settled
from lakemark.reconcile.outputs import Swept
from lakemark.sink.lake_plan import OUTCOME, TableOutcome
from lakemark.state import advance, stored_form, table_parts, tables
from lakemark.state.table_parts import StoredPosition
from lakemark.state.tables import LeftOut, PipelineState, TableState
from tests.kit.table_states import table_state

T, OTHER, TOPIC = "public.orders", "public.items", "shop.public.orders"


def state_of(**found: TableState) -> PipelineState:
    return PipelineState(batch=5, tables={T: TableState(), OTHER: TableState(), **found})


def chunk(table: str = T, attempt: int = 1, **told) -> tuple[str, bytes]:
    told = {"survivors": 2, "lo": "aa", "hi": "bb"} | told
    settled = Settled(run="r1", table=table, chunk=0, attempt=attempt, shard=0, **told)
    return outputs.SETTLED, msgspec.json.encode(settled)


def sweep(table: str = T) -> tuple[str, bytes]:
    return outputs.SWEPT, msgspec.json.encode(Swept("r1", table, "aa"))


# -- chunks: one counts if its table streamed before the batch and after it ------------------------


@pytest.mark.parametrize("after", [tables.PAUSED, tables.ERRORED, tables.CATCHING_UP])
@pytest.mark.parametrize("before", [True, False], ids=["stopped before", "stopped in the batch"])
def test_nothing_of_a_snapshot_counts_whose_table_does_not_stream(before: bool, after: str):
    """Its rows are not in the table: the chunk is read again, the sweep goes out again."""
    state = state_of(**{T: TableState(state=after)})
    stopped = frozenset([T]) if before else frozenset()
    news = advance.chunks(state, stopped, [chunk(), sweep(), chunk(OTHER, 2), sweep(OTHER)])
    assert {one.table: one.void for one in news.settled} == {T: advance.TABLE_STOPPED, OTHER: ""}
    assert {one.table: one.void for one in news.swept} == {T: advance.TABLE_STOPPED, OTHER: ""}
    assert (state.tables[T].progress.applied_close, state.tables[OTHER].progress.applied_close) == (
        "",
        "bb",
    )


def test_a_chunk_whose_table_has_caught_up_in_its_batch_does_not_count():
    """The tasks left its rows out: they knew the table as it was before."""
    state = state_of()
    news = advance.chunks(state, frozenset([T]), [chunk(), sweep()])
    assert [one.void for one in (*news.settled, *news.swept)] == [advance.TABLE_STOPPED] * 2
    assert state.tables[T].progress.applied_close == ""


def test_a_void_chunk_keeps_its_reason():
    state = state_of(**{T: TableState(state=tables.ERRORED)})
    news = advance.chunks(state, frozenset(), [chunk(void="unreadable-key")])
    assert [one.void for one in news.settled] == ["unreadable-key"]


@pytest.mark.parametrize(
    ("told", "applied_close"),
    [
        ({"survivors": 1}, "bb"),
        ({"survivors": 0, "fills": 1}, "bb"),
        ({"survivors": 0, "fills": 0}, ""),
        ({"void": "own-snapshot"}, ""),
    ],
)
def test_the_applied_close_is_that_of_chunks_that_gave_the_table_something(told, applied_close):
    state = state_of()
    advance.chunks(state, frozenset(), [chunk(**told)])
    assert state.tables[T].progress.applied_close == applied_close


@pytest.mark.parametrize("verify", [control.REPORT, control.REPAIR])
def test_a_row_that_is_to_be_read_again_is_no_finding(verify: str):
    """Whoever reads the events has said that it may be wrong, and a run of its own mends it."""
    state = state_of()
    state.tables[T].repair.doubt_keys(["[1]"], batch=3)
    state.tables[OTHER].repair.doubt_keys(["[2]"], batch=3)
    found = [UnlikeRow("[1]", "differing", ("b",)), UnlikeRow("[2]", "missing")]
    one = ComparedChunk("r1", T, 0, 1, 0, b"aa", verify, 5, 1, found)
    news = advance.chunks(
        state, frozenset(), [chunk(), (outputs.COMPARED, msgspec.msgpack.encode(one))]
    )
    (compared,) = news.compared
    assert [each.key for each in compared.findings] == ["[2]"]
    assert (compared.rows, compared.newer) == (4, 2)


def test_the_applied_close_only_rises():
    state = state_of(**{T: table_state(horizon="cc")})
    advance.chunks(state, frozenset(), [chunk(hi="bb")])
    assert state.tables[T].progress.applied_close == "cc"
    advance.chunks(state, frozenset(), [chunk(hi="dd")])
    assert state.tables[T].progress.applied_close == "dd"


# -- reports and outcomes --------------------------------------------------------------------------

START, END = {TOPIC: {0: 10}}, {TOPIC: {0: 20}}
WATER = StoredPosition(lsns.pack(0, 100, 100).hex(), 7)


def report(first: int = 10, partition: int = 0, topic: str = TOPIC, **told) -> Report:
    tables_of = told.pop("of", {})
    told = {"position": lsns.pack(0, 200 + first, 1), "source_ts": first} | told
    return Report(topic, partition, first, first, tables=tables_of, kinds={}, dead=0, **told)


def settled(*reports: Report, outcomes=(), catalog=False, forwarded=False, **entry):
    """The table's entry after a step with these reports, and what is left to do."""
    entry.setdefault("topics", [TOPIC])
    before = PipelineState(batch=4, applied={TOPIC: {0: WATER}}, tables={T: table_state(**entry)})
    state = stored_form.decode(stored_form.encode(before))
    state.batch, state.offsets = 5, END
    left = advance.settle(
        state, before, START, reports, outcomes, catalog=lambda _: catalog, forwarded=forwarded
    )
    return state.tables[T], left


@pytest.mark.parametrize(
    ("code", "catalog", "refreshed", "retried"),
    [
        ("schema-unknown", True, True, False),
        ("schema-check", True, True, False),
        ("schema-unknown", False, False, False),
        ("no-key", True, False, False),
        ("lake-unavailable", True, False, True),
        ("output-forbidden", True, False, True),
    ],
)
def test_what_a_stretch_stops_a_table_for(code, catalog, refreshed, retried):
    entry, left = settled(
        report(of={T: TableReport(events=3, stop=(code, "why"))}), catalog=catalog
    )
    assert (entry.state, entry.code, entry.reason) == (tables.ERRORED, code, "why")
    assert (entry.retried, left.refresh) == (retried, {T: set()} if refreshed else {})
    assert (entry.progress.from_offsets, entry.progress.applied) == (START, {TOPIC: {0: WATER}})
    assert entry.size.events == 0, "they are counted when they are read again"
    assert entry.hint == advance.HINTS.get(code, "").format(table=T)


@pytest.mark.parametrize("catalog", [True, False])
def test_unknown_columns_of_all_stretches_are_asked_for_together(catalog):
    found = [{"b"}, {"c"}, set()]
    reports = [
        report(10 + at, at, of={T: TableReport(unknown_columns=columns)})
        for at, columns in enumerate(found)
    ]
    entry, left = settled(*reports, catalog=catalog)
    assert (entry.state, entry.code) == (tables.ERRORED, "schema-stale")
    assert left.refresh == ({T: {"b", "c"}} if catalog else {})


def test_a_table_that_a_person_paused_stays_paused():
    stopped = report(of={T: TableReport(stop=("schema-unknown", "why"))})
    entry, left = settled(stopped, catalog=True, state=tables.PAUSED)
    assert (entry.state, entry.code, left.refresh) == (tables.PAUSED, "", {})


@pytest.mark.parametrize(
    ("state", "events", "counted"),
    [(tables.STREAMING, 2, True), (tables.CATCHING_UP, 2, True), (tables.PAUSED, 0, False)],
)
def test_what_is_counted_of_a_table(state, events, counted):
    told = {"replays": 1, "incremental_reads": 3, "clamped": 4, "bad": 5, "newest_ts": 6}
    twice = [report(10 + at, at, of={T: TableReport(events=events, **told)}) for at in (0, 1)]
    entry, _ = settled(*twice, state=state, newest_ts=2)
    found = (
        entry.size.events,
        entry.size.replays,
        entry.size.incremental_reads,
        entry.size.clamped,
    )
    assert found == ((4, 2, 6, 8) if counted else (0, 0, 0, 0))
    assert (entry.size.dead_letters, entry.size.newest_ts) == ((10, 6) if counted else (0, 2))


def test_topics_of_a_table_are_noted_once_and_tables_that_left_or_have_no_name_are_not():
    before = PipelineState(batch=4, left={OTHER: LeftOut(TableState(topics=["t2"]))})
    state = stored_form.decode(stored_form.encode(before))
    of = {T: TableReport(events=1), "": TableReport(events=1)}
    left = {OTHER: TableReport(events=1)}
    found = [report(of=of), report(12, of=of), report(topic="t2", of=of | left)]
    advance.settle(state, before, {}, found, [], catalog=lambda _: False)
    assert state.tables.keys() == {T}
    assert (state.tables[T].topics, state.tables[T].size.events) == ([TOPIC, "t2"], 3)


def test_a_table_left_out_is_back_with_its_events_in_another_topic():
    before = PipelineState(batch=4, left={OTHER: LeftOut(TableState(topics=["old"]))})
    state = stored_form.decode(stored_form.encode(before))
    found = [report(of={OTHER: TableReport(events=1)})]
    advance.settle(state, before, START, found, [], catalog=lambda _: False)
    assert state.tables[OTHER].progress.from_offsets == START
    assert state.left == {}


def test_how_the_connector_writes_is_kept_until_it_shows_it_again():
    before = PipelineState()
    before.learn(Learnt(b"old", {T: (b"k", b"v")}))
    stored = stored_form.encode(before)
    assert json.loads(stored)["sample"] == base64.b64encode(b"old").decode(), "as versions before"
    assert json.loads(stored)["wrappers"] == {T: ["aw==", "dg=="]}
    for event, kept in ((b"", b"old"), (b"new", b"new")):
        state = stored_form.decode(stored)
        found = [report(learnt=Learnt(event, {OTHER: (b"", b"")}))]
        advance.settle(state, before, {}, found, [], catalog=lambda _: False)
        assert state.learnt() == Learnt(kept, {T: (b"k", b"v"), OTHER: (b"", b"")})


def test_records_whose_key_cannot_be_read_ask_for_a_snapshot_keys_for_rereads():
    entry, _ = settled(report(of={T: TableReport(unread=1, reread=["[1]"])}))
    assert (entry.repair.resnapshot, entry.repair.resnapshot_since) == (advance.UNREAD, 5)
    entry, _ = settled(report(of={T: TableReport(reread=["[1]"])}))
    assert (entry.repair.resnapshot, entry.repair.reread_keys) == ("", {"[1]": 5})


def test_the_first_regressed_event_of_a_partition_is_remembered():
    before, state = PipelineState(), PipelineState(regressed={TOPIC: {1: 3}})
    found = [report(10, 0, regressed=r) for r in (9, 7, -1, 8)]
    found += [report(10, 1, regressed=5), report(10, 2, regressed=0)]
    advance.settle(state, before, {}, found, [], catalog=lambda _: False)
    assert state.regressed == {TOPIC: {0: 7, 1: 3, 2: 0}}


@pytest.mark.parametrize("retried", [True, False])
def test_an_outcome_with_a_code_stops_its_table_and_is_tried_again_if_it_can(retried):
    outcome = TableOutcome(T, code="lake-unavailable", reason="why", hint="do", retried=retried)
    entry, left = settled(report(of={T: TableReport(events=1)}), outcomes=[outcome])
    assert (entry.state, entry.code, entry.hint) == (tables.ERRORED, "lake-unavailable", "do")
    assert (entry.retried, left.failed, entry.size.events) == (retried, [outcome] * retried, 0)
    assert entry.progress.old_ends == {}


@pytest.mark.parametrize("forwarded", [True, False])
@pytest.mark.parametrize(
    ("told", "code"), [({"put_off": True}, "table-begins"), ({"needs": b"x"}, "table-changed")]
)
def test_a_table_that_has_to_wait_for_its_own_read_catches_up(told, code, forwarded):
    outcome = TableOutcome(T, rows=9, truncate=b"\xff", **told)
    entry, left = settled(
        report(of={T: TableReport(events=1)}), outcomes=[outcome], forwarded=forwarded
    )
    assert (entry.state, entry.code, entry.progress.from_offsets) == (
        tables.CATCHING_UP,
        code,
        START,
    )
    assert (entry.size.rows, entry.progress.truncated_at, entry.size.events, left.failed) == (
        0,
        "",
        0,
        [],
    )
    assert entry.progress.old_ends == (END if forwarded else {})


def test_what_an_outcome_tells_of_its_table():
    outcome = TableOutcome(
        T, rows=9, bytes=90, truncate=b"\x02", committed_ms=50, key=["id"], engine="task-merge",
        unavailable=2, partial=True, reread=["[1]"], pending=True, step="catchup",
    )  # fmt: skip
    old = {"floor": "01", "committed_ms": 40, "unavailable": 1, "pending": 3, "key": ["old"]}
    entry, _ = settled(outcomes=[outcome], **old)
    assert (
        entry.size.rows,
        entry.size.bytes,
        entry.progress.truncated_at,
        entry.size.committed_ms,
    ) == (
        9,
        90,
        "02",
        50,
    )
    assert (entry.files.key, entry.files.engine, entry.size.unavailable, entry.repair.partial) == (
        ["id"], "task-merge", 3, True,
    )  # fmt: skip
    assert entry.repair.reread_keys == {"[1]": 5}
    assert (entry.pending.batch, entry.pending.step) == (5, "catchup")
    assert (entry.pending.over, entry.pending.over_step) == (3, "stream")
    assert entry.repair.resnapshot == ""


def test_what_an_outcome_does_not_tell_stays():
    old = {"floor": "03", "committed_ms": 60, "rows": 7, "bytes": 70, "partial": True, "key": ["a"]}
    entry, _ = settled(outcomes=[TableOutcome(T, truncate=b"\x02", committed_ms=50)], **old)
    assert (
        entry.progress.truncated_at,
        entry.size.committed_ms,
        entry.size.rows,
        entry.size.bytes,
    ) == (
        "03",
        60,
        7,
        70,
    )
    assert (entry.repair.partial, entry.files.key, entry.pending.batch) == (True, ["a"], -1)
    assert settled(outcomes=[TableOutcome(T, rows=0)], **old)[0].size.rows == 0, "that is told"


def test_which_commit_a_table_must_have():
    """The newest that records the batch; none that was recorded in a table that is gone."""
    old = {"recorded": 3, "recorded_as": "stream", "key_ends": ["a/high"]}
    done = TableOutcome(T, recorded_as="catchup", key_ends=["b/low"])
    nothing = TableOutcome(T)
    assert _recorded(done, **old) == (5, "catchup", ["a/high", "b/low"])
    assert _recorded(nothing, **old) == (3, "stream", ["a/high"])
    done.made = nothing.made = True
    assert _recorded(done, **old) == (5, "catchup", ["b/low"])
    assert _recorded(nothing, **old) == (-1, "stream", [])


def _recorded(outcome: TableOutcome, **old) -> tuple[int, str, list[str]]:
    entry, _ = settled(outcomes=[outcome], **old)
    return entry.files.recorded, entry.files.recorded_as, entry.files.key_ends


@pytest.mark.parametrize(("key", "kept"), [(["id"], ["id"]), ([], ["old"])])
def test_a_table_that_is_made_to_fit_has_the_key_of_its_rows(key, kept):
    entry, _ = settled(outcomes=[TableOutcome(T, needs=b"x", key=key)], key=["old"])
    assert entry.files.key == kept


def test_a_table_that_could_not_be_made_to_fit_stops():
    outcome = TableOutcome(T, needs=b"x", code="schema-incompatible", reason="why")
    entry, _ = settled(outcomes=[outcome])
    assert (entry.state, entry.code) == (tables.ERRORED, "schema-incompatible")


@pytest.mark.parametrize(
    ("ends", "stop", "was", "complete"),
    [
        (True, None, "", table_parts.BY_CONNECTOR),
        (False, None, "", ""),
        (True, ("no-key", "why"), "", ""),
        (True, None, table_parts.BY_SNAPSHOT, table_parts.BY_SNAPSHOT),
    ],
)
def test_rows_of_the_connectors_own_that_came_whole_make_a_table_complete(
    ends, stop, was, complete
):
    found = report(of={T: TableReport(own_ends=ends, stop=stop)})
    assert settled(found, complete=was)[0].repair.complete == complete


def test_a_batch_without_rows_of_the_connectors_own_is_none_of_its_snapshot():
    entry, _ = settled(report(of={T: TableReport(events=1)}))
    assert (entry.repair.own_batch, entry.repair.own_snapshot) == (-1, 0)


def test_own_rows_of_a_table_left_out_are_nothing_to_it():
    before = PipelineState(batch=4, left={OTHER: LeftOut(TableState(topics=[TOPIC]))})
    state = stored_form.decode(stored_form.encode(before))
    told = TableReport(own_ends=True, own_snapshots={700})
    advance.settle(state, before, START, [report(of={OTHER: told})], [], catalog=lambda _: False)
    assert state.left == before.left
    assert state.tables == {}


def test_events_with_unknown_columns_are_counted_when_they_are_read_again():
    entry, _ = settled(report(of={T: TableReport(events=3, unknown_columns={"b"})}))
    assert entry.size.events == 0


def test_what_a_streaming_table_has_besides_events_is_counted():
    entry, _ = settled(report(of={T: TableReport(replays=2)}))
    assert entry.size.replays == 2


@pytest.mark.parametrize(
    ("told", "committed", "why"),
    [
        ({"made": True}, 40, advance.GONE),
        ({"made": True}, 0, ""),
        ({"made": False}, 40, ""),
        ({"lost": True}, 40, advance.HALVES_LOST),
    ],
)
def test_a_table_that_was_made_anew_or_lost_halves_is_to_be_snapshotted(told, committed, why):
    entry, _ = settled(outcomes=[TableOutcome(T, **told)], committed_ms=committed)
    assert entry.repair.resnapshot == why


@pytest.mark.parametrize(
    ("rows_before", "engine", "own", "why"),
    [
        (3, "", False, advance.ADOPTED),
        (0, "", False, ""),
        (3, "task-merge", False, ""),
        (3, "", True, "own"),
        (0, "", True, ""),
    ],
)
def test_rows_that_were_there_before_the_checkpoint_are_adopted(rows_before, engine, own, why):
    lsns = {700} if own else set()
    found = report(of={T: TableReport(events=1, own_snapshots=lsns)})
    outcome = TableOutcome(T, rows_before=rows_before, rows=5)
    entry, _ = settled(found, outcomes=[outcome], engine=engine)
    assert (
        "own" if "snapshot of its own" in entry.repair.resnapshot else entry.repair.resnapshot
    ) == why
    assert entry.repair.own_snapshot == (700 if own else 0)


@pytest.mark.parametrize(("rows", "doubt"), [(0, False), (4, True)])
def test_an_own_snapshot_is_judged_by_the_rows_before_the_batch(rows, doubt):
    found = report(of={T: TableReport(events=1, own_snapshots={700})})
    entry, _ = settled(found, outcomes=[TableOutcome(T, rows=9)], engine="task-merge", rows=rows)
    assert bool(entry.repair.resnapshot) == doubt


def test_an_own_snapshot_of_a_table_that_stops_is_noted_when_it_is_read_again():
    found = report(of={T: TableReport(own_snapshots={700}, stop=("no-key", "why"))})
    entry, _ = settled(found)
    assert (entry.repair.own_snapshot, entry.repair.own_batch) == (0, -1)


def test_a_reason_for_a_snapshot_is_not_replaced_by_that_of_adoption():
    entry, _ = settled(outcomes=[TableOutcome(T, rows_before=3)], resnapshot="another")
    assert entry.repair.resnapshot == "another"


# -- a connector that began without offsets --------------------------------------------------------

STREAMED, SNAPSHOT = lsns.pack(0, 9, 9).hex(), lsns.pack(0, 0, 9).hex()


@pytest.mark.parametrize(
    ("known", "applied", "times", "doubt"),
    [
        (50, [], [60], True),  # a slot before it is known
        (50, [], [50], False),  # that very one: it comes again
        (50, [], [40], False),
        (50, [], [], False),
        (0, [], [60], False),  # the pipeline's first
        (0, [StoredPosition(STREAMED, 59)], [60], True),
        (0, [StoredPosition(STREAMED, 60)], [60], False),
        (0, [StoredPosition(SNAPSHOT, 10)], [60], False),
        (0, [StoredPosition()], [60], False),
        (0, [], [60, 70], True),  # two at once: the first of them is a slot before
        (0, [], [60, 60], False),
    ],
)
def test_a_slot_made_anew_puts_all_tables_in_doubt_and_the_first_one_none(
    known, applied, times, doubt
):
    state = state_of()
    state.left["public.left"] = LeftOut(TableState())
    state.begun, state.applied = known, {TOPIC: dict(enumerate(applied))}
    advance.begun_anew(state, [report(beginnings={time: time for time in times})])
    reasons = {entry.repair.resnapshot for entry in state.entries()}
    assert reasons == {advance.BEGUN_ANEW if doubt else ""}
    assert state.begun == max([known, *times])


def test_records_of_one_beginning_that_come_in_several_batches_are_one():
    state = state_of()
    for batch, time in enumerate((50, 55, 59)):
        state.batch = batch
        advance.begun_anew(
            state, [report(beginnings={7: time}), report(1, beginnings={7: time + 1})]
        )
    assert {entry.repair.resnapshot for entry in state.entries()} == {""}
    advance.begun_anew(state, [report(beginnings={7: 58, 9: 70})])
    assert {entry.repair.resnapshot for entry in state.entries()} == {advance.BEGUN_ANEW}
    assert (state.begun, state.begun_at) == (70, 9)


def test_tables_whose_rows_a_statement_has_moved_are_read_again():
    state = state_of()
    state.left["public.left"] = LeftOut(TableState())
    asked = []

    def moved_by(qualifier, statement):
        asked.append((qualifier, statement))
        return [T, "public.left", "public.unknown"]

    advance.moved(state, [report()], moved_by)
    assert {entry.repair.resnapshot for entry in state.entries()} == {""}
    advance.moved(state, [report(statements=("one", "two"), connector="shop")], moved_by)
    assert asked == [("shop", "one"), ("shop", "two")]
    entries = state.tables[T], state.left["public.left"].entry
    assert {entry.repair.resnapshot for entry in entries} == {advance.MOVED}
    assert "public.unknown" not in state.tables


# -- what a foreign key changes without an event ----------------------------------------------------

CHILDREN = {"public.parent": {"public.child": False, "public.named": True}}


@pytest.mark.parametrize(
    ("found", "doubted"),
    [
        (TableReport(events=3), set()),
        (TableReport(events=1, deletes=1), {"public.child", "public.named"}),
        (TableReport(events=1, updates=1), {"public.named"}),
    ],
)
def test_tables_that_follow_a_foreign_key_are_read_again(found, doubted):
    state = PipelineState(
        batch=9, tables={name: TableState() for name in CHILDREN["public.parent"]}
    )
    advance.cascaded(state, [report(of={"public.parent": found})], CHILDREN)
    assert {name for name, entry in state.tables.items() if entry.repair.resnapshot} == doubted
    assert {state.tables[name].repair.resnapshot_since for name in doubted} <= {9}
    advance.cascaded(state, [report(of={"public.other": found})], CHILDREN)
    assert "public.other" not in state.tables


def test_a_table_of_which_nothing_came_is_doubted_only_while_a_run_reads_it():
    found = report(of={"public.parent": TableReport(events=1, deletes=1)})
    state = PipelineState(batch=9)
    advance.cascaded(state, [found], CHILDREN)
    assert not state.tables
    state.runs = {"r"}
    advance.cascaded(state, [found], CHILDREN)
    assert state.tables["public.child"].repair.resnapshot


# -- offsets and applied positions -----------------------------------------------------------------------


def test_where_a_batch_begins():
    before = PipelineState(offsets={TOPIC: {0: 5}})
    end = {TOPIC: {0: 9, 1: 4, 2: 3}, "new": {0: 7}}
    assert advance.start_offsets(before, end) == {
        TOPIC: {0: 5, 1: 0, 2: 0},
        "new": {0: EARLIEST},
    }
    seen = [report(2, 1), report(1, 1), report(8, 0), report(6, 0, topic="new")]
    assert advance.start_offsets(before, end, seen) == {TOPIC: {0: 5, 1: 1, 2: 3}, "new": {0: 6}}


def test_the_last_stretch_of_a_partition_says_its_high_water():
    found = [report(30, creates=True), report(10), report(20), report(5, 1)]
    last = StoredPosition(lsns.pack(0, 230, 1).hex(), 30, creates=True)
    state = PipelineState(applied={TOPIC: {0: WATER, 2: WATER}})
    advance.applied(state, found)
    assert state.applied[TOPIC][0] == last
    assert state.applied[TOPIC].keys() == {0, 1, 2}
    assert advance.applied_positions(found)[TOPIC, 0] == last


def test_loads_are_the_events_of_all_stretches():
    found = [
        report(at, of={T: TableReport(events=at), OTHER: TableReport(events=1)}) for at in (2, 5)
    ]
    assert advance.loads(found) == {T: 7, OTHER: 2}


def test_results_by_kind_and_what_shards_hold_together():
    results = advance.Results()
    results.take(REPORT, msgspec.msgpack.encode(report()))
    results.take(OUTCOME, msgspec.msgpack.encode(TableOutcome(T, rows=3)))
    results.take(outputs.RESTART, T.encode())
    assert [one.topic for one in results.reports] == [TOPIC]
    assert [one.rows for one in results.outcomes] == [3]
    assert results.said == [(outputs.RESTART, T.encode())]
    sizes = [outputs.Size(0, 3, 1, 50), outputs.Size(1, 4, 2, 40)]
    said = [*results.said, *((outputs.SIZE, msgspec.json.encode(one)) for one in sizes)]
    news = advance.chunks(state_of(), frozenset(), said)
    assert news.restarts == {T}
    assert news.held() == {"touches": 7, "parts": 3, "largest_state": 50}
    assert advance.chunks(state_of(), frozenset(), results.said).held() == {}


# -- records and the database ----------------------------------------------------------------------


def schema_of(kind: pa.DataType) -> TableSchema:
    return TableSchema(T, (Column("id", pa.int64()), Column("n", kind)), ("id",))


def told(kind: pa.DataType | None, at: int = 1, nulls: tuple[str, ...] = ()) -> Report:
    """What a stretch says whose records have this type, which is not the one that was known."""
    other = b"" if kind is None else schema_of(kind).to_json()
    found = TableReport(newest_ts=at, brought=True, other_schema=other, hidden_nulls=nulls)
    return Report(TOPIC, 0, 0, 1, "", at, {T: found}, {}, 0)


def test_a_table_says_that_its_records_and_the_database_differ_once_both_are_as_new():
    state, asked = state_of(), []
    known, there = {T: schema_of(pa.int64())}, {T: schema_of(pa.int32())}

    def ask(table: str) -> None:
        asked.append(table)
        known.update(there)

    def batch(*reports: Report) -> str:
        advance.agreed(state, reports, schemas=known, ask=ask, rereads=bool)
        return state.tables[T].disagrees

    assert batch(told(pa.int32())) == "", "the catalog was read before the column changed"
    assert asked == [T]
    wrong = "n is string in its records and int32 in the database"
    assert batch(told(pa.string())) == wrong
    assert batch(told(pa.string())) == wrong
    assert asked == [T] * 3
    older, newer = told(pa.string(), at=5), told(None, at=6)
    assert batch(newer, older) == "", "the newest records count"
    assert batch(told(pa.string())) == wrong
    assert batch(Report(TOPIC, 0, 0, 1, "", 1, {T: TableReport()}, {}, 0)) == wrong
    again = msgspec.json.decode(stored_form.encode(state), type=PipelineState)
    assert again.tables[T].disagrees == wrong


def test_a_table_says_in_which_columns_null_is_lost():
    state = state_of()
    advance.agreed(state, [told(None, nulls=("score",))], schemas={}, ask=pytest.fail, rereads=bool)
    assert state.tables[T].hidden_nulls == ("score",)
    advance.agreed(state, [told(None)], schemas={}, ask=pytest.fail, rereads=bool)
    assert state.tables[T].hidden_nulls == ()


@pytest.mark.parametrize(
    ("keys", "rereads", "read", "counted"),
    [(2, True, 2, 0), (2, False, 0, 2), (101, True, 0, 101)],
)
def test_rows_that_may_have_null_are_read_again_where_they_are_few(keys, rereads, read, counted):
    state = state_of()
    found = [f"[{at}]" for at in range(keys)]
    report = told(None, nulls=("score",))
    report.tables[T].maybe_null, report.tables[T].maybe_null_keys = keys, found
    advance.agreed(state, [report], schemas={}, ask=pytest.fail, rereads=lambda _: rereads)
    entry = state.tables[T]
    assert (len(entry.repair.reread_keys), entry.size.maybe_null) == (read, counted)
    assert entry.repair.reread_missed == -1, "never the whole table"
