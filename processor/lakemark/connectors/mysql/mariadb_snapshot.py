"""MariaDB: a transaction that sees one moment, whose place in the log the server tells.

``START TRANSACTION WITH CONSISTENT SNAPSHOT`` takes the snapshot between two groups of commits, and
``Binlog_snapshot_file`` and ``Binlog_snapshot_position`` are where the log was then. What the
server otherwise calls its position, or its GTID, is ahead of what a SELECT sees: a group of commits
is in the log before the engine has it.

One kind of transaction is in the log before it is committed: XA, as it is prepared. Whether one is,
and whether one ended meanwhile, is asked around the snapshot. A prepared one is known by ``XA
RECOVER`` afterwards, unless it has ended, which the server counts as it begins.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pymysql

from lakemark.connectors.mysql.binlog_place import BinlogPlace, Server
from lakemark.connectors.mysql.mysql_session import Session
from lakemark.connectors.mysql.positions import number_of
from lakemark.errors import ConfigError, DependencyError

_BEGIN: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
_WHERE: Final = "SHOW STATUS LIKE 'Binlog_snapshot_%%'"
# The server's start is exact: both numbers are of the moment at which the statement began.
_SERVER: Final = """
SELECT @@global.server_id,
       CAST(UNIX_TIMESTAMP() AS SIGNED)
         - CAST(sum(IF(variable_name = 'UPTIME', variable_value, 0)) AS SIGNED),
       CAST(sum(IF(variable_name = 'UPTIME', 0, variable_value)) AS SIGNED)
FROM information_schema.global_status
WHERE variable_name IN ('UPTIME', 'COM_XA_COMMIT', 'COM_XA_ROLLBACK')
"""


# A prepared transaction of somebody who commits in two phases is one for milliseconds. Who has many
# of them leaves gaps.
_TRIES: Final = 20
_PAUSE_S: Final = 0.02


@contextmanager
def consistent_snapshot(session: Session) -> Iterator[BinlogPlace]:
    """Begin a read-only transaction that sees one moment; it ends with the block.

    Nothing of it is kept open: an open transaction holds up whoever wants to change a table that it
    has read.

    Args:
        session: of `connect`, outside a transaction.

    Raises:
        ConfigError: the server writes no log.
        DependencyError: ``transaction-prepared``: a transaction of XA is in the log and not
            committed, or was, each time.
        pymysql.MySQLError: as the server says.
    """
    try:
        yield _begun(session)
    finally:
        _end(session)


def _begun(session: Session) -> BinlogPlace:
    for turn in range(_TRIES):
        if turn:
            _end(session)
            time.sleep(_PAUSE_S)
        ((_, _, ended),) = session.execute(_SERVER)
        session.execute(_BEGIN)
        where = {name.lower(): value for name, value in session.execute(_WHERE)}
        prepared = session.execute("XA RECOVER")
        ((server, start, ended_since),) = session.execute(_SERVER)
        if not prepared and ended == ended_since:
            return _place(where, Server(int(server), int(start)))
    raise DependencyError(
        "a transaction of XA is prepared, or has just ended: its changes are in the log before"
        " others see them",
        code="transaction-prepared",
        hint="it is tried again; end what XA RECOVER shows if nobody else does",
    )


def _place(where: Mapping[str, str], server: Server) -> BinlogPlace:
    file = number_of(where.get("binlog_snapshot_file"))
    if file is None:
        raise ConfigError(
            "the server writes no binary log",
            hint="set database.url to the server that the connector reads, with log_bin",
        )
    pos = int(where["binlog_snapshot_position"])
    return BinlogPlace(server, file, pos, where.get("binlog_snapshot_gtid_pos", ""))


def _end(session: Session) -> None:
    try:
        session.execute("COMMIT")
    except pymysql.MySQLError:  # the server is away, or has ended the session
        session.close()
