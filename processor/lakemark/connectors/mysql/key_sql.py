"""MySQL and MariaDB: keys, and ranges and lists of them, as SQL that the database itself compares.

Pure. A comparison of rows, ``(a, b) > (x, y)``, reads the whole table; written out by columns it
reads a range of the index. Texts of a boundary become values of a kind that the column is compared
with as its own: numbers with whole columns as numbers, not by way of a double; bytes with bytes;
texts in the column's collation, which wins over that of a literal.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from lakemark.connectors.mysql.names import quoted
from lakemark.errors import TableError
from lakemark.model import civil
from lakemark.model.columns import TIMESTAMP, TIMESTAMP_UTC, Column
from lakemark.model.key_ranges import Boundary, Condition, KeyRange

Kind = Literal["whole", "decimal", "real", "text", "bytes", "moment", "number"]
"""The way in which values of a column are compared; ``number`` where the database orders what it
shows as a text by a number: labels by their place, bit strings."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ENDS: Final = {
    pa.date32(): (civil.FIRST_DAY, civil.LAST_DAY),
    TIMESTAMP: (civil.FIRST_MICRO, civil.LAST_MICRO),
    TIMESTAMP_UTC: (civil.FIRST_MICRO, civil.LAST_MICRO),
}
_FRACTIONS: Final = ("time", "datetime", "timestamp")
_KINDS: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), "whole"),
    "decimal": "decimal",
    **dict.fromkeys(("float", "double"), "real"),
    **dict.fromkeys(("date", "datetime", "timestamp", "time"), "moment"),
    **dict.fromkeys(("bit", "enum", "set"), "number"),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "bytes"),
}
_TEXTS: Final[Mapping[Kind, str]] = {
    "whole": "CAST({} AS CHAR)",
    "decimal": "CAST({} AS CHAR)",
    "real": "CAST({} + 0e0 AS CHAR)",
    "text": "{}",
    "bytes": "HEX({})",
    "moment": "CAST({} AS CHAR)",
    "number": "CAST({} + 0 AS CHAR)",
}
_VALUES: Final[Mapping[Kind, Callable[[str], Any]]] = {
    "whole": int,
    "decimal": Decimal,
    "real": float,
    "number": int,
}


def kind_of(data_type: str) -> Kind:
    """Return how values of a type are compared, by the type's name."""
    return _KINDS.get(data_type, "text")


def type_of(base: str, digits: int) -> str:
    """Return the SQL type of a moment, to which a text is cast; empty for other types.

    Args:
        base: name of a column's type.
        digits: of a second's fraction.
    """
    name = {"timestamp": "DATETIME"}.get(base, base.upper())
    if base == "date":
        return name
    return f"{name}({digits})" if base in _FRACTIONS else ""


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of a table's key.

    Attributes:
        name: the column.
        kind: how its values are compared.
        nullable: whether the database allows null.
        exact: whether a canonical value always stands for one value of the database, and the
            database can be asked for it.
        type: SQL of the type of a moment, which a text must be made; else empty.
    """

    name: str
    kind: Kind
    nullable: bool = False
    exact: bool = True
    type: str = ""

    @property
    def sql(self) -> str:
        """The side of a comparison that is the column's, as SQL with placeholders has it."""
        return f"({escaped(self.name)} + 0)" if self.kind == "number" else escaped(self.name)

    @property
    def text(self) -> str:
        """Its value as the text of a boundary, as SQL with placeholders has it."""
        return _TEXTS[self.kind].replace("{}", escaped(self.name))

    @property
    def placeholder(self) -> str:
        """The place of a value in SQL."""
        return "UNHEX(%s)" if self.kind == "bytes" else "%s"

    @property
    def typed(self) -> str:
        """The place of a value in SQL where no column says what it is."""
        return f"CAST(%s AS {self.type})" if self.type else self.placeholder

    def value(self, text: str) -> Any:
        """Return the parameter for the text of a boundary.

        Raises:
            ValueError, ArithmeticError: it is none of this column.
        """
        return _VALUES.get(self.kind, str)(text)


def range_condition(parts: Sequence[KeyPart], span: KeyRange) -> Condition:
    """Return the condition for the rows of a range.

    A row with a null in its key is in exactly one range too: the last one whose beginning is known
    to be below it.
    """
    sides: list[Condition] = []
    if span.after is not None:
        sides.append(_beyond(parts, _values(parts, span.after), ">"))
    if span.upto is not None:
        upto = _values(parts, span.upto)
        if any(part.nullable for part in parts):
            above = _beyond(parts, upto, ">")
            sides.append(Condition(f"({above.sql}) IS NOT TRUE", above.parameters))
        else:
            sides.append(_beyond(parts, upto, "<="))
    return all_of(*sides) if sides else Condition("1")


def _values(parts: Sequence[KeyPart], boundary: Boundary) -> list[Any]:
    try:
        return [p.value(text) for p, text in zip(parts, boundary, strict=True)]
    except (ValueError, ArithmeticError):
        raise TableError(
            "a chunk's boundary is none of the table's key",
            code="schema-changed",
            hint="the key was changed: the run is started again for this table",
        ) from None


def _beyond(parts: Sequence[KeyPart], values: Sequence[Any], operator: str) -> Condition:
    """Return ``row operator values``, written out by columns so that an index serves it.

    ``(a, b) > (x, y)`` is ``a >= x AND (a > x OR b > y)``: the first half is a range of the index,
    the other one holds within it.
    """
    part, value, mark = parts[0], values[0], parts[0].placeholder
    if len(parts) == 1:
        return Condition(f"{part.sql} {operator} {mark}", (value,))
    strict, inner = operator[0], _beyond(parts[1:], values[1:], operator)
    sql = f"{part.sql} {strict}= {mark} AND ({part.sql} {strict} {mark} OR ({inner.sql}))"
    return Condition(sql, (value, value, *inner.parameters))


def keys_condition(parts: Sequence[KeyPart], keys: Sequence[Boundary]) -> Condition:
    """Return the condition for rows with one of these keys, each given as texts of its columns."""
    if not keys:
        return Condition("0")
    rows = [_asked(parts, key) for key in keys]
    if len(parts) == 1:
        marks = ", ".join([parts[0].placeholder] * len(rows))
        return Condition(f"{parts[0].sql} IN ({marks})", tuple(value for (value,) in rows))
    one = " AND ".join(f"{part.sql} = {part.placeholder}" for part in parts)
    sql = " OR ".join([f"({one})"] * len(rows))
    return Condition(sql, tuple(value for row in rows for value in row))


def keys_query(parts: Sequence[KeyPart], keys: Sequence[Boundary], source: str) -> Condition:
    """Return a query of these keys as a table would have them: its SQL, and its parameters.

    A column of a union has the type and the collation of the table's, of which it takes no row.

    Args:
        parts: the columns of the key.
        keys: at least one, each as the texts of its columns.
        source: SQL of the table, with placeholders.
    """
    names = ", ".join(escaped(part.name) for part in parts)
    row = " UNION ALL SELECT " + ", ".join(part.typed for part in parts)
    sql = f"SELECT {names} FROM {source} WHERE 0{row * len(keys)}"  # noqa: S608 (quoted, bound)
    return Condition(sql, tuple(value for key in keys for value in _asked(parts, key)))


def _asked(parts: Sequence[KeyPart], key: Boundary) -> tuple[Any, ...]:
    try:
        return tuple(p.value(text) for p, text in zip(parts, key, strict=True))
    except (ValueError, ArithmeticError):
        raise unreadable() from None


def all_of(*conditions: Condition | None) -> Condition:
    """Return the condition that holds where all of these hold."""
    given = [c for c in conditions if c is not None]
    sql = " AND ".join(f"({c.sql})" for c in given) or "1"
    return Condition(sql, tuple(p for c in given for p in c.parameters))


def escaped(name: str) -> str:
    """Return an identifier as SQL with placeholders has it."""
    return quoted(name).replace("%", "%%")


def key_texts(keys: Sequence[bytes], columns: Sequence[Column]) -> list[Boundary]:
    """Canonical keys as texts that the database understands, for `keys_condition`.

    Args:
        keys: canonical keys, see `model.key`.
        columns: the key columns in key order.

    Raises:
        TableError: ``key-unreadable``: a key has another number of values than there are columns,
            or one that the database cannot be asked for (null, a nested value, a bit string, a
            clamped date, the first of 1970, which may be a zero date).
    """
    return [_texts(key, columns) for key in keys]


def _texts(key: bytes, columns: Sequence[Column]) -> Boundary:
    try:
        values = msgspec.json.decode(key, type=list[Any])
        return tuple(_text(v, c) for v, c in zip(values, columns, strict=True))
    except (msgspec.MsgspecError, ValueError, OverflowError):
        raise unreadable() from None


def unreadable() -> TableError:
    """Return the error for a list with a key that the table's key columns cannot hold."""
    return TableError(
        "a key of the list is none that the table can be asked for",
        code="key-unreadable",
        hint="correct the list of keys, or take a snapshot of the table",
    )


def _text(value: Any, column: Column) -> str:
    kind = column.type
    if isinstance(value, bool):
        return str(int(value))
    if value in _ENDS.get(kind, ()):
        raise ValueError("clamped")
    if value == 0 and kind in _ENDS:
        raise ValueError("zero date")  # as events have it, where it must not be null
    if pa.types.is_date32(kind) and isinstance(value, int):
        return (_EPOCH + timedelta(days=value)).date().isoformat()
    if pa.types.is_timestamp(kind) and isinstance(value, int):
        moment = _EPOCH + timedelta(microseconds=value)
        return moment.replace(tzinfo=None).isoformat(sep=" ")
    if kind == pa.binary() and isinstance(value, str) and not column.encoding:
        return base64.b64decode(value, validate=True).hex().upper()
    if isinstance(value, int | float) or (isinstance(value, str) and kind != pa.binary()):
        return str(value)
    raise ValueError("key")
