"""Fixtures of the tests that need a PostgreSQL but no Kafka."""

from collections.abc import Iterator

import pytest

from stack.local import Database, Servers
from tests.kit.servers import servers


@pytest.fixture(scope="session")
def server() -> Iterator[Servers]:
    """A PostgreSQL without connectors, for transactions that outlive their session."""
    with servers("reader", ("postgres",), {"max_prepared_transactions": "5"}) as started:
        yield started


@pytest.fixture
def source(server: Servers) -> Iterator[Database]:
    """A fresh database with a signal table."""
    with server.fresh_database() as fresh:
        yield fresh
