"""What every table is doing: the state machine of a pipeline, pure and kept per batch.

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

import copy
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2s
from typing import Final

import msgspec

from lakemark.errors import StateVersionError
from lakemark.model.events import Learnt
from lakemark.model.fills import UNSEEN, Fill
from lakemark.model.offsets import Offsets
from lakemark.model.positions import LOWEST
from lakemark.settings.table_id import text_of
from lakemark.state import old_names

FORMAT: Final = 4
REREAD_LIMIT: Final = 1000  # keys listed per table; beyond that a whole snapshot is better
FILL_BYTES: Final = 256 << 20  # of data files: they are written anew while all tables wait
STREAMING: Final = "streaming"
CATCHING_UP: Final = "catching-up"
BY_CONNECTOR: Final = "connector"
BY_SNAPSHOT: Final = "snapshot"
BEFORE: Final = "before"
PAUSED: Final = "paused"
ERRORED: Final = "errored"
_APART: Final = "another table had the same name: it has a folder of its own from now on"


class StoredPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """As `AppliedPosition`: position as hex, newest source time in microseconds."""

    position: str = LOWEST.hex()
    source_ts: int = 0
    creates: bool = False


class OldTable(msgspec.Struct, omit_defaults=True):
    """What is known of the files of a table that is rebuilt, for the day on which it goes on."""

    key: list[str] = msgspec.field(default_factory=list)
    key_ends: list[str] = msgspec.field(default_factory=list)
    engine: str = ""


class TableState(msgspec.Struct, omit_defaults=True):
    """One table.

    Attributes:
        state: one of the table in the module's docstring.
        code, reason, hint, retried: why it is errored; or what the reader should know.
        since_batch: batch in which the state was entered.
        slice_batch: batch in which it last had its turn to catch up; -1 = none yet.
        from_offsets: first Kafka offsets not applied, while it does not stream.
        high_waters: the partitions' high-waters at those offsets.
        skip_to: Kafka offsets up to which its events are left out: it streams from the first batch
            that begins there; None = nothing is left out.
        old_ends: after a change of the partition count: what must be read of the old partitions
            before anything else.
        floor: hex position of the newest truncate.
        own_snapshot: LSN of the connector's snapshot the table was loaded by.
        own_batch: last batch with rows of such a snapshot; -1 = none.
        resnapshot: why the table may hold rows that the source no longer has; empty = it does not.
        resnapshot_since: batch that last said so.
        horizon: hex position of the highest close row of the chunks that were applied: up to it
            the table's rows may be ahead of their positions.
        partial: whether any event so far lacked a column.
        reread_keys: keys that need to be read again from the source (dead letters, columns that
            nothing else gives), oldest first, and the batch that last said so.
        reread_missed: last batch in which there were more of them than are listed, or in which
            every key became one of them; -1 = never.
        pending: batch that last left halves of key changes beside the table; -1 = none are left.
        pending_step: its step, `stream` or `catchup`.
        pending_over: batch whose halves nobody needs any more; -1 = none.
        pending_over_step: its step.
        committed_ms: when rows were last committed, in milliseconds since the epoch; 0 = never.
        key_ends: what the ends of its key columns' ranges stand for, see `sink.key_ends`.
        recorded: batch of the newest commit that the Delta table must have; -1 = not known.
        recorded_as: last part of the app id under which it is recorded.
        complete: what has brought all rows that the source had: BY_CONNECTOR with a snapshot of
            its own, BY_SNAPSHOT, or BEFORE: a version of lakemark that did not note it; empty =
            nothing yet.
        rebuild: name of the rebuild under way; empty = none. All that comes goes to the new table,
            see `TableFormat.replace`.
        rebuild_why: what it is for.
        rebuild_old: the table that is rebuilt.
        rebuild_over: names of those of which nothing is needed any more once this is durable.
        fills: what images get that are older than a column, by its finding, see `fills`.
        asked: whether it has waited for the catalog to be asked about a new column already.
    """

    state: str = STREAMING
    code: str = ""
    reason: str = ""
    hint: str = ""
    retried: bool = False
    since_batch: int = 0
    slice_batch: int = -1
    from_offsets: Offsets = msgspec.field(default_factory=dict)
    high_waters: dict[str, dict[int, StoredPosition]] = msgspec.field(default_factory=dict)
    skip_to: Offsets | None = None
    old_ends: Offsets = msgspec.field(default_factory=dict)
    topics: list[str] = msgspec.field(default_factory=list)
    key: list[str] = msgspec.field(default_factory=list)
    floor: str = ""
    own_snapshot: int = 0
    own_batch: int = -1
    resnapshot: str = ""
    resnapshot_since: int = -1
    engine: str = ""
    rows: int = 0
    bytes: int = 0
    events: int = 0
    replays: int = 0
    incremental_reads: int = 0
    clamped: int = 0
    unavailable: int = 0
    pending: int = -1
    pending_step: str = "stream"
    pending_over: int = -1
    pending_over_step: str = "stream"
    dead_letters: int = 0
    horizon: str = ""
    partial: bool = False
    reread_keys: dict[str, int] = msgspec.field(default_factory=dict)
    reread_missed: int = -1
    newest_ts: int = 0
    committed_ms: int = 0
    key_ends: list[str] = msgspec.field(default_factory=list)
    recorded: int = -1
    recorded_as: str = ""
    complete: str = ""
    rebuild: str = ""
    rebuild_why: str = ""
    rebuild_old: OldTable | None = None
    rebuild_over: list[str] = msgspec.field(default_factory=list)
    fills: list[Fill] = msgspec.field(default_factory=list)
    asked: bool = False


class LeftOut(msgspec.Struct):
    """A table as it was when the configuration named it last; `captured` by the connector since."""

    entry: TableState
    captured: bool = True


class PipelineState(msgspec.Struct):
    """The state after a batch.

    Attributes:
        format: version of this record; a newer one is refused.
        batch: the batch after which it holds; -1 before the first.
        offsets: end offsets of the change topics in that batch.
        ignorable: columns per table that the catalog no longer has.
        control: end offset of the control topic in that batch.
        epochs: first offsets of epochs 1, 2, …; what stands before is of the one before.
        regressed: offset of the first event that fell below its partition's high-water although
            its source time was newer: where the next epoch would begin.
        runs: snapshot runs that are armed: only then are touches packed.
        learnt_event, learnt_tables: see `learnt`; stored under the names that they had first.
        begun: source time of the first transaction of the connector's slot, 0 = not known.
        begun_after: by topic, the batch after which it began again, at offsets of other records.
        output_prefixes: of the output topics that were ever written: they are read by nobody here.
        left: tables that the configuration no longer names, see `selection`.
        left_offsets: where reading of their topics ended, if these are read no more.
    """

    format: int = FORMAT
    batch: int = -1
    offsets: Offsets = msgspec.field(default_factory=dict)
    high_waters: dict[str, dict[int, StoredPosition]] = msgspec.field(default_factory=dict)
    tables: dict[str, TableState] = msgspec.field(default_factory=dict)
    ignorable: dict[str, list[str]] = msgspec.field(default_factory=dict)
    control: int = 0
    epochs: list[Offsets] = msgspec.field(default_factory=list)
    regressed: Offsets = msgspec.field(default_factory=dict)
    runs: set[str] = msgspec.field(default_factory=set)
    learnt_event: bytes = msgspec.field(default=b"", name="sample")
    learnt_tables: dict[str, tuple[bytes, bytes]] = msgspec.field(
        default_factory=dict, name="wrappers"
    )
    begun: int = 0
    begun_after: dict[str, int] = msgspec.field(default_factory=dict)
    output_prefixes: list[str] = msgspec.field(default_factory=list)
    left: dict[str, LeftOut] = msgspec.field(default_factory=dict)
    left_offsets: Offsets = msgspec.field(default_factory=dict)

    @property
    def learnt(self) -> Learnt:
        """What events have shown of how the connector writes; kept for the output topics only."""
        return Learnt(self.learnt_event, self.learnt_tables)

    def learn(self, more: Learnt) -> None:
        """Keeps what has been learnt since."""
        learnt = self.learnt.joined(more)
        self.learnt_event, self.learnt_tables = learnt.event, learnt.tables

    def entries(self) -> Iterator[TableState]:
        """Of all tables, those left out too."""
        yield from self.tables.values()
        yield from (one.entry for one in self.left.values())

    def catching_up(self) -> list[str]:
        """Tables to be caught up in the next batch."""
        return [t for t, s in self.tables.items() if s.state == CATCHING_UP]

    def carried(self) -> dict[str, tuple[str, ...]]:
        """Tables by the topics that they came in."""
        found: dict[str, tuple[str, ...]] = {}
        for table, entry in sorted(self.tables.items()):
            for topic in entry.topics:
                found[topic] = (*found.get(topic, ()), table)
        return found

    def partial(self) -> frozenset[str]:
        """Tables of which an event lacked a column."""
        return frozenset(name for name, entry in self.tables.items() if entry.partial)

    def silent_topics(self) -> frozenset[str]:
        """Topics of which no table streams."""
        known = {t for s in self.tables.values() for t in s.topics}
        used = {t for s in self.tables.values() if s.state == STREAMING for t in s.topics}
        return frozenset(known - used)

    def not_streaming(self) -> frozenset[str]:
        """Tables whose events are left alone, and rows of snapshots with them."""
        return frozenset(t for t, s in self.tables.items() if s.state != STREAMING).union(self.left)


class _Version(msgspec.Struct):
    format: int = 0


def encode(state: PipelineState) -> bytes:
    """The state as JSON."""
    return msgspec.json.encode(state)


def decode(blob: bytes) -> PipelineState:
    """Inverse of `encode`.

    Raises:
        StateVersionError: it was written by a newer version of lakemark.
    """
    found = msgspec.json.decode(blob, type=_Version).format
    if found > FORMAT:
        raise StateVersionError(
            f"the checkpoint's state has format {found}, this version of lakemark reads {FORMAT}",
            hint="start the version of lakemark that wrote it, or a newer one",
        )
    state = msgspec.json.decode(blob, type=PipelineState)
    if found < 2:  # noqa: PLR2004 - it had no `complete`
        for entry in state.entries():
            entry.complete = BEFORE
    if found < 4:  # noqa: PLR2004 - tables had names, see `old_names`
        _give_texts(state, msgspec.json.decode(blob, type=old_names.OldNames))
    state.format = FORMAT
    return state


def _give_texts(state: PipelineState, old: old_names.OldNames) -> None:
    """Names every table by its text; what stood still because two had one name goes on."""
    named, state.tables = state.tables, {}
    for name, entry in named.items():
        own, *twins = old.texts(name)
        state.tables[own] = entry
        if own != name:
            entry.recorded = -1  # commits are recorded by name
        if own != text_of(*old_names.divided(name)):  # its rows are in a folder of another table
            _forget_files(entry)
            resnapshot(entry, _APART, state.batch)
        if entry.code == old_names.AMBIGUOUS:
            _resume(entry, state.batch)
        for twin in twins:
            state.tables[twin] = other = copy.deepcopy(entry)
            _forget_files(other)
            resnapshot(other, _APART, state.batch)
    state.left = {old.texts(name)[0]: left for name, left in state.left.items()}
    state.ignorable = {old.texts(name)[0]: gone for name, gone in state.ignorable.items()}
    forms = state.learnt_tables.items()
    state.learnt_tables = {old.texts(name)[0]: form for name, form in forms}


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
    """Takes a table out of the stream at the start of this batch; nothing of it is lost.

    Args:
        state: the state being made.
        table: which table.
        to: PAUSED, ERRORED or CATCHING_UP.
        start: Kafka offsets at which the batch began: the first ones not applied.
        before: the state before the batch, whose high-waters hold at these offsets.
        code: see `TableState`.
        reason: see `TableState`.
        hint: see `TableState`.
        retried: see `TableState`.
        forwarded: the batch's end offsets, if its events may be in the output topic: they are read
            again in one piece, so that a truncate among them sees all of them.
    """
    entry = state.tables.setdefault(table, TableState())
    if entry.state == STREAMING:
        entry.from_offsets = {t: dict(start.get(t, {})) for t in entry.topics}
        entry.high_waters = {t: dict(before.high_waters.get(t, {})) for t in entry.topics}
        ends = forwarded or {}
        entry.old_ends = {t: dict(ends[t]) for t in entry.topics if t in ends}
    if entry.state != to or entry.code != code:
        entry.since_batch = state.batch
    entry.state, entry.code, entry.reason = to, code, reason
    entry.hint, entry.retried, entry.skip_to = hint, retried, None


def skip(state: PipelineState, table: str, *, upto: object) -> bool:
    """A paused or errored table leaves out what it has not applied, up to these offsets at least.

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
    entry = state.tables.get(table)
    if entry is None or entry.state not in (PAUSED, ERRORED):
        return False
    if any(topic in state.regressed for topic in entry.topics):
        return False
    try:
        goals = msgspec.convert(upto, Offsets, str_keys=True)
    except msgspec.ValidationError:
        return False
    entry.skip_to = {topic: ends for topic, ends in goals.items() if topic in state.offsets}
    entry.state, entry.code, entry.retried = PAUSED, "skipping", False
    entry.reason = "its events are left out, up to the end of the log as of the command"
    entry.hint = f"it goes on by itself; to apply them after all: lakemark table resume {table}"
    entry.since_batch = state.batch
    return True


def end_skips(state: PipelineState, start: Offsets) -> list[str]:
    """Lets the tables stream whose skip ends at or before these offsets, where the batch begins.

    They apply this batch's events by the stream's own high-waters. Any of their rows may miss an
    event now, so they need a run with a sweep; an older copy of a table will do, too.

    Returns:
        their names.
    """
    ended = [t for t, entry in state.tables.items() if _is_past(entry.skip_to, start)]
    for table in ended:
        entry = state.tables[table]
        stream(entry, state.batch)
        entry.recorded = -1
        why = "events were skipped: rows may be missing, out of date or deleted since"
        resnapshot(entry, rebuilding(entry) if entry.rebuild else why, state.batch)
    return ended


def _is_past(goals: Offsets | None, start: Offsets) -> bool:
    return goals is not None and all(
        start.get(topic, {}).get(partition, 0) >= goal
        for topic, partitions in goals.items()
        for partition, goal in partitions.items()
    )


def resume(state: PipelineState, table: str) -> bool:
    """Lets a paused or errored table catch up; False if there is no such table or it runs."""
    entry = state.tables.get(table)
    if entry is None or entry.state not in (PAUSED, ERRORED):
        return False
    _resume(entry, state.batch)
    return True


def _resume(entry: TableState, batch: int) -> None:
    entry.state, entry.code, entry.reason, entry.hint = CATCHING_UP, "", "", ""
    entry.retried, entry.since_batch, entry.skip_to = False, batch, None


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
    """Lets a table be made anew from a snapshot, beside the old one; chunks under way are void.

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
        _resume(entry, state.batch)
    if entry.state in (PAUSED, ERRORED):
        if not skip(state, table, upto=upto):
            return False
    else:
        stop(state, table, to=CATCHING_UP, start=start, before=before)
    _begin_rebuild(state, entry, command, why)
    resnapshot(entry, rebuilding(entry), state.batch)
    return True


def _begin_rebuild(state: PipelineState, entry: TableState, command: str, why: str) -> None:
    """Under a name that no other rebuild has, of this checkpoint or of another one."""
    old = entry.rebuild_old or OldTable(entry.key, entry.key_ends, entry.engine)
    end_rebuild(entry)
    entry.rebuild_old = old
    made = blake2s(command.encode(errors="replace"), digest_size=6).hexdigest()
    entry.rebuild, entry.rebuild_why = f"rebuild-{made}-{state.batch}", why
    entry.fills = []  # of its rows the snapshot brings the newest, whatever older images say
    _forget_files(entry)


def lost_rebuild(state: PipelineState, entry: TableState) -> None:
    """What was made of a table so far is gone: it is made once more."""
    _begin_rebuild(state, entry, entry.rebuild, entry.rebuild_why)
    resnapshot(entry, rebuilding(entry), state.batch)


def end_rebuild(entry: TableState) -> None:
    """All that comes goes to the table itself from now on."""
    if entry.rebuild:
        entry.rebuild_over.append(entry.rebuild)
    entry.rebuild, entry.rebuild_why, entry.rebuild_old = "", "", None


def cancel_rebuild(state: PipelineState, table: str) -> bool:
    """Goes on with the old table, which missed what came meanwhile; False if there is no rebuild.

    It is to be snapshotted, or stops for what it was to be made anew for.
    """
    entry = state.tables.get(table)
    if entry is None or not entry.rebuild:
        return False
    old = entry.rebuild_old or OldTable()
    end_rebuild(entry)
    _forget_files(entry)
    entry.key, entry.key_ends, entry.engine = old.key, old.key_ends, old.engine
    resnapshot(entry, "its rebuild was cancelled: changes meanwhile are missing", state.batch)
    return True


def rebuilding(entry: TableState) -> str:
    """What readers of a table should know while it is rebuilt; empty if it is not."""
    if not entry.rebuild:
        return ""
    return f"it is being rebuilt, and readers see it as it was before: {entry.rebuild_why}"


def _forget_files(entry: TableState) -> None:
    """What is said of the files of a table that another one is being made for."""
    fresh = TableState()
    for name in (
        *("key", "key_ends", "engine", "rows", "bytes", "committed_ms", "recorded", "recorded_as"),
        *("pending", "pending_step", "pending_over", "pending_over_step"),
    ):
        setattr(entry, name, getattr(fresh, name))


def rebuilt(state: PipelineState) -> list[str]:
    """The tables whose new form is whole: every row was read since the rebuild began."""
    return [
        name
        for name, entry in state.tables.items()
        if entry.rebuild and entry.state == STREAMING and not entry.resnapshot
    ]


def new_epoch(state: PipelineState, start: Offsets) -> None:
    """Begins an epoch: at the first regressed event of each partition, else at this batch.

    Every table may hold rows of a source that is no more: all are to be snapshotted again. Tables
    that stopped because of the regression catch up, now in the new epoch.
    """
    begins = {t: dict(partitions) for t, partitions in (state.left_offsets | start).items()}
    for topic, partitions in state.regressed.items():
        begins.setdefault(topic, {}).update(partitions)
    state.epochs.append(begins)
    state.regressed = {}
    gone = "a new epoch began: rows of the source as it was before may still be here"
    for entry in state.entries():
        resnapshot(entry, gone, state.batch)
        if entry.code == "position-regressed":
            _resume(entry, state.batch)


def resnapshot(entry: TableState, reason: str, batch: int) -> None:
    """Any row may miss an event, and rows may be here that the source deleted."""
    entry.resnapshot = reason
    entry.resnapshot_since = entry.reread_missed = batch


def stream(entry: TableState, batch: int) -> None:
    """The table waits for nothing any more: what comes next of it comes with the stream."""
    entry.state, entry.code, entry.reason, entry.hint = STREAMING, "", "", ""
    entry.from_offsets, entry.high_waters, entry.old_ends = {}, {}, {}
    entry.retried, entry.since_batch, entry.skip_to = False, batch, None
    entry.asked = False


def note_reread(entry: TableState, keys: Iterable[str], *, batch: int) -> None:
    """Remembers keys whose rows must be read again, without growing for ever."""
    for key in keys:
        entry.reread_keys.pop(key, None)  # to the end
        if len(entry.reread_keys) < REREAD_LIMIT:
            entry.reread_keys[key] = batch
        else:
            entry.reread_missed = batch


def runs(entry: TableState) -> bool:
    """Whether a table goes on by itself, perhaps after a look at the catalog."""
    return entry.state in {STREAMING, CATCHING_UP} or (
        entry.state == ERRORED and entry.code == UNSEEN
    )


def can_fill(entry: TableState) -> bool:
    """Whether a table's rows can get values that no event tells, instead of being read again.

    Not one that a person or an error has stopped, nor one that is to be read again anyway; see
    also `plans.can_fill`.
    """
    is_whole = bool(entry.complete) and not entry.resnapshot and not entry.rebuild
    return runs(entry) and is_whole and entry.bytes <= FILL_BYTES


def end_fills(state: PipelineState, passed: Callable[[TableState], bytes | None]) -> None:
    """Forgets what older images get, where none can come any more.

    Args:
        state: the state being made.
        passed: the position that all partitions of a table have passed; None = not known.
    """
    for entry in state.tables.values():
        if not entry.fills or state.runs or entry.state != STREAMING or entry.pending >= 0:
            continue
        bound = passed(entry)
        entry.fills = [f for f in entry.fills if bound is None or bound < bytes.fromhex(f.upto)]


def stale(entry: TableState) -> frozenset[str] | None:
    """Keys whose rows miss an event and have not been read again yet; None = any row may."""
    return None if entry.reread_missed >= 0 else frozenset(entry.reread_keys)


def reread(entry: TableState, *, until: int, keys: Iterable[str] | None = None) -> None:
    """Rows were read again that had been asked for up to a batch: these keys, or all rows.

    With all rows, ghosts are gone too: the run ended with a sweep.
    """
    if keys is None and entry.reread_missed <= until:
        entry.reread_missed = -1
    if keys is None:
        entry.complete = BY_SNAPSHOT
    if keys is None and entry.resnapshot_since <= until:
        entry.resnapshot, entry.resnapshot_since = "", -1
    for key in list(entry.reread_keys) if keys is None else keys:
        if entry.reread_keys.get(key, until + 1) <= until:
            del entry.reread_keys[key]


def note_own_snapshot(
    entry: TableState, lsns: Iterable[int], *, rows_before: int, batch: int
) -> None:
    """Rows of the connector's own snapshot came: were they the table's first?

    A table that already had rows may keep some that the source deleted while the connector was
    away: they are in no record, so the table needs a run with a sweep.
    """
    entry.own_batch = batch
    for lsn in sorted(lsns):
        if lsn == entry.own_snapshot:
            continue
        if rows_before or entry.own_snapshot:
            entry.resnapshot = (
                "the connector took a snapshot of its own over a table that had rows: rows deleted "
                "in between may still be here"
            )
            entry.resnapshot_since = batch
        entry.own_snapshot = lsn


def any_state(state: PipelineState, wanted: str) -> bool:
    """Whether any table is in this state."""
    return any(entry.state == wanted for entry in state.tables.values())
