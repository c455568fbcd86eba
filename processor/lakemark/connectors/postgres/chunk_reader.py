"""PostgreSQL: reads and cuts tables for snapshots, if they may be read beside their events."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
import pyarrow as pa

from lakemark.connectors.database import (
    ChunkRows,
    DatabaseAccess,
    RowsOfSnapshot,
    SummedRows,
    TableCut,
)
from lakemark.connectors.postgres.key_sql import all_of, range_condition
from lakemark.connectors.postgres.postgres_checksums import checksum_plan, read_sums
from lakemark.connectors.postgres.postgres_chunks import (
    OpenTable,
    boundaries,
    estimate,
    middle,
    open_table,
    ordered_by,
    read_chunk,
)
from lakemark.connectors.postgres.postgres_keys import absent_keys, key_unreadable
from lakemark.connectors.postgres.postgres_publication import unpublished
from lakemark.connectors.postgres.postgres_session import (
    BRIEFLY,
    KeptSession,
    Session,
    connect,
)
from lakemark.connectors.refusals import Refusal, refusals
from lakemark.errors import TableError
from lakemark.model.checksums import ChecksumPlan, NumberRanges, RefusedSums
from lakemark.model.key_ranges import WHOLE, Boundary, Condition, KeyRange, ranges

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# A worker lives on with the stream when no run is active: its session must not.
_IDLE_SESSION: Final = "60s"


class PostgresReader:
    """PostgreSQL's `ChunkReader`."""

    def __init__(self, access: DatabaseAccess) -> None:
        self._access = access
        self.kept = KeptSession(
            access.config,
            name="lakemark snapshot",
            statement_timeout=access.statement_timeout,
            idle=_IDLE_SESSION,
        )

    def read(
        self,
        table: str,
        *,
        span: KeyRange = WHOLE,
        condition: Condition | None = None,
        keys: Sequence[Boundary] | None = None,
        surrogate: str | None = None,
    ) -> ChunkRows:
        """See `ChunkReader`. All in one read-only transaction, which ends before it returns.

        Each chunk checks again that the table may be read: nobody may have checked before the run
        began, as the stream asks for runs by itself, and the connector's settings and its
        publication may have been changed since.
        """
        with _opened(self.kept.checked(), table, self._access) as opened:
            for reason in refused(opened, self._access):
                raise TableError(f"{table}: {reason.message}", code=reason.code, hint=reason.hint)
            source_ts = _clock(opened)
            rows = ordered_by(opened, surrogate)
            found, absent = _rows(rows, table, span, condition, keys)
        return ChunkRows(found, absent, source_ts)

    def middle(
        self, table: str, span: KeyRange, *, condition: Condition | None, surrogate: str | None
    ) -> Boundary | None:
        """See `ChunkReader`."""
        with _opened(self.kept.checked(), table, self._access) as opened:
            return middle(ordered_by(opened, surrogate), span, condition=condition)

    def sums(self, table: str, kept: pa.Schema, ranges: NumberRanges) -> SummedRows:
        """See `ChunkReader`."""
        with _opened(self.kept.checked(), table, self._access) as opened:
            for reason in refused(opened, self._access):
                raise TableError(f"{table}: {reason.message}", code=reason.code, hint=reason.hint)
            found = read_sums(opened, kept, ranges, self._access.modes)
            return SummedRows(found, opened.schema)

    def close(self) -> None:
        """See `ChunkReader`."""
        self.kept.drop()


def _opened(
    session: Session, table: str, access: DatabaseAccess
) -> AbstractContextManager[OpenTable]:
    return open_table(session, table, access.modes, settings=access.connector)


def _rows(
    table: OpenTable,
    name: str,
    span: KeyRange,
    condition: Condition | None,
    keys: Sequence[Boundary] | None,
) -> tuple[RowsOfSnapshot, RowsOfSnapshot | None]:
    try:
        chunk = read_chunk(table, span=span, condition=condition, keys=keys)
        if keys is None:
            return chunk, None
        return chunk, absent_keys(table, keys, chunk, span=span, condition=condition)
    except psycopg.DataError as error:
        if keys is None or condition is not None:
            raise
        raise key_unreadable(name) from error


def refused(table: OpenTable, access: DatabaseAccess) -> list[Refusal]:
    """Return why a table must not be read beside its events; empty if it may."""
    columns = list(table.schema.by_name)
    return [
        *refusals(access.connector, table.schema.table, columns),
        *unpublished(table.session, table.schema.table, columns, access.connector),
    ]


def _clock(table: OpenTable) -> int:
    """Return when the transaction began by the database's clock, microseconds since the epoch."""
    row = table.session.execute("SELECT pg_catalog.transaction_timestamp()").fetchone()
    moment: datetime = row[0] if row else _EPOCH
    return (moment - _EPOCH) // timedelta(microseconds=1)


def reasons_against(access: DatabaseAccess, table: str) -> list[Refusal]:
    """See `Database.reasons_against`. Waits for no lock that is held for long."""
    timeout = access.statement_timeout
    with (
        connect(access.config, statement_timeout=timeout, lock_timeout=BRIEFLY) as session,
        _opened(session, table, access) as opened,
    ):
        return refused(opened, access)


def checksums(access: DatabaseAccess, table: str, kept: pa.Schema) -> ChecksumPlan | RefusedSums:
    """See `Database.checksums`."""
    with (
        connect(access.config, statement_timeout=access.statement_timeout) as session,
        _opened(session, table, access) as opened,
    ):
        found = checksum_plan(opened, kept, access.modes)
        return found if isinstance(found, RefusedSums) else found[0]


def cut(
    access: DatabaseAccess,
    table: str,
    chunk_rows: int,
    *,
    condition: Condition | None,
    surrogate: str | None,
    within: KeyRange,
) -> TableCut:
    """See `Database.cut`."""
    with (
        connect(access.config, statement_timeout=access.statement_timeout) as session,
        _opened(session, table, access) as opened,
    ):
        ordered = ordered_by(opened, surrogate)
        inside = None if within == WHOLE else range_condition(ordered.parts, within)
        wanted = all_of(condition, inside) if inside is not None else condition
        found = ranges(boundaries(ordered, chunk_rows, condition=wanted), within=within)
        return TableCut(tuple(found), opened.schema, estimate(opened))
