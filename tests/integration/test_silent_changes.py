"""What a database changes without a word in its log: each table equals its source all the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from stack.database import Database
from stack.local import DATABASES
from tests.kit.nightly import nightly
from tests.kit.number_rows import numbers
from tests.kit.running import Running

pytestmark = [pytest.mark.integration, pytest.mark.slow]

OTHERS = ("newest", *(service for service in DATABASES if service != "postgres"))
DAILY = [
    "postgres",
    "mariadb-11.4",
    *(pytest.param(s, marks=nightly) for s in ("newest", "mariadb-10.11", "mysql-9.7")),
]
NIGHTLY = ["postgres", *(pytest.param(service, marks=nightly) for service in OTHERS)]
SETTINGS = {"snapshot": {"incomplete": "auto", "chunk_rows": 10, "window_interval": "100ms"}}
ROWS = 25
LABELLED = "labelled"


@dataclass(frozen=True)
class Product:
    """The statements of one product.

    Attributes:
        before: what comes before the tables.
        table: creates one of a name.
        fill: its rows.
        changes: by table what is done to it, the second time with another name where a name is
            used up; or the first time and the second. A look that sees one of these sees those
            before it, too.
        rewritten: the kind of the change that a table shows whose rows were only written anew.
        another_name: the statement that renames a table.
    """

    before: tuple[str, ...]
    table: str
    fill: str
    changes: Mapping[str, str | tuple[str, str]]
    rewritten: str
    another_name: str


_POSTGRES_TABLE = "CREATE TABLE {} (id int PRIMARY KEY, a text, price numeric(10,2), mood mood)"
POSTGRES = Product(
    ("CREATE TYPE mood AS ENUM ('sad', 'glad')",),
    _POSTGRES_TABLE,
    f"INSERT INTO {{}} SELECT n, 'a' || n, n, 'sad' FROM generate_series(1, {ROWS}) n",
    {
        "dropped_and_added": ("ALTER TABLE {} DROP COLUMN a", "ALTER TABLE {} ADD COLUMN a text"),
        "dropped_and_given": (
            "ALTER TABLE {} DROP COLUMN a",
            "ALTER TABLE {} ADD COLUMN a text DEFAULT 'new'",
        ),
        "renamed_and_added": (
            "ALTER TABLE {} RENAME a TO x",
            "ALTER TABLE {} ADD COLUMN a text",
        ),
        "added_constant": "ALTER TABLE {} ADD COLUMN c{n} int NOT NULL DEFAULT 11",
        "added_then_changed": "BEGIN; ALTER TABLE {} ADD COLUMN c{n} int DEFAULT 1; "
        "ALTER TABLE {} ALTER c{n} SET DEFAULT 2; COMMIT",
        "added_now": "ALTER TABLE {} ADD COLUMN c{n} timestamptz DEFAULT now()",
        "added_random": "ALTER TABLE {} ADD COLUMN c{n} uuid DEFAULT gen_random_uuid()",
        "added_serial": "ALTER TABLE {} ADD COLUMN c{n} serial",
        "retyped_computed": "ALTER TABLE {} ALTER price TYPE numeric(12,2) USING price * 1.2",
        "retyped_same": "ALTER TABLE {} ALTER a TYPE text USING a || '!'",
        "replaced": "ALTER TABLE {} DROP COLUMN a; ALTER TABLE {} ADD COLUMN a text",
        "swapped": "BEGIN; ALTER TABLE {} ADD COLUMN IF NOT EXISTS b text DEFAULT 'b'; "
        "ALTER TABLE {} RENAME a TO x; ALTER TABLE {} RENAME b TO a; "
        "ALTER TABLE {} RENAME x TO b; COMMIT",
        "made_anew": "DROP TABLE {}; "
        + _POSTGRES_TABLE
        + "; INSERT INTO {} VALUES (1000, 'new', 1)",
        "replaced_by_another": (
            (
                "CREATE TABLE {}_next (id int PRIMARY KEY); "
                f"INSERT INTO {{}}_next SELECT n FROM generate_series(1, {ROWS}) n; "
                "DROP TABLE {}; ALTER TABLE {}_next RENAME TO {}"
            ),
            "ALTER TABLE {} ADD COLUMN a text",
        ),
        "stored_anew": "VACUUM FULL {}",
        LABELLED: (
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
            "ALTER TYPE mood RENAME VALUE 'blue' TO 'sad'",
        ),
    },
    "storage-changed",
    "ALTER TABLE {} RENAME TO {n}",
)

_BINLOG_TABLE = (
    "CREATE TABLE {} (id int PRIMARY KEY, a varchar(100), b varchar(100), price decimal(10,2),"
    " mood enum('sad', 'glad'))"
)
_PARTITIONED = (
    "ALTER TABLE {} PARTITION BY RANGE (id)"
    " (PARTITION low VALUES LESS THAN (10), PARTITION high VALUES LESS THAN MAXVALUE)"
)
BINLOG = Product(
    (),
    _BINLOG_TABLE,
    "INSERT INTO {} SELECT seq, CONCAT('aä€', seq), IF(seq % 2, NULL, seq), seq, 'sad'"
    f" FROM {numbers(1, ROWS)}",
    {
        "dropped_and_added": (
            "ALTER TABLE {} DROP COLUMN a",
            "ALTER TABLE {} ADD COLUMN a varchar(100)",
        ),
        "renamed_and_added": (
            "ALTER TABLE {} RENAME COLUMN a TO x",
            "ALTER TABLE {} ADD COLUMN a varchar(100)",
        ),
        "added_constant": "ALTER TABLE {} ADD COLUMN c{n} int NOT NULL DEFAULT 11",
        "added_then_changed": "ALTER TABLE {} ADD COLUMN c{n} int DEFAULT 1; "
        "ALTER TABLE {} ALTER c{n} SET DEFAULT 2",
        "added_now": "ALTER TABLE {} ADD COLUMN c{n} timestamp(6) NOT NULL"
        " DEFAULT CURRENT_TIMESTAMP(6)",
        "added_computed": "ALTER TABLE {} ADD COLUMN c{n} int DEFAULT (id * 2) FIRST",
        "added_generated": "ALTER TABLE {} ADD COLUMN c{n} int AS (id * 3) STORED",
        "shortened": "SET sql_mode = ''; ALTER TABLE {} MODIFY a varchar(1{n}), MODIFY b varchar(1)",
        "forced": "SET sql_mode = ''; ALTER TABLE {} MODIFY b varchar(20{n}) NOT NULL",
        "converted": "SET sql_mode = ''; ALTER TABLE {} CONVERT TO CHARACTER SET latin{n}",
        "replaced": "ALTER TABLE {} DROP COLUMN a; ALTER TABLE {} ADD COLUMN a varchar(100)",
        "swapped": "ALTER TABLE {} RENAME COLUMN a TO b, RENAME COLUMN b TO a",
        "made_anew": "DROP TABLE {}; "
        + _BINLOG_TABLE
        + "; INSERT INTO {} (id, a) VALUES (1000, 'new')",
        "replaced_by_another": (
            (
                "CREATE TABLE {}_next (id int PRIMARY KEY); "
                f"INSERT INTO {{}}_next SELECT seq FROM {numbers(1, ROWS)}; "
                "DROP TABLE {}; RENAME TABLE {}_next TO {}"
            ),
            "ALTER TABLE {} ADD COLUMN a varchar(100)",
        ),
        "partition_emptied": (_PARTITIONED, "ALTER TABLE {} TRUNCATE PARTITION low"),
        "partition_exchanged": (
            _PARTITIONED + "; CREATE TABLE {}_other LIKE {}; "
            "ALTER TABLE {}_other REMOVE PARTITIONING; INSERT INTO {}_other (id) VALUES (7)",
            "ALTER TABLE {} EXCHANGE PARTITION low WITH TABLE {}_other",
        ),
        "stored_anew": "OPTIMIZE TABLE {}",
        LABELLED: (
            "ALTER TABLE {} MODIFY mood enum('glad', 'sad')",
            "SET sql_mode = ''; ALTER TABLE {} MODIFY mood enum('glad', 'blue')",
        ),
    },
    "rewritten",
    "RENAME TABLE {} TO {n}",
)


def product_of(database: Database) -> Product:
    return POSTGRES if database.server.connector == "postgres" else BINLOG


def do(database: Database, statements: str, table: str, n: object) -> None:
    with database.connect() as connection:
        for statement in statements.replace("{n}", str(n)).replace("{}", table).split("; "):
            connection.execute(statement)


def change(database: Database, n: int) -> None:
    """Every table gets its change."""
    for table, statements in product_of(database).changes.items():
        chosen = statements if isinstance(statements, str) else statements[n - 1]
        do(database, chosen, table, n)


def fill(database: Database) -> None:
    product = product_of(database)
    for statement in product.before:
        database.execute(statement)
    for table in product.changes:
        statement = product.table.format(table)
        if table != LABELLED:  # else another label would have all tables read again
            statement = statement.replace("mood mood", "mood text")
        database.execute(statement)
        database.execute(product.fill.replace("{}", table))
    own = {"publication.autocreate.mode": "all_tables"} if product is POSTGRES else {}
    database.start_connector({"snapshot.mode": "no_data", **own})


def is_complete(record: dict[str, Any]) -> bool:
    return bool(record.get("complete")) and not record.get("resnapshot")


def settled(running: Running) -> None:
    running.wait_equal()
    for table in running.tables():
        running.wait_progress(table, "it to be complete", is_complete)


def started(running: Running) -> None:
    running.lakemark.environment["LAKEMARK_SOURCE__WATCH_INTERVAL"] = "1s"
    running.lakemark.start()


@pytest.fixture
def source(either_database: Database) -> Database:
    fill(either_database)
    return either_database


@pytest.mark.parametrize("either_database", DAILY, indirect=True)
def test_while_it_streams_and_once_more(source: Database, tmp_path):
    with Running(source, tmp_path, SETTINGS) as running:
        started(running)
        settled(running)
        for n in (1, 2):
            change(source, n)
            running.wait_equal()
        kinds = {
            e["kind"]
            for e in running.lakemark.events("catalog.changed")
            if e["table"] == source.identifier("stored_anew")
        }
        assert product_of(source).rewritten in kinds


@nightly
@pytest.mark.parametrize("either_database", NIGHTLY, indirect=True)
def test_while_it_is_down(source: Database, tmp_path):
    with Running(source, tmp_path, SETTINGS) as running:
        started(running)
        settled(running)
        running.lakemark.kill()
        change(source, 1)
        running.lakemark.start()
        running.wait_equal()


@nightly
@pytest.mark.parametrize("either_database", NIGHTLY, indirect=True)
def test_while_the_table_is_read(source: Database, tmp_path):
    """The changes meet the first snapshot, wherever it is."""
    with Running(source, tmp_path, SETTINGS) as running:
        started(running)
        running.lakemark.wait_for_event("snapshot.queued", 480)
        change(source, 1)
        settled(running)


@pytest.mark.parametrize("either_database", NIGHTLY, indirect=True)
def test_a_table_of_another_name_takes_its_rows_along(source: Database, tmp_path):
    with Running(source, tmp_path, SETTINGS) as running:
        started(running)
        settled(running)
        do(source, product_of(source).another_name, "stored_anew", "renamed")
        source.execute("INSERT INTO renamed (id, a) VALUES (5000, 'new')")
        running.wait_equal(source.identifier("renamed"))
        name = source.identifier("stored_anew")
        kinds = {
            e["kind"] for e in running.lakemark.events("catalog.changed") if e["table"] == name
        }
        assert kinds == {"table-renamed" if product_of(source) is POSTGRES else "table-dropped"}


def test_a_slot_that_was_dropped_and_made_again_while_it_is_down(database: Database, tmp_path):
    """Nothing that is captured has changed since: the slot's own facts alone tell."""
    database.execute(POSTGRES.table.replace("mood mood", "mood text").format("lost"))
    database.execute(POSTGRES.fill.replace("{}", "lost"))
    database.start_connector({"snapshot.mode": "no_data"})
    config = dict(database.config)
    with Running(database, tmp_path, SETTINGS) as running:
        started(running)
        settled(running)
        for n in range(40):
            database.execute(f"UPDATE lost SET price = price + 1 WHERE id = {n}")
        running.wait_equal()
        database.execute("VACUUM FULL lost")
        running.lakemark.wait_for_event("catalog.changed", 60)
        running.lakemark.kill()
        database.forget_connector()
        database.execute("DELETE FROM lost WHERE id % 2 = 0")
        database.execute("UPDATE lost SET a = 'unseen' WHERE id % 3 = 0")
        database.start_connector(config)
        running.lakemark.start()
        running.wait_equal()
        kinds = {e["kind"] for e in running.lakemark.events("catalog.changed")}
        assert "slot-made-anew" in kinds
