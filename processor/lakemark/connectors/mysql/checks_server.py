"""The server and its log: from what they say of themselves to findings. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lakemark.connectors.mysql.binlog_place import WhoseLog
from lakemark.model.findings import Finding, clock, fine, warning, wrong

CHECKS: Final = (
    *("database", "binary log", "row image", "log compression", "transaction ids"),
    *("replication", "rights", "log retention", "server id", "same log"),
)

VARIABLES: Final = (
    *("log_bin", "binlog_format", "binlog_row_image", "binlog_row_value_options"),
    *("log_bin_compress", "log_slave_updates", "log_replica_updates"),
    *("binlog_expire_logs_seconds", "expire_logs_days", "server_id", "gtid_mode"),
    *("gtid_strict_mode", "read_only", "innodb_native_foreign_keys"),
)
"""Of the server; one that it does not have is left out."""

OUR_USER: Final = "<lakemark's user>"
RIGHTS: Final = f"GRANT REPLICATION CLIENT, XA_RECOVER_ADMIN ON *.* TO {OUR_USER};"
"""What a snapshot of MySQL needs beside SELECT."""

READ_LOG: Final = f"GRANT REPLICATION SLAVE ON *.* TO {OUR_USER};"
"""The right with which MySQL shows what stands at a place in its log."""
ASK_LOG: Final = f"GRANT BINLOG MONITOR ON *.* TO {OUR_USER};"
"""That of MariaDB, which shows as well where its log ends."""

FORMAT: Final = "SET GLOBAL binlog_format = 'ROW';"
IMAGE: Final = "SET GLOBAL binlog_row_image = 'FULL';"
WHOLE_JSON: Final = "SET GLOBAL binlog_row_value_options = '';"
UNCOMPRESSED: Final = "SET GLOBAL log_bin_compress = OFF;"

LEAST_KEPT: Final = timedelta(days=1)
KEPT_S: Final = 604_800


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server and our user.

    Attributes:
        address: host and port.
        user: who we are, as the server names us.
        version: as it says it.
        is_mariadb: whether it is MariaDB.
        variables: of `VARIABLES`, by name.
        skew_s: by how much its clock is ahead of ours.
        may_ask: whether we may ask it where its log ends, and what is prepared.
    """

    address: str
    user: str
    version: str
    is_mariadb: bool
    variables: Mapping[str, str]
    skew_s: float
    may_ask: bool = True

    @property
    def name(self) -> str:
        """The name of the product."""
        return "MariaDB" if self.is_mariadb else "MySQL"

    def has(self, variable: str, *values: str) -> bool:
        """Say whether a variable has one of these values, whatever their case."""
        return self.variables.get(variable, "").upper() in values


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """All of them.

    Attributes:
        server: always known.
        reader_id: `database.server.id` of the connector; empty when unknown.
        log: whose it is; None when the connector is unknown.
    """

    server: ServerFacts
    reader_id: str = ""
    log: WhoseLog | None = None


def findings(facts: DatabaseFacts) -> list[Finding]:
    """Return all findings about the server and its log."""
    server = facts.server
    return [
        fine("database", server.address, f"{server.name} {server.version} as {server.user}"),
        clock("database", server.skew_s),
        *_log(server),
        *_image(server),
        *_compression(server),
        _ids(server),
        *_replication(server),
        _rights(server),
        _retention(server),
        *_reader(server, facts.reader_id),
        *_same_log(server, facts.log),
    ]


def _log(server: ServerFacts) -> Iterator[Finding]:
    check = "binary log"
    if not server.has("log_bin", "ON", "1"):
        reason = "is off: there is nothing that a connector could read; it takes a restart"
        yield wrong(check, server.address, reason, "log_bin=binlog in the server's configuration")
    elif not server.has("binlog_format", "ROW"):
        form = server.variables.get("binlog_format", "unknown")
        yield wrong(
            check,
            server.address,
            f"has the format {form}: statements are in it instead of rows, and no event comes",
            f"{FORMAT} then let sessions begin anew",
        )
    else:
        yield fine(check, server.address, "on, with rows")


def _image(server: ServerFacts) -> Iterator[Finding]:
    check, image = "row image", server.variables.get("binlog_row_image", "FULL")
    if image.upper() != "FULL":
        yield wrong(
            check,
            server.address,
            f"is {image}: the connector stops at the first row that is not there as a whole",
            f"{IMAGE} then let sessions begin anew",
        )
    elif "PARTIAL_JSON" in server.variables.get("binlog_row_value_options", "").upper():
        yield wrong(
            check,
            server.address,
            "leaves out what an update of a JSON value did not change: such updates are lost"
            " without a word",
            f"{WHOLE_JSON} then let sessions begin anew, and"
            " `lakemark snapshot start` the tables with JSON columns",
        )
    else:
        yield fine(check, server.address, "whole rows")


def _compression(server: ServerFacts) -> Iterator[Finding]:
    check = "log compression"
    if server.has("log_bin_compress", "ON", "1"):
        yield wrong(
            check,
            server.address,
            "log_bin_compress is ON: the connector passes over compressed rows without a word",
            f"{UNCOMPRESSED} then `lakemark snapshot start '.*'`",
        )
    else:
        yield fine(check, server.address, "none that the connector cannot read")


def _ids(server: ServerFacts) -> Finding:
    check = "transaction ids"
    if server.has("gtid_strict_mode", "ON", "1") or server.has("gtid_mode", "ON"):
        return fine(check, server.address, "transactions have global ids")
    if server.is_mariadb:
        return warning(
            check,
            server.address,
            "gtid_strict_mode is not ON: after a failover nothing proves where the connector has to"
            " go on",
            "gtid_strict_mode=ON in the server's configuration",
        )
    return wrong(
        check,
        server.address,
        "gtid_mode is not ON: nothing tells what a read has seen, so no snapshot can be taken",
        "gtid_mode=ON and enforce_gtid_consistency=ON in the server's configuration; a server that"
        " runs gets there by OFF_PERMISSIVE and ON_PERMISSIVE",
    )


def _replication(server: ServerFacts) -> Iterator[Finding]:
    check = "replication"
    passes_on = ("log_slave_updates", "log_replica_updates")
    if server.has("read_only", "ON", "1") and not any(
        server.has(variable, "ON", "1") for variable in passes_on
    ):
        yield wrong(
            check,
            server.address,
            "is a replica that does not log what it gets from its primary: no event comes",
            "log_slave_updates=ON in the server's configuration, or read the primary",
        )
    else:
        yield fine(check, server.address, "what is changed here is in its log")


def _rights(server: ServerFacts) -> Finding:
    if server.may_ask:
        return fine("rights", server.address, "its log and prepared transactions may be asked for")
    return wrong(
        "rights",
        server.address,
        f"{server.user} may not ask where the log ends, and what is prepared: no snapshot can be"
        " taken",
        RIGHTS,
    )


def _retention(server: ServerFacts) -> Finding:
    seconds = _number(server.variables.get("binlog_expire_logs_seconds"))
    days = _number(server.variables.get("expire_logs_days"))
    kept = timedelta(seconds=seconds) if seconds else timedelta(days=days)
    if not kept:
        return fine("log retention", server.address, "the log is kept until somebody removes it")
    if kept < LEAST_KEPT:
        return warning(
            "log retention",
            server.address,
            f"the log is kept for {kept}: a connector that stands still for longer loses its place",
            f"SET GLOBAL binlog_expire_logs_seconds = {KEPT_S};",
        )
    return fine("log retention", server.address, f"the log is kept for {kept}")


def _reader(server: ServerFacts, reader_id: str) -> Iterator[Finding]:
    ours = server.variables.get("server_id", "")
    if not reader_id:
        return
    if reader_id == ours:
        yield wrong(
            "server id",
            server.address,
            f"is {ours}, and so is the connector's database.server.id: one of them is refused",
            "give the connector another database.server.id",
        )
    else:
        yield fine("server id", server.address, f"{ours}; the connector reads as {reader_id}")


def _same_log(server: ServerFacts, log: WhoseLog | None) -> Iterator[Finding]:
    check = "same log"
    if log is WhoseLog.OWN:
        yield fine(check, server.address, "is the one that the connector reads")
    elif log is WhoseLog.UNKNOWN:
        reason = "nothing to compare yet: no place in this log is known of the connector"
        yield fine(check, server.address, reason)
    elif log is WhoseLog.HIDDEN:
        yield warning(
            check,
            server.address,
            f"{server.user} may not look into the log: that database.url leads to the connector's"
            " server is seen by its transactions alone, which a replica has, too",
            READ_LOG if not server.is_mariadb else ASK_LOG,
        )
    elif log is WhoseLog.OTHER:
        yield wrong(
            check,
            server.address,
            "is not the one that the connector reads: no snapshot can be taken",
            "let database.url lead to the server that the connector reads; after a failover the"
            " connector has to commit a place of the new server first",
        )


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
