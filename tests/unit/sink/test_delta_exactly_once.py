"""A write set lands once, whoever repeats it, races with it or dies with it."""

import os
import signal
import time
from functools import partial

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from lakemark.errors import DependencyError
from lakemark.model.evolution import Evolution
from lakemark.sink.delta import commits, delta_rs, schema_evolution
from tests.kit.delta_table import merged
from tests.kit.forks import FORKS, in_process
from tests.kit.sink_contract import COLUMNS, row
from tests.kit.write_sets import at, delete, insert, table_schema, upsert, write_set

merge = partial(merged, delta_rs)


def ids(path: str) -> list[str]:
    return sorted(DeltaTable(path).to_pyarrow_table().column("id").to_pylist())


# -- racing ----------------------------------------------------------------------------------------


def meet(path: str, changes, version: int, app_id: str, barrier, results, calls: int) -> None:
    """Every process stops once between its work and its commit's turn, so that all overlap."""
    work = commits.existing
    left = [1]

    def existing(*arguments, **more):
        table = work(*arguments, **more)
        if left[0]:
            left[0] = 0
            barrier.wait(timeout=60)
        return table

    commits.existing = existing
    done = merge(path, changes, version, app_id)
    results.put((done.skipped, done.inserted, done.updated))


@pytest.mark.slow
@pytest.mark.parametrize("filled", [False, True], ids=["append", "merge"])
def test_two_processes_with_the_same_version(path, filled):
    if filled:
        merge(path, [upsert(row("0"), at(1))], 0)
    changes = [upsert(row(str(i)), at(2)) for i in range(1, 6)]
    barrier, results = FORKS.Barrier(2), FORKS.Queue()
    processes = [in_process(meet, path, changes, 1, "q/t/s", barrier, results, 1) for _ in range(2)]
    found = sorted(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    assert found == [(False, 5, 0), (True, 0, 0)]
    assert ids(path) == [*"012345"][0 if filled else 1 :]


@pytest.mark.slow
@pytest.mark.parametrize("filled", [False, True], ids=["append", "merge"])
def test_two_steps_adding_the_same_keys(path, filled):
    """Different app ids are both to land, but a key must not become two rows."""
    if filled:
        merge(path, [upsert(row("0"), at(1))], 0)
    changes = [upsert(row(str(i)), at(2)) for i in range(1, 6)]
    barrier, results = FORKS.Barrier(2), FORKS.Queue()
    processes = [
        in_process(meet, path, changes, 1, f"q/t/{step}", barrier, results, 1)
        for step in ("stream", "catchup")
    ]
    found = sorted(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    assert found == [(False, 0, 5), (False, 5, 0)]
    assert ids(path) == [*"012345"][0 if filled else 1 :]


def test_a_stale_handle_cannot_append(path):
    """What delta-rs alone would let pass: a blind append after a commit of another app id."""
    stale = DeltaTable(path)
    merge(path, [upsert(row("1"), at(1))], 1, "q/t/a")
    rows = write_set([upsert(row("1"), at(1))], COLUMNS)
    schema = pa.schema(stale.schema().to_arrow())
    staged = delta_rs.prepare(rows, schema, key=["id"])
    with pytest.raises(CommitFailedError):
        delta_rs._append(stale, staged, schema, commits.conditional("q/t/b", 1))
    assert ids(path) == ["1"]


def test_a_writer_that_comes_back_late_changes_nothing(path):
    """A task that was given up wakes after its successor and the next batch."""
    merge(path, [upsert(row("1", "first"), at(1))], 1)
    merge(path, [delete(row("1"), at(2))], 2)
    assert merge(path, [upsert(row("1", "first"), at(1))], 1).skipped
    assert ids(path) == []


# -- killed ----------------------------------------------------------------------------------------


def die(path: str, changes, version: int, when: str) -> None:
    import deltalake.table as rust

    name = "execute"
    real = rust.TableMerger.execute

    def execute(merger):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(merger)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(rust.TableMerger, name, execute)
    merge(path, changes, version)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_the_commit_and_repeated(path, when):
    merge(path, [upsert(row(str(i)), at(1)) for i in range(4)], 1)
    changes = [delete(row("0"), at(2)), upsert(row("1", "new"), at(2)), insert(row("9"), at(2))]
    process = in_process(die, path, changes, 2, when)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert delta_rs.committed(path, "q/t/s") == (1 if when == "before" else 2)
    done = merge(path, changes, 2)
    assert done.skipped == (when == "after")
    assert ids(path) == ["1", "2", "3", "9"]
    assert delta_rs.committed(path, "q/t/s") == 2


def write_until_killed(path: str, started) -> None:
    changes = [upsert(row(str(i), "x" * 200), at(2)) for i in range(4000)]
    started.set()
    merge(path, changes, 2)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1])
def test_killed_at_any_moment_and_repeated(path, delay):
    merge(path, [upsert(row("first"), at(1))], 1)
    started = FORKS.Event()
    process = in_process(write_until_killed, path, started)
    started.wait(60)
    time.sleep(delay)
    process.kill()
    process.join()
    merge(path, [upsert(row(str(i), "x" * 200), at(2)) for i in range(4000)], 2)
    assert len(ids(path)) == 4001
    assert len(set(ids(path))) == 4001


# -- others at work --------------------------------------------------------------------------------


def disturb(path: str, stop, count) -> None:
    """Another writer: appends, deletes and compacts in a loop."""
    number = 0
    while not stop.is_set():
        number += 1
        table = DeltaTable(path)
        try:
            empty = pa.schema(table.schema().to_arrow()).empty_table()
            write_deltalake(table, empty, mode="append")
            if number % 3 == 0:
                DeltaTable(path).delete("id = 'nobody'")
            DeltaTable(path).optimize.compact()
            count.value += 1
        except Exception:  # noqa: BLE001 - the disturber may lose
            continue
        time.sleep(0.2)


@pytest.mark.slow
def test_other_writers_in_a_loop_are_survived(path):
    stop, count = FORKS.Event(), FORKS.Value("i", 0)
    process = in_process(disturb, path, stop, count)
    deadline = time.monotonic() + 60
    while not count.value and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        for version in range(1, 16):
            changes = [upsert(row(str(version)), at(version))]
            if version > 1:
                changes.append(delete(row(str(version - 1)), at(version)))
            assert not merge(path, changes, version).skipped
            assert merge(path, changes, version).skipped
    finally:
        stop.set()
        process.join()
    assert ids(path) == ["15"]


def test_losing_every_time_is_a_dependency_error(path, monkeypatch):
    monkeypatch.setattr(commits, "_ATTEMPTS", 3)
    attempts = []
    real = delta_rs._append

    def overtaken(table, *arguments):
        attempts.append(1)
        write_deltalake(path, pa.schema(table.schema().to_arrow()).empty_table(), mode="append")
        return real(table, *arguments)

    monkeypatch.setattr(delta_rs, "_append", overtaken)
    with pytest.raises(DependencyError) as caught:
        merge(path, [upsert(row("1"), at(1))], 1)
    assert caught.value.code == "lake-busy"
    assert len(attempts) == 3
    assert delta_rs.committed(path, "q/t/s") is None


# -- ensure ----------------------------------------------------------------------------------------


def create(path: str, barrier, results) -> None:
    real = schema_evolution.open_table
    left = [1]

    def open_table(*arguments):
        table = real(*arguments)
        if left[0]:
            left[0] = 0
            barrier.wait(timeout=60)
        return table

    schema_evolution.open_table = open_table
    wide = table_schema({**COLUMNS, "added": pa.int64(), "b": pa.decimal128(20, 0)})
    schema_evolution.ensure(path, wide, key=["id"])
    results.put(1)


@pytest.mark.slow
@pytest.mark.parametrize("exists", [False, True], ids=["creating", "evolving"])
def test_two_processes_ensure_at_once(tmp_path, exists):
    path = str(tmp_path / "t")
    if exists:
        delta_rs.ensure(path, table_schema(COLUMNS), key=["id"])
        merge(path, [upsert(row("1", b=7), at(1))], 1)
    barrier, results = FORKS.Barrier(2), FORKS.Queue()
    processes = [in_process(create, path, barrier, results) for _ in range(2)]
    for process in processes:
        results.get(timeout=120)
        process.join()
    schema = pa.schema(DeltaTable(path).schema().to_arrow())
    assert schema.names.count("added") == 1
    assert schema.field("b").type == pa.decimal128(20, 0)
    assert ids(path) == (["1"] if exists else [])
    assert delta_rs.ensure(path, table_schema(COLUMNS)) == Evolution()


def test_a_widening_that_is_overtaken_loses_no_row(path, monkeypatch):
    merge(path, [upsert(row("1", b=1), at(1))], 1)
    real = schema_evolution._rewrite
    overtaken = []

    def rewrite(table, *how):
        if not overtaken:
            overtaken.append(1)
            merge(path, [upsert(row("2", b=2), at(2))], 2)
        return real(table, *how)

    monkeypatch.setattr(schema_evolution, "_rewrite", rewrite)
    delta_rs.ensure(path, table_schema({**COLUMNS, "b": pa.decimal128(20, 0)}))
    assert ids(path) == ["1", "2"]
