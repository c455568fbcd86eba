"""Chunks as jobs of a real session: slots, pools, lost workers, cancelling, and no secret shown."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakemark.kafka import brokers
from lakemark.settings.config import load
from lakemark.spark import jobs
from stack.local import CONNECTOR, ROOT, LocalStack

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow]


def test_chunks_are_read_by_jobs_beside_the_stream(java_home, tmp_path):
    events = tmp_path / "events"
    events.mkdir()
    file = tmp_path / "lakemark.yaml"
    with (
        LocalStack(name="jobs", services=("kafka", "postgres")) as stack,
        stack.fresh_database() as source,
    ):
        source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        source.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 1000) i")
        given = {
            "name": "jobs",
            "kafka": {"bootstrap_servers": stack.kafka.bootstrap},
            "source": {"connector_file": str(CONNECTOR)},
            "database": {"url": source.dsn, "password": "hidden-password"},
            "lake": {"path": "lake"},
            "checkpoint": "checkpoint",
            "snapshot": {"parallelism": 3},
            "spark": {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.rolling.enabled": "false",
                "spark.eventLog.dir": events.as_uri(),
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            },
        }
        file.write_text(json.dumps(given))
        with brokers.Cluster(load(file)) as cluster:
            cluster.ensure_topics()
        done = subprocess.run(
            [sys.executable, "-m", "tests.kit.chunk_session", str(file), "public.t"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    cores = os.cpu_count()
    assert found["master"] == f"local[{cores + 3},4]"
    assert found["parallelism"] == cores  # the stream's tasks stay as many as they were
    assert found["readers"] == 3
    assert found["errors"] == []
    assert found["rows"] == [100] * 10
    assert found["snapshots"]
    assert found["lost"] == ["retried", True]  # the second attempt of the task read nothing
    assert found["cancelled"] == "job-failed"
    assert found["cancelled_s"] < 40
    assert found["after"] == 1000
    assert (found["sql"], found["daemons"]) == (1, 1)  # chunks and the log share the imports
    assert (found["pool"], found["tags"]) == ("own", [])
    check_log(events)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_a_reader_leaves_the_processor_to_the_log_and_its_process_keeps_its_own():
    def mine() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = mine()
    with ThreadPoolExecutor(1, initializer=jobs._behind_the_log) as reader:
        assert reader.submit(mine).result() == min(before + jobs.NICE, 19)
    assert mine() == before


def check_log(events: Path) -> None:
    (log,) = events.iterdir()
    text = log.read_text()
    assert "hidden-password" not in text
    assert "connector-secret" not in text
    jobs = [e for e in map(json.loads, text.splitlines()) if e["Event"] == "SparkListenerJobStart"]
    ours = [job for job in jobs if job["Properties"].get("spark.scheduler.pool") == "snapshot"]
    descriptions = {job["Properties"]["spark.job.description"] for job in ours}
    assert {f"snapshot public.t chunk {n}" for n in range(10)} <= descriptions
    assert all(len(job["Stage Infos"]) == 1 for job in ours)
    assert all(job["Stage Infos"][0]["Number of Tasks"] == 1 for job in ours)
    tags = {tag for job in ours for tag in job["Properties"]["spark.job.tags"].split(",")}
    assert {f"lakemark-chunk-{n}" for n in range(10)} <= tags
