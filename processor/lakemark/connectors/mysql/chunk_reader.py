"""MySQL and MariaDB: reads and cuts tables, if they may be read beside their events."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa

from lakemark.connectors.database import (
    ChunkRows,
    DatabaseAccess,
    SummedRows,
    TableCut,
    not_summed,
)
from lakemark.connectors.mysql.key_cuts import boundaries
from lakemark.connectors.mysql.key_sql import all_of, range_condition
from lakemark.connectors.mysql.mysql_catalog import KnownTables, sizes
from lakemark.connectors.mysql.mysql_chunks import (
    OpenTable,
    absent_keys,
    middle,
    open_table,
    ordered_by,
    read_chunk,
)
from lakemark.connectors.mysql.mysql_session import BRIEFLY, KeptSession, connect
from lakemark.connectors.refusals import Refusal, refusals
from lakemark.errors import TableError
from lakemark.model.checksums import NumberRanges, RefusedSums
from lakemark.model.key_ranges import WHOLE, Boundary, Condition, KeyRange, ranges

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# A worker lives on with the stream when no run is active: its session must not.
_IDLE_SESSION: Final = timedelta(seconds=60)


NO_SUMS: Final = RefusedSums("MySQL and MariaDB hash rows more slowly than they send them")


class MySqlReader:
    """The `ChunkReader` of both."""

    def __init__(self, access: DatabaseAccess) -> None:
        self._access = access
        self._known = KnownTables(access.modes, access.connector)
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
        began, as the stream asks for runs by itself, and the connector's settings may have been
        changed since.
        """
        with open_table(self.kept.checked(), table, self._known, is_read=True) as opened:
            for reason in refused(opened, self._access):
                raise TableError(f"{table}: {reason.message}", code=reason.code, hint=reason.hint)
            source_ts = _clock(opened)
            ordered = ordered_by(opened, surrogate)
            found = read_chunk(ordered, span=span, condition=condition, keys=keys)
            absent = None
            if keys is not None:
                absent = absent_keys(ordered, keys, found, span=span, condition=condition)
        return ChunkRows(found, absent, source_ts)

    def middle(
        self, table: str, span: KeyRange, *, condition: Condition | None, surrogate: str | None
    ) -> Boundary | None:
        """See `ChunkReader`."""
        with open_table(self.kept.checked(), table, self._known) as opened:
            return middle(ordered_by(opened, surrogate), span, condition=condition)

    def sums(self, table: str, kept: pa.Schema, ranges: NumberRanges) -> SummedRows:  # noqa: ARG002
        """See `ChunkReader`: it is always refused."""
        raise not_summed(table, NO_SUMS)

    def close(self) -> None:
        """See `ChunkReader`."""
        self.kept.drop()


def refused(table: OpenTable, access: DatabaseAccess) -> list[Refusal]:
    """Return why a table must not be read beside its events; empty if it may."""
    return refusals(access.connector, table.schema.table, list(table.schema.by_name))


def _clock(table: OpenTable) -> int:
    """Return when the transaction reads by the database's clock, microseconds since the epoch."""
    ((moment,),) = table.session.execute("SELECT UTC_TIMESTAMP(6)")
    since: timedelta = moment.replace(tzinfo=UTC) - _EPOCH
    return since // timedelta(microseconds=1)


def reasons_against(access: DatabaseAccess, table: str) -> list[Refusal]:
    """See `Database.reasons_against`. Waits for no lock that is held for long."""
    timeout = access.statement_timeout
    with (
        connect(access.config, statement_timeout=timeout, lock_timeout=BRIEFLY) as session,
        open_table(session, table, _known(access)) as opened,
    ):
        return refused(opened, access)


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
        open_table(session, table, _known(access)) as opened,
    ):
        ordered = ordered_by(opened, surrogate)
        inside = None if within == WHOLE else range_condition(ordered.parts, within)
        wanted = all_of(condition, inside) if inside is not None else condition
        found = ranges(boundaries(ordered, chunk_rows, condition=wanted), within=within)
        return TableCut(tuple(found), opened.schema, sizes(session, table)[0])


def _known(access: DatabaseAccess) -> KnownTables:
    return KnownTables(access.modes, access.connector)
