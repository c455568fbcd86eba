"""Two tables of a real database that have one text for a name: both are refused, another streams."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stack.local import Database
from tests.kit.running import Running
from tests.kit.snapshots import Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TEXT = "a.b.c"
BOTH = '"a"."b.c" and "a.b"."c"'
CODE = "name-ambiguous"
CAPTURED = {"schema.include.list": r"public,a,a\.b", "publication.autocreate.mode": "all_tables"}
WRAPPED = {f"{side}.converter.schemas.enable": "true" for side in ("key", "value")}


def created(database: Database, settings: dict[str, str | None]) -> None:
    database.execute('CREATE SCHEMA "a"')
    database.execute('CREATE SCHEMA "a.b"')
    for table in ('"a"."b.c"', '"a.b"."c"', "orders"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO orders VALUES (1, 'before')")
    database.start_connector({**CAPTURED, **settings})


def changed(database: Database, number: int) -> None:
    """A row of every table."""
    for table in ('"a"."b.c"', '"a.b"."c"', "orders"):
        database.execute(f"INSERT INTO {table} VALUES ({number}, '{number}')")


def said(running: Running, command: str) -> tuple[int, Any]:
    """Exit code and document of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "lakemark", command, "-c", str(running.lakemark.config), "-o", "json"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def assert_named(running: Running) -> None:
    """Plan and doctor name both tables, and what to do."""
    code, plan = said(running, "plan")
    (table,) = [table for table in plan["tables"] if table["name"] == TEXT]
    assert (code, table["target"]["action"], table["target"]["code"]) == (1, "stop", CODE)
    assert BOTH in table["target"]["reason"]
    assert "rename" in table["target"]["hint"]
    code, doctor = said(running, "doctor")
    (finding,) = [f for f in doctor if f["check"] == "tables" and f["subject"] == TEXT]
    assert (code, finding["verdict"]) == (1, "error")
    assert BOTH in finding["reason"]
    assert "rename" in finding["mend"]


def test_with_a_database_both_are_refused_from_the_start(database: Database, tmp_path: Path):
    created(database, {})
    with Running(database, tmp_path) as running, Snapshots(running) as snapshots:
        assert_named(running)
        running.lakemark.start()
        refused(running)  # before any event of theirs
        rejected = snapshots.rejected(snapshots.start(TEXT))
        assert rejected["code"] == CODE
        assert BOTH in rejected["reason"]
        changed(database, 3)
        running.wait_drained()
        running.wait_equal("public.orders")
        refused(running)


def test_without_a_database_both_are_refused_at_their_events(database: Database, tmp_path: Path):
    created(database, {**WRAPPED})
    changed(database, 2)
    with Running(database, tmp_path, {"database": None}) as running:
        running.wait_drained()
        running.lakemark.start()
        refused(running)
        changed(database, 3)
        running.wait_drained()
        running.wait_equal("public.orders")
        refused(running)
        running.lakemark.kill()
        assert_named(running)


def refused(running: Running) -> None:
    """The table of this text has stopped, and the lake has nothing of it."""
    record = running.wait_state(TEXT, "errored")
    assert record["code"] == CODE
    assert BOTH in record["reason"]
    assert running.version(TEXT) == -1
    assert not list((running.directory / "lake").glob("a*"))
