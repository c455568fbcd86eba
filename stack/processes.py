"""Servers as child processes: start, readiness, log, stop, kill, pause.

Guarantees of `Server`:

- it runs in a session of its own, so Ctrl-C in the terminal reaches only us and we end it properly,
- `start` returns when the server answers its own protocol, or raises with its last log lines,
- it never outlives us, even if we are killed (`watchdog.py`), unless it was started `detached`.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from stack import watchdog

T = TypeVar("T")

POLL_S = 0.05
"""Pause between two looks at something awaited: invisible to a person, cheap for a processor."""


class StackError(Exception):
    """The local stack cannot do what was asked; the message says why and where to look."""


def wait_for(predicate: Callable[[], T], deadline_s: float, what: str) -> T:
    """Call `predicate` until it returns something true, and return that.

    Raises:
        StackError: if nothing true came within `deadline_s` seconds.
    """
    end = time.monotonic() + deadline_s
    while True:
        result = predicate()
        if result:
            return result
        if time.monotonic() >= end:
            raise StackError(f"waited {deadline_s:g} s in vain for {what}; last seen: {result!r}")
        time.sleep(POLL_S)


_handed_out: set[int] = set()
_PORTS = range(20_000, 32_000)
_OF_A_WORKER = 1000  # ports: some ten times what the servers of one worker's tests need


def _ports() -> range:
    """Those of this process: the workers of a test run have ports of their own."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if not worker.isdecimal():
        return _PORTS
    first = _PORTS.start + int(worker) * _OF_A_WORKER % len(_PORTS)
    return range(first, first + _OF_A_WORKER)


def free_port() -> int:
    """Return a loopback port that nobody uses and that was not handed out before.

    It may be bound long after: no other worker of the same test run is given it either.

    Ports are taken from below the range that the kernel uses for outgoing connections. Else, while
    a server is down between two starts, a client that tries to reach it can be given the server's
    own port as its source, connect to itself and keep the port.
    """
    ports = _ports()
    for _ in range(1000):
        port = random.choice(ports)
        if port in _handed_out:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _handed_out.add(port)
        return port
    raise StackError(f"no free port was found between {ports.start} and {ports.stop}")


@dataclass(frozen=True, slots=True)
class Identity:
    """A running process, safe against reuse of its pid.

    Attributes:
        pid: the process.
        started: when it started, as `watchdog.started` has it.
    """

    pid: int
    started: str

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return bool(self.started) and watchdog.started(self.pid) == self.started


class _Watchdog:
    """Our end of the pipe to the watchdog; the watchdog is started with the first server."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def tell(self, sign: str, identity: Identity) -> None:
        if self._process is None or self._owner != os.getpid():
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            self._owner = os.getpid()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{sign}{identity.pid} {identity.started}\n")
        self._process.stdin.flush()


_watchdog = _Watchdog()


class Process(Protocol):
    """A child process, as `subprocess.Popen` shows it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""

    def wait(self) -> int:
        """Return the exit code when it has ended."""


class Controlled(ABC):
    """A server that can be started, ended and held, whatever it runs in.

    After `stop` or `kill` a `start` brings it back with the same address and the same data.
    """

    name: str
    """What people call it, e.g. `Kafka`."""

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether the server is there (it may be paused)."""

    @property
    @abstractmethod
    def log_place(self) -> str:
        """The place of its log, for people: a file, or a command that shows it."""

    @abstractmethod
    def answers(self) -> bool:
        """Tell whether it answers its own protocol; must not raise, must not block long."""

    @abstractmethod
    def start(self) -> None:
        """Start the server and return when it answers; nothing if it already runs.

        Raises:
            StackError: if it ends or does not answer in time.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ask the server to stop and wait for it; nothing if it does not run."""

    @abstractmethod
    def kill(self) -> None:
        """End the server at once, as a power cut would."""

    def restart(self) -> None:
        """Stop, then start with the same address and data."""
        self.stop()
        self.start()

    @abstractmethod
    def pause(self) -> None:
        """Hold the server: connections stay open and nothing answers."""

    @abstractmethod
    def resume(self) -> None:
        """End `pause`; harmless without one."""


class Server(Controlled):
    """A server process with a directory, a log and a readiness check of its own.

    Args:
        directory: where its data lives; made if missing.
        log: the file its output is appended to.
        detached: whether it may outlive this process (`./dev up`).
    """

    ready_within_s = 600.0
    """Deadline of `await_ready`: many times a start on two cores."""

    stop_within_s = 20.0
    """Deadline of an orderly stop; then it is killed."""

    stop_signal = signal.SIGTERM
    """What asks it to stop in order."""

    def __init__(self, *, directory: Path, log: Path, detached: bool = False) -> None:
        self.directory = directory
        self.log = log
        self.detached = detached
        self.identity: Identity | None = None
        self._process: Process | None = None

    @abstractmethod
    def _prepare(self) -> None:
        """Make whatever the command needs; repeatable, called before every start."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command to run."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Tell whether the server answers its own protocol; must not raise, must not block long."""

    def answers(self) -> bool:
        """Tell whether it answers its own protocol."""
        return self._is_ready()

    @property
    def log_place(self) -> str:
        """The file of its log."""
        return str(self.log)

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    def _popen_options(self) -> dict[str, object]:
        return {}

    @property
    def is_running(self) -> bool:
        """Whether the process is there (it may be paused)."""
        if self._process is not None:
            self._process.poll()  # so that an ended child is not kept as a zombie
        return self.identity is not None and self.identity.is_alive

    def start(self) -> None:
        """Start the server and return when it is ready; nothing if it already runs.

        After `stop` or `kill` it comes back with the same ports and the same data.

        Raises:
            StackError: if it ends or is not ready in time.
        """
        self.spawn()
        self.await_ready()

    def spawn(self) -> None:
        """Start the process without waiting for it, so that several can start at once."""
        if self.is_running:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._prepare()
        self._process = self._launched()
        self.identity = Identity(self._process.pid, watchdog.started(self._process.pid))
        if not self.detached:
            _watchdog.tell("+", self.identity)

    def _launched(self) -> Process:
        """Begin the process, in a session of its own, and return it."""
        with self.log.open("ab") as log:
            launched: subprocess.Popen[bytes] = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
                **self._popen_options(),  # type: ignore[call-overload]
            )
        return launched

    def await_ready(self) -> None:
        """Return when the server answers.

        Raises:
            StackError: if it ends or is not ready in time; the message has its last log lines.
        """

        def settled() -> bool:
            return not self.is_running or self._is_ready()

        try:
            wait_for(settled, self.ready_within_s, f"{self.name} to be ready")
        except StackError as error:
            raise StackError(f"{error}\n{self.log_tail()}") from error
        if not self.is_running:
            code = self._process.returncode if self._process else "unknown"
            raise StackError(f"{self.name} ended with exit code {code}\n{self.log_tail()}")

    def stop(self) -> None:
        """Ask the server to stop, wait, kill it if it does not; nothing if it does not run."""
        if self.identity is None:
            return
        if self.is_running:
            self.resume()
            with suppress(ProcessLookupError):
                os.kill(self.identity.pid, self.stop_signal)
            with suppress(StackError):
                wait_for(lambda: not self.is_running, self.stop_within_s, f"{self.name} to stop")
        self.kill()

    def kill(self) -> None:
        """SIGKILL, as a power cut would: the process, its group and its descendants."""
        if self.identity is None:
            return
        if self.is_running:
            watchdog.signal_tree(self.identity.pid, signal.SIGKILL)
        wait_for(lambda: not self.is_running, 10, f"the killed {self.name} to be gone")
        if self._process is not None:
            self._process.wait()  # its threads may outlive the first one, and keep locks on files
        if not self.detached:
            _watchdog.tell("-", self.identity)
        self.identity = None

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, as on a machine that hangs."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: the end of `pause`; harmless without one."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.identity is not None and self.is_running:
            watchdog.signal_tree(self.identity.pid, number)

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the server's log under a line that says where it is."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = "(no log was written)"
        tail = "\n".join(text.splitlines()[-lines:])
        return f"--- last lines of {self.log}\n{tail}"


def start_together(servers: Sequence[Server], *, stop: Callable[[], None]) -> None:
    """Start all of them at once and return when each is ready.

    Args:
        servers: which, in the order in which they are started.
        stop: ends them; called if one does not start, or if we are interrupted.

    Raises:
        StackError: if one ends or is not ready in time.
    """
    try:
        for server in servers:
            server.spawn()
        for server in servers:
            server.await_ready()
    except BaseException:
        stop()
        raise
