"""The control records: people's commands for tables, written; those of a batch, read.

The driver reads them by offset, so that a repeated batch reads the same ones.
"""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog
from confluent_kafka import Consumer, KafkaError, TopicPartition

from lakemark.errors import DependencyError, PipelineError
from lakemark.kafka import brokers, records
from lakemark.kafka.client_errors import away
from lakemark.kafka.client_settings import by_offset
from lakemark.model.control import Record, converted, encode
from lakemark.settings.config import Config
from lakemark.state import control_records, data_loss

log = structlog.get_logger(__name__)

PARTITION: Final = 0  # the control topic has one: its records have one order


def write(
    config: Config, kind: str, table: str = "", more: Mapping[str, object] | None = None
) -> str:
    """Write one record, acknowledged by all replicas, and return its id.

    Args:
        config: says which pipeline.
        kind: its type, such as ``table-pause``; see schemas/control.json.
        table: which table, if it is about one.
        more: its other fields.

    Raises:
        PipelineError: the pipeline has never run.
        DependencyError: the brokers are away; nothing was written, or the same can be again.
    """
    require(config, config.topics.control)
    record = _made(kind, table, more or {})
    records.publish(config, config.topics.control, [(table.encode(), encode(record))])
    return record.id


def say(config: Config, said: Sequence[tuple[str, str, Mapping[str, object]]]) -> None:
    """Write several records in their order: type, table and other fields of each.

    Raises:
        DependencyError: the brokers are away; the same can be said again.
    """
    found = [(table.encode(), encode(_made(kind, table, more))) for kind, table, more in said]
    records.publish(config, config.topics.control, found)


def resnapshot(config: Config, tables: Iterable[str], reason: str) -> None:
    """Write records that tables are to be snapshotted again, and why.

    Raises:
        DependencyError: the brokers are away; the same can be said again.
    """
    said = [(data_loss.RESNAPSHOT, table, {"reason": reason}) for table in tables]
    if said:
        say(config, said)


def _made(kind: str, table: str, more: Mapping[str, object]) -> Record:
    """Return a new record.

    Raises:
        msgspec.ValidationError: a field that its type does not have, or another defect of lakemark.
    """
    made = {"id": str(uuid.uuid4()), "ts_ms": time.time_ns() // 1_000_000}
    record = converted({"type": kind, "table": table, **made, **more})
    lost = more.keys() - msgspec.to_builtins(record).keys()
    if lost:
        raise msgspec.ValidationError(f"{kind} has no {', '.join(sorted(lost))}")
    return record


def require(config: Config, *topics: str) -> None:
    """Refuse to write to topics that are not there: it may create them with wrong settings.

    Raises:
        PipelineError: at least one is not.
        DependencyError: the brokers are away.
    """
    with brokers.Cluster(config) as cluster:
        missing = set(topics) - set(cluster.partition_counts(topics))
    if missing:
        raise PipelineError(
            f"the pipeline {config.name} has never run: there is no topic {min(missing)}",
            code="not-started",
            hint="start it with `lakemark run`",
        )


def read(config: Config, start: int, end: int) -> list[dict[str, Any]]:
    """Read control records from offset `start` to before `end`, in order; skip unreadable ones.

    Raises:
        DependencyError: the broker did not give them within ``kafka.timeout``.
    """
    if start >= end:
        return []
    topic = config.topics.control
    consumer = Consumer(
        {
            **by_offset(config),
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, PARTITION, start)])
        return _until(consumer, end, config)
    finally:
        consumer.close()


def _is_end(error: KafkaError) -> bool:
    return bool(error.code() == KafkaError._PARTITION_EOF)  # noqa: SLF001


def _until(consumer: Consumer, end: int, config: Config) -> list[dict[str, Any]]:
    deadline = time.monotonic() + config.kafka.timeout.total_seconds()
    found: list[dict[str, Any]] = []
    while True:
        message = consumer.poll(0.5)
        error = None if message is None else message.error()
        if message is not None and error is not None and _is_end(error):
            if (message.offset() or 0) >= end:
                return found  # aborted or compacted offsets before `end`
            continue  # a new leader that does not know yet how far its followers are
        if error is not None and not records.passes(error):
            raise away(config, error.str())
        if message is None or error is not None:
            if time.monotonic() > deadline:
                raise DependencyError(
                    f"{config.topics.control} could not be read up to offset {end}",
                    code="kafka-unavailable",
                    hint="check the broker",
                )
            continue
        offset = message.offset() or 0
        if offset < end:
            value = message.value()
            record = control_records.decoded(value if isinstance(value, bytes) else None)
            if record is None:
                log.warning("control.unreadable", offset=offset)
            else:
                found.append(record)
        if offset >= end - 1:
            return found
