"""Records that can never be decoded become dead letters with their bytes; the rest lands."""

import copy
import json

import pytest

from stack.local import Database
from tests.kit.running import Running, header

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]

TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, amount numeric(12, 2), at timestamp, note text)"
)
INSERT = "INSERT INTO orders SELECT n, n / 100.0, '2024-01-01', 'note' FROM generate_series(%s::int, %s::int) n"


def poisons(genuine: dict) -> list[tuple[str, bytes | None, bytes]]:
    """Reason, key and value of each bad record, made from a genuine event."""

    def event(number: int, change) -> bytes:
        record = copy.deepcopy(genuine)
        record["after"]["id"] = number
        change(record)
        return json.dumps(record).encode()

    def key(number: int) -> bytes:
        return json.dumps({"id": number}).encode()

    whole = event(901, lambda r: None)
    return [
        ("invalid-json", key(901), whole[: len(whole) // 2]),
        ("another-form", key(902), b"\x00\x01\x02"),
        ("invalid-json", key(903), b'{"op":"c"' + b"[" * 50_000),
        ("invalid-utf8", key(904), event(904, lambda r: None).replace(b'"note"}', b'"\xff\xfe"}', 1)),
        ("wrong-type", key(905), event(905, lambda r: r["after"].update(at="yesterday"))),
        ("wrong-type", key(906), event(906, lambda r: r["after"].update(note={"a": [1]}, at=[1]))),
        ("number-out-of-range", key(907), event(907, lambda r: r["after"].update(at=10**30))),
        ("wrong-type", b'{"id":"text"}', event(908, lambda r: r["after"].update(id="text"))),
        ("foreign-connector", key(909), event(909, lambda r: r["source"].update(name="other"))),
        ("foreign-connector", key(910), event(910, lambda r: r["source"].update(connector="mysql"))),
        ("unknown-op", key(911), event(911, lambda r: r.update(op="x"))),
        ("missing-image", key(912), event(912, lambda r: r.update(after=None))),
        ("missing-position", key(913), event(913, lambda r: r["source"].update(sequence=None, lsn=None))),
        ("not-debezium", key(914), b'{"hello": "world"}'),
        ("not-debezium", key(915), b"[1, 2, 3]"),
        ("null-key", None, event(916, lambda r: None)),
        ("record-too-large", key(917), event(917, lambda r: r["after"].update(note="x" * 5_000_000))),
    ]  # fmt: skip


@pytest.mark.parametrize("wrapped", ["false", "true"])
def test_poison_records_become_dead_letters(database: Database, tmp_path, wrapped):
    database.execute(TABLE)
    database.execute("CREATE TABLE quiet (id int PRIMARY KEY)")
    database.execute(INSERT, [1, 20])
    database.start_connector(
        {"topic.creation.default.partitions": "1", "value.converter.schemas.enable": wrapped}
    )
    topic = database.topic("orders")
    kafka = database.stack.kafka
    with Running(database, tmp_path) as running:
        running.lakemark.start()
        running.wait_equal()
        database.execute(INSERT, [21, 60])
        running.wait_drained()
        genuine = json.loads(kafka.read(topic, count=60)[-1].value())
        bad = poisons(genuine.get("payload", genuine))
        first = kafka.end_offsets(topic)[0]
        producer = kafka.producer(message_max_bytes=10_000_000)
        for _, key, value in bad:
            producer.produce(topic, key=key, value=value, partition=0)
        assert producer.flush(30) == 0
        database.execute(INSERT, [61, 100])
        database.execute("INSERT INTO quiet VALUES (1)")
        running.wait_equal()

        letters = sorted(running.dead_letters(), key=lambda m: int(header(m, "offset")))
        found = {int(header(m, "offset")): m for m in letters}
        reasons = {offset: header(m, "reason") for offset, m in found.items()}
        assert reasons == {first + n: reason for n, (reason, _, _) in enumerate(bad)}
        for n, (_, key, value) in enumerate(bad):
            assert (found[first + n].key(), found[first + n].value()) == (key, value)
            assert header(found[first + n], "topic") == topic
        state = running.lakemark.progress()["public.orders"]
        assert state.get("state", "streaming") == "streaming"
        quiet = running.wait_progress("public.quiet", "told", lambda _: True)
        assert quiet.get("dead_letters", 0) == 0


def test_a_topic_of_poison_stops_its_table_instead(database: Database, tmp_path):
    database.execute(TABLE)
    database.execute("CREATE TABLE quiet (id int PRIMARY KEY)")
    database.execute(INSERT, [1, 5])
    database.start_connector({"topic.creation.default.partitions": "1"})
    topic, kafka = database.topic("orders"), database.stack.kafka
    with Running(database, tmp_path, {"dead_letters": {"max_per_batch": 20}}) as running:
        running.equal_after_once()
        producer = kafka.producer()
        for number in range(100):
            producer.produce(topic, key=json.dumps({"id": number}), value=b"{", partition=0)
        assert producer.flush(30) == 0
        database.execute("INSERT INTO quiet VALUES (1)")
        database.execute(INSERT, [6, 10])
        running.wait_drained()

        assert running.lakemark.run_once() == 1, "a table has stopped"

        state = running.lakemark.progress()["public.orders"]
        assert (state["state"], state["code"]) == ("errored", "too-many-bad-records")
        assert running.dead_letters() == []
        found = running.compare("public.quiet")
        assert found.is_equal, str(found)
