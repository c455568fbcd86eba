"""The snapshot commands against a real broker; a thread plays the pipeline's part."""

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from lakemark.kafka.brokers import Cluster
from lakemark.kafka.records import Tail, publish
from lakemark.settings.config import Config, load
from lakemark.snapshot import notifications
from lakemark.snapshot.notifications import Progress, ScanStatus, Subject
from lakemark.snapshot.signals import ExecuteSnapshot, Rejection, Signal, StopSnapshot, read
from stack.local import Servers
from tests.kit.command_line import invoke

pytestmark = pytest.mark.integration


class Pipeline:
    """Reads signals and answers them as the coordinator does."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.seen: list[Signal | Rejection] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._signals = Tail(config, config.topics.signals)

    @contextmanager
    def running(self) -> Iterator["Pipeline"]:
        self._thread.start()
        try:
            yield self
        finally:
            self.ended.set()
            self._thread.join(30)

    def _run(self) -> None:
        with self._signals as tail:
            while not self.ended.is_set():
                if value := tail.value(0.1):
                    name = self.config.name
                    found = read(name.encode(), value, pipeline=name, unnamed="u")
                    self.seen.append(found)
                    self._answer(found)

    def _answer(self, signal: Signal | Rejection) -> None:
        if isinstance(signal, ExecuteSnapshot) and signal.data_collections == ("public.nope",):
            refusal = Rejection(signal.id, "unknown-table", "there is no such table", "look again")
            self._say(notifications.rejected(refusal, pipeline=self.config.name, ts_ms=1))
        elif isinstance(signal, ExecuteSnapshot):
            run = Subject(signal.id, self.config.name, signal.data_collections)
            other = Subject("other", self.config.name, ("public.x",))
            full = Progress(chunks=3, total_chunks=3, rows=30, seconds=1)
            (table,) = signal.data_collections
            publish(self.config, self.config.topics.notifications, [(b"x", b"no notification")])
            self._say(notifications.aborted(other, stopped=other.tables, ts_ms=1))
            self._say(notifications.started(run, ts_ms=1))
            for chunks in (1, 2, 3):
                progress = Progress(chunks=chunks, total_chunks=3, rows=10 * chunks, seconds=1)
                self._say(notifications.in_progress(run, table=table, progress=progress, ts_ms=2))
            if signal.id == "left":
                return
            status = ScanStatus.SUCCEEDED
            self._say(
                notifications.table_scan_completed(
                    run, table=table, status=status, progress=full, ts_ms=3
                )
            )
            self._say(notifications.completed(run, progress=full, ts_ms=4))
        elif isinstance(signal, StopSnapshot):
            run = Subject("left", self.config.name, ("public.orders",))
            self._say(notifications.aborted(run, stopped=run.tables, ts_ms=5))

    def _say(self, notification: notifications.Notification) -> None:
        record = (notification.key(), notification.value())
        publish(self.config, self.config.topics.notifications, [record])


@pytest.fixture
def file(stack: Servers, tmp_path: Path) -> Path:
    path = tmp_path / "lakemark.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": f"shop-{uuid.uuid4().hex[:8]}",
                "kafka": {"bootstrap_servers": stack.kafka.bootstrap, "timeout": "20s"},
                "source": {"connect": {"url": "http://c", "connector": "s"}},
                "lake": {"path": "./lake"},
                "checkpoint": "./checkpoint",
            }
        )
    )
    return path


def lakemark(file: Path, *arguments: str) -> Result:
    return invoke("snapshot", *arguments, "-c", str(file))


def test_a_snapshot_by_the_command_line(file: Path):
    never = lakemark(file, "start", "public.orders")
    assert (never.exit_code, never.stdout) == (1, "")
    assert "not-started" in never.stderr

    config = load(file)
    with Cluster(config) as cluster:
        cluster.ensure_topics()
    alone = lakemark(file, "start", "public.orders", "--answer-within", "1s")
    assert alone.exit_code == 1
    assert "no-answer" in alone.stderr

    with Pipeline(config).running() as pipeline:
        done = lakemark(
            file, "start", "public.orders", "--id", "r1", "--wait", "--filter", "id > 1"
        )
        assert (done.exit_code, done.stdout) == (0, "r1: completed\n"), done.stderr
        assert "public.orders: 3/3 chunks  100 %  30 rows  30 rows/s  SUCCEEDED" in done.stderr

        refused = lakemark(file, "start", "public.nope", "-o", "json")
        assert refused.exit_code == 1
        assert json.loads(refused.stdout)["additional_data"]["code"] == "unknown-table"

        begun = lakemark(file, "start", "public.orders", "--id", "left")
        assert begun.exit_code == 0
        assert "left: running" in begun.stdout
        ended = "left: aborted for public.orders\npublic.orders was not read: STOPPED\n"
        assert lakemark(file, "stop", "public.orders").stdout == ended

    kinds = [type(signal) for signal in pipeline.seen]
    assert kinds == [ExecuteSnapshot, ExecuteSnapshot, ExecuteSnapshot, StopSnapshot]
    assert pipeline.seen[0].filters_of(["public.orders"]) == {"public.orders": "id > 1"}
    shown = json.loads(lakemark(file, "status", "-o", "json").stdout)
    assert {n["id"]: n["type"] for n in shown if n["id"] in {"r1", "left"}} == {
        "r1": "COMPLETED",
        "left": "ABORTED",
    }
    assert "3/3" not in lakemark(file, "status", "left").stdout
