"""Ranges as tasks read them, from the broker that librdkafka has inside: no Java, no server."""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark import tasks
from lakemark.converters import compiler
from lakemark.errors import DependencyError
from lakemark.model.decoding import StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.offsets import EARLIEST
from lakemark.source import fetch, librdkafka, raw_records
from lakemark.source.offset_ranges import OffsetRange
from lakemark.tasks import DecodePlan
from tests.kit.nightly import examples

TOPIC, PARTITIONS, COUNT = "shop.public.orders", 4, 40


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

    def offsets(self, *ranges: OffsetRange) -> dict[int, list[int]]:
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


@pytest.fixture
def growing() -> Iterator[Broker]:
    """One whose partitions a test makes longer."""
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
@settings(max_examples=examples(25), deadline=None)
def test_a_range_is_read_to_its_end_whatever_the_pieces(broker, wanted, most, ahead, compiled):
    """It is whole with its last record, not with the first piece of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch, "_MOST", most)
        patch.setattr(fetch, "_AHEAD", ahead)
        if not compiled:
            patch.setattr(compiler, "usable", lambda: False)
        found = broker.offsets(*(OffsetRange(TOPIC, p, *ends) for p, ends in enumerate(wanted)))
    assert found == {p: [*range(*ends)] for p, ends in enumerate(wanted)}


@pytest.mark.parametrize("compiled", [True, False])
def test_what_a_record_has_and_lacks_comes_as_it_is(growing, compiled, monkeypatch):
    """Headers among records without, nothing and nothing at all, in keys and values."""
    some = [("a", b"1"), ("a", None), ("ü", b"")]
    sent = [
        (b"k", b"v", None), (b"k", None, None), (None, b"v", None), (b"", b"", None),
        (b"k", b"w", some), (b"k", b"x", None), (None, None, some), (b"k", b"last", None),
    ]  # fmt: skip
    for key, value, headers in sent:
        more = {} if headers is None else {"headers": headers}
        growing.producer.produce(TOPIC, value, key, partition=0, **more)
    assert growing.producer.flush(30) == 0
    monkeypatch.setattr(compiler, "usable", lambda: compiled)
    here = OffsetRange(TOPIC, 0, COUNT, COUNT + len(sent))
    found = [row for one in fetch.records([here], growing.client) for row in one.to_pylist()]
    expected = [
        (key, value, headers and [{"key": name, "value": of} for name, of in headers])
        for key, value, headers in sent
    ]
    assert [(row["key"], row["value"], row["headers"]) for row in found] == expected
    assert [row["offset"] for row in found] == [*range(here.start, here.end)]


def test_the_end_of_the_partition_before_that_of_the_range_is_waited_beyond(growing, monkeypatch):
    """As a follower that is behind says it."""
    met, meets = [], fetch._Reading.meets

    def seen(reading, error, offset):
        if not met:
            met.append((error.code(), offset))
            growing.put(0, COUNT, COUNT + 5)
        return meets(reading, error, offset)

    monkeypatch.setattr(fetch._Reading, "meets", seen)
    found = growing.offsets(OffsetRange(TOPIC, 0, COUNT - 3, COUNT + 5))
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
    told = librdkafka.KafkaMessage.from_buffer_copy(librdkafka.message(pointer))
    told.offset, told.err, told.payload, told.len = offset, error, None, 0
    place = (TOPIC, 0)
    reading = fetch._Reading(OffsetRange(TOPIC, 0, 0, 10))
    address = np.array([librdkafka.ctypes.addressof(told)] * 2, np.int64)
    done, came = fetch._sort(address, {place: reading}, context=False)
    assert fetch._sort(address, {}, context=False) == ([], False), "it is read no more"
    librdkafka.release(pointer)
    reader.close()
    assert done == ([place] if whole else [])
    assert (came, reading.parts) == (False, [])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError.OFFSET_OUT_OF_RANGE, "source-data-expired"),
        (KafkaError._AUTO_OFFSET_RESET, "source-data-expired"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "source-data-expired"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "kafka-refused"),
        (KafkaError.INVALID_MSG, "kafka-unavailable"),
        (KafkaError._TRANSPORT, ""),
        (KafkaError.NOT_LEADER_FOR_PARTITION, ""),
    ],
)
def test_what_the_client_says_of_a_partition_stops_the_range_by_name_or_passes(error, code):
    reading, met = fetch._Reading(OffsetRange(TOPIC, 0, 0, 10)), KafkaError(error, "said")
    if not code:
        assert reading.meets(met, 10) is False
        return
    with pytest.raises(DependencyError) as caught:
        reading.meets(met, 10)
    assert caught.value.code == code
    assert TOPIC in caught.value.message


def test_offsets_that_the_broker_does_not_have_are_never_skipped(broker):
    with pytest.raises(DependencyError) as caught:
        broker.offsets(OffsetRange(TOPIC, 0, COUNT + 5, COUNT + 9))
    assert caught.value.code == "source-data-expired"


# -- patience: a clock of the test's own, and what the broker has by then --------------------------


class Clock:
    """Seconds that pass while nothing comes; `then` is called each time that nothing has."""

    def __init__(self, monkeypatch, then=lambda: None, step_s: float = 40.0) -> None:
        self.now, self.empty = 0.0, 0
        monkeypatch.setattr(fetch, "time", SimpleNamespace(monotonic=lambda: self.now))
        some = librdkafka.Reader.some

        def waited(reader, most, wait_s):
            found = some(reader, most, 5 * wait_s)
            if not any(librdkafka.error_of(librdkafka.message(one)) is None for one in found):
                self.now += step_s
                self.empty += 1
                then()
            return found

        monkeypatch.setattr(librdkafka.Reader, "some", waited)


def test_records_that_come_before_patience_ends_are_waited_for_again_and_again(
    growing, monkeypatch
):
    there = [COUNT]

    def one_more():
        growing.put(0, there[0], there[0] + 1)
        there[0] += 1

    clock = Clock(monkeypatch, one_more)
    found = growing.offsets(OffsetRange(TOPIC, 0, COUNT - 1, COUNT + 4))
    assert found == {0: [*range(COUNT - 1, COUNT + 4)]}
    assert clock.now > 2 * fetch.PATIENCE_S


def test_a_broker_that_gives_nothing_is_given_up_and_the_reader_with_it(growing, monkeypatch):
    clock = Clock(monkeypatch)
    with pytest.raises(DependencyError, match=f"nothing of {TOPIC}-0 for 60 s") as caught:
        growing.offsets(OffsetRange(TOPIC, 0, COUNT - 1, COUNT + 1))
    assert caught.value.code == "kafka-unavailable"
    assert fetch.PATIENCE_S < clock.now <= 2 * fetch.PATIENCE_S
    assert fetch._kept is None, "what it still has of this task is not the next one's"


def test_whoever_takes_records_slowly_does_not_use_up_the_brokers_time(growing, monkeypatch):
    clock = Clock(monkeypatch, lambda: growing.put(1, COUNT, COUNT + 1))
    ranges = [OffsetRange(TOPIC, 0, 0, 5), OffsetRange(TOPIC, 1, COUNT, COUNT + 1)]
    found = []
    for batch in fetch.records(ranges, growing.client):
        found += batch.column("offset").to_pylist()
        clock.now += 10 * fetch.PATIENCE_S
    assert found == [*range(5), COUNT]


# -- the reader that a process keeps --------------------------------------------------------------


@pytest.mark.parametrize(("start", "kept"), [(0, True), (1, True), (EARLIEST, False)])
def test_where_a_partition_begins_is_asked_anew(broker, start, kept):
    """The client remembers it, and retention has gone on since; a known offset needs no asking."""
    broker.offsets(OffsetRange(TOPIC, 0, 0, 3))
    before = fetch._kept
    found = broker.offsets(OffsetRange(TOPIC, 1, 0, 2), OffsetRange(TOPIC, 0, start, 3))
    assert found == {1: [0, 1], 0: [*range(max(0, start), 3)]}
    assert (fetch._kept is before) == kept


def test_what_the_client_refuses_is_an_error_with_a_name(broker, monkeypatch):
    def refused(*_):
        raise KafkaException(KafkaError(KafkaError._STATE, "not now"))

    monkeypatch.setattr(librdkafka.Reader, "add", refused)
    with pytest.raises(DependencyError) as caught:
        broker.offsets(OffsetRange(TOPIC, 0, 0, 3))
    assert (caught.value.code, fetch._kept) == ("kafka-unavailable", None)


def test_an_error_of_whoever_takes_the_records_stays_what_it_is(broker):
    reading = fetch.records([OffsetRange(TOPIC, 0, 0, 3)], broker.client)
    next(reading)
    with pytest.raises(ZeroDivisionError):
        reading.throw(ZeroDivisionError())
    assert fetch._kept is None


@pytest.mark.parametrize(
    ("ahead", "sizes", "shares"),
    [
        (20, [5, 5, 10, 1], [[5, 5, 10], [1]]),
        (20, [30, 5, 15], [[30], [5, 15]]),
        (0, [3, 4], [[3], [4]]),
        (1000, [3, 4, 30], [[3, 4, 30]]),
    ],
)
def test_so_many_records_are_read_at_a_time_or_one_larger_range(
    broker, monkeypatch, ahead, sizes, shares
):
    """More of them would have to be kept until the first range is whole."""
    monkeypatch.setattr(fetch, "_AHEAD", ahead)
    monkeypatch.setattr(fetch, "_MOST", 7)
    add, some, added, asked = librdkafka.Reader.add, librdkafka.Reader.some, [], []

    def adding(reader, places):
        added.append(list(places))
        add(reader, added[-1])

    def some_of(reader, most, wait_s):
        asked.append(most)
        return some(reader, most, wait_s)

    monkeypatch.setattr(librdkafka.Reader, "add", adding)
    monkeypatch.setattr(librdkafka.Reader, "some", some_of)
    ranges = [OffsetRange(TOPIC, p, 2, 2 + size) for p, size in enumerate(sizes)]
    found = broker.offsets(*ranges)
    assert found == {one.partition: [*range(one.start, one.end)] for one in ranges}
    assert [[sizes[partition] for _, partition, _ in some] for some in added] == shares
    assert max(asked) == min(7, max(sum(share) for share in shares))


# -- headers -----------------------------------------------------------------------------------------

CONTEXT: list[tuple[str, bytes | None]] = [
    ("__debezium.context.taskId", b"0"),
    ("__debezium.context.", b"shortest"),
    ("__debezium.context.connectorName", b"postgresql"),
]
OTHERS: list[list[tuple[str, bytes | None]]] = [
    [(name, b"1")]
    for name in ("_", "__debezi", "__debezium.newkey", "__debezium.context", "__debezium.contexu.a")
]


@pytest.mark.parametrize("compiled", [True, False])
def test_headers_that_name_the_task_are_left_out_unless_they_are_wanted(
    growing, monkeypatch, compiled
):
    """Every record of a connector has them: they must not make it slow."""
    monkeypatch.setattr(compiler, "usable", lambda: compiled)
    mixed = [[*CONTEXT[: n % 3], *other, *CONTEXT] for n, other in enumerate(OTHERS)]
    sent = [CONTEXT, [], *mixed]
    for headers in sent:
        growing.producer.produce(TOPIC, b"v", b"k", partition=0, headers=headers)
    assert growing.producer.flush(30) == 0

    def read(count: int, *, context: bool) -> list[pa.RecordBatch]:
        ranges = [OffsetRange(TOPIC, 0, COUNT, COUNT + count)]
        return list(fetch.records(ranges, growing.client, context=context))

    found = {
        context: [
            [(one["key"], one["value"]) for one in row["headers"] or ()]
            for batch in read(len(sent), context=context)
            for row in batch.to_pylist()
        ]
        for context in (False, True)
    }
    assert found == {True: sent, False: [[], [], *OTHERS]}
    assert raw_records.without_headers(read(2, context=True))
    assert not raw_records.without_headers(read(len(sent), context=False))


def test_a_decoder_that_ends_by_an_error_leaves_no_reader_with_its_ranges(broker, monkeypatch):
    """A registry that is away is one: the same process reads the same records again a moment later."""
    plan = DecodePlan(StretchPlan(SourceIdentity("postgresql", "shop"), HandlingModes()))
    ranges = [OffsetRange(TOPIC, partition, 0, COUNT) for partition in range(PARTITIONS)]

    def away(batches, plan):
        for _ in batches:
            raise DependencyError("the registry is away", code="registry-unavailable")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "decode", away)
        with pytest.raises(DependencyError) as raised:  # it keeps the generators' frames
            list(tasks.decode_ranges(ranges, broker.client, plan))
    read = broker.offsets(*ranges)
    assert raised.value.code == "registry-unavailable"
    assert {partition: len(offsets) for partition, offsets in read.items()} == dict.fromkeys(
        range(PARTITIONS), COUNT
    )
