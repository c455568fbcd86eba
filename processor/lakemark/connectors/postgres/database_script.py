"""PostgreSQL made ready for its connector and for lakemark: a script for psql. Pure.

Its statements are those that `checks_database` and `checks_tables` ask for.
"""

from collections.abc import Iterator
from typing import Final

from lakemark.connectors.postgres.checks_database import (
    NO_DECODING,
    NO_STATS,
    WAL_LEVEL,
    create_signal_table,
    grant,
    grant_stats,
    literal,
    publish,
)
from lakemark.connectors.postgres.column_sql import quoted
from lakemark.connectors.preparation import Script, Statement, ToPrepare, mends
from lakemark.settings.layers import Mistake, SetTo
from lakemark.settings.table_id import pair_of, text_of, text_written

_SIGNALS: Final = "signal.data.collection"
_AUTOCREATE: Final = "publication.autocreate.mode"
_NAMING: Final = "name the tables in table.include.list, or let prepare read the catalog, for less"


def wanted_settings(wanted: ToPrepare) -> Iterator[Mistake]:
    """Yield the settings of `Database.wanted_settings`."""
    mode = wanted.settings.get(_AUTOCREATE, "all_tables").strip().lower()
    if mode != "disabled":
        yield Mistake(
            _AUTOCREATE,
            "the script makes the publication, so the connector's user need not own the tables",
            SetTo(_AUTOCREATE, "disabled"),
            warning=True,
        )
    if not wanted.settings.get(_SIGNALS, "").strip():
        home = (wanted.homes or ("public",))[0]
        yield Mistake(
            _SIGNALS,
            "snapshots beside the log need window rows, which come back in the log",
            SetTo(_SIGNALS, text_of(home, "debezium_signal")),
            warning=True,
        )


def script(wanted: ToPrepare) -> Script:
    """Return the script of `Database.script`."""
    signal = text_written(wanted.settings.get(_SIGNALS, ""))
    return Script(
        head=(
            "Run it with psql as a superuser, in the database that the connector reads:",
            "  psql -v connector_password=… -v lakemark_password=… -f database.sql DATABASE",
            "It can be run again: what is there stays, passwords too.",
            "pg_hba.conf must let both users into the database.",
        ),
        before=(
            r"\set ON_ERROR_STOP on",
            *_empty_unless_set("connector_password"),
            *_empty_unless_set("lakemark_password"),
        ),
        statements=(
            _once(
                f"without it {NO_DECODING}",
                WAL_LEVEL,
                "current_setting('wal_level') <> 'logical'",
            ),
            *_users(wanted),
            *_signals(signal, wanted),
            *_rights_of_connector(wanted),
            *_rights_of_lakemark(wanted),
            *_publication(signal, wanted),
            *_of_findings(wanted),
        ),
    )


def _empty_unless_set(variable: str) -> tuple[str, ...]:
    return (rf"\if :{{?{variable}}} \else", rf"\set {variable} ''", r"\endif")


def _once(why: str, sql: str, condition: str) -> Statement:
    """Return a statement that psql runs if a condition holds."""
    return Statement(why, rf"SELECT {literal(sql)} WHERE {condition} \gexec")


def _users(wanted: ToPrepare) -> Iterator[Statement]:
    connector = wanted.connector_user
    yield _user("the connector's user, who reads the log", connector, "connector_password")
    yield Statement(
        "without REPLICATION nobody may read the log",
        f"ALTER ROLE {quoted(connector)} LOGIN REPLICATION;",
    )
    if wanted.user != connector:
        why = "lakemark's user; it owns nothing, and changes nothing but the signal table"
        yield _user(why, wanted.user, "lakemark_password")


def _user(why: str, name: str, password: str) -> Statement:
    create = f"format('CREATE ROLE %I LOGIN PASSWORD %L', {literal(name)}, :'{password}')"
    absent = f"NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {literal(name)})"
    return Statement(
        f"{why} (without {password} it has none)", rf"SELECT {create} WHERE {absent} \gexec"
    )


def _signals(signal: str, wanted: ToPrepare) -> Iterator[Statement]:
    if not signal:
        return
    name = literal(quoted(*pair_of(signal)))
    yield _once(
        "snapshots write window rows here, which come back in the log",
        create_signal_table(signal),
        f"to_regclass({name}) IS NULL",
    )
    yield Statement(
        "window rows are inserted, and no other right is needed",
        grant("INSERT", signal, wanted.user),
    )


def _rights_of_connector(wanted: ToPrepare) -> Iterator[Statement]:
    if wanted.reads_rows:
        why = "the connector's own snapshot reads the rows; with snapshot.mode=no_data it needs not"
        yield from _selects(why, wanted.tables, wanted.connector_user, wanted)


def _rights_of_lakemark(wanted: ToPrepare) -> Iterator[Statement]:
    why = "snapshots read the rows, and exact types come from the catalog"
    yield from _selects(why, wanted.chosen, wanted.user, wanted)
    yield Statement(f"without it {NO_STATS}", grant_stats(wanted.user))


def _selects(
    why: str, tables: tuple[str, ...] | None, user: str, wanted: ToPrepare
) -> Iterator[Statement]:
    """Yield the rights to read tables, or, where nobody knows them, all that may be among them."""
    if tables is not None:
        for table in tables:
            yield Statement(why, grant("SELECT", table, user))
    elif wanted.containers:
        for schema in wanted.containers:
            what = f"ON ALL TABLES IN SCHEMA {quoted(schema)} TO {quoted(user)};"
            usage = f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(user)};"
            yield Statement(f"{why}; {_NAMING}", f"{usage} GRANT SELECT {what}")
    else:
        yield Statement(f"{why}; {_NAMING}", f"GRANT pg_read_all_data TO {quoted(user)};")


def _publication(signal: str, wanted: ToPrepare) -> Iterator[Statement]:
    name = wanted.settings.get("publication.name", "dbz_publication")
    yield _create_publication(name, wanted)
    if wanted.tables is None and not wanted.containers:
        return  # it has all tables
    whole = () if wanted.tables is not None else wanted.containers or ()
    for table in dict.fromkeys((*(wanted.tables or ()), *([signal] if signal else []))):
        if pair_of(table)[0] not in whole:
            yield _publish(name, table)


def _create_publication(name: str, wanted: ToPrepare) -> Statement:
    why = "the connector reads what is published: all of insert, update, delete and truncate"
    what = ""
    if wanted.tables is None:
        why = f"{why}; {_NAMING}"
        schemas = ", ".join(map(quoted, wanted.containers or ()))
        what = f" FOR TABLES IN SCHEMA {schemas}" if schemas else " FOR ALL TABLES"
    return _once(
        why,
        f"CREATE PUBLICATION {quoted(name)}{what} WITH (publish_via_partition_root = true)",
        f"NOT EXISTS (SELECT FROM pg_publication WHERE pubname = {literal(name)})",
    )


def _publish(publication: str, table: str) -> Statement:
    relation = f"{literal(quoted(*pair_of(table)))}::regclass"
    lacks = (
        f"EXISTS (SELECT FROM pg_publication p WHERE p.pubname = {literal(publication)}"  # noqa: S608 - quoted
        " AND NOT p.puballtables AND NOT EXISTS (SELECT FROM pg_publication_rel r"
        f" WHERE r.prpubid = p.oid AND r.prrelid = {relation}))"
    )
    why = "a table that is not published has no events"
    return _once(why, publish(publication, table), lacks)


def _of_findings(wanted: ToPrepare) -> Iterator[Statement]:
    """Yield what the doctor asks for of the tables that are there."""
    for finding in mends(
        wanted.findings, ("replica identity", "select", "key", "columns", "tables")
    ):
        why = f"{finding.check} of {finding.subject}: {finding.reason}"
        if finding.check == "replica identity" or finding.mend.startswith("ALTER ROLE"):
            yield Statement(why, finding.mend)
        elif finding.check != "select":
            yield Statement(f"{why}. It is for you to decide: {finding.mend}")
