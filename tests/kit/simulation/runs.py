"""Runs, chunks, attempts and windows of a simulated coordinator."""

from dataclasses import dataclass, field

import pyarrow as pa

from lakemark.connectors.database import Watermark
from lakemark.connectors.postgres.visibility import Snapshot
from lakemark.model import change_batch
from tests.kit.log_model import TABLE, Row, table_schema
from tests.kit.simulation.alters import ADD, NEW, OLD, RENAME, altered
from tests.kit.simulation.source import Transaction

ROW = pa.struct(table_schema().arrow())
KEY = change_batch.KeyColumns(("id",))
NO_POSITION = bytes(20)


@dataclass
class Window:
    """A window of a chain.

    Attributes:
        begun: when its transaction began, on the coordinator's own counter.
        acknowledged: when its commit had returned.
        watermark: the proof of its open row, from then on.
        wal: where the log ended when its transaction began.
    """

    uuid: str
    number: int
    chain: str
    begun: int
    acknowledged: int = 1 << 60
    watermark: Watermark | None = None
    wal: int = 0

    def is_at_or_after(self, other: "Window | None") -> bool:
        """Whether its open row is surely not before the other's."""
        return other is None or self is other or self.begun > other.acknowledged


@dataclass
class Tick:
    """A transaction that closes a window and opens the next."""

    transaction: Transaction
    closes: Window | None
    opens: Window


@dataclass
class Chain:
    """The windows that some runs share."""

    name: str
    current: Window | None = None
    tick: Tick | None = None


@dataclass(eq=False)
class Attempt:
    """One reading of one chunk.

    Attributes:
        absent: keys of an explicit list that were not there.
        seen_at: newest visible commit per key when it was read.
        parts: not written yet, as records of the chunks topic.
        settled: shards that have settled it.
    """

    number: int
    chunk: "Chunk"
    snapshot: Snapshot
    rows: dict[int, Row]
    absent: list[int]
    seen_at: dict[int, int]
    lo: Window | None = None
    hi: Window | None = None
    parts: list[tuple[bytes, bytes]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    manifest: bool = False
    settled: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Chunk:
    """Some keys of a run's table; `explicit` ones are deleted where the database has no row."""

    run: "Run"
    number: int
    keys: frozenset[int]
    explicit: bool
    attempt: Attempt | None = None
    lo: bytes = b""
    done: bool = False


@dataclass(eq=False)
class Run:
    """A run, from its start record to its end record."""

    name: str
    chain: Chain
    whole: bool
    chunks: list[Chunk]
    started_at: int  # offset of its start record
    until: int  # batch after which what is listed is not known to it
    since: int  # windows from this number on are open after it was armed
    armed: bool = False
    sweeping: int = -1  # offset of its sweep record
    swept: bool = False
    ending: bool = False
    verify: str = ""  # REPORT or REPAIR: its rows are compared with the lake's, and not merged


def packet_of(rows: list[tuple[int, Row | None]]) -> pa.Table:
    images = [row if row is not None else {"id": key} for key, row in rows]
    kinds = {RENAME if OLD not in row else ADD for row in images if NEW in row}
    image = pa.struct(altered(*kinds).arrow()) if kinds else ROW
    count = len(rows)
    return change_batch.build_simple(
        keys=pa.array([b"[%d]" % key for key, _ in rows], pa.binary()),
        ops=pa.array(["d" if row is None else "r" for _, row in rows], pa.string()),
        position=pa.array([NO_POSITION] * count, pa.binary()),
        source_ts=pa.array([0] * count, pa.int64()),
        force=pa.array([False] * count, pa.bool_()),
        rows=pa.array(images, image),
        table=TABLE,
        key_columns=KEY,
    )
