"""Windows against touches: what one shard remembers of the log while a run is active.

Pure: `fold` takes the state of a shard and the records of one batch, and gives the next state and
what goes out. It reads no clock, no broker and no file, so a repeated batch gives the same bytes.

While no run is armed nothing is remembered and the state is not rewritten. A run is armed by a
`run-start` record and disarmed by its `run-end`; in between the shard keeps, of the run's tables:

* touches: per key its newest position, its *barrier* (position of the newest c or d) and, if the
  barrier is a d with a new key, that key;
* floors (truncates), blind spots (changes whose key cannot be read) and snapshots of the
  connector's own: per table the newest position;
* windows: id, position of the open row, position of the close row.

A window row announces the oldest window that any chunk may still use: touches at or below that
window's open row are forgotten, and `forgotten_below` says so. A chunk may only be decided here if
its `lo` is the open row of a window this shard has seen since the run was armed, and not below
`forgotten_below`; the run's start has gone through a committed batch before its first open row is
written, so every touch above such a `lo` is remembered.

The state is one blob: magic, version, msgpack. Older versions are read, newer ones refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemark import positions
from lakemark.errors import StateVersionError
from lakemark.source import touches
from lakemark.source.touches import Mark, WindowRow

VERSION: Final = 1
_MAGIC: Final = b"LKMW"

CONTROL: Final = "control"
TOUCHES: Final = touches.TOUCHES_KIND
MARKS: Final = touches.MARKS_KIND
CHUNK: Final = "chunk"

RESTART: Final = "restart"

RUN_START: Final = "run-start"
RUN_END: Final = "run-end"

REMEMBERED: Final = pa.schema(
    [
        pa.field("table", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("position", pa.binary(positions.WIDTH), nullable=False),
        # LOWEST where no c or d of the key is remembered.
        pa.field("barrier", pa.binary(positions.WIDTH), nullable=False),
        pa.field("new_key", pa.binary()),
    ]
)
_PARTS: Final = np.dtype([("epoch", ">u4"), ("major", ">u8"), ("minor", ">u8")])


class Window(msgspec.Struct):
    """One window: positions of its rows; empty while a row has not been seen."""

    open: bytes = b""
    close: bytes = b""


class State(msgspec.Struct):
    """What one shard remembers.

    Attributes:
        runs: tables of each armed run.
        forgotten_below: a chunk with a lower `lo` cannot be decided any more.
        highest: highest position of anything remembered since the first run was armed.
        segments: touches as Arrow IPC of `REMEMBERED`, each at most half as large as the one
            before, so that a touch is rewritten only a logarithmic number of times.
        rows: number of touches per segment.
        floors, blind, own: newest truncate, unreadable key, own snapshot per table.
        windows: by uuid.
    """

    runs: dict[str, list[str]] = {}
    forgotten_below: bytes = positions.LOWEST
    highest: bytes = positions.LOWEST
    segments: list[bytes] = []
    rows: list[int] = []
    floors: dict[str, bytes] = {}
    blind: dict[str, bytes] = {}
    own: dict[str, bytes] = {}
    windows: dict[str, Window] = {}

    def tables(self) -> set[str]:
        """Tables that an armed run reads."""
        return {table for tables in self.runs.values() for table in tables}


class Output(msgspec.Struct, frozen=True):
    """Something a shard says.

    Attributes:
        kind: RESTART: the connector began to read a table anew while a run reads it: the run
            starts that table again. Every shard says so; the receiver counts one per position.
        table: the table concerned.
        blob: of a RESTART the 20 bytes of the snapshot's position.
    """

    kind: str
    table: str
    blob: bytes


class Folded(msgspec.Struct, frozen=True):
    """Outcome of one batch in one shard: `state` is None if the old one stays as it is."""

    state: bytes | None
    outputs: list[Output]


class _Control(msgspec.Struct):
    type: str = ""
    run: str = ""
    tables: list[str] = []


class _WindowData(msgspec.Struct):
    run: str = ""
    oldest: str = ""


def fold(state: bytes | None, records: Mapping[str, Sequence[bytes]]) -> Folded:
    """One batch of one shard.

    Args:
        state: the blob of the batch before; None at the beginning.
        records: blobs by kind, each kind in a fixed order: CONTROL records (JSON, in offset order),
            TOUCHES and MARKS as `source.touches` packs them. CHUNK parts are not decided in this
            version: a chunk that is never settled is read again, so nothing is lost.

    Order of effects: runs are armed and disarmed, then touches and marks are remembered, then what
    the newest window row allows is forgotten.

    Raises:
        StateVersionError: the state was written by a newer lakemark.
    """
    now = decode_state(state)
    if not now.runs and not records.get(CONTROL):
        return Folded(None, [])
    _control(now, records.get(CONTROL, ()))
    outputs: list[Output] = []
    if now.runs:
        marks = [m for blob in records.get(MARKS, ()) for m in touches.unpack_marks(blob)]
        _remember(now, records.get(TOUCHES, ()))
        outputs = _mark(now, sorted(marks, key=lambda m: (m.position, m.kind, m.table, m.data)))
    else:
        now = State(forgotten_below=max(now.forgotten_below, now.highest))
    blob = None if now == State() else encode_state(now)
    return Folded(None if blob == state else blob, outputs)


def arm(runs: set[str], record: object) -> None:
    """Notes in `runs` which run a decoded control record arms or disarms, as `fold` does."""
    try:
        control = msgspec.convert(record, type=_Control)
    except msgspec.ValidationError:
        return
    if control.type == RUN_START and control.run:
        runs.add(control.run)
    elif control.type == RUN_END:
        runs.discard(control.run)


def encode_state(state: State) -> bytes:
    """The blob of a state: magic, version, msgpack."""
    return _MAGIC + VERSION.to_bytes(2) + msgspec.msgpack.encode(state)


def decode_state(blob: bytes | None) -> State:
    """Inverse of `encode_state`; None is the empty state.

    Raises:
        StateVersionError: the blob is of a newer version, or no state at all.
    """
    if blob is None:
        return State()
    version = int.from_bytes(blob[4:6])
    if blob[:4] != _MAGIC or not version:
        raise StateVersionError(
            "the checkpoint's reconcile state was not written by lakemark",
            hint="point `checkpoint` at a folder of its own",
        )
    if version > VERSION:
        raise StateVersionError(
            f"the checkpoint's reconcile state has version {version}, this lakemark reads up to "
            f"{VERSION}: it was written by a newer one",
            hint="run the version of lakemark that wrote the checkpoint, or a newer one",
        )
    try:
        return msgspec.msgpack.decode(blob[6:], type=State)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StateVersionError(
            "the checkpoint's reconcile state is damaged",
            hint="restore the checkpoint from a copy, or start a new one and run a snapshot",
        ) from error


def remembered(state: bytes | None) -> pa.RecordBatch:
    """The touches in a state, one row per table and key, schema `REMEMBERED`."""
    return _newest([_read(segment) for segment in decode_state(state).segments])


def _control(now: State, records: Iterable[bytes]) -> None:
    """Arms and disarms. Records of other types are for others; unreadable ones for nobody."""
    ended = False
    for blob in records:
        try:
            record = msgspec.json.decode(blob, type=_Control)
        except (msgspec.MsgspecError, ValueError):
            continue
        if record.type == RUN_START and record.run:
            now.runs.setdefault(record.run, sorted(set(record.tables)))
        elif record.type == RUN_END:
            ended |= now.runs.pop(record.run, None) is not None
    if ended:
        _drop_tables(now)


def _drop_tables(now: State) -> None:
    """Forgets tables that no run reads any more."""
    tables = now.tables()
    kept = [_of_tables(_read(segment), tables) for segment in now.segments]
    _set_segments(now, [batch for batch in kept if batch.num_rows])
    for found in (now.floors, now.blind, now.own):
        for table in set(found) - tables:
            del found[table]


def _remember(now: State, blobs: Sequence[bytes]) -> None:
    tables = now.tables()
    fresh = []
    for blob in blobs:
        batch = _of_tables(touches.unpack_touches(blob), tables)
        # A late touch that low beats no chunk that can still be decided.
        batch = batch.filter(_above(batch.column("position"), now.forgotten_below))
        if batch.num_rows:
            fresh.append(_as_remembered(batch))
    if not fresh:
        return
    new = _newest(fresh)
    now.highest = max(now.highest, _highest(new))
    batches = [_read(segment) for segment in now.segments]
    while batches and batches[-1].num_rows < 2 * new.num_rows:
        new = _newest([batches.pop(), new])
    _set_segments(now, [*batches, new], same=len(batches))


def _set_segments(now: State, batches: list[pa.RecordBatch], *, same: int = 0) -> None:
    """Replaces the segments; the first `same` of them are the old ones."""
    now.segments = now.segments[:same] + [touches.encode_touches(b) for b in batches[same:]]
    now.rows = [batch.num_rows for batch in batches]


def _mark(now: State, marks: Sequence[Mark]) -> list[Output]:
    """Floors, blind spots, own snapshots and windows; marks come in position order."""
    tables = now.tables()
    outputs = []
    for mark in marks:
        if mark.kind == touches.WINDOW:
            _window(now, mark)
            continue
        if mark.table not in tables:
            continue
        found = {touches.TRUNCATE: now.floors, touches.BLIND: now.blind}.get(mark.kind, now.own)
        if mark.position <= found.get(mark.table, b""):
            continue
        found[mark.table] = mark.position
        if mark.kind == touches.OWN_SNAPSHOT:
            outputs.append(Output(RESTART, mark.table, mark.position))
        else:
            now.highest = max(now.highest, mark.position)
    return outputs


def _window(now: State, mark: Mark) -> None:
    """An open or close row of one of our runs: rows of others, Debezium's own too, are ignored."""
    try:
        row = msgspec.json.decode(mark.data, type=WindowRow)
        data = msgspec.json.decode(row.data, type=_WindowData)
    except (msgspec.MsgspecError, ValueError):
        return
    uuid, _, end = row.id.rpartition("-")
    if data.run not in now.runs or not uuid or row.type != f"snapshot-window-{end}":
        return
    if mark.position < now.forgotten_below:
        return  # a replay of a window that nobody uses any more
    window = now.windows.setdefault(uuid, Window())
    if end == "open":
        window.open = window.open or mark.position
    else:
        window.close = window.close or mark.position
    now.highest = max(now.highest, mark.position)
    oldest = now.windows.get(data.oldest)
    if oldest is not None and oldest.open > now.forgotten_below:
        _forget(now, oldest.open)


def _forget(now: State, below: bytes) -> None:
    """Drops touches at or below the open row of the oldest window, and windows before it."""
    now.forgotten_below = below
    now.windows = {
        uuid: window
        for uuid, window in now.windows.items()
        if (window.open or window.close) >= below
    }
    batches = [_read(segment) for segment in now.segments]
    kept = [batch.filter(_above(batch.column("position"), below)) for batch in batches]
    if sum(now.rows) > sum(batch.num_rows for batch in kept):
        _set_segments(now, [batch for batch in kept if batch.num_rows])


def _read(segment: bytes) -> pa.RecordBatch:
    return touches.unpack_touches(segment)


def _of_tables(batch: pa.RecordBatch, tables: set[str]) -> pa.RecordBatch:
    column = batch.column("table")
    wanted = pc.is_in(column.dictionary, pa.array(sorted(tables), pa.string()))
    if pc.all(wanted).as_py():
        return batch
    return batch.filter(wanted.take(column.indices))


def _as_remembered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Touches of the log as remembered ones: the barrier is the position of a c or d."""
    none = pa.scalar(positions.LOWEST, pa.binary(positions.WIDTH))
    barrier = pc.if_else(batch.column("is_barrier"), batch.column("position"), none)
    return pa.RecordBatch.from_arrays(
        [
            batch.column("table"),
            batch.column("key"),
            batch.column("position"),
            barrier,
            batch.column("new_key"),
        ],
        schema=REMEMBERED,
    )


def _newest(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One row per table and key: newest position, newest barrier with its new key.

    At equal positions the later row wins: those of one key come in the order of their offsets.
    """
    if not batches:
        return _empty()
    rows = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]
    group = _groups(rows)
    by_position = _last_of_each(group, rows.column("position"))
    by_barrier = _last_of_each(group, rows.column("barrier"))
    newest, barrier = rows.take(pa.array(by_position)), rows.take(pa.array(by_barrier))
    return pa.RecordBatch.from_arrays(
        [
            newest.column("table"),
            newest.column("key"),
            newest.column("position"),
            barrier.column("barrier"),
            barrier.column("new_key"),
        ],
        schema=REMEMBERED,
    )


def _empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([], field.type) for field in REMEMBERED], schema=REMEMBERED
    )


def _groups(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """A number per row, equal for equal table and key."""
    keys = rows.column("key").dictionary_encode()
    table = rows.column("table").indices.to_numpy().astype(np.int64)
    numbers: npt.NDArray[np.int64] = table * max(1, len(keys.dictionary)) + keys.indices.to_numpy()
    return numbers


def _last_of_each(
    group: npt.NDArray[np.int64], column: pa.FixedSizeBinaryArray
) -> npt.NDArray[np.int64]:
    """Row with the highest position of each group, groups in a fixed order."""
    parts = _parts(column)
    order = np.lexsort(
        (
            parts["minor"].astype(np.uint64),
            parts["major"].astype(np.uint64),
            parts["epoch"].astype(np.uint32),
            group,
        )
    )
    ends = np.flatnonzero(np.diff(group[order], append=-1))
    last: npt.NDArray[np.int64] = order[ends]
    return last


def _parts(column: pa.FixedSizeBinaryArray) -> npt.NDArray[np.void]:
    data = column.buffers()[1]
    start = column.offset * positions.WIDTH
    return np.frombuffer(data, _PARTS, count=len(column), offset=start)


def _above(column: pa.FixedSizeBinaryArray, bound: bytes) -> pa.Array:
    epoch, major, minor = positions.unpack(bound)
    parts = _parts(column)
    above = (parts["epoch"] > epoch) | (
        (parts["epoch"] == epoch)
        & ((parts["major"] > major) | ((parts["major"] == major) & (parts["minor"] > minor)))
    )
    return pa.array(above)


def _highest(batch: pa.RecordBatch) -> bytes:
    column = batch.column("position")
    zeros = np.zeros(len(column), np.int64)
    return bytes(column[int(_last_of_each(zeros, column)[0])].as_py())
