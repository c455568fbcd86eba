"""MySQL and MariaDB as a `Database`: the contract that all inherit, on real servers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lakemark.connectors.catalog_changes import Action
from lakemark.connectors.database import DatabaseAccess
from lakemark.connectors.mysql.catalog_facts import Cascade
from lakemark.connectors.mysql.mysql_database import MariaDbDatabase, MySqlDatabase
from lakemark.connectors.qualified_database import QualifiedDatabase
from lakemark.connectors.registry import database_of
from lakemark.connectors.table_choice import TableChoice
from lakemark.model.findings import Verdict
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import DatabaseConfig
from stack.connect import PLUGINS
from stack.database import Database
from tests.kit.database_contract import MOST, DatabaseContract
from tests.kit.number_rows import numbers
from tests.kit.servers import on

pytestmark = pytest.mark.integration

EACH = on("mariadb-11.4", "mariadb-10.11", "mysql-9.7")
CREATE = "CREATE TABLE public.t (id bigint PRIMARY KEY, v varchar(90) NOT NULL)"


def class_of(database: Database) -> str:
    return PLUGINS[database.server.connector].java_class


def access(database: Database, qualifier: str = "") -> DatabaseAccess:
    config = DatabaseConfig(url=database.dsn)
    settings = {"connector.class": class_of(database)}
    return DatabaseAccess(config, HandlingModes(), settings, qualifier=qualifier)


def asked(database: Database) -> MySqlDatabase:
    found = database_of(access(database))
    assert isinstance(found, MySqlDatabase)
    assert isinstance(found, MariaDbDatabase) == (database.server.connector == "mariadb")
    return found


@dataclass
class Served:
    source: Database
    database: MySqlDatabase | QualifiedDatabase
    only_three: str = "v = 'v3'"
    no_filter: str = "sleep(1) IS NULL"

    def put(self, key: int, v: str) -> None:
        self.source.execute("INSERT INTO public.t VALUES (%s, %s)", [key, v])

    def drop(self) -> None:
        self.source.execute("DROP TABLE public.t")

    def create(self) -> None:
        self.source.execute(CREATE)


@EACH
class TestDatabase(DatabaseContract):
    @pytest.fixture
    def served(self, any_database: Database) -> Iterator[Served]:
        any_database.execute("CREATE DATABASE public")
        try:
            any_database.execute(CREATE)
            any_database.execute(
                f"INSERT INTO public.t SELECT seq, CONCAT('v', seq) FROM {numbers(0, MOST - 1)}"
            )
            found = database_of(access(any_database, self.qualifier))
            assert isinstance(found, QualifiedDatabase if self.qualifier else MySqlDatabase)
            yield Served(any_database, found)
        finally:
            any_database.execute("DROP DATABASE public")


class TestOneOfSeveral(TestDatabase):
    """The same contract, with a qualifier before the names of its tables."""

    qualifier = "eu.shop"


# -- looks at the catalog, by what statements do -------------------------------------------------

ALTER = "ALTER TABLE orders "
STATEMENTS: dict[str, tuple[str, str | None]] = {
    "nothing": ("SELECT 1", None),
    "a row": ("INSERT INTO orders VALUES (9, 'x', 1)", None),
    "a column with a default": (ALTER + "ADD note varchar(9) DEFAULT 'new'", "column-added"),
    "a column without one": (ALTER + "ADD note varchar(9)", "column-added"),
    "a column is dropped": (ALTER + "DROP n", "column-dropped"),
    "another name": (ALTER + "RENAME COLUMN n TO m", "column-added"),
    "a wider number": (ALTER + "MODIFY n bigint", "type-changed"),
    "a text of a number": (ALTER + "MODIFY n varchar(20)", "rewritten"),
    "a shorter text": (ALTER + "MODIFY v varchar(5)", "rewritten"),
    "another key": (ALTER + "DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)", "key-changed"),
    "made anew": ("DROP TABLE orders; CREATE TABLE orders LIKE orders_old", "rewritten"),
    "swapped": ("RENAME TABLE orders TO o, orders_old TO orders, o TO orders_old", "rewritten"),
    "another default": (ALTER + "ALTER n SET DEFAULT 7", "rewritten"),
}


@EACH
@pytest.mark.parametrize("what", STATEMENTS)
def test_what_a_statement_does_to_a_table_is_seen(any_database: Database, what: str):
    statement, kind = STATEMENTS[what]
    any_database.execute("CREATE TABLE orders (id int PRIMARY KEY, v varchar(9) NOT NULL, n int)")
    any_database.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    wait_for_another_second(any_database)
    any_database.execute("CREATE TABLE orders_old LIKE orders")
    database, name = asked(any_database), f"{any_database.name}.orders"
    before = database.look({name}.__contains__)
    wait_for_another_second(any_database)
    for one in statement.split(";"):
        any_database.execute(one)
    found = database.differences(before, database.look({name}.__contains__))
    kinds = {change.kind for change in found}
    assert (kind in kinds) if kind else (kinds == set()), found
    read = any(change.action is Action.READ_AGAIN for change in found)
    assert read == (kind in {"column-added", "rewritten"} or what in REWRITES)


REWRITES = {"another key", "a column is dropped", "a wider number"}
"""They make the table's form anew, which its time in the catalog tells, and perhaps its rows."""


def wait_for_another_second(database: Database) -> None:
    """The catalog has whole seconds: what is made within one cannot be told apart."""
    database.execute("SELECT SLEEP(1.1 - (UNIX_TIMESTAMP(NOW(6)) % 1))")


@EACH
def test_the_key_of_a_look_is_that_of_the_events(any_database: Database):
    """Of several unique indexes without NULL the server takes one for the primary key."""
    any_database.execute(
        "CREATE TABLE orders (id int, b int NOT NULL, c int NOT NULL, d int,"
        " UNIQUE z (b), UNIQUE a (c), UNIQUE aa (d))"
    )
    database, name = asked(any_database), f"{any_database.name}.orders"
    looked = database.look({name}.__contains__).tables[name]
    assert looked.key == database.schemas([name])[name].key == ("b",)


@EACH
def test_cascades_and_partitions_are_seen(any_database: Database):
    any_database.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    any_database.execute(
        "CREATE TABLE child (id int PRIMARY KEY, p int,"
        " CONSTRAINT fk FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)"
    )
    any_database.execute(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)"
        " (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20))"
    )
    database, name = asked(any_database), any_database.name
    before = database.look(lambda table: table.startswith(f"{name}."))
    logged = any_database.server.connector == "mysql"
    unseen = () if logged else (Cascade("fk", f"{name}.parent"),)
    assert before.tables[f"{name}.child"].cascades == unseen
    assert before.tables[f"{name}.parts"].partitions == ("a", "b")
    any_database.execute("ALTER TABLE parts DROP PARTITION a")
    found = database.differences(before, database.look(before.tables.__contains__))
    assert {change.kind for change in found} >= {"partitions-changed"}
    checks = {f.check: f for f in examined(any_database).findings if f.subject == f"{name}.child"}
    assert checks["cascades"].verdict is Verdict.OK
    assert (f"{name}.parent" in checks["cascades"].reason) is not logged


# -- what operators are told ---------------------------------------------------------------------


@dataclass
class Captured:
    settings: dict[str, str]
    tables: TableChoice
    signal_table: str | None


def captured(database: Database) -> Captured:
    settings = {"connector.class": class_of(database), "database.include.list": database.name}
    settings["database.server.id"] = "5401"
    tables = TableChoice(settings, [], container="database")
    return Captured(settings, tables, database.identifier("debezium_signal"))


def examined(database: Database) -> Any:
    return asked(database).examine(captured(database), streams=False, chosen=True)


@EACH
def test_the_doctor_says_what_is_there(any_database: Database):
    any_database.execute("CREATE TABLE good (id int PRIMARY KEY, at timestamp(6) NULL)")
    any_database.execute("CREATE TABLE no_key (id int)")
    is_mysql = any_database.server.connector == "mysql"
    unknown = "int" if is_mysql else "inet6"
    any_database.execute(f"CREATE TABLE address (id int PRIMARY KEY, a {unknown})")
    any_database.execute("CREATE VIEW seen AS SELECT * FROM good")
    found = examined(any_database)
    name = any_database.name
    assert found.tables == [f"{name}.{table}" for table in ("address", "good", "no_key")]
    bad = {(f.check, f.subject) for f in found.findings if f.verdict is not Verdict.OK}
    stopping = set() if is_mysql else {("columns", f"{name}.address")}
    assert bad == {("key", f"{name}.no_key"), ("tables", f"{name}.seen")} | stopping
    of_server = {f.check for f in found.findings if not f.subject.startswith(name)}
    assert of_server >= {"database", "binary log", "row image", "log retention", "server id"}
    assert of_server >= {"transaction ids", "rights", "replication"}


@EACH
def test_the_doctor_says_what_a_user_may_not_do(any_database: Database):
    any_database.execute("CREATE TABLE good (id int PRIMARY KEY)")
    user, name = f"poor_{any_database.name}", any_database.name
    any_database.execute(f"CREATE USER {user} IDENTIFIED BY 'geheim'")
    try:
        any_database.execute(f"GRANT INSERT ON {name}.* TO {user}")
        url = any_database.dsn.replace("//root@", f"//{user}@")
        config = DatabaseConfig(url=url, password="geheim")
        access = DatabaseAccess(
            config, HandlingModes(), {"connector.class": class_of(any_database)}
        )
        found = database_of(access).examine(captured(any_database), streams=False, chosen=True)
        bad = {f.check: f.mend for f in found.findings if f.verdict is not Verdict.OK}
        rights = {"rights"} if any_database.server.connector == "mysql" else set()
        assert {*bad} == {"select"} | rights
        for mend in bad.values():  # as it is said
            any_database.execute(mend.replace("<lakemark's user>", user))
        found = database_of(access).examine(captured(any_database), streams=False, chosen=True)
        assert {f.check for f in found.findings if f.verdict is not Verdict.OK} == set()
    finally:
        any_database.execute(f"DROP USER {user}")


@EACH
def test_a_plan_has_the_tables_and_why_one_cannot_be_read(any_database: Database):
    any_database.execute("CREATE TABLE good (id int PRIMARY KEY, v varchar(90))")
    rows = f"SELECT seq, 'x' FROM {numbers(1, 5000)} ORDER BY seq"  # else estimates are worse
    any_database.execute(f"INSERT INTO good {rows}")
    any_database.execute("ANALYZE TABLE good")
    any_database.execute("CREATE TABLE no_key (id int)")
    found = asked(any_database).planned_tables(captured(any_database))
    name = any_database.name
    assert found.schemas[f"{name}.good"].key == ("id",)
    assert [table for table, _, _ in found.sizes] == [f"{name}.good", f"{name}.no_key"]
    (_, rows, size), _ = found.sizes
    assert 4000 < rows < 6000
    assert size > 50_000
    assert found.refused == {f"{name}.no_key": "it has no key"}


FILTERS: dict[str, Callable[[int], bool]] = {
    "id BETWEEN 3 AND 5 OR id IN (7, 8)": lambda i: 3 <= i <= 5 or i in {7, 8},
    "v LIKE 'v\\_%' OR NOT (id <> 2)": lambda i: i == 2,
    "v <=> NULL OR id >= 9": lambda i: i >= 9,
    "v = 'it''s \\' 100%' OR id < 2": lambda i: i < 2,
    "t.id = -(-4) AND t.V IS NOT NULL": lambda i: i == 4,
    't.id = 4 AND V = "v4"': lambda i: i == 4,
    "TRUE": lambda i: True,
}


@EACH
@pytest.mark.parametrize("text", FILTERS)
def test_a_filter_is_what_the_server_says_it_is(any_database: Database, text: str):
    table = any_database.identifier("t")
    any_database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v varchar(90))")
    any_database.execute(f"INSERT INTO t SELECT seq, CONCAT('v', seq) FROM {numbers(0, 11)}")
    expected = {key for (key,) in any_database.execute(f"SELECT id FROM t WHERE {text}")}
    assert expected == set(filter(FILTERS[text], range(12)))
    database = asked(any_database)
    questions, reader = database.questions(name="questions"), database.reader()
    try:
        condition = questions.condition(table, text)
        rows = reader.read(table, condition=condition).found.rows.to_pylist()
    finally:
        questions.drop()
        reader.close()
    assert {row["id"] for row in rows} == expected
