"""A connector with Debezium's transform that takes the envelope away: tables equal all the same.

Rows of the table of signals come without their envelopes, too: windows of snapshots depend on them.
"""

import pytest

from lakemark.converters.arrival_order import UNPROMISED
from stack.local import Database
from tests.integration.test_end_to_end import fill_shop, load
from tests.kit.nightly import nightly
from tests.kit.running import Running
from tests.kit.snapshots import SNAPSHOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TRANSFORM = {
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.replace.null.with.default": "false",
}
PLACES = {
    "postgres": "source.schema,source.sequence,source.lsn",
    "mariadb-11.4": "source.db,source.file,source.pos,source.gtid,transaction.total_order",
}
WRAPPED = {f"{side}.converter.schemas.enable": "true" for side in ("key", "value")}


def settings(service: str, where: str) -> dict[str, str]:
    told = f"op,source.table,source.snapshot,source.ts_us,{PLACES[service]}"
    deletes = "rewrite" if where == "fields" else "delete-to-tombstone"
    return {
        **TRANSFORM,
        f"transforms.unwrap.add.{where}": told,
        "transforms.unwrap.delete.tombstone.handling.mode": deletes,
    }


@pytest.mark.parametrize(
    ("any_database", "where", "wrapped"),
    [
        ("postgres", "fields", False),
        pytest.param("postgres", "headers", False, marks=nightly),
        pytest.param("postgres", "fields", True, marks=nightly),
        pytest.param("mariadb-11.4", "fields", False, marks=nightly),
        pytest.param("mariadb-11.4", "headers", True, marks=nightly),
    ],
    indirect=["any_database"],
)
def test_tables_equal_and_snapshots_go_on(
    any_database: Database, where: str, wrapped: bool, tmp_path, request
):
    service = request.node.callspec.params["any_database"]
    database = any_database
    fill_shop(database)
    database.start_connector(
        {"snapshot.mode": "no_data", **settings(service, where), **(WRAPPED if wrapped else {})}
    )
    connect = {"url": database.stack.connect.url, "connector": database.name}
    told = {
        **SNAPSHOT,
        "snapshot": {**SNAPSHOT["snapshot"], "incomplete": "auto"},
        "source": {"connect": connect, "watch_interval": "2s"},  # it finds truncates
    }
    with Running(database, tmp_path, told) as running:
        running.lakemark.start()
        load(database, 4)
        # The transform drops truncates, and MariaDB's catalog does not show them.
        unseen = set() if service == "postgres" else {database.identifier("carts")}
        tables = [name for name in running.tables() if name not in unseen]
        running.wait_equal(*tables)
        for table in tables:
            running.wait_progress(table, "whole", lambda r: bool(r.get("complete")))
        running.lakemark.kill()
        load(database, 2, seed=2)
        running.lakemark.start()
        load(database, 2, seed=3)
        database.execute(f"TRUNCATE TABLE {database.quoted('carts')}")
        found = running.wait_equal(*tables)
        assert found[database.identifier("orders")].source_rows > 100
        kept = running.lakemark.progress()
        assert not any(record.get("dead_letters") for record in kept.values())


def send_again(database: Database, table: str, most: int) -> None:
    """The newest records of a topic once more, as a connector sends what it had not noted."""
    kafka, topic = database.stack.kafka, database.topic(table)
    every = kafka.read(topic, count=sum(kafka.end_offsets(topic).values()))
    producer = kafka.producer()
    for record in sorted(every[-most:], key=lambda one: (one.partition(), one.offset())):
        producer.produce(topic, record.value(), record.key(), record.partition())
    producer.flush(60)


@pytest.mark.parametrize(
    "any_database", ["postgres", pytest.param("mariadb-11.4", marks=nightly)], indirect=True
)
def test_rows_that_say_no_place_are_taken_as_they_arrive(any_database: Database, tmp_path):
    """The transform as most people set it, and no database: types come with the records."""
    database = any_database
    orders = database.identifier("orders")
    fill_shop(database)
    database.start_connector({**TRANSFORM, **WRAPPED})
    connect = {"url": database.stack.connect.url, "connector": database.name}
    told = {"source": {"connect": connect, "order": "arrival"}, "database": None}
    with Running(database, tmp_path, told) as running:
        running.lakemark.start()
        load(database, 1)
        running.lakemark.kill()
        load(database, 1, seed=2)
        database.restart_connector()
        running.lakemark.start()
        running.wait_drained()
        send_again(database, "orders", 200)
        load(database, 1, seed=3)
        database.execute("DELETE FROM line_items WHERE line_no = 2")
        # Values that the log leaves out are not to be had where a key changes; nor are truncates.
        found = running.wait_equal(orders, database.identifier("line_items"))
        assert found[orders].source_rows > 100
        status = running.lakemark.command("status")
        assert " ".join(UNPROMISED.split()) in " ".join(status.split())
        assert not running.dead_letters()
