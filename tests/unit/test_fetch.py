"""Ranges as tasks read them, from the broker that librdkafka has inside: no Java, no server."""

from collections.abc import Iterator

import numpy as np
import pytest
from confluent_kafka import KafkaError, Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.source import fetch, librdkafka, plain
from lakemark.source.ranges import Range

TOPIC, PARTITIONS, COUNT = "shop.public.orders", 3, 40


class Broker:
    """Some partitions, each with `COUNT` records, and what reads them."""

    def __init__(self) -> None:
        self.producer = Producer({"test.mock.num.brokers": 1, "log_level": 2})
        told = self.producer.list_topics(TOPIC, timeout=30)
        assert len(told.topics[TOPIC].partitions) >= PARTITIONS
        (broker,) = told.brokers.values()
        self.client = {
            "bootstrap.servers": f"{broker.host}:{broker.port}",
            "group.id": "fetched",
            "log_level": 2,
        }
        for partition in range(PARTITIONS):
            self.put(partition, 0, COUNT)

    def put(self, partition: int, first: int, end: int) -> None:
        for offset in range(first, end):
            self.producer.produce(TOPIC, b"%d" % offset, b"k", partition=partition)
        assert self.producer.flush(30) == 0

    def offsets(self, *ranges: Range) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for batch in fetch.records(ranges, self.client):
            for row in batch.to_pylist():
                assert row["value"] == b"%d" % row["offset"]
                found.setdefault(row["partition"], []).append(row["offset"])
        return found


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    yield Broker()
    fetch._forget(fetch._kept)


RANGE = st.tuples(st.integers(0, COUNT - 1), st.integers(1, COUNT)).map(
    lambda drawn: (drawn[0], min(COUNT, sum(drawn)))
)


@given(
    wanted=st.lists(RANGE, min_size=1, max_size=PARTITIONS),
    most=st.integers(1, COUNT + 1),
    ahead=st.sampled_from([0, 20, COUNT, 1000]),
    compiled=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_a_range_is_read_to_its_end_whatever_the_pieces(broker, wanted, most, ahead, compiled):
    """It is whole with its last record, not with the first piece of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch, "_MOST", most)
        patch.setattr(fetch, "_AHEAD", ahead)
        if not compiled:
            patch.setattr(plain, "usable", lambda: False)
        found = broker.offsets(*(Range(TOPIC, p, *ends) for p, ends in enumerate(wanted)))
    assert found == {p: [*range(*ends)] for p, ends in enumerate(wanted)}


def test_the_end_of_the_partition_before_that_of_the_range_is_waited_beyond(monkeypatch):
    """As a follower that is behind says it."""
    broker, met = Broker(), []
    meets = fetch._Reading.meets

    def seen(reading, error, offset):
        if not met:
            met.append((error.code(), offset))
            broker.put(0, COUNT, COUNT + 5)
        return meets(reading, error, offset)

    monkeypatch.setattr(fetch._Reading, "meets", seen)
    found = broker.offsets(Range(TOPIC, 0, COUNT - 3, COUNT + 5))
    fetch._forget(fetch._kept)
    assert met == [(KafkaError._PARTITION_EOF, COUNT)]
    assert found == {0: [*range(COUNT - 3, COUNT + 5)]}


@pytest.mark.parametrize(
    ("offset", "error", "whole"),
    [
        (9, KafkaError._PARTITION_EOF, False),
        (10, KafkaError._PARTITION_EOF, True),
        (12, KafkaError._PARTITION_EOF, True),
        (10, KafkaError._TRANSPORT, False),
        (10, 0, True),
        (12, 0, True),
    ],
)
def test_a_range_whose_last_records_are_gone_ends_with_what_stands_behind_it(
    broker, offset, error, whole
):
    """Records of aborted transactions, and those that compaction removed, never come."""
    reader = librdkafka.Reader({**broker.client, **fetch._OURS}, lambda _: None)
    reader.add([(TOPIC, 0, 0)])
    (pointer,) = next(found for found in iter(lambda: reader.some(1, 1), None) if len(found))
    told = librdkafka.Message.from_buffer_copy(librdkafka.message(pointer))
    told.offset, told.err, told.payload, told.len = offset, error, None, 0
    place = (TOPIC, 0)
    reading = fetch._Reading(Range(TOPIC, 0, 0, 10))
    address = np.array([librdkafka.ctypes.addressof(told)] * 2, np.int64)
    done, came = fetch._sort(address, {place: reading})
    librdkafka.release(pointer)
    reader.close()
    assert done == ([place] if whole else [])
    assert (came, reading.parts) == (False, [])
