"""A board on which everything happens at once: what the page has to show, with real records.

An hour of batches with a stall in it, a table in every state, a snapshot with windows and chunks in
flight, one that waits, one that was done, and signals with all kinds of answers.
"""

import math
from datetime import timedelta

import msgspec

from lakemark.model.proof import TableProof
from lakemark.ops import lag
from lakemark.ops.board import Board
from lakemark.ops.status import BatchDone
from lakemark.settings.verify_config import VerifyConfig
from lakemark.snapshot import notifications
from lakemark.snapshot.flight import BEING_READ, READ, SETTLING, ChunkInFlight, Flight
from lakemark.snapshot.notifications import Progress, ScanStatus, Subject
from lakemark.snapshot.signals import Rejection
from lakemark.state.tables import PipelineState, TableState
from tests.kit.table_states import altered, table_state

NOW = 1_770_000_000.0
NAME = "shop-of-the-north"
ORDERS, ITEMS, CUSTOMERS = "public.orders", "public.order_items", "public.customers"
STORES = "public.stores"
EVENTS, ARCHIVE, WAITING = (
    "warehouse.inventory_movements_by_location_and_day",
    "public.archive",
    "public.returns",
)
RUN = "5f0c2f1e-6a3b-4a43-9d0e-1d2f7b1a9c11"
REASON = "its key column id changed from bigint to text"
HINT = "take a new snapshot of it: `lakemark snapshot start public.customers`"


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def lively() -> tuple[Board, Clock]:
    """The board, at `NOW`, and its clock."""
    clock = Clock(NOW - 3600)
    board = Board(NAME, verify=VerifyConfig(every=timedelta(days=7)), clock=clock)
    board.captured([STORES, ORDERS, ITEMS, CUSTOMERS, EVENTS, ARCHIVE, WAITING])
    board.pipeline("streaming")
    while clock.now < NOW:
        _batch(board, clock)
        clock.now += 10
    clock.now = NOW
    _signals(board)
    _snapshots(board)
    return board, clock


def _batch(board: Board, clock: Clock) -> None:
    at = int(clock.now - NOW + 3600)
    stalled = 2000 < at < 2300
    events = 0 if stalled else int(5000 + 3000 * math.sin(at / 300) + at % 700)
    behind = 900 if stalled else at % 40
    done = 1000 + at
    if not stalled:
        tables = _tables(clock.now, done)
        board.tables(
            PipelineState(
                batch=at, offsets=_applied(done), tables=tables, proofs=_proofs(clock.now)
            )
        )
        seconds = {"plan": 0.2, "tasks": 1.6, "settle": 0.1}
        board.batch(BatchDone(at, events, events // 3, seconds))
    board.ends(lag.Ends({}, _applied(done + behind) if behind else _applied(done)))


def _applied(end: int) -> dict[str, dict[int, int]]:
    return {
        f"t.{name}": {0: end}
        for name in ("orders", "items", "customers", "events", "archive", "stores")
    }


def _tables(now: float, done: int) -> dict[str, TableState]:
    newest = int((now - 1.5) * 1_000_000)

    def table(topic: str, rows: int, **more: object) -> TableState:
        made = table_state(
            topics=[topic], rows=rows + done, events=rows // 2 + done, newest_ts=newest,
            engine="task-merge", bytes=rows * 90, committed_ms=int(now * 1000),
        )  # fmt: skip
        return altered(made, **more)

    stopped = {"from_offsets": {"t.customers": {0: 400}}, "newest_ts": int((now - 5400) * 1e6)}
    why = {"code": "key-changed", "reason": REASON, "hint": HINT}
    return {
        ORDERS: table("t.orders", 1_204_553),
        ITEMS: table("t.items", 48_204_553, dead_letters=3),
        CUSTOMERS: table("t.customers", 88_012, state="errored", **stopped, **why),
        EVENTS: table(
            "t.events", 2_204_553, state="catching-up", from_offsets={"t.events": {0: 9}}
        ),
        STORES: table("t.stores", 310),
        ARCHIVE: table("t.archive", 12, state="paused", from_offsets={"t.archive": {0: 900}}),
    }


def _proofs(now: float) -> dict[str, TableProof]:
    """One table was proved two days ago; the others have not had their turn."""
    then = int((now - 2 * 86_400) * 1000)
    return {
        ORDERS: TableProof(
            proved_ms=then, turn_ms=then, ended_ms=then + 9000, run="v1", proved_by="v1",
            rows=1_204_553, newer=12, position="0100000000001a2b",
        )
    }  # fmt: skip


def _signals(board: Board) -> None:
    def sent(name: str, kind: str, ago: float, *tables: str) -> None:
        data = {"data-collections": list(tables)} if tables else {}
        value = msgspec.json.encode({"id": name, "type": kind, "data": data})
        board.signal(value, sent_ms=_ms(ago), unnamed="x")

    sent("first", "execute-snapshot", 2900, ARCHIVE)
    sent("typo", "execute-snapshot", 1700, "public.ordres")
    sent(RUN, "execute-snapshot", 130, ORDERS, ITEMS)
    sent("halt", "pause-snapshot", 60)
    no = Rejection("typo", "unknown-table", "no captured table matches public.ordres",
                   "`lakemark status` lists the tables")  # fmt: skip
    board.notification(notifications.rejected(no, pipeline=NAME, ts_ms=_ms(1699)))


def _snapshots(board: Board) -> None:
    old = Subject("first", NAME, (ARCHIVE,))
    full = Progress(chunks=1, total_chunks=1, rows=12, seconds=1, total_rows=12)
    board.notification(notifications.started(old, ts_ms=_ms(2899)))
    board.notification(
        notifications.table_scan_completed(
            old, table=ARCHIVE, status=ScanStatus.SUCCEEDED, progress=full, ts_ms=_ms(2890)
        )
    )
    board.notification(notifications.completed(old, progress=full, ts_ms=_ms(2889)))
    run = Subject(RUN, NAME, (ORDERS, ITEMS))
    board.notification(notifications.started(run, ts_ms=_ms(120)))
    part = Progress(chunks=7, total_chunks=13, rows=700_000, seconds=110, total_rows=1_204_553)
    board.notification(notifications.in_progress(run, table=ORDERS, progress=part, ts_ms=_ms(1)))
    board.flight(in_flight())


def in_flight() -> Flight:
    """Chunks in every state between two windows; the second table waits for its turn."""
    lo, hi = "0d5a7c7e-0000-4000-8000-000000000001", "0d5a7c7e-0000-4000-8000-000000000002"
    return Flight(
        {(RUN, ORDERS): "reading", (RUN, ITEMS): "waiting"},
        (
            ChunkInFlight(RUN, ORDERS, 7, 4294967303, SETTLING, _ms(1.2), 100_000, lo, hi),
            ChunkInFlight(RUN, ORDERS, 8, 4294967304, READ, _ms(0.3), 99_871, lo),
            ChunkInFlight(RUN, ORDERS, 9, 4294967305, BEING_READ, _ms(0.8)),
            ChunkInFlight(RUN, ORDERS, 10, 4294967306, BEING_READ, _ms(0.6)),
        ),
        window=hi,
        opened_ms=_ms(0.4),
        windows=2,
    )


def _ms(ago: float) -> int:
    return int((NOW - ago) * 1000)
