"""The catalog of many tables: each stands for itself, and only captured ones are asked for."""

from contextlib import contextmanager
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.catalogs import DatabaseCatalog
from lakemark.connectors.postgres import catalog as words
from lakemark.connectors.postgres import postgres
from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.connectors.table_choice import TableChoice
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import DatabaseConfig

GOOD, ODD = "public.good", "public.odd"
MODES = HandlingModes()


class Session:
    """A database's answers: the rows of its catalog, for the tables that are asked for."""

    def __init__(self, *rows):
        self.rows, self.asked = rows, []

    def execute(self, query, parameters=None):
        if query == postgres._ALL_TABLES:
            return self._answer(sorted({row[:2] for row in self.rows}))
        pairs = set(zip(parameters["schemas"], parameters["tables"], strict=True))
        self.asked += [f"{schema}.{table}" for schema, table in pairs]
        return self._answer([row for row in self.rows if row[:2] in pairs])

    @staticmethod
    def _answer(rows):
        return SimpleNamespace(fetchall=lambda: rows)


def column(table, name, kind, typmod=-1):
    schema, _, bare = table.partition(".")
    return schema, bare, name, kind, typmod, False, False, None, False, False, False, None


def test_a_table_that_cannot_be_described_is_alone(logs):
    session = Session(
        column(GOOD, "id", "int8"), column(ODD, "id", "numeric", None), column(ODD, "x", "int4")
    )
    found = postgres.schemas_of(session, [GOOD, ODD], MODES, settings={})
    assert list(found) == [GOOD]
    (said,) = logs
    assert (said["event"], said["table"]) == ("catalog.unreadable", ODD)
    assert said["code"] == "schema-unreadable"


def test_a_table_that_is_not_captured_is_not_asked_for(monkeypatch):
    session = Session(*(column(table, "id", "int8") for table in (GOOD, ODD, "elsewhere.t")))

    @contextmanager
    def moment(_database):
        yield session

    monkeypatch.setattr(postgres, "_moment", moment)
    captured = TableChoice({"schema.include.list": "public"}, ["public.go.*"])
    catalog = DatabaseCatalog(DatabaseConfig(url="postgresql://u@h/d"), MODES, {}, captured)
    assert list(catalog.read(None)) == session.asked == [GOOD]
    assert list(catalog.read([ODD])) == [ODD]  # records of it have come
    assert catalog.tables() == ["elsewhere.t", GOOD, ODD]


KINDS = st.sampled_from(
    [*words._PLAIN, *words._DATA, *words._SHAPES, *words._VECTORS, *words._BY_MODE, *words._STRUCTURED]
) | st.text(max_size=5)  # fmt: skip


@given(st.data())
def test_the_catalog_says_nothing_that_is_not_understood(data):
    """Any name, any type, any modifier, any mode: a schema of the columns that have one."""
    modes = HandlingModes(
        decimal=data.draw(st.sampled_from(["precise", "double", "string"])),
        time_precision=data.draw(st.sampled_from(["adaptive", "connect", "isostring", "structured"])),
        hstore=data.draw(st.sampled_from(["json", "map"])),
        include_unknown=data.draw(st.booleans()),
    )  # fmt: skip
    names = data.draw(st.lists(st.text(min_size=1, max_size=5), max_size=4, unique=True))
    columns = [
        CatalogColumn(
            name,
            kind := data.draw(KINDS),
            data.draw(st.integers(-1, 2**31 - 1)),
            is_enum=data.draw(st.booleans()),
            element_type_name=data.draw(st.none() | st.just(kind)),
            element_is_enum=data.draw(st.booleans()),
            element_is_domain=data.draw(st.booleans()),
        )
        for name in names
    ]
    schema = from_catalog("s.t", columns, names[:1], modes)
    assert [c.name for c in schema.columns] == [n for n in names if n in schema.by_name]
    if modes.include_unknown:
        assert len(schema.columns) >= sum(c.element_type_name is None for c in columns)
