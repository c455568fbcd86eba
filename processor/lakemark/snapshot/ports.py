"""What the coordinator needs of the world, one protocol for each purpose; and what it is told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lakemark.connectors.database import OpenWindow, Proof, Watermark
from lakemark.model.control import ControlRecord
from lakemark.model.key_ranges import Condition, KeyRange
from lakemark.model.offsets import Offsets
from lakemark.model.schema import TableSchema
from lakemark.snapshot.chunks import ChunkResult, ChunkSpec
from lakemark.snapshot.notifications import Notification
from lakemark.snapshot.signals import Rejection, SignalRecord


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a table is cut: its chunks, the schema they will have, and about how many rows."""

    spans: tuple[KeyRange, ...]
    fingerprint: str
    rows: int = -1


@dataclass(frozen=True, slots=True)
class Committed:
    """How far the connector has committed, and where the change topics ended after that.

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
    `complete`, `rebuild`: see `tables.TableState`.
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


@dataclass(frozen=True, slots=True)
class Stream:
    """What the stream says after a batch.

    Attributes:
        query: id of the streaming query.
        batch: the batch.
        armed: runs whose start is in that batch or before, or in the one that has begun since.
        tables: by ``schema.table``; others are not known to it yet.
        offsets: end offsets of the change topics in that batch.
        epoch: number of the epoch that its newest positions have.
    """

    query: str
    batch: int
    armed: frozenset[str]
    tables: Mapping[str, StreamedTable]
    offsets: Offsets = field(default_factory=dict)
    epoch: int = 0


class ProgressStore(Protocol):
    """Keeps how far runs have come, and says it: the progress, control and notifications topics.

    Raises (all): LakemarkError, and what was to be said is said again.
    """

    def load(self) -> dict[bytes, bytes]:
        """The progress that was kept."""

    def save(self, records: Mapping[bytes, bytes | None]) -> None:
        """Keeps progress; None removes. Returns when it is acknowledged."""

    def control(self, records: Sequence[ControlRecord]) -> None:
        """Writes control records, in order. Returns when they are acknowledged."""

    def notify(self, notifications: Sequence[Notification]) -> None:
        """Writes notifications. Returns when they are acknowledged."""


class SignalSource(Protocol):
    """Where signals come from, and what they are checked against.

    Raises (all): LakemarkError: the brokers, Connect or the database are away.
    """

    def signals(self) -> list[SignalRecord]:
        """Signals that have come since, from where the last process had read them, unread."""

    def refusal(self) -> Rejection | None:
        """Why no snapshot can be taken at all; the id is empty."""

    def tables(self) -> dict[str, TableSchema]:
        """The tables that the connector captures, as the database has them now."""

    def watched(self, table: str) -> bool:
        """Whether changes of a table that no event tells are noticed from now on."""

    def reasons_against(self, table: str) -> Rejection | None:
        """Why a table must not be read beside its events; the id is empty.

        Raises:
            LakemarkError: the database is away, or knows no such table: see
                `signal_validation.against`.
        """


class SourceReader(Protocol):
    """Asks the database about tables, and reads them.

    Raises (all but `read`): LakemarkError.
    """

    def condition(self, table: str, text: str) -> Condition:
        """A user's filter, parsed for a table; raises RefusedError."""

    def texts(self, table: str, keys: Sequence[str]) -> dict[str, list[str]]:
        """By canonical key, its texts for `ChunkSpec.keys`; none of one that has no such texts."""

    def blocker(self, proof: Proof) -> str:
        """Whom a read waits for that shows no window, in words for people."""

    def cut(
        self,
        table: str,
        chunk_rows: int,
        *,
        condition: Condition | None,
        surrogate: str | None,
        within: KeyRange,
    ) -> Cut:
        """Where to cut a table, or a range of it. Takes its time: for `submit`."""

    def fingerprint(self, table: str) -> str:
        """The fingerprint of a table's schema now. Takes its time: for `submit`."""

    def partial_keys(self, table: str) -> tuple[str, ...]:
        """Canonical keys of rows of the lake with unavailable columns. For `submit`."""

    def read(self, spec: ChunkSpec) -> ChunkResult:
        """Reads a chunk; never raises. Takes its time: for `submit`."""


class WindowLog(Protocol):
    """Writes into the log, and asks how far the connector has read it.

    Raises (both): LakemarkError.
    """

    def tick(self, *, closes: OpenWindow | None, opens: OpenWindow | None) -> Watermark | Proof:
        """Closes a window and opens the next, in one transaction; for `submit_tick`."""

    def committed(self, epoch: int) -> Committed:
        """How far the connector has committed, in positions of an epoch; for `submit`."""


class Executor(Protocol):
    """Time, and work in other threads."""

    def submit(self, work: Callable[[], None]) -> None:
        """Has work done in another thread."""

    def submit_tick(self, work: Callable[[], None]) -> None:
        """Has a tick done in the thread for ticks, whatever else is under way."""

    def monotonic(self) -> float:
        """Seconds, for waiting."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, for people."""

    def uuid(self) -> str:
        """A new window's name."""


class Ports(ProgressStore, SignalSource, SourceReader, WindowLog, Executor, Protocol):
    """All of them, as one object may be; each part of the coordinator takes what it uses."""
