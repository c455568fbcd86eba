"""Fixtures that several kinds of test share."""

import gc
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings

from lakemark.source import fetch
from stack.local import Database, Servers
from stack.postgres import BUNDLED, Postgres, binaries_of
from stack.registry import Registry
from tests.kit.cpu_meter import CpuMeter
from tests.kit.durations import group_of, ranked
from tests.kit.nightly import examples, left_out
from tests.kit.running import Running
from tests.kit.servers import database_server, registry_of, require_here, servers
from tests.kit.snapshots import Snapshots

# The same examples in every run; HYPOTHESIS_PROFILE=nightly draws new ones.
# An example that takes this long hangs; less may be what else runs on the machine.
HANGS = timedelta(seconds=10)
settings.register_profile("default", derandomize=True, deadline=HANGS)
settings.register_profile("nightly", derandomize=False, deadline=HANGS)
settings.register_profile("quick", derandomize=True, deadline=HANGS, max_examples=examples())
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Keeps the collector of garbage off the modules and tests: they stay to the end.

    There are a million objects, which it would look through each time they become a quarter more.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest groups first, or a worker is busy with one when all others are done.

    Quickly, a sample of the matrices.
    """
    if out := {item.nodeid: item for item in left_out(items)}:
        config.hook.pytest_deselected(items=[*out.values()])
        items[:] = [item for item in items if item.nodeid not in out]
    rank = ranked()
    items.sort(key=lambda item: rank(item.nodeid))


def pytest_sessionstart() -> None:
    """Compiles what lakemark compiles, before any deadline counts."""
    assert fetch.ready()


METER = pytest.StashKey[CpuMeter]()
CPU_S = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    """With `--junitxml`, what a test and its processes use is measured."""
    if config.getoption("xmlpath", None):
        config.stash[METER] = CpuMeter()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the meter."""
    if (meter := config.stash.get(METER, None)) is not None:
        meter.close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Notes what this process and all that it started have used so far."""
    if (meter := item.config.stash.get(METER, None)) is not None:
        item.stash[CPU_S] = meter.used()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Says in `cpu_s` of the report what was used for a test, by servers that all share too."""
    try:
        return (yield)
    finally:
        if (meter := item.config.stash.get(METER, None)) is not None:
            used = meter.used() - item.stash[CPU_S]
            item.user_properties.append(("cpu_s", round(used, 2)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests out with `-n`, in their order: a group as a whole."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)


# The workers' connectors would else ask twenty times a second, most of the time for nothing.
SELDOM = {"poll.interval.ms": "200"}


@pytest.fixture(scope="session")
def stack() -> Iterator[Servers]:
    """Kafka, Connect and PostgreSQL for the whole session, started with the first test that asks.

    For tests that leave it as they found it. A test that kills a server brings it back, and has the
    mark `ends_servers`. They are child processes unless `LAKEMARK_TEST_SERVERS` says otherwise.
    """
    with servers("test") as started:
        started.connector_settings |= SELDOM
        yield started


@pytest.fixture
def database(stack: Servers) -> Iterator[Database]:
    """A fresh database with a signal table; its connector, if one was started, goes with it."""
    with stack.fresh_database() as fresh:
        yield fresh


@pytest.fixture
def any_database(stack: Servers, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A fresh database of the product and version that the test's mark `on` says.

    Its server starts with the first test that asks for it and ends with the session.
    """
    with stack.fresh_database(server=database_server(stack, request.param)) as fresh:
        yield fresh


@pytest.fixture
def registry(stack: Servers) -> Registry:
    """The session's registry of schemas; it and Connect's converter start with the first test."""
    return registry_of(stack)


@pytest.fixture(scope="session")
def newest_postgres(stack: Servers) -> Iterator[Postgres]:
    """The newest PostgreSQL, beside the one of the stack, which may be an older one."""
    require_here(stack)
    binaries = binaries_of(BUNDLED)
    assert binaries is not None, "./dev test fetches it"
    place = stack.directory / "newest"
    server = Postgres(directory=place, log=stack.logs / "newest.log", binaries=binaries)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def either_database(stack: Servers, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A fresh database of the `newest` PostgreSQL, or of a service, as the test says."""
    newest = request.param == "newest"
    server = (
        request.getfixturevalue("newest_postgres")
        if newest
        else database_server(stack, request.param)
    )
    with stack.fresh_database(server=server) as fresh:
        yield fresh


@pytest.fixture(scope="module")
def snapshots(pipeline: Running) -> Iterator[Snapshots]:
    """Signals to the pipeline that a module's tests share, and what has become of them."""
    with Snapshots(pipeline) as found:
        yield found


@pytest.fixture
def streaming(pipeline: Running) -> None:
    """The pipeline that a module's tests share streams, whatever the one before has done to it."""
    pipeline.lakemark.start()


@pytest.fixture(scope="session")
def java_home() -> str:
    """JAVA_HOME for Spark; ask for it before making a session."""
    from stack.java import use_java

    use_java()
    return os.environ["JAVA_HOME"]
