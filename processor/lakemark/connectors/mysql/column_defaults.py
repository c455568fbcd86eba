"""The default that Debezium's connectors of MySQL and MariaDB give a column in its schema; pure.

They have it from the statement that made the column: `literal_of` gives the same text from the
catalog, and the schema topic has it as it is. An expression that is no literal is none to them, but
for the current time, for which they take 1970.

Not told, as they hang on how the statement was written or on Connect's time zone: those of binary
columns, of texts with a backslash, of timestamps but for the current time, of ``bigint unsigned``
with ``bigint.unsigned.handling.mode=precise``, of decimals and times as texts.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from lakemark.connectors import default_values

Field = Mapping[str, Any]
NOW: Final = "1970-01-01 00:00:00"
"""The text that stands for the current time."""
_NOW: Final = re.compile(
    r"(?:current_timestamp|now|localtime|localtimestamp)(?:\(\d?\))?", re.IGNORECASE
)
_NUMBER: Final = re.compile(r"-?[\d.]+(?:e[-+]?\d+)?", re.IGNORECASE)
_BITS: Final = re.compile(r"b'([01]+)'")
_ZEROS: Final = re.compile(r"(?:\d{4}-\d\d-00|\d{4}-00-\d\d|0000-\d\d-\d\d)(?: 00:00:00(?:\.0+)?)?")
_LARGEST: Final = (1 << 63) - 1


def literal_of(default: str | None, *, computed: bool, mariadb: bool) -> str | None:
    """Return a default as the connector has it from the statement; None for none.

    Args:
        default: COLUMN_DEFAULT. MariaDB has it as SQL, MySQL as its text.
        computed: whether MySQL says that it is an expression.
        mariadb: whether it is MariaDB's; else it is MySQL's.
    """
    if default is None:
        return None
    if (mariadb or computed) and _NOW.fullmatch(default):
        return NOW
    if computed:
        return None
    if not mariadb:
        return default if _BITS.fullmatch(default) else default.replace("'", "''")
    if default[:1] == "'":
        return default[1:-1]
    return default if _NUMBER.fullmatch(default) or _BITS.fullmatch(default) else None


def default_of(literal: str, base: str, field: Field) -> Any:
    """Return a default as Connect's JSON has it; None for none.

    Args:
        literal: see `literal_of`.
        base: name of the column's type, such as ``int``.
        field: of the column in the row's Connect schema.
    """
    value = _TYPES.get(base)
    if value is None or (base not in _MOMENTS and literal == NOW and field["type"] != "string"):
        return None
    try:
        return value(literal, field)
    except (ValueError, KeyError, OverflowError):
        return None


def _whole(text: str, field: Field) -> int:
    value = int(text)
    return default_values.whole(str(min(value, _LARGEST)), field)


def _fraction(text: str, field: Field) -> float:
    if field["type"] not in ("float", "double"):
        raise ValueError("form")
    return default_values.fraction(text)


def _bits(text: str, field: Field) -> bool | str:
    found = _BITS.fullmatch(text)
    digits = found[1] if found else text
    return default_values.bits(digits, field, width=(len(digits) + 7) // 8)


def _text(text: str, field: Field) -> str:
    if "\\" in text or field["type"] != "string":
        raise ValueError("form")
    return text


def _zeros(text: str, field: Field, value: Callable[[str, Field], int]) -> int | None:
    """Return a date or a moment; that of zeros is NULL, or 1970 where NULL is not allowed."""
    if _ZEROS.fullmatch(text):
        return None if field["optional"] else value(NOW[: len("1970-01-01")], field)
    return value(text, field)


def _timestamp(text: str, field: Field) -> str | None:
    if text != NOW and not _ZEROS.fullmatch(text):
        raise ValueError("zone")
    return None if field["optional"] else "1970-01-01T00:00:00Z"


_MOMENTS: Final = frozenset({"date", "datetime", "timestamp"})
_TYPES: Final[Mapping[str, Callable[[str, Field], Any]]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), _whole),
    **dict.fromkeys(("float", "double"), _fraction),
    "decimal": default_values.decimal,
    "bit": _bits,
    **dict.fromkeys(("char", "varchar", "enum", "set", "json"), _text),
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext"), _text),
    "date": lambda text, field: _zeros(text, field, default_values.date),
    "time": default_values.time,
    "datetime": lambda text, field: _zeros(text, field, default_values.timestamp),
    "timestamp": _timestamp,
}
