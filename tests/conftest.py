"""Fixtures that several kinds of test share."""

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings

from lakemark.source import plain
from stack.local import Database, LocalStack
from stack.postgres import BUNDLED, Postgres, binaries_of
from tests.kit.running import Running
from tests.kit.snapshots import Snapshots

# The same examples in every run; HYPOTHESIS_PROFILE=nightly draws new ones.
# An example that takes this long hangs; less may be what else runs on the machine.
HANGS = timedelta(seconds=10)
settings.register_profile("default", derandomize=True, deadline=HANGS)
settings.register_profile("nightly", derandomize=False, deadline=HANGS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Tests of one group run one after the other in one worker: they share what is slow to start. Those on
# servers wait a lot; all others fill the gaps.
GROUPS = {"integration": "servers", "faults": "faults", "spark": "spark", "browser": "browser"}
SPLIT = {
    **dict.fromkeys(
        (f"faults/test_{name}.py" for name in ("gaps", "passwords", "rebuild_crashes", "snapshot_faults", "two_runs")),
        "more faults",
    ),
    **dict.fromkeys(
        (
            f"integration/test_{name}.py"
            for name in ("catalog", "chunk_contract", "chunk_jobs", "conditions", "examples", "ranges",
                         "reader", "rebuild", "spark_cluster", "spark_snapshots", "types", "windows")
        ),
        "more servers",
    ),
    "integration/test_demo.py": "demo",  # has servers of its own
    "faults/test_soak.py": "soak",  # has, too
}  # fmt: skip


def pytest_sessionstart() -> None:
    """Compiles what lakemark compiles, before any deadline counts."""
    assert plain.ready()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests out with `-n 3`: a group as a whole, all others one by one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.removeprefix("tests/").partition("::")[0]
            return SPLIT.get(file) or GROUPS.get(file.partition("/")[0], nodeid)

    return ByGroup(config, log)


@pytest.fixture(scope="session")
def stack() -> Iterator[LocalStack]:
    """Kafka, Connect and PostgreSQL for the whole session, started with the first test that asks.

    For tests that leave it as they found it. A test that kills a server brings it back.
    """
    with LocalStack(name="test") as started:
        yield started


@pytest.fixture
def database(stack: LocalStack) -> Iterator[Database]:
    """A fresh database with a signal table; its connector, if one was started, goes with it."""
    with stack.fresh_database() as fresh:
        yield fresh


@pytest.fixture(scope="session")
def newest_postgres(stack: LocalStack) -> Iterator[Postgres]:
    """The newest PostgreSQL, beside the one of the stack, which may be an older one."""
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
def either_database(stack: LocalStack, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A fresh database of the stack's PostgreSQL, or of the `newest`, as the test says."""
    newest = request.param == "newest"
    server = request.getfixturevalue("newest_postgres") if newest else None
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
