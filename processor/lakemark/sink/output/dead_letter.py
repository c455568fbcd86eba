"""Dead letters: records that can never be decoded, with their original bytes and the reason.

At least once: a repeated batch writes them again under the same id. They are written before the
tables, and a broker that does not take them fails the batch: nothing is dropped in silence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, Producer

from lakemark.errors import DependencyError
from lakemark.model.decoding import DeadLetter
from lakemark.settings.masking import foreign
from lakemark.sink.output.flushing import flushed

# The client's own limit (1 MB by default) must not be the one that counts: the topic's does.
MAX_BYTES = 100_000_000
DEADLINE_S = 30.0  # for the broker to take them all; then the batch is tried again


def headers(letter: DeadLetter) -> list[tuple[str, str | bytes | None]]:
    """The headers of a dead letter, those by which it is read among them.

    The id is the same however often it is written.
    """
    place = f"{letter.topic}-{letter.partition}-{letter.offset}"
    fields = {
        "lakemark.id": place,
        "lakemark.reason": letter.reason,
        "lakemark.detail": letter.detail,
        "lakemark.table": letter.table,
        "lakemark.topic": letter.topic,
        "lakemark.partition": str(letter.partition),
        "lakemark.offset": str(letter.offset),
    }
    ours = [(name, value.encode("utf-8", "replace")) for name, value in fields.items()]
    return [*ours, *letter.headers]


def write(letters: Sequence[DeadLetter], *, topic: str, client: Mapping[str, Any]) -> None:
    """Writes the letters and waits until the broker has them all.

    Args:
        letters: what to write; key and value go out byte for byte.
        topic: the dead-letter topic.
        client: librdkafka settings.

    Raises:
        DependencyError: the broker did not take all of them in time; the batch is retried.
    """
    if not letters:
        return
    failures: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(foreign(error))

    settings = {"acks": "all", "enable.idempotence": True, "message.max.bytes": MAX_BYTES}
    producer = Producer({**client, **settings})
    try:
        for letter in letters:
            _produce(producer, topic, letter, delivered)
        left = flushed(producer, DEADLINE_S)
    except KafkaException as error:
        raise _unwritten(topic, foreign(error)) from error
    if failures or left:
        raise _unwritten(topic, failures[0] if failures else f"{left} not confirmed in time")


def _produce(producer: Producer, topic: str, letter: DeadLetter, delivered: Any) -> None:
    while True:
        try:
            producer.produce(
                topic,
                key=letter.key,
                value=letter.value,
                headers=headers(letter),
                on_delivery=delivered,
            )
            producer.poll(0)
        except BufferError:  # more than the client's queue takes: what is in it goes first
            left = flushed(producer, DEADLINE_S)
            if left:
                raise _unwritten(topic, f"{left} not confirmed in time") from None
        else:
            return


def _unwritten(topic: str, why: str) -> DependencyError:
    return DependencyError(
        f"dead letters could not be written to {topic}: {why}",
        code="dead-letters-unavailable",
        hint="check the broker, and that the topic takes records of this size",
    )
