"""The SQL of the pages, carried out on a server: what it grants is enough, and no more is needed."""

import json
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from lakemark.connectors.database import OpenWindow, Watermark
from lakemark.connectors.postgres.postgres_chunks import open_table
from lakemark.connectors.postgres.postgres_publication import unpublished
from lakemark.connectors.postgres.postgres_session import connect
from lakemark.connectors.postgres.postgres_windows import write_window
from lakemark.errors import ConfigError
from lakemark.model.handling_modes import HandlingModes
from stack.local import ROOT, Database
from stack.processes import wait_for
from tests.integration.test_doctor import configured, doctor
from tests.kit.documents import blocks
from tests.kit.reader import config

pytestmark = pytest.mark.integration

ROLES = ("debezium", "lakemark")
SIGNALS = "public.debezium_signal"
CONNECTOR = {"plugin.name": "pgoutput", "publication.name": "shop"}


@pytest.fixture
def shop(source: Database) -> Iterator[Database]:
    """A database as the pages find it: with its own tables alone."""
    yield from prepared(source)


@pytest.fixture
def captured(database: Database) -> Iterator[Database]:
    """The same beside Kafka and Connect."""
    yield from prepared(database)


def prepared(source: Database) -> Iterator[Database]:
    source.execute(f"DROP TABLE IF EXISTS {SIGNALS}")
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric)")
    for table in ("customers", "secrets"):
        source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)")
    yield source
    for role in ROLES:
        if source.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]):
            source.execute(f"DROP OWNED BY {role}")
            source.execute(f"DROP ROLE {role}")


def carry_out(shop: Database, page: str) -> None:
    statements = ";".join(block.text for block in blocks("sql") if block.page.name == page)
    lines = [line.partition("--")[0] for line in statements.splitlines()]
    for statement in "\n".join(lines).split(";"):
        if statement.strip() and not statement.strip().startswith("ALTER SYSTEM"):
            shop.execute(statement)


def test_the_database_as_the_page_sets_it_up(shop):
    carry_out(shop, "postgres.md")

    with connect(config(shop, "lakemark")) as session:
        window = OpenWindow(uuid.uuid4(), "shop", uuid.uuid4())
        assert isinstance(write_window(session, SIGNALS, closes=None, opens=window), Watermark)
        for table in ("public.orders", "public.customers"):
            with open_table(session, table, HandlingModes(), settings=CONNECTOR) as opened:
                assert (
                    unpublished(
                        opened.session, opened.schema.table, opened.schema.by_name, CONNECTOR
                    )
                    == []
                )
        with (
            pytest.raises(ConfigError, match="may not read"),
            open_table(session, "public.secrets", HandlingModes(), settings=CONNECTOR),
        ):
            pass
    assert shop.execute(f"SELECT count(*) FROM {SIGNALS}") == [(1,)]

    with psycopg.connect(make_conninfo(shop.dsn, user="debezium"), autocommit=True) as connector:
        connector.execute("SELECT pg_create_logical_replication_slot('page', 'pgoutput')")
        try:
            connector.execute(f"SELECT * FROM {SIGNALS}, public.orders, public.customers")
            assert shop.execute("SELECT relreplident FROM pg_class WHERE relname = 'orders'") == [
                ("f",)
            ]
        finally:
            connector.execute("SELECT pg_drop_replication_slot('page')")


@pytest.mark.parametrize("page", ["snapshots.md", "security.md"])
def test_least_rights_are_enough_to_read_and_to_write_windows(shop, page):
    shop.execute("CREATE ROLE lakemark LOGIN")
    shop.execute(
        f"CREATE TABLE {SIGNALS} (id varchar(42) PRIMARY KEY, type varchar(32), data varchar(2048))"
    )
    carry_out(shop, page)

    with connect(config(shop, "lakemark")) as session:
        window = OpenWindow(uuid.uuid4(), "shop", uuid.uuid4())
        assert isinstance(write_window(session, SIGNALS, closes=None, opens=window), Watermark)
        with open_table(session, "public.orders", HandlingModes(), settings=CONNECTOR) as opened:
            assert session.execute(f"SELECT FROM {opened.source}").fetchall() == []


def test_the_connector_of_the_page_leaves_the_doctor_nothing_to_say(captured, tmp_path):
    carry_out(captured, "postgres.md")
    (page,) = [json.loads(b.text) for b in blocks("json") if b.page.name == "postgres.md"]
    ours = {
        "database.hostname": captured.placeholders()["DATABASE_HOST"],
        "database.port": captured.placeholders()["DATABASE_PORT"],
        "database.dbname": captured.name,
        "topic.prefix": captured.name,
        "slot.name": captured.name,
    }
    base = json.loads((ROOT / "connect-configs" / "postgres.json").read_text())
    unsaid = {name: None for name in base if name not in page and name != "tasks.max"}

    captured.start_connector({**unsaid, **page, **ours})
    captured.execute("INSERT INTO orders VALUES (1, 2)")
    topic = captured.topic("orders")
    wait_for(lambda: topic in captured.stack.kafka.topics(), 60, "an event")

    file = configured(captured, tmp_path, "lakemark")
    assert doctor(file) == (0, [])
