"""Control records are read to where a batch ends, or the batch does not begin."""

import json
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError

from lakemark.errors import DependencyError
from lakemark.state import control
from tests.unit.kafka.test_client_settings import config


class Message:
    """A record of the topic, or what the client says instead."""

    def __init__(self, offset: int = 0, error: int | None = None) -> None:
        self._offset, self._error = offset, error

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return json.dumps({"at": self._offset}).encode()


Read = Callable[..., list[int]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """The offsets of what is read from 0 to before 3, of a client that says these messages."""

    def found(*messages: Message | None) -> list[int]:
        said = iter(messages)

        class Consumer:
            def __init__(self, settings: dict) -> None:
                assert settings["group.id"] == "shop.owner"

            def assign(self, places: list) -> None:
                assert [place.offset for place in places] == [0]

            def poll(self, _: float) -> Message | None:
                return next(said)

            def close(self) -> None:
                """Nothing to leave."""

        monkeypatch.setattr(control, "Consumer", Consumer)
        return [record["at"] for record in control.read(config(), 0, 3)]

    return found


def test_the_last_record_is_the_end_and_so_is_that_of_the_topic(read: Read):
    assert read(Message(0), None, Message(1), Message(2), Message(3)) == [0, 1, 2]
    assert read(Message(0), Message(3, KafkaError._PARTITION_EOF)) == [0]


def test_a_new_leader_that_does_not_know_its_end_yet_is_waited_for(read: Read):
    """KIP-207: what its followers have is known to it a little later than what it has."""
    early = Message(1, KafkaError._PARTITION_EOF)
    assert read(Message(0), early, Message(1), Message(2)) == [0, 1, 2]


@pytest.mark.parametrize("passing", [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN])
def test_a_broker_that_is_away_for_a_while_is_waited_for(read: Read, passing: int):
    assert read(Message(0), Message(error=passing), Message(1), Message(2)) == [0, 1, 2]


def test_what_the_brokers_refuse_is_not_the_end_of_the_topic(read: Read):
    with pytest.raises(DependencyError, match="roup"):
        read(Message(0), Message(error=KafkaError.GROUP_AUTHORIZATION_FAILED), Message(1))
