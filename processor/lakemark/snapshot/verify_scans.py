"""The scan of a verify run: which keys may have another row in the source than in the lake?

Where the database can, it sums its rows by ranges of their key (`checksums`), and so does the lake:
of ranges whose sums are alike nothing is read. Of all others, or where it cannot, both sides are
read once, and only digests of their rows are kept (`row_digest`): the source's chunk by chunk, by
tasks as those of snapshots; the lake's beside it. A row whose digest is on both sides, or whose
range has one sum, is proved: at some moment of the scan the lake had what the source had. Of all
others the keys are *suspects*, which the run then reads again as its chunks, in windows, and
compares exactly. So nothing is decided here, and no window, no lock and no order is needed. What
the stream changes while a table is scanned makes suspects, which turn out to be alike.

    asked       the lake's columns, and whether the database can sum the table's rows
    summing     the sums of ranges, by both sides; ranges that are alike are proved
    reading     digests of the source's chunks, and of the lake's rows, of the other ranges
    again       once more of the lake's, where the stream has changed many rows meanwhile
    suspected   the keys of the suspects: named by the lake, or by the chunks that have others
    (done)      the table has its keys, or none is suspected

A scan is not stored: a coordinator that starts begins it again.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import structlog

from lakemark.errors import LakemarkError, TableError
from lakemark.model.checksums import RANGE_ROWS, RangeSums, joined
from lakemark.model.key_ranges import Condition, KeyRange
from lakemark.model.row_digest import RowDigests, Words, among
from lakemark.snapshot import runs
from lakemark.snapshot.chunks import (
    INTERNAL,
    NOT_SUMMED,
    REPORT,
    STATEMENT_TIMEOUT,
    ChunkError,
    ChunkResult,
    ChunkSpec,
    Digest,
)
from lakemark.snapshot.ports import (
    Cut,
    Executor,
    KeptDigests,
    KeptSums,
    RowsWithin,
    SourceReader,
    SummedTable,
)
from lakemark.snapshot.retries import Retries
from lakemark.snapshot.run_store import RunStore
from lakemark.snapshot.runs import Run, TableRun
from lakemark.snapshot.scan_pace import ScanPace
from lakemark.snapshot.snapshot_state import SnapshotState
from lakemark.snapshot.tally import VerifyTally

log = structlog.get_logger(__name__)

MOST_BYTES: Final = 400_000
"""Of the suspects' keys as texts: they travel with the run's record, which a broker has to take."""
FEW: Final = 1000
"""Suspects that are cheaper to read by key than to read the lake once more."""

T = TypeVar("T")


@dataclass(slots=True)
class _Sums:
    """The sums of a table's rows.

    Attributes:
        table: how rows are summed.
        groups: the first and the last of neighbouring ranges that are to be summed.
        source: of the source's rows.
        kept: of the lake's; None until they are there.
    """

    table: SummedTable
    groups: deque[tuple[int, int]]
    source: RangeSums
    kept: RangeSums | None = None

    @classmethod
    def of(cls, table: SummedTable, rows: int) -> "_Sums":
        """Return what is to be summed, in groups of ranges of about so many rows."""
        count, each = len(table.ranges), max(1, rows // RANGE_ROWS)
        begins = range(0, count, each)
        groups = deque((one, min(one + each, count) - 1) for one in begins)
        return cls(table, groups, RangeSums.of(count))

    def unlike(self) -> RowsWithin | None:
        """Return the ranges that are not alike; None while a side's sums are not there."""
        if self.groups or self.kept is None:
            return None
        ranges = self.table.ranges
        chosen = np.zeros(len(ranges), bool)
        chosen[self.source.unlike(self.kept)] = True
        return RowsWithin(self.table.plan.order, ranges, chosen)


@dataclass(slots=True)
class _Scan:
    """A table while it is scanned.

    Attributes:
        condition: only rows for which it holds.
        sums: of its rows; None where they are not summed.
        within: the rows that are read; None = all.
        spans: ranges that are to be read.
        digests: of the source's rows, by range.
        under_way: reads and questions that have not come back.
        fingerprint: of the schema that the first chunk was read with; empty = none was.
        columns: that are digested: those of the lake that the source has.
        lake: digests of the lake's rows, of one reading or two.
        asked: whether the suspects' keys are being looked for.
        sent_bytes, lake_bytes: that were read so far, see `VerifyTally`.
    """

    condition: Condition | None
    sums: _Sums | None = None
    within: RowsWithin | None = None
    spans: deque[KeyRange] = field(default_factory=deque)
    digests: dict[KeyRange, RowDigests] = field(default_factory=dict)
    under_way: int = 0
    fingerprint: str = ""
    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))
    lake: list[RowDigests] = field(default_factory=list)
    asked: bool = False
    sent_bytes: int = 0
    lake_bytes: int = 0

    @property
    def is_read(self) -> bool:
        """Say whether both sides are there."""
        return not self.spans and not self.under_way and bool(self.lake)


@dataclass(frozen=True, slots=True)
class Unlike:
    """Digests of keys whose rows one side has alone.

    Attributes:
        ranges: of keys that the lake does not have, sorted, by the source's range.
        kept: of those that it has, sorted: it names them, with no range read again.
    """

    ranges: dict[KeyRange, Words]
    kept: Words

    @property
    def count(self) -> int:
        """The number of keys; a key whose row differs counts once."""
        return len(np.unique(np.concatenate([self.kept, *self.ranges.values()])))


def unlike(source: dict[KeyRange, RowDigests], lake: list[RowDigests], *, whole: bool) -> Unlike:
    """Return which rows are on one side alone. Pure.

    Args:
        source: digests by range.
        lake: of one reading, or of two with all changes of the source's between them: a row of the
            source that either of them has is proved, and one of the lake counts that both have.
        whole: the source's rows are all that it has; else the lake may have others.

    Keys that the lake has more than once are always among its own.
    """
    known = _sorted([one.rows for one in lake])
    alone = {
        span: np.unique(found.keys[~among(found.rows, known)]) for span, found in source.items()
    }
    del known
    first, last = lake[0], lake[-1]
    keys = _sorted([last.keys])
    kept = [keys[1:][keys[1:] == keys[:-1]]]
    ranges: dict[KeyRange, Words] = {}
    for span, suspects in alone.items():
        has = among(suspects, keys)
        kept.append(suspects[has])
        if not has.all():
            ranges[span] = suspects[~has]
    del keys
    if whole:
        extra = ~among(last.rows, _sorted([one.rows for one in source.values()]))
        if last is not first:
            extra &= among(last.rows, _sorted([first.rows]))
        kept.append(last.keys[extra])
    return Unlike(ranges, np.unique(np.concatenate(kept)))


def _sorted(parts: list[Words]) -> Words:
    """Return all of them, sorted; with no copy more, since there are as many as rows."""
    found = np.concatenate([*parts, np.empty(0, np.uint64)])
    found.sort()
    return found


class VerifyScans:
    """Scans the tables of verify runs, one after the other."""

    def __init__(
        self,
        state: SnapshotState,
        store: RunStore,
        retries: Retries,
        *,
        reader: SourceReader,
        executor: Executor,
    ) -> None:
        self.state = state
        self.store = store
        self.retries = retries
        self.reader = reader
        self.executor = executor
        self.pace = ScanPace(state)
        self._scans: dict[tuple[str, str], _Scan] = {}

    def reset(self) -> None:
        """Forget everything: the stored state is about to be loaded."""
        self._scans = {}

    def again(self, run: Run) -> None:
        """Begin the scans of a run again that an earlier process has not ended."""
        for table in run.tables:
            if table.state == runs.SCANNING:
                self._forget(run, table)

    def step(self, now: float) -> None:
        """Go on with the scans; arm the runs whose tables are all scanned."""
        for run in [one for one in self.state.open_runs() if one.state == runs.SCANNING]:
            table = next((one for one in run.tables if not one.over and one.keys is None), None)
            if table is None:
                self._scanned(run)
            elif not run.paused and self.state.may_read(run, table, now):
                self._go_on(run, table, now)

    def _scanned(self, run: Run) -> None:
        for key in [key for key in self._scans if key[0] == run.id]:
            del self._scans[key]
        self.pace.forget(run)
        if all(table.over for table in run.tables):
            self.store.end(run)
            return
        run.state, run.scanned = runs.ARMING, True
        self.store.changed(run)
        self.store.say_start(run)

    def _go_on(self, run: Run, table: TableRun, now: float) -> None:
        scan = self._scans.get((run.id, table.table))
        if scan is None:
            self._begin(run, table)
        elif scan.sums is not None and scan.within is None:
            self._sum(run, table, scan, scan.sums, now)
        elif scan.spans:
            self._read(run, table, scan, now)
        elif scan.is_read and not scan.asked:
            self._suspect(run, table, scan)

    # -- both sides -----------------------------------------------------------------------------

    def _begin(self, run: Run, table: TableRun) -> None:
        try:
            condition = (
                self.reader.condition(table.table, table.condition) if table.condition else None
            )
        except LakemarkError as error:
            self._failed(run, table, error)
            return
        scan = self._scans[run.id, table.table] = _Scan(condition)
        stream = self.state.stream
        table.turn_ms, table.scanned_after = self.executor.now_ms(), stream.batch
        table.scanned_at = stream.place_of(table.table).hex()
        name, is_whole = table.table, condition is None and run.surrogate is None

        def ask() -> tuple[pa.Schema | None, SummedTable | Cut]:
            kept = self.reader.kept(name)
            summed = self.reader.summed_table(name, kept) if kept and is_whole else None
            return kept, summed or self._cut(run, table, condition)

        def found(answer: tuple[pa.Schema | None, SummedTable | Cut]) -> None:
            kept, how = answer
            if kept is None:
                self._failed(run, table, _no_table(name))
                return
            scan.columns, table.state = kept, runs.SCANNING
            if isinstance(how, Cut):
                scan.spans = deque(how.spans)
                table.total, table.chunks = how.rows, len(how.spans)
                self._read_lake(run, table, scan)
            else:
                self._begin_sums(run, table, scan, how)

        self._ask(run, table, scan, ask, found)

    def _cut(self, run: Run, table: TableRun, condition: Condition | None) -> Cut:
        return self.reader.cut(
            table.table,
            self._chunk_rows(run),
            condition=condition,
            surrogate=run.surrogate,
            within=runs.EVERYTHING,
        )

    def _chunk_rows(self, run: Run) -> int:
        return run.chunk_rows or self.state.settings.chunk_rows

    def _read_lake(self, run: Run, table: TableRun, scan: _Scan) -> None:
        read = partial(self.reader.kept_digests, table.table, scan.columns, scan.within)

        def came(found: KeptDigests) -> None:
            scan.lake.append(found.digests)
            scan.lake_bytes += found.read_bytes

        self._ask(run, table, scan, read, came)

    def _read(self, run: Run, table: TableRun, scan: _Scan, now: float) -> None:
        while scan.spans and self._may_read(run, scan, now):
            span = scan.spans.popleft()
            spec = self._spec(run, table, scan, span)
            came = partial(self._came, run, table, scan, span)
            self._ask(run, table, scan, partial(self.reader.read, spec), came)

    def _may_read(self, run: Run, scan: _Scan, now: float) -> bool:
        """Say whether a read may begin; if so, the next one waits for the run's delay."""
        most = self.state.settings.parallelism
        limit = min(run.parallelism or most, most)
        if now < self.state.pauses.get(run.id, 0):
            return False
        if not self.pace.allows(run, now, under_way=scan.under_way, most=limit + 1):
            return False
        delay = self.state.settings.delay if run.delay is None else run.delay
        if delay:
            self.state.pauses[run.id] = now + delay
        return True

    # -- sums -----------------------------------------------------------------------------------

    def _begin_sums(self, run: Run, table: TableRun, scan: _Scan, summed: SummedTable) -> None:
        scan.sums = sums = _Sums.of(summed, self._chunk_rows(run))
        table.total, table.chunks = len(summed.ranges) * RANGE_ROWS, len(sums.groups)

        def came(found: KeptSums) -> None:
            sums.kept = found.sums
            scan.lake_bytes += found.read_bytes

        self._ask(run, table, scan, partial(self.reader.kept_sums, table.table, summed), came)

    def _sum(self, run: Run, table: TableRun, scan: _Scan, sums: _Sums, now: float) -> None:
        while sums.groups and self._may_read(run, scan, now):
            group = sums.groups.popleft()
            whole = self._spec(run, table, scan, runs.EVERYTHING)
            spec = replace(whole, ranges=sums.table.ranges.part(*group))
            came = partial(self._came_sums, run, table, scan, group)
            self._ask(run, table, scan, partial(self.reader.read, spec), came)
        within = None if scan.under_way else sums.unlike()
        if within is not None:
            self._narrow(run, table, scan, sums, within)

    def _came_sums(
        self, run: Run, table: TableRun, scan: _Scan, group: tuple[int, int], result: ChunkResult
    ) -> None:
        self.pace.read(run, result.rows, self.executor.monotonic())
        sums = scan.sums
        if sums is None:  # all is read, since another group was not summed in time
            return
        if result.error is not None:
            if result.error.code in {NOT_SUMMED, STATEMENT_TIMEOUT}:
                self._read_all(run, table, scan)
                return
            sums.groups.append(group)
            self._failed(run, table, _failure(result.error), again=False)
            return
        scan.fingerprint = scan.fingerprint or result.fingerprint
        if result.fingerprint != scan.fingerprint or result.sums is None:
            self._begin_again(run, table)
            return
        sums.source.put(group[0], result.sums)
        scan.sent_bytes += result.bytes
        table.settled += 1
        table.rows += result.rows

    def _read_all(self, run: Run, table: TableRun, scan: _Scan) -> None:
        """Read all rows where the database does not sum them, or not in time."""
        log.info("verify.reads_rows", table=table.table, reason="they are not summed in time")
        scan.sums = None
        table.settled = table.rows = 0

        def found(cut: Cut) -> None:
            scan.spans = deque(cut.spans)
            table.total, table.chunks = cut.rows, len(cut.spans)
            self._read_lake(run, table, scan)

        self._ask(run, table, scan, lambda: self._cut(run, table, scan.condition), found)

    def _narrow(
        self, run: Run, table: TableRun, scan: _Scan, sums: _Sums, within: RowsWithin
    ) -> None:
        """Read the ranges that are not alike; none is left of a table that is as it should be."""
        unlike = np.flatnonzero(within.chosen)
        spans = joined(unlike, sums.source.counts, self._chunk_rows(run))
        scan.within = within
        scan.spans = deque(within.ranges.span(*one) for one in spans)
        if spans:
            table.chunks += len(spans)
            self._read_lake(run, table, scan)
        else:
            self._named(run, table, scan, 0, [])

    def _begin_again(self, run: Run, table: TableRun) -> None:
        reason = "its schema was changed"
        log.info("verify.begins_again", run=run.id, table=table.table, reason=reason)
        self._forget(run, table)

    # -- rows -----------------------------------------------------------------------------------

    def _spec(
        self, run: Run, table: TableRun, scan: _Scan, span: KeyRange, suspects: Words | None = None
    ) -> ChunkSpec:
        number = self.state.next_attempt
        self.state.next_attempt += 1
        return ChunkSpec(
            run=run.id,
            table=table.table,
            chunk=len(scan.digests),
            attempt=number,
            shards=self.state.settings.shards,
            span=span,
            condition=scan.condition,
            surrogate=run.surrogate if scan.within is None else scan.within.order,
            digest=Digest.of(scan.columns, suspects),
        )

    def _came(
        self, run: Run, table: TableRun, scan: _Scan, span: KeyRange, result: ChunkResult
    ) -> None:
        error = result.error
        self.pace.read(run, result.rows, self.executor.monotonic())
        if error is not None and error.halves:
            scan.spans.extend(error.halves)
            table.chunks += len(error.halves) - 1
            return
        if error is not None:
            scan.spans.append(span)
            self._failed(run, table, _failure(error), again=False)
            return
        scan.fingerprint = scan.fingerprint or result.fingerprint
        if result.fingerprint != scan.fingerprint or result.digests is None:
            self._begin_again(run, table)
            return
        scan.digests[span] = result.digests
        scan.sent_bytes += result.bytes
        table.settled += 1
        if scan.sums is None:  # else they are counted
            table.rows += result.rows

    # -- what is not alike ----------------------------------------------------------------------

    def _suspect(self, run: Run, table: TableRun, scan: _Scan) -> None:
        scan.asked = True
        whole = not table.condition

        def compare() -> Unlike:
            return unlike(scan.digests, scan.lake, whole=whole)

        def found(answer: Unlike) -> None:
            if answer.count > FEW and len(scan.lake) == 1:
                scan.asked = False
                self._read_lake(run, table, scan)
                return
            specs = [self._spec(run, table, scan, *one) for one in answer.ranges.items()]
            self._ask(run, table, scan, lambda: self._keys(table, specs, answer), name)

        def name(answer: tuple[int, list[list[str]]]) -> None:
            self._named(run, table, scan, *answer)

        self._ask(run, table, scan, compare, found)

    def _keys(
        self, table: TableRun, specs: list[ChunkSpec], answer: Unlike
    ) -> tuple[int, list[list[str]]]:
        """Return how many keys are suspected, and their texts for a chunk, as many as it takes."""
        keys: dict[bytes, None] = {}
        for spec in specs:
            result = self.reader.read(spec)
            if result.error is not None:
                raise _failure(replace(result.error, retried=True))
            keys.update(dict.fromkeys(result.keys))
        if len(answer.kept):
            keys.update(dict.fromkeys(self.reader.kept_keys(table.table, answer.kept)))
        texts: list[list[str]] = []
        size = 0
        found = self.reader.texts(table.table, [key.decode() for key in keys])
        for text in found.values():
            size += sum(len(part.encode()) + 4 for part in text)
            if size > MOST_BYTES:
                break
            texts.append(text)
        return len(keys), texts

    def _named(
        self, run: Run, table: TableRun, scan: _Scan, count: int, texts: list[list[str]]
    ) -> None:
        """End a scan with the keys that are suspected, as many as there are and as a run takes."""
        self._take(table, scan, count, texts)
        self.store.changed(run)
        if table.over:
            self.store.scanned(run, table)

    def _take(self, table: TableRun, scan: _Scan, count: int, texts: list[list[str]]) -> None:
        sent = sum(len(one) for one in scan.digests.values())
        table.tally = VerifyTally(
            scanned=sent if scan.sums is None else int(scan.sums.source.counts.sum()),
            sent=sent,
            source_bytes=scan.sent_bytes,
            lake_bytes=scan.lake_bytes,
            suspects=len(texts),
            left=count - len(texts),
        )
        if texts:
            table.keys, table.state = texts, runs.WAITING
            table.chunks = table.settled = table.rows = 0
        else:
            table.state = runs.DONE

    # -- questions ------------------------------------------------------------------------------

    def _ask(
        self,
        run: Run,
        table: TableRun,
        scan: _Scan,
        work: Callable[[], T],
        done: Callable[[T], None],
    ) -> None:
        """Have work done in another thread; its result is dealt with in a later step."""
        scan.under_way += 1

        def run_it() -> None:
            try:
                answer = work()
            except LakemarkError as error:
                failure = error
                self.state.inbox.put(lambda: failed(failure))
            except Exception as error:
                log.exception("snapshot.internal_error", table=table.table)
                defect = LakemarkError(type(error).__name__, code=INTERNAL, hint=REPORT)
                self.state.inbox.put(lambda: failed(defect))
            else:
                self.state.inbox.put(lambda: tell(answer))

        def is_over() -> bool:
            scan.under_way -= 1
            known = self._scans.get((run.id, table.table)) is scan
            return not known or table.over or run.over

        def tell(answer: T) -> None:
            if is_over():
                return
            if not (isinstance(answer, ChunkResult) and answer.error):
                self.state.answered(run, table)
            done(answer)

        def failed(error: LakemarkError) -> None:
            if not is_over():
                self._failed(run, table, error)

        self.executor.submit(run_it)

    def _failed(
        self, run: Run, table: TableRun, error: LakemarkError, *, again: bool = True
    ) -> None:
        """Scan a table again later, or what is left of it; or fail it."""
        if again:
            self._forget(run, table)
        if not error.retried:
            self._scans.pop((run.id, table.table), None)
            self.store.fail_table(run, table, error.code, error.message, error.hint)
        elif not self.retries.put_off(run, table, error):
            self.retries.failed(error)

    def _forget(self, run: Run, table: TableRun) -> None:
        """Scan a table from its beginning."""
        self._scans.pop((run.id, table.table), None)
        table.state, table.settled, table.rows = runs.WAITING, 0, 0


def _failure(error: ChunkError) -> LakemarkError:
    return LakemarkError(error.message, code=error.code, hint=error.hint, retried=error.retried)


def _no_table(name: str) -> TableError:
    return TableError(
        f"the lake has no table {name}",
        code="no-table",
        hint=f"`lakemark snapshot start {name}` makes it",
    )
