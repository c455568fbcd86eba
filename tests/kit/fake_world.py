"""A world for the coordinator of snapshots: topics as lists, a database, shards, a clock to move.

Keys of tables are whole numbers. `FakeWorld` is the coordinator's `Ports`; its `stream` and its
`database` are what it talks with. What must never happen is noted in `wrong`.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from lakemark.connectors.database import OpenWindow, Watermark
from lakemark.connectors.postgres.visibility import Blocker, Server, Snapshot
from lakemark.connectors.reached_place import ReachedPlace
from lakemark.errors import ConfigError, DependencyError, LakemarkError, RefusedError
from lakemark.model.checksums import (
    ChecksumPlan,
    NumberRanges,
    RangeSums,
    SummedColumn,
    even_ranges,
)
from lakemark.model.control import ControlRecord, encode
from lakemark.model.key_ranges import Condition, KeyRange
from lakemark.model.row_digest import RowDigests, Words, among, digests
from lakemark.model.schema import TableSchema
from lakemark.snapshot import runs
from lakemark.snapshot.chunks import STATEMENT_TIMEOUT, ChunkError, ChunkResult, ChunkSpec
from lakemark.snapshot.coordinator import Coordinator
from lakemark.snapshot.notifications import Notification
from lakemark.snapshot.ports import (
    Committed,
    Cut,
    KeptDigests,
    KeptSums,
    RowsWithin,
    SummedTable,
)
from lakemark.snapshot.signal_skip import SIGNALS_KEY
from lakemark.snapshot.signals import Rejection, SignalRecord
from lakemark.snapshot.snapshot_state import Settings
from tests.kit.fake_stream import FakeStream
from tests.kit.shop import schema_of

PIPELINE = "shop"
ORDERS, ITEMS = "public.orders", "public.items"
SETTINGS = Settings(PIPELINE, shards=2, chunk_rows=10, parallelism=2, interval=1.0)
STEP_S = 0.5
_OF_TABLES = {"current_collection_in_progress", "scanned_collection"}


DIGESTED = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def digested(rows: Mapping[int, int]) -> RowDigests:
    return digests(pa.table([[*rows], [*rows.values()]], DIGESTED), ["id"])


PLAN = ChecksumPlan("toy", (SummedColumn("id", "long"), SummedColumn("v", "long")), "id")


def added(rows: Mapping[int, int], ranges: NumberRanges) -> RangeSums:
    """The sums of rows by ranges, those of digests."""
    found, keys = RangeSums.of(len(ranges)), np.array([*rows], np.int64)
    where = (keys >= ranges.begins[0]) & (keys <= ranges.ends[-1])
    places = ranges.of(keys[where])
    np.add.at(found.counts, places, 1)
    np.add.at(found.sums, places, digested(rows).rows[where])
    return found


class CrashError(BaseException):
    """The process is gone."""


@dataclass
class Fault:
    """What goes wrong at one of the points that the world passes (`FakeWorld.passed`)."""

    at: int
    error: BaseException


class FakeDatabase:
    """Transactions, as far as snapshots show them; tables as sets of keys."""

    def __init__(self) -> None:
        self.server = Server("2026-01-01T00:00:00Z", 1)
        self.next_xid = 1000
        self.open: set[int] = set()
        self.keys = {ORDERS: set(range(40)), ITEMS: set(range(5))}
        self.fingerprints = dict.fromkeys(self.keys, "f1")
        self.values: dict[tuple[str, int], int] = {}

    def rows(self, table: str) -> dict[int, int]:
        """Each row's value by its key; one that nobody has changed is the key."""
        return {key: self.values.get((table, key), key) for key in self.keys[table]}

    def begin(self) -> int:
        self.next_xid += 1
        self.open.add(self.next_xid - 1)
        return self.next_xid - 1

    def end(self, xid: int) -> None:
        self.open.discard(xid)

    def snapshot(self) -> Snapshot:
        return Snapshot(min(self.open, default=self.next_xid), self.next_xid, self.server)

    def restart(self) -> None:
        start = f"2026-01-{self.server.timeline + 1:02d}T00:00:00Z"
        self.server = Server(start, self.server.timeline + 1)
        self.open.clear()

    def within(self, table: str, span: KeyRange) -> list[int]:
        return sorted(key for key in self.keys[table] if inside(key, span))

    def halves(self, spec: ChunkSpec) -> tuple[KeyRange, ...]:
        keys = self.within(spec.table, spec.span)
        at = (str(keys[len(keys) // 2 - 1]),)
        return KeyRange(spec.span.after, at), KeyRange(at, spec.span.upto)


class FakeWorld:
    """The coordinator's `Ports`.

    Attributes:
        hold: work that is submitted waits for `release`.
        hold_ticks: ticks wait for `release_tick`.
        away: names of methods that raise a DependencyError.
        tick_error: raised by ticks.
        answers: by table: what the next reads answer instead of rows.
        connect: how far the connector has committed, or why Connect does not tell.
        inexact: of each chunk, rows with a value that nothing carries, and values that were clamped.
        partial: by table: keys of incomplete rows, until they are read; if `stubborn` for ever.
    """

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.settings = settings
        self.database = FakeDatabase()
        self.stream = FakeStream(self.database, settings.shards)
        self.clock = 1000.0
        self.progress: dict[bytes, bytes] = {}
        self.controls = self.stream.controls
        self.notes: list[Notification] = []
        self.inbox: list[tuple[bytes, bytes]] = []
        self.offset = 0
        self.hold = False
        self.held: list[Callable[[], None]] = []
        self.hold_ticks = False
        self.held_tick: Callable[[], None] | None = None
        self.away: set[str] = set()
        self.calls: list[str] = []
        self.tick_error: Exception | None = None
        self.refused: Rejection | None = None
        self.unwatched: set[str] = set()
        self.against: dict[str, LakemarkError | Rejection] = {}
        self.answers: dict[str, list[ChunkError]] = {}
        self.bytes = 100
        self.connect: Committed | Exception = Committed(b"", {})
        self.inexact = (0, 0)
        self.partial: dict[str, list[str]] = {}
        self.stubborn: set[str] = set()
        self.reads: list[ChunkSpec] = []
        self.cuts: list[tuple[str, int, KeyRange]] = []
        self.wrong: list[str] = self.stream.wrong
        self.passed = 0
        self.fault: Fault | None = None
        self.uuids = 0
        self.lives: list[int] = []
        self.lives_begun = 0
        self.coordinator: Coordinator | None = None
        self.slow = False  # the coordinator goes on while a batch runs
        self.scanned: list[str] = []
        self.sums = False  # whether the database sums rows
        self.then: Callable[[], None] | None = None

    # -- time -----------------------------------------------------------------------------------

    def start(self) -> Coordinator:
        """A new coordinator, from what was kept."""
        self.held.clear()
        self.held_tick = None
        self.coordinator = None
        coordinator = Coordinator(self, self.settings)
        self.lives_begun += 1
        coordinator.signals.process = f"process {self.lives_begun}"
        coordinator.start(self.stream.now())
        self.coordinator = coordinator
        return coordinator

    def step(self) -> None:
        """One step of the coordinator and one batch of the stream."""
        coordinator = self.coordinator or self.start()
        coordinator.step()
        self._look(coordinator)
        self.clock += STEP_S
        self.batch()

    def batch(self) -> None:
        if self.slow and self.coordinator is not None:
            self.coordinator.planned(self.stream.plan())
            self.coordinator.step()
            self._look(self.coordinator)
        state, news = self.stream.batch()
        if self.coordinator is not None:
            self.coordinator.committed(state, news)

    def go(self, seconds: float = 60.0, *, until: Callable[[], bool] | None = None) -> None:
        """Lets time pass, until something is so."""
        end = self.clock + seconds
        while self.clock < end:
            if until is not None and until():
                return
            self.step()
        assert until is None or until(), f"not in {seconds} s: {self.said()}"

    def finish(self, *ids: str, seconds: float = 120.0) -> None:
        """Lets the runs end; then nothing went wrong."""
        self.go(seconds, until=lambda: all(self.ended(one) for one in ids))
        self.go(2.0)
        assert not self.wrong, self.wrong

    def _look(self, coordinator: Coordinator) -> None:
        places = [(a.run.id, a.table.table, a.chunk) for a in coordinator.state.attempts.values()]
        if len(places) != len(set(places)):
            self.wrong.append("two attempts of one chunk")

    def release(self, count: int | None = None) -> None:
        """Does work that was held back."""
        for _ in range(len(self.held) if count is None else count):
            self.held.pop(0)()

    # -- what tests ask -------------------------------------------------------------------------

    def send(self, kind: str, id_: str, **data: Any) -> None:
        """A signal; underscores of names stand for dashes."""
        named = {name.replace("_", "-"): value for name, value in data.items()}
        value = json.dumps({"id": id_, "type": f"{kind}-snapshot", "data": named}).encode()
        self.inbox.append((PIPELINE.encode(), value))

    def execute(self, id_: str, *tables: str, **more: Any) -> None:
        self.send("execute", id_, data_collections=list(tables or [ORDERS]), **more)

    def said(self, id_: str | None = None) -> list[str]:
        """Types of the notifications of a signal, without those of progress."""
        shown = [n for n in self.notes if not n.additional_data.keys() & _OF_TABLES]
        return [note.type for note in shown if id_ in {None, note.id}]

    def note(self, id_: str, kind: str) -> dict[str, str]:
        """Details of the last notification of a kind."""
        return [n for n in self.notes if (n.id, n.type) == (id_, kind)][-1].additional_data

    def scans(self, id_: str) -> dict[str, str]:
        found = [n for n in self.notes if (n.id, n.type) == (id_, "TABLE_SCAN_COMPLETED")]
        data = [note.additional_data for note in found]
        return {one["scanned_collection"]: one["status"] for one in data}

    def ended(self, id_: str) -> bool:
        run = self.coordinator.state.runs.get(id_) if self.coordinator else None
        return run is not None and run.over and id_ not in self.stream.armed

    def run(self, id_: str) -> runs.Run:
        assert self.coordinator is not None
        return self.coordinator.state.runs[id_]

    def run_state(self, id_: str) -> str:
        run = self.coordinator.state.runs.get(id_) if self.coordinator else None
        return run.state if run is not None else ""

    def state(self, id_: str, table: str) -> str:
        return next(one.state for one in self.run(id_).tables if one.table == table)

    def relay(self) -> None:
        """Does the first of the work that is held back, if there is any."""
        self.release(min(1, len(self.held)))

    def records(self, kind: str) -> list[Mapping[str, Any]]:
        return [record for record in self.controls if record["type"] == kind]

    # -- topics ---------------------------------------------------------------------------------

    def _pass(self, name: str) -> None:
        """A point at which something may go wrong."""
        self.passed += 1
        if self.fault is not None and self.passed == self.fault.at:
            raise self.fault.error
        if name in self.away:
            raise DependencyError(f"{name} is away", code="away")

    def load(self) -> dict[bytes, bytes]:
        self._pass("load")
        self.offset = int(self.progress.get(SIGNALS_KEY, b"0"))
        return dict(self.progress)

    def save(self, records: Mapping[bytes, bytes | None]) -> None:
        for key, value in records.items():  # a crash may leave some of them unwritten
            self._pass("save")
            self.calls.append("save")
            self.progress.pop(key, None)
            if value is not None:
                self.progress[key] = value
        self._pass("save")

    def control(self, records: Sequence[ControlRecord]) -> None:
        for record in records:
            self._pass("control")
            self.stream.write(json.loads(encode(record)), alive=self._alive())
        self._pass("control")

    def notify(self, notifications: Sequence[Notification]) -> None:
        for notification in notifications:
            self._pass("notify")
            notification.value()
            self.notes.append(notification)
        self._pass("notify")

    def signals(self) -> list[SignalRecord]:
        self._pass("signals")
        found = [
            SignalRecord(key, value, f"0-{n - 1}", f"signals-0-{n - 1}", str(n).encode())
            for n, (key, value) in enumerate(self.inbox, 1)
            if n > self.offset
        ]
        self.offset = len(self.inbox)
        return found

    # -- database -------------------------------------------------------------------------------

    def refusal(self) -> Rejection | None:
        return self.refused

    def tables(self) -> dict[str, TableSchema]:
        self._pass("tables")
        return {table: schema_of(table, id="int8", v="text") for table in self.database.keys}

    def watched(self, table: str) -> bool:
        return table not in self.unwatched

    def reasons_against(self, table: str) -> Rejection | None:
        self._pass("reasons_against")
        if isinstance(found := self.against.get(table), LakemarkError):
            raise found
        return found

    def condition(self, table: str, text: str) -> Condition:
        self._pass("condition")
        if "bad" in text:
            raise RefusedError("the filter is none", code="bad-condition", hint="write another")
        return Condition(text)

    def texts(self, table: str, keys: Sequence[str]) -> dict[str, list[str]]:
        if keys:
            self._pass("texts")
        known = [key for key in keys if key != "unreadable"]
        return {key: [str(part) for part in json.loads(key)] for key in known}

    def tick(
        self, *, closes: OpenWindow | None, opens: OpenWindow | None, reached: ReachedPlace
    ) -> Watermark | Snapshot:
        self._pass("tick")
        if self.tick_error is not None:
            raise self.tick_error
        xid = self.database.begin()
        self.stream.write_window(closes, opens, alive=self._alive())
        self.database.end(xid)
        self._pass("tick")
        seen = self.database.snapshot()
        return seen if opens is None else Watermark(str(opens.uuid), seen)

    def _alive(self) -> set[int]:
        """Attempts that the coordinator waits for; of others it says that they are void."""
        return set(self.coordinator.state.attempts) if self.coordinator else set()

    def committed(self, epoch: int) -> Committed:
        self._pass("committed")
        if isinstance(self.connect, Exception):
            raise self.connect
        return self.connect

    def blocker(self, proof: Snapshot) -> str:
        self._pass("blocker")
        return str(Blocker(proof.xmin, 7, "psql", None, "idle in transaction"))

    # -- elsewhere ------------------------------------------------------------------------------

    def cut(
        self,
        table: str,
        chunk_rows: int,
        *,
        condition: Condition | None,
        surrogate: str | None,
        within: KeyRange,
    ) -> Cut:
        self._pass("cut")
        self.cuts.append((table, chunk_rows, within))
        keys = self.database.within(table, within)
        edges = [(str(key),) for key in keys[chunk_rows - 1 : -1 : chunk_rows]]
        ends = [within.after, *edges, within.upto]
        spans = tuple(KeyRange(*ends[at : at + 2]) for at in range(len(ends) - 1))
        return Cut(spans, self.database.fingerprints[table], len(keys))

    def fingerprint(self, table: str) -> str:
        self._pass("fingerprint")
        return self.database.fingerprints[table]

    def partial_keys(self, table: str) -> tuple[str, ...]:
        self._pass("partial_keys")
        return tuple(self.partial.get(table, ()))

    def kept(self, table: str) -> pa.Schema | None:
        self._pass("kept")
        return None if self.stream.lake.get(table) is None else DIGESTED

    def summed_table(self, table: str, kept: pa.Schema) -> SummedTable | None:
        self._pass("summed_table")
        if not self.sums:
            return None
        keys = np.array([*(self.stream.lake[table] or {})], np.int64)
        return SummedTable(PLAN, even_ranges([keys], rows=3))

    def kept_sums(self, table: str, summed: SummedTable) -> KeptSums:
        self._pass("kept_sums")
        found = added(self.stream.lake[table] or {}, summed.ranges)
        if self.then is not None:
            self.then()  # what the stream does while the table is summed
        return KeptSums(found, 8)

    def kept_digests(
        self, table: str, kept: pa.Schema, within: RowsWithin | None = None
    ) -> KeptDigests:
        self._pass("kept_digests")
        assert kept == DIGESTED
        self.scanned.append(table)
        rows = self.stream.lake[table] or {}
        if within is not None:
            chosen = within.chosen[within.ranges.of(np.array([*rows], np.int64))]
            rows = {key: rows[key] for key, one in zip(rows, chosen, strict=True) if one}
        found = digested(rows)
        if self.then is not None:
            self.then()  # what the stream does while the table is scanned
        return KeptDigests(found, 16)

    def kept_keys(self, table: str, suspects: Words) -> list[bytes]:
        self._pass("kept_keys")
        lake = self.stream.lake[table] or {}
        return [b"[%d]" % key for key in lake if among(digested({key: 0}).keys, suspects).any()]

    def found(self, run: str, table: str) -> Mapping[str, int]:
        self._pass("found")
        mine = [one for one in self.stream.findings if (one.run, one.table) == (run, table)]
        kinds = {finding.key: finding.kind for one in mine for finding in one.findings}
        return Counter(kinds.values())

    def read(self, spec: ChunkSpec) -> ChunkResult:
        self._may_be_read(spec)
        if reason := self.against.get(spec.table):
            retried = isinstance(reason, LakemarkError) and reason.retried
            told = ChunkError(
                code=reason.code, message=reason.message, hint=reason.hint, retried=retried
            )
            return ChunkResult(attempt=spec.attempt, error=told)
        self.reads.append(spec)
        try:
            self._pass("read")
        except DependencyError as error:
            waits = ChunkError(code=error.code, message=error.message, retried=True)
            return ChunkResult(attempt=spec.attempt, error=waits)
        if waiting := self.answers.get(spec.table):
            error = waiting.pop(0)
            if error.code == STATEMENT_TIMEOUT and spec.keys is None:
                error = replace(error, halves=self.database.halves(spec))
            return ChunkResult(attempt=spec.attempt, error=error)
        return self.read_chunk(spec)

    def read_chunk(self, spec: ChunkSpec) -> ChunkResult:
        """A read that nothing hinders."""
        keys = self.database.within(spec.table, spec.span)
        if spec.ranges is not None:
            sums = added(self.database.rows(spec.table), spec.ranges)
            fingerprint = self.database.fingerprints[spec.table]
            count, size = int(sums.counts.sum()), sums.nbytes
            return ChunkResult(
                attempt=spec.attempt, rows=count, bytes=size, fingerprint=fingerprint, sums=sums,
            )  # fmt: skip
        if spec.digest is not None:
            return self._digests(spec, keys)
        if spec.keys is not None:
            wanted = set(spec.keys)
            keys = [key for key in keys if (str(key),) in wanted]
            lacking = self.partial.get(spec.table, [])
            read = {json.dumps([int(key[0])]) for key in spec.keys}
            self.partial[spec.table] = [k for k in lacking if k not in read or k in self.stubborn]
        result = ChunkResult(
            attempt=spec.attempt,
            rows=len(keys),
            parts={0: 1},
            proof=self.database.snapshot(),
            fingerprint=self.database.fingerprints[spec.table],
            bytes=self.bytes,
            bad_rows=self.inexact[0],
            clamped=self.inexact[1],
        )
        self.stream.read(spec, rows=len(keys))
        return result

    def _digests(self, spec: ChunkSpec, keys: list[int]) -> ChunkResult:
        assert spec.digest is not None
        if spec.condition is not None:  # such as "id < 5"
            keys = [key for key in keys if key < int(spec.condition.sql.split()[-1])]
        rows = self.database.rows(spec.table)
        found = ChunkResult(
            attempt=spec.attempt, rows=len(keys), fingerprint=self.database.fingerprints[spec.table]
        )
        suspects = spec.digest.suspects
        if suspects is None:
            return replace(found, digests=digested({key: rows[key] for key in keys}))
        hits = [key for key in keys if among(digested({key: 0}).keys, suspects).any()]
        return replace(found, keys=tuple(b"[%d]" % key for key in hits))

    def _may_be_read(self, spec: ChunkSpec) -> None:
        """Whether a chunk whose settling is kept is read again, or a number is used again."""
        if any(read.attempt == spec.attempt for read in self.reads):
            self.wrong.append(f"attempt {spec.attempt} twice")
        if spec.keys is not None or spec.digest is not None:
            return
        for run, chunks in runs.loaded(self.progress):
            done = [chunk for chunk in chunks.get(spec.table, []) if chunk.done and chunk.lo]
            again = [c for c in done if c.keys is None and overlap(c.span, spec.span)]
            if run.id == spec.run and again:
                self.wrong.append(f"{spec.span} read again")

    def submit(self, work: Callable[[], None]) -> None:
        if self.hold:
            self.held.append(work)
        else:
            work()

    def submit_tick(self, work: Callable[[], None]) -> None:
        assert self.held_tick is None, "one tick at a time"
        if self.hold_ticks:
            self.held_tick = work
        else:
            work()

    def release_tick(self) -> None:
        work, self.held_tick = self.held_tick, None
        if work is not None:
            work()

    def monotonic(self) -> float:
        return self.clock

    def now_ms(self) -> int:
        return int(self.clock * 1000)

    def uuid(self) -> str:
        self.uuids += 1
        return str(UUID(int=self.uuids))


def inside(key: int, span: KeyRange) -> bool:
    low = -(10**9) if span.after is None else int(span.after[0])
    high = 10**9 if span.upto is None else int(span.upto[0])
    return low < key <= high


def overlap(one: KeyRange, other: KeyRange) -> bool:
    return any(inside(key, one) and inside(key, other) for key in range(-1, 100))


def with_settings(**changes: Any) -> FakeWorld:
    """A world whose coordinator is configured otherwise."""
    return FakeWorld(replace(SETTINGS, **changes))


def away(code: str = "away") -> DependencyError:
    return DependencyError("it does not answer", code=code, hint="wait")


def wrong_table() -> ConfigError:
    return ConfigError("there is no signal table", code="signal-table-missing", hint="CREATE TABLE")
