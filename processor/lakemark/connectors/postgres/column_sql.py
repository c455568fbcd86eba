"""Columns of a chunk: the SQL that PostgreSQL writes them with, and how that text is read.

Pure. A chunk is read as CSV text; `cell` says for one column which expression to select and how
its texts become the canonical Arrow array, equal to what the event path makes of the connector's
JSON for the same value and handling modes. The usual types are read a whole column at a time.

The texts are those of a session with `SESSION_SETTINGS`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.connectors.postgres.catalog import CatalogColumn, connect_field
from lakemark.connectors.postgres.value_parsers import value_of
from lakemark.connectors.typed_rows import Cell, Read
from lakemark.model.civil import Tally, edges
from lakemark.model.columns import Column
from lakemark.model.handling_modes import HandlingModes

# What the texts depend on; a session's own defaults may be anything. Rows hidden by row-level
# security would look deleted: with row_security off they are an error. Compiling takes longer than
# a chunk.
SESSION_SETTINGS: Final[Mapping[str, str]] = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "xmloption": "content",
    "client_encoding": "UTF8",
    "row_security": "off",
    "jit": "off",
}

_CLOCK_WIDTH: Final = len("HH:MM:SS.ffffff")


def cell(column: CatalogColumn, target: Column, modes: HandlingModes) -> Cell:
    """Return the way of a column from the database.

    Args:
        column: as the catalog has it.
        target: the same column as `from_catalog` describes it for `modes`.
        modes: the connector's settings.
    """
    if column.element_type_name is None:
        return _scalar(column, target, modes)
    if column.element_type_name == "bit":  # the connector sends null whatever the value is
        return Cell("NULL", lambda texts, _: pa.nulls(len(texts), target.type), target.type)
    if target.element is None:
        return _unknown(target, modes)
    element = replace(
        column,
        type_name=column.element_type_name,
        is_enum=column.element_is_enum,
        element_type_name=None,
    )
    return _array(_scalar(element, target.element, modes), target.type)


def _scalar(column: CatalogColumn, target: Column, modes: HandlingModes) -> Cell:
    name, kind = column.type_name, target.type
    make = _MAKERS.get(name)
    if make is not None:
        return make(target, modes)
    value = value_of(name, kind)
    if value is not None and not (name in ("bit", "varbit") and kind == pa.bool_()):
        return Cell("{}", _each(kind, value), kind)
    if kind == pa.bool_():
        return Cell("{}", _boolean, kind)
    if connect_field(column, replace(modes, include_unknown=False)) is None:
        return _unknown(target, modes)
    return Cell("{}", _cast(kind), kind)


def _each(kind: pa.DataType, value: Callable[[str], object]) -> Read:
    def read(texts: pa.Array, _: Tally) -> pa.Array:
        return pa.array([None if t is None else value(t) for t in texts.to_pylist()], kind)

    return read


def _cast(kind: pa.DataType) -> Read:
    return lambda texts, _: texts if texts.type == kind else texts.cast(kind)


def _boolean(texts: pa.Array, _: Tally) -> pa.Array:
    return pc.or_(pc.equal(texts, "t"), pc.equal(texts, "1"))


def _numeric(target: Column, modes: HandlingModes, *, select: str = "{}") -> Cell:
    if target.type != pa.string() or modes.decimal == "string":
        return Cell(select, _cast(target.type), target.type)
    return Cell(select, _plain, target.type)


def _money(target: Column, modes: HandlingModes) -> Cell:
    select = f"round({{}}::numeric, {modes.money_fraction_digits})"
    return _numeric(target, modes, select=select)


def _plain(texts: pa.Array, _: Tally) -> pa.Array:
    """Take trailing zeros from decimals."""
    if pc.any(pc.match_substring_regex(texts, "[A-Za-z]")).as_py():
        raise ValueError("decimal")
    short = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
    return pc.if_else(pc.match_substring(texts, "."), short, texts)


def _bytea(target: Column, modes: HandlingModes, *, inner: str = "{}") -> Cell:
    if modes.binary == "bytes":
        return Cell(f"encode({inner}, 'hex')", _unhex, target.type)
    if modes.binary == "hex":
        return Cell(f"encode({inner}, 'hex')", _cast(pa.string()), target.type)
    kept = r"E'\n'" if modes.binary == "base64" else r"E'+/\n'"
    given = "''" if modes.binary == "base64" else "'-_'"
    return Cell(f"translate(encode({inner}, 'base64'), {kept}, {given})", _cast(pa.string()),
                target.type)  # fmt: skip


def _unknown(target: Column, modes: HandlingModes) -> Cell:
    """Return the cell of a type that the connector sends as the bytes of its text.

    Of arrays of such types it sends null.
    """
    if pa.types.is_list(target.type):
        return Cell("NULL", lambda texts, _: pa.nulls(len(texts), target.type), target.type)
    return _bytea(target, modes, inner="convert_to(({})::text, 'UTF8')")


def _unhex(texts: pa.Array, _: Tally) -> pa.Array:
    """Decode hex digits to binary, all values at once."""
    joined = pa.concat_arrays([texts])  # offsets from 0, also of a slice
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32, len(joined) + joined.offset + 1)[joined.offset :]
    digits = data.to_pybytes()[ends[0] : ends[-1]] if data is not None else b""
    raw = pa.py_buffer(bytes.fromhex(digits.decode("ascii")))
    halves = pa.py_buffer(((ends - ends[0]) // 2).astype(np.int32))
    bitmap = pc.is_valid(joined)
    out = pa.BinaryArray.from_buffers(pa.binary(), len(joined), [None, halves, raw])
    return out if not joined.null_count else pc.if_else(bitmap, out, pa.scalar(None, pa.binary()))


def _split(texts: pa.Array, tally: Tally) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return dates and times that Delta holds (else null), and masks of those before and after."""
    early = pc.or_(pc.starts_with(texts, "-inf"), pc.ends_with(texts, "BC"))
    usual = pc.and_not(pc.match_substring_regex(texts, r"^\d{4}-\d\d-\d\d"), early)
    late = pc.and_not(pc.invert(usual), early)
    if tally.exact:
        infinite = pc.is_in(texts, value_set=pa.array(["infinity", "-infinity"]))
        if not pc.all(pc.or_(pc.or_(usual, infinite), pc.is_null(texts))).as_py():
            raise OverflowError("moment")
    else:
        tally.clamped += (pc.sum(early).as_py() or 0) + (pc.sum(late).as_py() or 0)
    return pc.if_else(usual, texts, pa.scalar(None, pa.string())), early, late


def _date(texts: pa.Array, tally: Tally) -> pa.Array:
    try:
        return texts.cast(pa.date32())
    except pa.ArrowInvalid:
        usual, early, late = _split(texts, tally)
    days = usual.cast(pa.date32()).cast(pa.int32())
    for which, end in zip((early, late), edges(pa.date32(), tally), strict=True):
        days = pc.if_else(which, pa.scalar(end, pa.int32()), days)
    return days.cast(pa.date32())


def _timestamp(target: Column, modes: HandlingModes) -> Cell:
    kind = target.type
    cut = modes.time_precision == "connect" and kind.tz is None

    def moments(texts: pa.Array) -> pa.Array:
        exact = texts.cast(kind)
        return pc.floor_temporal(exact, unit="millisecond") if cut else exact

    def read(texts: pa.Array, tally: Tally) -> pa.Array:
        try:
            return moments(texts)
        except pa.ArrowInvalid:
            usual, early, late = _split(texts, tally)
        micros = moments(usual).cast(pa.int64())
        for which, end in zip((early, late), edges(kind, tally), strict=True):
            micros = pc.if_else(which, pa.scalar(end, pa.int64()), micros)
        return micros.cast(kind)

    return Cell("{}", read, kind)


def _time(target: Column, modes: HandlingModes) -> Cell:
    cut = modes.time_precision == "connect"

    def read(texts: pa.Array, _: Tally) -> pa.Array:
        dotted = pc.if_else(
            pc.match_substring(texts, "."), texts, pc.binary_join_element_wise(texts, "", ".")
        )
        full = pc.utf8_rpad(dotted, _CLOCK_WIDTH, "0")
        if cut:
            full = pc.utf8_rpad(pc.utf8_slice_codeunits(full, 0, 12), _CLOCK_WIDTH, "0")
        return full

    return Cell("{}", read, target.type)


def _zoned_time(target: Column, modes: HandlingModes) -> Cell:
    if modes.time_precision == "structured":
        return Cell("{}", _kept_zone, target.type)
    select = "to_char(({} AT TIME ZONE 'UTC')::time, 'HH24:MI:SS.US')"

    def read(texts: pa.Array, _: Tally) -> pa.Array:
        short = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
        return pc.binary_join_element_wise(short, "Z", "")

    return Cell(select, read, target.type)


def _kept_zone(texts: pa.Array, _: Tally) -> pa.Array:
    """Write zones as the connector does: 12:00:00+00 as 12:00:00Z, and +02 as +02:00."""
    utc = pc.replace_substring_regex(texts, r"[-+]00$", "Z")
    return pc.replace_substring_regex(utc, r"([-+]\d\d)$", r"\1:00")


def _array(element: Cell, kind: pa.DataType) -> Cell:
    """Return the cell of an array: it comes as a JSON array of its elements' texts."""
    inner = element.select.replace("{}", "e")
    if inner == "e":  # not e::text, which would take the padding from char(n)
        inner = "CASE WHEN e IS NOT NULL THEN format('%s', e) END"
    elements = f"json_agg(({inner})::text ORDER BY n)"
    source = "unnest({}) WITH ORDINALITY AS u(e, n)"
    texts = f"coalesce((SELECT {elements} FROM {source})::text, '[]')"  # noqa: S608 (no values)
    select = f"CASE WHEN {{}} IS NOT NULL THEN {texts} END"
    decode = msgspec.json.Decoder(list[str | None]).decode

    def read(texts: pa.Array, tally: Tally) -> pa.Array:
        lists = [None if text is None else decode(text) for text in texts.to_pylist()]
        flat = [item for items in lists if items is not None for item in items]
        offsets = _offsets([0 if items is None else len(items) for items in lists])
        mask = pa.array([items is None for items in lists], pa.bool_())
        values = element.read(pa.array(flat, pa.string()), tally)
        return pa.ListArray.from_arrays(offsets, values, mask=mask).cast(kind)

    return Cell(select, read, kind)


def _offsets(sizes: Sequence[int]) -> pa.Array:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.array(offsets)


_MAKERS: Final[Mapping[str, Callable[[Column, HandlingModes], Cell]]] = {
    "numeric": _numeric,
    "money": _money,
    "bytea": _bytea,
    "date": lambda target, _: Cell("{}", _date, target.type),
    "time": _time,
    "timetz": _zoned_time,
    "timestamp": _timestamp,
    "timestamptz": _timestamp,
}


_MILLIS: Final = 3  # digits of a second's fraction that time.precision.mode=connect keeps
# Types whose canonical values are exact whatever the connector's handling modes are.
_EXACT: Final = frozenset(
    [
        *("bool", "int2", "int4", "int8", "oid", "float4", "float8", "date", "timestamptz"),
        *("text", "varchar", "bpchar", "citext", "char"),
        *("uuid", "inet", "cidr", "macaddr", "macaddr8"),
    ]
)


def exact(column: CatalogColumn, modes: HandlingModes) -> bool:
    """Say whether a canonical value of a column always stands for one value of the database."""
    name = column.type_name
    if name in {"time", "timestamp"}:
        return modes.time_precision != "connect" or 0 <= column.typmod <= _MILLIS
    if name == "numeric":
        return modes.decimal != "double"
    if name == "bytea":
        return modes.binary == "bytes"
    return column.is_enum or name in _EXACT


def selected(name: str, cell: Cell) -> str:
    """The SQL expression of a column, its name quoted."""
    return cell.select.replace("{}", quoted(name))


def quoted(*names: str) -> str:
    """Identifiers joined by dots, quoted as SQL."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
