"""The server, the slot and the signal table: from the catalog's facts to findings. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lakemark.connectors.postgres.column_sql import quoted
from lakemark.connectors.refusals import Refusal
from lakemark.model.findings import Finding, clock, fine, warning, wrong
from lakemark.settings.table_id import pair_of

CHECKS: Final = ("database", "wal_level", "publication", "slot", "signal table")

WAL_LEVEL: Final = "ALTER SYSTEM SET wal_level = 'logical'"
NO_DECODING: Final = "there is no logical decoding; it takes a restart to change"
NO_STATS: Final = "a snapshot that waits for a transaction cannot say since when it runs"

_GIB: Final = 1024**3
MUCH_LAG: Final = _GIB
"""Bytes of log kept for a slot that are worth a warning: minutes of a busy server, room on disk."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server and our user.

    Attributes:
        address: host, port and database, without the password.
        user: who we are.
        version: as it says it.
        standby: it is in recovery.
        wal_level: the setting.
        reads_stats: whether we have pg_read_all_stats.
        skew_s: by how much its clock is ahead of ours.
    """

    address: str
    user: str
    version: str
    standby: bool
    wal_level: str
    reads_stats: bool
    skew_s: float


@dataclass(frozen=True, slots=True)
class Slot:
    """The connector's replication slot.

    Attributes:
        name: of it.
        exists: whether the server has it.
        active: whether somebody reads from it.
        wal_status: reserved, extended, unreserved or lost; empty when unknown.
        lag: bytes of log that are kept for it; None when unknown.
        safe: bytes that may still be written before it is lost; None without a limit.
    """

    name: str
    exists: bool
    active: bool = False
    wal_status: str = ""
    lag: int | None = None
    safe: int | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """The connector's publication.

    Attributes:
        name: of it.
        exists: whether the database has it.
        autocreate: publication.autocreate.mode of the connector.
    """

    name: str
    exists: bool
    autocreate: str


@dataclass(frozen=True, slots=True)
class SignalTable:
    """The connector's signal table.

    Attributes:
        table: ``schema.table``.
        exists: whether the database has it.
        columns: how many.
        insert: whether we may insert.
        refusals: why its rows would not come back in the log.
    """

    table: str
    exists: bool
    columns: int = 0
    insert: bool = False
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """The catalog's facts apart from the captured tables.

    Attributes:
        server: always known.
        slot: None when its name is unknown.
        publication: None when its name is unknown or the connector needs none.
        signal: None when the connector has no signal table.
        streams: whether the connector runs.
    """

    server: ServerFacts
    slot: Slot | None
    publication: Publication | None
    signal: SignalTable | None
    streams: bool


def findings(facts: DatabaseFacts) -> list[Finding]:
    """Return all findings about server, slot and signal table."""
    return [
        *_server(facts.server),
        *(_publication(facts.publication) if facts.publication else ()),
        *(_slot(facts.slot, streams=facts.streams) if facts.slot else ()),
        *(_signal(facts.signal, facts) if facts.signal else ()),
    ]


def grant(privilege: str, table: str, user: str) -> str:
    """The statement that gives a privilege on a table."""
    schema, name = pair_of(table)
    return (
        f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(user)};"
        f" GRANT {privilege} ON {quoted(schema, name)} TO {quoted(user)};"
    )


def grant_stats(user: str) -> str:
    """The statement that lets a user see since when transactions run."""
    return f"GRANT pg_read_all_stats TO {quoted(user)};"


def create_signal_table(table: str) -> str:
    """The statement that makes a signal table, without its semicolon."""
    return (
        f"CREATE TABLE {quoted(*pair_of(table))} (id varchar(42) PRIMARY KEY,"
        " type varchar(32) NOT NULL, data varchar(2048))"
    )


def mending(refusal: Refusal, publication: str, table: str) -> str:
    """Return the statement that mends a refusal, or its hint where no statement does."""
    if refusal.code != "not-published":
        return refusal.hint
    return f"{publish(publication, table)};"


def publish(publication: str, table: str) -> str:
    """The statement that adds a table to a publication, without its semicolon."""
    return f"ALTER PUBLICATION {quoted(publication)} ADD TABLE {quoted(*pair_of(table))}"


# --- server ----------------------------------------------------------------------------------


def _server(server: ServerFacts) -> Iterator[Finding]:
    yield fine("database", server.address, f"PostgreSQL {server.version} as {server.user}")
    yield clock("database", server.skew_s)
    if server.standby:
        yield wrong(
            "database",
            server.address,
            "is a standby: snapshots write window rows, and prove by the primary's transactions",
            "set database.url to the primary",
        )
    if server.wal_level == "logical":
        yield fine("wal_level", server.address, "logical")
    else:
        yield wrong(
            "wal_level",
            server.address,
            f"is {server.wal_level}: {NO_DECODING}",
            f"{WAL_LEVEL};",
        )
    if server.reads_stats:
        yield fine("pg_read_all_stats", server.user, "granted")
    else:
        yield warning(
            "pg_read_all_stats",
            server.user,
            f"is not granted (optional): {NO_STATS}",
            grant_stats(server.user),
        )


def _publication(publication: Publication) -> Iterator[Finding]:
    if publication.exists:
        yield fine("publication", publication.name, "exists")
    elif publication.autocreate == "disabled":
        yield wrong(
            "publication",
            publication.name,
            "does not exist, and publication.autocreate.mode is disabled: the connector cannot run",
            f"CREATE PUBLICATION {quoted(publication.name)} FOR ALL TABLES;",
        )
    else:
        reason = "is not there: the connector's next start creates it"
        yield warning("publication", publication.name, reason, "start the connector")


# --- slot ------------------------------------------------------------------------------------


def _slot(slot: Slot, *, streams: bool) -> Iterator[Finding]:
    if not slot.exists:
        yield _no_slot(slot, streams=streams)
    elif slot.wal_status == "lost":
        yield wrong(
            "slot",
            slot.name,
            "is lost: the server has removed log that the connector had not read",
            f"SELECT pg_drop_replication_slot({literal(slot.name)}); then restart the connector"
            " and take all tables again: lakemark snapshot start '.*'",
        )
    else:
        yield from _kept(slot)
        if not slot.active:
            yield wrong(
                "slot",
                slot.name,
                "nobody reads from it, and the server keeps its log for it",
                "start the connector; if it runs, see whether its slot.name is another",
            )


def _no_slot(slot: Slot, *, streams: bool) -> Finding:
    if streams:
        return wrong(
            "slot",
            slot.name,
            "is not in this database although the connector runs: it reads another server",
            "set database.url to the server of the connector's database.hostname",
        )
    return warning(
        "slot",
        slot.name,
        "is not there: the connector's next start creates it; changes until then are in no event",
        "start the connector; if it ever ran, then: lakemark snapshot start '.*'",
    )


def _kept(slot: Slot) -> Iterator[Finding]:
    lag = (
        f"{slot.lag / 1024**2:,.1f} MiB of log are kept for it"
        if slot.lag is not None
        else "lag unknown"
    )
    more = (
        "ALTER SYSTEM SET max_slot_wal_keep_size = "
        f"'{max(2, round(2 * (slot.lag or 0) / _GIB))}GB'; SELECT pg_reload_conf();"
    )
    if slot.wal_status == "unreserved":
        yield wrong(
            "slot",
            slot.name,
            f"{lag}, and the next checkpoint may remove log that it needs",
            more,
        )
    elif slot.wal_status == "extended" or (slot.lag or 0) > MUCH_LAG:
        left = "" if slot.safe is None else f"; lost after {slot.safe / 1024**2:,.0f} MiB more"
        yield warning(
            "slot",
            slot.name,
            f"{lag}{left}",
            "see why the connector is slow or stopped, and watch the server's disk"
            if slot.safe is None
            else more,
        )
    elif slot.active:
        yield fine("slot", slot.name, f"active, {lag}")


def literal(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


# --- signal table ----------------------------------------------------------------------------

_LEAST: Final = 3  # id, type, data


def _signal(signal: SignalTable, facts: DatabaseFacts) -> Iterator[Finding]:
    user = facts.server.user
    schema, name = pair_of(signal.table)
    create = f"{create_signal_table(signal.table)}; {grant('INSERT', signal.table, user)}"
    if not signal.exists:
        yield wrong(
            "signal table", signal.table, "does not exist: no snapshot can be taken", create
        )
        return
    if signal.columns < _LEAST:
        yield wrong(
            "signal table",
            signal.table,
            "has not the columns id, type and data",
            f"DROP TABLE {quoted(schema, name)}; {create}",
        )
    if not signal.insert:
        yield wrong(
            "signal table",
            signal.table,
            f"{user} may not insert into it: no snapshot can be taken",
            grant("INSERT", signal.table, user),
        )
    for refusal in signal.refusals:
        reason = f"{refusal.message}: window rows do not come back, so snapshots never end"
        publication = facts.publication.name if facts.publication else ""
        mend = mending(refusal, publication, signal.table)
        yield wrong("signal table", signal.table, reason, mend)
    if signal.insert and signal.columns >= _LEAST and not signal.refusals:
        yield fine("signal table", signal.table, "published, and rows can be inserted")
