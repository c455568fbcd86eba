"""Records in Avro, the whole way, while tables, converters and the registry change."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from lakemark.converters.registry import SIDES
from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from stack.database import Database
from stack.processes import wait_for
from stack.registry import Registry
from tests.kit.avro_pipeline import form_settings, source_section
from tests.kit.running import STATE_S, Running, header
from tests.kit.servers import ends_servers
from tests.kit.watched_table import duckdb_rows

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TABLE = "public.orders"
UNKNOWN = 987_654


@pytest.fixture
def orders(database: Database) -> Database:
    """A table with a hundred rows, in one partition."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, n int, note text, old text)")
    database.execute("INSERT INTO orders SELECT i, i, 'note', 'o' FROM generate_series(1, 100) i")
    return database


@contextmanager
def writers(database: Database) -> Iterator[None]:
    """Somebody changes rows while the block runs, whatever columns there are."""
    ended = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            for turn in iter(lambda: 0 if ended.wait(0.01) else 1, 0):
                del turn
                connection.execute("UPDATE orders SET n = n + 1 WHERE id = 1 + random() * 98")
                connection.execute("INSERT INTO orders (id, n) SELECT max(id) + 1, 0 FROM orders")
                connection.execute("DELETE FROM orders WHERE id = (SELECT max(id) - 5 FROM orders)")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def require_equal(running: Running) -> None:
    """The table is the source's, also as DuckDB reads it."""
    running.wait_drained()
    running.wait_equal(TABLE)
    path = folder_of(load(running.lakemark.config).lake, TABLE)
    found = duckdb_rows(path, "id, n", running.version(TABLE))
    assert sorted(found) == sorted(running.database.execute("SELECT id, n FROM orders"))


CHANGES = (
    "ALTER TABLE orders ADD COLUMN more numeric(8, 3) DEFAULT 1.5",
    "ALTER TABLE orders ALTER COLUMN n TYPE bigint",
    "ALTER TABLE orders DROP COLUMN old",
    "ALTER TABLE orders RENAME COLUMN note TO remark",
)


@pytest.mark.parametrize("form", ["confluent"])
def test_a_topic_goes_from_json_to_avro_and_its_table_changes_under_load(
    orders: Database, tmp_path: Path, form: str
):
    settings = form_settings(form, orders.stack)
    orders.start_connector()
    source = {**source_section(orders, tmp_path)}
    with Running(orders, tmp_path, {"source": source}) as running:
        running.lakemark.start()
        require_equal(running)
        with writers(orders):
            running.lakemark.stop()  # it would take Avro for bad JSON until it has looked again
            orders.start_connector(settings)
            orders.execute("UPDATE orders SET n = -1 WHERE id = 7")
            running.wait_drained()
            running.lakemark.start()
            for number, statement in enumerate(CHANGES):
                orders.execute(statement)
                orders.execute("UPDATE orders SET n = %s WHERE id = 7", [number])
        orders.execute("UPDATE orders SET n = 5000000000 WHERE id = 7")
        require_equal(running)
        values = [record.value() for record in records(orders)]
        assert {value[:1] for value in values if value} == {b"{", b"\0"}
        assert reasons(running) == []


def reasons(running: Running) -> list[str]:
    """Why records became dead letters."""
    return [header(letter, "reason") for letter in running.dead_letters()]


def records(database: Database) -> list:
    kafka, topic = database.stack.kafka, database.topic("orders")
    return kafka.read(topic, count=sum(kafka.end_offsets(topic).values()))


class Contents:
    """All that a registry has, to be put back into one that comes up empty, under the same ids."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._texts: list[str] = []
        while (answer := self._get(len(self._texts) + 1)).is_success or self._any_behind():
            self._texts.append(answer.text if answer.is_success else "")

    def _get(self, number: int) -> httpx.Response:
        return httpx.get(f"{self._registry.url}/ids/contentIds/{number}")

    def _any_behind(self) -> bool:
        first = len(self._texts) + 2
        return any(self._get(number).is_success for number in range(first, first + 5))

    def restore(self) -> None:
        """Register everything in its order; a number that is nobody's gets a schema of its own."""
        for number, text in enumerate(self._texts, 1):
            answer = httpx.post(
                f"{self._registry.url}/groups/default/artifacts",
                headers={"X-Registry-ArtifactId": f"a{number}", "X-Registry-ArtifactType": "AVRO"},
                content=text or json.dumps({"type": "fixed", "name": "Gap", "size": number}),
            )
            answer.raise_for_status()
            assert answer.json()["contentId"] == number


@ends_servers
def test_a_registry_that_is_away_and_comes_back_empty_costs_nothing(
    orders: Database, registry: Registry, tmp_path: Path
):
    """What is on the disk goes on; what nobody has waits until somebody has it."""
    kept = {f"{side}.converter.apicurio.registry.check-period-ms": "3600000" for side in SIDES}
    orders.start_connector({**form_settings("confluent", orders.stack), **kept})
    sections = {"source": source_section(orders, tmp_path, **{"registry.grace": "30s"})}
    with Running(orders, tmp_path, sections) as running:
        running.lakemark.start()
        require_equal(running)
        contents = Contents(registry)
        registry.kill()
        orders.execute("UPDATE orders SET n = -n")
        running.lakemark.stop()
        running.lakemark.start()  # what was read before is on the disk
        require_equal(running)
        assert running.lakemark.events("pipeline.degraded") == []

        registry.start()
        contents.restore()
        orders.revive()
        running.lakemark.stop()
        orders.execute("ALTER TABLE orders ADD COLUMN more text")
        orders.execute("UPDATE orders SET more = 'm' WHERE id < 50")
        running.wait_drained()
        contents = Contents(registry)
        registry.kill()
        running.lakemark.spawn()
        said = running.lakemark.wait_for_event("pipeline.degraded", STATE_S)
        assert said["code"] == "registry-unavailable"
        registry.start()
        contents.restore()
        require_equal(running)
        assert reasons(running) == []


def test_a_record_of_an_unknown_schema_is_a_dead_letter_that_can_be_replayed(
    orders: Database, registry: Registry, tmp_path: Path
):
    orders.start_connector(form_settings("confluent", orders.stack))
    source = source_section(orders, tmp_path, **{"registry.grace": "1s"})
    with Running(orders, tmp_path, {"source": source}) as running:
        running.lakemark.start()
        require_equal(running)
        newest = records(orders)[-1]
        producer = orders.stack.kafka.producer()
        value = b"\0" + UNKNOWN.to_bytes(4) + (newest.value() or b"")[5:]
        producer.produce(newest.topic(), value, newest.key(), newest.partition())
        assert producer.flush(30) == 0
        letters = wait_for(running.dead_letters, STATE_S, "the dead letter")
        assert reasons(running) == ["schema-not-found"]
        name = header(letters[0], "id")
        assert name in running.lakemark.command("dlq", "ls")
        assert "1" in running.lakemark.command("dlq", "replay", name)
        orders.execute("UPDATE orders SET n = 0 WHERE id = 1")
        require_equal(running)
