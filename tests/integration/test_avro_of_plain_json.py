"""Avro made of JSON without schemas is what the same connector registers and writes with Avro."""

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from stack import every_mysql_type, every_type
from stack.avro import avro_settings
from stack.local import Database
from tests.kit.nightly import nightly
from tests.kit.output_topics import OutputTopic
from tests.kit.running import Running
from tests.kit.servers import on, registry_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NUMERIC = {"value.converter.decimal.format": "NUMERIC", "key.converter.decimal.format": "NUMERIC"}
STRUCTURED = {"time.precision.mode": "structured"}
DEFAULTS = """
CREATE TABLE defaults (
    id int PRIMARY KEY, told varchar(20) NOT NULL DEFAULT 'it is', maybe int DEFAULT 7,
    price decimal(10, 2) DEFAULT 1.5, day date NOT NULL DEFAULT '2024-02-29',
    made timestamp DEFAULT CURRENT_TIMESTAMP
)
"""
LEFT = ("__debezium.source.column.name",)
"""Names that Avro has changed."""
NULLS = ("maybe", "price", "made")
NO_DECIMAL = {
    "public.all_types-value": [
        ".fields[before].type[Value].fields[numeric_3_5_].type[None].logicalType: None 'decimal'"
    ]
}
"""The one difference that is there on purpose: parsers refuse the connector's schema for it."""


@contextmanager
def avro_beside(database: Database) -> Iterator[str]:
    """Have a second connector of the same tables and settings that writes Avro; its topics' prefix."""
    name = f"{database.name}_avro"
    config = {
        setting: name + value.removeprefix(database.name)
        if setting in {"topic.prefix", "slot.name", "publication.name"}
        or setting == "schema.history.internal.kafka.topic"
        else value
        for setting, value in database.config.items()
        if setting not in NUMERIC
    }
    if "database.server.id" in config:
        config["database.server.id"] = str(int(config["database.server.id"]) ^ 1 << 30)
    config |= avro_settings(registry_of(database.stack).url)
    connect = database.stack.connect
    connect.put_connector(name, config)
    try:
        connect.wait_running(name)
        yield name
    finally:
        connect.delete_connector(name)
        replace(database, config=config)._release()


class Reader:
    """Reads Avro by its writer's schema alone: decimals and times stay as they are written."""

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client

    def schema(self, subject: str) -> Any:
        return json.loads(self._client.get_latest_version(subject).schema.schema_str)

    def images(self, records: Mapping[bytes, bytes]) -> dict[int, Any]:
        """The newest image of each row, by its id."""
        rows = {}
        for value in records.values():
            schema = json.loads(self._client.get_schema(int.from_bytes(value[1:5])).schema_str)
            bare = fastavro.parse_schema(without_logic(schema))
            row = fastavro.schemaless_reader(io.BytesIO(value[5:]), bare, None)["after"]
            rows[row["id"]] = row
        return rows


def without_logic(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: without_logic(v) for k, v in schema.items() if k != "logicalType"}
    return [*map(without_logic, schema)] if isinstance(schema, list) else schema


def registered(schema: Any, *, without: tuple[str, ...]) -> Any:
    """A schema without some of its notes, and without what then says nothing more than its type."""
    if isinstance(schema, list):
        return [registered(one, without=without) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {k: registered(v, without=without) for k, v in schema.items() if k not in without}
    kept = {k: v for k, v in kept.items() if v != {}}
    return kept["type"] if kept.keys() == {"type"} else kept


def unlike(one: Any, other: Any, at: str = "") -> list[str]:
    """Where two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = {*one, *other}
        found = [unlike(one.get(n), other.get(n), f"{at}.{n}") for n in sorted(names)]
        return [text for some in found for text in some]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        label = [f.get("name") if isinstance(f, dict) else n for n, f in enumerate(one)]
        found = [unlike(a, b, f"{at}[{n}]") for n, a, b in zip(label, one, other, strict=True)]
        return [text for some in found for text in some]
    return [] if repr(one) == repr(other) else [f"{at}: {one!r} {other!r}"]


def create(database: Database, settings: Mapping[str, str]) -> list[str]:
    """Make the table of every type, and one of columns with defaults; return their identifiers."""
    database.execute(DEFAULTS)
    database.execute("INSERT INTO defaults (id) VALUES (1)")
    database.execute("INSERT INTO defaults (id, maybe, price, made) VALUES (2, NULL, NULL, NULL)")
    with database.connect() as connection:
        if database.server.connector == "postgres":
            every_type.create(connection, every_type.Limits.of(settings))
        else:
            every_mysql_type.create(connection, database.server.connector)
    return [database.identifier(name) for name in (every_type.TABLE, "defaults")]


@on("postgres", "mariadb-11.4", pytest.param("mysql-9.7", marks=nightly))
def test_one_row_of_every_type(any_database: Database, tmp_path: Path):
    """Decimals that are numbers, structured times, before any event but rows of a snapshot."""
    database = any_database
    structured = STRUCTURED if database.server.connector == "postgres" else {}
    settings = {**NUMERIC, **structured}
    tables = create(database, settings)
    database.start_connector(settings)
    registry = registry_of(database.stack)
    reads = Reader(SchemaRegistryClient({"url": registry.compatible_url}))
    output = {
        "topic_prefix": f"{database.name}.clean",
        "format": "avro",
        "converter": {
            "schema.registry.url": registry.compatible_url,
            "registry.folder": str(tmp_path / "schemas"),
        },
    }
    with Running(database, tmp_path, {"output": output}) as running, avro_beside(database) as name:
        running.lakemark.start()
        running.wait_equal()
        for table in tables:
            compare(OutputTopic.of(running, table), f"{name}.{table}", reads)


def compare(ours: OutputTopic, theirs: str, reads: Reader) -> None:
    """Hold a table's output topic against the connector's in Avro: schemas and rows."""
    seen = ours.read()
    there = ours.kafka.read(theirs, count=len(seen))
    prefix, _, table = theirs.partition(".")
    for side in ("key", "value"):
        told = json.dumps(reads.schema(f"{theirs}-{side}"))
        made = reads.schema(f"{ours.name}-{side}")
        fastavro.parse_schema(made)
        same = json.loads(told.replace(f'"{prefix}.', f'"{prefix.removesuffix("_avro")}.'))
        found = unlike(*(registered(one, without=LEFT) for one in (made, same)))
        assert found == NO_DECIMAL.get(f"{table}-{side}", []), found
    rows = reads.images({one.key: one.value for one in seen if one.value})
    assert len(rows) == len(seen) > 1
    # NULL in a column with a default arrives as that in their Avro, and as NULL in ours.
    others = reads.images({one.key(): one.value() for one in there})
    if table.endswith(".defaults"):
        assert [rows[2][name] for name in NULLS] == [None] * len(NULLS)
        others[2] |= dict.fromkeys(NULLS)
    found = unlike(rows, others)
    assert found == [], found
