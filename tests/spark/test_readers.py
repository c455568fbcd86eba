"""The readers of the examples leave out what a deletion vector marks, as the page says."""

import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from stack.local import ROOT
from tests.kit.documents import blocks
from tests.kit.nightly import nightly
from tests.kit.page_shell import PageShell, lines, with_names

pytestmark = pytest.mark.spark

CUSTOMERS = "(1, 'Ada', NULL), (2, 'Grace', NULL), (3, 'Barbara', NULL)"
ORDERS = "(10, 1, NULL, NULL), (11, 2, NULL, NULL)"


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables; a row of each is marked as deleted in its file."""
    folder = tmp_path_factory.mktemp("lake")
    cdc = "_cdc struct<op: string, source_ts: timestamp>"
    for name, columns, rows in (
        ("customers", f"id long, name string, {cdc}", CUSTOMERS),
        ("orders", f"id long, customer long, placed timestamp, {cdc}", ORDERS),
    ):
        table = f"delta.`{folder}/{name}`"
        marked = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        spark.sql(f"CREATE TABLE {table} ({columns}) USING delta {marked}")
        spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM VALUES {rows}")
        spark.sql(f"DELETE FROM {table} WHERE id IN (3, 11)")
        assert "deletionVectors" in DeltaTable(folder / name).protocol().reader_features
        assert DeltaTable(folder / name).count() > 1, "the row is in its file"
    return folder


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


@nightly
def test_spark_does_not_read_it_either(lake, tmp_path):
    shell = PageShell(tmp_path / "shell", here=ROOT / "examples" / "reading")
    line = lines("examples/reading/README.md", "spark-submit")
    shown = shell.run(with_names(line, {"lake/public/customers": f"{lake}/customers"}))
    assert "|  1|  Ada|" in shown
    assert "Barbara" not in shown
    assert "|2   |NULL  |" in shown


def test_a_session_reads_it_as_the_page_of_tables_says(spark, lake):
    (code,) = [
        block.text
        for block in blocks("python")
        if block.page == ROOT / "docs" / "tables.md" and "spark." in block.text
    ]
    names = {"spark": spark}
    exec(with_names(code, {"lake/public/orders": f"{lake}/orders"}), names)
    assert [row.asDict() for row in names["orders"].collect()] == [
        {"id": 10, "customer": 1, "placed": None}
    ]
    assert [tuple(row) for row in names["newest"].collect()] == [(None,)]
