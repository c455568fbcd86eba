"""A batch with deletion vectors lands once, whoever repeats it, races with it or dies with it."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from lakemark.sink.delta import deletion_vectors, delta_rs, table_log
from tests.kit.delta_table import merged, values
from tests.kit.forks import FORKS, in_process
from tests.kit.sink_contract import row
from tests.kit.write_sets import at, delete, insert, upsert

merge = partial(merged, deletion_vectors)


@pytest.fixture
def path(path: str) -> str:
    merge(path, [upsert(row(str(i), b=i), at(1)) for i in range(4)], 1)
    return path


CHANGES = [delete(row("0"), at(2)), upsert(row("1", b=-1), at(2)), insert(row("9"), at(2))]
AFTER = {"1": -1, "2": 2, "3": 3, "9": None}


def meet(path: str, app_id: str, barrier, results) -> None:
    """Both processes have read the same version before either commits."""
    real, left = table_log.commit, [1]

    def commit(*arguments):
        if left:
            left.clear()
            barrier.wait(timeout=60)
        return real(*arguments)

    table_log.commit = commit
    done = merge(path, CHANGES, 2, app_id)
    results.put((done.skipped, done.inserted, done.updated, done.deleted))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [("q/t/s", "q/t/s"), ("q/t/s", "q/t/catchup")])
def test_two_processes_that_commit_at_once(path, steps):
    barrier, results = FORKS.Barrier(2), FORKS.Queue()
    processes = [in_process(meet, path, app_id, barrier, results) for app_id in steps]
    found = sorted(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    second = (True, 0, 0, 0) if steps[0] == steps[1] else (False, 0, 1, 0)
    assert found == sorted([(False, 1, 1, 1), second])
    assert values(path) == AFTER
    assert not list(Path(path, "_delta_log").glob(".*"))


def die(path: str, when: str) -> None:
    real = table_log.commit

    def commit(*arguments):
        if when == "after":
            real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    table_log.commit = commit
    merge(path, CHANGES, 2)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_the_commit_and_repeated(path, when):
    process = in_process(die, path, when)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert delta_rs.committed(path, "q/t/s") == (1 if when == "before" else 2)
    assert merge(path, CHANGES, 2).skipped == (when == "after")
    assert values(path) == AFTER
    assert merge(path, CHANGES, 2).skipped
