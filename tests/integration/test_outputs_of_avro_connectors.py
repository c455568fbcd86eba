"""Output topics of a connector that writes Avro: byte for byte, and what a registry refuses."""

import json
from pathlib import Path

import httpx
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from stack.avro import avro_settings
from stack.local import Database, Servers
from stack.registry import Registry
from tests.kit.command_line import invoke
from tests.kit.nightly import nightly
from tests.kit.output_topics import OutputTopic
from tests.kit.running import Running
from tests.kit.snapshots import SNAPSHOT, Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.slow, nightly]

TABLE = "public.pets"


def test_events_stay_byte_for_byte_and_a_schema_that_is_refused_loses_none(
    stack: Servers, database: Database, registry: Registry, tmp_path: Path
):
    sections = {
        **SNAPSHOT,
        "source": {
            "connect": {"url": stack.connect.url, "connector": database.name},
            "converter": {"registry.folder": str(tmp_path / "schemas")},
        },
        "output": {"topic_prefix": f"{database.name}.clean", "format": "avro"},
    }
    database.execute("CREATE TABLE pets (id int PRIMARY KEY, name text, big text)")
    database.execute("ALTER TABLE pets ALTER COLUMN big SET STORAGE EXTERNAL")
    database.execute(
        "INSERT INTO pets SELECT n, 'a', repeat('x', 5000) FROM generate_series(1, 200) n"
    )
    database.start_connector({"snapshot.mode": "no_data", **avro_settings(registry.url)})
    read = AvroDeserializer(client := SchemaRegistryClient({"url": registry.compatible_url}))
    with Running(database, tmp_path, sections) as running:
        running.lakemark.start()
        database.execute("INSERT INTO pets VALUES (1001, 'b', repeat('y', 5000))")
        database.execute("UPDATE pets SET name = 'c' WHERE id = 1001")
        database.execute("DELETE FROM pets WHERE id = 200")
        running.wait_captured("pets", "SELECT 3 FROM {} LIMIT 1")
        with Snapshots(running) as snapshots:
            snapshots.run(TABLE)
        running.wait_equal()
        topic = OutputTopic.of(running, TABLE)
        context = SerializationContext(topic.name, MessageField.VALUE)

        def rows() -> list[dict]:
            return [read(one.value, context) for one in topic.read() if one.value]

        events = rows()
        assert topic.steps_back() == []
        assert sum(event["op"] == "r" for event in events) >= 199
        sent = changes(running)
        put_in = []
        for one in topic.seen:
            place = one.headers.get("lakemark.source", b"").decode()
            if one.value and place in sent and sent[place] != (one.key, one.value):
                put_in.append(read(one.value, context))
        assert [(e["op"], e["after"]["name"], e["after"]["big"]) for e in put_in] == [
            ("u", "c", "y" * 5000)
        ], "the one with a value that the connector did not send"
        numbers = {value[:5] for _, value in sent.values() if value}
        assert {one.value[:5] for one in topic.seen if one.value} == numbers
        subject = f"{topic.name}-value"
        assert client.get_versions(subject) == [1]
        plan = json.loads(running.lakemark.command("plan", "-o", "json"))
        assert plan["registries"] == [registry.url]
        assert {(s["name"], s["registry"], s["action"]) for s in plan["subjects"]} == {
            (f"{topic.name}-{side}", registry.url, "keep") for side in ("key", "value")
        }
        assert of_doctor(running, "output subject") == [("ok", topic.name)]

        config = f"{registry.compatible_url}/config/{subject}"
        httpx.put(config, json={"compatibility": "FULL"}).raise_for_status()
        database.execute("ALTER TABLE pets ADD COLUMN age int NOT NULL DEFAULT 3")
        database.execute("ALTER TABLE pets ALTER COLUMN age DROP DEFAULT")
        database.execute("UPDATE pets SET age = 4 WHERE id < 10")
        record = running.wait_state(TABLE, "errored")
        assert record["code"] == "output-schema-refused", record
        assert subject in record["reason"]
        assert of_doctor(running, "output subject") == [("error", subject)]
        httpx.put(config, json={"compatibility": "NONE"}).raise_for_status()
        running.lakemark.command("table", "resume", TABLE)
        running.wait_state(TABLE, "streaming")
        running.wait_equal()
        ages = {e["after"]["id"]: e["after"]["age"] for e in rows() if "age" in (e["after"] or {})}
        assert {number: ages[number] for number in range(1, 10)} == dict.fromkeys(range(1, 10), 4)
        assert len(client.get_versions(subject)) >= 2
        assert running.dead_letters() == []


def of_doctor(running: Running, check: str) -> list[tuple[str, str]]:
    """Verdict and subject of what the doctor finds in a check."""
    done = invoke("doctor", "-c", str(running.lakemark.config), "-o", "json")
    found = json.loads(done.stdout)
    return [(f["verdict"], f["subject"]) for f in found if f["check"] == check]


def changes(running: Running) -> dict[str, tuple[bytes | None, bytes | None]]:
    """Keys and values of the change topic, by their places."""
    kafka, topic = running.database.stack.kafka, running.database.topic("pets")
    found = kafka.read(topic, count=sum(kafka.end_offsets(topic).values()))
    return {
        f"{one.topic()}-{one.partition()}-{one.offset()}": (one.key(), one.value()) for one in found
    }
