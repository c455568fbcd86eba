"""The settings of a Spark session: slots for the stream and for chunks, jars, clusters."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark import SparkContext

from lakemark.settings.config import Config
from lakemark.spark import session
from lakemark.supervisor import Supervisor
from stack.local import CONNECTOR


def config(tmp_path: Path, **sections) -> Config:
    given = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "localhost:9092"},
        "source": {"connector_file": str(CONNECTOR)},
        "lake": {"path": "lake"},
        "checkpoint": "checkpoint",
        "snapshot": {"parallelism": 3},
    }
    return Config.model_validate({**given, **sections}, context={"base": tmp_path})


@pytest.mark.parametrize(
    ("sections", "more"),
    [({}, 0), ({"database": {"url": "postgresql://shop@localhost/shop"}}, 3)],
)
def test_chunks_have_slots_of_their_own_and_the_stream_counts_cores(tmp_path, sections, more):
    cores = session.cores()
    settings = session._local(config(tmp_path, **sections))
    assert settings["spark.master"] == f"local[{cores + more},4]"
    assert settings["spark.default.parallelism"] == str(cores)


def test_chunks_of_each_of_several_connectors_have_slots(tmp_path):
    read = {"database": {"url": "postgresql://shop@localhost/shop"}}
    files = [tmp_path / f"{name}.json" for name in ("shop", "crm", "log")]
    for file in files:
        file.write_text("{}")
    entries = [
        {"connector_file": str(file), **own}
        for file, own in zip(files, (read, read, {}), strict=True)
    ]
    settings = session._local(config(tmp_path, source={"connectors": entries}))
    assert settings["spark.master"] == f"local[{session.cores() + 6},4]"


def test_a_master_of_the_user_s_has_its_own_number_of_cores(tmp_path):
    theirs = {"spark.master": "local[7]"}
    assert "spark.default.parallelism" not in session._local(config(tmp_path, spark=theirs))
    other = {"spark.ui.enabled": "true"}
    assert "spark.default.parallelism" in session._local(config(tmp_path, spark=other))


JARS = [Path("/cache/delta.jar"), Path("/cache/kafka.jar")]


def test_executors_of_a_cluster_are_sent_the_jars_and_nothing_is_bound_to_this_machine(tmp_path):
    theirs = {"spark.master": "spark://head:7077"}
    settings = session._launched(JARS, config(tmp_path, spark=theirs))
    assert settings["spark.jars"] == "/cache/delta.jar,/cache/kafka.jar"
    assert settings["spark.driver.extraClassPath"] == "/cache/delta.jar:/cache/kafka.jar"
    assert not settings.keys() & {"spark.driver.host", "spark.driver.bindAddress", "spark.master"}


@pytest.mark.parametrize("master", [None, "local[3]"])
def test_a_local_session_sends_no_jars(tmp_path, master):
    theirs = {"spark.master": master} if master else {}
    settings = session._launched(JARS, config(tmp_path, spark=theirs))
    assert "spark.jars" not in settings
    assert settings["spark.driver.host"] == "127.0.0.1"


def test_a_user_s_jars_come_beside_ours_and_their_settings_win():
    ours = {"spark.jars": "/a.jar", "spark.driver.extraClassPath": "/a.jar", "spark.x": "1"}
    theirs = {"spark.jars": "/s3.jar", "spark.x": "2"}
    assert session.with_own(ours, theirs) == {
        "spark.jars": "/a.jar,/s3.jar",
        "spark.driver.extraClassPath": "/a.jar",
        "spark.x": "2",
    }
    assert session.with_own({}, {"spark.driver.extraClassPath": "/s3.jar"}) == {
        "spark.driver.extraClassPath": "/s3.jar"
    }


@pytest.mark.parametrize(
    ("quota", "limit"),
    [("100000 100000", 1), ("150000 100000", 2), ("10000 100000", 1), ("max 100000", 0), ("", 0)],
)
def test_cores_are_those_of_the_control_group(tmp_path, quota, limit):
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    mine = len(os.sched_getaffinity(0))
    assert session.cores(file) == (min(limit, mine) if limit else mine)
    assert session.cores(tmp_path / "none") == mine


def test_workers_run_the_interpreter_that_is_set_or_this_one(tmp_path):
    theirs = config(tmp_path, spark={"spark.pyspark.python": "/env/bin/python"})
    said = {"PYSPARK_PYTHON": "/other/python"}
    assert session.workers_python(theirs, said) == "/env/bin/python"
    assert session.workers_python(config(tmp_path), said) == "/other/python"
    assert session.workers_python(config(tmp_path), {}) == sys.executable


# -- how it ends --------------------------------------------------------------------------------


class Gateway:
    """Java's end of PySpark: a process that ends some time after its input is closed."""

    def __init__(self, program: str) -> None:
        self.proc = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)

    def shutdown(self) -> None:
        """Nothing: there is no connection."""


@pytest.fixture
def ending(monkeypatch):
    """Has a program take Java's place as it ends; says whether it came to its own end."""
    started = []

    def end(program, in_hurry):
        gateway = Gateway(program)
        started.append(gateway.proc)
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        monkeypatch.setattr(SparkContext, "_jvm", None)
        return session._end_java(in_hurry), gateway.proc.returncode

    yield end
    for process in started:
        process.kill()


def test_java_writes_its_archive_to_the_end(ending):
    assert ending("import sys; sys.stdin.read(); sys.exit(7)", lambda: False) == (True, 7)


@pytest.mark.parametrize("looks", [0, 3])
def test_java_is_ended_once_a_stop_has_taken_long_enough(ending, looks):
    asked = iter([False] * looks)
    found = ending("import time; time.sleep(3600)", lambda: next(asked, True))
    assert found == (False, -signal.SIGKILL)


def test_a_stop_is_in_a_hurry_when_its_grace_is_over_or_a_second_signal_comes(shop, monkeypatch):
    supervisor = Supervisor(shop.config, once=False)
    grace_s = shop.config.stream.stop_grace.total_seconds()
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    supervisor.streamed = True
    assert not supervisor._in_hurry(), "nobody waits"
    supervisor.stop._stop(signal.SIGTERM, None)
    now += grace_s
    assert not supervisor._in_hurry()
    now += 1
    assert supervisor._in_hurry()
    now -= 1
    supervisor.stop._stop(signal.SIGTERM, None)
    assert supervisor._in_hurry()


def test_a_stop_of_a_start_takes_no_time(shop):
    supervisor = Supervisor(shop.config, once=False)
    assert not supervisor._in_hurry()
    supervisor.stopping.set()
    assert supervisor._in_hurry()
