"""A topic as it grows: each record is read once, by a client that stays."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from stack.processes import wait_for

_NO_LEADER_YET: Final = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - what a client says that has not heard of it yet
)
_MOST: Final = 10_000  # records at a time
_ANSWER_S: Final = 10.0
_READ_S: Final = 30.0
_GLANCE_S: Final = 0.05


def ends_by(consumer: Consumer, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Return the end offset of partitions of a topic.

    A topic made a moment ago has no leader for a while: that is waited for.

    Raises:
        KafkaException: the broker does not say.
        StackError: there was no leader in time.
    """

    def ends() -> dict[int, int] | None:
        try:
            return {
                partition: consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), timeout=_ANSWER_S
                )[1]
                for partition in partitions
            }
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER_YET:
                raise
            return None

    return wait_for(ends, 15, f"a leader of {topic}") or {}


class TopicReader:
    """All records of a topic so far; a topic that is not there yet has none.

    Args:
        settings: of the client, as librdkafka has them; the group is its own.
        name: of the topic.
    """

    def __init__(self, settings: Mapping[str, Any], name: str) -> None:
        self.name = name
        self._settings = {
            **settings,
            "group.id": f"reads-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
        self._records: list[Message] = []
        self._consumer: Consumer | None = None
        self._next: dict[int, int] = {}

    def records(self) -> list[Message]:
        """Read what has come since, up to the topic's end as of now, and return all.

        Of a topic that is shorter than it was, and so another one, those of the new one.

        Raises:
            KafkaException: the broker does not answer.
            StackError: the end was not reached in time.
        """
        if self._consumer is None:
            self._consumer = Consumer(self._settings)
        if not self._next and not self._assigned(self._consumer):
            return self._records
        ends = ends_by(self._consumer, self.name, [*self._next])
        if any(end < self._next[number] for number, end in ends.items()):
            self.close()
            self._records = []
            return self.records()
        for number, end in ends.items():
            self._read_to(self._consumer, number, end)
        return self._records

    def close(self) -> None:
        """Leave the topic; it is read from its beginning if somebody asks again."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._next, self._records = None, {}, []

    def _assigned(self, consumer: Consumer) -> bool:
        """Whether the topic is there; its partitions are read from then on."""
        found = consumer.list_topics(timeout=_ANSWER_S).topics.get(self.name)
        if found is None or found.error is not None:
            return False
        self._next = dict.fromkeys(found.partitions, 0)
        consumer.assign([TopicPartition(self.name, number, 0) for number in self._next])
        return True

    def _read_to(self, consumer: Consumer, number: int, end: int) -> None:
        def reached() -> bool:
            if self._next[number] >= end:
                return True
            for message in consumer.consume(_MOST, timeout=_GLANCE_S):
                at = int(message.partition() or 0)
                if message.error() is None:
                    self._records.append(message)
                    self._next[at] = int(message.offset() or 0) + 1
                elif (end_at := int(message.offset() or -1)) >= 0:  # there is no more
                    self._next[at] = max(self._next[at], end_at)
            return self._next[number] >= end

        wait_for(reached, _READ_S, f"{self.name} to be read to {end}")
