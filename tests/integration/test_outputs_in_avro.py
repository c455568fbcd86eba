"""Output topics in Avro of a connector that writes JSON, as clients read them that are not ours."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.json.converter import JsonConverter
from lakemark.model.decoding import ConverterOptions, Records, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from stack import every_type, shop
from stack.local import Database
from stack.registry import Registry
from stack.servers import VARIABLE, Way
from tests.kit.nightly import nightly
from tests.kit.output_topics import OutputTopic, Seen, different, schema_of
from tests.kit.running import Running
from tests.kit.servers import WAY, on
from tests.kit.snapshots import SNAPSHOT, Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LINES = """
CREATE TABLE "Order lines" (
    "order id" int, line int, text text, "2nd" numeric(8, 2) DEFAULT 1.5,
    PRIMARY KEY ("order id", line)
)
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry of its own."""
    if WAY is not Way.PROCESSES:
        pytest.skip(f"a registry runs as a child process alone ({VARIABLE} is {WAY})")
    directory = tmp_path_factory.mktemp("registry")
    started = Registry(directory=directory, log=directory / "log")
    started.start()
    try:
        yield started
    finally:
        started.kill()


class Consumer:
    """Reads output topics by confluent-kafka's deserializer."""

    def __init__(self, registry: Registry) -> None:
        self.client = SchemaRegistryClient({"url": registry.compatible_url})
        self._read = AvroDeserializer(self.client)

    def value(self, topic: OutputTopic, seen: Seen) -> dict[str, Any]:
        context = SerializationContext(topic.name, MessageField.VALUE)
        found = self._read(seen.value, context)
        assert isinstance(found, dict)
        return found

    def key(self, topic: OutputTopic, seen: Seen) -> dict[str, Any]:
        found = self._read(seen.key, SerializationContext(topic.name, MessageField.KEY))
        assert isinstance(found, dict)
        return found


def newest(
    topic: OutputTopic, connector: str, registry: Registry, folder: Path
) -> Mapping[bytes, bytes]:
    """The image of every key that has a row, as lakemark's own converter reads it."""
    own = {"schema.registry.url": registry.compatible_url, "registry.folder": str(folder)}
    converter = AvroConverter(JsonConverter(), options=ConverterOptions(own=(*own.items(),)))
    seen = topic.seen
    records = Records(
        topic.name,
        0,
        [*range(len(seen))],
        [one.key for one in seen],
        [one.value for one in seen],
        [None] * len(seen),
    )
    plan = StretchPlan(SourceIdentity(connector, ""), HandlingModes()).of_epoch(0)
    heads = converter.headers(records, plan)
    assert [detail for detail in heads.detail if detail] == []
    rows: dict[bytes, bytes] = {}
    for one, after in zip(seen, heads.after, strict=True):
        if after is None:
            rows.pop(one.key, None)
        else:
            rows[one.key] = after
    return rows


def arrived(running: Running, table: str, registry: Registry, folder: Path) -> OutputTopic:
    """The topic of a table that nothing changes any more: its rows are those of the table."""
    topic, reads = OutputTopic.of(running, table), Consumer(registry)
    topic.read()
    assert topic.steps_back() == []
    for seen in topic.seen:
        assert reads.key(topic, seen)
        if seen.value is not None:
            assert reads.value(topic, seen)["op"] in {"c", "u", "d", "r"}
    kind = running.database.server.connector
    connector = {"postgres": "postgresql"}.get(kind, kind)
    rows = dict(newest(topic, connector, registry, folder))
    found = different(running, table, schema_of(running, table), rows)
    assert found == [], found
    return topic


def test_every_type_of_a_connector_that_writes_json(
    database: Database, registry: Registry, tmp_path: Path
):
    """Events, a snapshot's rows, deletes, a truncate; names that Avro has to change."""
    limits = every_type.Limits.of({})
    sections = {
        **SNAPSHOT,
        "output": {
            "topic_prefix": f"{database.name}.clean",
            "format": "avro",
            "converter": {"schema.registry.url": registry.compatible_url},
        },
    }
    lines = "public.Order lines"
    with database.connect() as connection:
        every_type.create(connection, limits)
        database.execute(LINES)
        database.execute(
            "INSERT INTO \"Order lines\" SELECT 1, n, 'a' FROM generate_series(1, 300) n"
        )
        database.start_connector({"snapshot.mode": "no_data"})
        with Running(database, tmp_path, sections) as running:
            running.lakemark.start()
            count = every_type.insert(connection, limits, first=1001)
            database.execute("UPDATE all_types SET integer = 7 WHERE id <= 1010")
            database.execute('UPDATE "Order lines" SET text = NULL, "2nd" = NULL WHERE line = 7')
            database.execute('DELETE FROM "Order lines" WHERE line = 8')
            database.execute('UPDATE "Order lines" SET line = 1000 WHERE line = 9')
            running.wait_captured("all_types", f"SELECT {count} FROM {{}} LIMIT 1")
            with Snapshots(running) as snapshots:
                snapshots.run(lines)
            running.wait_equal()
            arrived(running, "public.all_types", registry, tmp_path / "schemas")
            topic = arrived(running, lines, registry, tmp_path / "schemas")
            reads = Consumer(registry)
            ops = [reads.value(topic, one)["op"] for one in topic.seen if one.value]
            assert ops.count("r") >= 298
            row = next(
                v["after"]
                for one in topic.seen
                if one.value and (v := reads.value(topic, one))["op"] == "u"
            )
            assert {*row} == {"order_id", "line", "text", "_2nd"}
            database.execute('TRUNCATE "Order lines"')
            running.wait_equal()
            topic = arrived(running, lines, registry, tmp_path / "schemas")
            assert sum(one.value is None for one in topic.seen) >= 300
            subjects = {s for s in reads.client.get_subjects() if s.startswith(database.name)}
            assert subjects == {
                f"{name}-{side}"
                for name in (topic.name, f"{database.name}.clean.public.all_types")
                for side in ("key", "value")
            }
            versions = reads.client.get_versions(f"{topic.name}-value")
            assert versions == [1], "events and rows have one schema"
            assert running.dead_letters() == []
            fields = json.loads(
                reads.client.get_latest_version(f"{topic.name}-key").schema.schema_str
            )
            assert [field["name"] for field in fields["fields"]] == ["order_id", "line"]


@on(*(pytest.param(service, marks=nightly) for service in ("mariadb-11.4", "mysql-9.7")))
def test_a_shop_of_other_databases(any_database: Database, registry: Registry, tmp_path: Path):
    """Source blocks, unsigned numbers and times of MySQL and MariaDB."""
    database = any_database
    sections = {
        **SNAPSHOT,
        "output": {
            "topic_prefix": f"{database.name}.clean",
            "format": "avro",
            "converter": {"schema.registry.url": registry.compatible_url},
        },
    }
    shop.create(database)
    shop.fill(database, scale=0.02)
    database.start_connector()
    with Running(database, tmp_path, sections) as running:
        running.lakemark.start()
        database.execute("UPDATE orders SET note = 'changed' WHERE id <= 20")
        database.execute("DELETE FROM line_items WHERE order_id = 3")
        running.wait_equal()
        tables = [database.identifier(name) for name in ("orders", "line_items")]
        with Snapshots(running) as snapshots:
            snapshots.run(*tables)
        running.wait_equal()
        for table in tables:
            assert len(arrived(running, table, registry, tmp_path / "schemas").seen) > 20
