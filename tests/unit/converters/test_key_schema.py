"""Both lanes give a row the same canonical key."""

import json
from dataclasses import replace

import pytest

from lakemark.converters import record_schema
from lakemark.converters.json import envelope
from lakemark.converters.registry import CONVERTERS, JSON
from lakemark.model.columns import UUID
from lakemark.model.decoding import Records, StretchPlan
from lakemark.model.events import Kind, SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema, from_connect, from_envelope
from lakemark.source import decoder
from tests.kit.golden import Golden, case, cases, placed, samples
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ORDERS, Shop
from tests.kit.shop import event as shop_event

IDENTITY = SourceIdentity("", "")
TOPIC = "t"


def row_lane(records: list[Golden], schemas: dict[str, TableSchema]) -> set[tuple[str, bytes]]:
    """(table, key) of everything the row lane makes of the records, each by itself: no gate."""
    plan = StretchPlan(
        identity=SourceIdentity("postgresql", "", "public.dbz_signal"),
        modes=HandlingModes(),
        schemas=schemas,
    )
    found = set()
    for r in records:
        raw = Records(TOPIC, 0, [0], [r.key], [r.value], [r.headers])
        for table, packet in decoder.decode_range(raw, plan).packets:
            found |= {(table, key) for key in packet.column("key").to_pylist() if key is not None}
    return found


def reconcile_lane(
    records: list[Golden], schemas: dict[str, TableSchema], identity: SourceIdentity = IDENTITY
) -> set[tuple[str, bytes]]:
    raw_keys = [r.key for r in records]
    heads = envelope.decode([r.value for r in records], raw_keys, identity=identity, epoch=0)
    keys = record_schema.canonical(CONVERTERS[JSON], heads, raw_keys, schemas=schemas)
    return {(heads.table[i], key) for i, key in enumerate(keys) if key is not None}


def changes_of(records: dict[str, Golden]) -> list[Golden]:
    return [r for label, r in records.items() if label.startswith(("c_", "u_", "d_", "pk_"))]


def schemas_of_samples() -> dict[str, TableSchema]:
    """What a catalog would say, from the wrapped samples."""
    found = {}
    for r in changes_of(samples(wrapped=True)):
        value, key = json.loads(r.value), json.loads(r.key) if r.key else None
        source = value["payload"]["source"]
        table = f"{source['schema']}.{source['table']}"
        schema = from_envelope(table, value["schema"], key["schema"] if key else None)
        if table not in found or len(found[table].columns) < len(schema.columns):
            found[table] = schema
    return found


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_samples_have_the_same_keys_in_both_lanes(wrapped):
    records = [r for r in changes_of(samples(wrapped=wrapped)) if r.key]
    schemas = {} if wrapped else schemas_of_samples()
    found = reconcile_lane(records, schemas)
    assert found == row_lane(records, schemas)
    assert {("public.customers", b"[3]"), ("public.composite", b'[1,"k"]')} <= found


def test_keys_of_integers_and_strings_need_no_schema():
    records = [r for r in changes_of(samples(wrapped=False)) if r.key]
    assert reconcile_lane(records, {}) == reconcile_lane(records, schemas_of_samples())


@pytest.mark.parametrize("name", cases())
def test_other_projects_changes_all_have_a_key(name):
    records = [r for r in placed(case(name)) if r.key and r.value and r.value.startswith(b"{")]
    heads = envelope.decode(
        [r.value for r in records], [r.key for r in records], identity=IDENTITY, epoch=0
    )
    raw_keys = [r.key for r in records]
    keys = record_schema.canonical(CONVERTERS[JSON], heads, raw_keys, schemas={})
    for at, kind in enumerate(heads.kind):
        assert (keys[at] is not None) == (kind == Kind.CHANGE)


def test_an_unreadable_key_is_none_and_raises_nothing():
    r = samples(wrapped=False)["c_orders_default_identity"]
    for key in (
        None,
        b"",
        b"{]",
        b"null",
        b"[" * 5000,
        b'{"id":"x"}',
        b'{"id":[1]}',
        b'{"id":"\xff"}',
    ):
        broken = Golden("x", TOPIC, 0, key, r.value, [])
        found = reconcile_lane([broken], schemas_of_samples())
        assert found == set()


def test_the_record_says_which_columns_its_key_has():
    """message.key.columns may differ from the primary key, also in order."""
    schema = schemas_of_samples()["public.composite"]
    schemas = {"public.composite": schema}
    for key, expected in ((b'{"b":"k","a":1}', ("b", "a")), (b'{"b":"k"}', ("b",))):
        found = record_schema.schema_of(
            CONVERTERS[JSON], "public.composite", raw_schema=None, raw_key=key, schemas=schemas
        )
        assert found.key == expected
    same = record_schema.schema_of(
        CONVERTERS[JSON],
        "public.composite",
        raw_schema=None,
        raw_key=b'{"a":1,"b":"k"}',
        schemas=schemas,
    )
    assert same is schema
    assert (
        record_schema.schema_of(CONVERTERS[JSON], "x", raw_schema=b"{]", raw_key=None, schemas={})
        is None
    )


ROW = {
    "type": "struct",
    "optional": True,
    "fields": [
        {"field": "id", "type": "string", "optional": False},
        {"field": "n", "type": "string", "optional": True},
        {"field": "t", "type": "string", "optional": True},
    ],
}


def test_numerics_that_only_the_catalog_knows_are_told_by_their_names(tmp_path):
    """A record's own schema calls them texts; a look at the catalog has found the new ones."""
    shop = Shop(tmp_path, Broker(), {})
    fields = [{**ROW, "field": "before"}, {**ROW, "field": "after"}]
    schema = {"type": "struct", "optional": False, "fields": fields}
    event = json.loads(shop_event("c", 10, {"id": "NAN", "n": "NAN", "t": "NAN"}))
    event["after"] = {"id": "NAN", "n": "NEGATIVE_INFINITY", "t": "NAN"}
    value = json.dumps({"schema": schema, "payload": event}, separators=(",", ":")).encode()
    key_schema_ = {"type": "struct", "optional": False, "fields": ROW["fields"][:1]}
    key = json.dumps(
        {"schema": key_schema_, "payload": {"id": "NAN"}}, separators=(",", ":")
    ).encode()
    shop.pipeline.numerics = lambda: {ORDERS: frozenset({"id", "n"})}
    shop.broker.put(f"shop.{ORDERS}", 0, key, value, None)
    shop.run()
    (row,) = [(key, row["n"], row["t"]) for key, row in shop.rows().items()]
    assert row == ("NaN", "-Infinity", "NAN")
    heads = envelope.decode([value], [key], identity=SourceIdentity("postgresql", "shop"), epoch=0)
    for numerics, expected in (({}, b'["NAN"]'), (shop.pipeline.numerics(), b'["NaN"]')):
        assert record_schema.canonical(
            CONVERTERS[JSON], heads, [key], schemas={}, numerics=numerics
        ) == [expected]


def test_only_texts_become_numerics():
    numbers = {"field": "i", "type": "int64"}, {"field": "u", "type": "string", "name": UUID}
    fields = [*ROW["fields"], *numbers]
    columns = from_connect("", {"type": "struct", "fields": fields}, None).columns
    first, *others = columns
    known = TableSchema("", (replace(first, source_type="numeric(9)"), *others))
    named = known.with_numerics(["id", "n", "i", "u"])
    assert [c.source_type for c in named.columns] == ["numeric(9)", "numeric", "", "", ""]
    assert named == known
