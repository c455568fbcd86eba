"""Looks at a catalog that is made up, and what a watch then says."""

import pytest

from lakemark.connectors.connector import parse
from lakemark.connectors.postgres.catalog_facts import (
    ColumnFacts,
    SourceFacts,
    TableFacts,
    UniqueKey,
)
from lakemark.connectors.postgres.postgres_database import PostgresDatabase
from lakemark.errors import DependencyError, PipelineError
from lakemark.ops import catalog_watch
from lakemark.ops.catalog_watch import CatalogWatch
from lakemark.settings.config import Config
from lakemark.state import control
from lakemark.state.tables import PipelineState, TableState

T, U = "public.a", "public.b"
CONFIG = Config.model_validate({
    "name": "shop",
    "kafka": {"bootstrap_servers": "localhost:9092"},
    "source": {"connect": {"url": "http://localhost:8083", "connector": "shop"}},
    "database": {"url": "postgresql://lakemark@localhost/shop"},
    "lake": {"path": "/nowhere/lake"},
    "checkpoint": "/nowhere/checkpoint",
})  # fmt: skip
SETTINGS = {
    "topic.prefix": "shop", "plugin.name": "pgoutput", "publication.name": "p", "slot.name": "s",
}  # fmt: skip
CONNECTOR = parse(SETTINGS, config=CONFIG)


def facts(name=T, *, oid=1, filenode=10, columns=("id", "v"), **more):
    found = tuple(ColumnFacts(n, c, "pg_catalog.text", xmin=7) for n, c in enumerate(columns, 1))
    key = {
        "key": (1,),
        "unique_keys": (UniqueKey("pk", (1,), not_null=True),),
        "identity_columns": (1,),
    }
    return TableFacts(oid=oid, name=name, filenode=filenode, columns=found, **(key | more))


def source(*tables, **more):
    return SourceFacts(
        slot="s", slot_present=True, publication="p", publication_present=True,
        tables={table.name: table for table in tables}, **more,
    )  # fmt: skip


def state(**tables):
    return PipelineState(tables={f"public.{name}": entry for name, entry in tables.items()})


class Store:
    def __init__(self):
        self.kept = None
        self.owner = True

    def catalog(self, connector=""):
        return self.kept

    def note_catalog(self, seen, connector=""):
        self.kept = seen

    def check_owner(self):
        if not self.owner:
            raise PipelineError("another process runs it", code="superseded")


class AskedDatabase(PostgresDatabase):
    """The database as a watch asks it; tests say what it answers."""

    def __init__(self, access):
        super().__init__(access)
        assert access.config == CONFIG.database

    def look(self, wanted, *, before):
        raise NotImplementedError

    def missing_values(self, table, missing):
        raise NotImplementedError


@pytest.fixture
def looks(monkeypatch):
    """A watch whose database says what `now` says, and the control records that it has written."""

    class Looks:
        now = source(facts())
        said = []
        records = []
        away = False
        store = Store()
        state = state(a=TableState())

        def watch(self):
            tell = self.told.append
            return CatalogWatch(CONFIG, CONNECTOR, self.store, lambda: self.state, tell)

    def look(_, wanted, **asked):
        assert asked.keys() == {"before"}
        assert wanted(T)
        return Looks.now

    def say(_, said):
        if Looks.away:
            raise DependencyError("the brokers are away")
        Looks.said += [(kind, table) for kind, table, _ in said]
        Looks.records += said

    Looks.said, Looks.store, Looks.told, Looks.records = [], Store(), [], []
    monkeypatch.setattr(catalog_watch, "database_of", AskedDatabase)
    monkeypatch.setattr(AskedDatabase, "look", look)
    monkeypatch.setattr(control, "say", say)
    return Looks()


def told(looks):
    return [(one.table, one.kind, one.action) for one in looks.told[-1].changes]
