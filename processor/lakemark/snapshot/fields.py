"""The fields of signals: each reader turns one JSON value into a typed one.

A reader takes the field's name, for its message, and the value. It raises `RefusedError` when the
value is of a wrong type or makes no sense, and its message never shows a key or a filter.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, cast

import msgspec

from lakemark.errors import RefusedError, cut, nearest
from lakemark.settings.java_syntax import PatternError
from lakemark.settings.patterns import compile_java
from lakemark.settings.units import parse_duration

MAX_CHUNK_ROWS: Final = 10_000_000  # these two as in the configuration
MAX_PARALLELISM: Final = 1024
MAX_PRIORITY: Final = 1000  # more than anybody has runs; a typing mistake is noticed
# Window rows name the run in `data`, for which Debezium's documentation suggests varchar(2048).
MAX_ROWS_PER_SECOND: Final = 1_000_000_000  # more than any database gives
MAX_ID: Final = 255
MAX_PATTERNS: Final = 1000  # of one list
MAX_PATTERN_LENGTH: Final = 1000  # characters; a table's name has 127 at most
# Instructions of the patterns of a list, for each byte of a name; 1,000 plain names: 64,000.
MAX_COST: Final = 100_000
_MOST_DIGITS: Final = 4000  # Python writes no whole number of more than 4,300

# Numbers with a fraction keep every digit: a key of type numeric must be found again.
_decode: Final = msgspec.json.Decoder(float_hook=Decimal).decode
# What decoding raises: bad JSON or UTF-8, a number out of range, nesting without end.
_UNREADABLE: Final = (ValueError, ArithmeticError, RecursionError)

_JSON_WORDS: Final[tuple[tuple[Any, str], ...]] = (
    (dict, "an object"),
    (list, "a list"),
    (str, "text"),
    (bool, "a boolean"),
    (int | Decimal, "a number"),
    (object, "null"),
)

Scalar = str | int | Decimal | bool


@dataclass(frozen=True, slots=True)
class AdditionalCondition:
    """A filter for the tables that a pattern matches.

    Attributes:
        data_collection: Java regular expression, matched in full whatever the case.
        filter: SQL of the source, as the user wrote it; never to be pasted into a statement.
    """

    data_collection: str
    filter: str


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    """One key of a list of keys.

    Attributes:
        values: its parts. Numbers with a fraction are decimals, as exact as they were written.
        columns: the column of each part; empty when the parts come in key order.
    """

    values: tuple[Scalar, ...]
    columns: tuple[str, ...] = ()


def json_object(value: object, what: str) -> dict[str, Any]:
    """Read a JSON object, also one that is still bytes or text."""
    if isinstance(value, bytes | str):
        try:
            value = _decode(value)
        except _UNREADABLE:
            raise RefusedError(
                f"{what} is not JSON",
                code="not-json",
                hint='send {"id": "...", "type": "execute-snapshot", "data": {...}}',
            ) from None
    if not isinstance(value, dict):
        raise wrong_type(what, "an object", value)
    return value


def text(name: str, value: Any) -> str:
    """Read a text and strip the blanks around it."""
    if not isinstance(value, str):
        raise wrong_type(name, "text", value)
    return value.strip()


def truth(name: str, value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise wrong_type(name, "true or false", value)
    return value


def identifier(name: str, value: Any) -> str:
    """Read the id of a signal or a run."""
    if not isinstance(value, str):
        raise wrong_type(name, "text", value)
    if not value.strip():
        raise bad_value(f"{name} is empty", "write one, such as a UUID, or leave it out")
    if len(value) > MAX_ID:
        raise bad_value(f"{name} is longer than {MAX_ID} characters", "write a shorter one")
    return value


def snapshot_type(name: str, value: Any) -> str:
    """Read the type of a snapshot: `incremental`, in upper or lower case."""
    kind = text(name, value).lower()
    if kind == "blocking":
        raise RefusedError(
            "blocking snapshots stop the log, which lakemark never does",
            code="blocking",
            hint="set type to incremental, or leave it out",
        )
    if kind != "incremental":
        raise bad_value(f"{name} is {cut(kind)}", "set it to incremental, or leave it out")
    return kind


def patterns(name: str, value: Any) -> tuple[str, ...]:
    """Read Java regular expressions for tables."""
    if not isinstance(value, list):
        raise wrong_type(name, 'a list, such as ["public.orders"]', value)
    _check_number(name, value)
    costs: list[int] = []
    return tuple(_pattern(f"{name}[{at}]", entry, costs) for at, entry in enumerate(value))


def _check_number(name: str, value: list[Any]) -> None:
    if len(value) > MAX_PATTERNS:
        raise _too_large(f"{name} has more than {MAX_PATTERNS:,} entries")


def _too_large(message: str) -> RefusedError:
    return RefusedError(message, code="too-large", hint="send several signals, or plainer ones")


def _pattern(name: str, value: Any, costs: list[int]) -> str:
    """Read a regular expression; its cost is added to those of its list."""
    pattern = text(name, value)
    if not pattern:
        raise bad_value(f"{name} is empty", "name a table, or remove it")
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise _too_large(f"{name} is longer than {MAX_PATTERN_LENGTH:,} characters")
    try:
        costs.append(compile_java(pattern).cost)
    except PatternError as error:
        raise RefusedError(f"{name}: {error}", code=error.code, hint=error.hint) from None
    if sum(costs) > MAX_COST:
        raise _too_large(f"the regular expressions up to {name} are too complex")
    return pattern


def conditions(name: str, value: Any) -> tuple[AdditionalCondition, ...]:
    """Read filters, each for the tables of a pattern."""
    example = '[{"data-collection": "public.orders", "filter": "..."}]'
    if not isinstance(value, list):
        raise wrong_type(name, f"a list, such as {example}", value)
    _check_number(name, value)
    filters, costs = [], list[int]()
    for at, entry in enumerate(value):
        here = f"{name}[{at}]"
        if not isinstance(entry, dict):
            raise wrong_type(here, "an object with data-collection and filter", entry)
        check_names(entry, ("data-collection", "filter"), here)
        for part in ("data-collection", "filter"):
            if entry.get(part) is None:
                raise missing(f"{here}.{part}", f"both, such as {example}")
        condition = text(f"{here}.filter", entry["filter"])
        if not condition:
            raise bad_value(f"{here}.filter is empty", "write a condition, or remove the entry")
        pattern = _pattern(f"{here}.data-collection", entry["data-collection"], costs)
        filters.append(AdditionalCondition(pattern, condition))
    return tuple(filters)


def keys(name: str, value: Any) -> tuple[PrimaryKey, ...]:
    """Read keys, each a scalar, a list in key order or an object by column; all of one form."""
    if not isinstance(value, list):
        raise wrong_type(name, 'a list, such as [1, 2] or [{"id": 1}]', value)
    if not value:
        raise bad_value(f"{name} is empty", "list the keys to read, or leave it out for all rows")
    parsed = tuple(_key(f"{name}[{at}]", entry) for at, entry in enumerate(value))
    first = parsed[0]
    for at, key in enumerate(parsed):
        if len(key.values) != len(first.values) or set(key.columns) != set(first.columns):
            raise bad_value(
                f"{name}[{at}] has other parts than {name}[0]", "write all keys in one form"
            )
    return parsed


def typed_key(name: str, text: str) -> PrimaryKey:
    """Read a key that somebody has typed: JSON, or else a text."""
    try:
        value = _decode(text)
    except _UNREADABLE:
        value = text
    return _key(name, value)


def _key(name: str, value: Any) -> PrimaryKey:
    columns: tuple[str, ...] = ()
    if isinstance(value, dict):
        columns, value = tuple(value), list(value.values())
    parts = value if isinstance(value, list) else [value]
    if not parts:
        raise bad_value(f"{name} is empty", "write the key's values in key order, or by column")
    for part in parts:
        if not isinstance(part, Scalar):
            raise wrong_type(name, "text, numbers or booleans, which keys consist of", part)
        if isinstance(part, int | Decimal) and abs(Decimal(part).adjusted()) > _MOST_DIGITS:
            raise bad_value(f"{name} has a number of too many digits", "no key has such a number")
    return PrimaryKey(tuple(parts), columns)


def whole(least: int, most: int) -> Callable[[str, Any], int]:
    """Return a reader of whole numbers within these bounds."""

    def read(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong_type(name, "a whole number", value)
        if not least <= value <= most:
            raise bad_value(f"{name} is out of range", f"set it to between {least} and {most}")
        return value

    return read


def delay(name: str, value: Any) -> timedelta:
    """Read a duration as in the configuration, such as ``5s``, or in ISO-8601, such as ``PT5S``."""
    if not isinstance(value, str) and (value != 0 or isinstance(value, bool)):
        raise wrong_type(name, "a duration such as 5s or PT5S", value)
    try:
        if isinstance(value, str) and value[:1] in {"P", "p"}:
            return msgspec.convert(value, timedelta)
        return cast("timedelta", parse_duration(value))
    except (ValueError, OverflowError):
        hint = "write it as 500ms, 5s or 2m, or as ISO-8601: PT5S"
        raise bad_value(f"{name} is not a duration", hint) from None


def check_names(names: Iterable[str], allowed: Sequence[str], where: str) -> None:
    """Refuse the first name that is not known, and tell the nearest one that is."""
    for name in names:
        if name not in allowed:
            raise RefusedError(
                f"{where} has no field {cut(name)}",
                code="unknown-field",
                hint=nearest(name, allowed, f"it has {', '.join(allowed)}"),
            )


def missing(name: str, expected: str) -> RefusedError:
    """Return the error for a field that must be there and is not."""
    return RefusedError(f"{name} is missing", code="missing-field", hint=f"write {expected}")


def bad_value(message: str, hint: str) -> RefusedError:
    """Return the error for a value of the right type that makes no sense."""
    return RefusedError(message, code="bad-value", hint=hint)


def wrong_type(name: str, expected: str, value: Any) -> RefusedError:
    """Return the error for a value of another JSON type than the field."""
    found = next(word for kinds, word in _JSON_WORDS if isinstance(value, kinds))
    return RefusedError(f"{name} is {found}", code="wrong-type", hint=f"write {expected}")
