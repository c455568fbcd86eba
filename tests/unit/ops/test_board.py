"""The board: states in people's words, lag, the last hour, signals and their answers."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.errors import DependencyError
from lakemark.model.proof import TableProof
from lakemark.ops import health, lag
from lakemark.ops.board import Board
from lakemark.ops.history import PACE_S, EventRate
from lakemark.ops.proofs import (
    WAITS_EMPTY,
    WAITS_INCOMPLETE,
    WAITS_READ,
    WAITS_REBUILT,
    WAITS_STOPPED,
)
from lakemark.ops.status import (
    BatchDone,
    ChunkNow,
    Delay,
    SourceNow,
    SourceProblem,
    WindowsNow,
)
from lakemark.settings.verify_config import VerifyConfig
from lakemark.snapshot import notifications
from lakemark.snapshot.flight import ChunkInFlight, Flight
from lakemark.snapshot.notifications import Progress, ScanStatus, Subject
from lakemark.snapshot.signals import Rejection
from lakemark.state.tables import PipelineState, TableState
from tests.kit.table_states import table_state

A, B = "public.a", "public.b"
START = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def board(clock):
    return Board("shop", clock=clock)


def entry(**more) -> TableState:
    return table_state(**{"topics": ["t.a"], "events": 1, "rows": 1, **more})


def at(offset: int, **tables: TableState) -> PipelineState:
    named = {f"public.{name}": found for name, found in tables.items()}
    return PipelineState(batch=1, offsets={"t.a": {0: offset}}, tables=named)


def ends(end: int, start: int = 0) -> lag.Ends:
    return lag.Ends({"t.a": {0: start}}, {"t.a": {0: end}})


def micros(seconds: float) -> int:
    return int(seconds * 1_000_000)


def states(board: Board) -> dict[str, str]:
    return {table.name: table.state for table in board.status().tables}


def of(board: Board, name: str):
    return next(table for table in board.status().tables if table.name == name)


def scan(run: Subject, table: str, *, chunks: int) -> notifications.Notification:
    progress = Progress(chunks=chunks, total_chunks=4, rows=10 * chunks, seconds=2, total_rows=40)
    return notifications.in_progress(run, table=table, progress=progress, ts_ms=2000 + chunks)


def scanned(run: Subject, table: str) -> notifications.Notification:
    full = Progress(chunks=4, total_chunks=4, rows=40, seconds=2)
    return notifications.table_scan_completed(
        run, table=table, status=ScanStatus.SUCCEEDED, progress=full, ts_ms=2010
    )


def test_a_table_goes_from_waiting_over_snapshotting_to_streaming(board):
    run = Subject("r1", "shop", (A, B))
    board.captured([A, B])
    assert states(board) == {A: "waiting", B: "waiting"}
    board.notification(notifications.started(run, ts_ms=1))
    assert states(board) == {A: "snapshotting", B: "snapshotting"}
    board.tables(at(1, a=entry(state="catching-up")))
    assert states(board) == {A: "catching_up", B: "snapshotting"}
    board.tables(at(1, a=entry(), b=entry()))
    assert states(board) == {A: "snapshotting", B: "snapshotting"}
    board.notification(scanned(run, A))
    assert states(board) == {A: "streaming", B: "snapshotting"}
    board.notification(notifications.aborted(run, stopped=[B], ts_ms=3))
    assert states(board) == {A: "streaming", B: "streaming"}


def test_a_stopped_table_says_why_even_while_a_run_reads_it(board):
    board.notification(notifications.started(Subject("r1", "shop", (A, B)), ts_ms=1))
    why = {"code": "no-key", "reason": "it has no key", "hint": "give it one", "retried": True}
    board.tables(at(1, a=entry(state="errored", **why), b=entry(state="paused")))
    assert states(board) == {A: "errored", B: "paused"}
    found = of(board, A)
    assert (found.code, found.reason, found.hint, found.retried) == tuple(why.values())


def test_what_waits_to_be_read_again_is_counted(board):
    board.tables(at(1, a=entry(reread_keys={"[1]": 3, "[2]": 3}, reread_missed=4)))
    assert (of(board, A).rereads, of(board, A).more_rereads) == (2, True)


# --- lag --------------------------------------------------------------------------------------


def test_nothing_unread_is_no_lag_however_old_the_newest_change_is(board, clock):
    board.tables(at(10, a=entry(newest_ts=micros(START - 3600))))
    assert of(board, A).lag.seconds is None  # Kafka has not been asked
    board.ends(ends(10))
    assert (of(board, A).lag.seconds, of(board, A).lag.records) == (0.0, 0)
    assert board.status().lag.seconds == 0.0


def test_a_first_event_after_silence_is_no_lag_of_an_hour(board, clock):
    board.tables(at(10, a=entry(newest_ts=micros(START - 1))))
    board.ends(ends(10))
    clock.now += 3600
    board.ends(ends(11))
    clock.now += 2
    found = of(board, A).lag
    assert found.records == 1
    assert found.seconds == pytest.approx(3, abs=0.1)  # 1 s late when applied, unread for 2 s


def test_the_backlog_of_a_source_counts_by_the_source_s_clock(board, clock):
    board.tables(at(10, a=entry(newest_ts=micros(START - 500))))
    board.ends(ends(100))
    assert of(board, A).lag.seconds == pytest.approx(500, abs=0.1)
    clock.now += 10
    board.tables(at(60, a=entry(newest_ts=micros(START - 200), events=2)))
    assert of(board, A).lag.seconds == pytest.approx(210, abs=0.1)
    assert of(board, A).lag.records == 40


def test_after_a_restart_the_lag_is_that_of_what_was_applied_before(board, clock):
    board.began(at(10, a=entry(newest_ts=micros(START - 600), committed_ms=7), b=entry()))
    board.ends(ends(11))
    assert of(board, A).lag.seconds == pytest.approx(600, abs=0.1)
    assert of(board, A).committed_ms == 7
    assert of(board, B).committed_ms is None


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 100)), max_size=20), st.floats(0, 200))
def test_the_pace_is_that_of_the_last_minute(steps, rest):
    """All events of the last minute, and none that is older than what came before it."""
    pace, at, total, seen = EventRate(0.0, 0), 0.0, 0, [(0.0, 0)]
    for wait, events in steps:
        at, total = at + wait, total + events
        seen.append((at, total))
        pace.add(at, total)
    now = at + rest
    old = max((events for when, events in seen if when <= now - PACE_S), default=0)
    shown = pace.now(now) * max(1.0, min(PACE_S, now))
    if now >= PACE_S or len(seen) == 1:
        assert shown == pytest.approx(total - old)
    else:
        assert pace.now(now) == pytest.approx(total / max(1.0, now))


@pytest.mark.parametrize("state", ["errored", "paused"])
def test_a_stopped_table_lags_from_where_it_stopped_and_hides_no_other(board, state):
    stopped = {"from_offsets": {"t.a": {0: 4}}, "newest_ts": micros(START - 90)}
    board.began(at(10, a=entry(state=state, **stopped), b=entry(topics=["t.a"])))
    board.ends(ends(10))
    assert of(board, A).lag.records == 6
    assert of(board, A).lag.seconds == pytest.approx(90, abs=0.1)
    assert (board.status().lag.seconds, board.status().lag.records) == (0.0, 0)


def test_records_that_retention_took_are_not_unread(board):
    board.began(PipelineState(batch=0, tables={A: entry()}))
    board.ends(ends(1000, start=990))
    assert board.status().lag.records == 10


def test_a_broker_that_is_away_makes_the_lag_unknown(board):
    board.tables(at(10, a=entry()))
    board.ends(ends(12))
    assert board.status().lag.records == 2
    board.ends(None)
    assert (board.status().lag.seconds, board.status().lag.records) == (None, None)


# --- batches ----------------------------------------------------------------------------------


def done(number: int, **seconds: float) -> BatchDone:
    return BatchDone(number, events=10, rows=5, seconds=seconds or {"tasks": 1.0})


def test_the_last_hour_is_kept_in_a_bounded_ring(board, clock):
    for number in range(2000):
        board.batch(done(number))
        clock.now += 5
    found = board.history().stretches
    assert len(found) == 360
    assert {(s.batches, s.events, s.rows) for s in found} == {(2, 20, 10)}
    assert found[-1].at_ms - found[0].at_ms == 3_590_000
    assert board.totals()[:3] == (2000, 20_000, 10_000)
    assert [b.batch for b in board.status().batches] == list(range(1999, 1979, -1))
    assert board.status().batches[0].ended_ms == int((clock.now - 5) * 1000)
    clock.now += 1800
    assert len(board.history().stretches) == 180
    clock.now -= 7000  # whatever is asked for, no more than an hour is held
    assert len(board.history().stretches) == 360


def test_a_clock_that_goes_back_neither_fails_nor_grows(board, clock):
    board.batch(done(1))
    clock.now -= 100
    board.batch(done(2))
    assert [s.batches for s in board.history().stretches] == [2]


def test_the_slowest_step_of_the_last_batches_has_a_name(board):
    assert board.status().slowest_step is None
    for number in range(30):
        early = number < 5
        board.batch(done(number, plan=100.0 if early else 0.1, tasks=0.3))
    found = board.status().slowest_step
    assert (found.step, found.share, found.batches) == ("tasks", 0.75, 20)


def test_highest_lag_of_ten_seconds_is_kept(board, clock):
    board.tables(at(10, a=entry(newest_ts=micros(START))))
    for end in (15, 12, 10):
        board.ends(ends(end))
    assert board.history().stretches[-1].lag_records == 5


# --- signals and snapshots --------------------------------------------------------------------


def test_a_signal_and_its_answer(board):
    board.signal(
        b'{"id": "s1", "type": "execute-snapshot", "data": {"data-collections": ["public.a"]}}',
        sent_ms=5,
        unnamed="x",
    )
    (seen,) = board.status().signals
    assert (seen.id, seen.type, seen.tables, seen.answer) == ("s1", "execute-snapshot", (A,), None)
    why = Rejection("s1", "no-key", "it has no key", "give it one")
    board.notification(notifications.rejected(why, pipeline="shop", ts_ms=9))
    (seen,) = board.status().signals
    assert (seen.answer.type, seen.answer.code, seen.answer.hint) == (
        "REJECTED",
        "no-key",
        "give it one",
    )
    assert board.status().snapshots == ()  # a refused signal is no run


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b'{"id": 5, "data": "x"}', b"\xff"])
def test_a_signal_that_nobody_can_read_is_shown_too(board, value):
    board.signal(value, sent_ms=5, unnamed="signals-0-7")
    (seen,) = board.status().signals
    assert (seen.id, seen.type) == ("signals-0-7", "unreadable")


def test_a_run_s_newest_numbers_and_a_pause_that_is_no_run(board):
    run = Subject("r1", "shop", (A,))
    board.notification(notifications.started(run, ts_ms=1))
    board.notification(scan(run, A, chunks=1))
    board.notification(scan(run, A, chunks=3))
    board.notification(notifications.paused(run, ts_ms=2500))
    board.notification(notifications.paused(Subject("p1", "shop", (A,)), ts_ms=2500))
    (found,) = board.status().snapshots
    (table,) = found.tables
    assert (found.id, found.state) == ("r1", "paused")
    assert (table.chunks, table.total_chunks, table.percent, table.rows) == (3, 4, 75, 30)
    assert (table.rows_per_second, table.eta_seconds) == (15, 1)


def test_many_runs_are_forgotten_but_not_one_that_goes_on(board):
    board.notification(notifications.started(Subject("first", "shop", (A,)), ts_ms=1))
    for number in range(200):
        run = Subject(f"r{number}", "shop", (B,))
        board.notification(notifications.started(run, ts_ms=10 + number))
        full = Progress(chunks=1, total_chunks=1, rows=1, seconds=1)
        board.notification(notifications.completed(run, progress=full, ts_ms=10 + number))
        board.signal(b'{"id": "s%d", "type": "pause-snapshot"}' % number, sent_ms=1, unnamed="x")
    found = board.status().snapshots
    assert len(found) == 50
    assert (found[0].id, found[1].id) == ("first", "r199")
    assert len(board.status().signals) == 50
    assert board.status().signals[0].id == "s199"


def test_what_is_in_flight_stands_with_its_table(board, clock):
    run = Subject("r1", "shop", (A, B))
    board.notification(notifications.started(run, ts_ms=1))
    stages = {("r1", A): "reading", ("r1", B): "waiting"}
    chunk = ChunkInFlight("r1", A, 3, 77, "read", 5, rows=9, lo="w1")
    other = ChunkInFlight("r2", A, 0, 78, "reading", 6)
    board.flight(Flight(stages, (chunk, other), window="w2", opened_ms=4, windows=2))
    ((one, two),) = (found.tables for found in board.status().snapshots)
    assert (one.stage, two.stage, two.in_flight) == ("reading", "waiting", ())
    assert one.in_flight == (ChunkNow(3, 77, "read", 5, 9, "w1", ""),)
    assert board.status().windows == WindowsNow("w2", 4, 2, "")
    assert board.status().snapshot_delay is None
    board.notification(scanned(run, A))
    assert board.status().snapshots[0].tables[0].stage == "", "it has come to its end"
    board.flight(Flight(code="gone", reason="the database is away", hint="start it"))
    assert (board.status().windows, board.status().snapshot_delay) == (
        None,
        Delay("gone", "the database is away", "start it"),
    )
    board.flight(None)
    assert board.status().snapshot_delay is None


# --- alive and ready --------------------------------------------------------------------------

MINUTE = timedelta(seconds=60)


def codes(board: Board) -> list[tuple[str, str]]:
    return [(r.code, r.table) for r in health.not_ready(board.status(), MINUTE)]


DAY_MS = 86_400_000


def proved(clock, ago_ms: int = 5000, **more) -> TableProof:
    then = int(clock.now * 1000) - ago_ms
    return TableProof(proved_ms=then, turn_ms=then, ended_ms=then + 1000, **more)


def with_proof(board: Board, proof: TableProof | None, **more) -> None:
    board.pipeline("streaming")
    state = at(1, a=entry(**{"engine": "task-merge", "complete": "snapshot", **more}))
    state.proofs = {A: proof} if proof else {}
    board.tables(state)
    board.ends(ends(1))


def of_proof(board: Board, limit: timedelta | None) -> list[str]:
    found = health.not_ready(board.status(), MINUTE, limit)
    return [reason.reason for reason in found if reason.code == "proof-old"]


def test_a_proof_is_shown_with_what_was_found(clock):
    board = Board("shop", verify=VerifyConfig(every=timedelta(days=7)), clock=clock)
    with_proof(board, proved(clock, rows=7, position="ab", found={"missing": 2}, run="v"))
    status = board.status()
    (table,) = status.tables
    assert status.verify_every_s == 7 * 86_400
    assert (table.proof.expected, table.proof.rows, table.proof.unlike) == (True, 7, 2)
    assert (table.proof.position, table.proof.found, table.proof.waits) == (
        "ab",
        {"missing": 2},
        "",
    )
    with_proof(board, None)
    assert board.status().tables[0].proof.proved_ms is None
    for more, waits in (
        ({"state": "paused"}, WAITS_STOPPED), ({"rebuild": "r"}, WAITS_REBUILT),
        ({"complete": ""}, WAITS_INCOMPLETE), ({"reread_missed": 3}, WAITS_READ),
        ({"engine": ""}, WAITS_EMPTY),
    ):  # fmt: skip
        with_proof(board, None, **more)
        assert board.status().tables[0].proof.waits == waits


def test_without_verification_only_what_was_proved_by_hand_is_shown(board, clock):
    with_proof(board, None)
    assert board.status().tables[0].proof is None
    assert board.status().verify_every_s is None
    with_proof(board, proved(clock))
    assert not board.status().tables[0].proof.expected
    chosen = VerifyConfig(every=timedelta(days=7), tables=["public.b"])
    other = Board("shop", verify=chosen, clock=clock)
    with_proof(other, None)
    assert other.status().tables[0].proof is None


def test_readiness_asks_for_proofs_only_where_it_is_told_to(board, clock):
    day = timedelta(days=1)
    with_proof(board, None)
    assert of_proof(board, None) == []
    assert of_proof(board, day) == [f"{A} was never proved, not within 86400 s"]
    with_proof(board, proved(clock))
    assert of_proof(board, day) == []
    with_proof(board, proved(clock, 2 * DAY_MS))
    assert of_proof(board, day) == [f"{A} was proved 172800 s ago, not within 86400 s"]
    with_proof(board, proved(clock, 2 * DAY_MS), state="paused")
    assert of_proof(board, day) == [], "as of its lag, a person's word counts"
    with_proof(board, None, engine="")
    assert of_proof(board, day) == [], "it never had a row"
    chosen = VerifyConfig(every=day, tables=["public.b"])
    other = Board("shop", verify=chosen, clock=clock)
    with_proof(other, None)
    assert of_proof(other, day) == [], "it is not verified by itself"


def test_alive_is_streaming(board):
    assert health.not_alive(board.status()).code == "starting"
    board.pipeline("streaming")
    assert health.not_alive(board.status()) is None
    board.pipeline("degraded", code="kafka-unavailable", reason="away", hint="start it")
    assert health.not_alive(board.status()).code == "kafka-unavailable"
    board.pipeline("streaming")
    assert health.not_alive(board.status()) is None


def test_a_process_that_stands_by_is_alive_but_not_ready(board):
    board.pipeline("standby")
    assert health.not_alive(board.status()) is None
    assert codes(board) == [("standby", "")]


AWAY = DependencyError("no broker answers", code="kafka-unavailable", hint="start the brokers")


def test_a_query_that_still_runs_is_degraded_while_kafka_is_away(board, clock):
    board.pipeline("streaming")
    board.tables(at(10, a=entry()))
    board.ends(ends(10))
    assert (health.not_alive(board.status()), codes(board)) == (None, [])
    board.ends(None, why=AWAY)
    clock.now += 20
    board.ends(None, why=AWAY)
    now = board.status().pipeline
    assert (now.state, now.code, now.reason, now.hint) == (
        "degraded",
        "kafka-unavailable",
        "no broker answers",
        "start the brokers",
    )
    assert (now.since_ms, now.started_ms, now.batch) == (int(START * 1000), int(START * 1000), 1)
    assert health.not_alive(board.status()).reason == "no broker answers"
    assert codes(board) == [("kafka-unavailable", ""), ("lag-unknown", "")]
    board.ends(ends(10))
    assert board.status().pipeline.state == "streaming"
    assert (health.not_alive(board.status()), codes(board)) == (None, [])


@pytest.mark.parametrize("state", ["starting", "standby", "degraded"])
def test_what_the_supervisor_says_otherwise_goes_first(board, state):
    board.pipeline(state, code="lake-unavailable", reason="no lake")
    board.ends(None, why=AWAY)
    assert (board.status().pipeline.state, board.status().pipeline.reason) == (state, "no lake")
    board.pipeline("streaming")
    assert board.status().pipeline.state == "streaming"


def test_a_query_that_fails_while_kafka_is_away_is_at_no_moment_well(board):
    board.pipeline("streaming")
    board.ends(None, why=AWAY)
    board.ends(None)  # nobody watches any more, and the supervisor has not said why
    assert board.status().pipeline.state == "degraded"
    board.pipeline("degraded", code="query-failed", reason="it ended")
    assert board.status().pipeline.code == "query-failed"
    board.pipeline("streaming")
    assert board.status().pipeline.state == "streaming"


def test_ready_is_near_the_source_and_without_errors(board, clock):
    assert codes(board) == [("starting", ""), ("lag-unknown", "")]
    board.pipeline("streaming")
    board.tables(at(10, a=entry(newest_ts=micros(START)), b=entry(topics=["t.b"])))
    board.ends(lag.Ends({}, {"t.a": {0: 10}, "t.b": {0: 0}}))
    assert codes(board) == []
    board.ends(lag.Ends({}, {"t.a": {0: 12}, "t.b": {0: 0}}))
    clock.now += 59
    assert codes(board) == []
    clock.now += 2
    assert codes(board) == [("lagging", A)]
    errored = entry(topics=["t.b"], state="errored", code="no-key", reason="it has no key")
    board.tables(at(12, a=entry(newest_ts=micros(clock.now)), b=errored))
    assert codes(board) == [("no-key", B)]
    board.tables(at(12, a=entry(), b=entry(topics=["t.b"], state="paused")))
    assert codes(board) == []


# --- the source -------------------------------------------------------------------------------

STOPPED = SourceProblem("connector-failed", "task 0 has FAILED", "restart it", 1)


def source(*, proven: float | None, watched: bool = True, wrong: bool = False) -> SourceNow:
    found = None if proven is None else round(proven * 1000)
    return SourceNow(1, watched, proven_ms=found, problems=(STOPPED,) if wrong else ())


# What is known of the source (seconds ago), unread records, and what must be shown.
BEHIND = {
    "sent all, just now": (source(proven=START - 5), 0, 0.0),
    "sent all, within the time between looks": (source(proven=START - 30), 0, 0.0),
    "not proven for a while": (source(proven=START - 31), 0, 31.0),
    "failed a moment ago": (source(proven=START - 5, wrong=True), 0, 5.0),
    "failed an hour ago": (source(proven=START - 3600, wrong=True), 0, 3600.0),
    "never proven": (source(proven=None), 0, None),
    "failed before anything was proven": (source(proven=None, wrong=True), 0, None),
    "nothing can tell": (source(proven=None, watched=False), 0, None),
    "more is unread than silent": (source(proven=START - 40, wrong=True), 3, 100.0),
    "more is silent than unread": (source(proven=START - 400, wrong=True), 3, 400.0),
}


@pytest.mark.parametrize("name", BEHIND)
def test_behind_is_never_less_than_what_the_source_may_not_have_sent(board, clock, name):
    now, records, seconds = BEHIND[name]
    clock.now = START - 100
    board.tables(at(10, a=entry(newest_ts=0)))
    board.ends(ends(10 + records))
    board.status()
    clock.now = START
    board.source(now)
    assert (board.status().lag.seconds, board.status().lag.records) == (seconds, records)
    assert of(board, A).lag == board.status().lag
    assert board.status().source == now
    board.source(None)  # nobody looks any more
    assert board.status().lag.seconds == (100.0 if records else 0.0)


def test_an_event_proves_that_what_was_before_it_has_come(board, clock):
    board.tables(at(10, a=entry(newest_ts=micros(START - 7))))
    board.ends(ends(10))
    board.source(source(proven=START - 500, wrong=True))
    assert board.status().lag.seconds == 7.0
    board.source(source(proven=None, watched=False))
    assert board.status().lag.seconds == 0.0, "it has just come"
    clock.now += 60
    assert board.status().lag.seconds is None, "and silence says nothing"


def test_a_source_in_trouble_is_why_the_pipeline_is_not_ready(board, clock):
    limit = timedelta(seconds=60)
    board.pipeline("streaming")
    board.tables(at(10, a=entry()))
    board.ends(ends(10))
    board.source(source(proven=START))
    assert health.not_ready(board.status(), limit) == []
    clock.now += 3600
    board.source(source(proven=START, wrong=True))
    reasons = health.not_ready(board.status(), limit)
    assert [(one.code, one.reason, one.hint) for one in reasons] == [
        ("connector-failed", "task 0 has FAILED", "restart it")
    ], "and no table is named for what the source does"
    assert health.not_alive(board.status()) is None, "to start lakemark again mends nothing"
    board.source(source(proven=None))
    assert [one.code for one in health.not_ready(board.status(), limit)] == ["lag-unknown"]
    board.source(source(proven=None, watched=False))
    assert health.not_ready(board.status(), limit) == [], "there it is never known"
    board.source(source(proven=START))
    assert [one.code for one in health.not_ready(board.status(), limit)] == ["lagging"]


def test_each_of_several_connectors_is_why_the_pipeline_is_not_ready(board, clock):
    shop, crm = f"shop.{A}", f"crm.{A}"
    board.pipeline("streaming")
    board.connectors({"shop": "shop", "crm": "crm"})
    entries = {shop: entry(topics=["t.a"]), crm: entry(topics=["t.b"])}
    board.tables(PipelineState(batch=1, tables=entries, offsets={"t.a": {0: 10}, "t.b": {0: 10}}))
    board.ends(lag.Ends({"t.a": {0: 0}, "t.b": {0: 0}}, {"t.a": {0: 10}, "t.b": {0: 10}}))
    board.source(source(proven=START), "shop")
    board.source(source(proven=START), "crm")
    assert codes(board) == []
    clock.now += 3600
    board.source(source(proven=START, wrong=True), "crm")
    board.source(source(proven=START + 3600), "shop")
    assert codes(board) == [("connector-failed", "")]
    (reason,) = health.not_ready(board.status(), MINUTE)
    assert reason.reason == "connector crm: task 0 has FAILED"
    board.source(source(proven=START), "shop")
    assert codes(board) == [("connector-failed", ""), ("lagging", shop)], "of its own it is not"
    board.source(source(proven=START + 3600), "shop")
    board.connectors({"shop": "shop"}, [("crm", AWAY)])
    assert codes(board)[0] == ("kafka-unavailable", ""), "its tables are not read"


def test_what_is_said_late_of_a_connector_that_is_away_shows_nothing(board):
    board.connectors({"shop": "shop", "crm": "crm"})
    board.connectors({"shop": "shop"}, [("crm", AWAY)])
    board.source(source(proven=None, wrong=True), "crm")
    assert [(one.name, one.state) for one in board.status().connectors] == [
        ("shop", "streaming"), ("crm", "away"),
    ]  # fmt: skip


def test_a_table_that_the_source_has_no_more_is_gone_until_it_is_back(board, clock):
    why = {"state": "errored", "code": "no-key", "reason": "it has no key", "hint": "give it one"}
    doubt = {"resnapshot": "why", "reread_keys": {"[1]": 1}}
    left = entry(from_offsets={"t.a": {0: 10}}, **why, **doubt)
    board.captured([A, B, "public.c"])
    board.pipeline("streaming")
    board.tables(at(10, a=left, b=entry(topics=["t.b"])))
    board.ends(ends(10))
    board.gone([A, "public.c"])
    assert states(board) == {A: "dropped", B: "streaming"}, "of c nothing is left to show"
    found = of(board, A)
    assert (found.code, found.retried, found.resnapshot, found.rereads) == (
        "table-gone",
        False,
        "",
        0,
    )
    assert "2027-01-15 08:00 UTC" in found.reason
    clock.now += 7200
    board.gone([A, "public.c"])
    assert of(board, A).reason == found.reason, "since when stays"
    assert not [one for one in health.not_ready(board.status(), timedelta(60)) if one.table == A]
    board.ends(ends(11))
    assert of(board, A).state == "errored", "what is still unread is not forgotten"
    board.ends(ends(10))
    board.gone([])
    assert of(board, A).state == "errored"
    assert states(board)["public.c"] == "waiting"


def test_what_nobody_can_read_of_a_table_that_is_gone_holds_up_nothing(board, clock):
    """Its schema went with it."""
    stopped = entry(state="errored", code="schema-unknown")
    other = entry(state="errored", code="schema-incompatible")
    board.tables(PipelineState(tables={A: stopped, B: other}, offsets={"t": {0: 5}}))
    board.gone([A, B])
    assert states(board) == {A: "dropped", B: "errored"}
    board.gone([])
    assert states(board) == {A: "errored", B: "errored"}


def test_a_table_that_is_gone_does_not_count_as_behind(board, clock):
    board.pipeline("streaming")
    board.tables(at(10, a=entry(), b=entry()))
    board.ends(ends(10))
    board.source(source(proven=START - 100))
    board.gone([A])
    assert of(board, A).lag.seconds == 0.0
    assert of(board, B).lag.seconds == 100.0


def test_a_pipeline_of_which_no_table_goes_on_is_behind_a_source_that_sends_nothing(board, clock):
    board.tables(at(10, a=entry(state="paused", from_offsets={"t.a": {0: 10}})))
    board.ends(ends(10))
    board.source(source(proven=START - 100, wrong=True))
    assert board.status().lag.seconds == 100.0
