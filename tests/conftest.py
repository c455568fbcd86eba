"""Fixtures that several kinds of test share."""

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
from hypothesis import settings

from stack.local import Database, LocalStack

# The same examples in every run; HYPOTHESIS_PROFILE=nightly draws new ones.
# An example that takes this long hangs; less may be what else runs on the machine.
HANGS = timedelta(seconds=10)
settings.register_profile("default", derandomize=True, deadline=HANGS)
settings.register_profile("nightly", derandomize=False, deadline=HANGS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Tests of one group run one after the other in one worker (`-n 2 --dist loadgroup`, as `./dev test`
# does): they share what is slow to start, and one stack is all that runs at a time. Its tests wait
# a lot; the other groups and the tests without one fill the gaps. The first group that fits counts.
GROUPS = {
    "postgres": lambda item: "server" in getattr(item, "fixturenames", ()),
    "servers": lambda item: any(map(item.get_closest_marker, ("integration", "faults"))),
    "spark": lambda item: item.get_closest_marker("spark"),
}


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Put each test that needs servers or Spark into its group."""
    for item in items:
        group = next((name for name, fits in GROUPS.items() if fits(item)), None)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


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
def java_home() -> str:
    """JAVA_HOME for Spark; ask for it before making a session."""
    from stack.java import use_java

    use_java()
    return os.environ["JAVA_HOME"]
