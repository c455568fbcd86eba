"""The pipeline of a simulated history: real decoding, shards and write sets over a dict of rows.

A batch takes a piece of every topic partition and goes the way of `lakemark.pipeline`: stretches to
packets and touches, touches and chunks to the shards, packets and survivors to the table, then the
state of the batch. It may die anywhere, and the same batch comes again from the state before it.
"""

import copy
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from lakemark import plans, tasks
from lakemark.model import change_batch, fills, positions
from lakemark.model.change_batch import ChunkFile, KeyColumns
from lakemark.model.comparisons import ComparedChunk, Comparison
from lakemark.model.control import converted
from lakemark.model.decoding import AppliedPosition, Records, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.fills import UNSEEN, Fill
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.offsets import Offsets
from lakemark.reconcile import window
from lakemark.reconcile.chunks import Settled
from lakemark.sink import resolve as resolving
from lakemark.sink import verification
from lakemark.sink.delta import chunk_files
from lakemark.sink.delta.chunk_files import InFile
from lakemark.sink.resolve import Part
from lakemark.sink.row_images import RowImages
from lakemark.source import decoder
from lakemark.source.raw_records import by_epoch
from lakemark.state import catch_up, new_partitions, tables
from lakemark.state.table_parts import StoredPosition
from lakemark.state.tables import TableState
from tests.kit.log_model import TABLE, Record, table_schema
from tests.kit.simulation.alters import NEW, OLD, Alter
from tests.kit.simulation.connector import SIGNAL_TABLE, TOPIC, Connector, Place
from tests.kit.simulation.lake_version import LakeVersion
from tests.kit.table_model import CrashedError, DictLake
from tests.kit.table_states import table_state

IDENTITY = SourceIdentity("postgresql", "shop", signal_table=SIGNAL_TABLE)
SCHEMAS = {TABLE: table_schema()}
MODES = HandlingModes()
KEY = KeyColumns(("id",))
OF_ANOTHER_EPOCH = {"position-regressed", "log-changed"}
AppliedPositions = dict[Place, AppliedPosition]


@dataclass(frozen=True)
class State:
    """What the driver keeps per batch."""

    batch: int
    offsets: dict[Place, int]
    control: int
    chunks: tuple[int, ...]
    shards: tuple[bytes | None, ...]
    applied: AppliedPositions = field(default_factory=dict)
    runs: frozenset[str] = frozenset()
    truncated_at: bytes | None = None
    pending: pa.Table | None = None
    applied_close: bytes = b""
    partial: bool = False
    stopped: TableState | None = None  # the table, while it does not stream
    fills: tuple[Fill, ...] = ()
    epochs: tuple[Offsets, ...] = ()  # first offsets of epochs 1, 2, …
    regressed: dict[Place, int] = field(default_factory=dict)  # where the next one would begin


@dataclass
class Ends:
    """How far a batch reads, and where its partitions happen to be cut into two stretches."""

    offsets: dict[Place, int]
    control: int
    chunks: tuple[int, ...]
    cuts: dict[Place, int]
    stop: bool = False  # the table fails in this batch, and is stopped
    resume: bool = False  # it catches up in this batch
    altered: Alter | None = None  # the catalog as it was read last


@dataclass
class Done:
    """A committed batch, as driver and oracle see it."""

    state: State
    outputs: list[tuple[int, window.Output]]
    settled: list[Settled]
    swept: bool
    restarts: set[str]
    reread: set[bytes]
    kept: list[int]  # events that passed the gate, as indices of the connector's stream
    taken: list[int]  # all events of the batch
    applied: bool  # whether survivors reached the table
    caught_up: list[int] = field(default_factory=list)  # as `kept`, of a table that streams again
    compared: list[tuple[Comparison, ComparedChunk]] = field(default_factory=list)
    doubt: bool = False  # older rows lack a column, and nobody knows which: all are read again


@dataclass
class Pipeline:
    """Operator and table; `state` is what survives a crash."""

    connector: Connector
    dice: random.Random
    shards: int
    crashes: float
    deletes: str = "hard"
    control: list[dict[str, Any]] = field(default_factory=list)
    chunks: list[list[tuple[bytes, bytes]]] = field(default_factory=lambda: [[], []])
    stale: Callable[[], frozenset[bytes] | None] = frozenset
    lake: DictLake = field(init=False)
    state: State = field(init=False)
    crashed: int = 0
    table: TableState = field(default_factory=lambda: TableState(topics=[TOPIC]))
    files: dict[str, pa.StructArray] = field(default_factory=dict)
    kind: ClassVar[str] = "postgresql"
    order: bool = False
    seen: bool = False  # a look at the catalog has found the new column
    before: tuple[int, LakeVersion] | None = None  # a batch, and the lake as it found it

    def __post_init__(self) -> None:
        self.lake = DictLake(self.deletes)
        offsets = dict.fromkeys(self.connector.kafka, 0)
        self.state = State(0, offsets, 0, (0,) * len(self.chunks), (None,) * self.shards)

    # -- what there is to read ------------------------------------------------------------------

    def behind(self) -> bool:
        kafka, state = self.connector.kafka, self.state
        return (
            state.stopped is not None
            or any(state.offsets.get(place, 0) < len(records) for place, records in kafka.items())
            or state.control < len(self.control)
            or any(at < len(c) for at, c in zip(state.chunks, self.chunks, strict=True))
        )

    def ends(self, *, everything: bool = False) -> Ends:
        """A random prefix of what is left of every partition."""
        state, dice = self.state, self.dice
        longest = 10**6 if everything else dice.choice([1, 4, 16, 64])

        def upto(begin: int, end: int) -> int:
            if everything:
                return end
            return min(end, begin + dice.randint(0, longest))

        kafka = self.connector.kafka
        offsets = {p: upto(state.offsets.get(p, 0), len(records)) for p, records in kafka.items()}
        known = new_partitions.known_ends(_of_topic(state.offsets), _of_topic(offsets))
        offsets = {p: end for p, end in offsets.items() if p[0] != TOPIC or p[1] in known[TOPIC]}
        cuts = {}
        for place, end in offsets.items():
            begin = state.offsets.get(place, 0)
            cuts[place] = begin if dice.random() < 0.7 else dice.randint(begin, end)
        chunks = tuple(upto(at, len(c)) for at, c in zip(state.chunks, self.chunks, strict=True))
        control = upto(state.control, len(self.control))
        if not everything and dice.random() < 0.3:
            control = state.control
        return Ends(offsets, control, chunks, cuts, altered=self.connector.source.altered)

    # -- one batch ------------------------------------------------------------------------------

    def run(self, ends: Ends) -> Done:
        """The batch, as often as it dies. Every time it must say the same (I7)."""
        said = None
        while True:
            try:
                shards, decoded, done = self._decide(ends)
                if said is not None:
                    assert said == (shards, done.outputs), (
                        "I7: a repeated batch says something else"
                    )
                said = shards, done.outputs
                self._maybe_die()
                state = self._write(ends, decoded, done)
                self._maybe_die()
            except CrashedError:
                self.crashed += 1
                continue
            self.state = done.state = state
            return done

    def _decide(self, ends: Ends) -> tuple[tuple[bytes | None, ...], "_Decoded", Done]:
        state = self.state
        runs = set(state.runs)
        control = self.control[state.control : ends.control]
        armed = bool(runs)
        for record in control:
            with suppress(msgspec.ValidationError):
                window.arm(runs, converted(record))
            armed = armed or bool(runs)
        stopped = state.stopped is not None or bool(self._added(ends))
        said = [f for r in control if r["type"] == "table-fill" for f in r["fills"]]
        fills, doubt = self._fill([msgspec.convert(f, Fill) for f in said], ends)
        epochs = state.epochs
        if any(record["type"] == "new-epoch" for record in control):
            epochs = (*epochs, _of_all({**state.offsets, **state.regressed}))
        decoded = self._decode(
            state.offsets, ends.offsets, state.applied, ends, stopped=stopped, armed=armed,
            fills=fills, epochs=epochs,
        )  # fmt: skip
        rows = decoded.touches
        for at, record in enumerate(control, state.control):
            blob = msgspec.json.encode(record)
            rows += [(n, window.CONTROL, "control/0", at, blob) for n in range(self.shards)]
        for number, topic in enumerate(self.chunks):
            begin = state.chunks[number]
            for at, (key, value) in enumerate(topic[begin : ends.chunks[number]], begin):
                blob = len(key).to_bytes(4) + key + value
                shard = msgspec.json.decode(key)["shard"]
                rows.append((shard, window.CHUNK, f"chunks/{number}", at, blob))
        shards, outputs = self._fold(rows)
        done = Done(
            state, outputs, [], swept=False, restarts=set(), reread=set(decoded.reread),
            kept=decoded.kept, taken=decoded.taken, applied=False, doubt=doubt,
        )  # fmt: skip
        decoded.fills = fills
        decoded.runs = frozenset(runs)
        decoded.shards = shards
        return shards, decoded, done

    def _fold(
        self, rows: list[tuple[int, str, str, int, bytes]]
    ) -> tuple[tuple[bytes | None, ...], list[tuple[int, window.Output]]]:
        after, outputs = list(self.state.shards), []
        by_shard: dict[int, dict[str, list[bytes]]] = {}
        for shard, kind, *_, blob in sorted(rows, key=lambda row: row[:4]):
            by_shard.setdefault(shard, {}).setdefault(kind, []).append(blob)
        for shard, records in sorted(by_shard.items()):
            folded = window.fold(after[shard], records, shard=shard)
            if folded.state is not None:
                after[shard] = folded.state
            outputs += [(shard, output) for output in folded.outputs if output.kind != window.SIZE]
        return tuple(after), outputs

    def _decode(
        self, begins: dict[Place, int], ends: dict[Place, int], applied: AppliedPositions,
        of: Ends, *, stopped: bool, armed: bool, fills: tuple[Fill, ...],
        epochs: tuple[Offsets, ...],
    ) -> "_Decoded":  # fmt: skip
        out = _Decoded(dict(applied), fills=fills, altered=of.altered, epochs=epochs)
        cuts = of.cuts
        for place, end in ends.items():
            records, begin = self.connector.kafka[place], begins.get(place, 0)
            middle = min(max(begin, cuts.get(place, 0)), end)
            for first, last in ((begin, middle), (middle, end)):
                if first < last:
                    for epoch, found in by_epoch(
                        _read(place, first, records[first:last]), out.epochs
                    ):
                        self._stretch(place, epoch, found, out, stopped=stopped, armed=armed)
        return out

    def _stretch(
        self, place: Place, epoch: int, records: Records, out: "_Decoded", *, stopped: bool,
        armed: bool,
    ) -> None:  # fmt: skip
        how, first = out.altered, records.offsets[0]
        piece = self.connector.kafka[place][first : records.offsets[-1] + 1]
        plan = StretchPlan(
            replace(IDENTITY, connector=self.kind), MODES, epoch=positions.epoch_number(self.kind, epoch), schemas=SCHEMAS if how is None else {TABLE: how.schema()},
            verified=frozenset(SCHEMAS), applied=out.applied,
            stopped=frozenset(SCHEMAS) if stopped else frozenset(),
            ignorable={TABLE: frozenset({OLD})} if how is not None else {},
            fills={TABLE: out.fills} if out.fills else {},
        )  # fmt: skip
        topic, partition = place
        heads, keys = decoder.headers(records, plan), dict[int, bytes | None]()
        if topic == TOPIC:
            before = out.applied.get(place, AppliedPosition())
            logged = decoder.logged_by(heads, plan)
            gated = decoder.drop_replays(
                heads.kind, heads.position, heads.source_ts, before, logged
            )
            out.kept += [piece[at].entry for at in gated.keep]
            done = decoder.decode_range(records, plan, heads)
            report = done.tables.get(TABLE)
            if done.regressed >= 0:
                out.regressed.setdefault(place, done.regressed)
            if report is not None:
                out.stop = out.stop or (report.stop[0] if report.stop is not None else "")
                assert out.stop in {"", *OF_ANOTHER_EPOCH}, report.stop
                out.reread |= {key.encode() for key in report.reread}
            out.applied[place], keys = done.applied_position, done.keys
            for number, (_, packet) in enumerate(done.packets):
                out.parts.append(Part(f"{topic}/{partition}", (first << 20) + number, packet))
        out.taken += [r.entry for r in piece]
        if armed:
            decode = tasks.DecodePlan(plan, shards=self.shards)
            rows = tasks._touches(records, heads, decode, keys)
            out.touches += [(row[0], row[1], row[3], row[4], row[6]) for row in rows]

    # -- the table ------------------------------------------------------------------------------

    def _write(self, ends: Ends, decoded: "_Decoded", done: Done) -> State:
        """Table and state of the batch, in the order of `pipeline`."""
        state, batch = self.state, self.state.batch + 1
        added = self._added(ends)
        after = replace(
            state, batch=batch, offsets=ends.offsets, control=ends.control, chunks=ends.chunks,
            shards=decoded.shards, applied=decoded.applied, runs=decoded.runs, fills=decoded.fills,
            epochs=decoded.epochs,
        )  # fmt: skip
        begun = len(decoded.epochs) > len(state.epochs)
        regressed = {**({} if begun else state.regressed), **decoded.regressed}
        after = replace(after, regressed=regressed)
        survivors = [
            part_of(output, at)
            for at, (_, output) in enumerate(done.outputs)
            if output.kind == window.SURVIVORS
        ]
        entry = copy.deepcopy(state.stopped)
        if entry is None and decoded.stop:
            entry = table_state(
                tables.ERRORED, decoded.stop, topics=[TOPIC],
                from_offsets=_of_topic(state.offsets), high_waters=_stored(state.applied),
            )  # fmt: skip
        elif entry is not None and entry.code in OF_ANOTHER_EPOCH and begun:
            entry.state, entry.code = tables.CATCHING_UP, ""
        if entry is None and (added or ends.stop):  # nothing of the batch is applied
            entry = table_state(
                tables.CATCHING_UP if added else tables.PAUSED, topics=[TOPIC],
                from_offsets=_of_topic(state.offsets), high_waters=_stored(state.applied),
            )  # fmt: skip
        if entry is None and self._is_unseen([*decoded.parts, *survivors]):
            entry = table_state(
                tables.ERRORED, UNSEEN, asked=True, topics=[TOPIC],
                from_offsets=_of_topic(state.offsets), high_waters=_stored(state.applied),
            )  # fmt: skip
        if entry is None:
            parts = [*decoded.parts, *survivors, *self._compare(done, batch)]
            after = self._apply(parts, after, 2 * batch, done, state.applied)
            done.applied = True
        else:
            after = self._stand_still(ends, entry, after, done)
        return self._hear(done, after)

    def _compare(self, done: Done, batch: int) -> list[Part]:
        """`verification.compared`: the rows that are to be merged."""
        comparisons = [
            msgspec.msgpack.decode(output.blob, type=Comparison)
            for _, output in done.outputs
            if output.kind == window.COMPARISON
        ]
        mended = []
        for one in comparisons:
            result, packet = verification._compare(one, self.lake_before(batch))
            done.compared.append((one, result))
            if packet is not None:
                mended.append(Part(f"chunk/{one.attempt}", one.shard, packet))
        return mended

    def lake_before(self, batch: int) -> LakeVersion:
        """The lake as the batch found it, also when it is repeated."""
        if self.before is None or self.before[0] != batch:
            self.before = batch, LakeVersion.of(self.lake)
        return self.before[1]

    def _stand_still(self, ends: Ends, entry: TableState, after: State, done: Done) -> State:
        """The table does not stream, or reads the next slice of what it has not applied."""
        if self._added(ends):
            old = {p: len(r) for p, r in self.connector.kafka.items() if p in self.state.offsets}
            entry.progress.repartition(_of_topic(old), _of_topic(ends.offsets))
        if ends.resume:
            entry.state = tables.CATCHING_UP
        if entry.state == tables.CATCHING_UP:
            after = self._slice(ends, entry, after, done)
        return replace(after, stopped=None if entry.state == tables.STREAMING else entry)

    def _slice(self, ends: Ends, entry: TableState, after: State, done: Done) -> State:
        end = _of_topic(ends.offsets)
        start, to = catch_up.slice_of(entry, end, limit=10**6) or ({}, {})
        applied = plans.applied_positions(entry.progress.applied)
        slice_ = self._decode(
            _places(start), _places(to), applied, ends, stopped=False, armed=False,
            fills=after.fills, epochs=after.epochs,
        )  # fmt: skip
        if slice_.stop:
            entry.state, entry.code = tables.ERRORED, slice_.stop
            return replace(after, regressed={**slice_.regressed, **after.regressed})
        if not entry.asked and self._is_unseen(slice_.parts):
            entry.state, entry.code, entry.asked = tables.ERRORED, UNSEEN, True
            return after
        done.reread |= slice_.reread
        done.caught_up = slice_.kept
        if to:
            after = self._apply(slice_.parts, after, 2 * after.batch + 1, done, applied)
        read = {place: reached for place, reached in slice_.applied.items() if place in _places(to)}
        passed = {place: _reached(reached) for place, reached in read.items()}
        catch_up.advance(entry, to, passed, end, after.batch)
        plain = self.connector.resized is None and not after.epochs
        if entry.state == tables.STREAMING and plain:
            for place in _places(end):
                assert _alike(slice_.applied.get(place), after.applied.get(place)), (
                    "applied positions do not depend on when they are read"
                )
        return after

    def _added(self, ends: Ends) -> list[str]:
        before = _of_topic(self.state.offsets)
        return new_partitions.repartitioned(before, _of_topic(ends.offsets))

    def _hear(self, done: Done, after: State) -> State:
        """What the shards said; chunks of a table that does not stream do not count."""
        applied_close = after.applied_close
        for _, output in done.outputs:
            if output.kind == window.SETTLED:
                settled = msgspec.json.decode(output.blob, type=Settled)
                if not self.counts(done) and not settled.void:
                    settled = msgspec.structs.replace(settled, void="table-stopped")
                done.settled.append(settled)
                if not settled.void and settled.survivors + settled.fills:
                    applied_close = max(applied_close, bytes.fromhex(settled.hi))
            elif output.kind == window.RESTART:
                done.restarts.add(output.table)
            elif output.kind == window.SWEPT:
                done.swept = done.applied
        return replace(after, applied_close=applied_close)

    def counts(self, done: Done) -> bool:
        return done.applied

    def _apply(
        self, parts: list[Part], state: State, version: int, done: Done, applied: AppliedPositions
    ) -> State:
        """`sink.apply`: looked up, truncated, resolved, halves saved, merged."""
        if not parts:
            return state
        partial = state.partial or any(resolving.is_partial(part.packet) for part in parts)
        truncates = [at for part in parts for at in truncates_of(part.packet)]
        newest = max(truncates, default=None)
        early = self.dice.random() < 0.5
        if self.lake.committed() >= version:
            pending, reread = self._saved
        else:
            if (
                early
                and newest is not None
                and (state.truncated_at is None or newest > state.truncated_at)
            ):
                self.lake.truncate(newest, version=version)
            self._maybe_die()
            truncated_at = max(
                (f for f in (newest, state.truncated_at) if f is not None), default=None
            )
            parts, stay = chunk_files.placed(
                parts, self._load, may_stay=self._may_stay, pending=state.pending, truncated_at=truncated_at,
                fills=partial,
            )  # fmt: skip
            parts, waiting = self._filled(parts, state)
            result = resolving.resolve(
                parts, truncated_at=self.truncated_at(state), pending=waiting,
                read_rows=self.lake.read_rows, deletes=self.deletes,
                settled=plans._settled(self.table, applied, _of_topic(state.offsets)),
                applied_close=self.applied_close(state), stale=self.stale(), partial=partial,
            )  # fmt: skip
            if not early and result.truncate is not None:
                self.lake.truncate(result.truncate, version=version)
            pending, reread = result.pending, set(result.reread)
            self._saved = pending, reread
            self._maybe_die()
            self.lake.merge(self._together(result.write_set, stay), version=version)
            self._maybe_die()
        done.reread |= reread
        truncated_at = max((f for f in (newest, state.truncated_at) if f is not None), default=None)
        return replace(state, truncated_at=truncated_at, pending=pending, partial=partial)

    # -- what ALTER TABLE has done ---------------------------------------------------------------

    def _fill(self, said: list[Fill], ends: Ends) -> tuple[tuple[Fill, ...], bool]:
        """`Pipeline._fill`, before the batch; what images get, and whether all is to be read again.

        Done in every repetition, and only the first time something happens.
        """
        state, batch = self.state, self.state.batch + 1
        due = [msgspec.structs.replace(one, batch=batch) for one in said]
        entry = state.stopped or TableState()
        runs = entry.state in {tables.STREAMING, tables.CATCHING_UP} or entry.code == UNSEEN
        if not due:
            return state.fills, False
        if self.order or not runs or not self.fill_lake(due, ends):
            return state.fills, True
        return (*state.fills, *due), False

    def fill_lake(self, due: list[Fill], ends: Ends) -> bool:
        """`schema_evolution.fill`."""
        batch = due[0].batch
        if self.lake.filled == batch:
            return True
        if any(one.column in self.lake.added for one in due):
            return False
        for one in due:
            self._fill_column(one, ends)
        self.lake.filled = batch
        return True

    def _fill_column(self, one: Fill, ends: Ends) -> None:
        assert ends.altered is not None
        value = one.cell()[0].as_py() if one.value else None

        def of_row(row: dict[str, Any]) -> Any:
            if one.source:
                lacks = row["_cdc"]["unavailable"] or []
                more = [one.column] if one.source in lacks else []
                row["_cdc"] = {**row["_cdc"], "unavailable": [*lacks, *more] or None}
            return row[one.source] if one.source else value

        self.lake.fill(one.column, ends.altered.type, of_row)

    def _is_unseen(self, parts: list[Part]) -> bool:
        """`schema_changes.require_seen`."""
        return not (self.order or self.seen or NEW in self.lake.added) and _has_new(parts)

    def _filled(self, parts: list[Part], state: State) -> tuple[list[Part], pa.Table | None]:
        how, given = self.connector.source.altered, state.fills
        parts = [replace(part, packet=fills.filled(part.packet, given)) for part in parts]
        if how is not None and _has_new(parts):
            self.lake.added.setdefault(NEW, how.type)
            for row in self.lake.table.values():
                row.setdefault(NEW, None)
        return parts, None if state.pending is None else fills.filled(state.pending, given)

    def _may_stay(self, file: ChunkFile) -> bool:
        is_whole = {*file.columns.names} == {*SCHEMAS[TABLE].by_name, *self.lake.added}
        return is_whole and int(file.path) % 7 != 0

    def filed(self, packet: pa.Table, path: str, position: bytes) -> pa.Table:
        """A chunk's packet, its rows in a file; an empty one stays as it is."""
        if not packet.num_rows:
            return packet
        rows = packet.column("row").combine_chunks()
        before = self.files.get(path, rows.slice(0, 0))
        self.files[path] = pa.concat_arrays([before, rows])
        file = ChunkFile(path, 0, 0, position.hex(), pa.schema(list(rows.type)))
        at = pa.array(range(len(before), len(before) + len(rows)), pa.int32())
        keys = packet.column("key").combine_chunks()
        return change_batch.filed(
            keys,
            at,
            file,
            source_ts=0,
            table=TABLE,
            key_columns=change_batch.key_columns_of(packet),
        )

    def _load(self, file: ChunkFile, rows: Any) -> pa.StructArray:
        return self.files[file.path].take(pa.array(rows))

    def _together(self, write_set: pa.Table, stay: list[InFile]) -> pa.Table:
        """The engine's contract: rows that stay in their files are upserts like all others."""
        found = [write_set]
        for one in stay:
            images = self._load(one.file, one.rows)
            keys = [b"[%d]" % key for key in images.field("id").to_pylist()]
            packet = change_batch.reads(
                pa.array(keys, pa.binary()), images, source_ts=0, table=TABLE, key_columns=KEY
            )
            packet = change_batch.as_of(packet, one.position)
            pool = RowImages([packet], KEY, deletes=self.deletes)
            found.append(pool.simple_rows(np.arange(len(images))))
        return pa.concat_tables(found)

    def truncated_at(self, state: State) -> bytes | None:
        return state.truncated_at

    def applied_close(self, state: State) -> bytes | None:
        return state.applied_close or None

    def _maybe_die(self) -> None:
        if self.crashes and self.dice.random() < self.crashes:
            raise CrashedError


@dataclass
class _Decoded:
    """What the first stage makes of a batch."""

    applied: AppliedPositions
    parts: list[Part] = field(default_factory=list)
    touches: list[tuple[int, str, str, int, bytes]] = field(default_factory=list)
    reread: set[bytes] = field(default_factory=set)
    kept: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    runs: frozenset[str] = frozenset()
    shards: tuple[bytes | None, ...] = ()
    fills: tuple[Fill, ...] = ()
    altered: Alter | None = None
    epochs: tuple[Offsets, ...] = ()
    regressed: dict[Place, int] = field(default_factory=dict)
    stop: str = ""


def _read(place: Place, first: int, piece: list[Record]) -> Records:
    topic, partition = place
    return Records(
        topic, partition, list(range(first, first + len(piece))), [r.key for r in piece],
        [r.value for r in piece], [r.headers or None for r in piece],
    )  # fmt: skip


def part_of(output: window.Output, at: int) -> Part:
    packet, filed = change_batch.parted(output.blob)
    return Part(output.source, at, packet, filed=filed)


def _has_new(parts: list[Part]) -> bool:
    images = [change_batch.image_type(part.packet) for part in parts]
    return any(NEW in {field.name for field in image} for image in images)


def _of_all(offsets: dict[Place, int]) -> Offsets:
    found: Offsets = {}
    for (topic, number), at in offsets.items():
        found.setdefault(topic, {})[number] = at
    return found


def _of_topic(offsets: dict[Place, int]) -> Offsets:
    return {TOPIC: {number: at for (topic, number), at in offsets.items() if topic == TOPIC}}


def _places(offsets: Offsets) -> dict[Place, int]:
    return {(topic, number): at for topic, found in offsets.items() for number, at in found.items()}


def _reached(reached: AppliedPosition) -> StoredPosition:
    seen = dict(reached.seen)
    return StoredPosition(reached.position.hex(), reached.source_ts, reached.creates, seen)


def _stored(applied: AppliedPositions) -> dict[str, dict[int, StoredPosition]]:
    found = {n: _reached(reached) for (topic, n), reached in applied.items() if topic == TOPIC}
    return {TOPIC: found} if found else {}


def truncates_of(packet: pa.Table) -> Iterable[bytes]:
    rows = packet.select(["record", "position"]).to_pylist()
    return [row["position"] for row in rows if row["record"] == change_batch.TRUNCATE]


def _alike(one: AppliedPosition | None, other: AppliedPosition | None) -> bool:
    """Whether two readings came to one applied position.

    Of two slots' first transactions nothing tells one from the other, unless they are read at once:
    then rows created in the former may count as created in the latter, which is only more careful.
    """
    if one is not None and other is not None and positions.which_first([one.position]):
        return replace(one, creates=True) == replace(other, creates=True)
    return one == other
