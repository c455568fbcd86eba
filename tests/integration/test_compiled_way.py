"""Events of real connectors are read by compiled code: nothing in them that all have is in the way."""

from typing import Final

import pytest

from lakemark.connectors.database import DatabaseAccess
from lakemark.connectors.registry import CONNECTORS, database_of
from lakemark.converters.registry import CONVERTERS
from lakemark.model.decoding import StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import DatabaseConfig
from lakemark.source import fetch, raw_records
from lakemark.source.offset_ranges import OffsetRange
from stack.database import Database
from tests.kit.servers import on

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TABLE: Final = (
    "CREATE TABLE orders (id int PRIMARY KEY, note varchar(20), price decimal(10, 2), day date,"
    " made timestamp NOT NULL, ratio double precision)"
)
ROW: Final = "({}, 'é', 12.50, '2026-01-02', '2026-01-02 03:04:05', 0.5)"


@pytest.mark.parametrize("wrapped", [False, True])
@on("postgres", "mariadb-11.4")
def test_events_of_a_connector_as_we_ship_it(any_database: Database, wrapped: bool):
    database, topic = any_database, any_database.topic("orders")
    database.execute(TABLE)
    database.execute("CREATE TABLE earlier (id int PRIMARY KEY)")
    named = {f"{side}.converter.schemas.enable": str(wrapped).lower() for side in ("key", "value")}
    database.start_connector({"snapshot.mode": "no_data", **named})
    database.execute("INSERT INTO earlier VALUES (1)")  # of PostgreSQL the first is told apart
    for key in range(1, 5):
        database.execute(f"INSERT INTO orders VALUES {ROW.format(key)}")
    database.execute("UPDATE orders SET note = NULL WHERE id < 3")
    database.execute("DELETE FROM orders WHERE id = 4")
    kafka = database.stack.kafka
    kafka.read(topic, count=8)  # a tombstone is one of them
    modes = HandlingModes.from_connector(database.config)
    access = DatabaseAccess(DatabaseConfig(url=database.dsn), modes, database.config)
    schemas = database_of(access).schemas(None)
    identity = SourceIdentity(CONNECTORS[database.config["connector.class"]], database.name)
    plan = StretchPlan(identity, modes, {} if wrapped else schemas).of_epoch(0)
    client = {"bootstrap.servers": kafka.bootstrap, "group.id": database.name}
    assert fetch.ready()
    events = 0
    for partition, end in kafka.end_offsets(topic).items():
        parts = list(fetch.records([OffsetRange(topic, partition, 0, end)], client)) if end else []
        if not parts:
            continue
        assert raw_records.without_headers(parts)
        found = CONVERTERS["json"].plain_range(topic, partition, parts, plan)
        assert found is not None, parts[0].to_pylist()
        events += sum(report.events for report in found.tables.values())
    assert events == 7
