"""The state of every table: the state machine of a pipeline, pure and kept per batch.

    state         set by                                   meaning
    ------------  ---------------------------------------  ----------------------------------
    streaming     first packet; catch-up reached the batch; each batch applies its events
                  a skip came to its end
    catching-up   resume, retry, new schema, repartition    bounded reads apply the events from
                                                            `from_offsets` on; then it streams
    paused        control record table-pause; table-skip    nothing is applied, nothing is lost:
                  until the stream is at its end            only a skip's end gives up what waits
    errored       a named error                             as paused; `retried` ones resume alone

`PipelineState` after batch N is a function of the state after N-1 and what batch N's tasks
reported; it is stored under N before Spark commits the batch, so a repeated batch starts from the
same state. From the same reports it comes to the same one.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2s
from typing import Final

import msgspec

from lakemark.model import positions
from lakemark.model.cuts import CutProgress
from lakemark.model.decoding import LOG_CHANGED
from lakemark.model.events import Learnt
from lakemark.model.fills import UNSEEN
from lakemark.model.offsets import Offsets
from lakemark.model.proof import TableProof
from lakemark.model.topic_owners import ONE_OWNER, TopicOwners
from lakemark.settings.table_id import unqualified
from lakemark.state.table_parts import (
    PendingHalves,
    StoredPositions,
    TableCounts,
    TableProgress,
    TableRepair,
    WrittenFiles,
)

FORMAT: Final = 5
FILL_BYTES: Final = 256 << 20  # of data files: they are written anew while all tables wait
STREAMING: Final = "streaming"
CATCHING_UP: Final = "catching-up"
PAUSED: Final = "paused"
ERRORED: Final = "errored"
REGRESSED: Final = "position-regressed"
TRUNCATED: Final = (
    "it was truncated, and the connector went on at another server: which rows are older is not "
    "certain"
)


class TableState(msgspec.Struct, omit_defaults=True):
    """One table: what it is doing, which the functions here say, and its parts.

    Attributes:
        state: one of the table in the module's docstring.
        code, reason, hint, retried: why it is errored; or what the reader should know.
        since_batch: batch in which the state was entered.
        topics: that its events come in.
        asked: whether it has waited for the catalog to be asked about a new column already.
        disagrees: how its newest records and the database differ about its columns; empty if not.
        hidden_nulls: columns whose NULL its newest records have as the column's default.
        progress, size, files, pending, repair: see `table_parts`.
    """

    state: str = STREAMING
    code: str = ""
    reason: str = ""
    hint: str = ""
    retried: bool = False
    since_batch: int = 0
    topics: list[str] = msgspec.field(default_factory=list)
    asked: bool = False
    disagrees: str = ""
    hidden_nulls: tuple[str, ...] = ()
    progress: TableProgress = msgspec.field(default_factory=TableProgress)
    size: TableCounts = msgspec.field(default_factory=TableCounts)
    files: WrittenFiles = msgspec.field(default_factory=WrittenFiles)
    pending: PendingHalves = msgspec.field(default_factory=PendingHalves)
    repair: TableRepair = msgspec.field(default_factory=TableRepair)

    def resume(self, batch: int) -> None:
        """Let it catch up from where it stands."""
        self.state, self.code, self.reason, self.hint = CATCHING_UP, "", "", ""
        self.retried, self.since_batch = False, batch
        self.progress.skip(None)

    def stream(self, batch: int) -> None:
        """Let it wait for nothing any more: what comes next of it comes with the stream."""
        self.state, self.code, self.reason, self.hint = STREAMING, "", "", ""
        self.retried, self.since_batch, self.asked = False, batch, False
        self.progress.end()

    def runs(self) -> bool:
        """Say whether it goes on by itself, perhaps after a look at the catalog."""
        return self.state in {STREAMING, CATCHING_UP} or (
            self.state == ERRORED and self.code == UNSEEN
        )

    def can_fill(self) -> bool:
        """Say whether its rows can get values that no event tells, instead of being read again.

        Not one that a person or an error has stopped, nor one that is to be read again anyway; see
        also `plans.can_fill`.
        """
        is_whole = bool(self.repair.complete) and not self.repair.resnapshot
        small = self.size.bytes <= FILL_BYTES
        return self.runs() and is_whole and not self.files.rebuild and small

    def rebuilding(self) -> str:
        """Return what readers should know while it is rebuilt; empty if it is not."""
        if not self.files.rebuild:
            return ""
        why = self.files.rebuild_why
        return f"it is being rebuilt, and readers see it as it was before: {why}"

    def forget_old_files(self) -> None:
        """Count and await nothing of the files that were written so far: others are, from now."""
        self.size.forget_files()
        self.pending.forget()


class LeftOut(msgspec.Struct):
    """A table as it was when the configuration named it last; `captured` by the connector since."""

    entry: TableState
    captured: bool = True


class LogState(msgspec.Struct):
    """The state of one connector's log.

    Attributes:
        epochs: first offsets of epochs 1, 2, …; what stands before is of the one before.
        learnt_event: see `PipelineState.learnt`; stored under the name that it had first.
        begun: source time at which the connector began without offsets, 0 = not known.
        begun_at: the number of that beginning, see `replay_filter.beginnings`.
        cutting: see `cuts`.
    """

    epochs: list[Offsets] = msgspec.field(default_factory=list)
    learnt_event: bytes = msgspec.field(default=b"", name="sample")
    begun: int = 0
    begun_at: int = 0
    cutting: CutProgress = msgspec.field(default_factory=CutProgress)


class PipelineState(LogState, kw_only=True):
    """The state after a batch; where there is only one connector, that of its log, too.

    Attributes:
        format: version of this record; a newer one is refused.
        batch: the batch after which it holds; -1 before the first.
        offsets: end offsets of the change topics in that batch.
        ignorable: columns per table that the catalog no longer has.
        control: end offset of the control topic in that batch.
        logs: of each connector, by its qualifier, where there are several, see `log_of`.
        regressed: offset of the first event that fell below its partition's applied position
            although its source time was newer: where the next epoch would begin.
        runs: snapshot runs that are armed: only then are touches packed.
        learnt_tables: see `learnt`; like `applied`, stored under the name that it had first.
        begun_after: by topic, the batch after which it began again, at offsets of other records.
        output_prefixes: of the output topics that were ever written: they are read by nobody here.
        left: tables that the configuration no longer names, see `selection`.
        left_offsets: where reading of their topics ended, if these are read no more.
        schema_changes: of schema topics, up to where it was judged what came late, see
            `sources.schema_topics`.
        proofs: of tables, by name; of their files as they are now, see `model.proof`.
        held: number of records that were planned and not read, see `sources.cutting`: reading goes
            on at `offsets`.
        deferred: whether control records were left to the next batch.
    """

    format: int = FORMAT
    batch: int = -1
    offsets: Offsets = msgspec.field(default_factory=dict)
    applied: StoredPositions = msgspec.field(default_factory=dict, name="high_waters")
    tables: dict[str, TableState] = msgspec.field(default_factory=dict)
    ignorable: dict[str, list[str]] = msgspec.field(default_factory=dict)
    control: int = 0
    logs: dict[str, LogState] = msgspec.field(default_factory=dict)
    regressed: Offsets = msgspec.field(default_factory=dict)
    runs: set[str] = msgspec.field(default_factory=set)
    learnt_tables: dict[str, tuple[bytes, bytes]] = msgspec.field(
        default_factory=dict, name="wrappers"
    )
    begun_after: dict[str, int] = msgspec.field(default_factory=dict)
    output_prefixes: list[str] = msgspec.field(default_factory=list)
    left: dict[str, LeftOut] = msgspec.field(default_factory=dict)
    left_offsets: Offsets = msgspec.field(default_factory=dict)
    schema_changes: Offsets = msgspec.field(default_factory=dict)
    proofs: dict[str, TableProof] = msgspec.field(default_factory=dict)
    held: int = 0
    deferred: bool = False

    def log_of(self, connector: str) -> LogState:
        """Return the state of a connector's log, to be read.

        Args:
            connector: its qualifier; empty for the only one.
        """
        return self.logs.get(connector, LogState()) if connector else self

    def own_log(self, connector: str) -> LogState:
        """Return the state of a connector's log, to be changed."""
        return self.logs.setdefault(connector, LogState()) if connector else self

    def every_log(self) -> Iterator[LogState]:
        """Yield the states of all logs."""
        yield self
        yield from self.logs.values()

    def learnt(self, connector: str = "") -> Learnt:
        """Return a connector's way of writing, as events have shown; for the output topics only."""
        return Learnt(self.log_of(connector).learnt_event, self.learnt_tables)

    def learn(self, more: Learnt, connector: str = "") -> None:
        """Keep what has been learnt of a connector since."""
        learnt = self.learnt(connector).joined(more)
        self.own_log(connector).learnt_event, self.learnt_tables = learnt.event, learnt.tables

    def entries(self) -> Iterator[TableState]:
        """Yield the entries of all tables, those left out too."""
        yield from (entry for _, entry in self.named_entries())

    def named_entries(self) -> Iterator[tuple[str, TableState]]:
        """Yield the names and entries of all tables, those left out too."""
        yield from self.tables.items()
        yield from ((name, one.entry) for name, one in self.left.items())

    def entry_of(self, table: str) -> TableState | None:
        """Return a table's entry, also of one that is left out; None if it is not known."""
        left = self.left.get(table)
        return left.entry if left else self.tables.get(table)

    def catching_up(self) -> list[str]:
        """Return the tables to be caught up in the next batch."""
        return [t for t, s in self.tables.items() if s.state == CATCHING_UP]

    def carried(self) -> dict[str, tuple[str, ...]]:
        """Return the tables by the topics that they came in."""
        found: dict[str, tuple[str, ...]] = {}
        for table, entry in sorted(self.tables.items()):
            for topic in entry.topics:
                found[topic] = (*found.get(topic, ()), table)
        return found

    def partial(self) -> frozenset[str]:
        """Return the tables of which an event lacked a column."""
        return frozenset(name for name, entry in self.tables.items() if entry.repair.partial)

    def silent_topics(self) -> frozenset[str]:
        """Return the topics of which no table streams."""
        known = {t for s in self.tables.values() for t in s.topics}
        used = {t for s in self.tables.values() if s.state == STREAMING for t in s.topics}
        return frozenset(known - used)

    def not_streaming(self) -> frozenset[str]:
        """Return the tables whose events are left alone, and rows of snapshots with them."""
        return frozenset(t for t, s in self.tables.items() if s.state != STREAMING).union(self.left)


def stop(
    state: PipelineState,
    table: str,
    *,
    to: str,
    start: Offsets,
    before: PipelineState,
    code: str = "",
    reason: str = "",
    hint: str = "",
    retried: bool = False,
    forwarded: Offsets | None = None,
) -> None:
    """Take a table out of the stream at the start of this batch; nothing of it is lost.

    One that is left out stands where it stood, and does not go on when it is taken back.

    Args:
        state: the state being made.
        table: which table.
        to: PAUSED, ERRORED or CATCHING_UP.
        start: Kafka offsets at which the batch began: the first ones not applied.
        before: the state before the batch, whose applied positions hold at these offsets.
        code: see `TableState`.
        reason: see `TableState`.
        hint: see `TableState`.
        retried: see `TableState`.
        forwarded: the batch's end offsets, if its events may be in the output topic: they are read
            again in one piece, so that a truncate among them sees all of them.
    """
    entry = state.entry_of(table) or state.tables.setdefault(table, TableState())
    if entry.state == STREAMING and table not in state.left:
        entry.progress.hold(entry.topics, start, before.applied, forwarded)
    if entry.state != to or entry.code != code:
        entry.since_batch = state.batch
    entry.state, entry.code, entry.reason = to, code, reason
    entry.hint, entry.retried = hint, retried
    entry.progress.skip(None)


def skip(state: PipelineState, table: str, *, upto: object) -> bool:
    """Have a stopped table leave out what it has not applied, up to these offsets at least.

    It is paused until a batch begins there (`end_skips`). Until then nothing is given up: a pause
    or an error takes the skip back, and a resume applies the events after all.

    Args:
        state: the state being made.
        table: which table.
        upto: Kafka offsets by topic and partition, as the control record has them.

    Returns:
        False if there is no such table, if it runs, if `upto` is no offsets, or if its source went
        back in time: events of that source would be dropped ever after, which takes a new epoch.
    """
    entry = state.entry_of(table)
    if entry is None or entry.state not in (PAUSED, ERRORED):
        return False
    if any(topic in state.regressed for topic in entry.topics):
        return False
    try:
        goals = msgspec.convert(upto, Offsets, str_keys=True)
    except msgspec.ValidationError:
        return False
    known = state.offsets.keys() | state.left_offsets.keys()
    entry.progress.skip({topic: ends for topic, ends in goals.items() if topic in known})
    entry.state, entry.code, entry.retried = PAUSED, "skipping", False
    entry.reason = "its events are left out, up to the end of the log as of the command"
    entry.hint = f"it goes on by itself; to apply them after all: lakemark table resume {table}"
    entry.since_batch = state.batch
    return True


def end_skips(state: PipelineState, start: Offsets) -> list[str]:
    """Let the tables stream whose skip ends at or before these offsets, where the batch begins.

    They apply this batch's events by the stream's own applied positions. Any of their rows may miss
    an event now, so they need a run with a sweep; an older copy of a table will do, too.

    Returns:
        their names.
    """
    ended = [t for t, entry in state.tables.items() if entry.progress.is_skipped(start)]
    for table in ended:
        entry = state.tables[table]
        entry.stream(state.batch)
        entry.files.ask_again()
        forget_proof(state, table)  # an older copy may have been put back
        why = "events were skipped: rows may be missing, out of date or deleted since"
        entry.repair.doubt_all(entry.rebuilding() or why, state.batch)
    return ended


def resume(state: PipelineState, table: str) -> bool:
    """Let a paused or errored table catch up; False if there is no such table or it runs."""
    entry = state.entry_of(table)
    if entry is None or entry.state not in (PAUSED, ERRORED):
        return False
    entry.resume(state.batch)
    return True


def rebuild(
    state: PipelineState,
    table: str,
    command: str,
    why: str,
    *,
    start: Offsets,
    before: PipelineState,
    upto: object = None,
) -> bool:
    """Let a table be made anew from a snapshot, beside the old one; chunks under way are void.

    One that stands still leaves out what it has not applied, as `skip` has it: the snapshot brings
    it. Any other applies all of its events, to the new table.

    Args:
        state: the state being made.
        table: which table.
        command: id of the record that asks for it: the rebuild is named after it and the batch.
        why: what for.
        start: Kafka offsets at which the batch began.
        before: the state before the batch.
        upto: see `skip`; used only where it stands still.

    Returns:
        False if there is no such table, or as `skip`.
    """
    entry = state.tables.get(table)
    if entry is None:
        return False
    if entry.code == UNSEEN:
        entry.resume(state.batch)
    if entry.state in (PAUSED, ERRORED):
        if not skip(state, table, upto=upto):
            return False
    else:
        stop(state, table, to=CATCHING_UP, start=start, before=before)
    _begin_rebuild(state, entry, command, why)
    return True


def _begin_rebuild(state: PipelineState, entry: TableState, command: str, why: str) -> None:
    """Begin a rebuild under a name that no other has, of this checkpoint or of another one."""
    made = blake2s(command.encode(errors="replace"), digest_size=6).hexdigest()
    entry.files.begin_rebuild(f"rebuild-{made}-{state.batch}", why)
    entry.forget_old_files()
    entry.repair.drop_fills()  # the snapshot brings the newest of all rows
    entry.repair.doubt_all(entry.rebuilding(), state.batch)


def lost_rebuild(state: PipelineState, entry: TableState) -> None:
    """Begin a rebuild once more: the files that were made so far are gone."""
    _begin_rebuild(state, entry, entry.files.rebuild, entry.files.rebuild_why)


def cancel_rebuild(state: PipelineState, table: str) -> bool:
    """Go on with the old table, which missed the changes meanwhile; False if there is no rebuild.

    The table is snapshotted again, or stops once more for the reason of the rebuild.
    """
    entry = state.tables.get(table)
    if entry is None or not entry.files.rebuild:
        return False
    entry.files.cancel_rebuild()
    entry.forget_old_files()
    why = "its rebuild was cancelled: changes meanwhile are missing"
    entry.repair.doubt_all(why, state.batch)
    return True


def rebuilt(state: PipelineState) -> list[str]:
    """Return the tables whose new form is complete: every row was read since the rebuild began."""
    return [
        name
        for name, entry in state.tables.items()
        if entry.files.rebuild and entry.state == STREAMING and not entry.repair.resnapshot
    ]


def follow_log(
    state: PipelineState, start: Offsets, connector: str = "", owners: TopicOwners = ONE_OWNER
) -> bool:
    """Begin the epoch of another server's log; return whether there is one.

    Of the old log all that a partition has stands before its first event of the new one. Where
    neither has come yet the epoch may begin too early: what the old log still has there stands
    above the new log's events then, and the first of these begins another epoch. So rows are right,
    but where a truncate is compared with rows of other partitions.

    Args:
        state: the state being made.
        start: Kafka offsets at which the batch begins.
        connector: as for `new_epoch`.
        owners: likewise.
    """
    own = _entries_of(state, connector)
    codes = {entry.code for entry in own}
    if LOG_CHANGED not in codes or REGRESSED in codes:
        return False
    _begin_epoch(state, start, connector, owners)
    for entry in own:
        if entry.progress.truncated_at:
            entry.repair.doubt_all(TRUNCATED, state.batch)
        if entry.code == LOG_CHANGED:
            entry.resume(state.batch)
    return True


def is_of_older_epoch(state: PipelineState, table: str, position: bytes) -> bool:
    """Return whether a table's position is of an epoch before the newest one of its log."""
    own = (log for one, log in state.logs.items() if unqualified(one, table) is not None)
    epochs = next(own, state).epochs
    return int.from_bytes(positions.epoch_of(position)[1:]) < len(epochs)


def new_epoch(
    state: PipelineState, start: Offsets, connector: str = "", owners: TopicOwners = ONE_OWNER
) -> None:
    """Begin an epoch: at the first regressed event of each partition, else at this batch.

    Every table may hold rows of a source that is no more: all are to be snapshotted again. Tables
    that stopped because of the regression catch up, now in the new epoch.

    Args:
        state: the state being made.
        start: Kafka offsets at which the batch began.
        connector: the qualifier of the one whose positions begin again, see `log_of`: other ones'
            topics and tables stay as they are.
        owners: the connectors of topics; of one that is away its tables say it.
    """
    _begin_epoch(state, start, connector, owners)
    gone = "a new epoch began: rows of the source as it was before may still be here"
    for entry in _entries_of(state, connector):
        entry.repair.doubt_all(gone, state.batch)
        if entry.code in {REGRESSED, LOG_CHANGED}:
            entry.resume(state.batch)


def new_epoch_command(connector: str) -> str:
    """Return the command with which a person says that a connector's source went back in time.

    Args:
        connector: its qualifier; empty for the only one.
    """
    command = "lakemark recover --new-epoch"
    return f"{command} --connector {connector}" if connector else command


def _entries_of(state: PipelineState, connector: str) -> list[TableState]:
    named = state.named_entries()
    return [entry for table, entry in named if unqualified(connector, table) is not None]


def _begin_epoch(state: PipelineState, start: Offsets, connector: str, owners: TopicOwners) -> None:
    known = {t: n for n, entry in state.named_entries() for t in entry.topics}

    def is_own(topic: str) -> bool:
        if topic in known:
            return unqualified(connector, known[topic]) is not None
        return owners(topic) == connector

    every = (state.left_offsets | start).items()
    begins = {topic: dict(partitions) for topic, partitions in every if is_own(topic)}
    for topic in [topic for topic in state.regressed if is_own(topic)]:
        begins.setdefault(topic, {}).update(state.regressed.pop(topic))
    state.own_log(connector).epochs.append(begins)


def count_offsets_anew(state: PipelineState, topics: Offsets, start: Offsets) -> None:
    """Begin an epoch where offsets of topics are places of their records, and mean others now.

    Nothing is done for topics whose records say their place in a log.

    Args:
        state: the state being made.
        topics: where the epoch begins in them.
        start: where it begins in all others: offsets at which a batch begins.
    """
    own = {topic: first for topic, first in topics.items() if _is_by_offset(state, topic)}
    qualifiers = {_qualifier(state, topic) for topic in own}
    for qualifier in sorted(qualifiers):
        _begin_epoch(state, start, qualifier, ONE_OWNER)
        begins = state.own_log(qualifier).epochs[-1]
        begins.update({t: {**p} for t, p in own.items() if _qualifier(state, t) == qualifier})


def _is_by_offset(state: PipelineState, topic: str) -> bool:
    reached = state.applied.get(topic, {}).values()
    return any(not positions.across_partitions(one.reached().position) for one in reached)


def _qualifier(state: PipelineState, topic: str) -> str:
    """Return the connector of a topic's tables by its qualifier."""
    named = [name for name, entry in state.named_entries() if topic in entry.topics]
    own = (q for q in state.logs if named and unqualified(q, named[0]) is not None)
    return next(own, "")


def doubt_all(state: PipelineState, table: str, reason: str) -> None:
    """Note that any row may be wrong; of an unknown table, only while a run may be reading it."""
    left = state.left.get(table)
    entry = left.entry if left else state.tables.get(table)
    if entry is None and state.runs:
        entry = state.tables[table] = TableState(since_batch=state.batch)
    if entry is not None:
        entry.repair.doubt_all(reason, state.batch)
        state.ignorable.pop(table, None)  # the catalog says whether they are gone still


def end_fills(state: PipelineState, passed: Callable[[TableState], bytes | None]) -> None:
    """Forget the values of older images where no such image can come any more.

    Args:
        state: the state being made.
        passed: the position that all partitions of a table have passed; None = not known.
    """
    for entry in state.tables.values():
        waits = state.runs or entry.state != STREAMING or entry.pending.are_left()
        if not entry.repair.fills or waits:
            continue
        position = passed(entry)
        if position is not None:
            entry.repair.end_fills(position)


def forget_proof(state: PipelineState, table: str) -> None:
    """Know nothing of what verify runs have shown of a table: its files are others from now on."""
    state.proofs[table] = TableProof(files_since=state.batch)


def any_state(state: PipelineState, wanted: str) -> bool:
    """Say whether any table is in this state."""
    return any(entry.state == wanted for entry in state.tables.values())
