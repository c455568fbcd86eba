"""Chunks of snapshots that had a key, from lakemark's own topics, as far as these are kept."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters.registry import converter_of
from lakemark.kafka.records import read_all
from lakemark.model import change_batch, control, net_change
from lakemark.model.control import ChunkComplete, ChunkVoid, RunStart, Sweep, WindowPlace
from lakemark.model.events import Kind
from lakemark.ops.trace.facts_log import Since, StretchReader
from lakemark.ops.trace.traced import TracedChunk, TracedSweep, TracedWindow
from lakemark.reconcile import window
from lakemark.reconcile.chunks import Header
from lakemark.settings.config import Config
from lakemark.snapshot.chunks import parts_of
from lakemark.source import changed_keys

MOST_PARTS: Final = 2_000
"""Records of the chunks topic that are read where nobody says since when: 1.8 GB at most."""
MOST_SIGNALS: Final = 200_000
_PARTS: Final = 50  # in memory at a time
_EARLIER: Final = timedelta(hours=1)  # than its chunk a window was opened, at most
_UNFINISHED: Final = "its reading did not come to its end"


class _Window(msgspec.Struct):
    bound: str = ""


@dataclass(slots=True)
class _Said:
    """The chunks of a table, as control records tell of them.

    Attributes:
        complete: by attempt, that all its parts are written.
        void: by attempt, why it does not count.
        runs: by their ids.
        sweeps: in their order.
        windows: positions by a window row's id.
    """

    complete: dict[int, ChunkComplete] = field(default_factory=dict)
    void: dict[int, str] = field(default_factory=dict)
    runs: dict[str, RunStart] = field(default_factory=dict)
    sweeps: list[TracedSweep] = field(default_factory=list)
    windows: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part:
    """One key of a part of a chunk: the part's header and packet, and the packet's row of it."""

    header: Header
    packet: bytes
    row: Mapping[str, Any]


def chunks_of(
    log: StretchReader, *, table: str, keys: frozenset[bytes], signal_topic: str, since: Since
) -> tuple[list[TracedChunk], list[TracedSweep]]:
    """Return the chunks that had one of the keys, and the sweeps of the table.

    Args:
        log: reads the topics.
        table: its name.
        keys: canonical.
        signal_topic: of the connector's signal table; empty without one.
        since: where reading begins.

    Raises:
        DependencyError: Kafka does not answer.
    """
    said = _said(log.config, log.plan.identity.qualifier, table)
    if not said.complete and not said.void:
        return [], said.sweeps
    since = Since(since.moment)  # offsets are those of the table's topic
    spans = log.spans([log.config.topics.chunks], since, most=MOST_PARTS)
    found: list[_Part] = []
    for batches in log.batches(spans, size=_PARTS):
        for batch in batches:
            found += _parts(batch.to_pylist(), log.plan.identity.qualifier, table, keys)
    if found and signal_topic:
        _read_windows(log, signal_topic, _begin(said, found), said)
    return [_chunk(said, one) for one in found], said.sweeps


def _said(config: Config, own: str, table: str) -> _Said:
    said = _Said()
    for record in read_all(config, config.topics.control):
        found = control.decode(record.value or b"")
        if found is None or found.connector != own:
            continue
        match found:
            case ChunkComplete(table=name, attempt=attempt) if name == table:
                said.complete[attempt] = _dated(found, record.timestamp_ms)
            case ChunkVoid(attempt=attempt):
                said.void[attempt] = found.reason or "it does not count"
            case RunStart(run=run):
                said.runs.setdefault(run, _dated(found, record.timestamp_ms))
            case Sweep(table=name, run=run, position=position) if name == table:
                at = window.position_of(position)
                said.sweeps.append(TracedSweep(run, at, found.ts_ms or record.timestamp_ms or 0))
            case WindowPlace(window=name, position=position):
                said.windows.setdefault(name, window.position_of(position))
    return said


def _dated(record: Any, written_ms: int | None) -> Any:
    """Return a control record that says when it was written."""
    return record if record.ts_ms else msgspec.structs.replace(record, ts_ms=written_ms or 0)


def _parts(
    records: Iterable[Mapping[str, Any]], own: str, table: str, keys: frozenset[bytes]
) -> Iterator[_Part]:
    """Yield the parts that have one of the keys, once for each of them.

    A record that is none of a chunk's is passed over, as the shards do.
    """
    wanted = pa.array(sorted(keys), pa.binary())
    for record in records:
        for _, blob in parts_of(record):
            size = int.from_bytes(blob[:4])
            try:
                header = msgspec.json.decode(blob[4 : 4 + size], type=Header)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
            packet = blob[4 + size :]
            if (header.table, header.connector) != (table, own):
                continue
            named = change_batch.columns(packet, "key").column("key")
            if not pc.any(pc.is_in(named, wanted)).as_py():
                continue
            rows = change_batch.decode(packet)
            for row in rows.filter(pc.is_in(rows.column("key"), wanted)).to_pylist():
                yield _Part(header, packet, row)


def _begin(said: _Said, found: Sequence[_Part]) -> datetime | None:
    """Return when the first of the windows of these chunks may have been opened."""
    times = [
        said.runs[one.run].ts_ms if one.run in said.runs else _read_ms(said, one.attempt)
        for one in (part.header for part in found)
    ]
    if not all(times):
        return None
    return datetime.fromtimestamp(min(times) / 1000, UTC) - _EARLIER


def _read_ms(said: _Said, attempt: int) -> int:
    found = said.complete.get(attempt)
    return found.ts_ms if found else 0


def _read_windows(log: StretchReader, topic: str, begins: datetime | None, said: _Said) -> None:
    """Read window rows in the topic of the signal table."""
    converter, count = converter_of(log.plan.converter), changed_keys.WINDOW_COLUMNS
    spans = log.spans([topic], Since(begins), most=MOST_SIGNALS)
    for records, plan in log.stretches(spans, lambda *_: ()):
        heads = converter.headers(records, plan)
        for at, kind in enumerate(heads.kind):
            if kind == Kind.SIGNAL and heads.op[at] == "c":
                cells = converter.first_cells(heads.after[at] or b"", count)
                _note_window(cells, heads.position[at], said)


def _note_window(cells: Sequence[Any], position: bytes, said: _Said) -> None:
    row = changed_keys.window_row(cells)
    if row is None or row.id in said.windows:
        return
    try:
        bound = msgspec.json.decode(row.data, type=_Window).bound
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    is_open = row.id.endswith("-open")
    said.windows[row.id] = window.open_position(position, bound) if is_open else position


def _chunk(said: _Said, part: _Part) -> TracedChunk:
    header, row = part.header, part.row
    complete, run = said.complete.get(header.attempt), said.runs.get(header.run)
    lo = hi = None
    if complete is not None:
        lo = TracedWindow(complete.lo, said.windows.get(f"{complete.lo}-open", b""))
        hi = TracedWindow(complete.hi, said.windows.get(f"{complete.hi}-close", b""))
        if complete.position:
            lo = TracedWindow(complete.lo, window.position_of(complete.position))
    void = said.void.get(header.attempt, "")
    return TracedChunk(
        header.run,
        header.chunk,
        header.attempt,
        row["key"],
        _read_ms(said, header.attempt),
        row["action"] == net_change.UPSERT,
        part.packet,
        lo,
        hi,
        verify=(run.verify or "") if run else "",
        void=void or ("" if complete else _UNFINISHED),
        image=row.get("row") or {},
        placed=bool(complete and complete.position),
    )
