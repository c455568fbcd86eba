"""Columns of a chunk: the SQL that MySQL and MariaDB write them with, and how that text is read.

Pure. A chunk's columns come as bytes (`mysql_rows`); `cell` says for one column which expression
to select and how its bytes become the canonical Arrow array, equal to what the event path makes of
the connector's JSON for the same value and handling modes. A whole column is read at a time.

The texts are those of a session with `mysql_session.SESSION_SETTINGS`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.connectors.mysql.catalog import CatalogColumn
from lakemark.connectors.mysql.json_text import canonical_texts
from lakemark.connectors.mysql.names import quoted
from lakemark.connectors.typed_rows import Cell, Read
from lakemark.model.civil import Tally
from lakemark.model.columns import TIMESTAMP, Column
from lakemark.model.handling_modes import HandlingModes

_MICROS: Final = 6  # digits of a second's fraction
_MILLIS: Final = 3  # that the forms of Connect hold
_ZERO: Final = "^[0-9]{4}-(00-|[0-9]{2}-00)"
"""Dates that are none: all of it is zero, or the month, or the day."""
_FIRST_USUAL_YEAR: Final = 100
_OF_A_DAY: Final = frozenset({"connect", "isostring"})
_IN_A_DAY: Final = "^([01][0-9]|2[0-3]):"
_CONNECT: Final = "org.apache.kafka.connect.data."
_NANO_TIMESTAMP: Final = "io.debezium.time.NanoTimestamp"
_NANO_ENDS: Final = (-(1 << 63) // 1000 + 1, ((1 << 63) - 1) // 1000)
"""Microseconds whose nanoseconds fit 64 bits: years 1677 to 2262."""


def cell(column: CatalogColumn, target: Column, modes: HandlingModes) -> Cell:
    """Return the way of a column from the database.

    Args:
        column: as the catalog has it.
        target: the same column as `from_catalog` describes it for `modes`.
        modes: the connector's settings.
    """
    make = _MAKERS.get(column.kind.base)
    if make is not None:
        return make(column, target, modes)
    return Cell("{}", _cast(target.type), target.type)


def _texts(raw: pa.Array) -> pa.Array:
    """Return bytes as text; whoever sent it says that it is UTF-8, which is checked."""
    return raw.cast(pa.string())


def _cast(kind: pa.DataType) -> Read:
    if kind == pa.binary():
        return lambda raw, _: raw
    if kind == pa.string():
        return lambda raw, _: _texts(raw)
    return lambda raw, _: _texts(raw).cast(kind)


def _whole(_: CatalogColumn, target: Column, __: HandlingModes) -> Cell:
    """Return the cell of a whole number; a boolean of one is anything but 0."""
    if target.type == pa.bool_():
        return Cell("({} <> 0)", lambda raw, _: pc.equal(_texts(raw), "1"), target.type)
    return Cell("{}", _cast(target.type), target.type)


def _real(_: CatalogColumn, target: Column, __: HandlingModes) -> Cell:
    """Return the cell of a float or a double: of a float the server shows six digits alone."""

    def read(raw: pa.Array, _: Tally) -> pa.Array:
        return _texts(raw).cast(pa.float64()).cast(target.type)

    return Cell("({} + 0e0)", read, target.type)


def _decimal(_: CatalogColumn, target: Column, modes: HandlingModes) -> Cell:
    if target.type != pa.string() or modes.decimal == "string":
        return Cell("{}", _cast(target.type), target.type)
    return Cell("{}", _plain, target.type)


def _plain(raw: pa.Array, _: Tally) -> pa.Array:
    """Take trailing zeros from decimals."""
    texts = _texts(raw)
    short = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
    return pc.if_else(pc.match_substring(texts, "."), short, texts)


def _bits(_: CatalogColumn, target: Column, modes: HandlingModes) -> Cell:
    """Return the cell of a bit string: the server's bytes begin with the highest bits."""
    if target.type == pa.bool_():
        return Cell("{}", lambda raw, _: pc.equal(raw, b"\1"), target.type)
    if target.type == pa.binary():
        return Cell("{}", _reversed, target.type)
    return _blob(_, target, modes, inner="REVERSE({})")


def _reversed(raw: pa.Array, _: Tally) -> pa.Array:
    return pa.array([None if v is None else v[::-1] for v in raw.to_pylist()], pa.binary())


def _blob(_: CatalogColumn, target: Column, modes: HandlingModes, *, inner: str = "{}") -> Cell:
    if modes.binary == "bytes":
        return Cell(inner, _cast(target.type), target.type)
    if modes.binary == "hex":
        return Cell(f"LOWER(HEX({inner}))", _cast(pa.string()), target.type)
    select = f"REPLACE(TO_BASE64({inner}), CHAR(10), '')"
    if modes.binary == "base64-url-safe":
        select = f"REPLACE(REPLACE({select}, '+', '-'), '/', '_')"
    return Cell(select, _cast(pa.string()), target.type)


def _date(column: CatalogColumn, target: Column, modes: HandlingModes) -> Cell:
    moments = _moments(column, target.type, modes)
    return Cell("{}", lambda raw, _: moments(_texts(raw)), target.type)


def _moment(column: CatalogColumn, target: Column, modes: HandlingModes) -> Cell:
    moments = _moments(column, TIMESTAMP, modes)

    def read(raw: pa.Array, _: Tally) -> pa.Array:
        found = moments(_texts(raw))
        if target.encoding == _CONNECT + "Timestamp":
            found = pc.floor_temporal(found, unit="millisecond")
        if target.encoding == _NANO_TIMESTAMP:
            found = _null_where(pc.invert(_between(found, *_NANO_ENDS)), found)
        return found if target.type == TIMESTAMP else found.view(target.type)

    return Cell("{}", read, target.type)


def _moments(
    column: CatalogColumn, kind: pa.DataType, modes: HandlingModes
) -> Callable[[pa.Array], pa.Array]:
    """Return the reader of a column of dates or timestamps.

    A zero date comes from the connector as null, or as 1970-01-01 where the column is NOT NULL. To
    a year below 100 the connector adds a century, unless it is told not to.
    """
    zero = pa.scalar("1970-01-01" if column.not_null else None, pa.string())
    adjusts = modes.setting("enable.time.adjuster") != "false" and column.kind.base != "timestamp"

    def read(texts: pa.Array) -> pa.Array:
        try:
            found = texts.cast(kind)
        except pa.ArrowInvalid:
            found = None
        if found is None or _has_early(found):
            texts = pc.if_else(pc.match_substring_regex(texts, _ZERO), zero, texts)
            if adjusts:
                texts = pc.replace_substring_regex(texts, "^00([0-6])", r"20\1")
                texts = pc.replace_substring_regex(texts, "^00([7-9])", r"19\1")
            found = texts.cast(kind)
        return found

    return read


def _has_early(moments: pa.Array) -> bool:
    """Return whether there is a moment before the year 100."""
    least = pc.min(moments)
    return bool(least.is_valid and least.as_py().year < _FIRST_USUAL_YEAR)


def _between(values: pa.Array, first: int, last: int) -> pa.Array:
    numbers = values.cast(pa.int64())
    return pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))


def _null_where(mask: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(mask, pa.scalar(None, values.type), values)


def _time(column: CatalogColumn, target: Column, modes: HandlingModes) -> Cell:
    """Return the cell of a time: any number of hours, six digits of a fraction.

    Some forms are for times of a day, and the connector sends null for others.
    """
    digits = column.kind.digits
    kept = min(digits, _MILLIS) if target.encoding == _CONNECT + "Time" else digits
    rest = ("" if digits else ".") + "0" * (_MICROS - kept)

    def read(raw: pa.Array, _: Tally) -> pa.Array:
        texts = _texts(raw)
        if modes.time_precision in _OF_A_DAY:
            texts = _null_where(pc.invert(pc.match_substring_regex(texts, _IN_A_DAY)), texts)
        if kept < digits:
            texts = pc.utf8_slice_codeunits(texts, 0, kept - digits)
        return pc.binary_join_element_wise(texts, rest, "")

    return Cell("{}", read, target.type)


def _json(_: CatalogColumn, target: Column, __: HandlingModes) -> Cell:
    return Cell("{}", lambda raw, _: canonical_texts(_texts(raw)), target.type)


def _shape(_: CatalogColumn, target: Column, __: HandlingModes) -> Cell:
    """Return the cell of a geometry: four bytes of SRID, the least first, then its WKB."""
    names = [member.name for member in target.members]

    def read(raw: pa.Array, _: Tally) -> pa.Array:
        shapes = [None if v is None else _members(v, names) for v in raw.to_pylist()]
        return pa.array(shapes, target.type)

    return Cell("{}", read, target.type)


def _members(value: bytes, names: list[str]) -> dict[str, Any]:
    srid, wkb = int.from_bytes(value[:4], "little"), value[4:]
    found: dict[str, Any] = {"srid": srid or None, "wkb": wkb}
    if "x" in names:
        order = "<f8" if wkb[0] else ">f8"
        found["x"], found["y"] = (float(v) for v in np.frombuffer(wkb, order, 2, offset=5))
    return {name: found.get(name) for name in names}


def _vector(_: CatalogColumn, target: Column, __: HandlingModes) -> Cell:
    """Return the cell of a vector: its floats, the least byte first."""

    def read(raw: pa.Array, _: Tally) -> pa.Array:
        lists = [None if v is None else np.frombuffer(v, "<f4") for v in raw.to_pylist()]
        return pa.array(lists, target.type)

    return Cell("{}", read, target.type)


_BLOBS: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_Maker = Callable[[CatalogColumn, Column, HandlingModes], Cell]
_MAKERS: Final[Mapping[str, _Maker]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), _whole),
    **dict.fromkeys(("float", "double"), _real),
    "decimal": _decimal,
    "bit": _bits,
    **dict.fromkeys(_BLOBS, _blob),
    "date": _date,
    **dict.fromkeys(("datetime", "timestamp"), _moment),
    "time": _time,
    "json": _json,
    **dict.fromkeys(
        (
            *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
            *("multipolygon", "geometrycollection", "geomcollection"),
        ),
        _shape,
    ),
    "vector": _vector,
}


def selected(name: str, column_cell: Cell) -> str:
    """The SQL expression of a column, its name quoted."""
    return column_cell.select.replace("{}", quoted(name))


# Types whose canonical values are exact, and are asked for as they are shown. Labels are ordered by
# their place, a float has no text that equals it.
_INEXACT: Final = frozenset({"float", "double", "enum", "set", "bit", "year"})


def exact(column: CatalogColumn, target: Column, modes: HandlingModes) -> bool:
    """Say whether a row can be looked up by the canonical value of a column.

    It always stands for one value of the database, which finds it by this value.
    """
    name = column.kind.base
    if name in ("datetime", "timestamp", "time"):
        return not target.encoding.startswith(_CONNECT) or column.kind.digits <= _MILLIS
    if name == "decimal":
        return modes.decimal != "double"
    if name in _BLOBS:
        return modes.binary == "bytes"
    return name not in _INEXACT
