"""The edge to Kafka: questions to the brokers, our own topics, offsets; for records see `records`.

Every call has a deadline (``kafka.timeout``). A broker that does not answer is a `DependencyError`;
what only a change of settings or rights can mend is an `InvalidConfig`.
"""

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import dataclass
from enum import Enum
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
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from lakemark.kafka.client_errors import LastError, await_first_answer, away, refused_settings
from lakemark.kafka.client_settings import java_options, librdkafka_options
from lakemark.kafka.own_topics import create_command, topic_plan, unusable
from lakemark.model.offsets import Offsets
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig, Mistake
from lakemark.settings.masking import foreign
from lakemark.settings.patterns import compile_java

__all__ = ["Cluster", "end_offsets", "java_options", "librdkafka_options", "topic_plan"]

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
# What brokers say, under the code for too few brokers, while those that start are not there yet.
_FENCED: Final = "currently fenced"
_OF_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
"""The errors of a topic that come from a broker that answers."""
_LONGER_S: Final = 1.0
"""A request ends by itself before we stop to wait: one that is answered while its client ends may
end the whole process."""
LOOK_S: Final = 0.1
"""The time between two polls of a client that waits for its first answer."""
_log = structlog.get_logger("lakemark.kafka")


@dataclass(frozen=True, slots=True)
class Brokers:
    """A cluster as it describes itself.

    Attributes:
        cluster_id: Kafka's id of it.
        count: how many brokers are up.
        operations: what we may do with the cluster, as ``create``; None where it does not say.
        version: of their protocol; empty from Kafka 4 on and where we may not ask.
        transaction_ms: the longest that a transaction may take; None where we may not ask.
    """

    cluster_id: str
    count: int
    operations: frozenset[str] | None
    version: str
    transaction_ms: int | None = None


class Cluster:
    """Questions to the brokers, over one connection; to be asked within its ``with`` block.

    The client ends with the block, in the thread that leaves it, whoever else still holds this
    object (an error's traceback does). One that were left to the garbage collector could be
    collected in the client's own thread, where the collector runs too: librdkafka then ends the
    whole process. For the same reason the client must not refer to this object.

    Args:
        config: says where the brokers are.
        over: ends the waiting for brokers that have not answered yet.

    Raises (every method):
        DependencyError: the brokers do not answer in time.
        LoginRefused: they refuse our credentials at the first contact.
    """

    def __init__(self, config: Config, *, over: threading.Event | None = None) -> None:
        self._config = config
        self._over = over
        self._timeout = config.kafka.timeout.total_seconds()
        self._last = LastError()
        self._met = False

    def __enter__(self) -> Self:
        """Connects with the first call.

        Raises:
            InvalidConfig: the client refuses its settings.
        """
        settings: dict[str, Any] = librdkafka_options(self._config) | {"error_cb": self._last}
        with refused_settings():
            self._admin = AdminClient(settings)
        return self

    def __exit__(self, *_: object) -> None:
        """End the connection."""
        del self._admin

    def _meet(self) -> None:
        """Waits for the first answer; every question after it has a time limit of its own."""
        # Of a topic there is always an answer. Of the cluster there is none as long as a broker
        # that has just started, or that hung, knows of no broker: librdkafka 2.16 then ends the
        # process.
        topics = TopicCollection([self._config.topics.control])
        # A second more than we wait, so that it is not this request which says that time is over.
        [asked] = self._admin.describe_topics(topics, request_timeout=self._timeout + 1).values()

        def answered() -> bool:
            self._admin.poll(0)
            try:
                asked.result(LOOK_S)
            except NotYetError:
                return False
            except KafkaException as error:
                if error.args[0].code() not in _OF_TOPIC:
                    raise
            return True

        await_first_answer(self._config, self._last, answered, self._over)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            if not self._met:
                self._meet()
                self._met = True
            yield
        except KafkaException as error:
            self._admin.poll(0)
            raise self._last.explain(self._config, error.args[0], met=self._met) from error
        except TimeoutError as error:
            self._admin.poll(0)
            timeout = KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001
            raise self._last.explain(self._config, timeout, met=self._met) from error

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
        self._check(existing)
        return missing

    def _create(self, plan: Mapping[str, tuple[int, dict[str, str]]]) -> None:
        new = [
            NewTopic(name, num_partitions=count, replication_factor=-1, config=settings)
            for name, (count, settings) in plan.items()
        ]
        refused: list[Mistake] = []
        with self._asking():
            futures = self._admin.create_topics(new, request_timeout=self._timeout)
            for name, future in futures.items():
                try:
                    future.result(self._timeout + _LONGER_S)
                except KafkaException as error:
                    cause = error.args[0]
                    if cause.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                        continue
                    if cause.code() not in _REFUSED:
                        raise
                    if _FENCED in cause.str():
                        raise away(self._config, foreign(cause.str())) from error
                    message = f"the topic {name} cannot be created: {foreign(cause.str())}"
                    hint = f"let somebody who may run: {create_command(self._config, name)}"
                    refused.append(Mistake("kafka", message, hint))
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

    def _check(self, existing: Mapping[str, int]) -> None:
        settings = self.settings_of(existing)
        for name in sorted(existing.keys() - settings.keys()):
            _log.warning("kafka.topic_unchecked", topic=name)
        problems = [problem for _, problem in unusable(self._config, existing, settings)]
        if problems:
            raise InvalidConfig(problems, source="Kafka")

    def settings_of(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Settings by topic; left out are topics that do not exist or may not be asked about."""
        return self._settings([ConfigResource(ResourceType.TOPIC, name) for name in topics])

    def _settings(self, asked: list[ConfigResource]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        if not asked:
            return found
        with self._asking():
            answers = self._admin.describe_configs(asked, request_timeout=self._timeout)
            for resource, future in answers.items():
                try:
                    entries = future.result(self._timeout + _LONGER_S)
                except KafkaException as error:
                    if error.args[0].code() not in _REFUSED | {KafkaError.UNKNOWN_TOPIC_OR_PART}:
                        raise
                else:
                    found[resource.name] = {
                        name: str(entry.value) for name, entry in entries.items()
                    }
        return found

    def _describe(
        self, topics: Iterable[str], *, operations: bool = False
    ) -> dict[str, TopicDescription | None]:
        """By topic; with `operations`, None stands for a topic that is kept from us."""
        names = list(topics)
        found: dict[str, TopicDescription | None] = {}
        if not names:
            return {}
        with self._asking():
            asked = self._admin.describe_topics(
                TopicCollection(names),
                include_authorized_operations=operations,
                request_timeout=self._timeout,
            )
            for name, future in asked.items():
                try:
                    found[name] = future.result(self._timeout + _LONGER_S)
                except KafkaException as error:
                    code = error.args[0].code()
                    if operations and code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                        found[name] = None
                    elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
        return found

    def permitted(self, topics: Iterable[str]) -> dict[str, frozenset[str] | None]:
        """Return what we may do with each topic, as ``read``, ``describe_configs``; try nothing.

        Returns:
            a topic that does not exist is left out; one that may not even be described (whether
            it exists or not) has the empty set; None where the broker does not say.
        """
        found = self._describe(topics, operations=True)
        return {
            name: frozenset() if topic is None else _names(topic.authorized_operations)
            for name, topic in found.items()
        }

    def permitted_with_groups(self, groups: Iterable[str]) -> dict[str, frozenset[str] | None]:
        """Return what we may do with each consumer group; None where the broker does not say."""
        names = list(dict.fromkeys(groups))
        found: dict[str, frozenset[str] | None] = {}
        if not names:
            return found
        with self._asking():
            asked = self._admin.describe_consumer_groups(
                names, include_authorized_operations=True, request_timeout=self._timeout
            )
            for name, future in asked.items():
                try:
                    group = future.result(self._timeout + _LONGER_S)
                    found[name] = _names(group.authorized_operations)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                        raise
                    found[name] = frozenset()
        return found

    def brokers(self) -> Brokers:
        """The cluster as it describes itself."""
        with self._asking():
            if not self._admin.list_topics(timeout=self._timeout).brokers:  # see `_meet`
                raise away(self._config, "it knows of no broker yet")
            found = self._admin.describe_cluster(
                include_authorized_operations=True, request_timeout=self._timeout
            ).result(self._timeout + _LONGER_S)
        settings: dict[str, str] = {}
        for node in found.nodes[:1]:
            settings = self._settings([ConfigResource(ResourceType.BROKER, str(node.id))]).get(
                str(node.id), {}
            )
        return Brokers(
            found.cluster_id,
            len(found.nodes),
            _names(found.authorized_operations),
            settings.get("inter.broker.protocol.version", ""),
            int(longest) if (longest := settings.get("transaction.max.timeout.ms")) else None,
        )

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Number of partitions of each topic; a topic that does not exist is left out."""
        return {name: len(topic.partitions) for name, topic in self._known(topics)}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Kafka's id of each existing topic: another id means the topic was recreated."""
        return {name: str(topic.topic_id) for name, topic in self._known(topics)}

    def _known(self, topics: Iterable[str]) -> Iterator[tuple[str, TopicDescription]]:
        for name, topic in self._describe(topics).items():
            if topic is not None:
                yield name, topic

    def topics(self, *patterns: str) -> list[str]:
        """Existing topics that any of the Java regular expressions matches in full, sorted."""
        regexes = [compile_java(pattern) for pattern in patterns]
        with self._asking():
            found = self._admin.list_topics(timeout=self._timeout).topics
        return sorted(name for name in found if any(one.matches(name) for one in regexes))

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

    def offsets_since(self, topics: Iterable[str], ts_ms: int) -> dict[tuple[str, int], int]:
        """The first offset that is not older than this, -1 where all are; by topic, partition."""
        spec = OffsetSpec.for_timestamp(ts_ms)
        return self._offsets(topics, spec, committed=False)

    def newest_ms(self, topics: Iterable[str]) -> int | None:
        """The newest time that any record bears; None if there are no records."""
        spec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        times = [found.timestamp for found in self._listed(topics, spec, committed=False).values()]
        return max((time for time in times if time > 0), default=None)

    def _offsets(
        self, topics: Iterable[str], spec: OffsetSpec, *, committed: bool
    ) -> dict[tuple[str, int], int]:
        found = self._listed(topics, spec, committed=committed)
        return {where: info.offset for where, info in found.items()}

    def _listed(
        self, topics: Iterable[str], spec: OffsetSpec, *, committed: bool
    ) -> dict[tuple[str, int], ListOffsetsResultInfo]:
        counts = self.partition_counts(topics)
        asked = {
            TopicPartition(name, partition): spec
            for name, count in counts.items()
            for partition in range(count)
        }
        if not asked:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask() -> dict[tuple[str, int], ListOffsetsResultInfo]:
            answers = self._admin.list_offsets(
                asked, isolation_level=level, request_timeout=self._timeout
            )
            return {
                (where.topic, where.partition): future.result(self._timeout + _LONGER_S)
                for where, future in answers.items()
            }

        with self._asking():
            return Retrying(
                retry=retry_if_exception(_no_leader_yet),
                stop=stop_after_delay(self._timeout),
                wait=wait_fixed(0.1),
                reraise=True,
            )(ask)


def end_offsets(config: Config, topics: Iterable[str]) -> Offsets:
    """`Cluster.end_offsets` over a connection of its own, by topic."""
    found: Offsets = {}
    with Cluster(config) as cluster:
        for (topic, partition), offset in cluster.end_offsets(topics).items():
            found.setdefault(topic, {})[partition] = offset
    return found


def _names(operations: Iterable[Enum] | None) -> frozenset[str] | None:
    return None if operations is None else frozenset(o.name.lower() for o in operations)


def _no_leader_yet(error: BaseException) -> bool:
    """Say whether there is no leader yet: for a topic just made, or a broker that is just back."""
    return isinstance(error, KafkaException) and error.args[0].code() in (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    )
