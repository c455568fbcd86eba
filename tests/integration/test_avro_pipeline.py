"""Records in Avro, the whole way, while tables, converters and the registry change."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pyarrow.compute as pc
import pytest
from confluent_kafka import Message

from lakemark.converters.registry import SIDES
from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from stack.avro import FRAMINGS, avro_settings
from stack.database import Database
from stack.local import Servers
from stack.processes import wait_for
from stack.registry import VERSIONS, Registry
from tests.kit.avro_pipeline import form_settings, source_section
from tests.kit.nightly import nightly
from tests.kit.running import STATE_S, Running, header
from tests.kit.servers import ends_servers, other_registry, registry_of
from tests.kit.watched_table import duckdb_rows

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TABLE = "public.orders"
UNKNOWN = 987_654
AWAY_S = 120.0
USUAL, *OTHERS = VERSIONS
LIVE = [
    pytest.param(
        version, framing, marks=() if (version, framing) == (USUAL, "confluent") else nightly
    )
    for version in VERSIONS
    for framing in FRAMINGS
]


@pytest.fixture
def any_registry(
    stack: Servers, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    """The session's registry, or one of another version."""
    usual = registry_of(stack)
    if request.param == USUAL:
        yield usual
        return
    with other_registry(request.param, tmp_path_factory.mktemp("registry")) as started:
        yield started


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


@pytest.mark.parametrize(("any_registry", "framing"), LIVE, indirect=["any_registry"])
def test_a_topic_goes_from_json_to_avro_and_its_table_changes_under_load(
    orders: Database, any_registry: Registry, tmp_path: Path, framing: str
):
    settings = avro_settings(any_registry.url, framing)
    orders.start_connector()
    source = {**source_section(orders, tmp_path)}
    with Running(orders, tmp_path, {"source": source}) as running:
        running.lakemark.start()
        require_equal(running)
        with writers(orders):
            orders.start_connector(settings)
            orders.execute("UPDATE orders SET n = -1 WHERE id = 7")
            running.wait_drained()
            for number, statement in enumerate(CHANGES):
                orders.execute(statement)
                orders.execute("UPDATE orders SET n = %s WHERE id = 7", [number])
        orders.execute("UPDATE orders SET n = 5000000000 WHERE id = 7")
        require_equal(running)
        seen = {form_of(record) for record in records(orders)}
        assert seen - {"none"} == {"json", framing}
        assert reasons(running) == []


def form_of(record: Message) -> str:
    """How a record of a table names its schema, by its bytes and headers."""
    value = record.value()
    if value is None:
        return "none"
    if any(name.startswith("apicurio.value.") for name, _ in record.headers() or ()):
        return "headers"
    if value[:1] == b"{":
        return "json"
    # Global ids are below four bytes here, so those of eight begin with zeros.
    return "global" if value[1:5] == bytes(4) else "confluent"


def reasons(running: Running) -> list[str]:
    """Why records became dead letters."""
    return [header(letter, "reason") for letter in running.dead_letters()]


def records(database: Database) -> list:
    kafka, topic = database.stack.kafka, database.topic("orders")
    return kafka.read(topic, count=sum(kafka.end_offsets(topic).values()))


def require_named(running: Running) -> None:
    """Rows that the connector has written name its schema; the registry has it under that number."""
    path = folder_of(load(running.lakemark.config).lake, TABLE)
    found = dict(duckdb_rows(path, "id, _cdc.schema_id", running.version(TABLE)))
    (number,) = {*found.values()}
    assert number == int.from_bytes((records(running.database)[-1].value() or b"")[1:5])


def require_null(running: Running) -> None:
    """NULL that arrives as the default is NULL again: such a row is read by its key."""
    running.database.execute("UPDATE orders SET score = NULL WHERE id = 3")
    require_equal(running)
    path = folder_of(load(running.lakemark.config).lake, TABLE)
    assert dict(duckdb_rows(path, "id, score", running.version(TABLE)))[3] is None
    assert "NULL arrives as the default in score" in running.lakemark.command("status")


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
    orders.execute("ALTER TABLE orders ADD COLUMN score int DEFAULT 5")
    orders.execute("UPDATE orders SET score = 1000 + id")
    orders.start_connector(form_settings("confluent", orders.stack))
    source = source_section(orders, tmp_path, **{"registry.grace": "1s"})
    sections = {
        "source": source,
        "lake": {"path": str(tmp_path / "lake"), "metadata": ["schema_id"]},
    }
    with Running(orders, tmp_path, sections) as running:
        running.lakemark.start()
        require_equal(running)
        require_named(running)
        require_null(running)
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


@nightly
@ends_servers
@pytest.mark.parametrize("any_registry", VERSIONS, indirect=True)
def test_a_registry_that_is_away_for_two_minutes_and_comes_back_empty_is_not_missed(
    orders: Database, any_registry: Registry, tmp_path: Path
):
    """Rows change all the while; lakemark is started again without it, and once more when it is empty."""
    kept = {f"{side}.converter.apicurio.registry.check-period-ms": "3600000" for side in SIDES}
    orders.start_connector(avro_settings(any_registry.url) | kept)
    with Running(orders, tmp_path, {"source": source_section(orders, tmp_path)}) as running:
        running.lakemark.start()
        require_equal(running)
        contents = Contents(any_registry)
        any_registry.kill()
        with writers(orders):
            ends, rounds = time.monotonic() + AWAY_S, 0
            while time.monotonic() < ends:
                rounds += 1
                orders.execute("UPDATE orders SET n = %s WHERE id = 1", [-rounds])
                wait_row(running, -rounds)
                if rounds % 20 == 10:
                    running.lakemark.stop()
                    running.lakemark.start()
        require_equal(running)
        any_registry.start()
        running.lakemark.stop()
        orders.execute("UPDATE orders SET n = -n")
        running.lakemark.start()
        require_equal(running)
        contents.restore()
        orders.revive()
        orders.execute("ALTER TABLE orders ADD COLUMN more text DEFAULT 'm'")
        orders.execute("UPDATE orders SET n = n + 1")
        require_equal(running)
        assert running.lakemark.events("pipeline.degraded") == []
        assert reasons(running) == []


def wait_row(running: Running, n: int) -> None:
    """Wait until the first order has this number in the lake."""

    def there() -> bool:
        rows = running.rows(TABLE).filter(pc.field("id") == 1)
        return rows["n"].to_pylist() == [n]

    wait_for(there, STATE_S, f"n = {n} of the first order")


@nightly
@pytest.mark.parametrize("any_registry", VERSIONS, indirect=True)
def test_a_schema_that_is_deleted(orders: Database, any_registry: Registry, tmp_path: Path):
    """One that was read is on the disk; one that nobody has read makes dead letters of its records."""
    orders.start_connector(avro_settings(any_registry.url, "global"))
    sections = {"source": source_section(orders, tmp_path, **{"registry.grace": "1s"})}
    subject = f"{orders.topic('orders')}-value"
    with Running(orders, tmp_path, sections) as running:
        running.lakemark.start()
        require_equal(running)
        delete(any_registry, subject)
        orders.execute("UPDATE orders SET n = -n")
        require_equal(running)
        running.lakemark.stop()
        running.lakemark.start()
        orders.execute("UPDATE orders SET n = n - 1")
        require_equal(running)
        assert reasons(running) == []

        running.lakemark.stop()
        before = sum(orders.stack.kafka.end_offsets(orders.topic("orders")).values())
        orders.execute("ALTER TABLE orders ADD COLUMN more text")
        orders.execute("UPDATE orders SET more = 'm' WHERE id < 10")
        running.wait_drained()
        unread = len(records(orders)) - before
        delete(any_registry, subject)
        running.lakemark.start()
        letters = wait_for(
            lambda: found if len(found := running.dead_letters()) == unread else [],
            STATE_S,
            f"{unread} dead letters",
        )
        assert {*reasons(running)} == {"schema-not-found"}
        for letter in letters:
            assert "1" in running.lakemark.command("dlq", "replay", header(letter, "id"))
        orders.execute("UPDATE orders SET n = 0 WHERE id > 50")
        require_equal(running)


def delete(registry: Registry, subject: str) -> None:
    """Delete all schemas of a subject; their numbers are nobody's then."""
    path = f"{registry.url}/groups/default/artifacts/{subject}"
    number = httpx.get(f"{path}/meta").raise_for_status().json()["globalId"]
    httpx.delete(path).raise_for_status()
    assert httpx.get(f"{registry.url}/ids/globalIds/{number}").status_code == httpx.codes.NOT_FOUND
