"""MySQL and MariaDB: the server that is asked must be the one whose log the connector reads.

A place is one of a server's log, and another one in the log of a replica, or of any other server:
rows that are read there would be compared with events by places that have nothing to do with each
other. The numbers of servers in events tell nothing: a replica's log has those of its primary. Two
questions tell, both of the newest event that has come:

* whether the server has its transaction: a replica that is behind has not, nor has a stranger;
* what stands at its very place in the server's log. The server goes there at once, and compares the
  checksum: a place in the midst of an entry is told from a beginning. Where a transaction begins,
  it must be that of the event, and the next ones newer.

MariaDB answers the latter to who may ask where the log ends, MySQL to who may read the log.
"""

from collections.abc import Mapping
from typing import Final

import pymysql

from lakemark.connectors.mysql.binlog_place import (
    UUID_LENGTH,
    LogEntry,
    WhoseLog,
    held_ids,
    may_stand,
    newest_of,
)
from lakemark.connectors.mysql.binlog_snapshot import NO_PRIVILEGE, log_status
from lakemark.connectors.mysql.mysql_errors import number_of as number_in
from lakemark.connectors.mysql.mysql_session import Session
from lakemark.connectors.mysql.positions import begun_place, place_of
from lakemark.connectors.reached_place import ReachedPlace
from lakemark.errors import ConfigError, DependencyError

_AT: Final = (
    "SHOW BINLOG EVENTS IN %s FROM {} LIMIT 20"  # mostly the next transaction is among them
)
_REFUSED: Final = 1227
_NOTHING_THERE: Final = 1220
"""SHOW BINLOG EVENTS: no such file, or nothing begins at the place; only the text tells which."""
_NO_FILE: Final = "target log"


def whose_log(session: Session, reached: ReachedPlace) -> WhoseLog:
    """Compare the server's log with what the connector has read.

    Args:
        session: of `connect`, outside a transaction.
        reached: by the connector.

    Raises:
        pymysql.MySQLError: as the server says.
    """
    if reached.transactions and not _has_any(session, reached.transactions):
        return WhoseLog.OTHER
    place = place_of(reached.position) if reached.position else begun_place(reached.begun_at)
    if place is None:
        return WhoseLog.UNKNOWN
    return _at(session, *place, reached)


def other_log(*, was_own: bool) -> DependencyError:
    """Return the error of a server with another log than the connector's.

    Args:
        was_own: whether `database.url` has led to the connector's server before.
    """
    return DependencyError(
        "the log of the server that database.url leads to is not the one that the connector reads",
        code="other-log",
        hint="let database.url lead to the server that the connector reads; after a failover it"
        " goes on by itself once both lead to the new server and an event of it has come"
        + ("" if was_own else _READ_BEFORE),
    )


_READ_BEFORE: Final = (
    ". Where snapshots have read rows there before, correct it, and then: lakemark recover"
    " --new-epoch has all tables read again"
)


def _has_any(session: Session, transactions: Mapping[str, int]) -> bool:
    """Say whether the server has one of these transactions, by origin; it may not be visible yet.

    One of them is of the newest event. The others may be of servers that are no more, and what they
    had last may be lost.
    """
    if session.is_mariadb:
        ((logged,),) = session.execute("SELECT @@gtid_binlog_pos")
        newest = newest_of(logged or "")
        return any(number <= newest.get(at, -1) for at, number in transactions.items())
    ids = [f"{at}:{number}" for at, number in transactions.items() if len(at) >= UUID_LENGTH]
    ((owned,),) = session.execute("SELECT @@global.gtid_owned")  # first: then it has ended
    if not held_ids(owned).isdisjoint(ids):
        return True
    asked = "SELECT GTID_SUBSET(%s, @@global.gtid_executed)"
    return any(session.execute(asked, [one]) == [(1,)] for one in ids)


def _at(session: Session, file: int, pos: int, reached: ReachedPlace) -> WhoseLog:
    """Compare what begins at a place of the server's log."""
    try:
        current, _ = log_status(session)
        base, _, newest = current.rpartition(".")
        if not newest or file > int(newest):
            return WhoseLog.OTHER
        entries = session.execute(_AT.format(pos), [f"{base}.{file:06d}"])
    except ConfigError as error:
        if error.code != NO_PRIVILEGE:
            raise
        return WhoseLog.HIDDEN
    except pymysql.MySQLError as error:
        if number_in(error) == _REFUSED:
            return WhoseLog.HIDDEN
        if number_in(error) != _NOTHING_THERE:
            raise
        return WhoseLog.UNKNOWN if _NO_FILE in str(error) else WhoseLog.OTHER
    found = [LogEntry(kind, text) for _, _, kind, _, _, text in entries]
    return WhoseLog.OWN if may_stand(found, reached) else WhoseLog.OTHER
