"""The world as a coordinator sees it: what it asks by itself, and what it says when it is closed."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from lakemark.connectors.connector import read
from lakemark.connectors.postgres.postgres_session import KeptSession
from lakemark.errors import DependencyError
from lakemark.model.checksums import (
    LONG,
    LOOKUP3,
    TEXT,
    ChecksumPlan,
    RefusedSums,
    SummedColumn,
)
from lakemark.model.control import RunStart
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.row_digest import digests
from lakemark.settings.config import DatabaseConfig
from lakemark.snapshot import adapters
from lakemark.snapshot.adapters import Adapters
from lakemark.snapshot.chunk_task import ReadSettings
from lakemark.snapshot.ports import RowsWithin
from tests.kit.connector_settings import POSTGRES
from tests.kit.shop import ORDERS, schema_of


def test_it_asks_the_database_what_the_key_is(shop):
    shop.config.source.connector_file.write_text(json.dumps(POSTGRES))
    known, asked = {ORDERS: schema_of(ORDERS, id="int8", v="text")}, []

    def schemas(tables):
        asked.append(tables)
        return {t: known[t] for t in tables if t in known}

    def lake(table):
        told = table.encode()
        return SimpleNamespace(incomplete_keys=lambda key: [f"[{len(key)}]".encode(), told])

    settings = SimpleNamespace(source=SimpleNamespace(schemas=schemas))
    ours = Adapters(None, shop.config, read(shop.config), settings, lake, lambda: None, lambda _: False)  # fmt: skip
    assert ours.partial_keys(ORDERS) == ("[1]", ORDERS)
    assert asked == [[ORDERS]]
    assert ours.partial_keys("public.gone") == ()
    ours.close()


PLAN = ChecksumPlan(LOOKUP3, (SummedColumn("id", LONG), SummedColumn("v", TEXT)), "id")


def test_the_lake_s_side_of_sums_and_the_rows_of_ranges_that_differ(shop):
    shop.config.source.connector_file.write_text(json.dumps(POSTGRES))
    rows = pa.table({"id": pa.array([*range(100)]), "v": ["x"] * 100})
    reader = SimpleNamespace(
        rows=lambda names: iter([rows.select(names)[:50], rows.select(names)[50:]])
    )
    said = [RefusedSums("a type"), PLAN]
    source = SimpleNamespace(
        schemas=lambda _: {ORDERS: schema_of(ORDERS, id="int8", v="text")},
        checksums=lambda *_: said.pop(0),
    )
    ours = Adapters(None, shop.config, read(shop.config), SimpleNamespace(source=source), lambda _: reader, lambda: None, lambda _: False)  # fmt: skip
    assert ours.summed_table(ORDERS, rows.schema) is None
    summed = ours.summed_table(ORDERS, rows.schema)
    assert summed is not None
    assert (len(summed.ranges), summed.ranges.ends[0]) == (11, 9)
    found = ours.kept_sums(ORDERS, summed)
    assert found.sums.counts.tolist() == [10] * 10 + [0]
    assert found.read_bytes == rows.nbytes
    chosen = np.zeros(11, bool)
    chosen[[0, 9]] = True
    within = RowsWithin("id", summed.ranges, chosen)
    some = ours.kept_digests(ORDERS, rows.schema, within)
    wanted = digests(pa.concat_tables([rows[:10], rows[90:]]), ["id"])
    assert some.digests.rows.tolist() == wanted.rows.tolist()
    assert some.read_bytes == rows.nbytes
    assert len(ours.kept_digests(ORDERS, rows.schema).digests) == 100
    ours.close()


class Catalog:
    """A session of a database with one table, whose key is of one column."""

    broken = closed = False

    def __init__(self, kind, typmod):
        self.row = (
            *ORDERS.split("."),
            "id",
            kind,
            typmod,
            True,
            False,
            None,
            False,
            False,
            False,
            1,
        )

    def execute(self, _sql, parameters):
        self.rows = [self.row] if parameters["tables"] == [self.row[1]] else []
        return self

    def fetchall(self):
        return self.rows


CONNECT = HandlingModes(time_precision="connect")


@pytest.mark.parametrize(
    ("kind", "typmod", "modes", "key", "texts"),
    [
        ("int8", -1, HandlingModes(), 7, ["7"]),
        ("int8", -1, HandlingModes(), None, None),
        ("time", -1, HandlingModes(), "10:00:00.000001", ["10:00:00.000001"]),
        ("time", -1, CONNECT, "10:00:00.001000", None),
        ("time", 3, CONNECT, "10:00:00.001000", ["10:00:00.001000"]),
        ("timestamp", -1, CONNECT, 1_000_000, None),
        ("timestamp", 3, CONNECT, 1_000_000, ["1970-01-01 00:00:01"]),
        ("numeric", 131_078, HandlingModes(decimal="double"), 1.5, None),
        ("bytea", -1, HandlingModes(binary="hex"), "ff", None),
        ("interval", -1, HandlingModes(), 7, None),
        ("int4range", -1, HandlingModes(), "[1,3)", None),
        ("ltree", -1, HandlingModes(), "a.b", None),
    ],
)
def test_keys_that_do_not_say_which_row_they_are_of_have_no_texts(
    shop, monkeypatch, kind, typmod, modes, key, texts
):
    shop.config.source.connector_file.write_text(json.dumps(POSTGRES))
    database = DatabaseConfig(url="postgresql://u@h/d")
    settings = ReadSettings(shop.config.model_copy(update={"database": database}), modes, {})
    ours = Adapters(None, shop.config, read(shop.config), settings, lambda _: None, lambda: None, lambda _: False)  # fmt: skip
    monkeypatch.setattr(KeptSession, "get", lambda _: Catalog(kind, typmod))
    name = json.dumps([key])
    assert ours.texts(ORDERS, [name]) == ({} if texts is None else {name: texts})
    assert ours.texts("public.gone", [name]) == ours.texts(ORDERS, []) == {}
    ours.close()


def test_a_step_that_outlives_its_query_says_nothing_beside_the_next(shop, monkeypatch):
    shop.config.source.connector_file.write_text(json.dumps(POSTGRES))
    written = []
    monkeypatch.setattr(adapters.records, "publish", lambda *args, **named: written.append(args))
    monkeypatch.setattr(adapters.records, "producer", lambda _: None)
    settings = SimpleNamespace(database="db", modes=None, connector={})
    ours = Adapters(None, shop.config, read(shop.config), settings, lambda _: None, lambda: None, lambda _: False)  # fmt: skip
    ours.save({b"_a": b"1"})
    ours.close()
    for say in (lambda: ours.save({b"_a": b"2"}), lambda: ours.control([RunStart(run="r1")])):
        with pytest.raises(DependencyError):
            say()
    assert len(written) == 1
