"""PostgreSQL as a `Database`: the contract that every database inherits, on a real server."""

from dataclasses import dataclass

import pytest

from lakemark.connectors.database import DatabaseAccess
from lakemark.connectors.postgres.postgres_database import PostgresDatabase
from lakemark.connectors.qualified_database import QualifiedDatabase
from lakemark.connectors.registry import database_of
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import DatabaseConfig
from stack.local import Database
from tests.kit.database_contract import MOST, DatabaseContract

CREATE = "CREATE TABLE t (id bigint PRIMARY KEY, v text NOT NULL)"


@dataclass
class Postgres:
    source: Database
    database: PostgresDatabase
    only_three: str = "v = 'v3'"
    no_filter: str = "pg_sleep(1) IS NULL"

    def put(self, key: int, v: str) -> None:
        self.source.execute("INSERT INTO t VALUES (%s, %s)", [key, v])

    def drop(self) -> None:
        self.source.execute("DROP TABLE t")

    def create(self) -> None:
        self.source.execute(CREATE)


class TestPostgres(DatabaseContract):
    @pytest.fixture
    def served(self, database: Database):
        database.execute(CREATE)
        database.execute(
            f"INSERT INTO t SELECT n, 'v' || n FROM generate_series(0, {MOST - 1}) AS n"
        )
        config = DatabaseConfig(url=database.dsn)
        access = DatabaseAccess(config, HandlingModes(), {}, qualifier=self.qualifier)
        found = database_of(access)
        assert isinstance(found, QualifiedDatabase if self.qualifier else PostgresDatabase)
        return Postgres(database, found)


class TestOneOfSeveral(TestPostgres):
    """The same contract, with a qualifier before the names of its tables."""

    qualifier = "eu.shop"
