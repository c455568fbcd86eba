"""Every change of a schema under every policy, in real tables: what the table then has."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lakemark.settings.schema_policy import BEHAVIORS, KINDS
from stack.local import Database
from tests.kit.nightly import nightly
from tests.kit.running import Running

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# tests/unit/sink/test_schema_policies.py has what events tell of with two of them, in every run.
ENGINES = [
    "deletion-vectors",
    pytest.param("task-merge", marks=nightly),
    pytest.param("spark-merge", marks=nightly),
]
SNAPSHOT = {"incomplete": "auto", "chunk_rows": 10, "window_interval": "100ms"}
ROWS = 20
# What is done to a table that has the columns id, n, v and w; then a row is inserted.
CHANGES = {
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


def insert(database: Database, table: str, first: int, last: int) -> None:
    columns = {c for (c,) in database.execute(
        f"SELECT column_name FROM information_schema.columns WHERE table_name = '{table}'"
    )}  # fmt: skip
    more = "".join(f", {c}" for c in ("w",) if c in columns)
    database.execute(
        f"INSERT INTO {table} (id, n, v{more}) SELECT i, i, 'v' || i{', 5' if more else ''}"
        f" FROM generate_series({first}, {last}) i"
    )


def settings(engine: str, **more: Any) -> dict[str, Any]:
    own = {
        f"public.{table}": {"schema_changes": {"behavior": behavior}}
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
    database.start_connector({"publication.autocreate.mode": "all_tables", **connector})


def change(database: Database) -> None:
    for (kind, _), table in TABLES.items():
        for statement in CHANGES[kind].replace("{}", table).split("; "):
            database.execute(statement)
        if kind != "drop-table":
            insert(database, f"{table}_new" if kind == "rename-table" else table, 101, 105)


def columns(running: Running, table: str) -> dict[str, str]:
    fields = running.table(f"public.{table}").schema().fields
    return {f.name: str(f.type) for f in fields if f.name != "_cdc"}


def ids(running: Running, table: str) -> set[int]:
    return set(running.rows(f"public.{table}").column("id").to_pylist())


def require(running: Running, kind: str, table: str, outcome: str) -> None:
    """The table has become what the policy says."""
    database, name = running.database, f"public.{table}"
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
        expected = {c for (c,) in database.execute(
            f"SELECT column_name FROM information_schema.columns WHERE table_name = '{table}'"
        )}  # fmt: skip
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
            running.wait_progress(f"public.{table}", "whole", lambda r: bool(r.get("complete")))
    change(running.database)
    running.wait_drained()
    for kind, table, outcome in cases(outcomes):
        require(running, kind, table, outcome)


@pytest.mark.parametrize("engine", ENGINES)
def test_with_a_database(database: Database, tmp_path: Path, engine):
    fill(database, **{"snapshot.mode": "no_data"})
    spark = engine == "spark-merge"
    with Running(database, tmp_path, settings(engine), spark=spark) as running:
        follow(running, {})
        renamed = [f"public.{name_of('rename-table', b)}_new" for b in BEHAVIORS]
        running.wait_equal(*renamed)
        for behavior in BEHAVIORS[1:]:
            kept = columns(running, name_of("rename-column", behavior))
            assert "x" in kept if behavior != "ignore" else "x" not in kept
        said = {(e["table"], e["action"]) for e in running.lakemark.events("catalog.changed")}
        assert ("public.drop_column_evolve", "rebuild") in said
        assert ("public.add_column_ignore", "nothing") in said, "it is not read for nothing"


@pytest.mark.parametrize("engine", ["deletion-vectors"])
def test_without_one(database: Database, tmp_path: Path, engine):
    wrapped = {"value.converter.schemas.enable": "true", "key.converter.schemas.enable": "true"}
    fill(database, **{"snapshot.mode": "initial", **wrapped})
    with Running(database, tmp_path, settings(engine, database=None)) as running:
        follow(running, BLIND)
