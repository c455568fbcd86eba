"""All row images of one table and batch in one place, and the write set made of them.

Packets come first, then rows read from the lake; nets (`net_change.NetChange`) point at the pool's
rows.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.errors import TableError
from lakemark.model import change_batch, net_change, positions
from lakemark.model.arrays import one_array
from lakemark.model.columns import Column
from lakemark.model.evolution import TypesError, fitted, joined, way_on
from lakemark.model.key import canonical_from_columns, stored
from lakemark.model.net_change import NetChange
from lakemark.sink.names import ACTION, BARRIER, CDC, FORCE, NO_COLUMN, PATCH

CDC_FIELDS: Final = [
    pa.field("position", pa.binary()),
    pa.field("op", pa.string()),
    pa.field("source_ts", pa.timestamp("us", "UTC")),
    pa.field("unavailable", pa.list_(pa.string())),
    pa.field("barrier", pa.binary()),
]
DELETED: Final = pa.field("deleted", pa.bool_())
SCHEMA_ID: Final = pa.field(change_batch.SCHEMA_ID, pa.int64())
_NAMES: Final = pa.list_(pa.string())
_SIMPLE: Final = ["op", "action", "position", "source_ts", "force"]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def cdc_type(*, deletes: str, metadata: Collection[str] = ()) -> pa.DataType:
    """Arrow type of the `_cdc` struct under hard or soft deletes, with members that are asked for.

    Args:
        deletes: `hard` or `soft`.
        metadata: see `lake.metadata`.
    """
    fields = [*CDC_FIELDS, DELETED] if deletes == "soft" else CDC_FIELDS
    return pa.struct([*fields, SCHEMA_ID] if SCHEMA_ID.name in metadata else fields)


class RowImages:
    """Row images by number.

    Args:
        tables: packets of one table.
        key: columns of its key.
        deletes: `hard` or `soft`.
    """

    def __init__(
        self, tables: Sequence[pa.Table], key: change_batch.KeyColumns, *, deletes: str
    ) -> None:
        self.key = key
        self.deletes = deletes
        self.offsets: list[int] = []
        self._chunks: list[pa.Table] = []
        self._control = [table.select(_SIMPLE) for table in tables]
        self._rows: pa.StructArray | None = None
        self._count = 0
        self._named = [*tables]  # each with the schemas of its records, if it names any
        for table in tables:
            self.offsets.append(self._count)
            self._count += table.num_rows
            self._chunks.append(_columns_of(table.column("row")))

    def rows(self) -> pa.StructArray:
        """The pool as one struct array.

        Raises:
            TableError: `schema-incompatible`: the types of a column do not go together.
        """
        if self._rows is None:
            try:
                schema = joined(chunk.schema for chunk in self._chunks)
            except TypesError as error:
                raise TableError(
                    f"records of one batch disagree about a column's type: {error}",
                    code="schema-incompatible",
                    hint=way_on("TABLE", "of the table"),
                ) from error
            whole = pa.concat_tables([fitted(chunk, schema) for chunk in self._chunks])
            self._rows = _struct_of(whole)
        return self._rows

    def same(self, row: NetChange, image: NetChange) -> bool:
        """Say whether a row and the image of a delete agree in every column that the row knows."""
        pool = self.rows()
        return all(
            _equal(pool.field(at)[row.cell(column.name)], pool.field(at)[image.row])
            for at, column in enumerate(pool.type)
            if column.name not in row.unavailable
        )

    def kept_otherwise(self, row: NetChange, other: NetChange) -> frozenset[str]:
        """Columns that an event may lack, and of which two whole rows have different values.

        No event lacks a number, a moment or a boolean: PostgreSQL keeps such in the row itself.
        """
        pool = self.rows()
        return frozenset(
            column.name
            for at, column in enumerate(pool.type)
            if not (pa.types.is_primitive(column.type) or pa.types.is_decimal(column.type))
            and column.name not in row.unavailable
            and not _equal(pool.field(at)[row.cell(column.name)], pool.field(at)[other.row])
        )

    def whole(self, image: NetChange) -> bool:
        """Say whether a delete's image has a value outside the key: REPLICA IDENTITY is FULL."""
        pool = self.rows()
        return any(
            pool.field(at)[image.row].is_valid
            for at, column in enumerate(pool.type)
            if column.name not in self.key.names
        )

    def key_table(self, rows: Sequence[int]) -> pa.Table:
        """The key columns of the given pool rows."""
        pool = self.rows()
        index = pa.array(rows, pa.int64())
        return pa.table({name: pool.field(name).take(index) for name in self.key.names})

    def add_lake_rows(self, rows: pa.Table, wanted: Iterable[bytes] = ()) -> dict[bytes, NetChange]:
        """Puts rows of the lake into the pool; their nets by canonical key.

        Args:
            rows: with `_cdc`.
            wanted: the keys by which they were found; the lake has their infinities otherwise.
        """
        start = self._count
        self._chunks.append(rows.drop_columns([CDC]))
        self._named.append(_members_of(rows.column(CDC)))
        self._count += rows.num_rows
        self._rows = None
        columns = [one_array(rows.column(name)) for name in self.key.names]
        kinds = [
            Column(name, column.type, padded=name in self.key.padded)
            for name, column in zip(self.key.names, columns, strict=True)
        ]
        names = canonical_from_columns(columns, kinds).to_pylist()
        types = [column.type for column in columns]
        of_stored = {stored(key, types): key for key in wanted}
        return {
            of_stored.get(key, key): self._lake_net(cdc, start + at)
            for at, (key, cdc) in enumerate(zip(names, rows.column(CDC).to_pylist(), strict=True))
        }

    def schema_ids(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> pa.Array | None:
        """Return the schemas by which pool rows were written; None where none names any."""
        if not any(SCHEMA_ID.name in table.column_names for table in self._named):
            return None
        at = np.asarray(rows, np.int64)
        columns = [change_batch.schema_ids_of(table) for table in self._named]
        numbers = [chunk for column in columns for chunk in column.chunks]
        return pa.concat_arrays(numbers).take(pa.array(at, mask=at < 0))

    def _lake_net(self, cdc: dict[str, Any] | None, row: int) -> NetChange:
        if cdc is None or cdc["position"] is None:  # it was there before lakemark
            return NetChange(net_change.UPSERT, "r", positions.LOWEST, row=row)
        unavailable = frozenset(cdc["unavailable"] or ())
        dead = self.deletes == "soft" and bool(cdc.get("deleted"))
        return NetChange(
            net_change.DELETE if dead else net_change.UPSERT,
            cdc["op"],
            cdc["position"],
            source_ts=_microseconds(cdc["source_ts"]),
            row=row,
            unavailable=unavailable,
            missing=unavailable,
            barrier=cdc["barrier"],
        )

    def simple_rows(self, rows: npt.NDArray[np.int64]) -> pa.Table:
        """The write set of pool rows that go straight through."""
        control, images = pa.concat_tables(self._control), self.rows()
        if len(rows) < self._count:
            index = pa.array(rows, pa.int64())
            control, images = control.take(index), images.take(index)
        return self._lay_out(
            images,
            rows,
            **{name: one_array(control.column(name)) for name in _SIMPLE},
            unavailable=pa.nulls(len(rows), _NAMES),
            patch=pa.nulls(len(rows), _NAMES),
            barrier=pa.nulls(len(rows), pa.binary()),
        )

    def net_rows(self, nets: Sequence[NetChange]) -> pa.Table:
        """The write set of nets."""
        missing = [net.missing if net.base else net.unavailable for net in nets]
        return self._lay_out(
            change_batch.take(self.rows(), nets),
            [net.row for net in nets],
            op=pa.array([net.op for net in nets], pa.string()),
            action=pa.array([net.action for net in nets], pa.string()),
            position=pa.array([net.position for net in nets], pa.binary()),
            source_ts=pa.array([net.source_ts for net in nets], pa.int64()),
            force=pa.array([net.force for net in nets], pa.bool_()),
            unavailable=pa.array([sorted(names) if names else None for names in missing], _NAMES),
            patch=pa.array([sorted(n.unavailable) if n.base else None for n in nets], _NAMES),
            barrier=pa.array([net.barrier for net in nets], pa.binary()),
        )

    def _lay_out(
        self,
        rows: pa.StructArray,
        places: Sequence[int] | npt.NDArray[np.int64],
        **control: pa.Array,
    ) -> pa.Table:
        """Lay out rows, whose events' images are at some places of the pool."""
        cdc = [
            control["position"],
            control["op"],
            control["source_ts"].cast(pa.timestamp("us", "UTC")),
            control["unavailable"],
            control["barrier"],
        ]
        if self.deletes == "soft":
            cdc.append(pc.equal(control["action"], net_change.DELETE))
        kind = cdc_type(deletes=self.deletes)
        if (numbers := self.schema_ids(places)) is not None:
            cdc.append(numbers)
            kind = cdc_type(deletes=self.deletes, metadata=[SCHEMA_ID.name])
        columns = {column.name: rows.field(at) for at, column in enumerate(rows.type)}
        columns[CDC] = pa.StructArray.from_arrays(cdc, fields=list(kind))
        columns[ACTION] = control["action"]
        columns[PATCH] = control["patch"]
        columns[FORCE] = control["force"]
        columns[BARRIER] = pa.nulls(len(rows), pa.binary())
        return pa.table(columns)


def _equal(one: pa.Scalar, other: pa.Scalar) -> bool:
    """Equal as the database compares rows' images: NaN is NaN."""
    left, right = one.as_py(), other.as_py()
    return bool(left == right or (left != left and right != right))  # noqa: PLR0124


def _microseconds(time: datetime | None) -> int:
    """Microseconds since the epoch, exactly: a float of seconds has too few digits."""
    if time is None:
        return 0
    past = time - _EPOCH
    return (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds


def _members_of(cdc: pa.ChunkedArray) -> pa.Table:
    """The members of `_cdc` as columns, null where it is."""
    names = [member.name for member in cdc.type]
    return pa.table(one_array(cdc).flatten(), names=names)


def _columns_of(rows: pa.ChunkedArray) -> pa.Table:
    """A struct column as a table; a struct without children as a table of as many rows."""
    whole = one_array(rows)
    if not len(whole.type):
        return pa.table({NO_COLUMN: pa.nulls(len(whole), pa.null())})
    return pa.Table.from_arrays(
        [whole.field(at) for at in range(len(whole.type))], names=[f.name for f in whole.type]
    )


def _struct_of(table: pa.Table) -> pa.StructArray:
    if NO_COLUMN in table.column_names:
        table = table.drop_columns([NO_COLUMN])
    arrays = [one_array(table.column(name)) for name in table.column_names]
    return pa.StructArray.from_arrays(arrays, names=table.column_names)
