"""`lakemark prepare`: after its scripts the doctor is well, and the users' rights are enough."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import pytest

from lakemark.ops.prepare.prepare import CONNECTOR, SCRIPT
from stack.database import Database
from stack.mariadb import MariaDb
from stack.processes import wait_for
from tests.kit.command_line import invoke
from tests.kit.running import STATE_S, Running
from tests.kit.servers import on

pytestmark = pytest.mark.integration

PASSWORD = "hush-4hush"
OURS = "lakemark of shop"
THEIRS = "debezium of shop"


@dataclass
class Product:
    """One product's client, and the settings without which no connector begins."""

    database: Database
    reader: str

    def settings(self) -> dict[str, str]:
        host, port = self.database.server.for_connect
        name = self.database.name
        return {
            "connector.class": self.java_class,
            "database.hostname": host,
            "database.port": str(port),
            "database.user": self.reader,
            "database.password": PASSWORD,
            "topic.prefix": name,
            "table.include.list": self.database.identifier("orders"),
            **self.own(),
        }

    java_class = ""
    odd = ""
    """A name that has to be quoted, as SQL has it."""

    def everything(self) -> str:
        return self.database.identifier("orders").removesuffix("orders") + ".*"

    def own(self) -> dict[str, str]:
        return {}

    def run(self, script: Path) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        raise NotImplementedError


class Postgres(Product):
    java_class = "io.debezium.connector.postgresql.PostgresConnector"
    odd = """"public"."o""dd 'table'\\; --\""""

    def own(self) -> dict[str, str]:
        name = self.database.name
        return {"database.dbname": name, "slot.name": name, "publication.name": name}

    def run(self, script: Path) -> None:
        psql = which("psql")
        if psql is None:
            pytest.skip("there is no psql here")
        words = [f"{whose}_password={PASSWORD}" for whose in ("connector", "lakemark")]
        variables = [part for word in words for part in ("-v", word)]
        command([psql, self.database.dsn, "-X", "-q", *variables, "-f", str(script)])

    def forget(self) -> None:
        for user in (OURS, self.reader):
            self.database.execute(f'DROP OWNED BY "{user}"')
            self.database.execute(f'DROP ROLE "{user}"')


class Maria(Product):
    java_class = "io.debezium.connector.mariadb.MariaDbConnector"
    odd = "`o``dd 'table'\\; --`"

    def run(self, script: Path) -> None:
        server = self.database.server
        variables = f"SET @connector_password = '{PASSWORD}', @lakemark_password = '{PASSWORD}'"
        newest = MariaDb(directory=script.parent, log=script.parent / "log")  # it runs everywhere
        client = newest.fetch() / "bin" / "mariadb"
        address = ["--protocol=tcp", f"--host={server.host}", f"--port={server.port}"]
        user = [f"--user={server.user}", "--skip-ssl", f"--init-command={variables}"]
        with script.open() as text:
            command([str(client), "--no-defaults", *address, *user], stdin=text)

    def forget(self) -> None:
        self.database.execute("DROP USER IF EXISTS %s@%s", [OURS, "%"])


def command(words: list[str], **more) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, **more)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def product(any_database: Database) -> Iterator[Product]:
    """A database without a signal table and without users but the administrator."""
    any_database.execute("DROP TABLE debezium_signal")
    if any_database.server.connector == "postgres":
        found: Product = Postgres(any_database, THEIRS)
    else:
        reader = any_database.placeholders()["DATABASE_USER"]
        any_database.execute("DROP USER %s@%s", [reader, "%"])
        found = Maria(any_database, reader)
    yield found
    any_database.stack.connect.delete_connector(any_database.name)
    found.forget()


@on("postgres", "mariadb-11.4", "mariadb-10.11")
def test_after_the_scripts_the_doctor_is_well_and_the_rights_are_enough(
    product: Product, tmp_path: Path
):
    database = product.database
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))")
    database.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    url = database.dsn.replace(f"{database.server.user}@", f"{OURS.replace(' ', '%20')}@")
    sections = {"database": {"url": url, "password": PASSWORD}, "snapshot": {"incomplete": "auto"}}
    (tmp_path / "before.json").write_text(json.dumps(product.settings()))

    with Running(database, tmp_path / "pipeline", sections) as running:
        config = running.lakemark.config
        ready = prepared(tmp_path / "before.json", config, tmp_path / "prepared")
        for _ in range(2):  # it can be run again
            product.run(tmp_path / "prepared" / SCRIPT)
        start(database, {**ready, "database.password": PASSWORD})
        assert {found["check"] for found in not_well(config)} <= {
            "change topic"
        }  # has no event yet
        running.lakemark.start()
        wait_equal(running)
        database.execute("UPDATE orders SET note = 'changed' WHERE id = 1")
        database.execute("DELETE FROM orders WHERE id = 2")
        database.execute("INSERT INTO orders VALUES (4, 'd')")
        wait_equal(running)
        assert not_well(config) == []

        # now the catalog can be read, and the list has an expression
        database.execute(f"CREATE TABLE {product.odd} (id int)")
        wide = product.settings() | {"table.include.list": product.everything()}
        (tmp_path / "after.json").write_text(json.dumps(wide))
        for _ in range(2):  # of MariaDB the first one lets the second one see the table
            prepared(tmp_path / "after.json", config, tmp_path / "prepared", "--force")
            product.run(tmp_path / "prepared" / SCRIPT)
        assert "has no key" in (tmp_path / "prepared" / SCRIPT).read_text()
        with database.server.connect(database.name, user=OURS, password=PASSWORD) as connection:
            assert connection.execute(f"SELECT count(*) FROM {product.odd}").fetchone() == (0,)


def wait_equal(running: Running) -> None:
    table = running.database.identifier("orders")

    def same() -> bool:
        lake = running.rows(table).to_pylist() if running.version(table) >= 0 else []
        found = sorted((row["id"], row["note"]) for row in lake)
        return found == sorted(running.database.execute("SELECT id, note FROM orders"))

    wait_for(same, STATE_S, "the table to be equal")


def prepared(connector: Path, config: Path, to: Path, *more: str) -> dict[str, str]:
    done = invoke("prepare", str(connector), "-c", str(config), "--to", str(to), *more)
    assert done.exit_code == 0, done.stderr
    settings: dict[str, str] = json.loads((to / CONNECTOR).read_text())
    assert PASSWORD not in "".join(path.read_text() for path in to.iterdir())
    return settings


def start(database: Database, settings: Mapping[str, str]) -> None:
    """Start the connector with the settings as they were written."""
    database.config = dict(settings)
    database.stack.connect.require_plugin(database.server.connector)
    database.stack.connect.put_connector(database.name, database.config)
    database.wait_streaming()


def not_well(config: Path) -> list[dict[str, str]]:
    done = invoke("doctor", "-c", str(config), "-o", "json")
    return [finding for finding in json.loads(done.stdout) if finding["verdict"] != "ok"]
