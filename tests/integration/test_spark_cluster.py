"""The pipeline on a standalone Spark cluster: a master and two workers of one core each."""

import sys
from pathlib import Path

import pytest

from lakemark.spark.jars import runtime_jars
from stack.local import Database
from stack.processes import wait_for
from stack.spark import QUICK, SparkCluster
from tests.kit.running import STATE_S, Running

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]


def interpreter(folder: Path) -> Path:
    """A Python that only the workers are told of, and that notes where it is started."""
    file = folder / "python"
    file.write_text(f'#!/bin/sh\npwd >> "$0.started"\nexec {sys.executable} "$@"\n')
    file.chmod(0o755)
    return file


def test_snapshot_and_log_on_a_cluster_of_two_workers(database: Database, tmp_path):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO orders SELECT n, 'n' FROM generate_series(1, 200) n")
    database.start_connector({"snapshot.mode": "no_data"})
    python = interpreter(tmp_path)
    with SparkCluster(tmp_path / "spark") as cluster:
        spark = {
            "spark.master": cluster.url,
            "spark.pyspark.python": str(python),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": QUICK,
            "spark.executor.memory": "512m",
        }
        sections = {
            "spark": spark,
            "snapshot": {"chunk_rows": 100, "window_interval": "250ms"},
        }
        with Running(database, tmp_path, sections, spark=True) as running:
            running.lakemark.start()
            # The run begins with a batch: Spark's first one may take longer than the command waits.
            running.lakemark.wait_for_event("batch.done", STATE_S)
            running.lakemark.command("snapshot", "start", "public.orders", "--wait")
            database.execute("UPDATE orders SET note = 'after' WHERE id % 7 = 0")
            database.execute("DELETE FROM orders WHERE id % 5 = 0")
            running.wait_equal()
            (application,) = wait_for(
                lambda: cluster.master.seen().get("activeapps"), STATE_S, "the master's answer"
            )
            assert application["cores"] == 2
        for executor in (0, 1):
            copied = {jar.name for jar in (tmp_path / "spark").glob(f"app-*/{executor}/*.jar")}
            assert copied == {jar.name for jar in runtime_jars()}, "what executors were sent"
        started = {Path(line).name for line in Path(f"{python}.started").read_text().split()}
        assert started == {"0", "1"}, "the executors that ran Python tasks"
