"""Fixtures that several kinds of test share."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from stack.local import Database, LocalStack

# The same examples in every run; HYPOTHESIS_PROFILE=nightly draws new ones.
settings.register_profile("default", derandomize=True)
settings.register_profile("nightly", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


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
