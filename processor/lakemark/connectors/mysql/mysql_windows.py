"""The end of the log of MySQL or MariaDB: a snapshot's window begins there, in place of a row."""

import time
from typing import Final

import pymysql

from lakemark.connectors.mysql.binlog_place import BinlogPlace, covers
from lakemark.connectors.mysql.binlog_snapshot import (
    NO_PRIVILEGE,
    log_end,
    log_status,
    no_log,
    place_at,
    snapshot_place,
)
from lakemark.connectors.mysql.mysql_errors import number_of as number_in
from lakemark.connectors.mysql.mysql_session import Session
from lakemark.connectors.mysql.positions import number_of
from lakemark.errors import ConfigError, DependencyError

_END: Final = "SHOW MASTER STATUS"
# Needs no right. It moves as a group of commits is written, before anybody may read that.
_LOGGED: Final = "SELECT @@gtid_binlog_pos"
# Reads the file of the log from its beginning up to the place, unless it has an index (11.4).
_TRANSACTIONS: Final = "SELECT BINLOG_GTID_POS(%s, %s)"
_EXECUTED: Final = "SELECT @@global.gtid_executed"
_REFUSED: Final = 1227

_AT_ONCE_S: Final = 0.1  # a commit takes milliseconds
_WITHIN_S: Final = 1.0  # what lasts for longer is better waited for outside
_PAUSE_S: Final = 0.002


def window_place(session: Session) -> BinlogPlace:
    """Return a place behind all that is in the log now.

    What is in the log may be sent, and applied, before anybody sees it in the database: it waits
    for the disk, or for a replica that has to acknowledge it. A run that begins then knows nothing
    of that event, so the chunks of its first window must have seen it. MySQL says where its log
    ends. MariaDB's chunks have the place of a snapshot, which may be before that: it is waited for.

    Args:
        session: outside a transaction.

    Raises:
        DependencyError: ``transaction-unfinished``: something in the log is not to be seen.
        ConfigError, pymysql.MySQLError: as `log_end`.
    """
    if not session.is_mariadb:
        return log_end(session)
    end = _end(session)
    ((logged,),) = session.execute(_LOGGED)
    begun = time.monotonic()
    while True:
        name, pos = snapshot_place(session)
        place = place_at(session, name, pos)
        passed = time.monotonic() - begun
        if end is not None and (place.file, place.pos) >= end:
            return place
        # Of a log that was rotated at rest the place is in the file before.
        if end is None or passed > _AT_ONCE_S:
            ((seen,),) = session.execute(_TRANSACTIONS, [name, pos])
            if covers(seen or "", logged):
                return place
        if passed > _WITHIN_S:
            raise _unfinished(logged)
        time.sleep(_PAUSE_S)


def end_text(session: Session) -> str:
    """Return where the log ends: behind all commits that anybody was told of.

    Args:
        session: outside a transaction.

    Returns:
        file and offset, and the transactions before them; see `log_place`.

    Raises:
        ConfigError: the server writes no log, or tells neither without a right.
        pymysql.MySQLError: as the server says.
    """
    statement = _LOGGED if session.is_mariadb else _EXECUTED
    try:
        name, pos = (snapshot_place if session.is_mariadb else log_status)(session)
    except ConfigError as error:
        ((gtids,),) = session.execute(statement)
        if error.code != NO_PRIVILEGE or not gtids:
            raise
        return "".join(gtids.split())
    if not name:
        raise no_log()
    ((gtids,),) = session.execute(statement)  # afterwards: they are no fewer than at the place
    return f"{name}:{pos} {''.join((gtids or '').split())}".strip()


def _end(session: Session) -> tuple[int, int] | None:
    """Return where the log ends, ahead of all reads; None without the right to ask."""
    try:
        rows = session.execute(_END)
    except pymysql.MySQLError as error:
        if number_in(error) == _REFUSED:
            return None
        raise
    number = number_of(rows[0][0]) if rows else None
    return None if number is None else (number, int(rows[0][1]))


def _unfinished(logged: str) -> DependencyError:
    return DependencyError(
        f"the log has transactions up to {logged}, and the last ones are not to be seen yet",
        code="transaction-unfinished",
        hint="it is tried again; see which replica does not acknowledge"
        " (SHOW STATUS LIKE 'Rpl_semi_sync%'), or whether the disk is slow",
    )
