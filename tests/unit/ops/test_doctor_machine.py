"""This machine: facts in, findings out; and the facts of the machine that runs the tests."""

from dataclasses import replace

import pytest

from lakemark.errors import DependencyError
from lakemark.ops.doctor.checks_machine import (
    LITTLE_DISK,
    Folder,
    Interpreter,
    Java,
    MachineFacts,
    findings,
)
from lakemark.ops.doctor.facts_machine import machine_facts
from lakemark.ops.stored_state import Stored, _Store, newest_state, stored_in
from lakemark.spark import jars
from lakemark.state.stored_form import encode
from lakemark.state.tables import PipelineState
from tests.kit.connector_settings import config
from tests.kit.verdicts import ERROR, OK, WARNING, bad, of, one

OWN = Interpreter("/venv/python", "", "3.11", "0.1.0")
FACTS = MachineFacts(
    java=Java("/java", "17.0.9"),
    jars=11,
    absent=(),
    cache="/cache",
    jars_error="",
    own=OWN,
    workers=OWN,
    master="",
    folders=(Folder("checkpoint", "/c", free=LITTLE_DISK), Folder("lake.path", "s3://l")),
)
OTHER = Interpreter("/other/python", "PYSPARK_PYTHON", "3.11", "0.1.0")


def test_all_in_order():
    assert bad(findings(FACTS)) == []
    assert bad(findings(replace(FACTS, workers=OTHER))) == []
    assert bad(findings(replace(FACTS, master="local[4]"))) == []


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "words"),
    [
        ({"java": Java("", "", "no Java was found")}, "java", ERROR, "no Java was found"),
        ({"java": Java("/j", "1.8.0_292")}, "java", ERROR, "Spark needs 17"),
        ({"java": Java("/j", "11.0.2")}, "java", ERROR, "Spark needs 17"),
        ({"java": Java("/j", "odd")}, "java", WARNING, "no version known"),
        ({"absent": ("a:b:1", "a:c:1")}, "jars", WARNING, "2 of 11"),
        ({"jars_error": "the list is broken"}, "jars", ERROR, "the list is broken"),
        ({"workers": replace(OTHER, python="3.12")}, "python", ERROR, "Spark refuses"),
        ({"workers": replace(OTHER, lakemark="")}, "python", ERROR, "no lakemark"),
        ({"workers": replace(OTHER, lakemark="0.2.0")}, "python", ERROR, "lakemark 0.2.0"),
        ({"workers": replace(OTHER, error="does not run")}, "python", ERROR, "does not run"),
        ({"master": "spark://m:7077"}, "python", WARNING, "every node|cannot be seen"),
        ({"folders": (Folder("checkpoint", "/c", "denied"),)}, "folder", ERROR, "denied"),
        ({"folders": (Folder("lake.path", "hdfs://x", unseen="u"),)}, "folder", WARNING, "u"),
        ({"folders": (Folder("checkpoint", "/c", free=1024**2),)}, "folder", WARNING, "1 MiB"),
    ],
)
def test_what_is_wrong(changes, check, verdict, words):
    (finding,) = bad(findings(replace(FACTS, **changes)))
    assert (finding.check, finding.verdict) == (check, verdict)
    assert any(word in finding.reason for word in words.split("|"))
    assert finding.mend


def test_a_path_of_the_workers_of_a_cluster_need_not_be_here():
    there = Interpreter("./env/bin/python", "spark.pyspark.python", "", "", "No such file")
    assert one(findings(replace(FACTS, workers=there)), "python").verdict is ERROR
    found = one(findings(replace(FACTS, workers=there, master="yarn")), "python")
    assert found.verdict is WARNING
    assert "not on this machine (No such file)" in found.reason


def test_java_8_s_way_to_count():
    assert one(findings(replace(FACTS, java=Java("/j", "21"))), "java").verdict is OK
    assert one(findings(replace(FACTS, java=Java("/j", "25-ea"))), "java").verdict is OK


# --- real facts -----------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A configuration with its folders in a place of its own."""
    for name in ("PYSPARK_PYTHON", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    lake = {"path": str(tmp_path / "lake")}
    return config(lake=lake, checkpoint=str(tmp_path / "deep" / "checkpoint"))


def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_folders_are_tried_and_left_as_they_were(here, tmp_path):
    (tmp_path / "lake").mkdir()
    facts = machine_facts(here)
    checkpoint, lake = facts.folders
    assert (checkpoint.error, checkpoint.made) == ("", False)
    assert (lake.error, lake.made) == ("", True)
    assert lake.free > 0
    assert [path.name for path in tmp_path.rglob("*")] == ["lake"]
    assert of(findings(facts), "folder", f"lake.path {tmp_path / 'lake'}")[0].verdict is not ERROR


def test_a_folder_below_a_file_cannot_be_made(here, tmp_path):
    (tmp_path / "deep").write_text("a file")
    (finding, *_) = of(findings(machine_facts(here)), "folder")
    assert finding.verdict is ERROR
    assert finding.subject.startswith("checkpoint ")


def test_an_object_store_that_is_not_there(here):
    options = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "x",
        "max_retries": "0",
        "retry_timeout": "1s",
    }
    lake = {"path": "s3://bucket/lake", "storage_options": options}
    (finding,) = bad(
        of(findings(machine_facts(config(lake=lake, checkpoint="hdfs://n/c"))), "folder")
    )[1:]
    assert finding.verdict is ERROR
    assert finding.subject == "lake.path s3://bucket/lake"


def test_the_java_that_spark_would_run(here, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    script(tmp_path / "bin" / "java", "echo 'openjdk version \"11.0.2\" 2019' >&2")
    assert machine_facts(here).java == Java(str(tmp_path / "bin/java"), "11.0.2")
    script(tmp_path / "bin" / "java", "echo broken >&2; exit 3")
    assert machine_facts(here).java.error == "does not run: broken"
    (tmp_path / "bin" / "java").unlink()
    assert machine_facts(here).java.error.startswith("does not run: No such file")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no Java was found" in machine_facts(here).java.error


def test_the_python_of_the_workers(here, tmp_path, monkeypatch):
    assert machine_facts(here).workers == machine_facts(here).own
    other = script(tmp_path / "python", "echo 3.9")
    monkeypatch.setenv("PYSPARK_PYTHON", other)
    assert machine_facts(here).workers == Interpreter(other, "PYSPARK_PYTHON", "3.9", "")
    named = here.model_copy(update={"spark": {"spark.pyspark.python": f"{tmp_path}/nowhere"}})
    found = machine_facts(named).workers
    assert (found.said_by, bool(found.error)) == ("spark.pyspark.python", True)


def test_jars_that_are_not_there(here, tmp_path, monkeypatch):
    monkeypatch.setenv("LAKEMARK_CACHE", str(tmp_path / "cache"))
    facts = machine_facts(here)
    assert len(facts.absent) == facts.jars == len(jars.read_list(jars.RUNTIME_LIST))
    assert not (tmp_path / "cache").exists()


# --- the checkpoint's state without Spark ---------------------------------------------------


def test_the_newest_state_is_read_from_files(here, tmp_path):
    nothing = Stored(None, {})
    assert newest_state(here) == nothing
    folder = tmp_path / "deep" / "checkpoint" / "lakemark" / "state"
    folder.mkdir(parents=True)
    for batch in (9, 10):
        state = PipelineState(batch=batch, offsets={"t": {0: batch}})
        (folder / f"{batch}.json").write_bytes(encode(state))
    (folder / "11.json.draft").write_bytes(b"half")
    (folder.parent / "topics.json").write_text('{"t": "id1"}')
    stored = newest_state(here)
    assert stored == Stored(PipelineState(batch=10, offsets={"t": {0: 10}}), {"t": "id1"})
    by_url = here.model_copy(update={"checkpoint": f"file://{tmp_path}/deep/checkpoint"})
    assert newest_state(by_url) == stored
    assert stored_in(_Store(f"file://{tmp_path}/deep/checkpoint", {})) == stored
    assert stored_in(_Store(f"file://{tmp_path}", {})) == nothing
    assert sorted(path.name for path in folder.iterdir()) == ["10.json", "11.json.draft", "9.json"]


def test_a_state_that_cannot_be_read_says_so(here, tmp_path):
    folder = tmp_path / "deep" / "checkpoint" / "lakemark" / "state"
    folder.mkdir(parents=True)
    (folder / "1.json").write_bytes(b"{")
    with pytest.raises(DependencyError, match="cannot be read"):
        newest_state(here)
