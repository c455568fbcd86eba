"""Tables with columns of any names, from events to the lake, beside a table with usual ones."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink import names
from lakemark.sink.output import publisher
from stack.compare import whole
from tests.kit.memory_pipeline import Broker, World
from tests.kit.shop import ITEMS, compact, event, schema_of

HOSTILE = "before.after"
MARK = HandlingModes().placeholder_text
ENVELOPE = ("schema", "payload", "before", "after", "op", "source", "ts_ms", "transaction", "key")
OURS = ("row", "record", "position", "action", "unavailable", "_CDC", "__canonical", "_change_type")
ODD = (
    ".a",
    ".",
    "[b",
    "a.b",
    "a`b",
    "a'b",
    'quo"te',
    "a b",
    "%20",
    "a%20b",
    "Schema",
    "é€",
    "{x}",
    "x" * 63,
)
COLUMNS = (*ENVELOPE, *OURS, *ODD)


class Odd(World):
    """A hostile table of texts and a usual one, batch by batch."""

    def put(self, op, at, row, *, headers=None):
        key = {name: row[name] for name in self.key}
        value = event(op, at, row if op != "d" else {"id": 0}, table=HOSTILE)
        value = value.replace(b'"before":{"id":0}', b'"before":' + compact(key))
        self.broker.put("shop.before.after", 0, compact(key), value, headers)

    def usual(self, at):
        self.broker.put(
            f"shop.{ITEMS}", 0, compact({"id": at}), event("c", at, {"id": at}, table=ITEMS)
        )

    @property
    def key(self):
        return self.schemas[HOSTILE].key

    def rows(self, table=HOSTILE):
        found = whole(DeltaTable(names.table_path(self.config.lake.path, table)))
        sources = names.sources_of(found.schema)
        found = found.drop_columns(["_cdc"])
        found = found.rename_columns([sources[name] for name in found.schema.names])
        return sorted(found.to_pylist(), key=str)


def hostile(tmp_path, key, engine):
    columns = [CatalogColumn(name, "text", not_null=name in key) for name in COLUMNS]
    schemas = {HOSTILE: from_catalog(HOSTILE, columns, key, HandlingModes())}
    schemas[ITEMS] = schema_of(ITEMS, id="int8")
    return Odd(tmp_path, Broker(), schemas, {"engine": engine})


@pytest.mark.parametrize("engine", ["task-merge", "deletion-vectors"])
@pytest.mark.parametrize(
    "key",
    [
        ("payload",),
        ("before",),
        ("__canonical",),
        (".a",),
        ("a`b",),
        ('quo"te', "."),
        ("schema", "payload"),
        (".a", "[b"),
    ],
)
@pytest.mark.sampled(4)
def test_rows_of_any_names_arrive(tmp_path, letters, key, engine):
    world = hostile(tmp_path, key, engine)
    one, two, three = ({name: f"{n} {name}" for name in COLUMNS} for n in "123")
    two |= dict.fromkeys(key, MARK)
    others = [name for name in COLUMNS if name not in key]
    two |= dict.fromkeys(others[::2], MARK)
    for at, row in enumerate((one, two, three), 10):
        world.put("c", at, row)
    world.usual(1)
    world.run()
    assert world.rows() == sorted([one, two, three], key=str)

    world.put("u", 20, {**one, **dict.fromkeys(others[1:], MARK), others[0]: "new"})
    world.put("d", 21, three)
    world.put("d", 22, two, headers=[("__debezium.newkey", compact(dict.fromkeys(key, "moved")))])
    moved = {**two, **dict.fromkeys(key, "moved"), **dict.fromkeys(others[1::2], MARK)}
    world.put("c", 22, moved, headers=[("__debezium.oldkey", compact(dict.fromkeys(key, MARK)))])
    world.usual(2)
    world.run()
    wanted = [{**one, others[0]: "new"}, {**two, **dict.fromkeys(key, "moved")}]
    assert world.rows() == sorted(wanted, key=str)
    assert world.rows(ITEMS) == [{"id": 1}, {"id": 2}]
    assert {entry.state for entry in world.state.tables.values()} == {"streaming"}
    assert letters == []


def test_keys_of_any_names_are_deleted_from_output_topics():
    """What a truncate removes, of the batch and of the lake."""
    key = (".a", "__canonical", "name", "row")
    columns = [CatalogColumn(name, "text", not_null=True) for name in key]
    narrow = from_catalog(HOSTILE, columns, key, HandlingModes())
    rows = [{name: f"{n} {name}" for name in key} for n in "12"]
    packet = pa.table({"key": [b"1", b"2"], "row": pa.array(rows, pa.struct(narrow.arrow()))})
    born = publisher._born(packet, {b"1", b"2"}, narrow)
    assert born.to_pylist() == rows
    named = publisher._keyed(born, narrow)
    assert named.column("row").to_pylist() == rows
    assert publisher._keyed(born, narrow, without=[named]).num_rows == 0
