"""Chunks against the log: the rows of a snapshot chunk that count, and the fills that others give.

Pure. A chunk is one SELECT over some keys. Its rows reach a shard as parts: packets, columnar,
never a Python object per row. An *attempt* is one reading of one chunk; a shard decides it when
all of these are there, in whatever order they came:

| what | says | from |
| --- | --- | --- |
| manifest | number of parts per shard, windows of `lo` and `hi`, server read | control |
| parts | the rows of this shard | chunks topic |
| window rows | positions of `lo` and `hi`, the server that wrote the close row | the log |
| fence | every event up to `hi` has been applied (order mode only) | control |

A row survives if its key has no touch above `lo`; its version is `lo`, never `hi`. One that does
not survive gives the columns that the winning row lacks (a *fill*), unless an incarnation of the
key began or ended above `lo`: the row may be of another one than the fill would meet, also of one
whose events are still on their way.

A key of an explicit list that the database does not have comes as a delete, and survives likewise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model import change_batch, net_change, positions
from lakemark.model.control import Whole
from lakemark.reconcile import key_log

# Why an attempt is void: its chunk is read again.
BLIND: Final = "unreadable-key"
FORGOTTEN: Final = "window-forgotten"
OVERLAP: Final = "overlapping-run"
OWN_SNAPSHOT: Final = "own-snapshot"
RESTARTED: Final = "server-restarted"


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """Key of a record of the chunks topic.

    Attributes:
        run: id of the run.
        table: ``schema.table``.
        chunk: number of the chunk within run and table.
        attempt: number of this reading, unique within the pipeline and increasing.
        shard: whose rows these are.
        part: counted from 0 within attempt and shard.
        connector: whose table it is, where there are several: see `Connector.qualifier`.
    """

    run: str
    table: str
    chunk: Whole
    attempt: Whole
    shard: Whole
    part: Whole
    connector: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """Control record `chunk`: all parts of an attempt are written.

    Attributes:
        parts: number of parts by shard; a shard that is not named has none.
        lo: window whose open row bounds the chunk from below.
        hi: window whose close row is the first written after the SELECT ended.
        server: life of the server that was read; empty in records of older versions.
        position: hex, of a read that knows its place in the log: it takes that of `lo`.
    """

    run: str
    table: str
    chunk: Whole
    attempt: Whole
    parts: dict[str, Whole]
    lo: str
    hi: str
    server: str = ""
    position: str = ""


class Attempt(msgspec.Struct):
    """An attempt's manifest and parts, as far as they have come to a shard."""

    run: str
    table: str
    chunk: int
    parts: dict[int, bytes] = {}
    manifest: Manifest | None = None

    def whole(self, shard: int) -> bool:
        """Say whether all rows of a shard are here."""
        return self.manifest is not None and len(self.parts) >= self.manifest.parts.get(
            str(shard), 0
        )


class Closed(msgspec.Struct):
    """Attempts that are over: late parts of them are dropped. All below `below`, and some above."""

    below: int = 0
    above: list[int] = []

    def __contains__(self, attempt: int) -> bool:
        return attempt < self.below or attempt in self.above

    def add(self, attempt: int) -> None:
        """Close one attempt."""
        if attempt not in self:
            self.above.append(attempt)
            self._settle()

    def raise_to(self, below: int) -> None:
        """Close all attempts below this one."""
        self.below = max(self.below, below)
        self._settle()

    def _settle(self) -> None:
        while self.below in self.above:
            self.below += 1
        self.above = sorted(n for n in self.above if n >= self.below)


class Settled(msgspec.Struct, frozen=True):
    """The record that a shard has decided an attempt.

    Attributes:
        rows: that the shard had.
        survivors, fills: that go to the table.
        void: why none does, and the chunk is to be read again; empty if it counts.
        lo, hi: positions (hex) of the open and the close row.
    """

    run: str
    table: str
    chunk: int
    attempt: int
    shard: int
    rows: int = 0
    survivors: int = 0
    fills: int = 0
    void: str = ""
    lo: str = ""
    hi: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The positions of a chunk's table that bound a decision (empty = none).

    Attributes:
        forgotten_below: touches at or below it may be forgotten.
        blind: of the newest event whose key cannot be read.
        own: of the newest snapshot of the connector's own.
        other: highest `lo` of chunks of other runs (order mode only).
    """

    forgotten_below: bytes
    blind: bytes = b""
    own: bytes = b""
    other: bytes = b""

    def doubt(self, lo: bytes) -> str:
        """Return why a chunk from `lo` must be read again; empty if it can be decided."""
        if lo < self.forgotten_below:
            return FORGOTTEN
        if self.blind > lo:
            return BLIND
        if self.own and not positions.taken_before(self.own, lo):
            return OWN_SNAPSHOT
        if self.other > lo:
            return OVERLAP
        return ""


@dataclass(frozen=True, slots=True)
class Decision:
    """A whole attempt's rows in one shard, decided.

    Attributes:
        blob: the packet of survivors and fills, encoded.
        rows: that were read; keys without a row are none.
        survivors, fills: number of rows of the packet.
        lost: rows, and keys without one, that newer events decide.
    """

    blob: bytes | None = None
    rows: int = 0
    survivors: int = 0
    fills: int = 0
    lost: int = 0


def decide(
    parts: Mapping[int, bytes], lo: bytes, touched: pa.RecordBatch, *, truncated_at: bytes
) -> Decision:
    """Decide which rows survive, and which fill. Only keys are looked at, and rows that lose.

    Args:
        parts: packets of upserts (rows) and deletes (keys without a row), by number.
        lo: position of the open row.
        touched: the touches of the table that the shard remembers, see `key_log.remembered`.
        truncated_at: position of the table's newest truncate; empty = none.

    A chunk without any row has an empty packet: it says which columns the table has.
    """
    if not parts:
        return Decision()
    blobs = [parts[at] for at in sorted(parts)]
    newer = touched.filter(key_log.is_above(touched.column("position"), lo))
    names = ("action", "key") if newer.num_rows else ("action",)
    heads = [change_batch.columns(blob, *names) for blob in blobs]
    read = sum(_count(pc.equal(head.column("action"), net_change.UPSERT)) for head in heads)
    if truncated_at and positions.below_truncate(lo, truncated_at):
        return Decision(rows=read, lost=sum(head.num_rows for head in heads))
    rows = sum(head.num_rows for head in heads)
    settled: list[tuple[bytes, change_batch.Mask | None, change_batch.Mask | None]] = []
    lost = fills = 0
    for blob, head in zip(blobs, heads, strict=True):
        out = fill = None
        if newer.num_rows:
            beaten_by = pc.index_in(head.column("key"), value_set=newer.column("key"))
            out = pc.is_valid(beaten_by).to_numpy()
            fill = out & _same(head, beaten_by, newer, lo)
            lost, fills = lost + int(out.sum()), fills + int(fill.sum())
        settled.append((blob, out, fill))
    return Decision(change_batch.settled(settled, lo), read, rows - lost, fills, lost)


def _same(
    rows: pa.Table, beaten_by: pa.ChunkedArray, newer: pa.RecordBatch, lo: bytes
) -> change_batch.Mask:
    """Mark, of rows that lost, those of an incarnation that is the same at `lo` and now."""
    barriers = newer.column("barrier").take(beaten_by.combine_chunks())
    same = pc.and_(
        pc.invert(key_log.is_above(barriers, lo)),
        pc.equal(rows.column("action"), net_change.UPSERT),
    )
    found: change_batch.Mask = same.to_numpy()
    return found


def _count(mask: pa.ChunkedArray) -> int:
    return pc.sum(mask).as_py() or 0
