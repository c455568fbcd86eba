"""What the connectors of MariaDB and MySQL write, as far as everything else relies on it."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from stack.database import Database
from stack.mysql import LocalBinlogServer
from stack.processes import wait_for
from tests.kit.nightly import nightly
from tests.kit.servers import ends_servers, on

pytestmark = pytest.mark.integration

CUSTOMERS = "CREATE TABLE customers (id int PRIMARY KEY, name varchar(100))"
EACH = on("mariadb-11.4", "mariadb-10.11", "mysql-9.7")
HAS_ONE_PLACE = "11.4"
"""The version where all events of a transaction have the position of its beginning."""


def events(database: Database, table: str, count: int) -> list[dict]:
    """The records of a table by partition and offset, tombstones left out; keys are in `key`."""
    records = database.stack.kafka.read(database.topic(table), count=count)
    return [
        {"key": json.loads(record.key()) if record.key() else None, **json.loads(record.value())}
        for record in records
        if record.value()
    ]


def place(event: dict) -> tuple[int, int, int, int]:
    """A record's place in the log: file, position, transaction, order in the transaction."""
    source, transaction = event["source"], event["transaction"]
    sequence = re.split("[-:]", transaction["id"])[-1]
    number = int(source["file"].rpartition(".")[2])
    return number, source["pos"], int(sequence), transaction["total_order"]


@EACH
def test_every_kind_of_change_arrives_with_its_place_in_the_log(any_database: Database):
    database = any_database
    database.execute(CUSTOMERS)
    database.execute("INSERT INTO customers VALUES (1, 'Ada')")
    database.start_connector()
    with database.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO customers VALUES (2, 'Grace'), (3, 'Barbara')")
        connection.execute("UPDATE customers SET name = 'Ada L.' WHERE id = 1")
    database.execute("UPDATE customers SET id = 4 WHERE id = 3")
    database.execute("DELETE FROM customers WHERE id = 2")
    database.execute("TRUNCATE TABLE customers")

    # Two tombstones: of the old key of the changed one, and of the deleted one.
    found = events(database, "customers", count=10)

    snapshot, *changes = [
        *(e for e in found if e["op"] == "r"),
        *sorted((e for e in found if e["op"] not in "rt"), key=place),
        *(e for e in found if e["op"] == "t"),
    ]
    assert (snapshot["after"], snapshot["source"]["gtid"]) == ({"id": 1, "name": "Ada"}, None)
    assert [(e["op"], e["key"], e["before"], e["after"]) for e in changes] == [
        ("c", {"id": 2}, None, {"id": 2, "name": "Grace"}),
        ("c", {"id": 3}, None, {"id": 3, "name": "Barbara"}),
        ("u", {"id": 1}, {"id": 1, "name": "Ada"}, {"id": 1, "name": "Ada L."}),
        ("d", {"id": 3}, {"id": 3, "name": "Barbara"}, None),
        ("c", {"id": 4}, None, {"id": 4, "name": "Barbara"}),
        ("d", {"id": 2}, {"id": 2, "name": "Grace"}, None),
        ("t", None, None, None),
    ]
    rows = [e for e in changes if e["op"] != "t"]
    assert [e["transaction"]["total_order"] for e in rows] == [1, 2, 3, 1, 2, 1]
    assert all(one < two for one, two in pairwise(map(place, rows)))
    assert {e["source"]["gtid"] for e in rows} == {e["transaction"]["id"] for e in rows}
    # Where all of a transaction is at its beginning, its first one is where the snapshot was.
    is_one_place = place_in_file(snapshot) == place_in_file(changes[0])
    assert is_one_place if HAS_ONE_PLACE in database.server.name else not is_one_place
    assert place_in_file(snapshot) <= place_in_file(changes[0])
    file, end = database.server.position()
    assert all(place_in_file(e) <= (file, end) for e in changes)


def place_in_file(event: dict) -> tuple[str, int]:
    return event["source"]["file"], event["source"]["pos"]


@EACH
def test_only_newer_mariadb_has_one_position_for_all_events_of_a_transaction(
    any_database: Database,
):
    database = any_database
    database.execute(CUSTOMERS)
    database.start_connector()
    with database.connect() as connection, connection.transaction():
        for number in range(3):
            connection.execute("INSERT INTO customers VALUES (%s, 'x')", [number])

    found = events(database, "customers", count=3)

    positions = {event["source"]["pos"] for event in found}
    assert len(positions) == (1 if HAS_ONE_PLACE in database.server.name else 3)
    assert {event["source"]["row"] for event in found} == {0}


@ends_servers
@on("mariadb-11.4", "mysql-9.7")
def test_a_connector_goes_on_after_its_server_and_connect_were_killed(any_database: Database):
    database = any_database
    stack = database.stack
    database.execute(CUSTOMERS)
    database.start_connector()

    database.server.kill()
    database.server.start()
    database.revive()
    database.execute("INSERT INTO customers VALUES (1, 'Ada')")
    stack.connect.kill()
    database.execute("INSERT INTO customers VALUES (2, 'Grace')")
    stack.connect.start()
    database.wait_streaming()
    database.execute("INSERT INTO customers VALUES (3, 'Barbara')")

    records = stack.kafka.reader(database.topic("customers"))
    try:
        wait_for(
            lambda: {json.loads(r.value())["after"]["id"] for r in records.records()} == {1, 2, 3},
            120,
            "the three rows to arrive",
        )
    finally:
        records.close()


@pytest.fixture
def replica(any_database: Database, tmp_path: Path) -> Iterator[LocalBinlogServer]:
    """A second server, which follows the one of the test's database."""
    second = any_database.server.sibling(tmp_path / "replica", number=2)
    second.start()
    try:
        second.follow(any_database.server)
        yield second
    finally:
        second.kill()


@nightly
@EACH
def test_a_replica_has_what_its_primary_has_and_then_its_own(
    any_database: Database, replica: LocalBinlogServer
):
    any_database.execute(CUSTOMERS)
    any_database.execute("INSERT INTO customers VALUES (1, 'Ada')")
    replica.wait_for(any_database.server)
    replica.promote()
    any_database.execute("INSERT INTO customers VALUES (2, 'not there')")
    with replica.connect(any_database.name) as connection:
        connection.execute("INSERT INTO customers VALUES (3, 'Grace')")
        found = connection.execute("SELECT id, name, @@server_id FROM customers").fetchall()
    assert sorted(found) == [(1, "Ada", 2), (3, "Grace", 2)]


@on("mysql-9.7")
def test_a_connector_goes_on_by_gtid_at_a_promoted_replica(
    any_database: Database, replica: LocalBinlogServer
):
    database = any_database
    database.execute(CUSTOMERS)
    database.start_connector()
    database.execute("INSERT INTO customers VALUES (1, 'Ada')")
    first = events(database, "customers", count=1)
    primary = database.server
    replica.wait_for(primary)
    replica.promote()
    database.server = replica
    try:
        database.start_connector()
        database.execute("INSERT INTO customers VALUES (2, 'Grace')")
        found = events(database, "customers", count=2)
    finally:
        database.server = primary
    assert [e["after"]["id"] for e in found] == [1, 2]
    (uuid, one), (other, two) = (e["source"]["gtid"].split(":") for e in found)
    assert uuid != other
    assert (int(one) > 1, int(two)) == (True, 1)
    assert first[0]["source"]["server_id"] == 1
    assert {e["source"]["server_id"] for e in found} == {1, 2}
