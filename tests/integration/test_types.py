"""Every PostgreSQL type, through snapshot and log, in several handling modes of the connector."""

import json

import pyarrow as pa
import pytest

from lakemark.model.handling_modes import HandlingModes
from lakemark.sink.names import sources_of
from stack import every_type
from stack.compare import Comparison
from stack.local import Database
from tests.kit.avro_pipeline import form_settings, source_section
from tests.kit.handling_modes import MODES
from tests.kit.nightly import nightly
from tests.kit.output_topics import schema_of, settled
from tests.kit.rendered_rows import assert_read_as_written
from tests.kit.running import Running
from tests.kit.snapshots import SNAPSHOT, Snapshots

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


# The defaults are those of most other tests. Of every mode `test_chunk_contract` has that events and
# chunks say the same, and `test_reader` that chunks are what the lake must hold.
ALWAYS = {"texts", "connect-wrapped"}


@pytest.mark.parametrize(
    "modes",
    [
        pytest.param(modes, id=name, marks=() if name in ALWAYS else nightly)
        for name, modes in CASES.items()
    ],
)
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
            # Every value comes again in an update, and every column becomes null in two rows.
            database.execute("UPDATE all_types SET integer = 7 WHERE id <= 1000")
            every_type.insert(connection, limits, first=2001)
            for (column,) in database.execute(
                "SELECT quote_ident(attname) FROM pg_attribute"
                " WHERE attrelid = 'all_types'::regclass AND attnum > 1"
            ):
                database.execute(f"UPDATE all_types SET {column} = NULL WHERE id IN (2001, 2002)")
            change_keyed(database)
            found = running.wait_equal()
            assert found["public.all_types"].source_rows == 3 * count
            if wrapped:
                in_its_output_topic(running)
            assert running.dead_letters() == []


BY_THEMSELVES = {"column.propagate.source.type": ".*"}
"""The setting with which records tell exact types without a database, whatever their form."""


@pytest.mark.parametrize(
    ("form", "modes", "described"),
    [
        ("confluent", MODES["defaults"], False),
        pytest.param("confluent", MODES["defaults"], True, marks=nightly),
        pytest.param("wrapped", MODES["defaults"], False, marks=nightly),
        pytest.param("global", MODES["microseconds"], False, marks=nightly),
        pytest.param("headers", MODES["connect"], False, marks=nightly),
    ],
)
def test_records_that_bring_their_schemas_tell_every_type_and_key(
    database: Database, tmp_path, form, modes, described
):
    """With a database or without: the columns are its catalog's, and the rows those of SELECT."""
    settings = {**modes, **form_settings(form, database.stack), **BY_THEMSELVES}
    limits = every_type.Limits.of(settings)
    with database.connect() as connection:
        every_type.create(connection, limits)
        database.execute(KEYED)
        insert_keyed(database, 1)
        database.start_connector(settings)
        sections = {"source": source_section(database, tmp_path)}
        if not described:
            sections["database"] = None
        with Running(database, tmp_path, sections) as running:
            running.lakemark.start()
            change_keyed(database)
            database.execute("UPDATE all_types SET integer = 7 WHERE id <= 1000")
            every_type.insert(connection, limits, first=1001)
            running.wait_drained()
            running.wait_equal()
            for table in ("public.all_types", "public.keyed"):
                assert delta_types(running, table) == catalog_types(running, table)
            assert running.dead_letters() == []


def delta_types(running: Running, table: str) -> dict[str, pa.DataType]:
    """Types of the Delta table's columns."""
    schema = running.rows(table).schema
    return {source: schema.field(name).type for name, source in sources_of(schema).items()}


def catalog_types(running: Running, table: str) -> dict[str, pa.DataType]:
    """Types that the columns have by the database's catalog."""
    return {f.name: f.type for f in schema_of(running, table).arrow()}


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


def change_keyed(database: Database) -> None:
    """Inserts, updates, deletes and moved keys, of keys of many types."""
    insert_keyed(database, 2)
    database.execute("UPDATE keyed SET note = 'changed' WHERE number = 1")
    database.execute("DELETE FROM keyed WHERE number = 1 AND day > '2000-01-01'")
    database.execute("UPDATE keyed SET number = 3 WHERE number = 2 AND amount > 0")


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


LONG_S = 480.0  # for a snapshot of thirty tables beside other tests
# Tables by name: the type of their key, and its values. The ones equal the source, the others say
# why they do not.
DATES = ("1970-01-01", "1582-10-10", "0001-01-02", "9999-12-30")
KEPT = {
    "k_bool": ("boolean", "t", "f"),
    "k_int": ("bigint", "-9223372036854775808", "9223372036854775807", "2932896"),
    "k_oid": ("oid", "0", "4294967295"),
    "k_real": ("real", "0", "NaN", "Infinity", "-Infinity", "3.4028235e38", "1e-45"),
    "k_double": ("double precision", "0", "NaN", "Infinity", "-Infinity", "1e308", "5e-324"),
    "k_numeric": ("numeric", "1.00", "0.000", "-0.0001", "1e30", "1.0000000000000000000000001"),
    "k_decimal": ("numeric(38,10)", "1", f"-{'9' * 28}.{'9' * 10}", f"-{'9' * 28}.{'9' * 9}8"),
    "k_text": ("text", "", " ", "a", "A", "a ", "infinity"),
    "k_char": ("char(5)", "", "a", " a"),
    "k_bytes": ("bytea", "\\x", "\\x00", "\\x0000"),
    "k_bits": ("bit(12)", "000000000000", "000000000001", "100000000000"),
    "k_uuid": ("uuid", "A0EEBC999C0B4EF8BB6D6BB9BD380A11", "00000000-0000-0000-0000-000000000000"),
    "k_inet": ("inet", "10.1.2.3", "10.1.2.3/8", "::ffff:10.1.2.3"),
    "k_json": ("jsonb", '{"a": 1}', '{"a": "1"}', "null", '"null"'),
    "k_time": ("time", "00:00", "24:00", "23:59:59.999999"),
    "k_date": ("date", "infinity", "-infinity", *DATES),
    "k_days": ("date", "0001-01-01", "9999-12-31", *DATES),
    "k_stamp": ("timestamp", "infinity", "-infinity", *DATES, "9999-12-31 23:59:59.999998"),
    "k_millis": ("timestamp(3)", "infinity", "-infinity", *DATES, "9999-12-31 23:59:59.998"),
    "k_zoned": ("timestamptz", "infinity", "-infinity", *DATES, "9999-12-31 23:59:59.999998"),
    "k_moments": ("timestamptz", "0001-01-01", "9999-12-31 23:59:59.999999", *DATES),
}
REFUSED = {
    "r_bits": ("varbit", "1", "01"),
    "r_timetz": ("timetz", "12:00+02", "10:00+00"),
    "r_money": ("money", "1"),
    "r_name": ("name", "a", "b"),
    "r_interval": ("interval", "1 mon", "30 days 10:30:00"),
    "r_range": ("tstzrange", "[2024-01-01,)"),
    "r_list": ("int[]", "{}", "{1}"),
}
BEYOND = {
    "b_date": ("date", "infinity", "10000-01-01"),
    "b_stamp": ("timestamp", "-infinity", "0001-12-31 BC"),
    "b_overflow": ("timestamp", "-infinity", "294276-12-31 23:59:59.999999"),
    "b_zoned": ("timestamptz", "infinity", "294276-12-31 23:59:59.999999"),
}
BOTH = {
    "a_date": ("date", "infinity", "9999-12-31"),
    "a_zoned": ("timestamptz", "-infinity", "0001-01-01"),
}


def test_every_key_in_snapshot_and_log(database: Database, tmp_path):
    """Two keys are two rows, or the table says by name why it is not kept; two engines by turns."""
    every = KEPT | REFUSED | BEYOND | BOTH
    for name, (kind, *values) in every.items():
        database.execute(f"CREATE TABLE {name} (k {kind} PRIMARY KEY, v text)")
        database.execute(f"INSERT INTO {name} SELECT k::{kind}, k FROM unnest(%s::text[]) k", [values])  # fmt: skip
    database.start_connector({"snapshot.mode": "no_data"})
    vectors = {f"public.{name}": {"engine": "deletion-vectors"} for name in [*every][::2]}
    lake = {"lake": {"path": "./lake", "tables": vectors}}
    kept = [f"public.{name}" for name in KEPT]
    others = {f"public.{name}": "key-out-of-range" for name in BEYOND}
    with Running(database, tmp_path, SNAPSHOT | lake) as running, Snapshots(running) as snapshots:
        running.lakemark.start()
        refused = [snapshots.start(f"public.{name}") for name in REFUSED]
        beyond, run = snapshots.start(*others), snapshots.start(*kept, chunk_rows=4)
        assert {snapshots.rejected(signal)["code"] for signal in refused} == {"key-type"}
        for one in (run, beyond):
            snapshots.ended(one, deadline_s=LONG_S)
        said = running.lakemark.events("snapshot.table_failed")
        assert {event["table"]: event["code"] for event in said} == others
        counted(running.wait_equal(*kept))
        for name in every:
            database.execute(f"UPDATE {name} SET v = v || ' changed'")
        for name in KEPT:
            database.execute(f"DELETE FROM {name} WHERE k IN (SELECT k FROM {name} LIMIT 1)")
        counted(running.wait_equal(*kept))
        for tables, code in ((REFUSED, "key-type"), (BEYOND, "key-out-of-range"), (BOTH, "key-ambiguous")):  # fmt: skip
            for name in tables:
                event = running.wait_state(f"public.{name}", "errored")
                assert event["code"] == code, name
        assert running.dead_letters() == []


def counted(found: Comparison) -> None:
    """The lake has as many rows as the source, each the source's own."""
    for table in KEPT:
        one = found[f"public.{table}"]
        assert one.lake_rows == one.source_rows > 0, one
