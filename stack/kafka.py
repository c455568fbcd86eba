"""Kafka: one node, broker and controller in one process, no ZooKeeper."""

import os
import shutil
import subprocess
import uuid
from abc import abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lakemark.settings.cache import cache_dir
from lakemark.spark.jars import Progress, fetch
from stack.java import java_command
from stack.processes import Controlled, Server, StackError, free_port, wait_for
from stack.topic_reader import TopicReader, ends_by

JARS = Path(__file__).with_name("jars.json")
PROBE_S: Final = 10.0  # a client that gets no answer may be the one that is stuck
MAX_MESSAGE_BYTES = 10 * 1024 * 1024

_ADDRESSES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
"""

SETTINGS: Final[Mapping[str, str]] = {
    "num.partitions": "1",
    "auto.create.topics.enable": "true",
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
    "replica.fetch.max.bytes": str(MAX_MESSAGE_BYTES),
    # One node: every internal topic has one replica, and few partitions make start and stop fast.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A killed broker may register again only after its old session has ended.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "1000",
    # A log that rests needs no record every half second to say so: nobody follows this controller.
    "metadata.max.idle.interval.ms": "0",
    # The default, 128 MB, is allocated at once from a heap of 512 MB.
    "log.cleaner.dedupe.buffer.size": "16777216",
    "num.network.threads": "2",
    "num.io.threads": "4",
}
"""Settings of a broker for tests, wherever it runs; its addresses are its own."""


def kafka_jars(progress: Progress | None = None) -> list[Path]:
    """Return the class path of Kafka and Connect, fetching what is missing."""
    return fetch(JARS, progress=progress)


class Broker(Controlled):
    """A Kafka broker as its clients see it: administration, topics and records."""

    name = "Kafka"

    _asks: Consumer | None = None

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`."""

    @property
    def for_connect(self) -> str:
        """The same, as Connect reaches it."""
        return self.bootstrap

    def answers(self) -> bool:
        """Tell whether the broker says who is there, within two seconds."""
        try:
            return bool(self.admin().list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    def admin(self) -> AdminClient:
        """Return an administration client."""
        return AdminClient(self._client_settings())

    def producer(self, **settings: Any) -> Producer:
        """Return a producer; settings are librdkafka's with `_` for `.`."""
        return Producer(self._client_settings(**settings))

    def create_topic(
        self, name: str, *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> None:
        """Create a topic and return when the broker has it."""
        self.create_topics([name], partitions=partitions, config=config)

    def create_topics(
        self, names: Collection[str], *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> None:
        """Create topics of the same kind and return when the broker has them."""
        new = [
            NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
            for name in names
        ]
        admin = self.admin()  # kept: its futures die with it
        for future in admin.create_topics(new).values():
            future.result(timeout=30)
        wait_for(lambda: set(names) <= set(self.topics()), 15, f"topics {', '.join(names)}")

    def topics(self) -> dict[str, int]:
        """Return all topics with their partition counts, internal ones included."""
        listed = self._client().list_topics(timeout=10).topics
        return {name: len(topic.partitions) for name, topic in listed.items()}

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the end offset of each partition of a topic.

        A topic made a moment ago has no leader for a while: that is waited for.
        """
        return ends_by(self._client(), topic, range(self.topics()[topic]))

    def reader(self, topic: str) -> TopicReader:
        """Return what reads a topic as it grows."""
        return TopicReader(self._client_settings(), topic)

    def _client(self) -> Consumer:
        """The client that asks what is there: one for all questions, which cost less than it."""
        if self._asks is None:
            self._asks = Consumer(self._client_settings(group_id=f"asks-{uuid.uuid4()}"))
        return self._asks

    def read(
        self, topic: str, *, count: int, deadline_s: float = 120, partition: int | None = None
    ) -> list[Message]:
        """Read a topic from its beginning until `count` records have come.

        Raises:
            StackError: if fewer came in time; the message says how many.
        """
        wait_for(lambda: topic in self.topics(), deadline_s, f"topic {topic}")
        partitions = range(self.topics()[topic]) if partition is None else [partition]
        consumer = Consumer(
            self._client_settings(
                group_id=f"read-{uuid.uuid4()}",
                enable_auto_commit=False,
                isolation_level="read_committed",
            )
        )
        records: list[Message] = []

        def enough() -> bool:
            found = consumer.consume(count - len(records), timeout=0.2)
            records.extend(record for record in found if record.error() is None)
            return len(records) >= count

        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            wait_for(enough, deadline_s, f"{count} records of {topic}")
        except StackError as error:
            raise StackError(f"{error} ({len(records)} came)") from error
        finally:
            consumer.close()
        return records

    def _client_settings(self, **settings: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "log_level": 0,  # a broker that is down on purpose is no news
            "error_cb": lambda _error: None,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 250,
            "allow.auto.create.topics": False,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }


class Kafka(Server, Broker):
    """A Kafka broker on a free loopback port.

    `stop` and `kill` keep port and data: `start` brings the same broker back.

    Args:
        directory: where settings and data live.
        log: the log file.
        detached: whether it may outlive this process.
        heap: the largest heap.
        quick: start fast rather than run fast for hours; benchmarks say False.
        ports: port and controller port, free ones unless given.
        settings: of the broker, on top of ours; from the next start on.
    """

    def __init__(
        self,
        *,
        directory: Path,
        log: Path,
        detached: bool = False,
        heap: str = "512m",
        quick: bool = True,
        ports: tuple[int, int] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory=directory, log=log, detached=detached)
        self.port, self.controller_port = ports or (free_port(), free_port())
        self._heap = heap
        self._quick = quick
        self._probe: AdminClient | None = None
        self._probed_until = 0.0
        self.settings = dict(settings or {})

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        data = self.directory / "data"
        self._settings.write_text(
            _ADDRESSES.format(port=self.port, controller_port=self.controller_port, data=data)
            + "".join(f"{name}={value}\n" for name, value in {**SETTINGS, **self.settings}.items()),
            encoding="utf-8",
        )
        if not (data / "meta.properties").exists():
            _format(data, self._settings)

    @property
    def _settings(self) -> Path:
        return self.directory / "server.properties"

    def _command(self) -> list[str]:
        return java_command(
            "kafka.Kafka",
            str(self._settings),
            classpath=kafka_jars(),
            heap=self._heap,
            quick=self._quick,
        )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LOG_DIR": str(self.directory)}

    def _is_ready(self) -> bool:
        if self._probe is None or monotonic() > self._probed_until:
            self._probe, self._probed_until = self.admin(), monotonic() + PROBE_S
        try:
            return bool(self._probe.list_topics(timeout=0.5).brokers)
        except KafkaException:
            return False

    def await_ready(self) -> None:
        """Return when the broker is registered and answers for its topics."""
        try:
            super().await_ready()
        finally:
            self._probe = None

    def kill(self) -> None:
        """End the broker at once, and the client that asked it."""
        super().kill()
        if self._asks is not None:
            self._asks.close()
            self._asks = None


def _format(data: Path, settings: Path) -> None:
    """Format the data directory with a cluster id of its own.

    Kafka's formatter needs a JVM, two seconds on a small machine. What it writes differs only in
    two ids, so it runs once per machine and is copied from the cache afterwards.
    """
    jars = kafka_jars()
    kept = cache_dir() / "kafka" / "4.3.1"
    if not (kept / "bootstrap.checkpoint").exists():
        _make_template(kept, jars, settings)
    data.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(kept / "bootstrap.checkpoint", data / "bootstrap.checkpoint")
    (data / "meta.properties").write_text(
        f"version=1\ncluster.id={_kafka_id()}\nnode.id=1\ndirectory.id={_kafka_id()}\n",
        encoding="utf-8",
    )


def _make_template(kept: Path, jars: list[Path], settings: Path) -> None:
    scratch = kept.with_name(f".{kept.name}-{os.getpid()}")
    scratch.mkdir(parents=True)
    try:
        own = scratch / "server.properties"
        lines = settings.read_text(encoding="utf-8").splitlines()
        own.write_text(
            "\n".join(
                f"log.dirs={scratch}/data" if line.startswith("log.dirs=") else line
                for line in lines
            ),
            encoding="utf-8",
        )
        command = java_command(
            *("kafka.tools.StorageTool", "format", "-t", _kafka_id(), "-c", str(own)),
            classpath=jars,
            heap="256m",
        )
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        made = scratch / "data" / "bootstrap.checkpoint"
        if result.returncode or not made.exists():
            raise StackError(f"Kafka's storage was not formatted:\n{result.stdout}{result.stderr}")
        kept.mkdir(parents=True, exist_ok=True)
        made.replace(kept / "bootstrap.checkpoint")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _kafka_id() -> str:
    """Return a random id as Kafka writes them: 16 bytes in URL-safe base64 without padding."""
    while True:
        text = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # would look like an option on a command line
            return text
