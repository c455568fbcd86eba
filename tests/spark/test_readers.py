"""The readers of the examples leave out what a deletion vector marks, as the page says."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from stack.local import ROOT

pytestmark = pytest.mark.spark

CUSTOMERS = "(1, 'Ada', NULL), (2, 'Grace', NULL), (3, 'Barbara', NULL)"
ORDERS = "(10, 1, NULL, NULL), (11, 2, NULL, NULL)"


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Path:
    """Two tables; a row of each is marked as deleted in its file."""
    cdc = "_cdc struct<op: string, source_ts: timestamp>"
    for name, columns, rows in (
        ("customers", f"id long, name string, {cdc}", CUSTOMERS),
        ("orders", f"id long, customer long, placed timestamp, {cdc}", ORDERS),
    ):
        table = f"delta.`{tmp_path}/{name}`"
        marked = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        spark.sql(f"CREATE TABLE {table} ({columns}) USING delta {marked}")
        spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM VALUES {rows}")
        spark.sql(f"DELETE FROM {table} WHERE id IN (3, 11)")
        assert "deletionVectors" in DeltaTable(tmp_path / name).protocol().reader_features
        assert DeltaTable(tmp_path / name).count() > 1, "the row is in its file"
    return tmp_path


@pytest.mark.parametrize(
    ("script", "tables"),
    [
        ("with_delta_rs.py", ["customers"]),
        ("with_polars.py", ["customers"]),
        ("with_duckdb.py", ["customers", "orders"]),
    ],
)
def test_a_marked_row_is_not_read(lake, script, tables):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "reading" / script), *tables],
        cwd=lake,
        env={"PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Ada" in done.stdout
    assert "Barbara" not in done.stdout


def test_spark_does_not_read_it_either(spark, lake, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["with_spark.py", f"{lake}/customers"])
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # the session is that of all tests
    runpy.run_path(str(ROOT / "examples" / "reading" / "with_spark.py"))
    shown = capsys.readouterr().out
    assert "|  1|  Ada|" in shown
    assert "Barbara" not in shown
    assert "|2   |NULL  |" in shown
