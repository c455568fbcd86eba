"""`lakemark run` as a child process, for the demo and the tests.

It leads a process group of its own, so that a kill reaches the driver and Spark's JVM at once as a
power cut would. What it does is known from its log (one JSON object per line) and from its progress
topic: whoever waits for something names the event.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from confluent_kafka import KafkaException

from lakemark import failpoints
from lakemark.kafka.client_settings import by_offset
from lakemark.kafka.records import read_compacted
from lakemark.settings.config import load
from stack.database import Database
from stack.java import find_java
from stack.processes import Server, StackError, wait_for
from stack.topic_reader import TopicReader

Event = dict[str, Any]

PIPELINE: Final = "_pipeline"
"""Key of the pipeline's own record in the progress topic."""
ANSWER_S: Final = 900.0
"""Deadline of a command; one that waits for a snapshot needs minutes on a busy machine."""


def write_config(
    database: Database, directory: Path, overrides: Mapping[str, Any] | None = None
) -> Path:
    """Write a configuration for a database of the stack and return the file.

    Lake and checkpoint are below `directory`. The pipeline is named like the database. Tables are
    snapshotted when that is asked for, unless the section `snapshot` says `incomplete: auto`.

    Args:
        database: the source; its connector may be started later.
        directory: where the file goes.
        overrides: sections to replace or add; a value of None leaves a section out.
    """
    stack = database.stack
    sections: dict[str, Any] = {
        "name": database.name,
        "kafka": {"bootstrap_servers": stack.kafka.bootstrap, "timeout": "10s"},
        "source": {"connect": {"url": stack.connect.url, "connector": database.name}},
        "database": {"url": database.dsn},
        "lake": {"path": "./lake"},
        "stream": {"trigger": "500ms", "shards": 2},
        "checkpoint": "./checkpoint",
        "http": {"bind": "127.0.0.1:0"},
        "log": {"level": "info", "format": "json"},
        **(overrides or {}),
    }
    sections["snapshot"] = {"incomplete": "manual", **sections.get("snapshot", {})}
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "lakemark.yaml"
    kept = {name: section for name, section in sections.items() if section is not None}
    path.write_text(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


@dataclass(slots=True)
class _Reader:
    """Reads the log's JSON lines as they come, each once."""

    path: Path
    offset: int = 0
    events: list[Event] = field(default_factory=list)

    def read(self) -> list[Event]:
        """Return all events since `offset` was set, new ones at the end."""
        try:
            with self.path.open("rb") as log:
                log.seek(self.offset)
                data = log.read()
        except FileNotFoundError:
            return self.events
        whole, newline, _ = data.rpartition(b"\n")
        self.offset += len(whole) + len(newline)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    continue  # a line that a kill cut short and another one continued
        return self.events


class LakemarkProcess(Server):
    """One `lakemark run` after the other on the same configuration.

    `start` returns when its query runs. `kill` is SIGKILL for the process group and all
    descendants. The log is appended to; `events` are those since the last start.

    Args:
        config: the YAML file; its log format must be `json`.
        log: the file its output is appended to.
        detached: whether it may outlive this process.
    """

    name = "lakemark"
    ready_within_s = 600.0
    stop_within_s = 60.0

    def __init__(self, config: Path, *, log: Path | None = None, detached: bool = False) -> None:
        super().__init__(
            directory=config.parent, log=log or config.parent / "lakemark.log", detached=detached
        )
        self.config = config
        self.once = False
        self.environment: dict[str, str] = {}
        self._reader = _Reader(self.log)
        self._batches = 0
        self._progress: TopicReader | None = None

    def _prepare(self) -> None:
        self._forget_progress()  # the configuration may be another one
        size = self.log.stat().st_size if self.log.exists() else 0
        self._reader = _Reader(self.log, offset=size)
        self._batches = 0

    def _command(self) -> list[str]:
        # The shell's own pid becomes lakemark's, and so the number of its process group: Spark's
        # Python workers are in another one and are told this way whom a crash point kills.
        script = f'export {failpoints.GROUP}=$$; exec "$@"'
        return ["/bin/sh", "-c", script, "sh", sys.executable, "-m", "lakemark", *self._arguments()]

    def _arguments(self) -> list[str]:
        return ["run", "-c", str(self.config), *(["--once"] if self.once else [])]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "JAVA_HOME": str(find_java().parents[1]),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONUNBUFFERED": "1",
            **self.environment,
        }

    def _is_ready(self) -> bool:
        return bool(self.events("pipeline.streaming"))

    # -- running ----------------------------------------------------------------------------------

    def run_once(self, deadline_s: float = 600) -> int:
        """Run with `--once` to its end and return the exit code.

        Raises:
            StackError: it did not end in time.
        """
        self.once = True
        try:
            self.spawn()
            return self.wait_ended(deadline_s)
        finally:
            self.once = False

    def wait_ended(self, deadline_s: float) -> int:
        """Return the exit code as soon as it has ended; negative after a signal.

        Raises:
            StackError: it did not end in time.
        """
        try:
            wait_for(lambda: not self.is_running, deadline_s, "lakemark to end")
        except StackError as error:
            raise StackError(f"{error}\n{self.log_tail()}") from error
        assert self._process is not None
        code = self._process.wait()
        self.kill()  # its JVM may need a moment longer; nothing of a run outlives it here
        return code

    def kill(self) -> None:
        """SIGKILL for all of it; its progress topic is left too."""
        super().kill()
        self._forget_progress()

    def kill_group(self) -> None:
        """SIGKILL for driver and JVM only: Python workers find out when their pipe closes."""
        if self.identity is not None and self.is_running:
            os.killpg(self.identity.pid, signal.SIGKILL)
        wait_for(lambda: not self.is_running, 60, "the killed lakemark to be gone")

    def crash_at(self, point: str, *, nth: int = 1) -> None:
        """Let the next run kill itself when it reaches a crash point for the n-th time."""
        count = self.directory / "crash-count"
        count.unlink(missing_ok=True)
        self.environment[failpoints.AT] = f"{point}:{nth}"
        self.environment[failpoints.COUNT] = str(count)

    def no_crash(self) -> None:
        """Let the next run live."""
        self.environment.pop(failpoints.AT, None)

    # -- what it says -----------------------------------------------------------------------------

    def events(self, name: str = "") -> list[Event]:
        """Return the events of this run's log so far, all or those of one name."""
        found = self._reader.read()
        return [event for event in found if not name or event.get("event") == name]

    def wait_for_event(
        self,
        name: str,
        deadline_s: float = 300,
        *,
        where: Callable[[Event], bool] = lambda _: True,
    ) -> Event:
        """Return the first event of this run of that name for which `where` holds.

        Raises:
            StackError: it did not come in time, or lakemark has ended.
        """

        def found() -> list[Event]:
            running = self.is_running  # asked first: what came before the end is in the log
            hits = [event for event in self.events(name) if where(event)]
            if not hits and not running:
                raise StackError(f"lakemark has ended without {name}\n{self.log_tail()}")
            return hits

        try:
            return wait_for(found, deadline_s, f"lakemark's event {name}")[0]
        except StackError as error:
            if "has ended" in str(error):
                raise
            raise StackError(f"{error}\n{self.log_tail()}") from error

    def wait_for_batch(self, deadline_s: float) -> bool:
        """Return True at the next finished batch not told of before, False at the deadline.

        Raises:
            StackError: lakemark has ended.
        """

        def done() -> bool:
            running = self.is_running
            count = len(self.events("batch.done"))
            if count > self._batches:
                self._batches = count
                return True
            if not running:
                raise StackError(f"lakemark has ended\n{self.log_tail()}")
            return False

        end = time.monotonic() + deadline_s
        while not done():
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        return True

    def progress(self) -> dict[str, Event]:
        """Return the records of the progress topic by table; `_pipeline` is the pipeline's own."""
        named = {key.decode(): value for key, value in self._newest().items()}
        return {
            name: json.loads(value)
            for name, value in named.items()
            if name == PIPELINE or not name.startswith("_")
        }

    def _newest(self) -> dict[bytes, bytes]:
        """The newest value of every key of the progress topic, read by a client that stays."""
        if self._progress is None:
            config = load(self.config)
            self._progress = TopicReader(by_offset(config), config.topics.progress)
        try:
            records = self._progress.records()
        except KafkaException:  # the brokers are away, or were when this client asked
            self._forget_progress()
            config = load(self.config)
            return read_compacted(config, config.topics.progress)
        found = {record.key(): record.value() for record in records}
        return {key: value for key, value in found.items() if key is not None and value is not None}

    def _forget_progress(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    def wait_for_progress(
        self, table: str, what: str, holds: Callable[[Event], bool], *, deadline_s: float = 300
    ) -> Event:
        """Return the progress record of a table as soon as `holds` is true of it.

        Raises:
            StackError: it did not become true in time; the message says what the record was.
        """
        last: Event = {}

        def found() -> list[Event]:
            nonlocal last
            last = self.progress().get(table, {})
            return [last] if last and holds(last) else []

        try:
            return wait_for(found, deadline_s, f"{table} to be {what}")[0]
        except StackError as error:
            raise StackError(f"{error}; it was {last}\n{self.log_tail()}") from error

    def command(self, *arguments: str) -> str:
        """Run another command of lakemark's on this configuration and return what it prints.

        Raises:
            StackError: it failed.
        """
        result = self.answer(*arguments)
        if result.returncode:
            raise StackError(
                f"lakemark {' '.join(arguments)} failed:\n{result.stdout}{result.stderr}"
            )
        return result.stdout

    def answer(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run another command of lakemark's on this configuration, whatever its exit code is."""
        return subprocess.run(
            [sys.executable, "-m", "lakemark", *arguments, "-c", str(self.config)],
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWER_S,
        )


def described(events: Sequence[Event]) -> str:
    """Return events as lines, for a message."""
    return "\n".join(
        " ".join(f"{key}={value}" for key, value in event.items() if key != "timestamp")
        for event in events
    )
