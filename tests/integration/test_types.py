"""Every PostgreSQL type, through snapshot and log, in several handling modes of the connector."""

import json

import pytest

from lakemark.source.modes import HandlingModes
from stack import every_type
from stack.local import Database
from tests.kit.handling_modes import MODES
from tests.kit.output_topics import schema_of, settled
from tests.kit.rendered_rows import assert_read_as_written
from tests.kit.running import Running
from tests.kit.snapshots import Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

WRAPPED = {"value.converter.schemas.enable": "true"}
NUMERIC = {"value.converter.decimal.format": "NUMERIC"}
CASES = {
    "defaults": MODES["defaults"],
    "defaults-wrapped": {**WRAPPED, "key.converter.schemas.enable": "true"},
    "texts": MODES["texts"],
    "numbers": {**MODES["numbers"], **NUMERIC},
    "connect-wrapped": {
        **WRAPPED,
        **MODES["connect"],
        **NUMERIC,
        "decimal.handling.mode": "precise",
    },
    "structs": MODES["structs"],
}
KEYED = """
CREATE TABLE keyed (
    amount numeric(10, 2), id uuid, at timestamptz, code char(5), day date, number bigint,
    note text,
    PRIMARY KEY (code, amount, id, at, day, number)
)
"""


@pytest.mark.parametrize("modes", CASES.values(), ids=CASES.keys())
def test_every_type_in_snapshot_and_log(database: Database, tmp_path, modes):
    limits = every_type.Limits.of(modes)
    with database.connect() as connection:
        every_type.create(connection, limits)
        database.execute(KEYED)
        insert_keyed(database, 1)
        database.start_connector(modes)
        wrapped = WRAPPED.keys() <= modes.keys()
        clean = {"output": {"topic_prefix": f"{database.name}.clean"}} if wrapped else {}
        with Running(database, tmp_path, clean) as running:
            running.lakemark.start()
            running.wait_captured("all_types")
            running.wait_captured("keyed")
            running.wait_equal()  # from the snapshot
            columns = running.rows("public.all_types").schema.names
            assert set(columns) & every_type.NOT_CAPTURED <= {"name"}

            count = every_type.insert(connection, limits, first=1001)
            # Every value comes again in an update, and every column becomes null once.
            database.execute("UPDATE all_types SET integer = 7 WHERE id <= 1000")
            every_type.insert(connection, limits, first=2001)
            for (column,) in database.execute(
                "SELECT quote_ident(attname) FROM pg_attribute"
                " WHERE attrelid = 'all_types'::regclass AND attnum > 1"
            ):
                database.execute(f"UPDATE all_types SET {column} = NULL WHERE id >= 2000")
            insert_keyed(database, 2)
            database.execute("UPDATE keyed SET note = 'changed' WHERE number = 1")
            database.execute("DELETE FROM keyed WHERE number = 1 AND day > '2000-01-01'")
            database.execute("UPDATE keyed SET number = 3 WHERE number = 2 AND amount > 0")
            found = running.wait_equal()
            assert found["public.all_types"].source_rows == 3 * count
            if wrapped:
                in_its_output_topic(running)
            assert running.dead_letters() == []


def in_its_output_topic(running: Running) -> None:
    """Events as the connector wrote them, wrapper and all; then a snapshot's rows as it would."""
    database, table = running.database, "public.all_types"
    topic = settled(running, table)
    sent = records(running)
    assert sorted((one.key, one.value) for one in topic.seen) == sorted(sent)
    ((count,),) = database.execute("SELECT count(*) FROM all_types")
    database.execute(
        "INSERT INTO debezium_signal VALUES ('own', 'execute-snapshot', %s)",
        [json.dumps({"data-collections": [table], "type": "incremental"})],
    )
    running.wait_captured("all_types", f"SELECT count(*) + {len(sent)} FROM {{}}")
    theirs = {key: value for key, value in records(running) if read(value) == "incremental"}
    assert len(theirs) == count
    with Snapshots(running) as snapshots:
        snapshots.run(table)
    seen = settled(running, table).seen
    ours = {one.key: one.value for one in seen if one.value and read(one.value) == "incremental"}
    modes = HandlingModes.from_connector(database.config)
    compared = assert_read_as_written(ours, theirs, schema_of(running, table), modes)
    assert compared > 10 * count


def records(running: Running) -> list[tuple[bytes, bytes]]:
    """Keys and values as they are in the change topic."""
    kafka, topic = running.database.stack.kafka, running.database.topic("all_types")
    found = kafka.read(topic, count=sum(kafka.end_offsets(topic).values()))
    return [(record.key() or b"", record.value() or b"") for record in found]


def read(value: bytes) -> str:
    """Which snapshot a wrapped record is of."""
    return str(json.loads(value)["payload"]["source"]["snapshot"])


def insert_keyed(database: Database, number: int) -> None:
    for amount in ("0", "1.50", "-0.01"):
        for code in ("a", "ü b", "12345"):
            for day, at in (
                ("1999-01-01", "1999-01-01 12:00:00.5+02"),
                ("2024-02-29", "2024-02-29 00:00:00"),
            ):
                database.execute(
                    "INSERT INTO keyed VALUES (%s, 'A0EEBC999C0B4EF8BB6D6BB9BD380A11', %s, %s, %s,"
                    " %s, 'new')",
                    [amount, at, code, day, number],
                )
