"""A start says what it does, and ends at a signal."""

import inspect
import os
import re
import signal
import socket
import threading
from contextlib import contextmanager, nullcontext

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import daemon as pysparks_daemon
from pyspark.errors import PySparkRuntimeError

from lakemark import supervisor
from lakemark.errors import PipelineError
from lakemark.ops.starting import STEPS, Starting
from lakemark.runners.stopping import Stop
from lakemark.settings.config import load
from lakemark.spark import daemon, session
from lakemark.state import checkpoint_files
from lakemark.state.takeover import StoppedError
from lakemark.supervisor import Supervisor
from tests.kit.command_line import folder  # noqa: F401
from tests.unit.kafka.test_client_settings import config


class Said:
    """Events of the log, and one to wait for."""

    def __init__(self, count):
        self.events, self.enough = [], threading.Event()
        self._count = count

    def info(self, event, **fields):
        self.events.append((event, fields))
        if len(self.events) >= self._count:
            self.enough.set()


def test_a_step_that_lasts_is_named_again_until_the_start_is_over(monkeypatch):
    said = Said(4)
    monkeypatch.setattr("lakemark.ops.starting.log", said)
    with Starting(say_s=0.01) as start:
        start.next("batch")  # no start is under way: nothing to say
        assert not said.events
        start.step("spark")
        assert said.enough.wait(30)
        assert {fields["step"] for _, fields in said.events} == {"spark"}
        assert "for_s" not in said.events[0][1]
        assert all("for_s" in fields for _, fields in said.events[1:])
        start.next("batch")
        assert said.events[-1][1]["step"] == "batch"
        start.end()
    (watch,) = [t for t in threading.enumerate() if t.name == "starting"] or [None]
    if watch:
        watch.join(30)
    count = len(said.events)
    start.next("batch")
    assert len(said.events) == count


def test_every_step_of_the_supervisor_is_explained():
    """A name that is no step would end the start with a KeyError."""
    used = set(re.findall(r'starting\.(?:step|next)\("(\w+)"\)', inspect.getsource(supervisor)))
    assert used == set(STEPS)


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_wait_of_a_start_and_lets_a_batch_end(handlers, number):
    stop = Stop(grace_s=0)
    stop.on_signals()
    with pytest.raises(StoppedError), stop.interruptible():
        os.kill(os.getpid(), number)
        threading.Event().wait(60)
    with pytest.raises(StoppedError), stop.interruptible():
        pytest.fail("it was told to stop before")
    later = Stop(grace_s=60)
    later.on_signals()
    os.kill(os.getpid(), number)
    assert later.asked.wait(30)  # and nothing was raised
    assert not later.is_overdue()
    os.kill(os.getpid(), number)
    assert later.hurry.wait(30)
    assert later.is_overdue()


GONE = [Py4JNetworkError("Error while sending or receiving"), PySparkRuntimeError("no gateway")]


@pytest.mark.parametrize("error", GONE, ids=["gone", "not started"])
def test_java_that_ends_is_no_news_to_who_stops(folder, handlers, monkeypatch, error):  # noqa: F811
    for asked in (False, True):
        process = Supervisor(load(folder / "lakemark.yaml"), once=True)

        def ended(_runner, process=process, asked=asked):
            if asked:
                process.stopping.set()
            raise error

        monkeypatch.setattr(process.turn, "_queue", lambda: None)
        monkeypatch.setattr(process, "_publish_pipeline", lambda *_: None)
        monkeypatch.setattr("lakemark.spark.spark_runner.session", lambda *_: nullcontext())
        monkeypatch.setattr(process, "_supervise", ended)
        if asked:
            assert process.run() == 0
            continue
        with pytest.raises(PipelineError) as caught:
            process.run()
        assert caught.value.code == "java-ended"
        assert "lakemark doctor" in caught.value.hint


def test_a_checkpoint_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "mine").mkdir()
    checkpoint_files.require_folder(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()
    for place in ("file", "file/below", "/proc/none"):
        with pytest.raises(PipelineError) as caught:
            checkpoint_files.require_folder(tmp_path / place)
        assert caught.value.code == "checkpoint-unwritable"
        assert str(tmp_path / place) in caught.value.message
        assert "right to write" in caught.value.hint


def test_a_checkpoint_of_somebody_else_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # whoever runs the tests may be root
    with pytest.raises(PipelineError, match="cannot be written"):
        checkpoint_files.require_folder(tmp_path)


def test_the_handler_of_ctrl_c_stays_ours(handlers):
    def pyspark_starts():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return "session"

    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert session._keeping_signals(pyspark_starts) == "session"
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, ours)


@pytest.mark.parametrize("how", ["hung up", "reset"])
def test_a_worker_that_spark_hangs_up_on_says_nothing(how, capfd, monkeypatch):
    """With PySpark's own way of serving a task, which prints a trace then."""
    assert daemon._serve_task is pysparks_daemon.worker
    ours, sparks = socket.socketpair()
    with ours:
        sparks.close()
        if how == "reset":
            monkeypatch.setattr(socket.socket, "recv", lambda *_: (_ for _ in ()).throw(OSError))
        assert daemon.serve(ours, True) != 0
    assert capfd.readouterr() == ("", "")


def test_a_worker_that_has_a_task_serves_it(monkeypatch):
    monkeypatch.setattr(daemon, "_serve_task", lambda sock, _: int.from_bytes(sock.recv(4)))
    ours, sparks = socket.socketpair()
    with ours, sparks:
        sparks.sendall((7).to_bytes(4))
        assert daemon.serve(ours, True) == 7  # nothing of the task was taken


def test_a_start_that_is_told_to_stop_before_it_begins_ends_well(handlers, monkeypatch):
    process = Supervisor(config(), once=True)
    process.stopping.set()
    monkeypatch.setattr(process.turn, "_queue", lambda: None)
    monkeypatch.setattr(
        "lakemark.spark.spark_runner.spark_runner", lambda *_: pytest.fail("Spark was started")
    )
    assert process.run() == 0


def test_java_that_is_being_started_is_ended_and_not_left(handlers, monkeypatch):
    seen = []

    @contextmanager
    def starting(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        seen.append("started")
        yield None
        seen.append("ended")

    process = Supervisor(config(), once=True)
    monkeypatch.setattr(process.turn, "_queue", lambda: None)
    monkeypatch.setattr("lakemark.spark.spark_runner.spark_runner", starting)
    assert process.run() == 0
    assert seen == ["started", "ended"]
