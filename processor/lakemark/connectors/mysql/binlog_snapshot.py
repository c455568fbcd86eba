"""MySQL and MariaDB: a transaction that sees one moment, with a place in the log that bounds it.

A commit is in the log before others see it: its group of commits is written, then it waits (for
the disk, for replicas that acknowledge it), then the storage engine commits it. So where the log
ends says nothing of what a SELECT sees. `consistent_snapshot` asks first and waits then:

1. The *place* is where the log ends.
2. What stands before it and is not yet to be seen ends. Of MySQL: every id of a transaction that
   somebody holds is waited for. Of both: where XA is used, every prepared transaction is.
3. The snapshot is taken: all that stands before the place is in it.

Each step holds by what its server does:

* MySQL gives a transaction its id (GTID) before it writes its group, and takes it back after the
  engine's commit, or when nothing comes of it. So what was written before 1 and has not ended has
  an id that ``gtid_owned`` shows. That needs ``gtid_mode=ON``: without ids nothing is shown. The
  order of the engine's commits does not matter (``binlog_order_commits``), nor how long one waits.
* MariaDB has no such list, but tells the place of a consistent snapshot: both are taken between two
  groups of commits. Its place is that of a snapshot before ours.
* A transaction of XA is in the log when it is prepared, and to be seen when it is committed.
  ``XA RECOVER`` shows it in between; but its session is waked after it is in the log and only then
  is it shown. So it is asked for a moment later. Where nobody has ever begun one (``Com_xa_start``
  counts those of replication, too) and none is left from before the server's start, it is not.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pymysql

from lakemark.connectors.mysql.binlog_place import BinlogPlace, Server, held_ids
from lakemark.connectors.mysql.checks_server import RIGHTS
from lakemark.connectors.mysql.mysql_errors import number_of as number_in
from lakemark.connectors.mysql.mysql_session import Session
from lakemark.connectors.mysql.positions import number_of
from lakemark.errors import ConfigError, DependencyError

NO_PRIVILEGE: Final = "server-privilege"
"""The code of a question that MySQL does not allow us."""

_BEGIN: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
_OF_SNAPSHOT: Final = "SHOW STATUS LIKE 'Binlog_snapshot_%%'"
_RENAMED: Final = (8, 2, 0)
"""The version of MySQL from which on the master's status is that of the binary log."""

# The server's start is exact: both numbers are of the moment at which the statement began.
_SERVER: Final = """
SELECT @@global.server_id, UNIX_TIMESTAMP() - variable_value
FROM {}.global_status WHERE variable_name = 'UPTIME'
"""
_BEGUN_OF_XA: Final = "SHOW GLOBAL STATUS LIKE 'Com_xa_start'"
WAKED_S: Final = 1.0
"""Seconds after which a session is certainly waked. On MariaDB, with forty processes that want two
cores, 5 of 1,724 reads came too early after 10 ms, and none of 771 after 30 ms."""

ENDED_WITHIN_S: Final = 10.0
"""Seconds within which transactions end that were unfinished. Most take milliseconds; what takes
longer, such as the transaction of a replica or a prepared one that is forgotten, is waited for by
those who read again."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.1  # between two questions
_NO_RIGHT: Final = frozenset({1227, 1401})
"""Errors that say that we may not; the latter is `XA RECOVER`'s."""


@contextmanager
def consistent_snapshot(session: Session) -> Iterator[BinlogPlace]:
    """Begin a read-only transaction that sees one moment; it ends with the block.

    Nothing of it is kept open: an open transaction holds up whoever wants to change a table that it
    has read.

    Args:
        session: of `connect`, outside a transaction.

    Yields:
        a place in the log: the transaction sees every change that stands before it.

    Raises:
        ConfigError: the server writes no log; ``no-transaction-ids``, ``server-privilege``.
        DependencyError: ``transaction-unfinished``, ``transaction-prepared``: it did not end.
        pymysql.MySQLError: as the server says.
    """
    place = log_end(session)
    if not session.is_mariadb:
        _wait_for_end(session, _held, _unfinished)
    if _uses_xa(session):
        time.sleep(WAKED_S)
        _wait_for_end(session, _prepared, _still_prepared)
    try:
        session.execute(_BEGIN)
        yield place
    finally:
        _end(session)


@contextmanager
def brief_snapshot(session: Session) -> Iterator[BinlogPlace]:
    """Begin one that waits for nothing, for who keeps no rows of it; it ends with the block.

    Args:
        session: of `connect`, outside a transaction.

    Yields:
        the beginning of all logs: nothing is said of what the transaction sees.

    Raises:
        ConfigError, pymysql.MySQLError: as `consistent_snapshot`, which may be taken where this is.
    """
    server = log_end(session).server
    if not session.is_mariadb:
        _held(session)
    _prepared(session)
    try:
        session.execute(_BEGIN)
        yield BinlogPlace(server, 0, 0)
    finally:
        _end(session)


def log_end(session: Session) -> BinlogPlace:
    """Return where the log ends; what stands before it need not be visible yet.

    Args:
        session: of `connect`, outside a transaction.

    Raises:
        ConfigError: the server writes no log; ``server-privilege``.
        pymysql.MySQLError: as the server says.
    """
    return place_at(
        session, *(snapshot_place(session) if session.is_mariadb else log_status(session))
    )


def place_at(session: Session, name: str, pos: int) -> BinlogPlace:
    """Return a place in the server's log.

    Args:
        session: of `connect`, outside a transaction.
        name: of the log's file.
        pos: in it.

    Raises:
        ConfigError: the server writes no log.
        pymysql.MySQLError: as the server says.
    """
    file = number_of(name)
    if file is None:
        raise no_log()
    status = "information_schema" if session.is_mariadb else "performance_schema"
    ((server, start),) = session.execute(_SERVER.format(status))
    return BinlogPlace(Server(int(server), int(start)), file, pos)


def no_log() -> ConfigError:
    """Return the error of a server that writes no log."""
    return ConfigError(
        "the server writes no binary log",
        hint="set database.url to the server that the connector reads, with log_bin",
    )


def may_ask(session: Session) -> bool:
    """Return whether our rights suffice for a snapshot's questions.

    Args:
        session: of `connect`, outside a transaction.

    Raises:
        pymysql.MySQLError: as the server says.
    """
    try:
        with brief_snapshot(session):
            return True
    except ConfigError as error:
        return error.code != NO_PRIVILEGE


def snapshot_place(session: Session) -> tuple[str, int]:
    """Return the name of the file and the place of a consistent snapshot, of MariaDB.

    It takes no right, and may be behind what is in the log: see `window_place`.

    Args:
        session: of `connect`, outside a transaction.

    Raises:
        pymysql.MySQLError: as the server says.
    """
    try:
        session.execute(_BEGIN)
        where = {name.lower(): value for name, value in session.execute(_OF_SNAPSHOT)}
    finally:
        _end(session)
    return where.get("binlog_snapshot_file", ""), int(where.get("binlog_snapshot_position") or 0)


def log_status(session: Session) -> tuple[str, int]:
    """Return the name of the file and the place at which the log ends, ahead of all reads.

    Args:
        session: of `connect`, outside a transaction.

    Raises:
        ConfigError: ``server-privilege``.
        pymysql.MySQLError: as the server says.
    """
    renamed = not session.is_mariadb and session.version >= _RENAMED
    statement = "SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS"
    for file, pos, *_ in _allowed(session, statement):
        return str(file), int(pos)
    return "", 0


def _wait_for_end(
    session: Session,
    unfinished: Callable[[Session], set[str]],
    error: Callable[[set[str]], DependencyError],
) -> None:
    """Return when all transactions that are unfinished now have ended."""
    begun, pause = time.monotonic(), _FIRST_PAUSE_S
    waited = unfinished(session)
    while waited:
        if time.monotonic() - begun > ENDED_WITHIN_S:
            raise error(waited)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        waited &= unfinished(session)


def _held(session: Session) -> set[str]:
    """Return the ids of transactions that have not ended."""
    ((mode, owned),) = session.execute("SELECT @@global.gtid_mode, @@global.gtid_owned")
    if mode != "ON":
        raise ConfigError(
            f"gtid_mode is {mode}: transactions without ids do not tell whether they have ended,"
            " so nothing tells what a read has seen",
            code="no-transaction-ids",
            hint="gtid_mode=ON and enforce_gtid_consistency=ON; a server that runs gets there by"
            " OFF_PERMISSIVE, ON_PERMISSIVE and ON, see its documentation",
        )
    return held_ids(owned)


def _uses_xa(session: Session) -> bool:
    ((_, begun),) = session.execute(_BEGUN_OF_XA)
    return int(begun) > 0 or bool(_prepared(session))


def _prepared(session: Session) -> set[str]:
    """Return the transactions of XA that are prepared."""
    as_hex = "" if session.is_mariadb else "CONVERT XID"  # else a text, which it need not be
    return {repr(row) for row in _allowed(session, f"XA RECOVER {as_hex}")}


def _allowed(session: Session, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement for which MySQL wants a right.

    Raises:
        ConfigError: ``server-privilege``.
    """
    try:
        return session.execute(statement)
    except pymysql.MySQLError as error:
        if number_in(error) not in _NO_RIGHT:
            raise
        raise ConfigError(
            "lakemark's user may not ask the server where its log ends, and what is prepared"
            f" ({statement})",
            code=NO_PRIVILEGE,
            hint=RIGHTS,
        ) from error


def _unfinished(ids: set[str]) -> DependencyError:
    return DependencyError(
        f"{len(ids)} transactions may be in the log and cannot be seen yet, such as {min(ids)}",
        code="transaction-unfinished",
        hint="it is tried again; on a replica it ends with the transaction that is applied, else"
        " see which session has set GTID_NEXT, or which replica does not acknowledge",
    )


def _still_prepared(transactions: set[str]) -> DependencyError:
    return DependencyError(
        f"{len(transactions)} transactions of XA are prepared: their changes are in the log before"
        " others see them",
        code="transaction-prepared",
        hint="it is tried again; end what XA RECOVER shows if nobody else does",
    )


def _end(session: Session) -> None:
    try:
        session.execute("COMMIT")
    except pymysql.MySQLError:  # the server is away, or has ended the session
        session.close()
