"""What spark-submit needs to be given; brokers that are not there end a run once Spark is up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stack.local import CONNECTOR, ROOT
from stack.spark import HOME
from tests.kit.nightly import nightly
from tests.kit.page_shell import PageShell, lines, with_names

pytestmark = pytest.mark.spark

MAIN = ROOT / "deploy" / "spark" / "lakemark_main.py"


@pytest.fixture
def settings(tmp_path) -> Path:
    """A pipeline whose brokers are asked for as soon as there is a session."""
    (tmp_path / "connector.json").write_text(CONNECTOR.read_text())
    file = tmp_path / "lakemark.yaml"
    sections = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "127.0.0.1:1", "timeout": "100ms"},
        "source": {"connector_file": "connector.json"},
        "lake": {"path": "lake"},
        "checkpoint": "checkpoint",
    }
    file.write_text(yaml.safe_dump(sections))
    return file


def submit(java_home: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(HOME / "bin" / "spark-submit"), "--master", "local[1]", *arguments],
        env={**os.environ, "JAVA_HOME": java_home, "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@nightly
def test_without_the_jars_it_says_how_they_are_given(settings, java_home):
    done = submit(java_home, str(MAIN), "run", "-c", str(settings))
    assert done.returncode == 1
    assert "jars-unavailable" in done.stdout  # where spark-submit puts what Python says
    assert '--jars "$(lakemark jars)"' in done.stdout


def test_as_the_page_says_there_is_a_session(settings, tmp_path):
    """Brokers are asked for when there is one."""
    shell = PageShell(tmp_path / "shell", here=ROOT)
    names = {
        "spark://head:7077": "local[1]",
        "/opt/lakemark/bin/python": sys.executable,
        "driver.example.com": "127.0.0.1",
        "run -c lakemark.yaml": f"run --once -c {settings}",
    }
    command = with_names(lines("docs/spark-cluster.md", "head:7077"), names).strip()
    said = shell.run(f"{command} || echo ended with $?")
    assert said.splitlines()[-1] == "ended with 1"
    assert "jars-unavailable" not in said
    assert "kafka-unavailable" in said
