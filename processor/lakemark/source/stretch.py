"""One stretch of one Kafka partition, from raw records to packets of net changes.

Pure: no Spark, no Kafka. The steps, in order: decode headers → drop replays (gate) → canonical
keys → newest state per key → typed images of the winners only → packets. Whatever cannot be decoded
becomes a dead letter with its original bytes; nothing here raises on any input.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa

from lakemark import changes, keys, packets
from lakemark.changes import Net
from lakemark.source import envelope, rows
from lakemark.source.envelope import Headers, Kind, SourceIdentity
from lakemark.source.gate import HighWater, gate
from lakemark.source.schema import HandlingModes, TableSchema, from_connect

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
TYPE_REASONS: Final = frozenset({"wrong-type", "number-out-of-range"})


@dataclass(frozen=True, slots=True)
class Plan:
    """What the driver tells every task of a batch; the same for a repeated batch.

    Attributes:
        identity: which connector's records these must be.
        modes: the connector's handling modes.
        schemas: tables known from catalog or file, for records without the schema wrapper.
        ignorable: columns per table that events may still carry though the catalog, read after
            them, no longer has them: dropped columns.
        high_waters: per (topic, partition), as of the start of the batch.
        epoch: epoch of the positions.
        max_event_bytes: larger values are dead letters.
        max_bad_share: share of bad records in a stretch above which the table stops instead.
        max_bad: number of bad records of one stretch above which the share is looked at.
        selected: the tables wanted; None = every table.
        known_keys: key columns of tables that already have rows: there a record without a key is
            a bad record, not a table without a key.
        verified: tables whose entry in `schemas` was read just now: a value of another type is
            bad. Of other tables the catalog is read again first (`schema-check`).
        stopped: tables that do not stream: their events only move the high-waters.
    """

    identity: SourceIdentity
    modes: HandlingModes
    schemas: dict[str, TableSchema] = field(default_factory=dict)
    ignorable: dict[str, frozenset[str]] = field(default_factory=dict)
    high_waters: dict[tuple[str, int], HighWater] = field(default_factory=dict)
    epoch: int = 0
    max_event_bytes: int = 4 << 20
    max_bad_share: float = 0.5
    max_bad: int = 100
    selected: Container[str] | None = None
    known_keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    verified: frozenset[str] = frozenset()
    stopped: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that can never be decoded: where it stands, why, and its original bytes."""

    topic: str
    partition: int
    offset: int
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    table: str = ""


@dataclass(slots=True)
class TableReport:
    """What a stretch held of one table."""

    events: int = 0
    replays: int = 0
    incremental_reads: int = 0
    bad: int = 0
    clamped: int = 0
    newest_ts: int = 0
    own_snapshots: set[int] = field(default_factory=set)
    unknown_columns: set[str] = field(default_factory=set)
    reread: list[str] = field(default_factory=list)
    stop: tuple[str, str] | None = None


@dataclass(slots=True)
class Stretch:
    """The outcome of one stretch.

    Attributes:
        first, last: Kafka offsets of its first and last record.
        packets: (table, packet); none for tables with `stop` or `unknown_columns` in the report.
        dead: dead letters to be written before the tables.
        tables: reports by table id.
        high_water: the partition's high-water after the stretch.
        kinds: records by kind, for metrics.
        regressed: offset of the first regressed event, -1 = none.
    """

    topic: str
    partition: int
    first: int
    last: int
    packets: list[tuple[str, pa.Table]]
    dead: list[DeadLetter]
    tables: dict[str, TableReport]
    high_water: HighWater
    kinds: dict[int, int]
    regressed: int = -1


@dataclass(slots=True)
class Records:
    """Raw Kafka records of one topic partition in offset order, column by column."""

    topic: str
    partition: int
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[dict[str, Any]] | None]


def process(records: Records, plan: Plan) -> Stretch:
    """Turns one stretch into packets, dead letters and reports. Deterministic; never raises."""
    heads = envelope.decode(
        records.values,
        records.keys,
        identity=plan.identity,
        epoch=plan.epoch,
        offsets=records.offsets,
        max_bytes=plan.max_event_bytes,
    )
    start = plan.high_waters.get((records.topic, records.partition), HighWater())
    gated = gate(heads.kind, heads.position, heads.source_ts, start)
    out = Stretch(
        records.topic,
        records.partition,
        records.offsets[0] if records.offsets else -1,
        records.offsets[-1] if records.offsets else -1,
        [],
        [],
        {},
        gated.after,
        {},
    )
    for kind in heads.kind:
        out.kinds[kind] = out.kinds.get(kind, 0) + 1
    by_table: dict[str, list[int]] = {}
    for index in gated.keep:
        by_table.setdefault(heads.table[index], []).append(index)
    bad = [index for index, kind in enumerate(heads.kind) if kind == Kind.BAD]
    work = _Work(records, heads, plan, out)
    for index in bad:
        work.reject(index, heads.reason[index] or "not-debezium", heads.detail[index] or "")
    for table, indices in by_table.items():
        if table not in plan.stopped and (plan.selected is None or table in plan.selected):
            work.table(table, indices)
    if gated.regressed is not None:
        table = heads.table[gated.regressed]
        out.regressed = records.offsets[gated.regressed]
        work.report(table).stop = (
            "position-regressed",
            f"the event at {records.topic}-{records.partition} offset "
            f"{records.offsets[gated.regressed]} stands below the position already applied "
            "although its source time is newer: the source was restored or failed over",
        )
    _doubt_schemas(out, plan)
    _count_replays(out, heads, gated.keep)
    _break_circuit(out, len(records.offsets), plan)
    stopped = {t for t, r in out.tables.items() if r.stop or r.unknown_columns}
    out.packets = [(t, p) for t, p in out.packets if t not in stopped]
    return out


def _count_replays(out: Stretch, heads: Headers, keep: Sequence[int]) -> None:
    kept = set(keep)
    gate_kinds = {int(Kind.CHANGE), int(Kind.TRUNCATE), int(Kind.INCREMENTAL)}
    for index, kind in enumerate(heads.kind):
        if kind in gate_kinds and index not in kept:
            out.tables.setdefault(heads.table[index], TableReport()).replays += 1


def _doubt_schemas(out: Stretch, plan: Plan) -> None:
    """Values of another type may only mean that the catalog was read before the column changed."""
    doubtful = {
        letter.table
        for letter in out.dead
        if letter.reason in TYPE_REASONS
        and letter.table in plan.schemas
        and letter.table not in plan.verified
    }
    for table in doubtful:
        report = out.tables[table]
        report.stop = report.stop or ("schema-check", "values do not fit the catalog as last read")
    out.dead = [letter for letter in out.dead if letter.table not in doubtful]


def _break_circuit(out: Stretch, records: int, plan: Plan) -> None:
    """Stops the table rather than shovel a topic into the dead letters."""
    if len(out.dead) > plan.max_bad and len(out.dead) > plan.max_bad_share * records:
        reasons = sorted({letter.reason for letter in out.dead})
        for report in out.tables.values():
            report.stop = report.stop or (
                "too-many-bad-records",
                f"{len(out.dead)} of {records} records of {out.topic}-{out.partition} cannot be "
                f"decoded ({', '.join(reasons)}); none was written to the dead letters",
            )
        if not out.tables:
            out.tables[""] = TableReport(
                stop=("too-many-bad-records", f"no record of {out.topic} can be decoded")
            )
        out.dead = []


class _Work:
    """The state of one call of `process`."""

    def __init__(self, records: Records, heads: Headers, plan: Plan, out: Stretch) -> None:
        self.records = records
        self.heads = heads
        self.plan = plan
        self.out = out

    def report(self, table: str) -> TableReport:
        return self.out.tables.setdefault(table, TableReport())

    def reject(self, index: int, reason: str, detail: str, *, table: str = "") -> None:
        records = self.records
        table = table or self.heads.table[index]
        self.out.dead.append(
            DeadLetter(
                records.topic,
                records.partition,
                records.offsets[index],
                reason,
                detail,
                records.keys[index],
                records.values[index],
                table,
            )
        )
        if table:
            self.report(table).bad += 1

    def table(self, table: str, indices: list[int]) -> None:
        """Packets of one table: one per run of records with the same schema."""
        report = self.report(table)
        report.events += len(indices)
        ts = self.heads.source_ts
        report.newest_ts = max(ts[index] for index in indices)
        truncated = [
            self.heads.position[i] for i in indices if self.heads.kind[i] == Kind.TRUNCATE
        ]
        if truncated:
            packet = packets.truncates(truncated, table=table)
            self.out.packets.append((table, packet))
        rowful = [i for i in indices if self.heads.kind[i] != Kind.TRUNCATE]
        for run in _schema_runs(rowful, self.heads.schema):
            schema = self._schema(table, run)
            if schema is None:
                report.stop = (
                    "schema-unknown",
                    "its records carry no schema, and neither the database catalog nor a schema "
                    "file knows the table",
                )
                return
            _Run(self, table, schema, report).fold(run)

    def _schema(self, table: str, run: list[int]) -> TableSchema | None:
        raw_schema = next((s for i in run if (s := self.heads.schema[i])), None)
        raw_key = next((k for i in run if (k := self.records.keys[i])), None)
        if raw_schema is None:
            schema = self.plan.schemas.get(table)
            if schema is not None and raw_key is not None:
                names = _key_names(raw_key)
                if names and names != schema.key:
                    schema = replace(schema, key=names)
            return schema
        return _wrapped_schema(table, raw_schema, _key_schema(raw_key))


def _schema_runs(indices: list[int], schemas: Sequence[bytes | None]) -> list[list[int]]:
    """Neighbouring records with the same schema bytes; a delete's schema is the same one."""
    runs: list[list[int]] = []
    last: object = None
    for index in indices:
        if not runs or schemas[index] != last:
            runs.append([])
            last = schemas[index]
        runs[-1].append(index)
    return runs


@lru_cache(maxsize=1024)
def _wrapped_schema(table: str, raw: bytes, raw_key: bytes | None) -> TableSchema | None:
    try:
        value = msgspec.json.decode(raw)
        key = msgspec.json.decode(raw_key) if raw_key else None
        return from_connect(table, value, key)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return None


class _WrappedKey(msgspec.Struct):
    schema: msgspec.Raw = msgspec.Raw(b"")
    payload: msgspec.Raw = msgspec.Raw(b"")


def _key_schema(raw: bytes | None) -> bytes | None:
    if raw is None:
        return None
    try:
        wrapped = msgspec.json.decode(raw, type=_WrappedKey)
    except msgspec.MsgspecError:
        return None
    if not bytes(wrapped.schema) or not bytes(wrapped.payload):
        return msgspec.json.encode(
            {"type": "struct", "fields": [{"field": name} for name in _key_names(raw)]}
        )
    return bytes(wrapped.schema)


def _payload(raw: bytes) -> bytes:
    """A record key without its schema wrapper."""
    try:
        wrapped = msgspec.json.decode(raw, type=_WrappedKey)
    except msgspec.MsgspecError:
        return raw
    if not bytes(wrapped.schema) or not bytes(wrapped.payload):
        return raw
    return bytes(wrapped.payload)


def _key_names(raw: bytes) -> tuple[str, ...]:
    try:
        key = msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return ()
    if isinstance(key, dict) and "payload" in key and "schema" in key:
        key = key["payload"]
    return tuple(key) if isinstance(key, dict) else ()


class _Run:
    """Folding one run of one table's records that share a schema."""

    def __init__(self, work: _Work, table: str, schema: TableSchema, report: TableReport) -> None:
        self.work = work
        self.heads = work.heads
        self.table_id = table
        self.schema = schema
        self.report = report
        self.partial: Callable[[bytes], bool] = rows.may_have_placeholder(schema, work.plan.modes)

    def fold(self, run: list[int]) -> None:
        canonical = keys.canonical_keys([self.work.records.keys[i] for i in run], self.schema)
        if not self.schema.key and not self.work.plan.known_keys.get(self.table_id):
            self.report.stop = (
                "no-key",
                "its records have no key: the table has no primary key and message.key.columns "
                "names none",
            )
            return
        simple: dict[bytes, int] = {}
        events: dict[bytes, list[int]] = {}
        complex_keys: set[bytes] = set()
        new_keys: dict[int, bytes] = {}
        old_keys: dict[int, bytes] = {}
        heads = self.heads
        for at, index in enumerate(run):
            key = canonical[at]
            if key is None:
                reason = "null-key" if self.work.records.keys[index] is None else "wrong-type"
                self.work.reject(index, reason, "the record's key cannot be read")
                continue
            events.setdefault(key, []).append(index)
            simple[key] = index
            kind = heads.kind[index]
            if kind == Kind.OWN_SNAPSHOT:
                self.report.own_snapshots.add(int.from_bytes(heads.position[index][12:], "big"))
            elif kind == Kind.INCREMENTAL:
                self.report.incremental_reads += 1
                complex_keys.add(key)
            elif self._key_change(index, new_keys, old_keys):
                complex_keys.add(key)
            image = heads.after[index]
            if image is not None and self.partial(image):
                complex_keys.add(key)
        failed = self._simple({k: events[k] for k in simple if k not in complex_keys})
        folder = _Folder(self, new_keys, old_keys)
        folder.fold({k: events[k] for k in events if k in complex_keys or k in failed})

    def _key_change(
        self, index: int, new_keys: dict[int, bytes], old_keys: dict[int, bytes]
    ) -> bool:
        headers = self.work.records.headers[index]
        if not headers:
            return False
        changed = False
        for header in headers:
            name = header["key"]
            if name not in (NEW_KEY, OLD_KEY):
                continue
            (key,) = keys.canonical_keys([header["value"]], self.schema)
            if key is not None:
                (new_keys if name == NEW_KEY else old_keys)[index] = key
                changed = True
        return changed

    def decode(self, images: Sequence[bytes]) -> rows.Rows:
        decoded = rows.decode_rows(images, self.schema, self.work.plan.modes)
        self.report.clamped += decoded.clamped
        ignorable = self.work.plan.ignorable.get(self.table_id, frozenset())
        self.report.unknown_columns |= decoded.unknown - ignorable
        return decoded

    def pack(self, packet: pa.Table) -> None:
        if packet.num_rows:
            self.work.out.packets.append((self.table_id, packet))

    def _simple(self, events: dict[bytes, list[int]]) -> set[bytes]:
        """Keys whose newest event says everything. Returns those whose winner is bad."""
        heads = self.heads
        names = list(events)
        last = [events[key][-1] for key in names]
        decoded = self.decode([self.image(i) for i in last])
        doubtful = {at for at, _, _ in decoded.bad}
        doubtful.update(at for at, columns in enumerate(decoded.unavailable) if columns)
        keep = [at for at in range(len(last)) if at not in doubtful]
        own = int(Kind.OWN_SNAPSHOT)
        self.pack(
            packets.build_simple(
                keys=[names[at] for at in keep],
                ops=[heads.op[last[at]] for at in keep],
                position=[heads.position[last[at]] for at in keep],
                source_ts=[heads.source_ts[last[at]] for at in keep],
                force=[any(heads.kind[i] == own for i in events[names[at]]) for at in keep],
                rows=decoded.columns.take(pa.array(keep, pa.int64())) if doubtful else decoded.columns,
                table=self.table_id,
                key_columns=self.schema.key,
            )
        )
        return {names[at] for at in doubtful}

    def image(self, index: int) -> bytes:
        """The record's row image; of a delete the before image, or else its key."""
        heads = self.heads
        image = heads.before[index] if heads.op[index] == "d" else heads.after[index]
        return self.key_image(index) if image is None else image

    def key_image(self, index: int) -> bytes:
        """The record's key, which holds the key's columns."""
        return _payload(self.work.records.keys[index] or b"null")


class _Folder:
    """Event by event, for keys with key changes, placeholders, incremental reads or bad winners."""

    def __init__(self, run: _Run, new_keys: dict[int, bytes], old_keys: dict[int, bytes]) -> None:
        self.run = run
        self.new_keys = new_keys
        self.old_keys = old_keys

    def fold(self, events: dict[bytes, list[int]]) -> None:
        if not events:
            return
        run = self.run
        order = [i for indices in events.values() for i in indices]
        moved = {key for key, found in events.items() if any(i in self.old_keys for i in found)}
        # A before image that cannot be read is no loss: the key alone names the row.
        deletes = [i for i in order if run.heads.op[i] == "d"]
        images = [*map(run.image, order), *map(run.key_image, deletes)]
        decoded = run.decode(images)
        bad = {at: (reason, detail) for at, reason, detail in decoded.bad}
        slot = {index: at for at, index in enumerate(order)}
        slot.update({i: at for at, i in enumerate(deletes, len(order)) if slot[i] in bad})
        items: list[packets.Record] = []
        for key, indices in events.items():
            log = _Log(key, items, moved=key in moved)
            for index in indices:
                at = slot[index]
                if at in bad:
                    run.work.reject(index, *bad[at], table=run.table_id)
                    run.report.reread.append(key.decode("utf-8", "replace"))
                    continue
                unavailable = frozenset(decoded.unavailable[at] or ())
                self._event(log, index, at, unavailable)
            log.close()
        run.pack(
            packets.build(
                items, decoded.columns, table=run.table_id, key_columns=run.schema.key
            )
        )

    def _event(self, log: "_Log", index: int, row: int, unavailable: frozenset[str]) -> None:
        heads = self.run.heads
        position, source_ts = heads.position[index], heads.source_ts[index]
        kind, op = heads.kind[index], heads.op[index]
        if kind == Kind.INCREMENTAL:
            read = changes.incremental_read(position=position, source_ts=source_ts, row=row)
            log.net(read)
        elif op == "d":
            gone = changes.delete(position=position, source_ts=source_ts, row=row)
            log.leave(gone, self.new_keys.get(index))
        else:
            net = changes.upsert(
                op=op,
                position=position,
                source_ts=source_ts,
                row=row,
                unavailable=unavailable,
                own_snapshot=kind == Kind.OWN_SNAPSHOT,
            )
            log.arrive(net, self.old_keys.get(index) if op == "c" else None)


class _Log:
    """The events of one key as packet records: key changes as they are, the rest composed.

    Where a row has moved to the key (`moved`), even a plain delete is kept as it is: under a
    deferrable constraint it may be the delete of another row than the one that moved here.
    """

    def __init__(self, key: bytes, items: list[packets.Record], *, moved: bool) -> None:
        self.key = key
        self.items = items
        self.moved = moved
        self.composed: Net | None = None

    def net(self, net: Net) -> None:
        self.composed = changes.then(self.composed, net)

    def leave(self, gone: Net, new_key: bytes | None) -> None:
        if new_key is None and not self.moved:
            self.net(gone)
        elif new_key != self.key:  # spellings of one key are one row: it stays
            self._add(packets.LEAVE, gone, new_key)

    def arrive(self, net: Net, old_key: bytes | None) -> None:
        if old_key is None:
            self.net(net)
        elif old_key != self.key:
            self._add(packets.ARRIVE, net, old_key)
        else:
            self.net(replace(net, base=bool(net.unavailable), barrier=None))

    def close(self) -> None:
        if self.composed is not None:
            net, self.composed = self.composed, None
            self.items.append(packets.Record(packets.NET, self.key, net.position, net))

    def _add(self, record: int, net: Net, other_key: bytes | None) -> None:
        self.close()
        self.items.append(packets.Record(record, self.key, net.position, net, other_key))
