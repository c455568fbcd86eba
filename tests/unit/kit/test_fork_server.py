"""What is forked is as if it had been started: arguments, environment, outputs, end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stack.processes import wait_for
from tests.kit import fork_server as forking
from tests.kit.command_line import CONNECTOR, SMALL
from tests.kit.fork_server import Forked, ForkServer, fork_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is started"),
]

ENDS_S = 60.0
SAME_PID = """
import sys
sys.stdin.readline()
print('{"pid": 7}\\n{"pid": 7, "code": 3}', flush=True)
sys.stdin.readline()
print('{"pid": 7}', flush=True)
sys.stdin.read()
"""  # the system gives the numbers of those who ended again


@pytest.fixture
def forked(tmp_path):
    """`lakemark` with these arguments: the process, what it prints and its errors."""

    def begun(*arguments: str, **environment: str) -> tuple[Forked, Path, Path]:
        printed, errors = tmp_path / "printed", tmp_path / "errors"
        child = fork_server().fork(arguments, {**os.environ, **environment}, printed, errors)
        return child, printed, errors

    return begun


def test_exit_codes_and_outputs_are_its_own(forked, tmp_path):
    child, printed, errors = forked("config", "schema")
    assert child.wait() == 0
    assert printed.read_text().startswith("{")
    assert errors.read_text() == ""
    child, printed, errors = forked("no-such-command")
    assert child.wait() == 2
    assert "Usage: python -m lakemark" in errors.read_text()
    assert child.poll() == child.returncode == 2


def test_the_environment_is_what_it_was_given(forked, tmp_path):
    config = tmp_path / "lakemark.yaml"
    config.write_text(SMALL)
    (tmp_path / "shop.json").write_text(json.dumps(CONNECTOR))
    shown = []
    for name in ("shop-one", "shop-two"):
        child, printed, _ = forked(
            "config", "show", "-c", str(config), "--output", "json", LAKEMARK_NAME=name
        )
        assert child.wait() == 0
        shown.append(printed.read_text())
        printed.unlink()
    assert ["shop-one" in said for said in shown] == [True, False]
    assert ["shop-two" in said for said in shown] == [False, True]


def test_it_leads_its_own_group_and_is_known_to_have_been_killed(forked, tmp_path):
    fifo = tmp_path / "never-written.yaml"
    os.mkfifo(fifo)
    child, *_ = forked("validate", "-c", str(fifo))
    wait_for(lambda: os.getpgid(child.pid) == child.pid, ENDS_S, "its own group")
    assert child.poll() is None
    os.killpg(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_a_pid_that_is_given_again_is_another_process(monkeypatch, tmp_path):
    started = subprocess.Popen
    monkeypatch.setattr(
        forking.subprocess,
        "Popen",
        lambda _, **kept: started([sys.executable, "-c", SAME_PID], **kept),
    )
    server = ForkServer()
    first = server.fork((), {}, tmp_path / "first")
    assert first.wait() == 3
    second = server.fork((), {}, tmp_path / "second")
    assert second.pid == first.pid
    assert second.poll() is None
    assert first.poll() == 3
    server.close()
