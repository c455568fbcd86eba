"""Output topics: records of one table in one Kafka transaction with the mark of how far it came.

Exactly once for consumers that read committed records: what a table gets of one source is written
together with the source's offset, committed under the consumer group ``<pipeline>.output.<table>``.
Whoever comes again, a repeated batch or a retried task, finds the mark and leaves out what stands
below it. A task that Spark has given up but that still runs is fenced by its successor: both have
the same transactional id, one for each table and source.

A *source* is what records are counted by: a partition of a change topic (`Message.at` is the Kafka
offset), or the rows of a batch, by their place in it. A process keeps its producers for the next
batch, the most recently used ones; one that was not fenced meanwhile knows its mark.
"""

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Never

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lakemark.errors import DependencyError, LakemarkError, TableError
from lakemark.kafka.output_names import TRANSACTION_MS, topic_settings
from lakemark.settings.masking import foreign
from lakemark.sink.output.flushing import flushed
from lakemark.sink.output.output_records import Message

UNAVAILABLE: Final = "output-unavailable"
BATCH: Final = 1 << 33  # marks of the rows of one batch
LANES: Final = 512  # producers that a process keeps
TIMEOUT_S: Final = 30.0
MARK_S: Final = 10.0  # it takes milliseconds
# More than the client's own 1 MB: the topic's limit is the one that counts.
MAX_BYTES: Final = 100_000_000
_START: Final = "start the brokers, or correct the connection"
_TRIES: Final = 2
_AGAIN_S: Final = 0.1
_ASK_S: Final = 2.0
_FORBIDDEN: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_MISSING: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}  # noqa: SLF001
)
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError._STATE,  # noqa: SLF001 - fenced while it wrote
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)
# A coordinator that moves to another broker, or begins; not all calls wait for it themselves.
_PASSING: Final = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
# What becomes of all the others when one record of a transaction is not taken.
_SEQUELS: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """The output topic of a table, and its marks' group.

    Attributes:
        topic: the output topic.
        group: consumer group of its marks.
        like: the change topic whose number of partitions it is made with; empty = the brokers'.
        max_bytes: of a record, where the topic is made.
        client: librdkafka settings.
    """

    topic: str
    group: str
    like: str = ""
    max_bytes: int = 5 << 20
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class MarkSource:
    """The source that records are counted by.

    Attributes:
        topic, partition: under which the mark is kept; they must exist.
        note: kept with the mark. A mark with another note is not ours: the topic was made anew,
            or the query was; an empty one says nothing.
        kind: part of the transactional id where it is no change topic.
        content: digest of what belongs to the `BATCH` marks from `first` on: where it is another
            one than was written, they are written again.
        first: see `content`.
    """

    topic: str
    partition: int
    note: str = ""
    kind: str = ""
    content: str = ""
    first: int = 0


class TopicMark(NamedTuple):
    """The mark of a source: all below `at` is written; `note` and `content` are the source's."""

    at: int
    note: str = ""
    content: str = ""


class StuckError(Exception):
    """A producer's call does not come back; the producer must not be used again."""


def unwritten(
    mark: TopicMark | None, source: MarkSource, messages: Sequence[Message]
) -> list[Message]:
    """The messages that are not written yet, in their order.

    Args:
        mark: kept for the source; None if there is none.
        source: what they are counted by.
        messages: see `write`.
    """
    if mark is None or _is_of_others(mark.note, source.note):
        return list(messages)
    at = mark.at
    if source.content != mark.content and source.first <= at < source.first + BATCH:
        at = source.first  # the same batch, and something else in it
    return [message for message in messages if message.at >= at]


def _is_of_others(kept: str, now: str) -> bool:
    """Say whether a mark is of another topic, or from before the topic began anew.

    A topic's first mark may be without its id.
    """
    return (kept != now) if kept and now else "/" in now


def write(target: OutputTarget, source: MarkSource, upto: int, messages: Sequence[Message]) -> int:
    """Writes the messages that are not written yet, and the mark; exactly once, in their order.

    Args:
        target: where to.
        source: what they are counted by.
        upto: the mark: everything below is written then.
        messages: in order, with `at` from the last mark to below `upto`, as far as there are any.

    Returns:
        how many were written now.

    Raises:
        TableError: `output-forbidden`, `output-topic-missing`, `output-record-too-large`,
            `output-refused`: the table's topic does not take them.
        DependencyError: `output-unavailable`: the brokers do not answer.
    """
    if not messages:
        return 0
    key = lane_of(target, source)
    fenced, stuck, deadline = 0, False, time.monotonic() + TIMEOUT_S
    while True:
        lane = _lanes.pop(key, None)
        if lane is not None and (lane.client != target.client or lane.is_cut_off()):
            lane = None  # a password was changed: this producer would ask with the old one for ever
        try:
            lane = lane or _Lane(key, target, source)
            count = lane.write(target, source, upto, messages)
        except StuckError:
            _lanes.clear()  # the others have lived through the same
            if stuck:
                raise DependencyError(
                    f"records for {target.topic} were not taken: the coordinator of group "
                    f"{target.group} did not answer in {MARK_S:g} s",
                    code=UNAVAILABLE,
                    hint=_START,
                ) from None
            stuck = True
            continue
        except KafkaException as error:
            code = error.args[0].code()
            if code in _FENCED and fenced + 1 < _TRIES:
                fenced += 1
                continue  # another worker wrote meanwhile: its mark counts
            if code in _PASSING and time.monotonic() < deadline:
                time.sleep(_AGAIN_S)
                continue
            _existing.discard(target.topic)  # somebody may have deleted it: nothing says so
            _raise(error.args[0], target)
        _lanes[key] = lane
        while len(_lanes) > LANES:
            _lanes.popitem(last=False)
        return count


def lane_of(target: OutputTarget, source: MarkSource) -> str:
    """The transactional id of a source's producer."""
    return f"{target.group}/{source.kind or source.topic}/{source.partition}"


class _Lane:
    """A transactional producer and the mark that it wrote last."""

    def __init__(self, key: str, target: OutputTarget, source: MarkSource) -> None:
        _ensure(target)
        self.client = target.client
        self._lost = lost = threading.Event()  # no cycle: the producer goes when the lane goes
        self.producer = Producer(
            {
                **target.client,
                "error_cb": lambda _: lost.set(),
                "transactional.id": key,
                "transaction.timeout.ms": TRANSACTION_MS,
                "compression.type": "lz4",
                "linger.ms": 5,
                "partitioner": "murmur2_random",  # Java's: keys stand where the connector puts them
                "message.max.bytes": MAX_BYTES,
                "topic.metadata.propagation.max.ms": 5000,
            }
        )
        self.producer.init_transactions(TIMEOUT_S)  # fences whoever had the id before
        consumer = Consumer(
            {
                **target.client,
                "group.id": target.group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        try:
            self.group = consumer.consumer_group_metadata()
            found = _committed(consumer, TopicPartition(source.topic, source.partition))
        finally:
            consumer.close()
        note, _, content = (found.metadata or "").partition(" ")
        self.mark = TopicMark(int(found.offset), note, content) if found.offset >= 0 else None
        self._reached()

    def is_cut_off(self) -> bool:
        """Say whether a connection was lost since: it would be stuck (`_send`)."""
        self.producer.poll(0)
        return self._lost.is_set()

    def _reached(self) -> None:
        """Note that the coordinators answer: what was lost before does not matter."""
        self.producer.poll(0)
        self._lost.clear()

    def write(
        self, target: OutputTarget, source: MarkSource, upto: int, messages: Sequence[Message]
    ) -> int:
        messages = unwritten(self.mark, source, messages)
        if not messages:
            return 0
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failed.append(error)

        self.producer.begin_transaction()
        try:
            for message in messages:
                self._produce(target.topic, message, delivered)
            self._flush()
            mark_at = TopicPartition(
                source.topic, source.partition, upto, metadata=f"{source.note} {source.content}"
            )
            self._send(mark_at)
            self.producer.commit_transaction(TIMEOUT_S)
        except KafkaException as error:
            with suppress(KafkaException):
                self.producer.abort_transaction(TIMEOUT_S)
            self.producer.poll(0)
            # What was not delivered says why, in any order; the error may only be a sequel.
            reasons = [one for one in failed if one.code() not in _SEQUELS]
            raise KafkaException(reasons[0] if reasons else error.args[0]) from error
        self.mark = TopicMark(upto, source.note, source.content)
        self._reached()
        return len(messages)

    def _produce(self, topic: str, message: Message, delivered: Any) -> None:
        while True:
            try:
                self.producer.produce(
                    topic,
                    key=message.key,
                    value=message.value,
                    headers=message.headers,
                    on_delivery=delivered,
                )
            except BufferError:  # the client's queue is full: let it drain
                self.producer.poll(0.1)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._STATE:  # noqa: SLF001
                    self.producer.commit_transaction(1.0)  # it has failed already: this says why
                raise
            else:
                return

    def _send(self, mark: TopicPartition) -> None:
        """Makes the mark a part of the transaction.

        librdkafka knows no time limit here: after its group coordinator was away it waits until
        any of its connections changes, up to ten minutes (issues 5456 and 5511 of librdkafka). So
        the call is left alone with its producer; the next one of the same id fences them.

        Raises:
            StuckError: it did not come back in time.
            KafkaException: it was refused.
        """
        said: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

        def call() -> None:
            try:
                self.producer.send_offsets_to_transaction([mark], self.group, MARK_S)
            except Exception as error:  # noqa: BLE001 - whoever waits raises it
                said.put(error)
            else:
                said.put(None)

        threading.Thread(target=call, name="lakemark-mark", daemon=True).start()
        try:
            error = said.get(timeout=MARK_S + 1)
        except queue.Empty:
            raise StuckError from None
        if error is not None:
            raise error

    def _flush(self) -> None:
        """Waits until the records are with the brokers.

        Offsets that are sent while records are under way wait for 0.1 s more, and for brokers that
        are away or refuse us as long as a transaction may last, whatever their time limit.
        """
        if flushed(self.producer, TIMEOUT_S, longest_s=TRANSACTION_MS / 2000):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001


def _committed(consumer: Consumer, place: TopicPartition) -> TopicPartition:
    """Return what the group has committed; a group that we may not read is an error."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            (found,) = consumer.committed([place], timeout=_ASK_S)
            break
        except KafkaException as error:
            if error.args[0].code() != KafkaError._TIMED_OUT:  # noqa: SLF001
                raise
            said = consumer.poll(0)
            refusal = said.error() if said is not None else None
            if refusal is not None and refusal.code() in _FORBIDDEN:
                raise KafkaException(refusal) from error
            if time.monotonic() >= deadline:
                raise
    if found.error is not None:
        raise KafkaException(found.error)
    return found


_lanes: OrderedDict[str, _Lane] = OrderedDict()
_existing: set[str] = set()


def _ensure(target: OutputTarget) -> None:
    """Makes the topic where it is missing: compacted, with the partitions of the change topic."""
    if target.topic in _existing:
        return
    admin = AdminClient(dict(target.client))
    try:
        partitions = -1
        if target.like:
            found = admin.list_topics(target.like, timeout=TIMEOUT_S).topics.get(target.like)
            if found is not None and found.error is None:
                partitions = len(found.partitions)
        new = NewTopic(target.topic, partitions, -1, config=topic_settings(target.max_bytes))
        admin.create_topics([new], request_timeout=TIMEOUT_S)[target.topic].result()
    except KafkaException as error:
        code = error.args[0].code()
        if code != KafkaError.TOPIC_ALREADY_EXISTS and code not in _FORBIDDEN:
            raise
        # One who may not make topics may still write to one that a person has made.
    finally:
        del admin  # here and not by the garbage collector: see `brokers.Cluster`
    _existing.add(target.topic)


def create_command(target: OutputTarget) -> str:
    """The command that makes the topic."""
    options = " ".join(f"--config {k}={v}" for k, v in topic_settings(target.max_bytes).items())
    brokers = target.client.get("bootstrap.servers", "BROKERS")
    return (
        f"kafka-topics.sh --bootstrap-server {brokers} --create --topic {target.topic} {options}"
        f" --partitions as many as {target.like or 'the change topic'} has"
    )


def _raise(error: KafkaError, target: OutputTarget) -> Never:
    raise _told(error, target)


def _told(error: KafkaError, target: OutputTarget) -> LakemarkError:
    code, text = error.code(), foreign(error.str())
    what = f"records for {target.topic} were not taken: {text}"
    brokers = target.client.get("bootstrap.servers", "BROKERS")
    if code in _FORBIDDEN:
        return TableError(
            what,
            code="output-forbidden",
            hint=f"kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal User:NAME "
            f"--operation Write --operation Describe --topic {target.topic}; the same for "
            f"--operation Read --group {target.group} and for --operation Write "
            f"--operation Describe --transactional-id {target.group} "
            "--resource-pattern-type prefixed",
            retried=True,
        )
    if code in _MISSING:
        return TableError(
            what, code="output-topic-missing", hint=create_command(target), retried=True
        )
    if code in _TOO_LARGE:
        return TableError(
            what,
            code="output-record-too-large",
            hint=f"kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics "
            f"--entity-name {target.topic} --add-config max.message.bytes={MAX_BYTES}",
            retried=True,
        )
    if not error.retriable() and not error.fatal() and code > 0 and code not in _PASSING:
        return TableError(
            what,
            code="output-refused",
            hint=f"look at the settings of {target.topic} on the brokers",
            retried=True,
        )
    return DependencyError(what, code=UNAVAILABLE, hint=_START)
