"""Fixtures of the tests that need a PostgreSQL but no Kafka."""

from collections.abc import Iterator

import pytest

from stack.local import Database, LocalStack


@pytest.fixture(scope="session")
def server() -> Iterator[LocalStack]:
    """A PostgreSQL without connectors, for transactions that outlive their session."""
    with LocalStack(
        name="reader",
        services=("postgres",),
        postgres_settings={"max_prepared_transactions": "5"},
    ) as started:
        yield started


@pytest.fixture
def source(server: LocalStack) -> Iterator[Database]:
    """A fresh database with a signal table."""
    with server.fresh_database() as fresh:
        yield fresh
