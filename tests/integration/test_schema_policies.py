"""Every change of a schema under every policy, in real tables: what the table then has."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lakemark.settings.schema_policy import BEHAVIORS, KINDS
from lakemark.settings.table_id import pair_of
from stack.database import Database
from tests.kit.avro_pipeline import form_settings, source_section
from tests.kit.nightly import nightly
from tests.kit.number_rows import numbers_of
from tests.kit.running import Running
from tests.kit.servers import AT_NIGHT, on

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# tests/unit/sink/test_schema_policies.py has what events tell of with two of them, in every run.
AT_NIGHT_TOO = [
    ("postgres", "task-merge"),
    ("postgres", "spark-merge"),
    ("mariadb-11.4", "deletion-vectors"),
    ("mariadb-11.4", "spark-merge"),
    ("mariadb-10.11", "deletion-vectors"),
    ("mysql-9.7", "deletion-vectors"),
]
ENGINES = [
    ("postgres", "deletion-vectors"),
    *(pytest.param(*one, marks=nightly) for one in AT_NIGHT_TOO),
]
SNAPSHOT = {"incomplete": "auto", "chunk_rows": 10, "window_interval": "100ms"}
ROWS = 20
# What is done to a table that has the columns id, n, v and w; then a row is inserted.
POSTGRES = {
    "add-column": "ALTER TABLE {} ADD COLUMN x int DEFAULT 7",
    "drop-column": "ALTER TABLE {} DROP COLUMN w",
    "rename-column": "ALTER TABLE {} RENAME COLUMN w TO x",
    "widen-type": "ALTER TABLE {} ALTER n TYPE bigint",
    "change-type": "ALTER TABLE {} ALTER w TYPE int USING 5",
    "change-key": "ALTER TABLE {} DROP CONSTRAINT {}_pkey; ALTER TABLE {} ADD PRIMARY KEY (n, id)",
    "truncate": "TRUNCATE {}",
    "drop-table": "DROP TABLE {}",
    "rename-table": "ALTER TABLE {} RENAME TO {}_new",
}
BINLOG = {
    "add-column": "ALTER TABLE {} ADD COLUMN x int DEFAULT 7",
    "drop-column": "ALTER TABLE {} DROP COLUMN w",
    "rename-column": "ALTER TABLE {} RENAME COLUMN w TO x",
    "widen-type": "ALTER TABLE {} MODIFY n bigint NOT NULL",
    "change-type": "ALTER TABLE {} MODIFY w int",
    "change-key": "ALTER TABLE {} DROP PRIMARY KEY, ADD PRIMARY KEY (n, id)",
    "truncate": "TRUNCATE TABLE {}",
    "drop-table": "DROP TABLE {}",
    "rename-table": "RENAME TABLE {} TO {}_new",
}
STOPPED = {"change-type": "schema-incompatible", "change-key": "key-changed"}
OLD, NEW = {"id", "n", "v", "w"}, {"id", "n", "v", "w", "x"}
# By kind and behavior: EQUAL to the source, the columns that the table has, and its rows.
EQUAL, EXACT, KEPT, STOPS = "equal", "exact", "kept", "stops"
OUTCOMES = {
    # kind           exception, evolve, try_evolve, lenient, ignore
    "add-column": (STOPS, EXACT, EXACT, EXACT, KEPT),
    "drop-column": (STOPS, EXACT, EXACT, KEPT, KEPT),
    "rename-column": (STOPS, EXACT, EXACT, EQUAL, KEPT),
    "widen-type": (STOPS, EXACT, EXACT, EXACT, KEPT),
    "change-type": (STOPS, EXACT, EXACT, EXACT, STOPS),
    "change-key": (STOPS, EXACT, EXACT, EXACT, STOPS),
    "truncate": (STOPS, EXACT, EXACT, EXACT, KEPT),
    "drop-table": (STOPS, KEPT, KEPT, KEPT, KEPT),
    "rename-table": (STOPS, KEPT, KEPT, KEPT, KEPT),
}
# Without a database what events do not show is not noticed, and nothing is made anew.
BLIND = {
    "add-column": (STOPS, KEPT, KEPT, KEPT, KEPT),
    "drop-column": (KEPT, KEPT, KEPT, KEPT, KEPT),
    "rename-column": (STOPS, KEPT, KEPT, KEPT, KEPT),
    "change-type": (STOPS, STOPS, STOPS, STOPS, STOPS),
    "change-key": (STOPS, STOPS, STOPS, STOPS, STOPS),
    "drop-table": (KEPT, KEPT, KEPT, KEPT, KEPT),
    "rename-table": (KEPT, KEPT, KEPT, KEPT, KEPT),
}


def name_of(kind: str, behavior: str) -> str:
    return f"{kind}_{behavior}".replace("-", "_")


TABLES = {(kind, behavior): name_of(kind, behavior) for kind in KINDS for behavior in BEHAVIORS}


def cases(outcomes: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str, str]]:
    """Kind, table and outcome."""
    for (kind, behavior), table in TABLES.items():
        yield kind, table, {**OUTCOMES, **outcomes}[kind][BEHAVIORS.index(behavior)]


def is_postgres(database: Database) -> bool:
    return database.server.connector == "postgres"


def source_columns(database: Database, table: str) -> set[str]:
    query = (
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name = %s"
    )
    return {c for (c,) in database.execute(query, pair_of(database.identifier(table)))}


def insert(database: Database, table: str, first: int, last: int) -> None:
    has_w = "w" in source_columns(database, table)
    rows = numbers_of(database, first, last)
    database.execute(
        f"INSERT INTO {table} (id, n, v{', w' if has_w else ''})"
        f" SELECT seq, seq, CONCAT('v', seq){', 5' if has_w else ''} FROM {rows}"
    )


def settings(database: Database, engine: str, /, **more: Any) -> dict[str, Any]:
    own = {
        database.identifier(table): {"schema_changes": {"behavior": behavior}}
        for (_, behavior), table in TABLES.items()
    }
    lake = {"path": "./lake", "engine": engine, "tables": own}
    return {"snapshot": SNAPSHOT, "lake": lake, **more}


def fill(database: Database, **connector: str) -> None:
    for table in TABLES.values():
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int NOT NULL, v text, w text)"
        )
        insert(database, table, 1, ROWS)
    own = {"publication.autocreate.mode": "all_tables"} if is_postgres(database) else {}
    database.start_connector({**own, **connector})


def change(database: Database) -> None:
    changes = POSTGRES if is_postgres(database) else BINLOG
    for (kind, _), table in TABLES.items():
        for statement in changes[kind].replace("{}", table).split("; "):
            database.execute(statement)
        if kind != "drop-table":
            insert(database, f"{table}_new" if kind == "rename-table" else table, 101, 105)


def columns(running: Running, table: str) -> dict[str, str]:
    fields = running.table(running.database.identifier(table)).schema().fields
    return {f.name: str(f.type) for f in fields if f.name != "_cdc"}


def ids(running: Running, table: str) -> set[int]:
    return set(running.rows(running.database.identifier(table)).column("id").to_pylist())


def require(running: Running, kind: str, table: str, outcome: str) -> None:
    """The table has become what the policy says."""
    database, name = running.database, running.database.identifier(table)
    before, after = set(range(1, ROWS + 1)), set(range(101, 106))
    if outcome == STOPS:
        record = running.wait_state(name, "errored")
        assert record["code"] == STOPPED.get(kind, "schema-change-refused"), (table, record)
        assert set(columns(running, table)) == OLD, table
        # Events do not show that a column was dropped, nor, without schemas, a wider type.
        late = after if kind in {"drop-column", "widen-type"} else set()
        assert ids(running, table) - late == before, table
        return
    if outcome in {EQUAL, EXACT}:
        running.wait_equal(name)
        expected = source_columns(database, table)
        if outcome == EXACT:
            running.wait_progress(name, "to be made anew", lambda r: not r.get("rebuild"))
            assert set(columns(running, table)) == expected, table
        else:
            assert set(columns(running, table)) > expected, table
        return
    if kind in {"drop-table", "rename-table"}:
        assert ids(running, table) == before, table
        return
    running.wait_progress(name, "the last row", lambda r: r.get("rows", 0) == ROWS + 5)
    assert ids(running, table) == before | after, table
    assert columns(running, table)["n"] == 'PrimitiveType("integer")', table


def follow(running: Running, outcomes: Mapping[str, tuple[str, ...]]) -> None:
    running.lakemark.environment["LAKEMARK_SOURCE__WATCH_INTERVAL"] = "1s"
    running.lakemark.start()
    running.wait_equal()
    for table in TABLES.values():
        if running.overrides.get("database", True):  # snapshots with a sweep, under every policy
            name = running.database.identifier(table)
            running.wait_progress(name, "whole", lambda r: bool(r.get("complete")))
    change(running.database)
    running.wait_drained()
    for kind, table, outcome in cases(outcomes):
        require(running, kind, table, outcome)


@pytest.mark.parametrize(("any_database", "engine"), ENGINES, indirect=["any_database"])
def test_with_a_database(any_database: Database, tmp_path: Path, engine: str):
    fill(any_database, **{"snapshot.mode": "no_data"})
    spark, name = engine == "spark-merge", any_database.identifier
    with Running(any_database, tmp_path, settings(any_database, engine), spark=spark) as running:
        follow(running, {})
        running.wait_equal(*(name(f"{name_of('rename-table', b)}_new") for b in BEHAVIORS))
        for behavior in BEHAVIORS[1:]:
            kept = columns(running, name_of("rename-column", behavior))
            assert "x" in kept if behavior != "ignore" else "x" not in kept
        said = {(e["table"], e["action"]) for e in running.lakemark.events("catalog.changed")}
        assert (name("drop_column_evolve"), "rebuild") in said
        assert (name("add_column_ignore"), "nothing") in said, "it is not read for nothing"


@on(*AT_NIGHT)
@pytest.mark.parametrize("form", ["wrapped", pytest.param("confluent", marks=nightly)])
def test_without_one(any_database: Database, tmp_path: Path, form: str):
    records = form_settings(form, any_database.stack)
    fill(any_database, **{"snapshot.mode": "initial", **records})
    source = source_section(any_database, tmp_path)
    own = settings(any_database, "deletion-vectors", database=None, source=source)
    with Running(any_database, tmp_path, own) as running:
        follow(running, BLIND)
