"""Values that older rows have in new columns: they come from the catalog, not from the rows."""

import pytest
from psycopg import sql

from lakemark.connectors.postgres.postgres_facts import read_facts
from lakemark.connectors.postgres.postgres_fills import read_values
from lakemark.model.handling_modes import HandlingModes
from stack import every_type
from stack.local import Database
from tests.kit.handling_modes import MODES
from tests.kit.reader import config, whole
from tests.kit.running import Running

pytestmark = pytest.mark.integration

TABLE = "public.older"
# A column of a domain writes the table anew, and older rows have no missing values then.
COPIES = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
WHERE a.attrelid = 'all_types'::regclass AND a.attnum > 0 AND NOT a.attisdropped
  AND a.attgenerated = '' ORDER BY a.attname NOT LIKE 'domain%', a.attnum
"""


@pytest.mark.parametrize("handling", MODES.values(), ids=MODES.keys())
def test_a_default_of_any_type_is_what_a_chunk_has_of_older_rows(source: Database, handling):
    modes = HandlingModes.from_connector(handling)
    with source.connect() as connection:
        every_type.create(connection, every_type.Limits.of(handling))
        columns = connection.execute(COPIES).fetchall()
        connection.execute("CREATE TABLE older (id int PRIMARY KEY)")
        connection.execute("INSERT INTO older VALUES (1)")
        for name, kind in columns:
            values = connection.execute(
                sql.SQL(
                    "SELECT DISTINCT format('%s', {0}) FROM all_types WHERE {0} IS NOT NULL LIMIT 3"
                ).format(sql.Identifier(name))
            ).fetchall()
            for number, (text,) in enumerate(values):
                add = sql.SQL("ALTER TABLE older ADD COLUMN {} {} DEFAULT {}").format(
                    sql.Identifier(f"{name} {number}"), sql.SQL(kind), sql.Literal(text)
                )
                connection.execute(add)
        facts = read_facts(connection, [TABLE], publication="", slot="").tables[TABLE]
    missing = {one.name: one.missing for one in facts.columns if one.missing is not None}
    chunk = whole(source, TABLE, modes)
    values = read_values(config(source), TABLE, facts.oid, missing, modes, settings={})
    assert values.keys() == {*chunk.rows.column_names}
    found = {name: value for name, value in values.items() if value is not None}
    expected = {name for name in chunk.rows.column_names if name in missing}
    assert found.keys() == expected
    assert len(found) > 100
    for name, value in found.items():
        read = chunk.rows.column(name).combine_chunks()
        assert (value.type, repr(value.to_pylist())) == (read.type, repr(read.to_pylist())), name


SETTINGS = {"snapshot": {"incomplete": "auto", "chunk_rows": 10, "window_interval": "100ms"}}
TABLES = ("rests", "busy", "named")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schemas", "engine"), [("false", "task-merge"), ("true", "deletion-vectors")]
)
def test_no_row_is_read_again(database: Database, tmp_path, schemas, engine):
    for table in TABLES:
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
        database.execute(f"INSERT INTO {table} SELECT n, 'v' || n FROM generate_series(1, 30) n")
    carry = {f"{side}.converter.schemas.enable": schemas for side in ("key", "value")}
    database.start_connector({"snapshot.mode": "no_data", **carry})
    with Running(database, tmp_path, SETTINGS) as running:
        running.lakemark.environment |= {
            "LAKEMARK_SOURCE__WATCH_INTERVAL": "1s",
            "LAKEMARK_LAKE__ENGINE": engine,
        }
        running.lakemark.start()
        running.wait_equal()
        for table in running.tables():
            running.wait_progress(
                table,
                "it to be complete",
                lambda record: bool(record.get("complete")) and not record.get("resnapshot"),
            )
        database.execute(
            "ALTER TABLE rests ADD COLUMN w numeric(8,2) NOT NULL DEFAULT 1.5,"
            " ADD COLUMN at timestamptz DEFAULT now()"
        )
        database.execute("ALTER TABLE named RENAME v TO w")
        database.execute("INSERT INTO named VALUES (100, 'new')")
        database.execute("ALTER TABLE busy ADD COLUMN w int DEFAULT 7")
        database.execute("UPDATE busy SET w = NULL WHERE id % 2 = 0")
        names = {f"public.{table}" for table in TABLES}
        for name in names:
            running.lakemark.wait_for_event(
                "table.filled", 480, where=lambda e, n=name: e["table"] == n
            )
        running.wait_equal()
        events = running.lakemark.events("catalog.changed")
        assert {e["table"] for e in events if e["action"] == "fill"} == names
        assert not [e for e in events if e["action"] == "read_again"]
        assert len(running.lakemark.events("snapshot.queued")) == 1
