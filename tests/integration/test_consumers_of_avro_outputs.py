"""Output topics in Avro as programs read them that others wrote: Debezium's JDBC sink, and Spark."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakemark.spark.jars import fetch
from stack.avro import avro_settings
from stack.local import ROOT, Database, Servers
from stack.processes import wait_for
from stack.registry import Registry
from tests.kit.jdbc_sink import JDBC, jdbc_sink, table_of
from tests.kit.nightly import nightly
from tests.kit.output_topics import OutputTopic
from tests.kit.page_shell import PageShell, lines, with_names
from tests.kit.running import STATE_S, Running
from tests.kit.servers import registry_of
from tests.kit.snapshots import SNAPSHOT, Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.slow, nightly]

OUTPUTS = ROOT / "examples" / "outputs"
SPARK_AVRO = ROOT / "stack" / "spark-avro-jars.json"
ITEMS = """
CREATE TABLE items (
    id int, part text, name text, big text, price numeric(10, 2), at timestamptz, day date,
    moment timestamp, doc jsonb, uid uuid, raw bytea, flag boolean, ratio double precision,
    count bigint, PRIMARY KEY (id, part)
)
"""
FILLED = """
INSERT INTO items
SELECT n, 'p' || mod(n, 3), 'name ' || n, repeat(n::text, 2000), n / 7.0, now() + n * interval '1 h',
    '2020-02-28'::date + n, '2020-02-28'::timestamp + n * interval '1.000001 s',
    jsonb_build_object('n', n), gen_random_uuid(), decode(md5(n::text), 'hex'), mod(n, 2) = 0,
    1.0 / n, 9007199254740993 + n
FROM generate_series(%s::int, %s::int) n
"""
NAMES = ("id", "part", "name", "big", "price", "day", "flag", "ratio", "count", "more")
# Days since 1970 and a decimal's digits: Spark has JSON of the first, and of the second a number.
WANTED = """
SELECT id, part, name, big, price::float8, day - '1970-01-01', flag, ratio, count, more
FROM items ORDER BY id
"""
LEFT = 270  # of 300 items a tenth is deleted
CLEARED = "CREATE TABLE cleared (id int PRIMARY KEY, n int)"


@dataclass
class History:
    """Output topics of tables that nothing changes any more.

    Attributes:
        running: the pipeline that wrote them, which runs.
        registry: where their schemas are.
        topics: their topics, by the tables' names.
    """

    running: Running
    registry: Registry
    topics: dict[str, str]


@pytest.fixture(scope="module")
def history(stack: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """Everything that changes rows: events, a snapshot of rows from before, a truncate, a column."""
    registry = registry_of(stack)
    stack.connect.require_plugin(JDBC)
    directory = tmp_path_factory.mktemp("consumers")
    with stack.fresh_database(ITEMS, CLEARED) as database:
        sections = {
            **SNAPSHOT,
            "source": {
                "connect": {"url": stack.connect.url, "connector": database.name},
                "converter": {"registry.folder": str(directory / "schemas")},
            },
            "output": {"topic_prefix": f"{database.name}.clean", "format": "avro"},
        }
        database.execute("ALTER TABLE items ALTER COLUMN big SET STORAGE EXTERNAL")
        database.execute(FILLED, [1, 200])
        propagated = {"column.propagate.source.type": ".*", "snapshot.mode": "no_data"}
        database.start_connector(avro_settings(registry.url) | propagated)
        with Running(database, directory, sections) as running:
            running.lakemark.start()
            changed(running)
            topics = {
                name: OutputTopic.of(running, f"public.{name}") for name in ("items", "cleared")
            }
            yield History(running, registry, {name: topic.name for name, topic in topics.items()})


def changed(running: Running) -> None:
    """Change the tables in all ways, and return when the output topics have it all."""
    database = running.database
    database.execute(FILLED, [1001, 1100])
    database.execute("INSERT INTO cleared SELECT n, n FROM generate_series(1, 100) n")
    running.wait_captured("items", "SELECT 100 FROM {} LIMIT 1")
    with Snapshots(running) as snapshots:
        name = snapshots.start("public.items")
        database.execute("UPDATE items SET name = 'changed' WHERE mod(id, 10) = 3")
        database.execute("UPDATE items SET id = id + 5000 WHERE mod(id, 10) = 4")
        database.execute("DELETE FROM items WHERE mod(id, 10) = 5")
        snapshots.completed(name)
    running.wait_equal()
    database.execute("TRUNCATE cleared")
    database.execute("INSERT INTO cleared VALUES (7, 70), (1000, 1)")
    database.execute("ALTER TABLE items ADD COLUMN more text")
    database.execute("UPDATE items SET more = 'm', price = -price WHERE mod(id, 10) = 6")
    database.execute("UPDATE items SET doc = NULL, raw = NULL, uid = NULL WHERE mod(id, 10) = 7")
    running.wait_drained()
    running.wait_equal()
    assert running.dead_letters() == []


@dataclass(frozen=True)
class Compared:
    """Where a consumer's table is not the source's; true where it is."""

    differences: list[str]

    def __bool__(self) -> bool:
        return not self.differences


def compared(source: Database, target: Database, name: str, table: str) -> Compared:
    """A table of the source and a consumer's, by SELECT."""
    columns = columns_of(source, name)
    if missing := {*columns} - {*columns_of(target, table)}:
        return Compared([f"{table} has no {sorted(missing)}"])
    ours, theirs = (
        {*map(repr, selected(database, of, columns))}
        for database, of in ((source, name), (target, table))
    )
    return Compared(sorted(ours ^ theirs)[:6])


def columns_of(database: Database, table: str) -> list[str]:
    """The columns of a table; none if it is not there."""
    query = "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY 1"
    return [name for (name,) in database.execute(query, [table])]


def selected(database: Database, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """All rows of a table."""
    return database.execute(f"SELECT {', '.join(map(database.quoted, columns))} FROM {table}")


def test_debezium_s_own_sink_ends_with_the_rows(history: History, stack: Servers):
    """It makes the tables, adds the column, and moves and deletes what the source did."""
    source, topics = history.running.database, history.topics
    with stack.fresh_database() as target:
        with jdbc_sink(target, [*topics.values()], history.registry) as sink:
            for name, topic in topics.items():

                def equal(name: str = name, topic: str = topic) -> Compared:
                    sink.require_running()
                    return compared(source, target, name, table_of(topic))

                wait_for(equal, STATE_S, f"the sink's {name} to be the source's")
        ids = {id_ for (id_,) in selected(target, table_of(topics["items"]), ["id"])}
        assert len(ids) == LEFT
        left = selected(target, table_of(topics["cleared"]), ["id", "n"])
        assert sorted(left) == [(7, 70), (1000, 1)]


def test_spark_s_reader_of_avro_ends_with_the_rows(history: History, tmp_path: Path):
    """By the example: it asks the registry for the schema that each record names."""
    source = history.running.database
    page, kafka = "examples/outputs/README.md", history.running.database.stack.kafka
    jar = ",".join(map(str, fetch(SPARK_AVRO)))
    names = {
        '"$(lakemark jars)" --packages org.apache.spark:spark-avro_2.13:4.2.0': f'"$(lakemark jars),{jar}"',
        "localhost:9092": kafka.bootstrap,
        "shop.clean.public.orders": history.topics["items"],
        "http://localhost:8081": history.registry.compatible_url,
    }
    shell = PageShell(tmp_path / "shell", here=OUTPUTS)
    shown = shell.run(with_names(lines(page, "avro_with_spark.py"), names)).splitlines()
    found = [json.loads(line) for line in shown if line.startswith("{")]
    wanted = source.execute(WANTED)
    assert len(wanted) == LEFT
    assert [tuple(row.get(name) for name in NAMES) for row in found] == wanted


def test_the_example_in_python_prints_every_record(history: History, tmp_path: Path):
    kafka, name = history.running.database.stack.kafka, history.topics["cleared"]
    _, command = lines("examples/avro/README.md", "read_output.py").splitlines()
    names = {
        "localhost:9092": kafka.bootstrap,
        "shop.clean.public.customers": name,
        "http://localhost:8081/apis/ccompat/v7": history.registry.compatible_url,
    }
    shell = PageShell(tmp_path / "shell", here=ROOT / "examples" / "avro")
    shown = shell.run(with_names(command, names)).splitlines()
    assert len(shown) == len(OutputTopic(kafka, name).read())
    assert "{'id': 7} c {'id': 7, 'n': 70}" in shown
    assert shown.count("{'id': 8} tombstone") == 1
