"""The edge to Kafka: settings of both clients, our own topics, offsets; for records see `records`.

Every call has a deadline (``kafka.timeout``). A broker that does not answer is a `DependencyError`;
what only a change of settings or rights can mend is an `InvalidConfig`.
"""

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

import structlog
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from lakemark.client_settings import java_options, librdkafka_options
from lakemark.config import Config
from lakemark.errors import DependencyError
from lakemark.settings.layers import InvalidConfig, Problem
from lakemark.settings.names import compile_java

__all__ = [
    "Cluster",
    "away",
    "java_options",
    "librdkafka_options",
    "refused_settings",
    "topic_plan",
]

_DAY_MS: Final = 86_400_000
_REFUSED: Final = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
    }
)
# Wrong credentials or certificates: waiting does not mend them.
_NOT_TRUSTED: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})  # noqa: SLF001
_log = structlog.get_logger("lakemark.kafka")


def topic_plan(config: Config) -> dict[str, tuple[int, dict[str, str]]]:
    """Our own topics: number of partitions and settings of each.

    Topics that the query reads keep a month: one that is down longer finds a gap and says so.
    Chunks keep a week; they can be read from the database again.
    """
    month = {"retention.ms": str(30 * _DAY_MS)}
    topics, shards = config.topics, config.stream.shards
    return {
        topics.signals: (1, month),
        topics.notifications: (1, month),
        # A record holds at most 900 kB of rows, unless a single row is larger.
        topics.chunks: (
            shards,
            {
                "retention.ms": str(7 * _DAY_MS),
                "max.message.bytes": str(max(2 * 1024**2, config.dead_letters.max_record_bytes)),
            },
        ),
        topics.control: (1, month),
        topics.progress: (1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}),
        topics.dead_letters: (
            shards,
            {**month, "max.message.bytes": str(config.dead_letters.max_record_bytes)},
        ),
    }


class Cluster:
    """Questions to the brokers, over one connection.

    Raises (every method):
        DependencyError: the brokers do not answer in time.
        InvalidConfig: they refuse our credentials at the first contact.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._timeout = config.kafka.timeout.total_seconds()
        self._last_error: KafkaError | None = None
        self._met = False
        settings: dict[str, Any] = librdkafka_options(config) | {"error_cb": self._remember}
        with refused_settings():
            self._admin = AdminClient(settings)

    def __enter__(self) -> Self:
        """Connects with the first call."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The connection ends with the object."""

    def _remember(self, error: KafkaError) -> None:
        self._last_error = error

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            self._admin.poll(0)
            raise self._explained(error.args[0]) from error
        except TimeoutError as error:
            self._admin.poll(0)
            raise self._explained(KafkaError(KafkaError._TIMED_OUT)) from error  # noqa: SLF001
        self._met = True

    def _explained(self, error: KafkaError) -> DependencyError | InvalidConfig:
        last = self._last_error
        if last is not None and last.code() in _NOT_TRUSTED and not self._met:
            message = f"the brokers do not let us in: {last.str()}"
            return InvalidConfig(
                [Problem("kafka.security", message, "check kafka.security against the brokers")]
            )
        reason = f"{error.str()}" + (f" ({last.str()})" if last is not None else "")
        return away(self._config, reason)

    def ensure_topics(self) -> list[str]:
        """Creates those of our own topics that are missing, and returns their names.

        Existing topics are never changed; what would break a promise is refused.

        Raises:
            InvalidConfig: creating is not permitted (with the commands that do it), or a topic
                exists with settings that cannot work.
        """
        plan = topic_plan(self._config)
        existing = self.partition_counts(plan)
        missing = [name for name in plan if name not in existing]
        if missing:
            self._create({name: plan[name] for name in missing})
            self._await_visible(missing)
        self._check(existing, plan)
        return missing

    def _create(self, plan: Mapping[str, tuple[int, dict[str, str]]]) -> None:
        new = [
            NewTopic(name, num_partitions=count, replication_factor=-1, config=settings)
            for name, (count, settings) in plan.items()
        ]
        refused: list[Problem] = []
        with self._asking():
            futures = self._admin.create_topics(new, request_timeout=self._timeout)
            for name, future in futures.items():
                try:
                    future.result(self._timeout)
                except KafkaException as error:
                    cause = error.args[0]
                    if cause.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                        continue
                    if cause.code() not in _REFUSED:
                        raise
                    message = f"the topic {name} cannot be created: {cause.str()}"
                    refused.append(Problem("kafka", message, self._command(name, *plan[name])))
                else:
                    _log.info("kafka.topic_created", topic=name, partitions=plan[name][0])
        if refused:
            raise InvalidConfig(refused, source="Kafka")

    def _await_visible(self, names: Collection[str]) -> None:
        """A created topic is not at once in every broker's answers.

        Raises:
            DependencyError: not all of them were within ``kafka.timeout``.
        """
        deadline = time.monotonic() + self._timeout
        while len(self.partition_counts(names)) < len(names):
            if time.monotonic() > deadline:
                raise away(self._config, f"created topics do not show: {', '.join(names)}")
            time.sleep(0.05)

    def _command(self, name: str, partitions: int, settings: Mapping[str, str]) -> str:
        options = " ".join(f"--config {key}={value}" for key, value in settings.items())
        return (
            f"let somebody who may run: kafka-topics.sh --bootstrap-server "
            f"{self._config.kafka.bootstrap_servers} --create --topic {name} "
            f"--partitions {partitions} {options}"
        )

    def _check(
        self, existing: Mapping[str, int], plan: Mapping[str, tuple[int, dict[str, str]]]
    ) -> None:
        problems = []
        control = self._config.topics.control
        if existing.get(control, 1) != 1:
            problems.append(
                Problem(
                    "kafka",
                    f"{control} has {existing[control]} partitions; its order needs exactly one",
                    f"delete it while lakemark is stopped, or choose another name: in {control}",
                )
            )
        found = self._settings_of([name for name in plan if name in existing])
        for name, settings in found.items():
            wanted = plan[name][1]
            compact = "cleanup.policy" in wanted
            if compact != ("compact" in settings.get("cleanup.policy", "delete")):
                problems.append(self._to_alter(name, "cleanup.policy", wanted, default="delete"))
            if int(settings.get("max.message.bytes", "0")) < int(
                wanted.get("max.message.bytes", "0")
            ):
                problems.append(self._to_alter(name, "max.message.bytes", wanted))
        if problems:
            raise InvalidConfig(problems, source="Kafka")

    def _to_alter(
        self, name: str, setting: str, wanted: Mapping[str, str], *, default: str = ""
    ) -> Problem:
        value = wanted.get(setting, default)
        return Problem(
            "kafka",
            f"{name} exists, but its {setting} must be {value}",
            f"run: kafka-configs.sh --bootstrap-server {self._config.kafka.bootstrap_servers} "
            f"--alter --entity-type topics --entity-name {name} --add-config {setting}={value}",
        )

    def _settings_of(self, topics: list[str]) -> dict[str, dict[str, str]]:
        """Settings by topic; a topic whose settings we may not read is left out."""
        if not topics:
            return {}
        found = {}
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        with self._asking():
            answers = self._admin.describe_configs(asked, request_timeout=self._timeout)
            for resource, future in answers.items():
                try:
                    entries = future.result(self._timeout)
                except KafkaException as error:
                    if error.args[0].code() not in _REFUSED:
                        raise
                    _log.warning("kafka.topic_unchecked", topic=resource.name)
                else:
                    found[resource.name] = {
                        name: str(entry.value) for name, entry in entries.items()
                    }
        return found

    def _describe(self, topics: Iterable[str]) -> dict[str, Any]:
        names = list(topics)
        found = {}
        if not names:
            return {}
        with self._asking():
            asked = self._admin.describe_topics(
                TopicCollection(names), request_timeout=self._timeout
            )
            for name, future in asked.items():
                try:
                    found[name] = future.result(self._timeout)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
        return found

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Number of partitions of each topic; a topic that does not exist is left out."""
        return {name: len(topic.partitions) for name, topic in self._describe(topics).items()}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Kafka's id of each existing topic: another id means the topic was recreated."""
        return {name: str(topic.topic_id) for name, topic in self._describe(topics).items()}

    def topics(self, pattern: str) -> list[str]:
        """Existing topics that the Java regular expression matches in full, sorted."""
        regex = compile_java(pattern)
        with self._asking():
            found = self._admin.list_topics(timeout=self._timeout).topics
        return sorted(name for name in found if regex.fullmatch(name))

    def end_offsets(
        self, topics: Iterable[str], *, committed: bool = True
    ) -> dict[tuple[str, int], int]:
        """The offset after the last record, by topic and partition.

        Args:
            topics: names; those that do not exist are left out.
            committed: end of what a `read_committed` reader sees (the last stable offset).
        """
        spec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(topics, spec, committed=committed)

    def start_offsets(self, topics: Iterable[str]) -> dict[tuple[str, int], int]:
        """The first offset still held, by topic and partition."""
        spec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets(topics, spec, committed=False)

    def _offsets(
        self, topics: Iterable[str], spec: OffsetSpec, *, committed: bool
    ) -> dict[tuple[str, int], int]:
        counts = self.partition_counts(topics)
        asked = {
            TopicPartition(name, partition): spec
            for name, count in counts.items()
            for partition in range(count)
        }
        if not asked:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask() -> dict[tuple[str, int], int]:
            answers = self._admin.list_offsets(
                asked, isolation_level=level, request_timeout=self._timeout
            )
            return {
                (where.topic, where.partition): future.result(self._timeout).offset
                for where, future in answers.items()
            }

        with self._asking():
            return Retrying(
                retry=retry_if_exception(_no_leader_yet),
                stop=stop_after_delay(self._timeout),
                wait=wait_fixed(0.1),
                reraise=True,
            )(ask)


def _no_leader_yet(error: BaseException) -> bool:
    """A topic made a moment ago, or a broker that has just come back, has no leader for a while."""
    return isinstance(error, KafkaException) and error.args[0].code() in (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    )


@contextlib.contextmanager
def refused_settings() -> Iterator[None]:
    """Explains settings that the client itself refuses: unknown names, unreadable certificates.

    Raises:
        InvalidConfig: it refused them.
    """
    try:
        yield
    except KafkaException as error:
        problem = Problem("kafka", f"the Kafka client refuses its settings: {error.args[0].str()}")
        raise InvalidConfig([problem]) from error


def away(config: Config, reason: str) -> DependencyError:
    """The error of a broker that does not answer."""
    return DependencyError(
        f"Kafka at {config.kafka.bootstrap_servers} is away: {reason}",
        code="kafka-unavailable",
        hint="start the brokers, or correct kafka.bootstrap_servers",
    )
