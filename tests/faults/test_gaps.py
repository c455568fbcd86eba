"""Events that Kafka lost before they were read: said at once, and mended by one command."""

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator

import pytest
import yaml
from confluent_kafka import Message, TopicPartition

from lakemark import failpoints
from lakemark.kafka import records
from lakemark.ops.history import STRETCH_S
from lakemark.settings.config import load
from stack.local import Servers
from stack.processes import wait_for
from tests.kit.http_side import HttpSide
from tests.kit.nightly import nightly
from tests.kit.running import STATE_S, Running

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]

LOST, KEPT = "public.lost", "public.kept"
KEYS = 4
ENDED_S = 600.0  # from the start of a process that looks, and ends


@pytest.fixture(scope="module")
def pipeline(stack: Servers, tmp_path_factory) -> Iterator[Running]:
    tables = [f"CREATE TABLE {name} (id int PRIMARY KEY, v text NOT NULL)" for name in (LOST, KEPT)]
    with stack.fresh_database(*tables) as database:
        for name in (LOST, KEPT):
            database.execute(
                f"INSERT INTO {name} SELECT n, 'old' FROM generate_series(1, {KEYS}) AS n"
            )
        # Else its producer may ask for the topic while there is none: the broker would make it.
        database.start_connector({"producer.override.metadata.max.age.ms": "3600000"})
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


@pytest.fixture
def streaming(pipeline: Running) -> Running:
    """The pipeline, equal and running."""
    pipeline.lakemark.start()
    pipeline.wait_equal()
    return pipeline


def refused(running: Running, code: str) -> str:
    """What `lakemark run` says before it ends with exit code 1."""
    running.lakemark.spawn()
    assert running.lakemark.wait_ended(ENDED_S) == 1
    said = running.lakemark.log_tail(60)
    assert code in unnamed(said)
    assert not running.lakemark.events("batch.done"), "something was read all the same"
    return said


def has_older_charts(running: Running) -> None:
    """The last hour of the process before it is there too."""
    site = HttpSide(running)
    started = site.status()["pipeline"]["started_ms"]

    def older() -> bool:
        stretches = json.loads(site.ask("/v1/history")[1])["stretches"]
        return any(s["at_ms"] + 1000 * STRETCH_S <= started and s["batches"] for s in stretches)

    wait_for(older, STATE_S, "what the process before has done in /v1/history")


def mended(running: Running) -> None:
    said = running.lakemark.command("recover", "--resnapshot", LOST)
    assert LOST in unnamed(said)
    running.lakemark.start()
    event = running.lakemark.wait_for_event("topic.begins_again", STATE_S)
    assert event["tables"] == [LOST]
    running.lakemark.wait_for_event("snapshot.ended", STATE_S)  # it may be equal before
    running.wait_progress(LOST, "the end of the repair", lambda r: not r.get("resnapshot"))
    running.wait_equal()


def deleted(running: Running) -> dict[int, int]:
    """The topic is gone; the end offsets that it had."""
    kafka, topic = running.database.stack.kafka, running.database.topic("lost")
    before, admin = kafka.end_offsets(topic), kafka.admin()
    admin.delete_topics([topic])[topic].result(30)
    wait_for(lambda: topic not in kafka.topics(), STATE_S, "the topic to be gone")
    return before


def made_again(running: Running, before: dict[int, int], events: int) -> None:
    """Another topic of the same name, with so many events of two keys each."""
    database = running.database
    database.stack.kafka.create_topic(database.topic("lost"), partitions=len(before))
    for number in range(events):
        database.execute(f"UPDATE {LOST} SET v = %s WHERE id > 2", [f"later {number}"])
    running.wait_drained()


def unnamed(said: str) -> str:
    """What was said, without the name of the configuration in its commands."""
    return re.sub(r" -c \S+", "", said)


def test_a_topic_that_was_deleted_and_made_again(stopped: Running):
    """With more records than the old one had: by offsets alone it is read on."""
    last = time.time()  # of the charts' stretches, one that both processes have is the newer one's
    before = deleted(stopped)
    made_again(stopped, before, max(before.values()) + 2)

    said = refused(stopped, "topic-recreated")
    assert f"lakemark recover --resnapshot {LOST}" in unnamed(said)
    over = last - last % STRETCH_S + STRETCH_S
    wait_for(lambda: time.time() >= over, 2 * STRETCH_S, "the stretch of the last batch to be over")
    mended(stopped)
    has_older_charts(stopped)


def stopped_by_itself(running: Running, *codes: str) -> None:
    """What one that runs does: it names the table and what mends it, and ends."""
    assert running.lakemark.wait_ended(STATE_S) == 1
    said = running.lakemark.log_tail(60)
    assert any(code in said for code in codes), said
    assert f"lakemark recover --resnapshot {LOST}" in unnamed(said)


@nightly
def test_a_topic_that_is_deleted_while_it_is_read(streaming: Running):
    before = deleted(streaming)
    stopped_by_itself(streaming, "topic-deleted")
    made_again(streaming, before, 1)
    mended(streaming)


@pytest.mark.parametrize("more", [True, pytest.param(False, marks=nightly)])
def test_a_topic_that_is_made_again_while_it_is_read(streaming: Running, more: bool):
    """Offsets that fall, and such that do not: then the topic's id alone tells it.

    It may look just when there is none; where it does not look at all it never ends.
    """
    before = deleted(streaming)
    made_again(streaming, before, max(before.values()) + 2 if more else 1)
    stopped_by_itself(streaming, "topic-recreated", "topic-deleted")
    mended(streaming)


def test_events_that_were_not_read_in_time(stopped: Running):
    expire(stopped, stopped.database.topic("lost"))
    refused(stopped, "source-data-expired")
    mended(stopped)


def expire(running: Running, topic: str) -> None:
    """Kafka drops all records of a topic."""
    kafka = running.database.stack.kafka
    places = [TopicPartition(topic, p, end) for p, end in kafka.end_offsets(topic).items()]
    admin = kafka.admin()  # kept: its futures are of no use without it
    for future in admin.delete_records(places).values():
        future.result(30)


@nightly
def test_events_that_go_before_the_first_batch_is_committed(stack: Servers, tmp_path):
    with stack.fresh_database(f"CREATE TABLE {LOST} (id int PRIMARY KEY, v text)") as database:
        database.execute(f"INSERT INTO {LOST} VALUES (1, 'old'), (2, 'old')")
        database.start_connector()
        with Running(database, tmp_path) as running:
            running.wait_captured(LOST)
            running.lakemark.crash_at(failpoints.BEFORE_STATE)
            running.lakemark.spawn()
            assert running.lakemark.wait_ended(ENDED_S) == -signal.SIGKILL
            running.lakemark.no_crash()
            expire(running, database.topic("lost"))
            said = refused(running, "source-data-expired")
            folder = load(running.lakemark.config).checkpoint
            assert f"empty {folder} and start again" in unnamed(said)
            shutil.rmtree(folder)
            running.lakemark.start()
            running.lakemark.wait_for_event("batch.done", STATE_S)  # the command waits less long
            running.lakemark.command("snapshot", "start", LOST, "--wait")
            running.wait_equal()


def choose(running: Running, *tables: str) -> None:
    """Sets `source.tables`."""
    path = running.lakemark.config
    settings = yaml.safe_load(path.read_text())
    settings["source"]["tables"] = list(tables)
    path.write_text(yaml.safe_dump(settings))


@pytest.mark.parametrize("expired", [True, pytest.param(False, marks=nightly)])
def test_a_table_that_is_left_out_stops_nobody_and_is_whole_when_it_is_back(
    stopped: Running, expired
):
    database, version = stopped.database, stopped.version(LOST)
    choose(stopped, KEPT)
    stopped.lakemark.start()
    assert [event["table"] for event in stopped.lakemark.events("table.left_out")] == [LOST]
    stopped.wait_equal(KEPT)
    for name in (LOST, KEPT):
        database.execute(f"UPDATE {name} SET v = v || ' unseen' WHERE id = 3")
    stopped.wait_drained()
    stopped.wait_equal(KEPT)
    wait_for(lambda: LOST not in stopped.lakemark.progress(), STATE_S, "it to be shown no more")
    shown = json.loads(stopped.lakemark.command("status", "--output", "json"))["tables"]
    assert [table["name"] for table in shown] == [KEPT]
    stopped.lakemark.stop()
    if expired:
        expire(stopped, database.topic("lost"))
    assert stopped.version(LOST) == version

    choose(stopped, KEPT, LOST)
    stopped.lakemark.start()
    assert [event["table"] for event in stopped.lakemark.events("table.taken_back")] == [LOST]
    stopped.wait_equal()
    stopped.wait_progress(LOST, "whole again", lambda r: not r.get("resnapshot"))
    queued = {event["table"] for event in stopped.lakemark.events("snapshot.queued")}
    assert queued == ({LOST} if expired else set())


def test_lost_commands_are_told_and_gone_over_on_a_persons_word(stopped: Running):
    """Of the chunks topic nobody is asked: its chunks are read again anyway."""
    config = load(stopped.lakemark.config)
    stopped.lakemark.command("table", "pause", KEPT)
    records.publish(config, config.topics.chunks, [(b"{}", b"nobody will read this")])
    for topic in (config.topics.control, config.topics.chunks):
        expire(stopped, topic)
    said = refused(stopped, "control-lost")
    assert "lakemark recover --control" in unnamed(said)
    stopped.lakemark.command("recover", "--control")
    stopped.lakemark.start()
    again = {
        event["topic"]: event["tables"] for event in stopped.lakemark.events("topic.begins_again")
    }
    assert again == {config.topics.control: [], config.topics.chunks: []}
    stopped.lakemark.wait_for_event("batch.done", STATE_S)  # the command waits less long
    stopped.lakemark.command("snapshot", "start", LOST, "--wait")
    stopped.wait_equal()
    stopped.wait_state(KEPT, "streaming")
    stopped.lakemark.command("table", "pause", KEPT)
    stopped.wait_state(KEPT, "paused")
    stopped.lakemark.command("table", "resume", KEPT)
    stopped.wait_state(KEPT, "streaming")


@nightly
def test_events_that_go_while_their_table_is_paused_are_told_when_it_goes_on(streaming: Running):
    """Spark meets the gap first; the start after it says which tables it concerns."""
    streaming.lakemark.command("table", "pause", LOST)
    streaming.wait_state(LOST, "paused")
    streaming.database.execute(f"UPDATE {LOST} SET v = v || ' paused' WHERE id = 3")
    streaming.database.execute(f"UPDATE {KEPT} SET v = v || ' paused' WHERE id = 3")
    streaming.wait_drained()
    streaming.wait_equal(KEPT)
    expire(streaming, streaming.database.topic("lost"))
    streaming.lakemark.command("table", "resume", LOST)
    assert streaming.lakemark.wait_ended(STATE_S) == 1
    assert f"lakemark recover --resnapshot {LOST}" in unnamed(streaming.lakemark.log_tail(60))
    mended(streaming)


def test_positions_that_fall_stop_their_table_until_a_person_says_why(streaming: Running):
    """As after a restore: an event that is newer, at a position that was applied long ago.

    It is made from a real one, because the connector does not go on over a restored database.
    """
    kafka, topic = streaming.database.stack.kafka, streaming.database.topic("kept")
    streaming.database.execute(f"UPDATE {KEPT} SET v = 'before' WHERE id = 4")
    streaming.wait_drained()
    streaming.wait_equal()
    written = kafka.read(topic, count=sum(kafka.end_offsets(topic).values()))
    last = max((one for one in written if b"before" in (one.value() or b"")), key=Message.offset)
    event = json.loads(last.value())
    event["source"] |= {"sequence": '["1000","1008"]', "lsn": 1008}
    for unit, second in {"ts_ms": 10**3, "ts_us": 10**6, "ts_ns": 10**9}.items():
        event["source"][unit] += second
    event["after"]["v"] = "restored"
    producer = kafka.producer()
    producer.produce(topic, json.dumps(event), last.key(), partition=last.partition())
    assert producer.flush(30) == 0

    streaming.wait_state(KEPT, "errored")
    said = streaming.lakemark.command("status")
    assert "position-regressed" in unnamed(said)
    assert "lakemark recover --new-epoch" in unnamed(said)
    streaming.database.execute(f"UPDATE {LOST} SET v = 'goes on' WHERE id = 4")
    streaming.wait_drained()
    streaming.wait_equal(LOST)
    assert {row["v"] for row in streaming.rows(KEPT).to_pylist() if row["id"] == 4} == {"before"}

    streaming.lakemark.command("recover", "--new-epoch")
    streaming.lakemark.wait_for_event("pipeline.new_epoch", STATE_S)
    streaming.wait_state(KEPT, "streaming")
    streaming.wait_equal()  # what was restored is found out by a snapshot that comes by itself
    assert streaming.lakemark.events("snapshot.queued")
