"""The servers of a test run, in the way that `LAKEMARK_TEST_SERVERS` says, and what it cannot do."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from stack.addresses import UnsuitableServerError
from stack.database import SourceServer
from stack.java import find_java
from stack.local import DATABASES, SERVICES, Servers
from stack.mysql import LocalBinlogServer
from stack.mysql_server import CannotBeHadError
from stack.processes import StackError
from stack.registry import VERSIONS, Registry
from stack.servers import VARIABLE, Way, servers_of, way_of
from tests.kit.nightly import nightly

WAY: Final = way_of(os.environ)

REQUIRE_MYSQL: Final = "REQUIRE_MYSQL"
"""The variable that lets a test fail, not be skipped, where no MySQL can be had."""

ends_servers = pytest.mark.skipif(
    WAY is Way.ADDRESSES, reason=f"it ends or holds a server, and {VARIABLE} is {WAY}"
)
"""On a test that kills, stops, restarts or pauses a server."""

own_processes = pytest.mark.skipif(
    WAY is not Way.PROCESSES, reason=f"it needs a server's own files, and {VARIABLE} is {WAY}"
)
"""On a test that reads or writes files of a server, or copies a running one."""


@contextmanager
def servers(
    name: str,
    services: tuple[str, ...] = SERVICES,
    postgres_settings: dict[str, str] | None = None,
) -> Iterator[Servers]:
    """Have servers that answer; whoever asks is skipped if those of the addresses lack a setting."""
    chosen = servers_of(
        os.environ, name=name, services=services, postgres_settings=postgres_settings
    )
    try:
        chosen.start()
    except UnsuitableServerError as error:
        pytest.skip(str(error))
    try:
        yield chosen
    finally:
        chosen.stop()


def on(*services: Any) -> pytest.MarkDecorator:
    """Give a test `any_database` of each of these services of `DATABASES`; of all unless given."""
    return pytest.mark.parametrize("any_database", services or [*DATABASES], indirect=True)


EACH: Final = (
    "postgres",
    "mariadb-11.4",
    *(pytest.param(service, marks=nightly) for service in ("mariadb-10.11", "mysql-9.7")),
)
"""The services that show what every database must: the older MariaDB and MySQL do it at night."""

AT_NIGHT: Final = (
    "postgres",
    *(pytest.param(s, marks=nightly) for s in DATABASES if s != "postgres"),
)
"""The same where others than PostgreSQL have too little of their own in it for every run."""

EACH_DATABASE = on(*EACH)
"""On a test that has `any_database` of each of them."""


def pipeline_of(*services: Any) -> pytest.MarkDecorator:
    """Give a test its module's pipeline with a database of each of these services.

    For modules that call `choose_pipelines`; without the mark it is PostgreSQL's.
    """
    return pytest.mark.pipeline_of(services)


def choose_pipelines(metafunc: pytest.Metafunc, fixture: str = "pipeline") -> None:
    """Say which service the fixture with a module's pipeline gets as its parameter."""
    if fixture in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("pipeline_of")
        services = mark.args[0] if mark else ("postgres",)
        metafunc.parametrize(fixture, services, indirect=True, scope="module")


def database_server(chosen: Servers, service: str) -> SourceServer:
    """Return a database server beside the others, running; skip where only PostgreSQL can be had."""
    if service != "postgres" and WAY is not Way.PROCESSES:
        pytest.skip(f"{service} runs as a child process alone ({VARIABLE} is {WAY})")
    with can_be_had():
        return chosen.database_server(service)


def registry_of(chosen: Servers) -> Registry:
    """Return the registry of schemas beside the servers, running; skip where none can be had."""
    if WAY is not Way.PROCESSES:
        pytest.skip(f"a registry runs as a child process alone ({VARIABLE} is {WAY})")
    return chosen.require_registry()


@contextmanager
def other_registry(version: str, directory: Path) -> Iterator[Registry]:
    """Have a registry of one's own, of this version; skip where no Java runs it."""
    if WAY is not Way.PROCESSES:
        pytest.skip(f"a registry runs as a child process alone ({VARIABLE} is {WAY})")
    try:
        find_java(VERSIONS[version])
    except StackError as error:
        pytest.skip(str(error))
    registry = Registry(version=version, directory=directory, log=directory / "log")
    registry.start()
    try:
        yield registry
    finally:
        registry.kill()


@contextmanager
def own_server(service: str, directory: Path) -> Iterator[LocalBinlogServer]:
    """Have a MariaDB or MySQL of one's own, running; skip where MySQL cannot be had."""
    server = DATABASES[service](directory=directory, log=directory / "server.log")
    assert isinstance(server, LocalBinlogServer)
    with can_be_had():
        server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def can_be_had() -> Iterator[None]:
    """Skip a test whose server cannot be had for this machine."""
    try:
        yield
    except CannotBeHadError as error:
        if os.environ.get(REQUIRE_MYSQL):
            raise
        pytest.skip(f"{error}; {REQUIRE_MYSQL}=1 fails instead")


def require_here(chosen: Servers) -> None:
    """Skip a test that runs another server beside these, which Connect has to reach."""
    if not chosen.are_here:
        pytest.skip(f"Connect may not reach a server of this machine's own ({VARIABLE} is {WAY})")
