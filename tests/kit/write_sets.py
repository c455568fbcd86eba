"""Write sets made by hand, and the dict that a table must equal after every merge."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from lakemark.connectors.postgres import positions as lsns
from lakemark.model import positions

CDC_FIELDS = [
    pa.field("position", pa.binary()),
    pa.field("op", pa.string()),
    pa.field("source_ts", pa.timestamp("us", "UTC")),
    pa.field("unavailable", pa.list_(pa.string())),
    pa.field("barrier", pa.binary()),
]
DELETED = pa.field("deleted", pa.bool_())
SCHEMA_ID = pa.field("schema_id", pa.int64())
OP = {"upsert": "u", "delete": "d", "insert": "r", "fill": "r"}
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def at(number: int, minor: int = 0) -> bytes:
    """The position of the `number`-th transaction."""
    return lsns.pack(0, number, minor)


def own(number: int) -> bytes:
    """The position of a row of the connector's own snapshot."""
    return lsns.pack(0, 0, number)


def read(number: int) -> bytes:
    """The position of a row of Debezium's incremental snapshot, after the `number`-th commit."""
    return positions.outside_stream(at(number))


def cdc_type(deletes: str = "hard") -> pa.DataType:
    return pa.struct([*CDC_FIELDS, DELETED] if deletes == "soft" else CDC_FIELDS)


def table_schema(columns: Mapping[str, pa.DataType], deletes: str = "hard") -> pa.Schema:
    return pa.schema([*columns.items(), ("_cdc", cdc_type(deletes))])


@dataclass(frozen=True)
class Change:
    """One row of a write set."""

    action: str
    values: dict[str, Any]
    position: bytes
    patch: tuple[str, ...] | None = None
    unavailable: tuple[str, ...] | None = None
    row_barrier: bytes | None = None
    force: bool = False
    barrier: bytes | None = None
    op: str = ""
    source_ts: datetime = EPOCH
    schema_id: int | None = None


def upsert(values: dict[str, Any], position: bytes, **more: Any) -> Change:
    return Change("upsert", values, position, **more)


def delete(values: dict[str, Any], position: bytes, **more: Any) -> Change:
    return Change("delete", values, position, **more)


def insert(values: dict[str, Any], position: bytes, **more: Any) -> Change:
    return Change("insert", values, position, **more)


def fill(values: dict[str, Any], barrier: bytes, patch: Sequence[str]) -> Change:
    return Change("fill", values, barrier, patch=tuple(patch), barrier=barrier)


def write_set(
    changes: Iterable[Change],
    columns: Mapping[str, pa.DataType],
    deletes: str = "hard",
) -> pa.Table:
    """The pa.Table that `sink.resolve` would make of these changes."""
    rows = list(changes)
    data = {
        name: pa.array([c.values.get(name) for c in rows], kind) for name, kind in columns.items()
    }
    kind = cdc_type(deletes)
    if any(change.schema_id is not None for change in rows):
        kind = pa.struct([*kind, SCHEMA_ID])
    data["_cdc"] = pa.array([_cdc(c, deletes) for c in rows], kind)
    data["__action"] = pa.array([c.action for c in rows], pa.string())
    data["__patch"] = pa.array([c.patch for c in rows], pa.list_(pa.string()))
    data["__force"] = pa.array([c.force for c in rows], pa.bool_())
    data["__barrier"] = pa.array([c.barrier for c in rows], pa.binary())
    return pa.table(data)


def _cdc(change: Change, deletes: str) -> dict[str, Any]:
    found = {
        "position": change.position,
        "op": change.op or OP.get(change.action, "u"),
        "source_ts": change.source_ts,
        "unavailable": None if change.unavailable is None else sorted(change.unavailable),
        "barrier": change.row_barrier,
        "schema_id": change.schema_id,
    }
    if deletes == "soft":
        found["deleted"] = change.action == "delete"
    return found


# -- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row of the model table."""

    values: dict[str, Any]
    position: bytes
    op: str
    source_ts: datetime = EPOCH
    unavailable: frozenset[str] = frozenset()
    barrier: bytes | None = None
    deleted: bool = False
    schema_id: int | None = None


@dataclass
class Model:
    """What the table must hold: the contract's rules, one row at a time, nothing clever."""

    columns: Mapping[str, pa.DataType]
    key: Sequence[str]
    deletes: str = "hard"
    names_schemas: bool = False
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            key = tuple(change.values[k] for k in self.key)
            row = self._after(self.rows.get(key), change)
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row

    def _after(self, row: Row | None, change: Change) -> Row | None:
        applies = row is None or change.force or row.position <= change.position
        if change.action == "fill":
            return None if row is None else self._filled(row, change)
        if change.action == "insert":
            again = row is not None and row.deleted and row.position < change.position
            return self._given(change) if row is None or again else row
        if not applies:
            return row
        if change.action == "delete":
            return self._deleted(row, change)
        if row is None or row.deleted or change.patch is None:
            return self._given(change)
        kept = {c: row.values[c] for c in change.patch if c not in self.key}
        return replace(
            self._given(change),
            values={**self._given(change).values, **kept},
            unavailable=row.unavailable & frozenset(change.patch),
            barrier=row.barrier,
        )

    def _given(self, change: Change) -> Row:
        return Row(
            {c: change.values.get(c) for c in self.columns},
            change.position,
            change.op or OP.get(change.action, "u"),
            change.source_ts,
            frozenset(change.unavailable or ()),
            change.row_barrier,
            schema_id=change.schema_id,
        )

    def _deleted(self, row: Row | None, change: Change) -> Row | None:
        if row is None or self.deletes == "hard":
            return None
        return replace(
            row,
            position=change.position,
            op=change.op or "d",
            source_ts=change.source_ts,
            deleted=True,
            schema_id=change.schema_id,
        )

    def _filled(self, row: Row, change: Change) -> Row:
        if row.barrier is None or row.barrier != change.barrier:
            return row
        named = row.unavailable & frozenset(change.patch or ())
        values = {**row.values, **{c: change.values.get(c) for c in named if c in self.columns}}
        return replace(
            row, values=values, unavailable=row.unavailable - frozenset(change.patch or ())
        )

    def truncate(self, position: bytes) -> None:
        for key, row in list(self.rows.items()):
            if not positions.below_truncate(row.position, position):
                continue
            if self.deletes == "hard":
                del self.rows[key]
            elif not row.deleted:
                self.rows[key] = replace(
                    row, position=position, op="t", deleted=True, schema_id=None
                )

    def content(self) -> list[dict[str, Any]]:
        return sorted(map(self._shown, self.rows.values()), key=self._order)

    def _shown(self, row: Row) -> dict[str, Any]:
        cdc = {
            "position": row.position,
            "op": row.op,
            "source_ts": row.source_ts,
            "unavailable": sorted(row.unavailable) or None,
            "barrier": row.barrier,
        }
        if self.deletes == "soft":
            cdc["deleted"] = row.deleted
        if self.names_schemas:
            cdc["schema_id"] = row.schema_id
        return {**row.values, "_cdc": cdc}

    def _order(self, row: Mapping[str, Any]) -> str:
        return repr([row[k] for k in self.key])


def content(table: pa.Table, key: Sequence[str]) -> list[dict[str, Any]]:
    """A table read back, in the form and order of `Model.content`."""
    rows = table.to_pylist()
    for row in rows:
        row["_cdc"]["unavailable"] = sorted(row["_cdc"]["unavailable"] or ()) or None
    return sorted(rows, key=lambda row: repr([row[k] for k in key]))


def later(seconds: int) -> datetime:
    return EPOCH + timedelta(seconds=seconds)
