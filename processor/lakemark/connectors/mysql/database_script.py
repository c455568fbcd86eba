"""MySQL and MariaDB made ready for connector and lakemark: a script for their client. Pure.

Its statements are those that `checks_server` and `checks_tables` ask for.
"""

import zlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from lakemark.connectors.mysql.checks_server import (
    ASK_LOG,
    FORMAT,
    IMAGE,
    KEPT_S,
    LEAST_KEPT,
    OUR_USER,
    READ_LOG,
    RIGHTS,
    UNCOMPRESSED,
    WHOLE_JSON,
)
from lakemark.connectors.mysql.checks_tables import grant
from lakemark.connectors.mysql.names import quoted
from lakemark.connectors.preparation import Script, Statement, ToPrepare, mends
from lakemark.settings.layers import Mistake, SetTo

_HISTORY: Final = "schema.history.internal.kafka"
_IDS: Final = 2**31 - 1  # of server ids; those of servers are small numbers
_NAMING: Final = "name the tables in table.include.list for less"


def wanted_settings(wanted: ToPrepare) -> Iterator[Mistake]:
    """Yield the settings of `Database.wanted_settings`."""
    settings = wanted.settings
    prefix = settings.get("topic.prefix", "")
    missing = {
        "database.server.id": (
            "the connector reads the log as a replica: nobody else may have its number",
            str(zlib.crc32(prefix.encode()) % _IDS + 1),
        ),
        f"{_HISTORY}.bootstrap.servers": (
            "the connector keeps there which form its tables had at each place in the log",
            wanted.bootstrap,
        ),
        f"{_HISTORY}.topic": (
            "one for each connector, of one partition, kept for ever",
            f"{prefix}.schema-history",
        ),
    }
    for name, (why, value) in missing.items():
        if not settings.get(name, "").strip():
            yield Mistake(name, why, SetTo(name, value), warning=True)


def script(wanted: ToPrepare, *, is_mariadb: bool) -> Script:
    """Return the script of `Database.script`.

    Args:
        wanted: the connector.
        is_mariadb: whether the server is MariaDB.
    """
    passwords = "@connector_password = '…', @lakemark_password = '…'"
    client, product = ("mariadb", "MariaDB") if is_mariadb else ("mysql", "MySQL")
    return Script(
        head=(
            f"Run it with {product}'s client as an administrator:",
            f'  {client} --user=root --init-command="SET {passwords}" < database.sql',
            "It can be run again: what is there stays, passwords too.",
            "SET GLOBAL lasts until the server's restart: write the settings into the server's",
            "configuration too, with log_bin=binlog and a server_id of its own, which take one.",
        ),
        before=(),
        statements=(
            *_log(is_mariadb=is_mariadb),
            *_users(wanted),
            *_rights_of_connector(wanted, is_mariadb=is_mariadb),
            *_rights_of_lakemark(wanted, is_mariadb=is_mariadb),
            *_of_findings(wanted),
        ),
    )


def _log(*, is_mariadb: bool) -> Iterator[Statement]:
    yield Statement("in any other format statements stand in the log, and no event comes", FORMAT)
    yield Statement("the connector stops at a row that is not there as a whole", IMAGE)
    if is_mariadb:
        yield Statement("the connector passes over compressed rows without a word", UNCOMPRESSED)
        yield Statement(
            "after a failover global ids prove where the connector has to go on",
            "SET GLOBAL gtid_strict_mode = ON;",
        )
    else:
        yield Statement("updates of a part of a JSON value are lost without a word", WHOLE_JSON)
        yield Statement(
            "gtid_mode=ON and enforce_gtid_consistency=ON in the server's configuration: global ids"
            " tell what a read has seen, and where the connector has to go on after a failover"
        )
    least, seconds = LEAST_KEPT // timedelta(seconds=1), "@@GLOBAL.binlog_expire_logs_seconds"
    yield Statement(
        "a connector that stands still for longer loses its place, and all tables are read again",
        f"SET GLOBAL binlog_expire_logs_seconds ="
        f" CAST(IF({seconds} BETWEEN 1 AND {least - 1}, {KEPT_S}, {seconds}) AS UNSIGNED);",
    )


# -- users and rights ------------------------------------------------------------------------------


def _users(wanted: ToPrepare) -> Iterator[Statement]:
    yield _user("the connector's user, who reads the log", wanted.connector_user, "connector")
    if wanted.user != wanted.connector_user:
        yield _user("lakemark's user; it owns nothing", wanted.user, "lakemark")


def _user(why: str, name: str, whose: str) -> Statement:
    """Return the statements that make a user; without a password the server refuses them."""
    variable = f"@{whose}_password"
    missing = _text(f"{variable} is not set: the user {name} needs a password")
    create = _text(f"CREATE USER IF NOT EXISTS {_account(name)} IDENTIFIED BY ")
    return Statement(
        why,
        f"SET @statement = IF({variable} IS NULL, {missing},"
        f" CONCAT({create}, QUOTE({variable})));\n"
        "PREPARE made FROM @statement; EXECUTE made; DEALLOCATE PREPARE made;",
    )


def _account(name: str) -> str:
    return f"{quoted(name)}@`%`"


def _text(text: str) -> str:
    """Return a text as SQL has it, also where backslashes escape."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _rights_of_connector(wanted: ToPrepare, *, is_mariadb: bool) -> Iterator[Statement]:
    user = _account(wanted.connector_user)
    status = "BINLOG MONITOR" if is_mariadb else "REPLICATION CLIENT"
    yield Statement(
        f"the connector reads the log (REPLICATION SLAVE), asks where it ends ({status}), and"
        " holds it still while it reads which form the tables have (RELOAD)",
        f"GRANT RELOAD, REPLICATION SLAVE, {status} ON *.* TO {user};",
    )
    why = "the connector reads the form of the tables, and in a snapshot of its own the rows"
    yield from _selects(why, wanted.tables, user, wanted)


def _rights_of_lakemark(wanted: ToPrepare, *, is_mariadb: bool) -> Iterator[Statement]:
    if not is_mariadb:
        yield Statement(
            "snapshots ask where the log ends, and which transactions of XA are prepared",
            RIGHTS.replace(OUR_USER, _account(wanted.user)),
        )
    why = "snapshots read the rows, and exact types come from the catalog"
    yield from _selects(why, wanted.chosen, _account(wanted.user), wanted)
    if not is_mariadb:
        yield Statement(
            "optional: with it snapshots see that the server has the very log that the connector"
            " reads, and not that of a replica; it lets the user read the whole log",
            READ_LOG.replace(OUR_USER, _account(wanted.user)),
        )
    else:
        yield Statement(
            "optional: without it snapshots do not see whether the server has the log that the"
            " connector reads, and the server looks for the log's last transaction in the log's"
            " file each time that a window of a snapshot begins",
            ASK_LOG.replace(OUR_USER, _account(wanted.user)),
        )


def _selects(
    why: str, tables: tuple[str, ...] | None, user: str, wanted: ToPrepare
) -> Iterator[Statement]:
    """Yield the rights to read tables, or, where nobody knows them, all that may be among them."""
    if tables is not None:
        for table in tables:
            yield Statement(why, grant("SELECT", table, user))
        return
    places = [f"{_pattern(name)}.*" for name in wanted.containers or ()] or ["*.*"]
    for place in places:
        yield Statement(f"{why}; {_NAMING}", f"GRANT SELECT ON {place} TO {user};")


def _pattern(database: str) -> str:
    """Return a database as a right of the whole of it has it: `_` and `%` stand for others."""
    return quoted(database.replace("\\", "\\\\").replace("_", r"\_").replace("%", r"\%"))


def _of_findings(wanted: ToPrepare) -> Iterator[Statement]:
    """Yield what the doctor asks for of the tables that are there."""
    for finding in mends(wanted.findings, ("key", "columns", "tables", "cascades")):
        yield Statement(
            f"{finding.check} of {finding.subject}: {finding.reason}. It is for you to decide:"
            f" {finding.mend}"
        )
