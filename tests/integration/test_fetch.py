"""Ranges of a real broker's partitions, as tasks read them."""

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from lakemark.converters import compiler
from lakemark.errors import DependencyError, LakemarkError
from lakemark.kafka.brokers import Cluster
from lakemark.kafka.client_settings import by_offset
from lakemark.model.offsets import EARLIEST
from lakemark.settings.layers import InvalidConfig
from lakemark.source import fetch
from lakemark.source.offset_ranges import OffsetRange
from stack.kafka import Kafka
from stack.local import Servers
from stack.processes import free_port
from tests.integration.test_kafka_edge import config
from tests.kit import kafka_acls

pytestmark = pytest.mark.integration


class Topic:
    """A topic of its own, and its ranges as they are read."""

    def __init__(self, kafka: Kafka, partitions: int = 1, **settings: str) -> None:
        self.kafka, self.config = kafka, config(kafka.bootstrap)
        self.name = f"{self.config.name}.fetched"
        told = {name.replace("_", "."): value for name, value in settings.items()}
        kafka.create_topic(self.name, partitions=partitions, config=told)
        self.producer = kafka.producer(message_max_bytes=20_000_000)

    def put(self, *values: bytes | None, partition: int = 0, **more) -> None:
        for value in values:
            self.producer.produce(self.name, value, b"k", partition=partition, **more)
        assert self.producer.flush(30) == 0

    def range(self, start: int, end: int, partition: int = 0) -> OffsetRange:
        return OffsetRange(self.name, partition, start, end)

    def read(self, *ranges: OffsetRange) -> pa.Table:
        found = fetch.records(ranges, by_offset(self.config))
        return pa.Table.from_batches(found, fetch.SCHEMA)

    def offsets(self, *ranges: OffsetRange) -> list[int]:
        return self.read(*ranges).column("offset").to_pylist()


@pytest.fixture
def topic(stack: Servers) -> Topic:
    return Topic(stack.kafka)


@pytest.fixture(params=["compiled", "by Python"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "compiled":
        monkeypatch.setattr(compiler, "usable", lambda: False)


@pytest.mark.usefixtures("ways")
def test_records_come_as_they_were_written(topic: Topic):
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", None), ("ü", b"")]
    topic.put(b"plain", b"", None, "grün".encode())
    topic.producer.produce(topic.name, b"without key", None)
    topic.put(b"headers", headers=headers)
    topic.put(b"\x00\xff" * 3_000_000, b"last")
    without, rest = topic.read(topic.range(0, 5)), topic.read(topic.range(5, 8))
    rows = pa.concat_tables([without, rest]).to_pylist()
    assert topic.read(topic.range(0, 8)).to_pylist() == rows
    without.validate(full=True)
    assert [without.column(name).null_count for name in ("key", "value", "headers")] == [1, 1, 5]
    assert [(row["offset"], row["key"], row["value"], row["headers"]) for row in rows] == [
        (0, b"k", b"plain", None),
        (1, b"k", b"", None),
        (2, b"k", None, None),
        (3, b"k", "grün".encode(), None),
        (4, None, b"without key", None),
        (5, b"k", b"headers", [{"key": key, "value": value} for key, value in headers]),
        (6, b"k", b"\x00\xff" * 3_000_000, None),
        (7, b"k", b"last", None),
    ]
    assert {(row["topic"], row["partition"]) for row in rows} == {(topic.name, 0)}


def test_a_range_is_read_and_nothing_around_it(topic: Topic):
    topic.put(*(b"%d" % n for n in range(30_000)))
    assert topic.offsets(topic.range(100, 25_000)) == [*range(100, 25_000)]
    assert topic.offsets(topic.range(7, 8)) == [7]
    assert topic.offsets(topic.range(EARLIEST, 3)) == [0, 1, 2]
    assert topic.offsets(topic.range(29_999, 30_000)) == [29_999]


@pytest.mark.parametrize("ahead", [fetch._AHEAD, 150, 0], ids=["all", "two", "one"])
def test_ranges_of_many_partitions_come_one_after_the_other(
    stack: Servers, ahead: int, monkeypatch: pytest.MonkeyPatch
):
    """Whether they are read at once or not: memory has only so many at a time."""
    monkeypatch.setattr(fetch, "_AHEAD", ahead)
    topic = Topic(stack.kafka, partitions=30)
    for partition in range(30):
        topic.put(*(b"%d" % n for n in range(50 + partition)), partition=partition)
    ranges = [topic.range(partition, 50 + partition, partition) for partition in range(30)]
    table = topic.read(*ranges)
    seen = list(dict.fromkeys(table.column("partition").to_pylist()))
    assert sorted(seen) == [*range(30)]
    rows = table.select(["partition", "offset", "value"]).to_pylist()
    assert [(row["partition"], row["offset"]) for row in rows] == [
        (partition, offset) for partition in seen for offset in range(partition, 50 + partition)
    ]
    assert all(row["value"] == b"%d" % row["offset"] for row in rows)


def in_transaction(topic: Topic, *values: bytes, commit: bool) -> None:
    producer = Producer(
        {"bootstrap.servers": topic.kafka.bootstrap, "transactional.id": topic.name}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic.name, value, partition=0)
    producer.flush(30)
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


def test_of_transactions_what_was_committed_is_read(topic: Topic):
    """Marks and aborted records have offsets too: at the end, within, and nothing else at all."""
    topic.put(b"0")
    in_transaction(topic, b"1", b"2", commit=False)  # 1 to 3: two records and a mark
    in_transaction(topic, b"4", commit=True)  # 4 and 5
    in_transaction(topic, b"6", commit=False)  # 6 and 7
    for end, wanted in ((8, [0, 4]), (6, [0, 4]), (5, [0, 4]), (4, [0]), (3, [0])):
        assert topic.offsets(topic.range(0, end)) == wanted, end
    assert topic.offsets(topic.range(6, 8)) == []
    assert topic.offsets(topic.range(1, 4)) == []
    topic.put(b"8")
    assert topic.offsets(topic.range(1, 4)) == []
    assert topic.offsets(topic.range(6, 9)) == [8]


def test_an_open_transaction_is_waited_for(topic: Topic, monkeypatch: pytest.MonkeyPatch):
    """Spark plans no such range: the end of a batch is what is committed."""
    monkeypatch.setattr(fetch, "PATIENCE_S", 0.5)
    producer = Producer(
        {"bootstrap.servers": topic.kafka.bootstrap, "transactional.id": topic.name}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.name, b"open", partition=0)
    producer.flush(30)
    with pytest.raises(DependencyError, match=r"gave nothing of .*-0 for 0\.5 s"):
        topic.read(topic.range(0, 1))
    producer.commit_transaction(30)
    assert topic.offsets(topic.range(0, 1)) == [0]


def test_records_that_are_gone_are_an_error_and_never_skipped(topic: Topic):
    topic.put(*(b"%d" % n for n in range(10)))
    admin = topic.kafka.admin()
    gone = TopicPartition(topic.name, 0, 4)
    admin.delete_records([gone])[gone].result(30)
    with pytest.raises(DependencyError, match=r"from offset 3 on") as caught:
        topic.read(topic.range(3, 9))
    assert caught.value.code == "source-data-expired"
    assert topic.offsets(topic.range(4, 9)) == [4, 5, 6, 7, 8]
    assert topic.offsets(topic.range(EARLIEST, 6)) == [4, 5]


def test_a_reader_that_goes_on_sees_that_a_partition_begins_later_now(topic: Topic):
    topic.put(*(b"%d" % n for n in range(10)))
    assert topic.offsets(topic.range(EARLIEST, 2)) == [0, 1]
    admin = topic.kafka.admin()
    gone = TopicPartition(topic.name, 0, 4)
    admin.delete_records([gone])[gone].result(30)
    assert topic.offsets(topic.range(EARLIEST, 6)) == [4, 5]


def test_a_setting_that_the_client_does_not_take_is_said(topic: Topic):
    wrong = {**by_offset(topic.config), "no.such.setting": 1}
    with pytest.raises(InvalidConfig, match=r"no\.such\.setting"):
        list(fetch.records([topic.range(0, 1)], wrong))


def test_offsets_that_never_were_are_an_error(topic: Topic):
    topic.put(b"0")
    with pytest.raises(DependencyError) as caught:
        topic.read(topic.range(5, 9))
    assert caught.value.code == "source-data-expired"


def test_after_an_error_the_next_range_is_read(stack: Servers):
    """One reader serves all tasks of a process: nothing of a task that failed is left in it."""
    topic = Topic(stack.kafka, partitions=2)
    topic.put(*(b"%d" % n for n in range(5000)))
    with pytest.raises(DependencyError):
        topic.read(topic.range(0, 4000), topic.range(9000, 9001, 1))
    begun = fetch.records([topic.range(0, 5000)], by_offset(topic.config))
    next(begun)
    begun.close()
    assert topic.offsets(topic.range(10, 20)) == [*range(10, 20)]


def grant(broker: Kafka, kind: ResourceType, name: str, user: str) -> None:
    binding = AclBinding(
        kind, name, ResourcePatternType.LITERAL,
        f"User:{user}", "*", AclOperation.READ, AclPermissionType.ALLOW,
    )  # fmt: skip
    kafka_acls.grant(broker.admin(), binding)


def test_no_right_to_a_group_is_needed_and_one_to_the_topic_is(strict: Kafka):
    topic = Topic(strict)
    topic.put(b"0")
    grant(strict, ResourceType.GROUP, f"{topic.config.name}.owner", "somebody-else")
    assert topic.offsets(topic.range(0, 1)) == [0]
    grant(strict, ResourceType.TOPIC, topic.name, "somebody-else")
    with pytest.raises(LakemarkError, match="may not be read") as caught:
        topic.read(topic.range(0, 1))
    assert caught.value.code == "kafka-refused"
    assert topic.name in caught.value.hint


def test_brokers_that_are_away_are_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetch, "PATIENCE_S", 1.0)
    away = config(f"127.0.0.1:{free_port()}")
    with pytest.raises(DependencyError) as caught:
        list(fetch.records([OffsetRange("t", 0, 0, 1)], by_offset(away)))
    assert caught.value.code == "kafka-unavailable"


def test_a_broker_that_comes_back_is_read_on(strict: Kafka):
    topic = Topic(strict)
    topic.put(*(b"%d" % n for n in range(100)))
    assert topic.offsets(topic.range(0, 50)) == [*range(50)]
    strict.kill()
    strict.start()
    with Cluster(topic.config) as cluster:
        assert cluster.end_offsets([topic.name]) == {(topic.name, 0): 100}
    assert topic.offsets(topic.range(50, 100)) == [*range(50, 100)]
