"""The sources of plain JSON tables' schemas: the database, a file, or none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakemark.connectors.connector import Connector
from lakemark.connectors.database import Database, DatabaseAccess
from lakemark.connectors.qualified_database import under
from lakemark.connectors.registry import database_kind, database_of
from lakemark.connectors.table_choice import Choice
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.settings.config import Config, DatabaseConfig


@dataclass(frozen=True, slots=True)
class DatabaseCatalog:
    """The source database's own catalog: asking again shows what has changed."""

    database: DatabaseConfig
    modes: HandlingModes
    settings: Mapping[str, str]
    captured: Choice
    qualifier: str = ""
    live: bool = True

    @property
    def _asked(self) -> Database:
        return database_of(
            DatabaseAccess(self.database, self.modes, self.settings, qualifier=self.qualifier)
        )

    def read(self, names: Sequence[str] | None) -> dict[str, TableSchema]:
        """Return schemas of the named tables, or of all that are captured.

        Tables that it does not know, or cannot describe, are absent.

        Raises:
            DependencyError: the database does not answer.
        """
        return self._asked.schemas(names, captured=self.captured)

    def tables(self) -> list[str]:
        """Return the names of all tables, captured or not.

        Raises:
            DependencyError: the database does not answer.
        """
        return self._asked.table_names()


@dataclass(frozen=True, slots=True)
class FixedCatalog:
    """The schemas of the user's file; empty without one, which suits records that carry schemas."""

    schemas: Mapping[str, TableSchema]
    live: bool = False

    def read(self, names: Sequence[str] | None) -> dict[str, TableSchema]:
        """Return schemas of the named tables, or of all; tables it does not know are absent."""
        return {t: s for t, s in self.schemas.items() if names is None or t in names}

    def tables(self) -> list[str]:
        """Return the names of all tables."""
        return list(self.schemas)


def catalog_of(
    config: Config, modes: HandlingModes, connector: Connector
) -> DatabaseCatalog | FixedCatalog:
    """The catalog that the configuration names; the database wins over a schema file.

    Raises:
        InvalidConfig: the schema file cannot be used.
    """
    if config.database is not None:
        return DatabaseCatalog(
            config.database,
            modes,
            connector.settings,
            connector.tables,
            qualifier=connector.qualifier,
        )
    if config.source.schema_file is not None:
        kind = database_kind(connector.settings)
        schemas = kind.schemas_of_file(config.source.schema_file, modes)
        return FixedCatalog(under(connector.qualifier, schemas))
    return FixedCatalog({})
