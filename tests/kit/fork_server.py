"""`lakemark` forked from a process that has imported what it needs: a start costs a tenth.

    python -m tests.kit.fork_server

is that process. Nearly all that a start takes of the processor are imports and compiled code that
is read; a suite starts lakemark hundreds of times. Rooms whose modules belong to one process, as
`state` with the process's name in it, and all after them are imported by each child itself.

Requests come as lines of JSON on the standard input, answers go to the standard output. A child
leads a session of its own, and its end is told with its exit code. The end of the input ends this
process; of its children the watchdog of whoever asked takes care.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from lakemark import failpoints
from stack.lakemark_process import ANSWER_S as COMMAND_S
from stack.lakemark_process import LakemarkProcess
from stack.local import ROOT
from stack.processes import Process, StackError

BEFOREHAND: Final = (
    *("lakemark.source.fetch", "lakemark.sink.apply", "lakemark.sink.formats"),
    *("lakemark.connectors.registry", "lakemark.reconcile.window"),
    *("httpx", "prometheus_client", "rich.console", "rich.table", "starlette.applications"),
    *("typer", "uvicorn"),
)
ITS_OWN: Final = "lakemark.state"
READY_S: Final = 600.0
ANSWER_S: Final = 300.0
LEAST: Final = 65_536


class Forked:
    """A child, as `subprocess.Popen` would show it.

    Attributes:
        pid: of the child.
        returncode: None until it is known to have ended; negative after a signal.
    """

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None:
            self._server.listen(0.0)
        return self.returncode

    def wait(self, timeout: float = ANSWER_S) -> int:
        """Return the exit code when it has ended.

        Raises:
            StackError: it did not in time.
        """
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = end - time.monotonic()
            if left <= 0:
                raise StackError(f"process {self.pid} has not ended within {timeout:g} s")
            self._server.listen(left)
        return code


class ForkServer:
    """The process that forks; ended with this one."""

    def __init__(self) -> None:
        paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            bufsize=0,
        )
        self._lock = threading.Lock()
        self._buffer = b""
        self._begun: list[Forked] = []
        self._running: dict[int, Forked] = {}  # by pid: the system gives the same to others later
        atexit.register(self.close)

    def fork(self, arguments: Sequence[str], environment: dict[str, str], *outputs: Path) -> Forked:
        """Begin `lakemark` with these arguments.

        Args:
            arguments: behind the name of the program.
            environment: of the child; all of it.
            outputs: files to which its standard output and its errors are appended; one for both.
        """
        request = {
            "arguments": list(arguments),
            "environment": environment,
            "directory": str(Path.cwd()),
            "outputs": [str(outputs[0]), str(outputs[-1])],
        }
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            end = time.monotonic() + READY_S
            while not self._begun:
                if (left := end - time.monotonic()) <= 0:
                    raise StackError(f"no process was forked within {READY_S:g} s")
                self._read(left)
            return self._begun.pop()

    def listen(self, timeout: float) -> None:
        """Take what is told, at most so many seconds after."""
        with self._lock:
            self._read(timeout)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(ANSWER_S)

    def _read(self, timeout: float) -> None:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            return
        if not (data := os.read(self._process.stdout.fileno(), LEAST)):
            raise StackError("the process that forks has ended")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for answer in map(json.loads, lines):
            if "code" in answer:
                self._running.pop(answer["pid"]).returncode = answer["code"]
            else:
                self._begun.append(Forked(self, answer["pid"]))
                self._running[answer["pid"]] = self._begun[-1]


@cache
def fork_server() -> ForkServer:
    """Return the one of this process, started when it is asked for first."""
    return ForkServer()


class ForkedLakemark(LakemarkProcess):
    """`lakemark run` without Spark, and the commands beside it, forked."""

    def _launched(self) -> Process:
        return fork_server().fork(self._arguments(), self._environment(), self.log)

    def command(self, *arguments: str) -> str:
        """Run another command of lakemark's on this configuration and return what it prints.

        Raises:
            StackError: it failed.
        """
        files = self.directory / "command.out", self.directory / "command.err"
        for file in files:
            file.unlink(missing_ok=True)
        arguments = (*arguments, "-c", str(self.config))
        code = fork_server().fork(arguments, dict(os.environ), *files).wait(COMMAND_S)
        printed, errors = (file.read_text(encoding="utf-8") for file in files)
        if code:
            raise StackError(f"lakemark {' '.join(arguments)} failed:\n{printed}{errors}")
        return printed


# -- the process that forks ------------------------------------------------------------------------


def _serve() -> dict[str, Any] | None:
    """Fork a child for each request; return the request in the child, None at the end of all."""
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    buffer = b""
    while True:
        ready = select.select([0, woken], [], [])[0]
        if woken in ready:
            os.read(woken, LEAST)
            for pid, code in _ended():
                _say(answers, {"pid": pid, "code": code})
        if 0 not in ready:
            continue
        if not (data := os.read(0, LEAST)):
            return None
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # threads of C libraries
                pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for opened in (answers, woken, wakes):
                    os.close(opened)
                request: dict[str, Any] = json.loads(line)
                return request
            _say(answers, {"pid": pid})


def _ended() -> list[tuple[int, int]]:
    """Return those that have ended since it was asked last, with their exit codes."""
    found = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found.append((pid, os.waitstatus_to_exitcode(status)))


def _say(answers: int, answer: dict[str, int]) -> None:
    os.write(answers, json.dumps(answer).encode() + b"\n")


def _become(request: dict[str, Any]) -> None:
    """Be `lakemark` with these arguments, to its end."""
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.environ[failpoints.GROUP] = str(os.getpid())
    os.chdir(request["directory"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(request["outputs"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), number)
    sys.argv[1:] = request["arguments"]
    runpy.run_module("lakemark", run_name="__main__", alter_sys=True)


def _main() -> None:
    for name in BEFOREHAND:
        importlib.import_module(name)
    importlib.import_module("lakemark.source.fetch").ready()
    early = [name for name in sys.modules if name.startswith(ITS_OWN)]
    assert not early, f"{early} are each process's own"
    gc.collect()
    gc.freeze()
    if request := _serve():
        _become(request)


if __name__ == "__main__":
    _main()
