"""Rows that say they are new are added without a join, where the table has none of their keys."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakemark.sink.delta import delta_rs
from tests.kit.sink_contract import COLUMNS, row
from tests.kit.write_sets import at, delete, table_schema, upsert, write_set


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    delta_rs.ensure(path, table_schema(COLUMNS), key=["id"], table="public.t")
    return path


def merge(path: str, *changes, version: int = 1, app_id: str = "q/t/s"):
    rows = write_set(changes, COLUMNS)
    return delta_rs.merge(path, rows, key=["id"], deletes="hard", app_id=app_id, version=version)


def operation(path: str) -> str:
    return DeltaTable(path).history(1)[0]["operation"]


def created(key: str, version: int, op: str = "c"):
    return upsert(row(key), at(version), op=op)


def test_rows_that_are_new_are_added_without_a_join(path):
    merge(path, created("a", 1), created("b", 1, "r"))
    merge(path, created("c", 2), version=2)
    assert operation(path) == "WRITE"
    merge(path, created("c", 3), created("d", 3), version=3)
    assert operation(path) == "MERGE", "c is there"
    merge(path, created("e", 4), created("f", 4, "u"), version=4)
    assert operation(path) == "MERGE", "an update may be of any row"
    merge(path, created("g", 5), delete(row("a"), at(5)), version=5)
    keys = DeltaTable(path).to_pyarrow_table(columns=["id"]).column("id").to_pylist()
    assert sorted(keys) == [row(key)["id"] for key in "bcdefg"]


def test_a_key_marked_deleted_is_no_new_one(tmp_path):
    path = str(tmp_path / "soft")
    delta_rs.ensure(path, table_schema(COLUMNS, "soft"), key=["id"])
    steps = [created("a", 1), delete(row("a"), at(2)), created("a", 3)]
    for version, change in enumerate(steps):
        rows = write_set([change], COLUMNS, "soft")
        delta_rs.merge(path, rows, key=["id"], deletes="soft", app_id="q/t/s", version=version)
    (found,) = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert (found["_cdc"]["deleted"], found["_cdc"]["op"]) == (False, "c")


def test_a_new_row_that_another_writer_adds_first_is_no_new_one(path):
    """What was open when the batch began is out of date: the look-up begins again."""
    merge(path, created("a", 1))
    stale = delta_rs.open_table(path)
    merge(path, created("b", 5), app_id="other")
    done = delta_rs.merge(
        path, write_set([created("b", 2)], COLUMNS), key=["id"], deletes="hard",
        app_id="q/t/s", version=2, opened=stale,
    )  # fmt: skip
    assert (done.rows, done.inserted) == (2, 0)
