"""Acceptance: from an execute-snapshot signal to a run, or to the reason why there is none.

Pure: the answers of the database and the connector are arguments.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from lakemark.errors import LakemarkError, RefusedError, nearest
from lakemark.model.control import REPAIR, REPORT
from lakemark.model.key_ranges import Condition
from lakemark.model.schema import TableSchema
from lakemark.snapshot.chunks import is_of_a_table
from lakemark.snapshot.fields import PrimaryKey, Scalar
from lakemark.snapshot.runs import ARMING, FAILED, SCANNING, Run, TableRun
from lakemark.snapshot.signals import ExecuteSnapshot, Rejection, VerifySnapshot, matching

_PLAIN_NAME: Final = re.compile(r"[\w$]+\.[\w$]+")  # no pattern that could mean several
_NOT_A_TABLE: Final = "not-a-table"
_NO_KEY: Final = Rejection(
    "",
    "no-key",
    "it has no key",
    "give it a primary key, or set message.key.columns of the connector",
)


@dataclass(frozen=True, slots=True)
class SignalContext:
    """The facts that a signal is checked against.

    Attributes:
        schemas: the tables that the connector captures.
        condition: parses a filter for a table; raises RefusedError.
        against: why a table must not be read beside its events; raises what the database says of
            it, and of a name that is no table's.
    """

    schemas: Mapping[str, TableSchema]
    condition: Callable[[str, str], Condition]
    against: Callable[[str], Rejection | None]


def accept(signal: ExecuteSnapshot, context: SignalContext) -> Run | Rejection:
    """Return the run of a signal, or the reason why there is none.

    Patterns that match no table are skipped as long as another does. A table that cannot be read
    fails in the run, and the others are read.
    """
    try:
        return _accept(signal, context)
    except RefusedError as refused:
        return Rejection(signal.id, refused.code, refused.message, refused.hint)


def _accept(signal: ExecuteSnapshot, context: SignalContext) -> Run:
    chosen = matching(signal.data_collections, context.schemas)
    if not chosen.tables:
        first = signal.data_collections[0]
        _check_is_table(signal.data_collections, context)
        raise RefusedError(
            "no table that the connector captures (table.include.list) matches data-collections",
            code="unknown-table",
            hint=nearest(
                first, context.schemas, "it captures " + ", ".join(list(context.schemas)[:5])
            ),
        )
    _check_conditions(signal, chosen.tables)
    if signal.surrogate_key:
        _check_surrogate(signal.surrogate_key, chosen.tables, context)
    filters = signal.filters_of(chosen.tables)
    tables = [_table(name, filters.get(name, ""), context) for name in chosen.tables]
    if all(table.state == FAILED for table in tables):
        failed = tables[0]
        raise RefusedError(failed.reason, code=failed.code, hint=failed.hint)
    if signal.keys:
        _one_table(signal, chosen.tables)
        name = chosen.tables[0]
        tables[0].keys = key_texts(signal.keys, name, context.schemas[name].key)
    run = Run(
        signal.id,
        tables,
        chunk_rows=signal.chunk_rows,
        parallelism=signal.parallelism,
        delay=None if signal.delay is None else signal.delay.total_seconds(),
        priority=signal.priority,
        surrogate=signal.surrogate_key,
        unmatched=list(chosen.unmatched),
    )
    if isinstance(signal, VerifySnapshot):
        run.verify, run.values = REPAIR if signal.repair else REPORT, signal.with_values
        run.rows_per_second = signal.rows_per_second
        run.state = ARMING if signal.keys else SCANNING
    return run


def _table(name: str, text: str, context: SignalContext) -> TableRun:
    table = TableRun(name, condition=text)
    try:
        if text:
            context.condition(name, text)  # refused now, and not in the middle of the run
        reason = against(name, context.against) if context.schemas[name].key else _NO_KEY
    except LakemarkError as error:
        if not is_of_a_table(error):
            raise
        return table  # other signals do not wait for a lock: each chunk asks again
    if reason is not None:
        table.state, table.code = FAILED, reason.code
        table.reason = f"{name}: {reason.message.removeprefix(f'{name}: ')}"
        table.hint = reason.hint
    return table


def against(name: str, ask: Callable[[str], Rejection | None]) -> Rejection | None:
    """Return why a table must not be read, also where the database raises that; None if it may.

    Args:
        name: the table.
        ask: see `Ports.reasons_against`.

    Raises:
        LakemarkError: retried: the database is away, or the table is locked.
    """
    try:
        return ask(name)
    except LakemarkError as error:
        if error.retried:
            raise
        return Rejection("", error.code, error.message, error.hint)


def _check_is_table(names: Sequence[str], context: SignalContext) -> None:
    """Refuse names of views and the like; no other reason against reading matters here."""
    for name in filter(_PLAIN_NAME.fullmatch, names):
        try:
            context.against(name)
        except LakemarkError as error:
            if error.code == _NOT_A_TABLE:
                raise RefusedError(error.message, code=error.code, hint=error.hint) from None
            if error.retried and not is_of_a_table(error):
                raise


def _check_conditions(signal: ExecuteSnapshot, tables: Sequence[str]) -> None:
    for condition in signal.conditions:
        if not matching([condition.data_collection], tables, ignore_case=True).tables:
            raise RefusedError(
                "a filter's data-collection matches none of the tables",
                code="bad-condition",
                hint="name one of the tables in data-collections",
            )


def _check_surrogate(column: str, tables: Sequence[str], context: SignalContext) -> None:
    for table in tables:
        names = context.schemas[table].by_name
        if column not in names:
            raise RefusedError(
                f"{table} has no column {column} to order its chunks by",
                code="unknown-column",
                hint=nearest(column, names, "name a column in surrogate-key, or leave it out"),
            )


def _one_table(signal: ExecuteSnapshot, tables: Sequence[str]) -> None:
    if len(tables) > 1:
        raise RefusedError(
            f"keys are of one table, and data-collections matches {len(tables)}",
            code="bad-value",
            hint="send one signal for each table",
        )
    if signal.conditions or signal.surrogate_key:
        raise RefusedError(
            "keys go with neither filters nor surrogate-key",
            code="bad-value",
            hint="leave them out: the keys say which rows",
        )


def key_texts(keys: Sequence[PrimaryKey], table: str, columns: Sequence[str]) -> list[list[str]]:
    """Return keys as texts that the database understands, each once.

    Args:
        keys: as somebody has written them.
        table: whose.
        columns: of its key, in key order.

    Raises:
        RefusedError: ``no-key``, or ``bad-value``: they have other columns.
    """
    if not columns:
        raise RefusedError(
            f"{table} has no key", code="no-key", hint="leave keys out, or give it a primary key"
        )
    found = []
    for key in keys:
        names = key.columns or columns
        if len(key.values) != len(columns) or set(names) != set(columns):
            raise RefusedError(
                f"a key of {table} consists of {', '.join(columns)}",
                code="bad-value",
                hint='write {"' + '": …, "'.join(columns) + '": …}, or a list in this order',
            )
        by_name = dict(zip(names, key.values, strict=True))
        found.append(tuple(_text(by_name[column]) for column in columns))
    return [list(key) for key in dict.fromkeys(found)]


def _text(value: Scalar) -> str:
    """Return a scalar as text for PostgreSQL: the column's type decides what it means."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return format(value, "f") if isinstance(value, Decimal) else str(value)
