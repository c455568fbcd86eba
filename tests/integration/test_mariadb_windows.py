"""A window of MariaDB and a commit that is in the log, and that nobody sees yet."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import pytest

from lakemark.connectors.database import DatabaseAccess, OpenWindow, Watermark, WindowWriter
from lakemark.connectors.mysql.binlog_place import BinlogPlace
from lakemark.connectors.mysql.mysql_database import MariaDbDatabase
from lakemark.connectors.mysql.mysql_session import Session, connect
from lakemark.errors import DependencyError
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import DatabaseConfig
from stack.processes import wait_for
from stack.servers import Way
from tests.kit.servers import WAY, own_server

pytestmark = pytest.mark.integration

TIMEOUT = timedelta(seconds=20)
HELD_MS = 4_000  # for how long a commit waits for a replica that there is not
OPENS = OpenWindow(uuid4(), "run", uuid4())
SEMI = {"timeout": HELD_MS, "wait_point": "AFTER_SYNC", "enabled": "ON"}


@pytest.fixture(scope="module", params=["mariadb-11.4", "mariadb-10.11"])
def binlog_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DatabaseConfig]:
    if WAY is not Way.PROCESSES:
        pytest.skip("it sets variables of the server")
    with own_server(request.param, tmp_path_factory.mktemp("windows")) as started:
        yield DatabaseConfig(url=f"{started.dsn()}?ssl-mode=disabled")


@contextmanager
def session(database: DatabaseConfig) -> Iterator[Session]:
    with connect(database, statement_timeout=TIMEOUT, name="test") as found:
        yield found


def logged(database: DatabaseConfig) -> str:
    with session(database) as asked:
        ((gtids,),) = asked.execute("SELECT @@gtid_binlog_pos")
    return str(gtids)


def write(database: DatabaseConfig, statement: str) -> None:
    with session(database) as writer:
        writer.execute(statement)


@pytest.fixture
def held(binlog_server: DatabaseConfig) -> Iterator[threading.Thread]:
    """A delete whose commit is in the log, and waits for a replica."""
    with session(binlog_server) as admin:
        admin.execute("CREATE OR REPLACE DATABASE held")
        admin.execute("CREATE TABLE held.t (id int PRIMARY KEY)")
        admin.execute("INSERT INTO held.t VALUES (1), (2)")
        for name, value in SEMI.items():
            admin.execute(f"SET GLOBAL rpl_semi_sync_master_{name} = {value}")
        before = logged(binlog_server)
        delete = "DELETE FROM held.t WHERE id = 1"
        writer = threading.Thread(target=write, args=(binlog_server, delete))
        writer.start()
        try:
            wait_for(lambda: logged(binlog_server) != before, 20, "the delete to be in the log")
            yield writer
        finally:
            admin.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
            writer.join()
            admin.execute("DROP DATABASE held")


@pytest.fixture(params=["may ask", "may only read"])
def ours(binlog_server: DatabaseConfig, request: pytest.FixtureRequest) -> Iterator[DatabaseConfig]:
    """The server as lakemark's user reaches it, with BINLOG MONITOR and without it."""
    if request.param == "may ask":
        yield binlog_server
        return
    with session(binlog_server) as admin:
        admin.execute("CREATE USER reader@'%%'")
    yield binlog_server.model_copy(update={"url": binlog_server.url.replace("root@", "reader@")})
    with session(binlog_server) as admin:
        admin.execute("DROP USER reader@'%%'")


@contextmanager
def window_writer(ours: DatabaseConfig) -> Iterator[WindowWriter]:
    found = MariaDbDatabase(DatabaseAccess(ours, HandlingModes(), {})).window_writer("", name="w")
    try:
        yield found
    finally:
        found.drop()


def test_a_window_does_not_begin_before_what_is_in_the_log(
    binlog_server: DatabaseConfig, ours: DatabaseConfig, held: threading.Thread
):
    with session(binlog_server) as reader, window_writer(ours) as windows:
        ((_, end, *_),) = reader.execute("SHOW MASTER STATUS")
        assert reader.execute("SELECT id FROM held.t") == [(1,), (2,)]
        with pytest.raises(DependencyError) as refused:
            windows.write(closes=None, opens=OPENS)
        assert held.is_alive(), "the commit still waits"
        assert refused.value.code == "transaction-unfinished"
        held.join()
        found = windows.write(closes=None, opens=OPENS)
    assert isinstance(found, Watermark)
    assert isinstance(found.after, BinlogPlace)
    assert found.after.pos >= int(end)


def test_a_log_that_was_rotated_at_rest_is_no_reason_to_wait(
    binlog_server: DatabaseConfig, ours: DatabaseConfig
):
    with session(binlog_server) as admin, window_writer(ours) as windows:
        admin.execute("CREATE DATABASE rotated")
        admin.execute("DROP DATABASE rotated")
        for _ in range(2):
            admin.execute("FLUSH BINARY LOGS")
            assert isinstance(windows.write(closes=None, opens=OPENS), Watermark)
