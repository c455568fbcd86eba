"""The connectors that lakemark knows, by their class, one line each. Only here are they named."""

from collections.abc import Callable, Mapping
from typing import Final, cast

from lakemark.connectors.connector_traits import ConnectorTraits
from lakemark.connectors.database import Database, DatabaseAccess
from lakemark.connectors.mysql.connector_settings import MARIADB_TRAITS
from lakemark.connectors.mysql.connector_settings import TRAITS as MYSQL_TRAITS
from lakemark.connectors.postgres.connector_settings import TRAITS as POSTGRES_TRAITS
from lakemark.connectors.qualified_database import QualifiedDatabase
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.layers import InvalidConfig, Mistake


def _postgresql() -> type[Database]:
    from lakemark.connectors.postgres.postgres_database import PostgresDatabase  # noqa: PLC0415

    return PostgresDatabase


def _mysql() -> type[Database]:
    from lakemark.connectors.mysql.mysql_database import MySqlDatabase  # noqa: PLC0415

    return MySqlDatabase


def _mariadb() -> type[Database]:
    from lakemark.connectors.mysql.mysql_database import MariaDbDatabase  # noqa: PLC0415

    return MariaDbDatabase


DATABASES: Final[Mapping[str, tuple[ConnectorTraits, Callable[[], type[Database]]]]] = {
    "io.debezium.connector.postgresql.PostgresConnector": (POSTGRES_TRAITS, _postgresql),
    "io.debezium.connector.mysql.MySqlConnector": (MYSQL_TRAITS, _mysql),
    "io.debezium.connector.mariadb.MariaDbConnector": (MARIADB_TRAITS, _mariadb),
}
"""By connector class its traits, and its kind of database, which is imported when it is needed."""

CONNECTORS: Final[Mapping[str, str]] = {
    java_class: traits.connector for java_class, (traits, _) in DATABASES.items()
}
"""The connectors' names by their class."""


def _rows_of_mysql() -> None:
    from lakemark.connectors.mysql import scan_rows  # noqa: PLC0415

    scan_rows.example()


EXAMPLES: Final[tuple[Callable[[], None], ...]] = (_rows_of_mysql,)
"""Calls of everything compiled that is in the connectors' folders, see `compiler.ready`."""


def _known(
    settings: Mapping[str, str] | None, database: DatabaseConfig | None
) -> tuple[ConnectorTraits, Callable[[], type[Database]]]:
    """That of a connector's configuration, or else of a URL.

    Where neither says it, the first: a pipeline does not start with an unknown connector, and what
    is asked before finds that out by itself.
    """
    known = DATABASES.get((settings or {}).get("connector.class", ""))
    if known is not None:
        return known
    kinds = [*DATABASES.values()]
    url = database.url if database is not None else ""
    return next((kind for kind in kinds if kind[0].is_of(url)), kinds[0])


def database_kind(
    settings: Mapping[str, str] | None = None, database: DatabaseConfig | None = None
) -> type[Database]:
    """Return the kind of database that a connector's configuration, or else a URL, names.

    Args:
        settings: the connector's; None while they are not known.
        database: where it is, if that is known.
    """
    return _known(settings, database)[1]()


def traits_of(
    settings: Mapping[str, str] | None = None, database: DatabaseConfig | None = None
) -> ConnectorTraits:
    """Return what is peculiar to connectors of such a database; its client is not imported.

    Args:
        settings: as `database_kind`.
        database: as `database_kind`.
    """
    return _known(settings, database)[0]


def require_known(database: DatabaseConfig) -> None:
    """Raise InvalidConfig if ``database.url`` has the scheme of no database that is known."""
    kinds = [traits for traits, _ in DATABASES.values()]
    if not any(traits.is_of(database.url) for traits in kinds):
        examples = " or ".join(traits.example for traits in kinds)
        message = f"expected an address such as {examples}"
        raise InvalidConfig([Mistake("database.url", message)])


def database_of(access: DatabaseAccess) -> Database:
    """Return the source database of a connector; its tables have the qualifier of `access`."""
    found = database_kind(access.connector, access.config)(access)
    if not access.qualifier:
        return found
    return cast("Database", QualifiedDatabase(found, access.qualifier))
