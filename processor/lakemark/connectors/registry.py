"""The connectors that lakemark knows, by their class, one line each. Only here are they named."""

from collections.abc import Callable, Mapping
from typing import Final

from lakemark.connectors.database import Database, DatabaseAccess
from lakemark.settings.config import DatabaseConfig


def _postgresql() -> type[Database]:
    from lakemark.connectors.postgres.postgres_database import PostgresDatabase  # noqa: PLC0415

    return PostgresDatabase


DATABASES: Final[Mapping[str, tuple[str, Callable[[], type[Database]]]]] = {
    "io.debezium.connector.postgresql.PostgresConnector": ("postgresql", _postgresql),
}
"""By connector class: the connector's name in the `source` of its events, which is the scheme of
its database's URL, too; and its kind of database, which is imported when it is needed."""

CONNECTORS: Final[Mapping[str, str]] = {kind: name for kind, (name, _) in DATABASES.items()}
"""The connectors' names by their class."""


def database_kind(
    settings: Mapping[str, str] | None = None, database: DatabaseConfig | None = None
) -> type[Database]:
    """Return the kind of database that a connector's configuration, or else a URL, names.

    Where neither names one it is the first: a pipeline does not start with an unknown connector,
    and questions before that meet the mistake by themselves.

    Args:
        settings: the connector's; None while they are not known.
        database: where it is, if that is known.
    """
    known = DATABASES.get((settings or {}).get("connector.class", ""))
    if known is not None:
        return known[1]()
    scheme = database.url.partition(":")[0] if database is not None else ""
    kinds = dict(DATABASES.values())
    return kinds.get(scheme, next(iter(kinds.values())))()


def database_of(access: DatabaseAccess) -> Database:
    """Return the source database of a connector."""
    return database_kind(access.connector, access.config)(access)
