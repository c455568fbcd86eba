"""Fixtures of the tests that need a database but no Kafka, or a Kafka with rights but no others."""

from collections.abc import Iterator

import pytest

from lakemark.settings.config import DatabaseConfig
from stack.kafka import Kafka
from stack.local import Database, Servers
from stack.mysql import LocalBinlogServer
from stack.servers import VARIABLE, Way
from tests.kit.servers import WAY, own_server, servers
from tests.kit.strict_kafka import strict_kafka


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


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker with rights that makes no topics by itself; for tests whose rights name their own.

    A test may kill it and start it again.
    """
    directory = tmp_path_factory.mktemp("strict")
    with strict_kafka(directory, auto_create_topics_enable="false") as broker:
        yield broker


@pytest.fixture(scope="module", params=["mariadb-11.4", "mariadb-10.11", "mysql-9.7"])
def binlog_source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalBinlogServer]:
    """A MariaDB or MySQL without connectors, whose settings a module may change."""
    if WAY is not Way.PROCESSES:
        pytest.skip(f"{request.param} runs as a child process alone ({VARIABLE} is {WAY})")
    directory = tmp_path_factory.mktemp("binlog")
    with own_server(request.param, directory) as started:
        yield started


@pytest.fixture(scope="module")
def binlog_server(binlog_source: LocalBinlogServer) -> DatabaseConfig:
    """The address of `binlog_source`."""
    return DatabaseConfig(url=f"{binlog_source.dsn()}?ssl-mode=disabled")


@pytest.fixture
def is_mysql(binlog_server: DatabaseConfig) -> bool:
    """Whether the server is MySQL, and not MariaDB."""
    return binlog_server.url.startswith("mysql")
