"""Tables compared with their database while the log goes on: what differs is found, and mended."""

import json
import random
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from stack.database import Database
from stack.processes import wait_for
from tests.kit.going_on import going_on
from tests.kit.nightly import nightly
from tests.kit.number_rows import numbers_of
from tests.kit.planting import change
from tests.kit.running import Running
from tests.kit.snapshots import SNAPSHOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EACH = pytest.mark.parametrize(
    ("any_database", "engine"),
    [
        ("postgres", "task-merge"),
        pytest.param("mariadb-11.4", "deletion-vectors", marks=nightly),
        pytest.param("postgres", "spark-merge", marks=nightly),
        pytest.param("postgres", "deletion-vectors", marks=nightly),
        pytest.param("mysql-9.7", "task-merge", marks=nightly),
    ],
    indirect=["any_database"],
)
ROWS = 300
COLUMNS = "v, d, f, at"
TABLE = (
    "id int PRIMARY KEY, n int, v varchar(40), d numeric(20, 6), f double precision, at {moment}"
)
MOMENTS = {"postgres": "timestamp", "mysql": "datetime(6)"}
ROW = (
    "INSERT INTO {table} (id, n, v, d, f, at) SELECT seq, seq, CONCAT('v', seq), seq / 3.0, seq / 7.0,"
    " '2026-01-01 10:00:00.000001' FROM {rows}"
)
# What is planted in the lake alone, by key: SQL of DataFusion, and the column that differs then.
PLANTED = {
    11: ("n", "n + 1"),
    12: ("d", "d + 0.000001"),
    13: ("v", "v || ' '"),
    14: ("f", "-0.0"),
    15: ("v", "'e\u0301'"),
    16: ("at", "at + interval '1 microsecond'"),
    17: ("v", "null"),
    18: ("f", "cast('NaN' as double)"),
}
MISSING, EXTRA = (21, 22), (1023, 1024)  # both in the range of one chunk, so that counts agree
UNSENT = 900  # a row that no event ever carried


class Compared:
    """A pipeline, and the command that compares its tables."""

    def __init__(self, running: Running, *tables: str) -> None:
        self.running = running
        self.tables = tables
        self.names = [running.database.identifier(table) for table in tables]

    def verify(self, *options: str) -> tuple[int, dict[str, Any]]:
        """Exit code and what the command says, as JSON."""
        done = self.running.lakemark.answer("verify", *self.names, *options, "-o", "json")
        assert done.returncode in {0, 1}, done.stderr
        said = json.loads(done.stdout)
        assert said["state"] == "completed", said
        return done.returncode, said

    def found(self, said: dict[str, Any]) -> set[tuple[str, str, str, tuple[str, ...]]]:
        return {
            (one["table"], one["kind"], one["key"], tuple(one["columns"])) for one in said["found"]
        }


def written(database: Database, table: str) -> AbstractContextManager[None]:
    """Rows of a table are changed, deleted and made all the time, keys too."""
    dice = random.Random(7)

    def write() -> None:
        key = dice.randrange(100, ROWS)
        database.execute(f"UPDATE {table} SET n = n + 1, v = 'w' WHERE id = {key}")
        database.execute(f"DELETE FROM {table} WHERE id = {dice.randrange(100, ROWS)}")
        new = dice.randrange(100, ROWS)
        rows = numbers_of(database, new, new)
        if not database.execute(f"SELECT 1 FROM {table} WHERE id = {new}"):
            database.execute(ROW.format(table=table, rows=rows))
        moved = dice.randrange(100, ROWS)
        if not database.execute(f"SELECT 1 FROM {table} WHERE id = {moved}"):
            database.execute(f"UPDATE {table} SET id = {moved} WHERE id = {key}")

    return going_on(write)


def planted(path: str) -> None:
    """Change rows of a Delta table beside the pipeline that writes it."""
    change(path, lambda table: table.delete(f"id in {MISSING}"))
    for key, (column, value) in PLANTED.items():
        change(path, lambda t, c=column, v=value, k=key: t.update({c: v}, predicate=f"id = {k}"))
    table = DeltaTable(path)
    schema = pa.schema(table.schema().to_arrow())
    (row,) = pa.table(table.scan(predicate="id = 1")).to_pylist()
    extra = pa.Table.from_pylist([{**row, "id": key} for key in EXTRA], schema)
    change(path, lambda t: write_deltalake(t, extra, mode="append"))


def unsent(database: Database, table: str) -> None:
    """A row is there of which the log says nothing."""
    insert = ROW.format(table=table, rows=numbers_of(database, UNSENT, UNSENT))
    if database.server.connector == "postgres":
        (publication,) = database.execute("SELECT pubname FROM pg_publication")[0]
        change = f"ALTER PUBLICATION {publication} {{}} TABLE {table}"
        # In one transaction, or the events of others are lost, too.
        database.execute("; ".join([change.format("DROP"), insert, change.format("ADD")]))
        return
    with database.connect() as session:
        session.execute("SET sql_log_bin = 0")
        session.execute(insert)


@EACH
def test_what_is_planted_under_load_is_found_and_mended(
    any_database: Database, tmp_path: Path, engine: str
):
    database = any_database
    moment = MOMENTS["postgres" if database.server.connector == "postgres" else "mysql"]
    for table in ("t", "quiet"):
        database.execute(f"CREATE TABLE {table} ({TABLE.format(moment=moment)})")
        database.execute(ROW.format(table=table, rows=numbers_of(database, 1, ROWS)))
    more = {"publication.autocreate.mode": "filtered"} if moment == "timestamp" else {}
    database.start_connector({"snapshot.mode": "initial", **more})
    sections = {
        **SNAPSHOT, "snapshot": {"chunk_rows": 50}, "lake": {"path": "./lake", "engine": engine}
    }  # fmt: skip
    spark = engine == "spark-merge"
    with Running(database, tmp_path, sections, spark=spark) as running:
        compared = Compared(running, "t", "quiet")
        # A look at the catalog would find that the table was not published, and have it read again.
        running.lakemark.environment["LAKEMARK_SOURCE__WATCH_INTERVAL"] = "1h"
        running.lakemark.start()
        running.wait_equal()
        name = database.identifier("t")
        with written(database, "t"):
            code, said = compared.verify()
            assert (code, said["found"]) == (0, []), said
            quiet = said["tables"][database.identifier("quiet")]
            is_summed = database.server.connector == "postgres"
            assert (quiet["rows"], quiet["sent"]) == (ROWS, 0 if is_summed else ROWS)
            planted(str(running.table(name).table_uri))
            unsent(database, "t")
            code, said = compared.verify("--with-values")
            expected = {
                (name, "differing", f"[{key}]", (column,)) for key, (column, _) in PLANTED.items()
            }
            expected |= {(name, "missing", f"[{key}]", ()) for key in (*MISSING, UNSENT)}
            expected |= {(name, "extra", f"[{key}]", ()) for key in EXTRA}
            assert compared.found(said) == expected
            assert code == 1
            values = {one["key"]: (one["source"], one["lake"]) for one in said["found"]}
            assert json.loads(values["[11]"][0])["n"] == 11
            assert json.loads(values["[11]"][1])["n"] == 12
            code, said = compared.verify("--repair")
            assert (code, compared.found(said)) == (1, expected)
            assert {one["mended"] for one in said["found"]} == {True}
            code, said = compared.verify()
            assert (code, said["found"]) == (0, []), said
        running.wait_equal()
        assert wait_for(lambda: compared.verify()[0] == 0, 60, "the last word")
