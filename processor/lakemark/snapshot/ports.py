"""The coordinator's ports to the outside, one protocol for each purpose, and their values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lakemark.connectors.database import OpenWindow, Proof, Watermark
from lakemark.connectors.reached_place import NOWHERE, ReachedPlace
from lakemark.model.checksums import ChecksumPlan, NumberRanges, RangeSums
from lakemark.model.control import ControlRecord
from lakemark.model.key_ranges import Condition, KeyRange
from lakemark.model.offsets import Offsets
from lakemark.model.proof import UNPROVED, TableProof
from lakemark.model.row_digest import Flags, RowDigests, Words
from lakemark.model.schema import TableSchema
from lakemark.snapshot.chunks import ChunkResult, ChunkSpec
from lakemark.snapshot.notifications import Notification
from lakemark.snapshot.signals import Rejection, SignalRecord


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut of a table: its chunks, the schema they will have, and about how many rows."""

    spans: tuple[KeyRange, ...]
    fingerprint: str
    rows: int = -1


@dataclass(frozen=True, slots=True)
class Committed:
    """The position that the connector has committed, and the change topics' ends after that.

    Attributes:
        position: of the last event that is in Kafka with all before it; empty = it does not say.
        ends: end offsets by topic and partition.
    """

    position: bytes
    ends: Offsets


@dataclass(frozen=True, slots=True)
class StreamedTable:
    """A table as the stream has it after a batch, see `tables.TableState`.

    `code`, `reason` and `hint` say why it has stopped until a person mends it; empty otherwise.
    `passed` is the position that every partition of its topics has passed; empty = not known.
    `partial`: whether an event of it may have lacked a column.
    `complete`, `rebuild`: see `tables.TableState`. `written`: whether there is a Delta table.
    `proof`: see `model.proof`.
    """

    streaming: bool = True
    code: str = ""
    reason: str = ""
    hint: str = ""
    own_batch: int = -1
    resnapshot_since: int = -1
    reread: Mapping[str, int] | None = None
    reread_missed: int = -1
    passed: bytes = b""
    partial: bool = True
    complete: str = ""
    rebuild: str = ""
    written: bool = True
    proof: TableProof = UNPROVED


@dataclass(frozen=True, slots=True)
class Stream:
    """The stream's state after a batch.

    Attributes:
        query: id of the streaming query.
        batch: the batch.
        armed: runs whose start is in that batch or before, or in the one that has begun since.
        tables: by ``schema.table``; others are not known to it yet.
        offsets: end offsets of the change topics in that batch.
        epoch: number of the epoch that its newest positions have.
        reached: the highest position that any partition has passed, and what is known there.
    """

    query: str
    batch: int
    armed: frozenset[str]
    tables: Mapping[str, StreamedTable]
    offsets: Offsets = field(default_factory=dict)
    epoch: int = 0
    reached: ReachedPlace = NOWHERE

    def place_of(self, table: str) -> bytes:
        """Return a position whose changes the database had by now, as events show; empty if none.

        The newest of the connector's log that is known, or else of the table's own events.
        """
        known = self.tables.get(table)
        return max(self.reached.position, known.passed if known else b"")


@dataclass(frozen=True, slots=True)
class SummedTable:
    """The way in which a table's rows are summed.

    Attributes:
        plan: how each is hashed.
        ranges: whose sums are compared.
    """

    plan: ChecksumPlan
    ranges: NumberRanges


@dataclass(frozen=True, slots=True)
class RowsWithin:
    """Rows whose numbers are in some ranges.

    Attributes:
        order: the column of numbers.
        ranges: all that there are.
        chosen: by range, whether its rows count.
    """

    order: str
    ranges: NumberRanges
    chosen: Flags


@dataclass(frozen=True, slots=True)
class KeptSums:
    """The sums of a table of the lake, and how many bytes of columns were read for them."""

    sums: RangeSums
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KeptDigests:
    """The digests of a table of the lake, and how many bytes of columns were read for them."""

    digests: RowDigests
    read_bytes: int = 0


class ProgressStore(Protocol):
    """The store of runs' progress: the progress, control and notifications topics.

    Raises (all): LakemarkError; the caller writes the same records again.
    """

    def load(self) -> dict[bytes, bytes]:
        """Return the stored progress."""

    def save(self, records: Mapping[bytes, bytes | None]) -> None:
        """Store progress; None removes. Returns when it is acknowledged."""

    def control(self, records: Sequence[ControlRecord]) -> None:
        """Write control records, in order. Returns when they are acknowledged."""

    def notify(self, notifications: Sequence[Notification]) -> None:
        """Write notifications. Returns when they are acknowledged."""


class SignalSource(Protocol):
    """The source of signals, and of the facts that they are checked against.

    Raises (all): LakemarkError: the brokers, Connect or the database are away.
    """

    def signals(self) -> list[SignalRecord]:
        """Return the signals since the last call; at first, since the last process."""

    def refusal(self) -> Rejection | None:
        """Return why no snapshot can be taken at all (the id is empty); None if one can."""

    def tables(self) -> dict[str, TableSchema]:
        """Return the tables that the connector captures, as the database has them now."""

    def watched(self, table: str) -> bool:
        """Say whether changes of a table that no event tells are noticed from now on."""

    def reasons_against(self, table: str) -> Rejection | None:
        """Return why a table must not be read beside its events (the id is empty); None if it may.

        Raises:
            LakemarkError: the database is away, or knows no such table: see
                `signal_validation.against`.
        """


class SourceReader(Protocol):
    """The source database, for questions about tables and for reading them.

    Raises (all but `read`): LakemarkError.
    """

    def condition(self, table: str, text: str) -> Condition:
        """Parse a user's filter for a table; raises RefusedError."""

    def texts(self, table: str, keys: Sequence[str]) -> dict[str, list[str]]:
        """Return texts for `ChunkSpec.keys` by canonical key; keys without are left out."""

    def blocker(self, proof: Proof) -> str:
        """Return in words which transaction a read waits for that shows no window."""

    def cut(
        self,
        table: str,
        chunk_rows: int,
        *,
        condition: Condition | None,
        surrogate: str | None,
        within: KeyRange,
    ) -> Cut:
        """Cut a table, or a range of it, into chunks. Takes its time: for `submit`."""

    def fingerprint(self, table: str) -> str:
        """Return the fingerprint of a table's schema now. Takes its time: for `submit`."""

    def partial_keys(self, table: str) -> tuple[str, ...]:
        """Return canonical keys of rows of the lake with unavailable columns. For `submit`."""

    def kept(self, table: str) -> pa.Schema | None:
        """Return the columns of a table of the lake that its source has, too. For `submit`.

        Returns:
            under the source's names, in the lake's types; None without a table.
        """

    def summed_table(self, table: str, kept: pa.Schema) -> SummedTable | None:
        """Return how a table is summed, by ranges of about so many rows of the lake. For `submit`.

        Returns:
            None where its rows have to be read.
        """

    def kept_sums(self, table: str, summed: SummedTable) -> KeptSums:
        """Return the sums of a table's rows in the lake. For `submit`."""

    def kept_digests(
        self, table: str, kept: pa.Schema, within: RowsWithin | None = None
    ) -> KeptDigests:
        """Return the digests of a table's rows in the lake, in these columns. For `submit`.

        Args:
            table: its name.
            kept: the columns.
            within: the rows that are digested; None for all.
        """

    def kept_keys(self, table: str, suspects: Words) -> list[bytes]:
        """Return the canonical keys of the lake's rows whose digests are these. For `submit`.

        Args:
            table: its name.
            suspects: sorted.
        """

    def found(self, run: str, table: str) -> Mapping[str, int]:
        """Return how many rows a verify run has found not to be alike, by kind. For `submit`."""

    def read(self, spec: ChunkSpec) -> ChunkResult:
        """Read a chunk; never raises. Takes its time: for `submit`."""


class WindowLog(Protocol):
    """The database's log, written to, and the connector's position in it.

    Raises (both): LakemarkError.
    """

    def tick(
        self, *, closes: OpenWindow | None, opens: OpenWindow | None, reached: ReachedPlace
    ) -> Watermark | Proof:
        """Close a window and open the next, see `WindowWriter.write`; for `submit_tick`."""

    def committed(self, epoch: int) -> Committed:
        """Return the position that the connector has committed, in an epoch; for `submit`."""


class Executor(Protocol):
    """Time, and work in other threads."""

    def submit(self, work: Callable[[], None]) -> None:
        """Have work done in another thread."""

    def submit_tick(self, work: Callable[[], None]) -> None:
        """Have a tick done in the thread for ticks, whatever else is under way."""

    def monotonic(self) -> float:
        """Return seconds, for waiting."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, to be shown."""

    def uuid(self) -> str:
        """Return a new window's name."""


class Ports(ProgressStore, SignalSource, SourceReader, WindowLog, Executor, Protocol):
    """All ports, as one object may have them; each part of the coordinator takes those it uses."""
