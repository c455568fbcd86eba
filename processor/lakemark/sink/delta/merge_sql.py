"""The rules of the merge as SQL that delta-rs (DataFusion) and Spark both understand.

`t` is the table, `s` the staged write set (`write_set.prepare`). A row of the write set *applies*
when it is forced or not older than the table's row.

| action | key has a row | key has none |
|---|---|---|
| upsert | applies: the row becomes this one; columns of its patch keep their values, unless the row is marked deleted | added |
| delete | applies: removed, or with soft deletes marked, its columns kept | nothing |
| insert | nothing; over a row marked deleted at a lower position: the row becomes this one | added |
| fill | columns of the patch that are unavailable in the very incarnation named by `__barrier` get values; position and op stay | nothing |
"""  # noqa: E501

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model import positions
from lakemark.model.change_batch import SCHEMA_ID
from lakemark.sink.names import CDC, quoted
from lakemark.sink.write_set import DELETE, FILL, INSERT, UPSERT, Shape, TargetColumn

# More ranges prune more files but make the predicate longer; 32 cost nothing that shows.
_RANGES: Final = 32
# Statistics hold decimals as JSON numbers: exact only up to the digits of a double.
_EXACT_DIGITS: Final = 15
# Statistics cut strings, in the worst case (Spark) to this many characters.
_EXACT_CHARACTERS: Final = 32


@dataclass(frozen=True, slots=True)
class Clause:
    """One WHEN of the merge.

    Attributes:
        kind: `update`, `delete` or `insert`.
        predicate: SQL condition, besides matched or not matched.
        updates: SQL expression by quoted column.
    """

    kind: str
    predicate: str
    updates: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dialect:
    """An engine's way of writing literals; all else is the same SQL.

    Attributes:
        text: a string.
        instant: a timestamp in ISO form, with or without zone; in UTC where there is one.
    """

    text: Callable[[str], str]
    instant: Callable[[str, bool], str]


def _arrow_instant(iso: str, zoned: bool) -> str:  # noqa: FBT001
    """Plain `timestamp` would be nanoseconds, which end in the year 2262."""
    zone = 'Some("UTC")' if zoned else "None"
    return f"arrow_cast('{iso}{'Z' if zoned else ''}', 'Timestamp(Microsecond, {zone})')"


DATAFUSION: Final = Dialect(
    text=lambda value: "'" + value.replace("'", "''") + "'", instant=_arrow_instant
)
# Text as hexadecimal, because Spark reads backslashes in literals.
SPARK: Final = Dialect(
    text=lambda value: f"cast(X'{value.encode().hex()}' as string)",
    instant=lambda iso, zoned: f"timestamp'{iso}Z'" if zoned else f"timestamp_ntz'{iso}'",
)


def on(shape: Shape) -> str:
    """The join condition: equal keys."""
    return " and ".join(f"t.{quoted(c.name)} = s.{c.staged}" for c in shape.key)


def clauses(shape: Shape, *, deletes: str, dialect: Dialect) -> list[Clause]:
    """The WHENs that this write set needs, at most one per action and case.

    Args:
        shape: of the write set.
        deletes: `hard` or `soft`.
        dialect: of the engine.
    """
    soft = deletes == "soft"
    build = {UPSERT: _upsert, DELETE: _delete, INSERT: _insert_over, FILL: _fill}
    found: list[Clause] = []
    for action in (DELETE, UPSERT, INSERT, FILL):
        if action in shape.actions:
            found.extend(build[action](shape, soft, dialect))
    if shape.actions & {UPSERT, INSERT}:
        values = {quoted(c.name): f"s.{c.staged}" for c in shape.columns}
        predicate = f"s.__action in ('{UPSERT}', '{INSERT}')"
        found.append(Clause("insert", predicate, {**values, quoted(CDC): f"s.{CDC}"}))
    return found


def _applies(shape: Shape) -> str:
    newer = "t._cdc['position'] is null or t._cdc['position'] <= s._cdc['position']"
    return f"({'s.__force or ' if shape.forced else ''}{newer})"


_DEAD: Final = "coalesce(t._cdc['deleted'], false)"


def _struct(shape: Shape, members: dict[str, str]) -> str:
    """`_cdc` from SQL by member, in the target's order; members not named come from the source."""
    parts = ", ".join(
        f"'{name}', {members.get(name, f's._cdc[{name!r}]')}" for name in shape.cdc_fields
    )
    return f"named_struct({parts})"


def _named(column: TargetColumn, dialect: Dialect) -> str:
    """Return SQL for: the row's patch names the column; null without a patch counts as no."""
    return f"array_contains(s.__patch, {dialect.text(column.source)})"


def _some(array: str) -> str:
    return f"case when cardinality({array}) > 0 then {array} end"


def _upsert(shape: Shape, soft: bool, dialect: Dialect) -> Iterator[Clause]:  # noqa: FBT001
    alive = f" and not {_DEAD}" if soft else ""
    updates = {}
    for c in shape.columns:
        if not c.is_key:
            updates[quoted(c.name)] = f"s.{c.staged}"
            if c.patched and shape.patched:
                kept = f"{_named(c, dialect)}{alive} then t.{quoted(c.name)}"
                updates[quoted(c.name)] = f"case when {kept} else s.{c.staged} end"
    cdc = f"s.{CDC}"
    if shape.patched:
        patch = f"s.__patch is not null{alive}"
        still = _some("array_intersect(t._cdc['unavailable'], s.__patch)")
        cdc = _struct(
            shape,
            {
                "unavailable": f"case when {patch} then {still} else s._cdc['unavailable'] end",
                "barrier": f"case when {patch} then t._cdc['barrier'] else s._cdc['barrier'] end",
            },
        )
    predicate = f"s.__action = '{UPSERT}' and {_applies(shape)}"
    yield Clause("update", predicate, {**updates, quoted(CDC): cdc})


def _delete(shape: Shape, soft: bool, dialect: Dialect) -> Iterator[Clause]:  # noqa: ARG001, FBT001
    predicate = f"s.__action = '{DELETE}' and {_applies(shape)}"
    if not soft:
        yield Clause("delete", predicate)
        return
    kept = {"unavailable": "t._cdc['unavailable']", "barrier": "t._cdc['barrier']"}
    cdc = _struct(shape, {**kept, "deleted": "true"})
    yield Clause("update", predicate, {quoted(CDC): cdc})


def _insert_over(shape: Shape, soft: bool, dialect: Dialect) -> Iterator[Clause]:  # noqa: ARG001, FBT001
    if not soft:
        return
    predicate = f"s.__action = '{INSERT}' and {_DEAD} and t._cdc['position'] < s._cdc['position']"
    values = {quoted(c.name): f"s.{c.staged}" for c in shape.columns if not c.is_key}
    yield Clause("update", predicate, {**values, quoted(CDC): f"s.{CDC}"})


def _fill(shape: Shape, soft: bool, dialect: Dialect) -> Iterator[Clause]:  # noqa: ARG001, FBT001
    unknown = "t._cdc['unavailable']"
    updates = {}
    for c in shape.columns:
        if c.patched:
            fills = f"{_named(c, dialect)} and array_contains({unknown}, {dialect.text(c.source)})"
            updates[quoted(c.name)] = (
                f"case when {fills} then s.{c.staged} else t.{quoted(c.name)} end"
            )
    if not updates:
        return
    kept = {name: f"t._cdc[{name!r}]" for name in shape.cdc_fields}
    left = _some(f"array_except({unknown}, s.__patch)")
    cdc = _struct(shape, {**kept, "unavailable": left})
    predicate = (
        f"s.__action = '{FILL}' and t._cdc['barrier'] = s.__barrier and {unknown} is not null"
    )
    yield Clause("update", predicate, {**updates, quoted(CDC): cdc})


def below_truncate(position: bytes) -> str:
    """SQL for `positions.below_truncate` on the unaliased `_cdc` column.

    Rows without one were there before lakemark: they are below everything.
    """
    at, found = "_cdc['position']", []
    for above, below, equal in positions.ranges_below_truncate(position):
        upper = f"{at} {'<=' if equal else '<'} X'{below.hex()}'"
        found.append(upper if above is None else f"({at} > X'{above.hex()}' and {upper})")
    return " or ".join([f"{at} is null", *found])


def truncated(cdc_fields: Iterable[str], position: bytes) -> str:
    """SQL for the `_cdc` of a row that a truncate marks deleted."""
    new = {"position": f"X'{position.hex()}'", "op": "'t'", "deleted": "true"}
    new[SCHEMA_ID] = "cast(null as bigint)"
    members = ", ".join(f"'{name}', {new.get(name, f'_cdc[{name!r}]')}" for name in cdc_fields)
    return f"named_struct({members})"


# -- pruning ------------------------------------------------------------------------------------


def key_ranges(
    key: Sequence[tuple[TargetColumn, pa.ChunkedArray]], *, dialect: Dialect, alias: str = "t."
) -> str:
    """A condition that every row with one of these keys meets, from literals, to skip files.

    Values are widened to what the files' statistics can hold (milliseconds, cut strings); types
    whose statistics are not exact give no condition.

    Args:
        key: columns and the values that occur.
        dialect: of the engine.
        alias: prefix of the table's columns.

    Returns:
        SQL; empty when nothing can be said.
    """
    found = []
    for column, values in key:
        name = f"{alias}{quoted(column.name)}"
        ranges = [f"{name} >= {low} and {name} <= {high}" for low, high in _ranges(values, dialect)]
        if ranges:
            found.append("(" + " or ".join(ranges) + ")")
    return " and ".join(found)


def _ranges(values: pa.ChunkedArray, dialect: Dialect) -> Iterator[tuple[str, str]]:
    kind = values.type
    if not len(values):
        return
    if pa.types.is_integer(kind):
        yield from _clusters(values.to_numpy())
        return
    if not _has_range(kind):
        return
    bounds = pc.min_max(values)
    low = _literal(bounds["min"].as_py(), kind, dialect, up=False)
    high = _literal(bounds["max"].as_py(), kind, dialect, up=True)
    if low and high:
        yield low, high


def _has_range(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _EXACT_DIGITS)
    return bool(pa.types.is_string(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def _clusters(values: Any) -> Iterator[tuple[str, str]]:
    """At most `_RANGES` ranges that cover the values, cut at the widest gaps."""
    ordered = np.sort(values).astype(np.float64)
    exact = np.sort(values)
    gaps = np.diff(ordered)
    cuts = np.sort(np.argsort(gaps)[::-1][: _RANGES - 1]) + 1
    cuts = cuts[gaps[cuts - 1] > 1]
    edges = [0, *cuts.tolist(), len(exact)]
    for begin, end in pairwise(edges):
        yield str(exact[begin]), str(exact[end - 1])


def _literal(value: Any, kind: pa.DataType, dialect: Dialect, *, up: bool) -> str:
    if isinstance(value, str):
        # Statistics hold at least a prefix of this length: no longer lower bound is comparable.
        return dialect.text(value if up else value[:_EXACT_CHARACTERS])
    if isinstance(value, datetime):
        return _instant(value, dialect, up=up)
    if isinstance(value, date):
        return f"cast('{value.isoformat()}' as date)"
    if isinstance(value, Decimal):
        return f"cast('{value:f}' as decimal({kind.precision}, {kind.scale}))"
    return ""


def _instant(value: datetime, dialect: Dialect, *, up: bool) -> str:
    """Statistics of timestamps are cut to milliseconds, the maximum too."""
    whole = value.replace(microsecond=value.microsecond // 1000 * 1000)
    if up:
        whole = value
    if whole.tzinfo is not None:
        whole = whole.astimezone(UTC)
    return dialect.instant(whole.replace(tzinfo=None).isoformat(sep=" "), value.tzinfo is not None)
