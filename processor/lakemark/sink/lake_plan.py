"""The plan of a merge task for the lake and each table, and the outcome of each table.

The driver makes the plans (`plans.lake_plan`), the task applies a batch by them (`apply`), and the
driver finishes what is left to it (`TableFormat.finish`). The next state follows from outcomes
(`advance`).
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

import msgspec

from lakemark.model import commit_note
from lakemark.model.commit_note import Span
from lakemark.model.evolution import Evolution
from lakemark.model.fills import Fill
from lakemark.settings.config import DELTA, Metadata
from lakemark.settings.schema_policy import FOLLOWS, SchemaPolicy
from lakemark.sink.table_sink import MergeResult

STREAM: Final = "stream"
CUT: Final = "truncate"
OUTCOME: Final = "outcome"  # kind of a row of a batch's results


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The driver's facts of a table: see `tables.TableState`.

    Attributes:
        metadata: members that its `_cdc` has beside the usual ones.
        engine: that writes it; empty = the one that small tables have.
        settled: position that every partition of the table has passed.
        applied_close: highest close row of the chunks that earlier batches applied.
        partial: whether any event of the table so far lacked a column.
        stale: canonical keys whose rows miss an event; None = any row may.
        key: columns by which the rows that are there are told apart; empty = not known.
        written: whether an earlier batch of this query has had it in hand.
        key_ends: what the ends of its key columns' ranges stand for, see `model.key`.
        recorded: batch of the newest commit that the table must have; -1 = not known.
        recorded_as: last part of the app id under which it is recorded.
        policy: what it does when the schema of its source changes.
        fills: what images get that are older than a column.
        seen: the columns that the newest look at the catalog has found; None = it does not matter.
    """

    path: str
    _: KW_ONLY
    deletes: str = "hard"
    metadata: tuple[Metadata, ...] = ()
    engine: str = ""
    truncated_at: bytes | None = None
    pending: int = -1
    pending_step: str = STREAM
    pending_over: int = -1
    pending_over_step: str = STREAM
    settled: bytes | None = None
    applied_close: bytes | None = None
    partial: bool = False
    stale: frozenset[str] | None = frozenset()
    key: tuple[str, ...] = ()
    written: bool = False
    key_ends: tuple[str, ...] = ()
    recorded: int = -1
    recorded_as: str = ""
    policy: SchemaPolicy = FOLLOWS
    fills: tuple[Fill, ...] = ()
    seen: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class LakePlan:
    """The plan for writing the tables of a batch.

    Attributes:
        query: id of the streaming query: part of the app id.
        batch: batch id: part of the version recorded with each commit.
        step: `stream` or `catchup`: part of the app id.
        tables: plans by table id.
        new_table: the plan of a table not seen before.
        stopped: tables that do not stream: chunks of theirs are not applied.
        begins: so many tables of a merge task may begin in this step; None = all.
        options: storage options of the lake.
        format: name of the tables' format, see `formats`.
        offsets: that the step reads, by topic and partition (``topic/0``).
    """

    query: str
    batch: int
    step: str
    new_table: Callable[[str], TablePlan]
    tables: dict[str, TablePlan] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()
    begins: int | None = None
    format: str = DELTA
    offsets: Mapping[str, Span] = field(default_factory=dict)

    def is_new(self, table: str) -> bool:
        """Return whether no earlier batch of the query has had the table in hand."""
        known = self.tables.get(table)
        return known is None or not known.written

    def app_id(self, table: str, step: str = "") -> str:
        """The app id under which the commits of this step, or of `step`, are recorded."""
        return f"{self.query}/{table}/{step or self.step}"

    def note(self, sources: Iterable[str]) -> str:
        """Return what a table's commits say of the batch, see `commit_note`.

        Args:
            sources: of what is applied to the table, as `resolve.Part` has them.
        """
        found = commit_note.note_of(self.batch, self.step, sources, self.offsets)
        return commit_note.encode(found)

    def cut_id(self, table: str) -> str:
        """The app id under which this step's truncates of the table are recorded."""
        return f"{self.app_id(table)}/{CUT}"


class TableOutcome(msgspec.Struct, omit_defaults=True):
    """The outcome of one table; `code` is empty where all went well.

    Attributes:
        step: the step that it is of.
        version: what is recorded with its commits, see `table_sink.version_of`.
        partial: whether an event lacked a column.
        pending: whether halves of key changes wait beside the table now.
        lost: halves of earlier batches are not there any more.
        made: whether there was no table before the batch, or one that had not been written yet.
        rows_before: rows that the table had before this query's first batch of it.
        reread: keys whose rows only the source can make whole again.
        put_off: nothing was done: more tables begin than the batch has time for.
        unfinished: the driver does the rest, see `TableSink.merges`.
        needs: Arrow schema (IPC) that the driver must make the table fit first.
        engine: that has written it; empty = nothing was written.
        staged: the write set that waits for the driver, see `TableSink.stage`; empty = none.
        committed_ms: when rows of it were committed, in milliseconds since the epoch; 0 = none.
        key_ends: what the ends of its key columns' ranges stand for in this batch.
        recorded_as: last part of the app id under which the batch is recorded; empty = it is not,
            because it has nothing for the table.
    """

    table: str
    code: str = ""
    reason: str = ""
    hint: str = ""
    retried: bool = False
    trace: str = ""
    skipped: bool = False
    step: str = STREAM
    version: int = 0
    truncate: bytes = b""
    put_off: bool = False
    unfinished: bool = False
    needs: bytes = b""
    staged: bytes = b""
    key: list[str] = msgspec.field(default_factory=list)
    made: bool = False
    rows_before: int = 0
    rows: int = -1
    bytes: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unavailable: int = 0
    partial: bool = False
    reread: list[str] = msgspec.field(default_factory=list)
    pending: bool = False
    lost: bool = False
    seconds: float = 0.0
    changes: list[str] = msgspec.field(default_factory=list)
    engine: str = ""
    committed_ms: int = 0
    key_ends: list[str] = msgspec.field(default_factory=list)
    recorded_as: str = ""

    def evolved(self, evolution: Evolution) -> None:
        """Note how the table was made, or altered."""
        self.changes = [f"added {f.name}" for f in evolution.added]
        self.changes += [f"widened {n}: {a} to {b}" for n, a, b in evolution.widened]

    def truncated(self, gone: MergeResult, *, recorded: bool = True) -> None:
        """Note that a truncate has removed rows, or marked them deleted; `recorded` if it is."""
        self.recorded_as = f"{self.step}/{CUT}" if recorded else self.recorded_as
        self.deleted += gone.deleted + gone.updated
        if gone.deleted or gone.updated:
            self.committed()

    def merged(self, done: MergeResult, *, recorded: bool = True) -> None:
        """Note that the write set is in the table; one without rows is not `recorded`."""
        self.recorded_as = self.step if recorded else self.recorded_as
        self.inserted, self.updated = done.inserted, done.updated
        self.deleted += done.deleted
        self.rows, self.bytes = done.rows, done.bytes
        if done.inserted or done.updated or done.deleted:
            self.committed()

    def committed(self) -> None:
        """Rows have been committed, just now or by a process that died since."""
        self.committed_ms = int(time.time() * 1000)
