"""Processes that write to output topics for workers: one for each source, and nothing hangs on it."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pytest

from lakemark.errors import TableError
from lakemark.sink.output import transaction, writers
from lakemark.sink.output.transaction import MarkSource, OutputTarget
from stack import watchdog
from stack.processes import Identity, wait_for
from tests.kit.forks import FORKS
from tests.kit.output_topics import some

TARGET = OutputTarget("clean", "group")
DEADLINE_S = 120.0
WORKERS = set[int]()


def who_writes(*work: Any) -> int:
    """In place of `transaction.write`."""
    _, source, upto, messages = work
    assert [message.at for message in messages] == [1, 2]
    if source.note == "defect":
        raise ValueError(lambda: "what cannot be pickled")
    if source.note == "refused":
        raise TableError("no", code="output-refused", hint="look", retried=True)
    if source.note == "killed" and os.getpid() not in WORKERS:
        os.kill(os.getpid(), signal.SIGKILL)
    assert upto == 3
    return os.getpid()


def daemon(end: Connection, count: int) -> None:
    """As Spark's daemon of workers: starts the processes, then forks a worker for every request."""
    transaction.write = who_writes
    writers.start(count)
    with suppress(EOFError):
        while True:
            notes: list[tuple[int, str]] = end.recv()
            mine, its = os.pipe()
            if not os.fork():
                end.send([os.getpid(), *(attempt(*note) for note in notes)])
                os.write(its, b"1")
                os._exit(0)
            os.read(mine, 1)


def attempt(partition: int, note: str) -> Any:
    try:
        WORKERS.add(os.getpid())
        return writers.write(TARGET, MarkSource("changes", partition, note), 3, some(1, 2))
    except (TableError, RuntimeError) as error:
        return error


Ask = Callable[..., list[Any]]


@pytest.fixture(params=[2])
def ask(request: pytest.FixtureRequest) -> Iterator[Ask]:
    ours, its = FORKS.Pipe()
    process = FORKS.Process(target=daemon, args=[its, request.param], daemon=True)
    process.start()

    def ask(*notes: tuple[int, str]) -> list[Any]:
        ours.send(notes)
        assert ours.poll(DEADLINE_S)
        found: list[Any] = ours.recv()
        return found

    ask.process = process  # type: ignore[attr-defined]
    yield ask
    process.kill()
    process.join(DEADLINE_S)


@pytest.mark.slow
def test_a_source_has_the_same_process_whichever_worker_asks(ask: Ask):
    sources = [(partition, "") for partition in range(8)]
    first, *by_first = ask(*sources)
    second, *by_second = ask(*sources)
    assert first != second
    assert by_first == by_second
    assert len({*by_first}) == 2
    assert {first, second}.isdisjoint(by_first)


@pytest.mark.slow
def test_what_cannot_be_written_is_told_to_the_worker_and_the_next_one_is(ask: Ask):
    _, error, defect, pid = ask((0, "refused"), (0, "defect"), (0, ""))
    assert isinstance(error, TableError)
    assert (error.code, error.hint, error.retried) == ("output-refused", "look", True)
    assert isinstance(defect, RuntimeError)
    assert "ValueError" in str(defect)
    assert isinstance(pid, int)


@pytest.mark.slow
@pytest.mark.parametrize("ask", [1], indirect=True)
def test_where_the_process_is_gone_the_worker_writes_itself(ask: Ask):
    assert len({*ask((0, "killed"), (0, ""))}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("ask", [0], indirect=True)
def test_without_such_processes_the_worker_writes_itself(ask: Ask):
    worker, pid = ask((0, ""))
    assert pid == worker


@pytest.mark.slow
def test_they_end_with_the_daemon(ask: Ask):
    _, *pids = ask(*((partition, "") for partition in range(8)))
    found = [Identity(pid, watchdog.started(pid)) for pid in {*pids}]
    assert all(one.is_alive for one in found)
    ask.process.kill()  # type: ignore[attr-defined]
    wait_for(lambda: not any(one.is_alive for one in found), DEADLINE_S, "their end")
