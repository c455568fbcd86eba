"""The parts of a table's state; pure. Each is written by its own methods, and by nothing else.

    part         what it tells                                            written when
    -----------  -------------------------------------------------------  --------------------------
    progress     from where its events are to be applied                  it stops, catches up
    size         how much came, how much is there                         a batch ends
    files        which files, of which key, which commit is the newest    a commit, a rebuild
    pending      halves of key changes beside the table                   a commit
    repair       which rows are in doubt, and what older ones lack        doubt, a read, a fill

Their names are those of the flat record that the progress topic has and that states up to format 4
had, see `stored_form`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Self

import msgspec

from lakemark.model.decoding import FEW_ROWS, AppliedPosition, Report, TableReport
from lakemark.model.fills import Fill
from lakemark.model.offsets import Offsets
from lakemark.model.positions import LOWEST
from lakemark.sink.lake_plan import STREAM, TableOutcome

REREAD_LIMIT: Final = 1000  # keys listed per table; beyond that a whole snapshot is better
BY_CONNECTOR: Final = "connector"
BY_SNAPSHOT: Final = "snapshot"
BEFORE: Final = "before"
OWN_SNAPSHOT_OVER_ROWS: Final = (
    "the connector took a snapshot of its own over a table that had rows: rows deleted in between "
    "may still be here"
)


class StoredPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """An `AppliedPosition` as stored: position as hex, newest source time in microseconds."""

    position: str = LOWEST.hex()
    source_ts: int = 0
    creates: bool = False
    seen: dict[str, tuple[int, int]] = {}

    @classmethod
    def of(cls, report: Report) -> Self:
        """Return the progress of a partition after a stretch."""
        return cls(report.position.hex(), report.source_ts, report.creates, report.seen)

    def reached(self) -> AppliedPosition:
        """Return it as the tasks use it."""
        return AppliedPosition(
            bytes.fromhex(self.position), self.source_ts, self.creates, self.seen
        )


StoredPositions = dict[str, dict[int, StoredPosition]]
"""By topic and partition."""


class TableProgress(msgspec.Struct, omit_defaults=True):
    """The place of a table in its topics while it does not stream; empty while it does.

    `applied`, `truncated_at` and `applied_close` are stored under the names that they had first.

    Attributes:
        slice_batch: batch in which it last had its turn to catch up; -1 = none yet.
        from_offsets: first Kafka offsets not applied.
        applied: the partitions' applied positions at those offsets.
        skip_to: Kafka offsets up to which its events are left out: it streams from the first batch
            that begins there; None = nothing is left out.
        old_ends: after a change of the partition count: what must be read of the old partitions
            before anything else.
        truncated_at: hex position of the newest truncate.
        applied_close: hex position of the highest close row of the chunks that were applied: up to
            it the table's rows may be ahead of their positions.
    """

    slice_batch: int = -1
    from_offsets: Offsets = msgspec.field(default_factory=dict)
    applied: StoredPositions = msgspec.field(default_factory=dict, name="high_waters")
    skip_to: Offsets | None = None
    old_ends: Offsets = msgspec.field(default_factory=dict)
    truncated_at: str = msgspec.field(default="", name="floor")
    applied_close: str = msgspec.field(default="", name="horizon")

    def hold(
        self,
        topics: Iterable[str],
        start: Offsets,
        applied: Mapping[str, Mapping[int, StoredPosition]],
        ends: Offsets | None = None,
    ) -> None:
        """Stand at `start` in these topics.

        Args:
            topics: the table's.
            start: first Kafka offsets not applied.
            applied: the partitions' positions there.
            ends: what has to be read in one piece, see `old_ends`.
        """
        topics, ends = list(topics), ends or {}
        self.from_offsets = {topic: dict(start.get(topic, {})) for topic in topics}
        self.applied = {topic: dict(applied.get(topic, {})) for topic in topics}
        self.old_ends = {topic: dict(ends[topic]) for topic in topics if topic in ends}

    def add_topic(
        self, topic: str, start: Offsets, applied: Mapping[str, Mapping[int, StoredPosition]]
    ) -> None:
        """Stand at `start` in one more topic."""
        self.from_offsets[topic] = dict(start.get(topic, {}))
        self.applied[topic] = dict(applied.get(topic, {}))

    def advance(
        self,
        topics: Iterable[str],
        to: Offsets,
        applied: Mapping[tuple[str, int], StoredPosition],
        end: Offsets,
    ) -> bool:
        """Move on, a slice was applied; return whether the stream is reached.

        Args:
            topics: the table's.
            to: where the slice ended.
            applied: the partitions' positions there.
            end: end offsets of the batch: where the stream is.
        """
        for topic, partitions in to.items():
            self.from_offsets.setdefault(topic, {}).update(partitions)
        for (topic, partition), position in applied.items():
            self.applied.setdefault(topic, {})[partition] = position
        if not _is_past(self.old_ends, self.from_offsets):
            return False
        self.old_ends = {}
        return all(
            self.from_offsets.get(topic, {}).get(partition, 0) == goal
            for topic in topics
            for partition, goal in end.get(topic, {}).items()
        )

    def repartition(self, old_ends: Offsets, end: Offsets) -> None:
        """Read the old partitions first, up to the ends seen now.

        New partitions, which are those in `end`, begin at 0, without a position.
        """
        self.old_ends = self.old_ends | old_ends
        for topic in old_ends.keys() & self.from_offsets.keys():
            self.from_offsets[topic] = {**dict.fromkeys(end[topic], 0), **self.from_offsets[topic]}

    def begin_again(self, topic: str, first: Mapping[int, int]) -> None:
        """Stand at the first offsets of a topic: what was to be read or left out before is gone."""
        if topic in self.from_offsets:
            self.from_offsets[topic] = dict(first)
            self.old_ends.pop(topic, None)
        if self.skip_to is not None:
            self.skip_to.pop(topic, None)

    def forget_positions(self, topic: str) -> None:
        """Know no position of a topic's partitions: its keys are in other ones now."""
        self.applied.pop(topic, None)

    def end(self) -> None:
        """Stand nowhere: the stream brings what comes next."""
        self.from_offsets, self.applied, self.old_ends, self.skip_to = {}, {}, {}, None

    def skip(self, goals: Offsets | None) -> None:
        """Leave out events up to these offsets; None = none."""
        self.skip_to = goals

    def is_skipped(self, start: Offsets) -> bool:
        """Say whether a batch that begins at `start` has nothing of what is left out."""
        return self.skip_to is not None and _is_past(self.skip_to, start)

    def had_turn(self, batch: int) -> None:
        """Note the batch of its newest slice."""
        self.slice_batch = batch

    def truncated(self, position: bytes) -> None:
        """Note a truncate; empty = none."""
        self.truncated_at = max(self.truncated_at, position.hex())

    def closed(self, position: str) -> None:
        """Note the close row of a chunk that was applied, as hex."""
        self.applied_close = max(self.applied_close, position)


def _is_past(goals: Offsets, at: Offsets) -> bool:
    return all(
        at.get(topic, {}).get(partition, 0) >= goal
        for topic, partitions in goals.items()
        for partition, goal in partitions.items()
    )


class TableCounts(msgspec.Struct, omit_defaults=True):
    """Counts of what came of a table, and of what is there.

    Attributes:
        rows, bytes: of its files.
        events, replays, incremental_reads, clamped, dead_letters: that came.
        unavailable: rows that lacked a column which nothing had the value of.
        newest_ts: newest source time, in microseconds since the epoch.
        committed_ms: when rows were last committed, in milliseconds since the epoch; 0 = never.
        maybe_null: rows that came with a default which may be NULL, and were not read again.
    """

    rows: int = 0
    bytes: int = 0
    events: int = 0
    replays: int = 0
    incremental_reads: int = 0
    clamped: int = 0
    unavailable: int = 0
    dead_letters: int = 0
    newest_ts: int = 0
    committed_ms: int = 0
    maybe_null: int = 0

    def count(self, report: TableReport) -> None:
        """Add what a stretch had of the table."""
        self.events += report.events
        self.replays += report.replays
        self.incremental_reads += report.incremental_reads
        self.clamped += report.clamped
        self.dead_letters += report.bad
        self.newest_ts = max(self.newest_ts, report.newest_ts)

    def count_maybe_null(self, rows: int) -> None:
        """Add rows with a default that may be NULL, which are not read again."""
        self.maybe_null += rows

    def commit(self, outcome: TableOutcome) -> None:
        """Take what a merge says of the files."""
        if outcome.rows >= 0:
            self.measure(outcome.rows, outcome.bytes)
        self.committed_ms = max(self.committed_ms, outcome.committed_ms)
        self.unavailable += outcome.unavailable

    def measure(self, rows: int, size: int) -> None:
        """Take rows and bytes as they are now."""
        self.rows, self.bytes = rows, size

    def forget_files(self) -> None:
        """Begin with files of which there are none yet."""
        self.rows = self.bytes = self.committed_ms = 0


class OldTable(msgspec.Struct, omit_defaults=True):
    """The files' facts of a table that is rebuilt, for the day on which it goes on."""

    key: list[str] = msgspec.field(default_factory=list)
    key_ends: list[str] = msgspec.field(default_factory=list)
    engine: str = ""


class WrittenFiles(msgspec.Struct, omit_defaults=True):
    """The files of a table, and their newest commit.

    Attributes:
        key: columns that its rows are found by.
        key_ends: what the ends of its key columns' ranges stand for, see `model.key`.
        engine: what has written them; empty = nothing has.
        recorded: batch of the newest commit that the table must have; -1 = not known.
        recorded_as: last part of the app id under which it is recorded.
        rebuild: name of the rebuild under way; empty = none. All that comes goes to the new table,
            see `TableFormat.replace`.
        rebuild_why: what it is for.
        rebuild_old: the table that is rebuilt.
        rebuild_over: names of those of which nothing is needed any more once this is durable.
    """

    key: list[str] = msgspec.field(default_factory=list)
    key_ends: list[str] = msgspec.field(default_factory=list)
    engine: str = ""
    recorded: int = -1
    recorded_as: str = ""
    rebuild: str = ""
    rebuild_why: str = ""
    rebuild_old: OldTable | None = None
    rebuild_over: list[str] = msgspec.field(default_factory=list)

    def commit(self, outcome: TableOutcome, batch: int) -> None:
        """Take what a merge says."""
        if outcome.recorded_as:
            self.recorded, self.recorded_as = batch, outcome.recorded_as
        self.engine = outcome.engine
        self.fit(outcome.key)
        known = [] if outcome.made else self.key_ends
        self.key_ends = sorted({*known, *outcome.key_ends})

    def fit(self, key: list[str]) -> None:
        """Take a key; an empty one says nothing."""
        self.key = key or self.key

    def ask_again(self) -> None:
        """Know no commit that the table must have: it may be another one, or an older copy."""
        self.recorded = -1

    def begin_rebuild(self, name: str, why: str) -> None:
        """Write a new table beside the old one, of which is kept what it needs to go on."""
        old = self.rebuild_old or OldTable(self.key, self.key_ends, self.engine)
        self.end_rebuild()
        self.forget()
        self.rebuild, self.rebuild_why, self.rebuild_old = name, why, old

    def end_rebuild(self) -> None:
        """Write to the table itself from now on: the new one has its place."""
        if self.rebuild:
            self.rebuild_over.append(self.rebuild)
        self.rebuild, self.rebuild_why, self.rebuild_old = "", "", None

    def cancel_rebuild(self) -> None:
        """Write to the old table again."""
        old = self.rebuild_old or OldTable()
        self.end_rebuild()
        self.forget()
        self.key, self.key_ends, self.engine = old.key, old.key_ends, old.engine

    def discarded(self, name: str) -> None:
        """Note that nothing is left of a rebuild that is over."""
        self.rebuild_over.remove(name)

    def forget(self) -> None:
        """Know nothing of the files that are written from now on."""
        self.key, self.key_ends, self.engine = [], [], ""
        self.recorded, self.recorded_as = -1, ""


class PendingHalves(msgspec.Struct, omit_defaults=True):
    """Halves of key changes that wait beside the table for their other ones.

    Attributes:
        batch: that last left some; -1 = none are left.
        step: its step, `stream` or `catchup`.
        over: batch whose halves nobody needs any more; -1 = none.
        over_step: its step.
    """

    batch: int = msgspec.field(default=-1, name="pending")
    step: str = msgspec.field(default=STREAM, name="pending_step")
    over: int = msgspec.field(default=-1, name="pending_over")
    over_step: str = msgspec.field(default=STREAM, name="pending_over_step")

    def commit(self, outcome: TableOutcome, batch: int) -> None:
        """Take what a merge has left; what the one before left is over."""
        self.over, self.over_step = self.batch, self.step
        self.batch, self.step = batch if outcome.pending else -1, outcome.step

    def are_left(self) -> bool:
        """Say whether there are any."""
        return self.batch >= 0

    def forget(self) -> None:
        """Know of none: they are those of other files."""
        self.batch = self.over = -1
        self.step = self.over_step = STREAM


class TableRepair(msgspec.Struct, omit_defaults=True):
    """The rows that are in doubt, and what older ones lack.

    Attributes:
        own_snapshot: LSN of the connector's snapshot the table was loaded by.
        own_batch: last batch with rows of such a snapshot; -1 = none.
        resnapshot: why the table may hold rows that the source no longer has; empty = it does not.
        resnapshot_since: batch that last said so.
        partial: whether any event so far lacked a column.
        reread_keys: keys that need to be read again from the source (dead letters, columns that
            nothing else gives), oldest first, and the batch that last said so.
        reread_missed: last batch in which there were more of them than are listed, or in which
            every key became one of them; -1 = never.
        complete: what has brought all rows that the source had: BY_CONNECTOR with a snapshot of
            its own, BY_SNAPSHOT, or BEFORE: a version of lakemark that did not note it; empty =
            nothing yet.
        fills: what images get that are older than a column, by its finding, see `fills`.
    """

    own_snapshot: int = 0
    own_batch: int = -1
    resnapshot: str = ""
    resnapshot_since: int = -1
    partial: bool = False
    reread_keys: dict[str, int] = msgspec.field(default_factory=dict)
    reread_missed: int = -1
    complete: str = ""
    fills: list[Fill] = msgspec.field(default_factory=list)

    def doubt_all(self, reason: str, batch: int) -> None:
        """Ask for a snapshot: any row may miss an event, or be one that the source deleted."""
        self.resnapshot = reason
        self.resnapshot_since = self.reread_missed = batch

    def doubt_keys(self, keys: Iterable[str], *, batch: int) -> None:
        """Ask for rows to be read again, without growing for ever.

        Args:
            keys: canonical ones.
            batch: in which this is said.
        """
        for key in keys:
            self.reread_keys.pop(key, None)  # to the end
            if len(self.reread_keys) < REREAD_LIMIT:
                self.reread_keys[key] = batch
            else:
                self.reread_missed = batch

    def may_be_null(self, keys: Sequence[str], *, batch: int) -> bool:
        """Ask for rows to be read again that may have a default for NULL; False if it is too many.

        Unlike other doubts it is never answered by reading the whole table again.

        Args:
            keys: canonical ones.
            batch: in which this is said.
        """
        more = [key for key in keys if key not in self.reread_keys]
        if len(keys) > FEW_ROWS or len(self.reread_keys) + len(more) > REREAD_LIMIT:
            return False
        self.doubt_keys(keys, batch=batch)
        return True

    def stale(self) -> frozenset[str] | None:
        """Return keys whose rows miss an event and were not read again yet; None = any row may."""
        return None if self.reread_missed >= 0 else frozenset(self.reread_keys)

    def were_read(self, *, until: int, keys: Collection[str] | None = None) -> None:
        """Take rows out of doubt that had been asked for up to a batch: these keys, or all rows.

        With all rows, ghosts are gone too: the run ended with a sweep.
        """
        if keys is None:
            if self.reread_missed <= until:
                self.reread_missed = -1
            if self.resnapshot_since <= until:
                self.resnapshot, self.resnapshot_since = "", -1
            self.complete = BY_SNAPSHOT
        for key in list(self.reread_keys) if keys is None else keys:
            if self.reread_keys.get(key, until + 1) <= until:
                del self.reread_keys[key]

    def own_rows(self, snapshots: Iterable[int], *, rows_before: int, batch: int) -> None:
        """Note rows of the connector's own snapshots: were they the table's first?

        A table that already had rows may keep some that the source deleted while the connector was
        away: they are in no record, so the table needs a run with a sweep.

        Args:
            snapshots: the LSN of each.
            rows_before: rows that the table had.
            batch: in which they came.
        """
        self.own_batch = batch
        for lsn in sorted(snapshots):
            if lsn == self.own_snapshot:
                continue
            if rows_before or self.own_snapshot:
                self.resnapshot, self.resnapshot_since = OWN_SNAPSHOT_OVER_ROWS, batch
            self.own_snapshot = lsn

    def loaded_by(self, what: str) -> None:
        """Note what has brought all rows, if nothing had before."""
        self.complete = self.complete or what

    def lacked_column(self, lacked: bool) -> None:  # noqa: FBT001
        """Note whether an event lacked a column."""
        self.partial |= lacked

    def fill(self, fills: Iterable[Fill], *, batch: int) -> None:
        """Give older images these values from a batch on."""
        self.fills += [msgspec.structs.replace(one, batch=batch) for one in fills]

    def drop_fills(self, *, batch: int | None = None) -> None:
        """Forget what older images get, all of it or only what came in a batch."""
        self.fills = [one for one in self.fills if batch is not None and one.batch != batch]

    def end_fills(self, passed: bytes) -> None:
        """Forget what no image needs any more, as all that come are at or above a position."""
        self.fills = [one for one in self.fills if passed < bytes.fromhex(one.upto)]
