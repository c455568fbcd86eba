"""Runs: the effect of accepted signals, their progress, and the records that store it.

    run        set by                          meaning
    ---------  ------------------------------  ----------------------------------------------------
    scanning   an accepted verify-snapshot     rows of both sides are digested: which may differ?
    arming     an accepted signal, the scan    the shards are told; a batch must have begun with it
    reading    a batch with the run's start    chunks are read and settled
    completed  the last table is done          every row is in its table
    stopped    stop-snapshot                   what was read stays in the tables
    failed     an error only a person mends    as stopped; code, reason and hint say why

    table      set by                          meaning
    ---------  ------------------------------  ----------------------------------------------------
    waiting    the run; a table begun again    it is not cut into chunks yet
    scanning   its turn in a verify run        its rows are digested, see `verify_scans`
    cutting    its turn                        the database is asked where
    reading    its cut                         chunks are read and settled
    checking   its last chunk's close row      the schema and incomplete rows are looked at
    sweeping   the check, if all rows are read ghosts are being removed
    done       the check, or the sweep
    failed     an error                        the run goes on with its other tables
    stopped    stop-snapshot

A run is *paused* by pause-snapshot: no chunk of it is begun; those under way are settled.

Pure. A run is kept as a record of the compacted progress topic, and its chunks in pages, so that a
settled chunk rewrites one page and not the list of all.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, count, takewhile
from typing import Any, Final, TypeVar

import msgspec

from lakemark.errors import StateVersionError
from lakemark.model.key_ranges import WHOLE, KeyRange
from lakemark.snapshot.tally import VerifyTally
from lakemark.state.progress import PAGE_PREFIX, RUN_PREFIX

SCANNING: Final = "scanning"
ARMING: Final = "arming"
READING: Final = "reading"
COMPLETED: Final = "completed"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
ENDED: Final = frozenset({COMPLETED, STOPPED, FAILED})

WAITING: Final = "waiting"
CUTTING: Final = "cutting"
CHECKING: Final = "checking"
SWEEPING: Final = "sweeping"
DONE: Final = "done"

PAGE: Final = 20  # chunks: some 2 kB to rewrite when one of them is settled, of keys up to 500 kB

EVERYTHING: Final = WHOLE

T = TypeVar("T")

Boundary = list[str] | None


class Chunk(msgspec.Struct, array_like=True):
    """One chunk: a range of keys, or a list of keys.

    Attributes:
        after, upto: the range, see `key_ranges.KeyRange`.
        keys: the list, each key as the texts of its columns; None for a range.
        done: it is settled in every shard, or other chunks took its place.
        rows: that were settled.
        lo: hex position of its open row; empty before it is settled.
        attempt: that is reading or settling it; -1 = none. Not kept.
    """

    after: Boundary = None
    upto: Boundary = None
    keys: list[list[str]] | None = None
    done: bool = False
    rows: int = 0
    lo: str = ""
    attempt: int = -1

    @classmethod
    def of(cls, span: KeyRange) -> "Chunk":
        """Return the chunk of a range."""
        data = span.to_data()
        return cls(data["after"], data["upto"])

    @property
    def span(self) -> KeyRange:
        """The range."""
        return KeyRange(_key(self.after), _key(self.upto))


def _key(boundary: Boundary) -> tuple[str, ...] | None:
    return None if boundary is None else tuple(boundary)


class TableRun(msgspec.Struct, omit_defaults=True):
    """One table of a run.

    Attributes:
        armed: batch in or after which its present reading began.
        condition: the user's filter, as written; empty = all rows.
        keys: keys asked for, as in `Chunk`; None = all rows.
        reread: canonical keys among them that the table asked for.
        fingerprint: of the schema that its chunks were read with.
        begun: twice how often it was begun again; one more from its cut on.
        cuts: how often it was cut: its pages of chunks are named by it.
        cut_rows: rows that a chunk of its latest cut should have.
        total: rows that the database estimates; -1 = not known.
        rows, settled: rows and chunks settled so far.
        chunks: number of chunks, as far as it is cut.
        inexact: values of settled chunks that are not what the database has, see `ChunkResult`.
        first_lo: hex position of the lowest open row of its settled chunks.
        seconds: spent on it since it was begun, pauses left out.
        repairs: how often keys were read again that the reading had left incomplete.
        repaired: batch up to which such keys were asked for.
        tally: of a verify run.
        turn_ms: when its scan began, in milliseconds since the epoch; 0 = it had none.
        scanned_at: position that the stream had reached by then, as hex; empty = not known.
        scanned_after: the newest batch that was done by then.
        retried: whether the error that it failed with may pass by itself.
    """

    table: str
    state: str = WAITING
    armed: int = -1
    condition: str = ""
    keys: list[list[str]] | None = None
    reread: list[str] = []
    fingerprint: str = ""
    begun: int = 0
    cuts: int = 0
    cut_rows: int = 0
    total: int = -1
    rows: int = 0
    settled: int = 0
    chunks: int = 0
    inexact: int = 0
    first_lo: str = ""
    seconds: float = 0.0
    repairs: int = 0
    repaired: int = -1
    tally: VerifyTally = msgspec.field(default_factory=VerifyTally)
    turn_ms: int = 0
    scanned_at: str = ""
    scanned_after: int = -1
    retried: bool = False
    code: str = ""
    reason: str = ""
    hint: str = ""

    @property
    def whole(self) -> bool:
        """Say whether all rows are read, so that older ones are ghosts."""
        return not self.condition and self.keys is None

    @property
    def over(self) -> bool:
        """Say whether nothing is left to do."""
        return self.state in {DONE, FAILED, STOPPED}


class Run(msgspec.Struct, omit_defaults=True):
    """One run.

    Attributes:
        id: that of its signal.
        number: runs are accepted one after the other.
        query: id of the streaming query it was armed in: another one knows nothing of it.
        batch: the newest one that was done when this was kept: what is settled was in it or before.
        chunk_rows, parallelism, delay: as the signal or set-snapshot says; None = as configured.
        rows_per_second: that its scan may read of the source; None = any number.
        surrogate: column that orders the chunks.
        unmatched: patterns of the signal that chose no table.
        verify: rows are compared and not merged: REPORT, or REPAIR; empty = a snapshot.
        values: whether the rows' values are kept with what is found.
        automatic: it is one of `own_verifying`: nobody has asked for it.
        scanned: whether all its tables were.
        ended: milliseconds since the epoch.
        seconds: spent reading, pauses left out, up to `since` (not kept).
    """

    id: str
    tables: list[TableRun]
    number: int = 0
    state: str = ARMING
    query: str = ""
    batch: int = -1
    paused: bool = False
    chunk_rows: int | None = None
    parallelism: int | None = None
    delay: float | None = None
    rows_per_second: int | None = None
    priority: int = 0
    surrogate: str | None = None
    unmatched: list[str] = []
    verify: str = ""
    values: bool = False
    automatic: bool = False
    scanned: bool = False
    ended: int = 0
    seconds: float = 0.0
    code: str = ""
    reason: str = ""
    hint: str = ""

    @property
    def over(self) -> bool:
        """Say whether it has ended."""
        return self.state in ENDED

    def names(self) -> tuple[str, ...]:
        """Return the names of its tables."""
        return tuple(one.table for one in self.tables)


def run_key(run: str) -> bytes:
    """Return the key of a run's progress record."""
    return RUN_PREFIX + run.encode()


def page_key(run: str, table: TableRun, page: int) -> bytes:
    """Return the key of the progress record of a page of a table's chunks."""
    return PAGE_PREFIX + msgspec.json.encode([run, table.table, table.cuts, page])


def page_keys(run: str, table: TableRun) -> list[bytes]:
    """Return the keys of the progress records of all chunks of a table."""
    return [page_key(run, table, page) for page in range(-(-table.chunks // PAGE))]


def page_value(chunks: list[Chunk]) -> bytes:
    """Return the value of such a record; chunks that are done are stored without their keys."""
    return msgspec.json.encode([_kept(chunk) for chunk in chunks])


def _kept(chunk: Chunk) -> Chunk:
    keys = [] if chunk.done and chunk.keys else chunk.keys
    return Chunk(chunk.after, chunk.upto, keys, chunk.done, chunk.rows, chunk.lo)


def loaded(records: Mapping[bytes, bytes]) -> Iterator[tuple[Run, dict[str, list[Chunk]]]]:
    """Yield the runs of the progress topic, with the chunks of their tables; oldest run first.

    Pages are stored before the run that counts on them, a page with new chunks before one in which
    they take another's place. So pages may be ahead of their run, never behind: a table's progress
    is counted anew. A table is left out if pages of it are missing.

    Records have no version: a field that an older lakemark did not write has its default, one that
    a newer lakemark adds is left out, and the checkpoint's version refuses what cannot be read like
    that.

    Raises:
        StateVersionError: it cannot be read all the same.
    """
    pages: dict[tuple[Any, ...], list[Chunk]] = {}
    for key, value in records.items():
        if key.startswith(PAGE_PREFIX):
            place = tuple(msgspec.json.decode(key.removeprefix(PAGE_PREFIX)))
            pages[place] = _decoded(value, list[Chunk])
    runs = [_decoded(value, Run) for key, value in records.items() if key.startswith(RUN_PREFIX)]
    for run in sorted(runs, key=lambda one: one.number):
        chunks: dict[str, list[Chunk]] = {}
        for table in run.tables:
            found = (pages.get((run.id, table.table, table.cuts, n), []) for n in count())
            whole = list(chain.from_iterable(takewhile(bool, found))) if table.chunks else []
            if len(whole) >= table.chunks and not table.over:
                chunks[table.table] = whole
                _count(table, whole)
        yield run, chunks


def _decoded(value: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise StateVersionError(
            "what the progress topic keeps of the snapshots cannot be read",
            hint="start the version of lakemark that wrote it, or a newer one",
        ) from error


def _count(table: TableRun, chunks: list[Chunk]) -> None:
    table.chunks = len(chunks)
    table.settled = sum(chunk.done for chunk in chunks)
    table.rows = sum(chunk.rows for chunk in chunks)
    table.first_lo = min((chunk.lo for chunk in chunks if chunk.lo), default="")
