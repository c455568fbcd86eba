"""Events that Kafka lost before they were read: said at once, and mended by one command."""

from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition

from stack.local import LocalStack
from stack.processes import wait_for
from tests.kit.running import STATE_S, Running

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]

LOST, KEPT = "public.lost", "public.kept"
KEYS = 4


@pytest.fixture(scope="module")
def pipeline(stack: LocalStack, tmp_path_factory) -> Iterator[Running]:
    tables = [f"CREATE TABLE {name} (id int PRIMARY KEY, v text NOT NULL)" for name in (LOST, KEPT)]
    with stack.fresh_database(*tables) as database:
        for name in (LOST, KEPT):
            database.execute(
                f"INSERT INTO {name} SELECT n, 'old' FROM generate_series(1, {KEYS}) AS n"
            )
        database.start_connector()
        with Running(database, tmp_path_factory.mktemp("pipeline")) as running:
            yield running


@pytest.fixture
def stopped(pipeline: Running) -> Running:
    """The pipeline, equal and stopped; then an event of each table that it has not read."""
    pipeline.lakemark.start()
    pipeline.wait_equal()
    pipeline.lakemark.stop()
    for name in (LOST, KEPT):
        pipeline.database.execute(f"UPDATE {name} SET v = v || ' unread' WHERE id = 1")
    pipeline.database.execute(f"DELETE FROM {LOST} WHERE id = 2")
    pipeline.wait_drained()
    return pipeline


def refused(running: Running, code: str) -> str:
    """What `lakemark run` says before it ends with exit code 1."""
    running.lakemark.spawn()
    assert running.lakemark.wait_ended(STATE_S) == 1
    said = running.lakemark.log_tail(60)
    assert code in said
    assert not running.lakemark.events("batch.done"), "something was read all the same"
    return said


def mended(running: Running) -> None:
    said = running.lakemark.command("recover", "--resnapshot", LOST)
    assert LOST in said
    running.lakemark.start()
    event = running.lakemark.wait_for_event("topic.begins_again", STATE_S)
    assert event["tables"] == [LOST]
    running.wait_equal()
    running.wait_progress(LOST, "the end of the repair", lambda r: not r.get("resnapshot"))


def test_a_topic_that_was_deleted_and_made_again(stopped: Running):
    """With more records than the old one had: by offsets alone it is read on."""
    database, topic = stopped.database, stopped.database.topic("lost")
    kafka, before = database.stack.kafka, database.stack.kafka.end_offsets(topic)
    admin = kafka.admin()
    admin.delete_topics([topic])[topic].result(30)
    wait_for(lambda: topic not in kafka.topics(), STATE_S, "the topic to be gone")
    kafka.create_topic(topic, partitions=len(before))
    for number in range(max(before.values()) + 2):
        database.execute(f"UPDATE {LOST} SET v = %s WHERE id > 2", [f"later {number}"])
    stopped.wait_drained()

    said = refused(stopped, "topic-recreated")
    assert f"lakemark recover --resnapshot {LOST}" in said
    mended(stopped)


def test_events_that_were_not_read_in_time(stopped: Running):
    database, topic = stopped.database, stopped.database.topic("lost")
    ends = database.stack.kafka.end_offsets(topic)
    admin = database.stack.kafka.admin()
    for future in admin.delete_records(
        [TopicPartition(topic, partition, end) for partition, end in ends.items()]
    ).values():
        future.result(30)
    refused(stopped, "source-data-expired")
    mended(stopped)
