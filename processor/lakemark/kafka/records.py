"""Records of our own topics: written with acknowledgement, read to the end as of now."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from lakemark.kafka.brokers import Cluster
from lakemark.kafka.client_errors import away, refused_settings
from lakemark.kafka.client_settings import by_offset, librdkafka_options
from lakemark.settings.config import Config


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read, and where; `timestamp_ms` is None where the broker does not say."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | str | None], ...]
    timestamp_ms: int | None
    partition: int = 0
    offset: int = 0


def producer(config: Config, more: Mapping[str, Any] | None = None) -> Producer:
    """A producer whose records are written once per partition and acknowledged by all replicas.

    Args:
        config: says where the brokers are.
        more: settings on top, such as ``transactional.id``.
    """
    settings = librdkafka_options(config) | {
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": "lz4",
        "message.max.bytes": config.dead_letters.max_record_bytes,
        "delivery.timeout.ms": round(config.kafka.timeout.total_seconds() * 1000),
        **(more or {}),
    }
    with refused_settings():
        return Producer(settings)


def publish(
    config: Config,
    topic: str,
    records: Iterable[tuple[bytes, bytes | None]],
    *,
    client: Producer | None = None,
) -> None:
    """Writes (key, value) records and returns when all of them are acknowledged.

    Args:
        config: says where the brokers are.
        topic: where to.
        records: what.
        client: a producer to use again: a new one takes half a second to be ready. It must not be
            used again after an error.

    Raises:
        DependencyError: at least one was not; writing them all again is then safe for topics whose
            records have an id.
    """
    client = client or producer(config)
    failed: list[str] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error.str())

    for key, value in records:
        try:
            client.produce(topic, value=value, key=key, on_delivery=delivered)
        except BufferError:  # the client's queue is full: let it drain
            client.flush(config.kafka.timeout.total_seconds())
            client.produce(topic, value=value, key=key, on_delivery=delivered)
        except KafkaException as error:  # it is larger than the client takes
            failed.append(error.args[0].str())
        client.poll(0)
    # A second more than a record may take, so that its own error is seen.
    left = client.flush(config.kafka.timeout.total_seconds() + 1)
    if failed or left:
        raise away(config, failed[0] if failed else f"{left} records were not acknowledged")


def read_compacted(config: Config, topic: str) -> dict[bytes, bytes]:
    """The newest value of every key of a compacted topic, up to its end as of now.

    Returns:
        values by key; a key whose newest value is a tombstone is left out, and so is all of a
        topic that does not exist.

    Raises:
        DependencyError: no record came within ``kafka.timeout`` although there are more.
    """
    with Cluster(config) as cluster:
        ends = {where: end for where, end in cluster.end_offsets([topic]).items() if end > 0}
        starts = cluster.start_offsets([topic])
    waiting = {where: end for where, end in ends.items() if starts.get(where, 0) < end}
    found: dict[bytes, bytes] = {}
    if not waiting:
        return found
    places = [TopicPartition(t, p, OFFSET_BEGINNING) for t, p in waiting]
    for record in _read_to_end(config, places, waiting):
        if record.key is not None:
            found.pop(record.key, None)
            if record.value is not None:
                found[record.key] = record.value
    return found


def read_all(config: Config, topic: str, *, since_ms: int | None = None) -> Iterator[Record]:
    """The records of a topic, each partition in its order, up to its end as of the first one.

    What comes meanwhile is left for the next time. Of a topic that does not exist there is none.

    Args:
        config: says where the brokers are.
        topic: which.
        since_ms: leaves out what was written before this time, as far as the broker can tell.

    Raises:
        DependencyError: no record came within ``kafka.timeout`` although there are more.
    """
    with Cluster(config) as cluster:
        ends = {where: end for where, end in cluster.end_offsets([topic]).items() if end > 0}
        starts = cluster.start_offsets([topic])
    waiting = {where: end for where, end in ends.items() if starts.get(where, 0) < end}
    if since_ms is None or not waiting:  # the client refuses to look for no partition
        places = [TopicPartition(t, p, OFFSET_BEGINNING) for t, p in waiting]
    else:
        places = _since(config, waiting, since_ms)
        waiting = {(p.topic, p.partition): waiting[p.topic, p.partition] for p in places}
    if waiting:
        yield from _read_to_end(config, places, waiting)


def _since(
    config: Config, waiting: Mapping[tuple[str, int], int], since_ms: int
) -> list[TopicPartition]:
    """Return the offset of each partition's first record of that time or later; omit the others."""
    consumer = Consumer(_reader(config))
    asked = [TopicPartition(t, p, since_ms) for t, p in waiting]
    try:
        found = consumer.offsets_for_times(asked, timeout=config.kafka.timeout.total_seconds())
    except KafkaException as error:
        raise away(config, error.args[0].str()) from error
    finally:
        consumer.close()
    for place in found:
        if place.error is not None:
            raise away(config, place.error.str())
    return [p for p in found if 0 <= p.offset < waiting[p.topic, p.partition]]


def _reader(config: Config) -> dict[str, Any]:
    return {**by_offset(config), "enable.partition.eof": True}


def passes(error: KafkaError) -> bool:
    """Say whether reading goes on by itself, or the end was reached."""
    passing = (KafkaError._PARTITION_EOF, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)  # noqa: SLF001
    return bool(error.retriable()) or error.code() in passing


def _read_to_end(
    config: Config, places: list[TopicPartition], waiting: dict[tuple[str, int], int]
) -> Iterator[Record]:
    """Reads every partition up to the offset that was its end, or to its end as it is now.

    The first alone is reached while somebody goes on writing; the second alone where records at
    the end are gone or are those of an aborted transaction.
    """
    consumer = Consumer(_reader(config))
    try:
        consumer.assign(places)
        patience = config.kafka.timeout.total_seconds()
        deadline = time.monotonic() + patience
        while waiting:
            left = deadline - time.monotonic()
            message = consumer.poll(min(left, 1.0)) if left > 0 else None
            if left <= 0:
                raise away(config, f"the end of {next(iter(waiting))[0]} was not reached in time")
            if message is None:
                continue
            error, place = message.error(), _place(message)
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
                if not passes(error):
                    raise away(config, error.str())
                continue
            if place not in waiting:
                continue  # written since
            if error is None:
                yield _record(message)
                deadline = time.monotonic() + patience  # how much there is, is known
            if error is not None or int(message.offset() or 0) + 1 >= waiting[place]:
                del waiting[place]
    finally:
        consumer.close()


def _record(message: Message) -> Record:
    key, value = message.key(), message.value()
    kind, moment = message.timestamp()
    return Record(
        key if isinstance(key, bytes) else None,
        value if isinstance(value, bytes) else None,
        tuple(cast("list[tuple[str, bytes | str | None]]", message.headers() or [])),
        None if kind == TIMESTAMP_NOT_AVAILABLE else int(moment),
        int(message.partition() or 0),
        int(message.offset() or 0),
    )


def _place(message: Message) -> tuple[str, int]:
    return str(message.topic()), int(message.partition() or 0)


class Tail:
    """The records that come to a topic from now on, each once, in the order of each partition.

    Raises (making it):
        DependencyError: the brokers do not answer.
    """

    def __init__(self, config: Config, topic: str) -> None:
        with Cluster(config) as cluster:
            ends = cluster.end_offsets([topic])
        self._config = config
        with refused_settings():
            self._consumer = Consumer(_reader(config))
        self._consumer.assign([TopicPartition(t, p, end) for (t, p), end in ends.items()])

    def __enter__(self) -> Self:
        """Is ready when it was made."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the topic."""
        self._consumer.close()

    def value(self, seconds: float) -> bytes | None:
        """The next record's value, None if there is none within so many seconds.

        A broker that is away for a while is waited for.

        Raises:
            DependencyError: an error that waiting does not mend.
        """
        message = self._consumer.poll(max(0.0, seconds))
        if message is None:
            return None
        error = message.error()
        if error is None:
            value = message.value()
            return value if isinstance(value, bytes) else None
        if not passes(error):
            raise away(self._config, error.str())
        return None
