"""What the driver asks of a table before its chunks are read: may it be, and where is it cut."""

from dataclasses import dataclass

from lakemark.connectors.postgres.key_sql import all_of, range_condition
from lakemark.connectors.postgres.postgres import read_schemas
from lakemark.connectors.postgres.postgres_chunks import (
    boundaries,
    estimate,
    open_table,
    ordered_by,
)
from lakemark.connectors.postgres.postgres_session import BRIEFLY, connect
from lakemark.connectors.refusals import Refusal
from lakemark.errors import TableError
from lakemark.model.key_ranges import WHOLE, Condition, KeyRange, ranges
from lakemark.model.schema import TableSchema
from lakemark.snapshot.chunk_task import ReadSettings, refused


@dataclass(frozen=True, slots=True)
class TableCut:
    """A table as its run begins.

    Attributes:
        spans: the chunks, which cover every key once; at least one.
        schema: as its chunks will have it, if nothing changes.
        rows: about how many it has.
    """

    spans: tuple[KeyRange, ...]
    schema: TableSchema
    rows: int

    @property
    def fingerprint(self) -> str:
        """That of a chunk's result with the same schema."""
        return self.schema.fingerprint()


def cut(
    settings: ReadSettings,
    table: str,
    chunk_rows: int,
    *,
    condition: Condition | None = None,
    surrogate: str | None = None,
    within: KeyRange = WHOLE,
) -> TableCut:
    """Where to cut a table; runs here, reads keys only and keeps boundaries only.

    Args:
        settings: as for `read`.
        table: ``schema.table``.
        chunk_rows: rows a chunk should have.
        condition: only rows for which it holds are read.
        surrogate: column that the chunks are ranges of; None = the key.
        within: only keys of this range are cut.

    Raises:
        TableError, DependencyError, ConfigError: as `open_table` and `translated` say.
    """
    with (
        connect(settings.database, statement_timeout=settings.statement_timeout) as session,
        open_table(session, table, settings.modes, settings=settings.connector) as opened,
    ):
        ordered = ordered_by(opened, surrogate)
        inside = None if within == WHOLE else range_condition(ordered.parts, within)
        wanted = all_of(condition, inside) if inside is not None else condition
        found = ranges(boundaries(ordered, chunk_rows, condition=wanted), within=within)
        return TableCut(tuple(found), opened.schema, estimate(opened))


def reasons_against(settings: ReadSettings, table: str) -> list[Refusal]:
    """Why a table must not be read beside its events, by the connector's settings and publication.

    Empty if it may. Runs here, and waits for no lock that is held for long.

    Raises:
        TableError, DependencyError, ConfigError: as `open_table` and `translated` say.
    """
    with (
        connect(
            settings.database,
            statement_timeout=settings.statement_timeout,
            lock_timeout=BRIEFLY,
        ) as session,
        open_table(session, table, settings.modes, settings=settings.connector) as opened,
    ):
        return refused(opened, settings.connector)


def fingerprint(settings: ReadSettings, table: str) -> str:
    """The fingerprint of a table's schema as it is now.

    Raises:
        TableError: ``table-gone``.
        DependencyError, InvalidConfig: as `read_schemas` says.
    """
    connector = settings.connector
    found = read_schemas(settings.database, [table], settings.modes, settings=connector)
    if table not in found:
        raise TableError(
            f"there is no table {table}",
            code="table-gone",
            hint="correct the name, or take the table out of the configuration",
        )
    return found[table].fingerprint()
