"""The default that Debezium's PostgreSQL connector gives a column in its schema; pure.

It reads the expression of the catalog (`pg_get_expr`) as a literal, whatever it is: `'x'::text` is
``x``, and so is the first literal of a longer expression. Of a call it knows no value, and takes
one for it that the type has. Where the type is none that it reads, or the text is no value of it,
the column has no default in the schema, as if it had none in the database.

Not told, as they are the connector's and nobody else's: those of intervals, bit strings that a
call makes, dates and timestamps beyond year 9999 or before Christ, decimals as texts, and times as
texts (``isostring``). NaN and infinities are none that Avro has.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from lakemark.connectors import default_values
from lakemark.model.columns import USUAL_DIGITS

Field = Mapping[str, Any]
_LITERAL: Final = re.compile(r"'([^']*(?:''[^']*)*)'")
_CALL: Final = re.compile(r"[(]?[A-Za-z0-9_.]+\((?:.+(?:, ?.+)*)?\)")
_OF_ENUM: Final = re.compile(r"'(.*)'::[^']+", re.DOTALL)
_MOMENTS: Final = frozenset(
    {"current_timestamp", "current_time", "current_date", "localtime", "localtimestamp"}
)
_ZONED: Final = re.compile(r"(\d{4}-\d\d-\d\d(?: [\d:.]+)?)(?:([-+])(\d\d)(?::(\d\d))?)?")
_ZONE: Final = "io.debezium.time.ZonedTimestamp"


def default_of(
    expression: str, type_name: str, field: Field, *, is_enum: bool, digits: int | None
) -> Any:
    """Return a default as Connect's JSON has it; None for none.

    Args:
        expression: of the catalog.
        type_name: typname of the column's type, which is no domain.
        field: of the column in the row's Connect schema.
        is_enum: whether the type is an enum.
        digits: of a timestamp's fraction; None for the usual ones.
    """
    if is_enum:
        match = _OF_ENUM.fullmatch(expression)
        return match and match[1]
    if type_name not in _TYPES:
        return None
    of_call, value = _TYPES[type_name]
    text = _text(expression, of_call)
    if text is None:
        return None
    try:
        if field.get("name") == _ZONE:
            return _zoned(text, USUAL_DIGITS if digits is None else digits)
        return value(text, field)
    except (ValueError, KeyError, OverflowError):
        return None


def _text(expression: str, of_call: str | None) -> str | None:
    """Return the literal that stands for an expression; None for none."""
    if _CALL.match(expression) or expression.lower() in _MOMENTS:
        return of_call
    if "'" not in expression:
        return None if expression.startswith("NULL::") else expression
    match = _LITERAL.search(expression)
    return match and match[1].replace("''", "'")


def _zoned(text: str, digits: int) -> str:
    match = _ZONED.fullmatch(text)
    if match is None:
        raise ValueError("timestamp")
    moment, sign, hours, minutes = match.groups()
    offset = (int(hours or 0) * 60 + int(minutes or 0)) * 60_000_000
    micros = default_values.micros(moment) - (-offset if sign == "-" else offset)
    return default_values.utc_text(micros, digits)


def _plain(text: str, field: Field) -> str:
    if field["type"] != "string":
        raise ValueError("form")
    return text


_WHOLE: Final = ("0", default_values.whole)
_FRACTION: Final = ("0.0", lambda text, _: default_values.fraction(text))
_TEXT: Final = ("", _plain)
_DOCUMENT: Final = ("{}", _plain)
_BITS: Final = (None, default_values.bits)
_TYPES: Final[Mapping[str, tuple[str | None, Callable[[str, Field], Any]]]] = {
    "bool": ("false", lambda text, _: text.lower() == "true"),
    **dict.fromkeys(("int2", "int4", "int8"), _WHOLE),
    **dict.fromkeys(("float4", "float8"), _FRACTION),
    "numeric": ("0.0", default_values.decimal),
    **dict.fromkeys(("bpchar", "varchar", "text", "xml"), _TEXT),
    **dict.fromkeys(("json", "jsonb"), _DOCUMENT),
    "uuid": (str(UUID(int=0)), lambda text, _: str(UUID(text))),
    "date": ("1970-01-01", default_values.date),
    "time": ("00:00", default_values.time),
    "timestamp": ("1970-01-01", default_values.timestamp),
    "timestamptz": ("1970-01-01", _plain),
    **dict.fromkeys(("bit", "varbit"), _BITS),
}
"""By type: the text that stands for a call, and what makes the value of a text."""
