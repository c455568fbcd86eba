"""Questions to PostgreSQL for `checks_database` and `checks_tables`; read only."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from lakemark.connectors.database import CapturedTables
from lakemark.connectors.log_watch import LogReader, Trouble
from lakemark.connectors.postgres.catalog import CatalogColumn
from lakemark.connectors.postgres.checks_database import (
    DatabaseFacts,
    Publication,
    ServerFacts,
    SignalTable,
    Slot,
)
from lakemark.connectors.postgres.checks_tables import Relation
from lakemark.connectors.postgres.connector_settings import SLOT
from lakemark.connectors.postgres.postgres import columns_of, schemas_of
from lakemark.connectors.postgres.postgres_publication import unpublished
from lakemark.connectors.postgres.postgres_session import Session, connect, translated
from lakemark.connectors.refusals import Refusal
from lakemark.errors import LakemarkError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.table_id import pair_of, text_of

# Catalog reads take milliseconds; behind a lock on the catalog they are better given up.
_STATEMENT_TIMEOUT: Final = timedelta(seconds=20)

_SERVER: Final = """
SELECT current_user::text, current_setting('server_version'), pg_is_in_recovery(),
       current_setting('wal_level'), pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
"""
NEAR: Final = 16 * 1024**2
"""Bytes: one segment of the log, by default."""
_NEW_SLOT: Final = (
    "let the connector make a new one (restart it), then `lakemark snapshot start '.*'`: "
    "changes of the time between are in no log"
)
_CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_SLOT: Final = """
SELECT active, coalesce(wal_status, ''), safe_wal_size,
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                            ELSE pg_current_wal_lsn() END, restart_lsn)::int8
FROM pg_catalog.pg_replication_slots WHERE slot_name = %s AND database = current_database()
"""
_SLOT_NOW: Final = """
SELECT CASE WHEN pg_is_in_recovery() THEN NULL
            ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::int8 END,
       s.slot_name IS NOT NULL, coalesce(s.active, false), coalesce(s.wal_status = 'lost', false),
       pg_wal_lsn_diff(s.confirmed_flush_lsn, '0/0')::int8,
       pg_wal_lsn_diff(r.write_lsn, '0/0')::int8
FROM (SELECT) one
LEFT JOIN pg_catalog.pg_replication_slots s
    ON s.slot_name = %s AND s.database = current_database()
LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid
"""
_THERE: Final = """
SELECT n.nspname::text, c.relname::text
FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS w(nspname, relname)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.nspname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname
"""
_PUBLICATION: Final = "SELECT FROM pg_catalog.pg_publication WHERE pubname = %s"
_RELATIONS: Final = """
SELECT n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence = 'p',
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
       c.relkind IN ('r', 'p') AND row_security_active(c.oid), c.relreplident::text,
       coalesce(k.conname::text, ''), coalesce(k.condeferrable, false),
       coalesce(u.relname::text, ''),
       c.relkind = 'p' OR c.reltoastrelid <> 0,
       (SELECT ARRAY[rn.nspname::text, r.relname::text]
        FROM pg_catalog.pg_class r
        JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
        WHERE r.oid = pg_partition_root(c.oid))
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_constraint k ON k.conrelid = c.oid AND k.contype = 'p'
LEFT JOIN LATERAL (
    SELECT ic.relname
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL AND NOT EXISTS (
          SELECT FROM pg_catalog.pg_attribute a
          WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey::int2[]) AND NOT a.attnotnull)
    ORDER BY i.indnatts, ic.relname LIMIT 1
) u ON true
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
ORDER BY n.nspname || '.' || c.relname
"""
_SIGNAL: Final = """
SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'INSERT'),
       (SELECT count(*) FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""

Schemas = Mapping[str, tuple[TableSchema, tuple[CatalogColumn, ...]]]


@dataclass(frozen=True, slots=True)
class DatabaseAnswers:
    """The catalog's answers; `relations` is None when the connector is unknown."""

    database: DatabaseFacts
    relations: tuple[Relation, ...] | None


def database_facts(
    database: DatabaseConfig,
    connector: CapturedTables | None,
    modes: HandlingModes,
    *,
    streams: bool,
) -> DatabaseAnswers:
    """Return all facts about server, slot, publication and captured tables.

    Args:
        database: where it is.
        connector: None when it is unknown: then only the server is looked at.
        modes: how the connector writes values.
        streams: whether the connector runs.

    Raises:
        DependencyError: it does not answer.
        ConfigError: it refuses us.
    """
    with (
        connect(
            database, statement_timeout=_STATEMENT_TIMEOUT, application_name="lakemark doctor"
        ) as session,
        translated(),
    ):
        session.execute("SET default_transaction_read_only = on")
        server = _server(session)
        if connector is None:
            return DatabaseAnswers(DatabaseFacts(server, None, None, None, streams), None)
        asking = _Asking(session, connector, modes)
        facts = DatabaseFacts(server, asking.slot(), asking.publication, asking.signal(), streams)
        return DatabaseAnswers(facts, asking.relations())


def slot_seen(
    name: str,
    end: int,
    *,
    exists: bool = True,
    active: bool = True,
    lost: bool = False,
    confirmed: int | None = None,
    received: int | None = None,
) -> LogReader:
    """Return the connector's slot as a reader of the log.

    Args:
        name: of the slot.
        end: where the log ends.
        exists: whether the server has it.
        active: whether somebody reads from it.
        lost: whether the server has given up what it kept for the slot.
        confirmed: as `LogReader` has it.
        received: as `LogReader` has it.
    """
    trouble = silence = None
    if not exists:
        reason = f"the database has no replication slot {name}"
        trouble = Trouble("slot-missing", reason, _NEW_SLOT)
    elif lost:
        reason = f"the slot {name} is lost: the database has removed log that it needs"
        trouble = Trouble("slot-lost", reason, f"drop the slot; {_NEW_SLOT}")
    elif not active:
        silence = Trouble("slot-inactive", f"nobody reads from the slot {name}: no changes come")
    return LogReader(
        name, end, active if exists else None, confirmed, received, NEAR, trouble, silence
    )


class DatabaseWatch:
    """One session that is asked again and again, and made anew after an error; for one thread.

    Args:
        database: where it is.
        name: the pipeline's.
        slot: the connector's; empty where only Connect can tell it.
        within: how long connecting, and each statement, may take.

    Raises (every question):
        DependencyError: the database does not answer.
        ConfigError: it refuses us.
    """

    def __init__(
        self, database: DatabaseConfig, name: str, *, slot: str, within: timedelta
    ) -> None:
        wait = min(database.connect_timeout, within)
        self._database = database.model_copy(update={"connect_timeout": wait})
        self._name, self._slot, self._within = name, slot, within
        self._open = ExitStack()
        self._session: Session | None = None

    def reader(self) -> LogReader | None:
        """Return the connector's slot as it is now; None on a standby, which has no say in it."""
        if not self._slot:
            return None
        (row,) = self._rows(_SLOT_NOW, [self._slot])
        end, exists, active, lost, confirmed, received = row
        if end is None:
            return None
        return slot_seen(
            self._slot, end, exists=exists, active=active, lost=lost, confirmed=confirmed,
            received=received,
        )  # fmt: skip

    def there(self, tables: frozenset[str]) -> frozenset[str]:
        """Return those of the tables that the database has."""
        pairs = [pair_of(table) for table in sorted(tables)]
        given = {"schemas": [schema for schema, _ in pairs], "tables": [name for _, name in pairs]}
        return frozenset(text_of(*row) for row in self._rows(_THERE, given))

    def close(self) -> None:
        """End the session; the next question makes another one."""
        stack, self._open, self._session = self._open, ExitStack(), None
        stack.close()

    def _rows(
        self, query: str, parameters: Sequence[object] | Mapping[str, object]
    ) -> list[tuple[Any, ...]]:
        try:
            with translated():
                return self._connected().execute(query.encode(), parameters).fetchall()
        except LakemarkError:
            self.close()
            raise

    def _connected(self) -> Session:
        if self._session is None:
            self._session = self._open.enter_context(
                connect(
                    self._database,
                    statement_timeout=self._within,
                    application_name=f"lakemark {self._name} watch",
                )
            )
            self._session.execute("SET default_transaction_read_only = on")
        return self._session


def _server(session: Session) -> ServerFacts:
    begun = time.time()
    now = _row(session, _CLOCK)[0]
    skew = now - (begun + time.time()) / 2
    user, version, standby, wal_level, stats = _row(session, _SERVER)
    info = session.info
    address = f"{info.host or 'local socket'}:{info.port}/{info.dbname}"
    return ServerFacts(address, user, version, standby, wal_level, stats, skew)


def _row(session: Session, query: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
    found: tuple[Any, ...] = session.execute(query.encode(), parameters or None).fetchone() or ()
    return found


class _Asking:
    """Questions about one connector's tables, in one session."""

    def __init__(self, session: Session, connector: CapturedTables, modes: HandlingModes) -> None:
        self._session = session
        self._connector = connector
        self._modes = modes
        self.publication = self._publication()

    def _publication(self) -> Publication | None:
        settings = self._connector.settings
        name = settings.get("publication.name", "dbz_publication")
        if settings.get("plugin.name") != "pgoutput" or "${" in name:
            return None
        exists = self._session.execute(_PUBLICATION, [name]).fetchone() is not None
        mode = settings.get("publication.autocreate.mode", "all_tables").strip().lower()
        return Publication(name, exists, mode)

    def slot(self) -> Slot | None:
        name = self._connector.settings.get(SLOT, "debezium")
        if "${" in name:
            return None
        row = _row(self._session, _SLOT, [name])
        if not row:
            return Slot(name, exists=False)
        active, status, safe, lag = row
        return Slot(name, exists=True, active=active, wal_status=status, lag=lag, safe=safe)

    def signal(self) -> SignalTable | None:
        table = self._connector.signal_table
        if table is None:
            return None
        row = _row(self._session, _SIGNAL, pair_of(table))
        if not row:
            return SignalTable(table, exists=False)
        insert, columns = row
        refusals = self._refusals(table, self._schemas([table]))
        return SignalTable(table, exists=True, columns=columns, insert=insert, refusals=refusals)

    def relations(self) -> tuple[Relation, ...]:
        captured, rows = self._connector.tables, {}
        for schema, name, *row in self._session.execute(_RELATIONS).fetchall():
            table = text_of(schema, name)
            if table in captured and table != self._connector.signal_table:
                rows[table] = (table, *row)
        schemas = self._schemas(list(rows))
        settings = self._connector.settings
        columns = columns_of(self._session, list(rows), settings=settings)
        return tuple(
            self._relation(row, schemas, columns.get(table, ())) for table, row in rows.items()
        )

    def _relation(
        self,
        row: tuple[Any, ...],
        schemas: Schemas,
        every: tuple[CatalogColumn, ...],
    ) -> Relation:
        table, kind, logged, select, hidden, identity, primary, deferrable, index, toast, root = row
        schema, columns = schemas.get(table, (None, ()))
        return Relation(
            table,
            root=text_of(*root) if root else "",
            kind=kind,
            logged=logged,
            select=select,
            row_security=hidden,
            identity=identity,
            key=tuple(schema.key) if schema else (),
            primary=primary,
            deferrable=deferrable,
            ready_index=index,
            toast=toast,
            columns=columns,
            every_column=every,
            refusals=self._refusals(table, schemas),
        )

    def _schemas(self, tables: Sequence[str]) -> Schemas:
        settings = self._connector.settings
        return schemas_of(self._session, tables, self._modes, settings=settings)

    def _refusals(self, table: str, schemas: Schemas) -> tuple[Refusal, ...]:
        if self.publication is None or not self.publication.exists or table not in schemas:
            return ()
        columns = schemas[table][0].by_name
        return tuple(unpublished(self._session, table, columns, self._connector.settings))
