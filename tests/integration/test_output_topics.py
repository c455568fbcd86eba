"""Transactions of output topics on a real broker: once, in order, fenced, aborted."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from lakemark.errors import DependencyError, TableError
from lakemark.sink.output import transaction
from lakemark.sink.output.output_records import Message
from lakemark.sink.output.transaction import MarkSource, OutputTarget
from stack.kafka import Kafka
from stack.local import Servers
from stack.processes import wait_for
from tests.kit import kafka_acls
from tests.kit.output_topics import OutputTopic, some
from tests.kit.running import STATE_S

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NUMBERS = itertools.count(1)
WIDE = random.Random(1).randbytes(4000)  # nothing that compression makes small
# (hash & 0x7fffffff) % 7 of Kafka's own test vectors for murmur2
JAVA = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}


@pytest.fixture
def target(stack: Servers) -> OutputTarget:
    """A change topic of seven partitions, and where its table's records go."""
    name = f"out{next(NUMBERS)}"
    stack.kafka.create_topic(f"{name}.source", partitions=7)
    client = {"bootstrap.servers": stack.kafka.bootstrap, "log_level": 0}
    return OutputTarget(f"{name}.clean", f"{name}.group", like=f"{name}.source", client=client)


def source(target: OutputTarget, note: str = "", partition: int = 0) -> MarkSource:
    return MarkSource(target.like, partition, note)


def values(stack: Servers, target: OutputTarget) -> list[int]:
    return [int(one.value) for one in OutputTopic(stack.kafka, target.topic).read()]


def forget() -> None:
    """As a new process."""
    transaction._lanes.clear()


def test_what_is_below_the_mark_is_left_out(stack: Servers, target: OutputTarget):
    assert transaction.write(target, source(target), 5, some(1, 2, 4)) == 3
    assert transaction.write(target, source(target), 5, some(1, 2, 4)) == 0
    forget()
    assert transaction.write(target, source(target), 8, some(2, 4, 6, 7)) == 2
    assert transaction.write(target, source(target), 8, []) == 0
    assert transaction.write(target, source(target, partition=3), 3, some(1)) == 1
    assert values(stack, target) == [1, 2, 4, 6, 7, 1]


def test_a_mark_of_another_topic_of_the_same_name_does_not_count(
    stack: Servers, target: OutputTarget
):
    transaction.write(target, source(target, "first"), 100, some(99))
    assert transaction.write(target, source(target, ""), 100, some(98)) == 0
    assert transaction.write(target, source(target, "second"), 3, some(1, 2)) == 2
    forget()
    assert transaction.write(target, source(target, "second"), 4, some(2, 3)) == 1
    assert values(stack, target) == [99, 1, 2, 3]


def test_another_content_of_the_same_batch_is_written_and_an_earlier_batch_is_not(
    stack: Servers, target: OutputTarget
):
    def rows(batch: int, content: str) -> MarkSource:
        return MarkSource(target.like, 0, "query", "rows", content, batch * transaction.BATCH)

    def of_batch(number: int, *values: int) -> list[Message]:
        first = number * transaction.BATCH
        return [m._replace(at=first + n) for n, m in enumerate(some(*values))]

    def written(number: int, content: str, *values: int) -> int:
        upto = number * transaction.BATCH + len(values)
        return transaction.write(target, rows(number, content), upto, of_batch(number, *values))

    assert written(4, "a", 1, 2) == 2
    assert written(4, "a", 1, 2) == 0
    assert written(4, "b", 3, 4) == 2
    assert written(5, "c", 5) == 1
    forget()
    assert written(4, "d", 6) == 0, "a worker that slept"
    assert written(5, "c", 5) == 0
    assert values(stack, target) == [1, 2, 3, 4, 5]


def test_who_was_given_up_is_fenced_and_finds_what_its_successor_wrote(
    stack: Servers, target: OutputTarget
):
    transaction.write(target, source(target), 2, some(1))
    key, old = transaction._lanes.popitem()
    assert transaction.write(target, source(target), 4, some(2, 3)) == 2
    transaction._lanes[key] = old
    assert transaction.write(target, source(target), 5, some(2, 3, 4)) == 1
    assert values(stack, target) == [1, 2, 3, 4]


def test_a_transaction_of_a_process_that_died_is_not_seen(stack: Servers, target: OutputTarget):
    transaction.write(target, source(target), 2, some(1))
    _, dying = transaction._lanes.popitem()
    dying.producer.begin_transaction()
    dying.producer.produce(target.topic, key=b"k", value=b"2")
    dying.producer.flush(10)
    assert transaction.write(target, source(target), 4, some(2, 3)) == 2
    assert values(stack, target) == [1, 2, 3]


def test_a_record_that_is_too_large_stops_its_table_and_leaves_nothing_behind(
    stack: Servers, target: OutputTarget
):
    small = OutputTarget(target.topic, target.group, target.like, 2000, target.client)
    with pytest.raises(TableError) as found:
        transaction.write(small, source(target), 3, [*some(1), some(2)[0]._replace(value=WIDE)])
    assert (found.value.code, found.value.retried) == ("output-record-too-large", True)
    assert target.topic in found.value.hint
    assert transaction.write(small, source(target), 3, some(1, 2)) == 2
    assert values(stack, target) == [1, 2]


def test_the_reason_is_told_also_where_it_comes_while_others_are_still_being_written(
    stack: Servers, target: OutputTarget
):
    small = OutputTarget(target.topic, target.group, target.like, 2000, target.client)
    many = [some(1)[0]._replace(value=WIDE), *some(*range(2, 200_000))]
    with pytest.raises(TableError) as found:
        transaction.write(small, source(target), 200_000, many)
    assert found.value.code == "output-record-too-large"
    assert transaction.write(small, source(target), 3, some(1, 2)) == 2
    assert values(stack, target) == [1, 2]


def test_the_topic_is_made_compacted_and_keys_stand_where_java_puts_them(
    stack: Servers, target: OutputTarget
):
    headers = [("lakemark.position", b"00"), ("lakemark.id", b"")]
    found = [Message(1, key.encode(), b"1", list(headers)) for key in JAVA]
    transaction.write(target, source(target), 2, found)
    seen = OutputTopic(stack.kafka, target.topic).read()
    assert {one.key.decode(): one.partition for one in seen} == {
        key: (number & 0x7FFFFFFF) % 7 for key, number in JAVA.items()
    }
    admin = AdminClient({"bootstrap.servers": stack.kafka.bootstrap})
    assert len(admin.list_topics(target.topic).topics[target.topic].partitions) == 7
    resource = ConfigResource(ConfigResource.Type.TOPIC, target.topic)
    made = admin.describe_configs([resource])[resource].result(30)
    assert made["cleanup.policy"].value == "compact"
    assert made["max.message.bytes"].value == str(target.max_bytes)


def refused(target: OutputTarget, count: int = 2) -> TableError:
    with pytest.raises(TableError) as found:
        transaction.write(target, source(target), count + 1, some(*range(1, count + 1)))
    assert found.value.retried
    return found.value


def on(broker: Kafka) -> OutputTarget:
    """A change topic of two partitions on a broker of its own, and where its records go."""
    name = f"out{next(NUMBERS)}"
    broker.create_topic(f"{name}.source", partitions=2)
    client = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    return OutputTarget(f"{name}.clean", f"{name}.group", like=f"{name}.source", client=client)


def test_a_topic_that_somebody_deletes_is_named_with_what_makes_it_and_made_again(
    strict: Kafka, monkeypatch: pytest.MonkeyPatch
):
    target, admin = on(strict), strict.admin()
    assert transaction.write(target, source(target), 1, some(0)) == 1
    admin.delete_topics([target.topic])[target.topic].result()
    wait_for(lambda: target.topic not in strict.topics(), STATE_S, "the topic to be gone")
    monkeypatch.setattr(transaction, "TIMEOUT_S", 5.0)
    with pytest.raises(DependencyError) as lost:  # a client that knew the topic hears of nothing
        transaction.write(target, source(target), 3, some(1, 2))
    assert (lost.value.code, lost.value.retried) == ("output-unavailable", True)
    monkeypatch.undo()
    transaction._existing.add(target.topic)
    missing = refused(target)
    assert missing.code == "output-topic-missing"
    assert f"--create --topic {target.topic} --config cleanup.policy=compact" in missing.hint
    assert transaction.write(target, source(target), 3, some(1, 2)) == 2
    assert [int(one.value) for one in OutputTopic(strict, target.topic).read()] == [1, 2]


@pytest.mark.parametrize(
    ("kind", "operation", "granted"),
    [
        (ResourceType.TOPIC, AclOperation.WRITE, "--operation Write --operation Describe --topic"),
        (ResourceType.GROUP, AclOperation.READ, "--operation Read --group"),
        (ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE, "--transactional-id"),
    ],
)
def test_what_lakemark_may_not_do_is_named_with_what_grants_it(
    strict: Kafka, kind: ResourceType, operation: AclOperation, granted: str
):
    target, admin = on(strict), strict.admin()
    name = {
        ResourceType.TOPIC: target.topic,
        ResourceType.GROUP: target.group,
        ResourceType.TRANSACTIONAL_ID: transaction.lane_of(target, source(target)),
    }[kind]
    rule = (kind, name, ResourcePatternType.LITERAL, "User:*", "*", operation)
    asked = AclBindingFilter(*rule, AclPermissionType.DENY)

    def denied() -> bool:
        return bool(admin.describe_acls(asked).result(30))

    kafka_acls.grant(admin, AclBinding(*rule, AclPermissionType.DENY))
    forbidden = refused(target)
    assert forbidden.code == "output-forbidden"
    assert "kafka-acls.sh" in forbidden.hint
    assert granted in forbidden.hint
    # so many that the brokers have refused before the last one is handed on
    assert refused(target, 20_000).code == "output-forbidden"
    for future in admin.delete_acls([asked]).values():
        future.result(30)
    wait_for(lambda: not denied(), STATE_S, "the broker to know it no more")
    assert transaction.write(target, source(target), 3, some(1, 2)) == 2
    assert [int(one.value) for one in OutputTopic(strict, target.topic).read()] == [1, 2]


def test_producers_outlive_a_broker_that_was_killed(strict: Kafka):
    """Those of several tables at once, right after it is back, as tasks do."""
    first = on(strict)
    targets = [
        OutputTarget(f"{first.topic}{n}", f"{first.group}{n}", first.like, client=first.client)
        for n in range(4)
    ]
    place = MarkSource(first.like, 0)
    for target in targets:
        assert transaction.write(target, place, 2, some(1)) == 1
    strict.kill()
    strict.start()
    with ThreadPoolExecutor(len(targets)) as pool:
        ended = [pool.submit(transaction.write, target, place, 3, some(2)) for target in targets]
        assert [one.result(STATE_S) for one in ended] == [1] * len(targets)
    for target in targets:
        assert [int(one.value) for one in OutputTopic(strict, target.topic).read()] == [1, 2]
