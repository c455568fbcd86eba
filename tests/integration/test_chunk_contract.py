"""Rows of chunks against events of the same rows, as a real connector wrote them.

Both must give equal key bytes and equal typed values: chunk rows and events are rows of one table.
Rendered, the rows of a chunk are the very bytes of those events.
"""

import json
import time
from collections.abc import Mapping

import pytest

from lakemark.connectors.postgres.key_sql import key_texts
from lakemark.connectors.postgres.postgres_chunks import RowsOfSnapshot, open_table, read_chunk
from lakemark.connectors.postgres.postgres_keys import absent_keys
from lakemark.connectors.postgres.postgres_session import connect
from lakemark.converters.json.keys import canonical_keys
from lakemark.converters.json.rows import decode_rows
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import from_envelope
from lakemark.settings.config import DatabaseConfig
from stack import every_type
from stack.local import Database
from tests.integration.test_types import KEYED, MODES, insert_keyed
from tests.kit.rendered_rows import assert_rendered_as_written

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ARRIVE_S = 300.0
LOST = {"name"}  # of that type the connector streams null, whatever the value is
TABLES = {
    "all_types": "",
    "keyed": KEYED,
    "generated": (
        "CREATE TABLE generated (id int PRIMARY KEY, a int,"
        " g int GENERATED ALWAYS AS (a * 2) STORED, z text)"
    ),
    "stores": "CREATE TABLE stores (id int PRIMARY KEY, h hstore)",
}
WORDS = ["a", "b", "Aa", "BB", "C#", "ünï", "key one", "🚲", "x" * 40] + [
    f"k{i}" for i in range(60)
]


@pytest.mark.parametrize("connector", MODES.values(), ids=MODES.keys())
def test_a_row_of_a_chunk_is_what_its_event_says(database: Database, connector: Mapping[str, str]):
    modes = HandlingModes.from_connector(connector)
    limits = every_type.Limits.of(connector)
    with database.connect() as connection:
        every_type.create(connection, limits)
        for statement in filter(None, TABLES.values()):
            database.execute(statement)
        database.execute("DELETE FROM all_types")
        database.start_connector(connector)
        every_type.insert(connection, limits)
    insert_keyed(database, 1)
    database.execute("INSERT INTO generated (id, a, z) VALUES (1, 5, 'z')")
    for number in (0, 1, 2, 11, 12, 13, 24, 25, 48, 49, len(WORDS)):
        database.execute(
            "INSERT INTO stores SELECT %s, hstore(array_agg(w), array_agg(w))"
            " FROM unnest(%s::text[]) w",
            [number, WORDS[:number]],
        )
    odd = "".join(map(chr, range(1, 32))) + '\x7f\u2028\\u001b"'
    database.execute("INSERT INTO stores SELECT -1, hstore(%s, %s)", [odd, odd])
    for name in TABLES:
        table = f"public.{name}"
        chunk = whole(database, table, modes)
        keys, images, wrapped = events(database, name, chunk.rows.num_rows)
        decoded = decode_rows(images, chunk.schema, modes)
        assert decoded.bad == []
        assert decoded.unknown == set(), "the events have columns that the chunk lacks"
        canonical = canonical_keys(keys, chunk.schema)
        order = {key: at for at, key in enumerate(canonical)}
        places = [order[key] for key in chunk.keys.to_pylist()]  # equal bytes, or a KeyError
        assert len(set(places)) == len(canonical) == chunk.rows.num_rows > 0
        for column in chunk.schema.columns:
            theirs = decoded.columns.field(column.name).take(places).to_pylist()
            ours = chunk.rows.column(column.name).to_pylist()
            if column.name in LOST:
                ours = [None] * len(ours)
            for one, other in zip(ours, theirs, strict=True):
                assert repr(one) == repr(other), (table, column.name)
        theirs = {"keys": [keys[p] for p in places], "images": [images[p] for p in places]}
        assert assert_rendered_as_written(chunk, modes, lost=LOST, **theirs) > 0
        if wrapped:
            assert from_envelope(table, wrapped, None).columns == chunk.schema.columns
        assert_nothing_is_absent(database, chunk, modes)


def whole(database: Database, table: str, modes: HandlingModes) -> RowsOfSnapshot:
    with (
        connect(DatabaseConfig(url=database.dsn)) as session,
        open_table(session, table, modes, settings={}) as opened,
    ):
        return read_chunk(opened)


def events(database: Database, table: str, count: int):
    """Keys and row images of a table's inserts, and the schema of a wrapped record."""
    kafka, topic = database.stack.kafka, database.topic(table)
    deadline = time.monotonic() + ARRIVE_S
    while topic not in kafka.topics() or sum(kafka.end_offsets(topic).values()) < count:
        assert time.monotonic() < deadline, f"{count} events of {table}"
        time.sleep(0.2)
    keys, images, schema = [], [], None
    for record in kafka.read(topic, count=count):
        value, raw = json.loads(record.value()), record.value()
        if "payload" in value:
            schema = value["schema"]
            value = value["payload"]
        assert value["op"] == "c"
        start = raw.index(b'"after":') + len(b'"after":')
        images.append(raw[start : start + length_of_object(raw[start:].decode())])
        keys.append(record.key())
    return keys, images, schema


def length_of_object(text: str) -> int:
    """Bytes of the JSON object that a text begins with, which must stay as they were written."""
    _, end = json.JSONDecoder().raw_decode(text)
    return len(text[:end].encode())


def assert_nothing_is_absent(
    database: Database, chunk: RowsOfSnapshot, modes: HandlingModes
) -> None:
    """Every key of an event finds its row again."""
    columns = [chunk.schema.column(name) for name in chunk.schema.key]
    texts = key_texts(chunk.keys.to_pylist(), columns)
    with (
        connect(DatabaseConfig(url=database.dsn)) as session,
        open_table(session, chunk.schema.table, modes, settings={}) as opened,
    ):
        if not all(part.exact for part in opened.parts):
            return
        again = read_chunk(opened, keys=texts)
        assert sorted(again.keys.to_pylist()) == sorted(chunk.keys.to_pylist())
        assert absent_keys(opened, texts, again).rows.num_rows == 0
