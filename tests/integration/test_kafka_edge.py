"""Our own topics, offsets and records on a real broker."""

import gc
import multiprocessing
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from multiprocessing.synchronize import Event

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from lakemark.errors import ConfigError, DependencyError, LakemarkError, PipelineError
from lakemark.kafka.brokers import Cluster, librdkafka_options, topic_plan
from lakemark.kafka.records import producer, publish, read_all, read_compacted
from lakemark.settings.config import Config
from lakemark.state import recovery
from lakemark.state.ownership import SESSION_MS, Turn
from lakemark.state.tables import PipelineState, TableState
from stack.kafka import Kafka
from stack.local import Servers
from stack.processes import free_port, wait_for
from tests.kit import kafka_acls

pytestmark = pytest.mark.integration


def config(servers: str, *, timeout: str = "20s", **kafka) -> Config:
    return Config.model_validate(
        {
            "name": f"edge-{uuid.uuid4().hex[:8]}",
            "kafka": {"bootstrap_servers": servers, "timeout": timeout, **kafka},
            "source": {"connect": {"url": "http://c", "connector": "s"}},
            "lake": {"path": "/lake"},
            "checkpoint": "/checkpoint",
        }
    )


@pytest.fixture
def ours(stack: Servers) -> Config:
    return config(stack.kafka.bootstrap)


def test_topics_are_made_once_with_their_settings(ours: Config):
    plan = topic_plan(ours)
    with Cluster(ours) as cluster:
        assert set(cluster.ensure_topics()) == set(plan)
        assert cluster.ensure_topics() == []
        counts = cluster.partition_counts([*plan, "no-such-topic"])
        assert counts == {name: count for name, (count, _) in plan.items()}
        found = cluster.settings_of([ours.topics.progress, ours.topics.dead_letters])
        assert found[ours.topics.progress]["cleanup.policy"] == "compact"
        assert int(found[ours.topics.dead_letters]["max.message.bytes"]) == 11 * 1024**2
        ids = cluster.topic_ids(plan)
        assert len(set(ids.values())) == len(plan)
        assert ours.topics.control in cluster.topics(r"edge-.*\.control")


def test_asking_for_a_topic_does_not_make_it(ours: Config):
    with Cluster(ours) as cluster:
        assert cluster.partition_counts([ours.topics.control]) == {}
        assert cluster.end_offsets([ours.topics.control]) == {}
        assert cluster.topics(ours.topics.control) == []


def test_a_topic_with_settings_that_cannot_work_is_refused(ours: Config, stack: Servers):
    stack.kafka.create_topic(ours.topics.control, partitions=3)
    stack.kafka.create_topic(ours.topics.progress)
    stack.kafka.create_topic(ours.topics.dead_letters, config={"max.message.bytes": "1000000"})
    with Cluster(ours) as cluster, pytest.raises(ConfigError) as caught:
        cluster.ensure_topics()
    text = str(caught.value)
    assert "exactly one" in text
    assert "cleanup.policy must be compact" in text
    assert "max.message.bytes must be" in text
    assert "kafka-configs.sh" in caught.value.hint


def test_a_refused_topic_names_the_command(ours: Config):
    broken = ours.model_copy(update={"name": "x"})
    with Cluster(broken) as cluster, pytest.raises(ConfigError) as caught:
        cluster._create({broken.topics.control: (1, {"cleanup.policy": "nonsense"})})
    assert "kafka-topics.sh" in caught.value.hint
    assert broken.topics.control in caught.value.hint


def test_records_and_the_newest_value_of_each_key(ours: Config):
    with Cluster(ours) as cluster:
        cluster.ensure_topics()
        topic = ours.topics.progress
        assert read_compacted(ours, topic) == {}
        publish(ours, topic, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"c", None)])
        assert read_compacted(ours, topic) == {b"a": b"3", b"b": b"2"}
        assert cluster.end_offsets([topic]) == {(topic, 0): 5}
        assert cluster.start_offsets([topic]) == {(topic, 0): 0}
    assert read_compacted(ours, "no-such-topic") == {}


def test_a_compacted_topic_that_is_written_all_the_time_is_read_to_its_end_as_of_now(ours: Config):
    topic, written = ours.topics.progress, threading.Event()
    with Cluster(ours) as cluster:
        cluster.ensure_topics()
    publish(ours, topic, [(b"a", b"1")])

    def write() -> None:
        client = producer(ours)
        while not written.wait(0.05):  # the end moves on before a reader has waited for it
            publish(ours, topic, [(b"b", b"2")], client=client)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert read_compacted(ours, topic)[b"a"] == b"1"
    finally:
        written.set()
        writer.join()


def test_all_records_of_a_topic_up_to_its_end_as_of_the_first(ours: Config):
    topic, hour = ours.topics.dead_letters, 3_600_000
    assert list(read_all(ours, topic)) == []
    with Cluster(ours) as cluster:
        cluster.ensure_topics()
    assert list(read_all(ours, topic)) == []
    client, now = producer(ours), time.time_ns() // 1_000_000
    for age in range(20):
        key, at = f"k{age}", now - age * hour
        client.produce(topic, b"v", key, timestamp=at, headers=[("h", key.encode()), ("n", None)])
    assert client.flush(20) == 0

    reader = read_all(ours, topic)
    first = next(reader)
    publish(ours, topic, [(f"later{n}".encode(), b"v") for n in range(50)])
    found = {record.key: record for record in [first, *reader]}
    assert set(found) == {f"k{age}".encode() for age in range(20)}
    assert found[b"k3"].headers == (("h", b"k3"), ("n", None))
    assert found[b"k3"].timestamp_ms == now - 3 * hour

    young = {record.key for record in read_all(ours, topic, since_ms=now - 3 * hour)}
    assert young >= {f"later{n}".encode() for n in range(50)} | {b"k0", b"k1", b"k2", b"k3"}
    assert list(read_all(ours, topic, since_ms=now + 10 * hour)) == []


def test_a_record_of_ten_megabytes_fits_into_dead_letters(ours: Config):
    with Cluster(ours) as cluster:
        cluster.ensure_topics()
        topic = ours.topics.dead_letters
        publish(ours, topic, [(b"k", b"x" * (10 * 1024**2))])
        assert sum(cluster.end_offsets([topic]).values()) == 1


def test_committed_ends_stop_before_an_open_transaction(ours: Config):
    with Cluster(ours) as cluster:
        cluster.ensure_topics()
        topic = ours.topics.control
        open_one = producer(ours, {"transactional.id": ours.name})
        open_one.init_transactions(20)
        open_one.begin_transaction()
        open_one.produce(topic, b"x")
        open_one.flush(20)
        assert cluster.end_offsets([topic]) == {(topic, 0): 0}
        assert cluster.end_offsets([topic], committed=False) == {(topic, 0): 1}
        open_one.abort_transaction(20)


class Ids(dict[str, str]):
    """The topics' ids as the checkpoint keeps them."""

    def topics(self) -> dict[str, str]:
        return dict(self)

    def note_topics(self, ids: dict[str, str]) -> None:
        self |= ids


def test_a_topic_that_is_gone_is_looked_for_once_where_no_table_misses_it(ours: Config):
    """Whoever watches asks again as soon as the state names a topic that was not looked at."""
    control, ids = ours.topics.control, Ids()
    with Cluster(ours) as cluster:
        cluster.ensure_topics()
    state = PipelineState(offsets={control: {0: 0}, "gone": {0: 7}})
    assert recovery.still_there(ours, ids, state) == {control, "gone"}
    assert set(ids) == {control}, "only the id of one that exists is remembered"
    assert recovery.still_there(ours, ids, state) == {control, "gone"}
    state.tables["public.gone"] = TableState(topics=["gone"])
    with pytest.raises(PipelineError, match="gone does not exist any more"):
        recovery.still_there(ours, ids, state)


def test_a_topic_that_is_made_again_while_it_is_read_is_told_by_its_id(
    ours: Config, stack: Servers
):
    """Offsets say nothing: nothing was read of it yet, or it has as many records again."""
    topic, ids, admin = f"{ours.name}.read", Ids(), stack.kafka.admin()
    stack.kafka.create_topic(topic)
    state = PipelineState(offsets={topic: {0: 0}}, tables={"a.b": TableState(topics=[topic])})
    assert recovery.still_there(ours, ids, state) == {topic}
    admin.delete_topics([topic])[topic].result(30)
    wait_for(lambda: topic not in stack.kafka.topics(), 120, "the topic to be gone")
    stack.kafka.create_topic(topic)
    before = dict(ids)
    with pytest.raises(PipelineError) as caught:
        recovery.still_there(ours, ids, state)
    assert caught.value.code == "topic-recreated"
    assert "lakemark recover --resnapshot a.b" in caught.value.hint
    assert ids == before, "the next start must see it too"


def ask_once(config: Config, ask: Callable[[Cluster], object]) -> None:
    with Cluster(config) as cluster:
        ask(cluster)


@pytest.mark.parametrize(
    "ask",
    [
        lambda c: ask_once(c, lambda cluster: cluster.partition_counts(["x"])),
        lambda c: ask_once(c, lambda cluster: cluster.topics(".*")),
        lambda c: publish(c, "x", [(b"k", b"v")]),
        lambda c: read_compacted(c, "x"),
        lambda c: list(read_all(c, "x", since_ms=1)),
    ],
    ids=["describe", "list", "publish", "read", "read_all"],
)
def test_a_broker_that_is_away_is_said_within_the_deadline(ask):
    away = config(f"127.0.0.1:{free_port()}", timeout="2s")
    begun = time.monotonic()
    with pytest.raises(DependencyError) as caught:
        ask(away)
    assert caught.value.code == "kafka-unavailable"
    assert caught.value.retried
    assert time.monotonic() - begun < 12


def test_a_client_ends_with_its_block_and_not_with_what_still_holds_it():
    """The garbage collector may run in the client's own thread; ended there, it ends the process."""
    away = config(f"127.0.0.1:{free_port()}", timeout="1s")
    gc.disable()
    try:
        with pytest.raises(DependencyError) as caught, Cluster(away) as cluster:
            client = weakref.ref(cluster._admin)
            cluster.end_offsets(["x"])
        assert caught.tb is not None
        assert client() is None
    finally:
        gc.enable()


def test_speaking_tls_to_a_plain_broker_is_an_error_of_ours(stack: Servers):
    secured = config(stack.kafka.bootstrap, timeout="3s", security={"security_protocol": "SSL"})
    with Cluster(secured) as cluster, pytest.raises(LakemarkError) as caught:
        cluster.partition_counts(["x"])
    assert "SSL" in str(caught.value)


def test_one_process_has_the_turn_and_the_next_one_gets_it(ours: Config):
    """Also while the topic that the queue is about does not exist yet."""
    with Turn(ours) as first:
        with Cluster(ours) as cluster:
            cluster.ensure_topics()
        wait_for(lambda: first.held, 120, "the first turn")
        with Turn(ours) as second, Turn(ours) as third:
            wait_for(lambda: _members(ours) == 3, 120, "all three to be in the queue")
            assert first.held
            assert not any(turn.held for turn in (second, third))
            first.__exit__(None, None, None)
            wait_for(lambda: second.held or third.held, 120, "the next turn")
            assert second.held != third.held
            assert not first.held


def _members(ours: Config) -> int:
    admin = AdminClient(librdkafka_options(ours))
    group = f"{ours.name}.owner"
    found = admin.describe_consumer_groups([group])[group].result(30)
    stable = found.state == ConsumerGroupState.STABLE
    return len(found.members) if stable else 0


def hold_the_turn(ours: Config, held: Event) -> None:
    """Of a process of its own, until that is killed."""
    with Turn(ours) as turn:
        wait_for(lambda: turn.held, 120, "the turn")
        held.set()
        threading.Event().wait()


def test_a_process_that_is_killed_loses_its_turn_with_its_session(ours: Config):
    """It says nothing any more: only its silence tells the brokers."""
    with Cluster(ours) as cluster:
        cluster.ensure_topics()
    spawning = multiprocessing.get_context("spawn")
    held = spawning.Event()
    first = spawning.Process(target=hold_the_turn, args=(ours, held), daemon=True)
    first.start()
    try:
        assert held.wait(60), "the first turn"
        with Turn(ours) as second:
            wait_for(lambda: _members(ours) == 2, 120, "both to be in the queue")
            assert not second.held
            first.kill()
            killed = time.monotonic()
            # A client that says nothing else has a session of 45 s.
            wait_for(lambda: second.held, 4 * SESSION_MS / 1000, "the next turn")
            print(f"taken over after {time.monotonic() - killed:.1f} s")
    finally:
        first.kill()
        first.join()


def test_a_group_that_may_not_be_joined_is_named_with_what_grants_it(strict: Kafka):
    ours = config(strict.bootstrap)
    group = f"{ours.name}.owner"
    with Cluster(ours) as cluster:
        cluster.ensure_topics()
    admin = strict.admin()

    def allow(user: str) -> None:
        granted = AclBinding(
            ResourceType.GROUP, group, ResourcePatternType.LITERAL,
            f"User:{user}", "*", AclOperation.READ, AclPermissionType.ALLOW,
        )  # fmt: skip
        kafka_acls.grant(admin, granted)

    allow("somebody-else")
    with Turn(ours) as turn:
        problem = wait_for(lambda: turn.problem, 120, "the refusal")
        assert isinstance(problem, ConfigError)
        assert f"may not join the group {group}" in problem.message
        assert "kafka-acls.sh" in problem.hint
        assert f"--operation Read --group {group}" in problem.hint
        assert not turn.held
        allow("ANONYMOUS")
        wait_for(lambda: turn.held and turn.problem is None, 120, "the turn, once it is granted")
