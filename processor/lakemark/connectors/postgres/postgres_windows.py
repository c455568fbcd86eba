"""PostgreSQL: rows that open and close windows, and the transaction that keeps them from view.

The rows go into the connector's own signal table, so they come back in the log among the changes.
The least that lakemark's user needs (tables to be read need SELECT, and their schemas USAGE):

    GRANT USAGE ON SCHEMA public TO lakemark;
    GRANT INSERT ON public.debezium_signal TO lakemark;
    GRANT pg_read_all_stats TO lakemark;  -- optional: says since when a transaction is waited for

The table, where there is none (then set ``signal.data.collection``, and add it to the publication):

    CREATE TABLE public.debezium_signal (
        id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048)
    );
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from uuid import uuid4

import msgspec
from psycopg import errors

from lakemark.connectors.database import OpenWindow, Proof, Watermark
from lakemark.connectors.postgres.column_sql import quoted
from lakemark.connectors.postgres.key_sql import escaped
from lakemark.connectors.postgres.log_place import Lsn
from lakemark.connectors.postgres.postgres_publication import unpublished
from lakemark.connectors.postgres.postgres_session import (
    Session,
    current_snapshot,
    grant,
    translated,
)
from lakemark.connectors.postgres.visibility import Blocker, Snapshot, bound_of
from lakemark.connectors.refusals import refusals
from lakemark.errors import ConfigError, DependencyError
from lakemark.settings.table_id import pair_of

_COLUMNS: Final = """
SELECT a.attname::text, c.relkind::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute a
       ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = %s AND c.relname = %s
ORDER BY a.attnum
"""
_NEEDED: Final = 3  # id, type, data: by place, as the connector takes them
# A commit that waits for less than the applications' own would be visible before theirs.
_STRENGTH: Final = """
SELECT pg_catalog.set_config('synchronous_commit',
    CASE pg_catalog.current_setting('synchronous_commit')
    WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)
"""
_WAL: Final = """
SELECT (pg_catalog.pg_current_wal_insert_lsn() - '0/0'::pg_catalog.pg_lsn)::bigint
"""
# What was committed without waiting for the disk is visible, and inserted, before it is written.
_END: Final = """
SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery()
       THEN pg_catalog.pg_current_wal_insert_lsn()::text END
"""
_MARK: Final = '{"message": "lakemark asks how far the connector is"}'
_NEXT_XID: Final = "SELECT pg_catalog.pg_current_xact_id()"
# Locks show transaction ids to everybody, pg_stat_activity to pg_read_all_stats.
_BLOCKER: Final = """
WITH wanted AS (SELECT (%(xid)s::numeric %% 4294967296)::text::xid AS xid)
SELECT p.gid, NULL::int, p.prepared, 'prepared'
FROM pg_catalog.pg_prepared_xacts p, wanted w WHERE p.transaction = w.xid
UNION ALL
SELECT s.application_name, l.pid, s.query_start, coalesce(s.state, 'active')
FROM wanted w
JOIN pg_catalog.pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = w.xid
     AND l.granted AND l.mode = 'ExclusiveLock' AND l.pid IS NOT NULL
LEFT JOIN pg_catalog.pg_stat_activity s ON s.pid = l.pid
LIMIT 1
"""


def write_window(
    session: Session, table: str, *, closes: OpenWindow | None, opens: OpenWindow | None
) -> Watermark | Snapshot:
    """Close a window and open the next, in one transaction.

    1. ``<uuid>-close`` of the last and ``<uuid>-open`` of the next window are inserted; they say
       where the log ends before this transaction commits.
    2. The transaction commits with ``synchronous_commit = on`` (``remote_apply`` is left as it is).
    3. When the commit has returned, a transaction of its own takes the next transaction id and
       ends: xmax of a snapshot is one more than the newest id that has ended, so that the ids of
       all transactions that began before 3 are now below it.
    4. The snapshot S0 is taken.

    An error after 2 leaves a window that nobody uses; call again with a new uuid.

    Args:
        session: of `connect`, outside a transaction.
        table: ``schema.table`` of the connector's ``signal.data.collection``. Its first three
            columns are taken, whatever their names; others must have defaults.
        closes: the window that ends; None at the beginning of a run.
        opens: the window that begins; None at the end of a run.

    Returns:
        the acknowledged open row; S0 alone when no window is opened.

    Raises:
        ConfigError: ``signal-table-missing``, ``signal-table-columns``, ``signal-table-privilege``
            or ``signal-table-refuses``; the hint is the SQL that mends it.
        DependencyError: the database is away, a standby, or the table is locked.
    """
    with translated():
        columns = _columns(session, table)
        server = current_snapshot(session).server
        rows = [(kind, w) for kind, w in (("close", closes), ("open", opens)) if w is not None]
        with _inserting(session, table, columns) as insert:
            session.execute(_STRENGTH)
            bound = bound_of(_wal(session))
            for kind, window in rows:
                data = {
                    "run": window.run,
                    "oldest": str(window.oldest),
                    "server": str(server),
                    "bound": bound.hex(),
                }
                text = msgspec.json.encode(data).decode()
                insert(f"{window.uuid}-{kind}", f"snapshot-window-{kind}", text)
        session.execute(_NEXT_XID)
        after = current_snapshot(session)
    return after if opens is None else Watermark(str(opens.uuid), after, bound)


def write_mark(session: Session, table: str) -> None:
    """Write a row that says nothing, for the connector to send: Debezium's signal `log`.

    Args:
        session: of `connect`, outside a transaction.
        table: as `write_window` has it.

    Raises:
        ConfigError, DependencyError: as `write_window`.
    """
    with translated():
        columns = _columns(session, table)
        with _inserting(session, table, columns) as insert:
            insert(f"{uuid4()}-mark", "log", _MARK)


@contextmanager
def _inserting(
    session: Session, table: str, columns: list[str]
) -> Iterator[Callable[[str, str, str], None]]:
    """Begin a transaction that inserts rows into the signal table; it commits with the block."""
    names = ", ".join(escaped(name) for name in columns)
    schema, name = pair_of(table)
    target = escaped(schema, name)
    statement = f"INSERT INTO {target} ({names}) VALUES (%s, %s, %s)"  # noqa: S608 (quoted)

    def insert(name: str, kind: str, data: str) -> None:
        session.execute(statement.encode(), [name, kind, data])

    try:
        with session.transaction():
            yield insert
    except errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"lakemark's user may not write into {table}",
            code="signal-table-privilege",
            hint=grant("INSERT", table),
        ) from error
    except (errors.IntegrityError, errors.DataError, errors.ProgrammingError) as error:
        raise ConfigError(
            f"{table} does not take a row of lakemark's (error {error.sqlstate})",
            code="signal-table-refuses",
            hint=_alter(table, columns),
        ) from error


def log_end(session: Session) -> Lsn:
    """Return where the log ends: behind all commits that anybody was told of.

    Raises:
        DependencyError: it is away, or a standby, whose log ends behind that of its primary.
    """
    with translated():
        row = session.execute(_END).fetchone()
    if row is None or row[0] is None:
        raise DependencyError(
            "the database is a standby: the log of its primary may go further",
            code="database-is-standby",
            hint="set database.url to the primary, or give a position that it prints",
        )
    return Lsn.parse(str(row[0]))


def require_published(session: Session, table: str, settings: Mapping[str, str]) -> None:
    """Check that window rows come back in the log: without them a run would never end.

    Args:
        session: of `connect`, outside a transaction.
        table: as `write_window` has it.
        settings: the connector's configuration.

    Raises:
        ConfigError: ``signal-table-unpublished``, or as `write_window`.
        DependencyError: the database is away.
    """
    with translated():
        columns = _columns(session, table)
        problems = [
            *refusals(settings, table, columns),
            *unpublished(session, table, columns, settings),
        ]
    if problems:
        raise ConfigError(
            f"{problems[0].message}: window rows do not come back, and snapshots would not end",
            code="signal-table-unpublished",
            hint=problems[0].hint,
        )


def blocker(session: Session, proof: Proof) -> Blocker:
    """Return the transaction that a chunk waits for when its snapshot shows no open row.

    Args:
        session: of `connect`.
        proof: the chunk's.

    Returns:
        who it is; state ``ended`` if it has ended since, so that reading again may help at once.
    """
    if not isinstance(proof, Snapshot):
        raise TypeError("the proof is of another database")
    with translated():
        row = session.execute(_BLOCKER, {"xid": proof.xmin}).fetchone()
    if row is None:
        return Blocker(proof.xmin, None, "", None, "ended")
    application, pid, since, state = row
    moment = None if since is None else since.isoformat()
    return Blocker(proof.xmin, pid, application or "", moment, state)


def _wal(session: Session) -> int:
    """Return the end of the log: every later commit is behind it."""
    row = session.execute(_WAL).fetchone()
    return int(row[0]) if row else 0


def _columns(session: Session, table: str) -> list[str]:
    schema, name = pair_of(table)
    rows = session.execute(_COLUMNS, [schema, name]).fetchall()
    columns = [column for column, kind in rows if column is not None and kind in "rp"]
    if not rows:
        raise ConfigError(
            f"there is no signal table {table}",
            code="signal-table-missing",
            hint=_create(table),
        )
    if len(columns) < _NEEDED:
        raise ConfigError(
            f"the signal table {table} has not the columns id, type, data",
            code="signal-table-columns",
            hint=f"DROP TABLE {quoted(schema, name)}; {_create(table)}",
        )
    return columns[:_NEEDED]


def _create(table: str) -> str:
    schema, name = pair_of(table)
    return (
        f"CREATE TABLE {quoted(schema, name)} (id varchar(42) PRIMARY KEY,"
        f" type varchar(32) NOT NULL, data varchar(2048)); {grant('INSERT', table)}"
    )


def _alter(table: str, columns: list[str]) -> str:
    schema, name = pair_of(table)
    lengths = zip(columns, ("varchar(42)", "varchar(32)", "varchar(2048)"), strict=True)
    changes = ", ".join(f"ALTER {quoted(column)} TYPE {kind}" for column, kind in lengths)
    return f"ALTER TABLE {quoted(schema, name)} {changes};"
