"""Windows against the log: the memory of one shard while a run is active, and its decisions.

Pure: `fold` takes the state of a shard and the records of one batch, and gives the next state and
the outputs. It reads no clock, no broker and no file, so a repeated batch gives the same bytes.

While no run is armed nothing is remembered and the state is not rewritten. A run is armed by a
`run-start` record and disarmed by its `run-end`; in between the shard keeps, of the run's tables:

* touches (`key_log`): per key its newest position and its *barrier*, that of the newest c or d;
* newest truncates, blind spots (changes whose key cannot be read) and snapshots of the
  connector's own: per table the newest position;
* windows: id, position of the open row (or one before it: `open_position`), position of the close
  row and the server that wrote it;
* attempts (`chunks`): parts and manifests of chunks that are not decided yet.

A window row announces the oldest window that any chunk may still use: touches at or below that
window's open row are forgotten, and `forgotten_below` says so. A chunk may only be decided here if
its `lo` is the open row of a window this shard has seen since the run was armed, and not below
`forgotten_below`; a batch whose offsets are kept has begun with the run's start before its first
open row is written, so every touch above such a `lo` is in that batch or later, and remembered.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from lakemark.model import change_batch, control, positions
from lakemark.model.comparisons import Comparison
from lakemark.model.control import (
    TABLE_MODE,
    AttemptsBegin,
    ChunkComplete,
    ChunkVoid,
    Fence,
    Record,
    RunEnd,
    RunStart,
    Sweep,
    WindowPlace,
)
from lakemark.reconcile import chunks, key_log
from lakemark.reconcile.chunks import Attempt, Bounds, Closed, Header, Manifest, Settled
from lakemark.reconcile.outputs import (
    COMPARISON,
    RESTART,
    SETTLED,
    SIZE,
    SURVIVORS,
    SWEPT,
    Output,
    ShardOutcome,
    Size,
    Swept,
)
from lakemark.reconcile.state import (
    ArmedRun,
    ShardState,
    Window,
    decode_state,
    encode_state,
    joined,
    parted,
)
from lakemark.source import changed_keys
from lakemark.source.changed_keys import ShardMark, WindowRow

CONTROL: Final = "control"
TOUCHES: Final = changed_keys.TOUCHES_KIND
MARKS: Final = changed_keys.MARKS_KIND
CHUNK: Final = "chunk"
FOLDED: Final = frozenset({TOUCHES, MARKS, CHUNK, CONTROL})
"""Kinds of rows that a shard takes; it lets others pass."""


_OF: Final = "|"  # between a connector and a topic: no name of either has it


class _Named(msgspec.Struct):
    connector: str = ""


class _WindowData(msgspec.Struct):
    run: str = ""
    oldest: str = ""
    server: str = ""
    bound: str = ""


Row = tuple[str, str, int, bytes]
"""What a shard takes: kind, source, its place there, content."""


def fold(
    state: bytes | None, records: Mapping[str, Sequence[bytes]], *, shard: int
) -> ShardOutcome:
    """Fold one batch into one shard's state.

    Args:
        state: the blob of the batch before; None at the beginning.
        records: blobs by kind, each kind in a fixed order: CONTROL records (JSON, in offset order),
            TOUCHES and MARKS as `source.changed_keys` packs them, CHUNK parts (four bytes of the
            header's length, the header as JSON, a packet).
        shard: number of the shard.

    Order of effects: control records arm, disarm and close; touches, marks and parts are
    remembered; attempts that are complete are decided; then what the newest window row allows is
    forgotten.

    Raises:
        StateVersionError: the state was written by another version of lakemark.
    """
    now = decode_state(state)
    if not now.runs and not records.get(CONTROL):
        return ShardOutcome(None, [])
    outputs = _control(now, records.get(CONTROL, ()), shard)
    if now.runs:
        found = [m for blob in records.get(MARKS, ()) for m in changed_keys.unpack_marks(blob)]
        _remember(now, records.get(TOUCHES, ()))
        found += _said_windows(records.get(CONTROL, ()))
        oldest = _mark(now, sorted(found, key=_mark_order), outputs)
        _take_parts(now, records.get(CHUNK, ()), shard)
        outputs += _decide(now, shard)
        if oldest is not None:
            _forget(now, oldest)
    else:
        now = ShardState(forgotten_below=max(now.forgotten_below, now.highest))
    # An empty state is written too: None would leave the run armed.
    blob = None if state is None and now == ShardState() else encode_state(now)
    parts = sum(len(attempt.parts) for attempt in now.attempts.values())
    size = Size(shard, sum(now.rows), parts, len(blob or b""))
    outputs.append(Output(SIZE, "", msgspec.json.encode(size)))
    return ShardOutcome(None if blob == state else blob, outputs)


def fold_rows(shard: int, rows: list[Row], before: bytes | None) -> ShardOutcome | None:
    """Fold one shard's share of a micro-batch, in any order: sorted by kind, source and offset.

    Each connector's rows are folded into a memory of its own.

    Args:
        shard: its number.
        rows: of the kinds `FOLDED`.
        before: its state; None = it has none yet.

    Returns:
        None if there are no rows: the state stays.
    """
    records: dict[str, dict[str, list[bytes]]] = {}
    for kind, source, _, blob in sorted(rows):
        own = records.setdefault(_connector_of(kind, source, blob), {})
        own.setdefault(kind, []).append(bytes(blob))
    if not records:
        return None
    states = parted(before)
    folded = {name: fold(states.get(name), own, shard=shard) for name, own in records.items()}
    new = {name: one.state for name, one in folded.items() if one.state is not None}
    outputs = [out for _, one in sorted(folded.items()) for out in one.outputs]
    return ShardOutcome(joined(states | new) if new else None, outputs)


def source_of(connector: str, place: str) -> str:
    """Return the source of a row of `fold_rows` that a stretch of a topic brings.

    Args:
        connector: qualifier of the topic's; empty for the only one.
        place: topic and partition.
    """
    return f"{connector}{_OF}{place}" if connector else place


def _connector_of(kind: str, source: str, blob: bytes) -> str:
    """Return the connector of whose log a row speaks; empty for the only one."""
    if kind == CONTROL:
        return _named(blob)
    if kind == CHUNK:
        return _named(blob[4 : 4 + int.from_bytes(blob[:4])])
    connector, found, _ = source.partition(_OF)
    return connector if found else ""


def _named(text: bytes) -> str:
    try:
        return msgspec.json.decode(text, type=_Named).connector
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""


def _said_windows(records: Iterable[bytes]) -> Iterator[ShardMark]:
    """Yield the windows of a database whose reads know their place: control records, no rows."""
    for blob in records:
        record = control.decode(blob)
        if not isinstance(record, WindowPlace):
            continue
        position = position_of(record.position)
        if position != positions.LOWEST:
            data = _WindowData(record.run, record.oldest, record.server)
            end = record.window.rpartition("-")[2]
            text = msgspec.json.encode(data).decode()
            row = WindowRow(record.window, f"snapshot-window-{end}", text)
            yield ShardMark(changed_keys.WINDOW, "", position, msgspec.json.encode(row))


def _mark_order(mark: ShardMark) -> tuple[bytes, str, str, bytes]:
    return mark.position, mark.kind, mark.table, mark.data


def arm(runs: set[str], record: Record) -> None:
    """Note in `runs` a run that a control record arms or disarms, as `fold` does."""
    match record:
        case RunStart(run=run) if run:
            runs.add(run)
        case RunEnd(run=run):
            runs.discard(run)


def touched(state: bytes | None) -> pa.RecordBatch:
    """Return the touches in a state, one row per table and key, see `key_log.remembered`."""
    return _touched(decode_state(state))


def _touched(now: ShardState) -> pa.RecordBatch:
    return key_log.newest([key_log.read(segment) for segment in now.segments])


def _control(now: ShardState, records: Iterable[bytes], shard: int) -> list[Output]:
    """Arm, disarm and close. Other types' records are for others, unreadable ones for nobody."""
    outputs: list[Output] = []
    for blob in records:
        match control.decode(blob):
            case RunStart(run=run) as record if run:
                _arm(now, record)
            case RunEnd(run=run):
                if now.runs.pop(run, None) is not None:
                    _drop_tables(now)
            case ChunkComplete() as record:
                _manifest(now, record)
            case ChunkVoid(attempt=attempt):
                _close(now, attempt)
            case AttemptsBegin(attempt=attempt):
                _close_below(now, attempt)
            case Fence(position=position):
                now.fence = max(now.fence, position_of(position))
            case Sweep() as record if shard == 0:
                outputs += _sweep(now, record)
    return outputs


def _arm(now: ShardState, record: RunStart) -> None:
    if not now.runs:
        now.closed = Closed(below=record.attempt or 0)
    tables, mode = sorted(set(record.tables)), record.mode or TABLE_MODE
    windows, verify = record.windows or record.run, record.verify or ""
    armed = ArmedRun(tables, mode, windows, verify, bool(record.values))
    run = now.runs.setdefault(record.run, armed)
    run.mode = mode  # output topics may have been configured meanwhile, or taken out


def position_of(text: str) -> bytes:
    """Return a position as records have it, in hex; `LOWEST` for what is none."""
    try:
        position = bytes.fromhex(text)
    except ValueError:
        return positions.LOWEST
    return position if positions.is_one(position) else positions.LOWEST


def _sweep(now: ShardState, record: Sweep) -> list[Output]:
    """Return a truncate below which nothing of the source is: a run has written every row since."""
    run, position = now.runs.get(record.run), position_of(record.position)
    if run is None or record.table not in run.tables or position == positions.LOWEST:
        return []
    packet = change_batch.truncates([position], table=record.table)
    swept = Swept(record.run, record.table, record.position)
    return [
        Output(
            SURVIVORS,
            record.table,
            change_batch.encode(packet),
            f"{change_batch.SWEEPS}{record.run}",
        ),
        Output(SWEPT, record.table, msgspec.json.encode(swept)),
    ]


def _manifest(now: ShardState, record: ChunkComplete) -> None:
    manifest = Manifest(
        record.run,
        record.table,
        record.chunk,
        record.attempt,
        record.parts,
        record.lo,
        record.hi,
        record.server or "",
        record.position or "",
    )
    attempt = _attempt(now, manifest)
    if attempt is not None:
        attempt.manifest = manifest


def _attempt(now: ShardState, of: Manifest | Header) -> Attempt | None:
    """Return the attempt, if it may still be decided."""
    run = now.runs.get(of.run)
    if run is None or of.table not in run.tables or of.attempt in now.closed:
        return None
    return now.attempts.setdefault(of.attempt, Attempt(of.run, of.table, of.chunk))


def _take_parts(now: ShardState, blobs: Iterable[bytes], shard: int) -> None:
    for blob in blobs:
        size = int.from_bytes(blob[:4])
        try:
            header = msgspec.json.decode(blob[4 : 4 + size], type=Header)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        attempt = _attempt(now, header) if header.shard == shard else None
        if attempt is not None:
            attempt.parts.setdefault(header.part, blob[4 + size :])


def _close(now: ShardState, attempt: int) -> None:
    now.attempts.pop(attempt, None)
    now.closed.add(attempt)


def _close_below(now: ShardState, attempt: int) -> None:
    now.closed.raise_to(attempt)
    now.attempts = {n: of for n, of in now.attempts.items() if n not in now.closed}


def _drop_tables(now: ShardState) -> None:
    """Forget tables that no run reads any more, and attempts of runs that are over."""
    tables = now.tables()
    kept = [key_log.of_tables(key_log.read(segment), tables) for segment in now.segments]
    _set_segments(now, [batch for batch in kept if batch.num_rows])
    for found in (now.truncated_at, now.blind, now.own, now.decided):
        for table in set(found) - tables:
            del found[table]
    for attempt in [n for n, of in now.attempts.items() if of.run not in now.runs]:
        _close(now, attempt)


def _remember(now: ShardState, blobs: Sequence[bytes]) -> None:
    # A late touch below `forgotten_below` beats no chunk that can still be decided.
    fresh = key_log.fresh(blobs, tables=now.tables(), above=now.forgotten_below)
    if not fresh:
        return
    new = key_log.newest(fresh)
    now.highest = max(now.highest, key_log.highest(new))
    batches = [key_log.read(segment) for segment in now.segments]
    while batches and batches[-1].num_rows < 2 * new.num_rows:
        new = key_log.newest([batches.pop(), new])
    _set_segments(now, [*batches, new], same=len(batches))


def _set_segments(now: ShardState, batches: list[pa.RecordBatch], *, same: int = 0) -> None:
    """Replace the segments; the first `same` of them are the old ones."""
    now.segments = now.segments[:same] + [changed_keys.encode_touches(b) for b in batches[same:]]
    now.rows = [batch.num_rows for batch in batches]


def _mark(now: ShardState, marks: Sequence[ShardMark], outputs: list[Output]) -> bytes | None:
    """Take in truncates, blind spots, own snapshots and windows; marks come in position order.

    Returns:
        the position below which touches may be forgotten, if it has risen.
    """
    tables = now.tables()
    oldest = now.forgotten_below
    for mark in marks:
        if mark.kind == changed_keys.WINDOW:
            oldest = max(oldest, _window(now, mark))
            continue
        if mark.table not in tables:
            continue
        found = {changed_keys.TRUNCATE: now.truncated_at, changed_keys.BLIND: now.blind}.get(
            mark.kind, now.own
        )
        if mark.position <= found.get(mark.table, b""):
            continue
        found[mark.table] = mark.position
        if mark.kind == changed_keys.OWN_SNAPSHOT:
            outputs.append(Output(RESTART, mark.table, mark.table.encode()))
        else:
            now.highest = max(now.highest, mark.position)
    return oldest if oldest > now.forgotten_below else None


def _window(now: ShardState, mark: ShardMark) -> bytes:
    """Take in an open or close row of ours; rows of others, Debezium's own too, are ignored.

    Returns:
        the open row's position of the window that it announces as the oldest in use.
    """
    try:
        row = msgspec.json.decode(mark.data, type=WindowRow)
        data = msgspec.json.decode(row.data, type=_WindowData)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return b""
    uuid, _, end = row.id.rpartition("-")
    ours = any(data.run == run.windows for run in now.runs.values())
    if not ours or not uuid or row.type != f"snapshot-window-{end}":
        return b""
    if mark.position < now.forgotten_below:
        return b""  # a replay of a window that nobody uses any more
    window = now.windows.setdefault(uuid, Window())
    if end == "open":
        window.open = window.open or open_position(mark.position, data.bound)
    elif not window.close:
        window.close = mark.position
        window.server = data.server
    now.highest = max(now.highest, mark.position)
    oldest = now.windows.get(data.oldest)
    return oldest.open if oldest is not None else b""


def open_position(position: bytes, bound: str) -> bytes:
    """Return the position that a window's chunks are compared with: the open row's, or one before.

    Rows in a data file have the position that the open row says (`Watermark.position`):
    where transactions have committed between the two, their events beat the chunk's rows.
    """
    least = position_of(positions.epoch_of(position).hex() + bound)
    return position if least == positions.LOWEST else min(position, least)


def _decide(now: ShardState, shard: int) -> list[Output]:
    """Decide the attempts that are complete, in the order of their numbers."""
    outputs: list[Output] = []
    touched: pa.RecordBatch | None = None
    for number in sorted(now.attempts):
        attempt = now.attempts[number]
        span = _span(now, attempt) if attempt.whole(shard) else None
        if attempt.manifest is None or span is None:
            continue
        low, high = span
        settled = Settled(
            attempt.run, attempt.table, attempt.chunk, number, shard,
            lo=low.open.hex(), hi=high.close.hex(),
        )  # fmt: skip
        void = _doubt(now, attempt, low, high)
        if void:
            settled = msgspec.structs.replace(settled, void=void)
        else:
            if touched is None:
                touched = _touched(now)
            truncated_at = now.truncated_at.get(attempt.table, b"")
            of_table = key_log.of_tables(touched, [attempt.table])
            decision = chunks.decide(attempt.parts, low.open, of_table, truncated_at=truncated_at)
            if decision.blob is not None:
                outputs.append(_rows(now, number, shard, low.open, decision))
            settled = msgspec.structs.replace(
                settled,
                rows=decision.rows, survivors=decision.survivors, fills=decision.fills,
            )  # fmt: skip
            if now.runs[attempt.run].is_ordered:
                by_run = now.decided.setdefault(attempt.table, {})
                by_run[attempt.run] = max(by_run.get(attempt.run, b""), low.open)
        outputs.append(Output(SETTLED, attempt.table, msgspec.json.encode(settled)))
        _close(now, number)
    return outputs


def _rows(
    now: ShardState, number: int, shard: int, position: bytes, decision: chunks.Decision
) -> Output:
    """Return the rows of a decided attempt: to be merged, or to be compared."""
    attempt, blob = now.attempts[number], decision.blob or b""
    source, run = f"chunk/{number}", now.runs[attempt.run]
    if not run.verify:
        return Output(SURVIVORS, attempt.table, blob, source)
    comparison = Comparison(
        attempt.run, attempt.table, attempt.chunk, number, shard, position, run.verify, blob,
        decision.lost, run.values,
    )  # fmt: skip
    return Output(COMPARISON, attempt.table, msgspec.msgpack.encode(comparison), source)


def _span(now: ShardState, attempt: Attempt) -> tuple[Window, Window] | None:
    """Return the windows of an attempt's `lo` and `hi`, once all has come that it waits for.

    A read that knows its place in the log waits for its windows, too: only the close row tells
    that the server which it read has lived on.
    """
    manifest = attempt.manifest
    low = now.windows.get(manifest.lo) if manifest else None
    high = now.windows.get(manifest.hi) if manifest else None
    if low is None or high is None or not low.open or not high.close:
        return None
    if now.runs[attempt.run].waits and now.fence < high.close:
        return None
    if manifest is not None and manifest.position:
        low = Window(open=position_of(manifest.position))
    return low, high


def _doubt(now: ShardState, attempt: Attempt, low: Window, high: Window) -> str:
    """Return why an attempt is void; empty if it counts."""
    manifest, table = attempt.manifest, attempt.table
    if manifest is not None and (not manifest.server or manifest.server != high.server):
        return chunks.RESTARTED  # what the SELECT saw may not have outlived the server
    others = now.decided.get(table, {})
    bounds = Bounds(
        forgotten_below=now.forgotten_below,
        blind=now.blind.get(table, b""),
        own=now.own.get(table, b""),
        other=max((lo for run, lo in others.items() if run != attempt.run), default=b""),
    )
    return bounds.doubt(low.open)


def _forget(now: ShardState, below: bytes) -> None:
    """Drop touches at or below the open row of the oldest window, and windows before it.

    A window that an attempt names is kept: the attempt is then void, and does not wait for ever.
    """
    now.forgotten_below = below
    manifests = [attempt.manifest for attempt in now.attempts.values()]
    named = {uuid for one in manifests if one is not None for uuid in (one.lo, one.hi)}
    now.windows = {
        uuid: window
        for uuid, window in now.windows.items()
        if (window.open or window.close) >= below or uuid in named
    }
    batches = [key_log.read(segment) for segment in now.segments]
    kept = [batch.filter(key_log.is_above(batch.column("position"), below)) for batch in batches]
    if sum(now.rows) > sum(batch.num_rows for batch in kept):
        _set_segments(now, [batch for batch in kept if batch.num_rows])
