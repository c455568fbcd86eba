"""Records, chunks and sweeps that concern some keys, and their fates: all that a trace tells.

Pure values. What each fate means:

    applied          the row was as this says, from this commit on
    superseded       a newer change of the same batch counts instead of it
    older            the row that was there is newer
    before-truncate  a truncate, or the sweep of a snapshot, removes what is as old as this
    resent           the connector has sent it again: the partition was past it already
    dead-letter      it cannot be decoded
    waiting          the pipeline, or the table, has not come to it yet
    left-out         it was read, and no commit of the table has it: the table skipped it
    lost             of a chunk: a newer event of the key counts
    fills            of a chunk: a newer event counts, and takes from it the columns that it lacks
    void             of a chunk: this reading does not count, another one does
    compared         of a chunk: a verify run read it to compare
    none             nothing is to be done: a tombstone, or a key that is only spelt otherwise
    unknown          what would tell is not kept any more
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lakemark.model.net_change import NetChange, Step


class Fate(StrEnum):
    """The fate of something; the table is in the module's docstring."""

    APPLIED = "applied"
    SUPERSEDED = "superseded"
    OLDER = "older"
    BEFORE_TRUNCATE = "before-truncate"
    RESENT = "resent"
    DEAD_LETTER = "dead-letter"
    WAITING = "waiting"
    LEFT_OUT = "left-out"
    LOST = "lost"
    FILLS = "fills"
    VOID = "void"
    COMPARED = "compared"
    NONE = "none"
    UNKNOWN = "unknown"


Image = Mapping[str, Any]
"""A row's columns, in the lake's types."""


@dataclass(frozen=True, slots=True)
class TracedRecord:
    """A record of a change topic that concerns a key, or truncates its table.

    Attributes:
        topic, partition, offset: where it stands.
        key: canonical; empty of a truncate.
        op: Debezium's; empty of a tombstone, and of what cannot be read.
        position: in the source's log; `positions.LOWEST` where it has none.
        source_ts: microseconds since the epoch; 0 where unknown.
        transaction: its name in the log of every server; empty where it has none.
        snapshot: `source.snapshot`; `false` for an event.
        step: what it does to the key's row; None = nothing.
        image: the row that it brings, or of which it tells that it is gone.
        other_key: the key that the row had, or has now, where this is half of a key change.
        resent: the partition was past it: the replay filter drops it.
        bad, detail: why it cannot be decoded; empty if it can.
    """

    topic: str
    partition: int
    offset: int
    key: bytes
    op: str
    position: bytes
    source_ts: int = 0
    transaction: str = ""
    snapshot: str = "false"
    step: Step | None = None
    image: Image = field(default_factory=dict, repr=False)
    other_key: bytes = b""
    resent: bool = False
    bad: str = ""
    detail: str = ""

    @property
    def source(self) -> str:
        """The source of its change batch, as `resolve.Part` has it."""
        return f"{self.topic}/{self.partition}"

    @property
    def is_truncate(self) -> bool:
        """Say whether it truncates the table."""
        return self.op == "t"


@dataclass(frozen=True, slots=True)
class TracedWindow:
    """A window, as far as its rows are kept.

    Attributes:
        id: its uuid.
        position: of its open, or its close row; empty = not known.
    """

    id: str
    position: bytes = b""


@dataclass(frozen=True, slots=True)
class TracedChunk:
    """A reading of a chunk that had the key, or looked for it and found no row.

    Attributes:
        run, chunk, attempt: which.
        key: canonical.
        read_ms: when its record was written, in milliseconds since the epoch; 0 = not known.
        is_row: whether the database had a row.
        blob: the chunk's rows of the key's shard, encoded.
        lo: the window whose open row bounds it from below.
        hi: the window whose close row is behind its SELECT.
        verify: how a verify run reads it; empty = it is merged.
        void: why it does not count; empty where nobody has said so.
        image: the row, where the record has it.
        placed: its reading knew its place in the log; no rows of windows are in the log then.
    """

    run: str
    chunk: int
    attempt: int
    key: bytes
    read_ms: int
    is_row: bool
    blob: bytes = field(default=b"", repr=False)
    lo: TracedWindow | None = None
    hi: TracedWindow | None = None
    verify: str = ""
    void: str = ""
    image: Image = field(default_factory=dict, repr=False)
    placed: bool = False

    @property
    def position(self) -> bytes:
        """The position that its rows get; empty = not known."""
        return self.lo.position if self.lo else b""


@dataclass(frozen=True, slots=True)
class TracedSweep:
    """The end of a run over a whole table: what is older than its begin is gone in the source."""

    run: str
    position: bytes
    ts_ms: int = 0


Traced = TracedRecord | TracedChunk | TracedSweep


@dataclass(frozen=True, slots=True)
class MadeBy:
    """The commit that has something.

    Attributes:
        batch: of the query.
        step: `stream`, `catchup`.
        version: of the table after it; None where no commit of the table tells.
        ts_ms: when it was committed, in milliseconds since the epoch.
    """

    batch: int
    step: str
    version: int | None = None
    ts_ms: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """Something and its fate.

    Attributes:
        what: the record, chunk or sweep.
        fate: of it.
        made: the batch that took it; None where that is not known.
        by: what counts instead of it; None where that is nothing, or not known.
        letter: id of its dead letter, where one is there.
        is_now: whether the lake's row is this one.
    """

    what: Traced
    fate: Fate
    made: MadeBy | None = None
    by: Traced | None = None
    letter: str = ""
    is_now: bool = False


@dataclass(frozen=True, slots=True)
class RowAtStart:
    """The row of a key before the first thing that a trace tells.

    Attributes:
        known: whether that is known.
        net: it; None = there was none.
        image: its columns.
    """

    known: bool = False
    net: NetChange | None = None
    image: Image = field(default_factory=dict, repr=False)
