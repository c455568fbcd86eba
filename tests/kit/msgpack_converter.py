"""A second `Converter`, small and slow: Debezium's envelope in MessagePack maps.

Nothing outside of `converters/json` may know that records are JSON:
`tests/unit/converters/test_msgpack_converter.py` runs the contract of all converters on this one, and whole
batches of the pipeline, a run of snapshots among them.

With the option `cipher`, a number, each byte of a record's value is that much larger: a record that
is read without it is none. It stands for what a converter must know beside the record, such as the
address of a registry of schemas.

An image is the map of a row, a key that of its columns; records bring no schema. Values are whole
numbers, texts, booleans, doubles and bytes as MessagePack has them, timestamps microseconds.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from lakemark.connectors.postgres import positions as lsns
from lakemark.converters.converter import (
    OUT_OF_RANGE,
    OWN,
    WRONG_TYPE,
    Came,
    ConnectData,
    Converter,
    Departing,
    Moment,
    RecordWriter,
    Rows,
    SchemaSubject,
    Sent,
    not_ready,
)
from lakemark.errors import DependencyError
from lakemark.model import positions
from lakemark.model.columns import Column
from lakemark.model.decoding import (
    ConverterOptions,
    DecodedRange,
    Records,
    Side,
    StretchPlan,
)
from lakemark.model.definitions import SchemaChange
from lakemark.model.events import Headers, Kind, Learnt
from lakemark.model.findings import Finding, fine
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import canonical_from_columns
from lakemark.model.schema import TableSchema
from lakemark.settings.layers import Mistake
from lakemark.settings.table_id import pair_of, text_of
from tests.kit.memory_pipeline import Broker

NAME = "msgpack"
NO_OPTIONS = ConverterOptions()
KINDS = {
    "c": Kind.CHANGE, "u": Kind.CHANGE, "d": Kind.CHANGE, "r": Kind.INCREMENTAL,
    "t": Kind.TRUNCATE, "m": Kind.MESSAGE,
}  # fmt: skip

pack = msgspec.msgpack.encode


def unpack(raw: bytes | None) -> dict[str, Any] | None:
    """A map of texts; None for anything else."""
    try:
        return msgspec.msgpack.decode(raw or b"", type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def shifted(raw: bytes, by: int) -> bytes:
    """Bytes that are so much larger."""
    return bytes((byte + by) % 256 for byte in raw)


def packed(raw: bytes | None) -> bytes | None:
    """A record's JSON in MessagePack."""
    return None if raw is None else pack(msgspec.json.decode(raw))


class PackedBroker(Broker):
    """Takes records in JSON, and has them in MessagePack, their values with a cipher."""

    def __init__(self, cipher: int = 0) -> None:
        super().__init__()
        self.cipher = cipher

    def put(self, topic, partition, key, value, headers=None):  # type: ignore[no-untyped-def]
        told = [(name, packed(given) or b"") for name, given in headers or ()]
        written = packed(value)
        hidden = None if written is None else shifted(written, self.cipher)
        super().put(topic, partition, packed(key), hidden, told)


class RefusedError(Exception):
    """What a record is that is no event."""

    def __init__(self, kind: Kind, reason: str | None = None) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


def _read(value: bytes | None, plan: StretchPlan) -> dict[str, Any]:
    """An event of the connector, which has a source block and an op."""
    if not value or value == pack(None):
        raise RefusedError(Kind.TOMBSTONE)
    if len(value) > plan.max_event_bytes:
        raise RefusedError(Kind.BAD, "record-too-large")
    event = unpack(value)
    if event is None:
        raise RefusedError(Kind.BAD, "invalid-msgpack")
    source, op, identity = event.get("source"), event.get("op"), plan.identity
    if not isinstance(source, dict) or not isinstance(op, str):
        raise RefusedError(Kind.BAD, "not-debezium")
    if op not in KINDS:
        raise RefusedError(Kind.BAD, "unknown-op")
    for name, wanted in (("connector", identity.connector), ("name", identity.logical_name)):
        if wanted and source.get(name) != wanted:
            raise RefusedError(Kind.BAD, "foreign-connector")
    return event


def _kind_of(op: str, source: dict[str, Any], signal_table: str | None) -> tuple[Kind, str]:
    """What an event is, and of which table."""
    kind, snapshot = KINDS[op], source.get("snapshot")
    if kind == Kind.MESSAGE:
        return kind, ""
    schema, name = source.get("schema"), source.get("table")
    if not isinstance(schema, str) or not isinstance(name, str):
        raise RefusedError(Kind.BAD, "not-debezium")
    table = text_of(schema, name)
    if table == signal_table:
        return Kind.SIGNAL, table
    own = op == "r" and snapshot not in (None, "false", "incremental")
    return Kind.OWN_SNAPSHOT if own else kind, table


class MsgpackConverter:
    """See `Converter`."""

    java_classes = frozenset({"lakemark.test.MessagePackConverter"})
    without_schemas = ""
    read_headers: frozenset[str] = frozenset()
    checks = ("cipher", "key of the cipher")

    def __init__(self, options: ConverterOptions = NO_OPTIONS) -> None:
        self._own = dict(options.own)
        self._cipher = options.get("value", "cipher") or "0"
        self._by = -int(self._cipher) if self._cipher.isdecimal() else 0

    def of(self, options: ConverterOptions) -> "MsgpackConverter":
        return MsgpackConverter(options)

    def problems(self, *, described: bool) -> Iterator[Mistake]:
        if not self._cipher.isdecimal():
            place = OWN if "cipher" in self._own else "value.converter"
            yield Mistake(f"{place}.cipher", "is no number", "set it to one")

    def carries_schemas(self, side: Side) -> bool | None:
        return False

    def keeps_nulls(self) -> bool:
        return True

    def restores_names(self) -> bool:
        return False

    def examine(self, topics: Sequence[str]) -> list[Finding]:
        if self._cipher == "13":
            raise DependencyError("nobody knows the cipher", code="dependency-down")
        return [fine("cipher", topic, "is known") for topic in topics]

    def registry(self) -> str:
        return ""

    def subjects(self, topics: Sequence[str]) -> list[SchemaSubject]:
        return []

    def examine_output(self, topics: Mapping[str, str], reader: Converter) -> list[Finding]:
        return []

    def headers(self, records: Records, plan: StretchPlan) -> Headers:
        out = Headers(*([] for _ in range(12)))
        for key, written in zip(records.keys, records.values, strict=True):
            value = shifted(written, self._by) if written and self._by else written
            try:
                found = (*self._event(key, value, plan), None, None, None, None)
            except RefusedError as what:
                detail = what.reason and "no record of this connector"
                rest = ("", "", positions.LOWEST, 0, "false", None, None, None)
                found = (int(what.kind), *rest, what.reason, detail, None)
            names = (
                "kind", "table", "op", "position", "source_ts", "snapshot", "before", "after",
                "schema", "reason", "detail", "transaction",
            )  # fmt: skip
            for name, cell in zip(names, found, strict=True):
                getattr(out, name).append(cell)
        return out

    def _event(self, key: bytes | None, value: bytes | None, plan: StretchPlan) -> tuple[Any, ...]:
        """The header of an event, but for its schema and what is bad about it."""
        event = _read(value, plan)
        source, op = event["source"], event["op"]
        kind, table = _kind_of(op, source, plan.identity.signal_table)
        images = [event.get(name) for name in ("before", "after")]
        if any(image is not None and not isinstance(image, dict) for image in images):
            raise RefusedError(Kind.BAD, "not-debezium")
        before, after = (None if image is None else pack(image) for image in images)
        if after is None and (op in {"c", "u", "r"} or (op == "d" and not (before or key))):
            raise RefusedError(Kind.BAD, "missing-image")
        position = self._position(source, plan.epoch, own=kind == Kind.OWN_SNAPSHOT)
        if position is None and kind != Kind.MESSAGE:
            raise RefusedError(Kind.BAD, "missing-position")
        time = source.get("ts_us")
        return (
            int(kind), table, op, position or positions.LOWEST,
            time if isinstance(time, int) and abs(time) < 1 << 62 else 0,
            str(source.get("snapshot") or "false"), before, after,
        )  # fmt: skip

    def _position(self, source: dict[str, Any], epoch: int, *, own: bool) -> bytes | None:
        read = lsns.own_snapshot if own else lsns.of_stream
        sequence, lsn = source.get("sequence"), source.get("lsn")
        found = read(
            sequence if isinstance(sequence, str) else None, lsn if isinstance(lsn, int) else None
        )
        return lsns.pack(epoch, *found) if found else None

    def schema_of(self, table: str, schema: bytes, key: bytes | None) -> TableSchema | None:
        return None

    def key_names(self, key: bytes) -> tuple[str, ...]:
        return tuple(unpack(key) or ())

    def canonical_keys(
        self, keys: Sequence[bytes | None], schema: TableSchema | None
    ) -> list[bytes | None]:
        return [self._canonical(unpack(key), schema) for key in keys]

    def _canonical(self, key: dict[str, Any] | None, schema: TableSchema | None) -> bytes | None:
        if not key:
            return None
        if schema is None:
            told = all(value is None or isinstance(value, int | str) for value in key.values())
            return msgspec.json.encode(list(key.values())) if told else None
        columns = [schema.column(name) for name in schema.key if name in schema.by_name]
        if not columns or any(column.name not in key for column in columns):
            return None
        narrow = TableSchema(schema.table, tuple(columns), schema.key)
        rows = self.rows([pack(key)], narrow, HandlingModes())
        if rows.bad:
            return None
        cells = [rows.columns.field(at) for at in range(len(columns))]
        return canonical_from_columns(cells, columns)[0].as_py()  # type: ignore[no-any-return]

    def out_of_range(self, key: bytes | None, schema: TableSchema) -> Column | None:
        return None

    def key_image(self, key: bytes | None) -> bytes:
        return key or pack(None)

    def columns_of(self, image: bytes | None) -> frozenset[str]:
        return frozenset(unpack(image) or ())

    def first_cells(self, image: bytes, count: int) -> list[Any]:
        return list((unpack(image) or {}).values())[:count]

    def rows(
        self,
        images: Sequence[bytes],
        schema: TableSchema,
        modes: HandlingModes,
        *,
        partial: Collection[int] = (),
    ) -> Rows:
        out = Rows(pa.array([], pa.struct([])), [])
        columns: dict[str, list[Any]] = {column.name: [] for column in schema.columns}
        valid = []
        for at, image in enumerate(images):
            row, lacking = unpack(image), []
            if row is None:
                out.bad.append((at, WRONG_TYPE, "the row image is no map"))
            cells: dict[str, Any] = {}
            for column in schema.columns:
                value = (row or {}).get(column.name)
                is_placeholder = at in partial and value == modes.placeholder_text
                if is_placeholder and column.name not in schema.key:
                    lacking.append(column.name)
                    value = None
                cells[column.name], reason = _cell(value, column.type)
                if reason and (not out.bad or out.bad[-1][0] != at):
                    what = "is out of range" if reason == OUT_OF_RANGE else "cannot be read"
                    told = f"column {column.name!r} {what} as {column.type}"
                    out.bad.append((at, reason, told))
            bad = bool(out.bad) and out.bad[-1][0] == at
            valid.append(not bad)
            for name, cell in cells.items():
                columns[name].append(None if bad else cell)
            out.unavailable.append(tuple(lacking) if lacking and not bad else None)
            out.unknown |= set(row or ()) - set(columns)
        fields = [pa.field(column.name, column.type) for column in schema.columns]
        arrays = [pa.array(columns[field.name], field.type) for field in fields]
        mask = None if all(valid) else pa.array([not one for one in valid])
        out.columns = pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)
        return out

    def suspects(
        self, images: Sequence[bytes], schema: TableSchema, modes: HandlingModes
    ) -> set[int]:
        text = modes.placeholder_text.encode()
        return {number for number, image in enumerate(images) if text in image}

    def plain_range(
        self, topic: str, partition: int, parts: Sequence[pa.RecordBatch], plan: StretchPlan
    ) -> DecodedRange | None:
        return None

    def prepare(self) -> None:
        pass

    def schema_changes(self, records: Records, plan: StretchPlan) -> Iterator[SchemaChange]:
        return iter(())

    def learn(self, records: Records, heads: Headers) -> Learnt:
        for value, kind in zip(reversed(records.values), reversed(heads.kind), strict=True):
            if kind == Kind.CHANGE:
                return Learnt(pack({**(unpack(value) or {}), "before": None, "after": None}))
        return Learnt()

    def learnt_key(self, table: str, learnt: Learnt) -> TableSchema | None:
        return None

    def writer(
        self,
        table: str,
        schema: TableSchema,
        modes: HandlingModes,
        *,
        learnt: Learnt,
        wrapped: bool,
    ) -> RecordWriter:
        if not learnt.event:
            raise not_ready(f"no event of the connector has come yet that {table}'s rows follow")
        return MsgpackWriter(table, schema, learnt.event)

    def described(self, schema: TableSchema, learnt: Learnt) -> Learnt:
        return learnt

    def opened(self, departing: Departing, at: Sequence[int]) -> list[ConnectData | None]:
        found = [unpack(departing.raws[index]) for index in at]
        return [
            None if one is None else ConnectData(msgspec.json.encode(one), None, NAME)
            for one in found
        ]

    def issued(self, departing: Departing) -> list[bytes | None]:
        out = [*departing.raws]
        for at, data in enumerate(departing.opened()):
            if data is not None and data.form != NAME:
                out[at] = packed(data.payload)
        return out

    def schema_id(self, value: bytes, headers: Sent) -> int | None:
        return None

    def cells(self, image: bytes) -> Mapping[str, bytes]:
        row = unpack(image)
        if row is None:
            raise ValueError("the image is no map")
        return {name: pack(value) for name, value in row.items()}

    def cells_of(
        self, columns: Mapping[str, pa.Array], schema: TableSchema, modes: HandlingModes
    ) -> Mapping[str, list[bytes]]:
        return {
            name: [pack(value) for value in _plain(values).to_pylist()]
            for name, values in columns.items()
        }

    def with_cells(
        self, value: bytes, cells: Mapping[str, bytes], headers: Came | None = None
    ) -> bytes:
        event = unpack(value) or {}
        after = event.get("after")
        if not isinstance(after, dict) or set(cells) - set(after):
            raise ValueError("the event has no such image")
        news = {name: msgspec.msgpack.decode(cell) for name, cell in cells.items()}
        return pack({**event, "after": {**after, **news}})


class MsgpackWriter:
    """See `RecordWriter`."""

    def __init__(self, table: str, schema: TableSchema, event: bytes) -> None:
        self._event = unpack(event) or {}
        self._name, self._schema = pair_of(table), schema

    def reads(self, rows: pa.StructArray, moment: Moment) -> tuple[list[bytes], list[bytes]]:
        images = self._images(rows, [column.name for column in self._schema.columns])
        keys = self._images(rows, self._schema.key)
        values = [self._value("r", moment, before=None, after=image) for image in images]
        return [pack(key) for key in keys], values

    def removals(self, keys: pa.StructArray, moment: Moment) -> tuple[list[bytes], list[bytes]]:
        found = self._images(keys, self._schema.key)
        values = [self._value("d", moment, before=key, after=None) for key in found]
        return [pack(key) for key in found], values

    def _images(self, rows: pa.StructArray, names: Sequence[str]) -> list[dict[str, Any]]:
        columns = [_plain(rows.field(name)).to_pylist() for name in names]
        return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]

    def _value(self, op: str, moment: Moment, **images: dict[str, Any] | None) -> bytes:
        schema, table = self._name
        last_commit, lsn = lsns.sequence_of(moment.position)
        sequence = [None if n is None else str(n) for n in (last_commit, lsn)]
        source = {
            **self._event["source"], "snapshot": "incremental", "schema": schema, "table": table,
            "sequence": msgspec.json.encode(sequence).decode(), "ts_us": moment.read_ns // 1000,
        }  # fmt: skip
        return pack({**self._event, **images, "source": source, "op": op})


def _plain(values: pa.Array) -> pa.Array:
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def _cell(value: Any, kind: pa.DataType) -> tuple[Any, str | None]:
    """A value for an array of the type, or why it is none."""
    wanted: tuple[type, ...] = (int,)
    if pa.types.is_string(kind):
        wanted = (str,)
    elif pa.types.is_binary(kind):
        wanted = (bytes,)
    elif pa.types.is_boolean(kind):
        wanted = (bool,)
    elif pa.types.is_floating(kind):
        wanted = (int, float)
    if value is None:
        return None, None
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        return None, WRONG_TYPE
    try:
        pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        return None, OUT_OF_RANGE
    return value, None
