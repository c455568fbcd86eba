"""The settings that only the connectors of MySQL and MariaDB have, and what they do. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from lakemark.connectors.connector_traits import SETTING, ConnectorTraits
from lakemark.connectors.mysql.moved_rows import moved_by
from lakemark.connectors.mysql.told_definitions import definitions
from lakemark.model.findings import Finding, fine, warning
from lakemark.settings.layers import Mistake, SetTo

MYSQL: Final = "mysql"
MARIADB: Final = "mariadb"

_FAILURES: Final[Mapping[str, str]] = {
    "event.deserialization.failure.handling.mode": "events that cannot be read",
    "inconsistent.schema.handling.mode": "events of tables whose form the connector does not know",
}


def server_id_of(settings: Mapping[str, str]) -> str:
    """Return the id under which the connector reads the log; empty where nobody here knows it."""
    name = settings.get("database.server.id", "")
    return "" if "${" in name else name.strip()


def _is(settings: Mapping[str, str], name: str, *, default: str = "false") -> bool:
    return settings.get(name, default).strip().lower() == "true"


def _problems(settings: Mapping[str, str]) -> Iterator[Mistake]:
    for name, what in _FAILURES.items():
        mode = settings.get(name, "fail").strip().lower()
        if mode != "fail":
            yield Mistake(
                name, f"{mode}: {what} are lost without a trace", SetTo(name, "fail"), warning=True
            )
    if settings.get("snapshot.locking.mode", "minimal").strip().lower() == "none":
        yield Mistake(
            "snapshot.locking.mode",
            "none: rows of the connector's own snapshot may be of another moment than it says",
            SetTo(
                "snapshot.locking.mode",
                "minimal",
                more=", or leave the rows to lakemark (snapshot.mode=no_data)",
            ),
            warning=True,
        )
    if not _is(settings, "include.schema.changes", default="true"):
        yield Mistake(
            "include.schema.changes",
            "is false: a connector that begins without its offsets is not noticed, nor what was"
            " changed before it began, nor a partition that is truncated or exchanged; nor by which"
            " columns a row was written that brings no schema",
            SetTo("include.schema.changes", "true"),
            warning=True,
        )


def _findings(settings: Mapping[str, str]) -> Iterator[Finding]:
    name = "provide.transaction.metadata"
    if _is(settings, name):
        yield fine(SETTING, name, "true: events of one transaction have an order")
    else:
        yield warning(
            SETTING,
            name,
            "is false: events of one transaction may have one place in the log, and then only"
            " their order in the topic tells them apart",
            SetTo(name, "true"),
        )


def _mariadb_findings(settings: Mapping[str, str]) -> Iterator[Finding]:
    yield from _findings(settings)
    if _is(settings, "read.only"):
        yield warning(
            SETTING,
            "read.only",
            "is true: a snapshot that this connector takes without writing sends rows that are"
            " older than events before them, deleted ones too; snapshots of lakemark do not",
            SetTo("read.only", "false"),
        )


TRAITS: Final = ConnectorTraits(
    connector=MYSQL,
    schemes=(MYSQL,),
    example="mysql://lakemark@localhost:3306/shop",
    reads_know_their_place=True,
    has_schema_topic=True,
    hides_tables=True,
    container="database",
    naming=(),
    shown=("database.server.id",),
    driver=("com.mysql.", "com.github.shyiko."),
    unread_log="the server removes its log after the time that it keeps it",
    silent_log="its place in the log stays behind, and the server may remove the log after it",
    problems=_problems,
    findings=_findings,
    has_reader=lambda _: False,
    moved_by=moved_by,
    definitions=partial(definitions, connector=MYSQL),
)
"""MySQL's connector."""

MARIADB_TRAITS: Final = replace(
    TRAITS,
    connector=MARIADB,
    schemes=(MARIADB,),
    example="mariadb://lakemark@localhost:3306/shop",
    driver=("org.mariadb.", "com.github.shyiko."),
    findings=_mariadb_findings,
    definitions=partial(definitions, connector=MARIADB),
)
"""MariaDB's."""
