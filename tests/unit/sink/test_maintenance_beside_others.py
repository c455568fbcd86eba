"""Upkeep beside others that write: of two that meet, the second one fails, and no row comes twice."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from lakemark.sink.delta import (
    deletion_vectors,
    delta_rs,
    maintenance,
    table_actions,
    table_log,
)
from lakemark.sink.delta.engines import DELETION_VECTORS, TASK_MERGE
from lakemark.sink.delta.maintenance import Policy
from lakemark.sink.table_sink import MergeResult
from tests.kit.delta_table import actions, merged, numbered, values
from tests.kit.sink_contract import row as of
from tests.kit.write_sets import at, delete

pytestmark = pytest.mark.usefixtures("cache")

EAGER = Policy(spare_files=0, dirty_bytes=0)
BATCHES = 6
ROWS = {str(n): n for n in (*range(1, BATCHES + 1), *range(11, BATCHES + 11))}
COMPACTIONS: dict[str, Callable[[DeltaTable], Any]] = {
    "optimize": lambda table: table.optimize.compact(),
    "optimize once": lambda table: table.optimize.compact(
        commit_properties=CommitProperties(max_commit_retries=0)
    ),
    "z-order": lambda table: table.optimize.z_order(["id"]),
}
CHANGES: dict[str, Callable[[DeltaTable], Any]] = {
    "delete": lambda table: table.delete("id = '1'"),
    "delete all": lambda table: table.delete(),
    "update": lambda table: table.update(updates={"b": "b - 1"}, predicate="id = '1'"),
}


@pytest.fixture(params=[TASK_MERGE, DELETION_VECTORS])
def engine(request) -> str:
    return str(request.param)


@pytest.fixture
def merge(engine, path) -> Callable[..., MergeResult]:
    """A batch of this engine: version, changes."""
    module = delta_rs if engine == TASK_MERGE else deletion_vectors
    return lambda version, *changes: merged(module, path, changes, version)


@pytest.fixture
def maintain(engine, path) -> Callable[..., maintenance.Maintained]:
    return partial(maintenance.maintain, path, key=["id"], engine=engine, policy=EAGER)


@pytest.fixture
def filled(path, merge) -> str:
    """A table of six files."""
    for version in range(1, BATCHES + 1):
        merge(version, *numbered((version, version + 10), version))
    assert (len(DeltaTable(path).file_uris()), values(path)) == (BATCHES, ROWS)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("theirs", [*COMPACTIONS, *CHANGES])
def test_who_is_overtaken_by_our_compaction_fails(filled, merge, maintain, theirs):
    stale = DeltaTable(filled)
    assert maintain().compacted == BATCHES
    with pytest.raises(CommitFailedError):
        {**COMPACTIONS, **CHANGES}[theirs](stale)
    assert values(filled) == ROWS
    merge(7, *numbered((1, 7), 7, -1))
    assert values(filled) == {**ROWS, "1": -1, "7": -1}


@pytest.mark.parametrize("theirs", [*COMPACTIONS, "delete"])
@pytest.mark.sampled(2)
def test_our_compaction_gives_up_when_it_is_overtaken(filled, maintain, monkeypatch, theirs):
    real, raced = table_log.commit, []

    def overtaken(*arguments):
        if not raced:
            raced.append({**COMPACTIONS, **CHANGES}[theirs](DeltaTable(filled)))
        return real(*arguments)

    monkeypatch.setattr(table_log, "commit", overtaken)
    assert maintain() == maintenance.Maintained()
    assert raced
    expected = {n: v for n, v in ROWS.items() if theirs != "delete" or n != "1"}
    assert values(filled) == expected
    maintain()
    assert values(filled) == expected
    assert len(DeltaTable(filled).file_uris()) == 1


def test_a_delete_in_between_stays_deleted(filled, merge, maintain):
    stale = DeltaTable(filled)
    DeltaTable(filled).delete("id = '12'")
    maintain()
    with pytest.raises(CommitFailedError):
        stale.optimize.compact()
    merge(7, delete(of("11"), at(9)))
    assert values(filled) == {n: v for n, v in ROWS.items() if n not in {"11", "12"}}


@pytest.mark.parametrize("engine", [TASK_MERGE], indirect=True)
@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("", {"AWS_S3_LOCKING_PROVIDER": "dynamodb"}),
        ("", {"MOUNT_ALLOW_UNSAFE_RENAME": "true"}),
        ("delta.enableChangeDataFeed", {}),
    ],
)
def test_delta_rs_compacts_where_it_alone_can_commit(filled, merge, maintain, setting, options):
    if setting:
        table = DeltaTable(filled)
        table.alter.set_table_properties({setting: "true"}, raise_if_not_exists=False)
    version = DeltaTable(filled).version()
    assert maintain(storage_options=options).compacted == BATCHES
    (said,) = actions(filled, version + 1)["commitInfo"]
    assert "delta-rs" in said["clientVersion"]
    merge(7, *numbered((1,), 7, -1))
    assert values(filled) == {**ROWS, "1": -1}


# -- what is left of older versions ----------------------------------------------------------------


@pytest.mark.slow
def test_files_of_a_table_that_only_changes_rows_are_deleted(path, merge, engine, monkeypatch):
    """Its files never become many, so nothing but the number of commits says that it is time."""
    monkeypatch.setattr(table_actions, "RETENTION", "interval 0 days")
    policy = Policy(dirty_bytes=1 << 30, vacuum_every=10)
    monkeypatch.setattr(table_actions, "_LEAST", table_actions._LEAST * 0)
    monkeypatch.setattr(table_actions, "_UNSAID", table_actions._UNSAID * 0)
    removed = 0
    for version in range(1, 25):
        done = merge(version, *numbered(range(20), version, version))
        if engine == DELETION_VECTORS or maintenance.wants_upkeep(path, done, policy):
            kept = maintenance.maintain(path, key=["id"], engine=engine, policy=policy)
            removed += kept.removed
    assert removed > 10
    assert len(list(Path(path).glob("*.parquet"))) < 15
    assert values(path) == {str(n): 24 for n in range(20)}


@pytest.mark.slow
def test_workers_that_take_turns_look_for_them_once(path, merge, engine, monkeypatch):
    """Each has its own memory of when it looked last."""
    policy, workers = Policy(vacuum_every=6), [dict[str, int]() for _ in range(4)]
    real, vacuumed = maintenance.vacuum, []

    def vacuum(*arguments, **more):
        vacuumed.append(DeltaTable(path).version())
        return real(*arguments, **more)

    monkeypatch.setattr(maintenance, "vacuum", vacuum)
    for version in range(1, 40):
        worker = version * 7 % 4 if version > 8 else 0
        monkeypatch.setattr(maintenance, "_looked", workers[worker])
        done = merge(version, *numbered((version,), version))
        if engine == DELETION_VECTORS or maintenance.wants_upkeep(path, done, policy):
            maintenance.maintain(path, key=["id"], engine=engine, policy=policy)
    assert all(workers)
    periods = [at // 6 for at in vacuumed]
    assert len(periods) == len(set(periods)) > 3
    assert max(periods) >= DeltaTable(path).version() // 6 - 1
