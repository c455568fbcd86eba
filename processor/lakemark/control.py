"""The control records of a batch: read by the driver too, by offset, so that a repeated batch
reads the same ones.
"""

import json
import time
from typing import Any, Final

import structlog
from confluent_kafka import Consumer, TopicPartition

from lakemark.config import Config
from lakemark.errors import DependencyError
from lakemark.kafka import librdkafka_options

log = structlog.get_logger(__name__)

PARTITION: Final = 0  # the control topic has one: its records have one order


def read(config: Config, start: int, end: int) -> list[dict[str, Any]]:
    """Control records from offset `start` to before `end`, in order; unreadable ones are skipped.

    Raises:
        DependencyError: the broker did not give them within ``kafka.timeout``.
    """
    if start >= end:
        return []
    topic = config.topics.control
    consumer = Consumer(
        {
            **librdkafka_options(config),
            "group.id": f"{config.name}.control",  # required by the client; nothing is committed
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, PARTITION, start)])
        return _until(consumer, end, config)
    finally:
        consumer.close()


def _until(consumer: Consumer, end: int, config: Config) -> list[dict[str, Any]]:
    deadline = time.monotonic() + config.kafka.timeout.total_seconds()
    found: list[dict[str, Any]] = []
    while True:
        message = consumer.poll(0.5)
        if message is None:
            if time.monotonic() > deadline:
                raise DependencyError(
                    f"{config.topics.control} could not be read up to offset {end}",
                    code="kafka-unavailable",
                    hint="check the broker",
                )
            continue
        error = message.error()
        if error is not None:
            if error.retriable():
                continue
            return found  # the end of the partition: aborted or compacted offsets before `end`
        offset = message.offset() or 0
        if offset < end:
            try:
                record = json.loads(message.value() or b"null")
            except ValueError:
                log.warning("control.unreadable", offset=offset)
                record = None
            if isinstance(record, dict):
                found.append(record)
        if offset >= end - 1:
            return found
