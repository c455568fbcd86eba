"""Two tables of a real database with one plain name: both stream, are read and are planned."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stack.local import Database
from tests.kit.command_line import invoke
from tests.kit.running import Running
from tests.kit.snapshots import Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TABLES = {'a."b.c"': ("a", "b.c"), '"a.b".c': ("a.b", "c")}
CAPTURED = {"schema.include.list": r"public,a,a\.b", "publication.autocreate.mode": "all_tables"}


def sql(name: tuple[str, str]) -> str:
    return ".".join(f'"{part}"' for part in name)


def rows(running: Running, name: tuple[str, str]) -> dict[int, str]:
    table = DeltaTable(str(running.directory / "lake" / name[0] / name[1]))
    found = pa.table(table.scan()).to_pylist()
    return {row["id"]: row["note"] for row in found}


def said(running: Running, command: str) -> tuple[int, Any]:
    """Exit code and document of a command."""
    done = invoke(command, "-c", str(running.lakemark.config), "-o", "json")
    assert done.stdout, done.stderr
    return done.exit_code, json.loads(done.stdout)


def test_each_is_planned_streamed_and_read_as_itself(database: Database, tmp_path: Path):
    for schema in ("a", "a.b"):
        database.execute(f'CREATE SCHEMA "{schema}"')
    for text, name in TABLES.items():
        database.execute(f"CREATE TABLE {sql(name)} (id int PRIMARY KEY, note text)")
        database.execute(f"INSERT INTO {sql(name)} VALUES (1, $q${text}$q$)")
    database.start_connector({**CAPTURED, "snapshot.mode": "no_data"})
    with Running(database, tmp_path) as running, Snapshots(running) as snapshots:
        _, plan = said(running, "plan")
        assert {table["name"] for table in plan["tables"]} >= set(TABLES)
        _, doctor = said(running, "doctor")
        assert not [f for f in doctor if f["subject"] in TABLES and f["verdict"] == "error"]
        running.lakemark.start()
        for text, name in TABLES.items():
            database.execute(f"INSERT INTO {sql(name)} VALUES (2, $q${text} later$q$)")
        for text in TABLES:
            snapshots.completed(snapshots.start(text))
        running.wait_drained()
        for text, name in TABLES.items():
            record = running.wait_state(text, "streaming")
            assert not record.get("resnapshot")
            assert rows(running, name) == {1: text, 2: f"{text} later"}
