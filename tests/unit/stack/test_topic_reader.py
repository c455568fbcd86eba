"""A topic that grows is read by one client, each record once; one that was made anew from its beginning."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from stack import topic_reader
from stack.topic_reader import TopicReader


class Message(SimpleNamespace):
    """A record, or where there are no more."""

    def error(self):
        return self.failure

    def offset(self):
        return self.at

    def partition(self):
        return 0

    def value(self):
        return self.text


class Broker:
    """One partition; `begin` is its first offset."""

    def __init__(self):
        self.topics = {"other": ["x"]}
        self.made = 0

    def client(self, _settings):
        self.made += 1
        return Client(self)


class Client:
    def __init__(self, broker):
        self.broker = broker
        self.next, self.topic = 0, ""

    def list_topics(self, timeout):
        found = {
            name: SimpleNamespace(error=None, partitions={0: None}) for name in self.broker.topics
        }
        return SimpleNamespace(topics=found)

    def get_watermark_offsets(self, place, timeout):
        return 0, len(self.broker.topics[place.topic])

    def assign(self, places):
        ((self.topic, self.next),) = ((place.topic, place.offset) for place in places)

    def consume(self, most, timeout):
        told = self.broker.topics[self.topic]
        first, self.next = self.next, len(told)
        # A record that is None is gone, as after an aborted transaction or by compaction.
        found = [
            Message(failure=None, at=at, text=told[at])
            for at in range(first, self.next)
            if told[at] is not None
        ]
        return [*found, Message(failure=KafkaError._PARTITION_EOF, at=self.next, text=None)]

    def close(self):
        self.topic = "closed"


@pytest.fixture
def broker(monkeypatch):
    broker = Broker()
    monkeypatch.setattr(topic_reader, "Consumer", broker.client)
    return broker


def texts(reader):
    return [record.value() for record in reader.records()]


def test_a_topic_is_read_as_it_grows_by_one_client(broker):
    reader = TopicReader({}, "mine")
    assert texts(reader) == []
    broker.topics["mine"] = ["a", "b"]
    assert texts(reader) == ["a", "b"]
    broker.topics["mine"] += ["c", None]
    assert texts(reader) == texts(reader) == ["a", "b", "c"]
    assert broker.made == 1


def test_one_that_was_made_anew_is_read_from_its_beginning(broker):
    broker.topics["mine"] = ["a", "b"]
    reader = TopicReader({}, "mine")
    assert texts(reader) == ["a", "b"]
    broker.topics["mine"] = ["new"]
    assert texts(reader) == ["new"]


def test_who_has_left_it_reads_it_again(broker):
    broker.topics["mine"] = ["a"]
    reader = TopicReader({}, "mine")
    assert texts(reader) == ["a"]
    reader.close()
    assert texts(reader) == ["a"]
