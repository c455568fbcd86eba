"""Tables that look like something else: columns, tables and values with names of envelopes.

Whatever the columns are called, the catalog, the records' own schemas and both ways of decoding say
the same of a table, and what they say is what its rows hold.
"""

import base64
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres.catalog import CatalogColumn, connect_field, from_catalog
from lakemark.connectors.postgres.key_sql import key_texts
from lakemark.converters.json.envelope import unwrapped
from lakemark.converters.json.envelopes import wrapper_schema
from lakemark.converters.json.keys import canonical_keys
from lakemark.converters.record_schema import schema_of
from lakemark.converters.registry import CONVERTERS, JSON
from lakemark.model.decoding import StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import canonical_from_columns
from lakemark.model.schema import TableSchema, from_connect, from_envelope
from lakemark.ops.dead_letters import Letter
from lakemark.ops.replays import planned
from lakemark.settings.table_id import pair_of, text_of
from lakemark.sink.output import output_records
from lakemark.source import decoder, fetch, raw_records
from tests.kit.nightly import examples

MODES = HandlingModes()
IDENTITY = SourceIdentity("postgresql", "shop")
MARK = MODES.placeholder_text
NAMES = (
    *(
        "schema",
        "payload",
        "before",
        "after",
        "op",
        "source",
        "_cdc",
        "ts_ms",
        "transaction",
        "key",
    ),
    *("", "type", "fields", "field", "struct", "table", "db", "lsn", "null", "OP", "After", "ID"),
    *("id", "x" * 63, "é€", "größe", "a.b", "a b", 'quo"te', "back\\slash", "tab\t", "%5fcdc"),
)
# Of each type some values as the connector writes them, and the same typed.
NUMERIC_5_2 = ((5 << 16) | 2) + 4
TYPES = {
    "int4": [(5, 5), (-1, -1), (0, 0)],
    "int8": [(2**40, 2**40), (0, 0)],
    "bool": [(True, True), (False, False)],
    "text": [(t, t) for t in ("", "c", "struct", MARK, '{"type":"struct"}', "null", "é€")],
    "varchar": [(t, t) for t in ("u", "schema", MARK)],
    "jsonb": [(t, t) for t in ("{}", '{"op": "c", "after": null}', MARK)],
    "bytea": [(base64.b64encode(b).decode(), b) for b in (b"", b"x", MODES.placeholder)],
    "numeric": [({"scale": 1, "value": "Ag=="}, "0.2"), ({"scale": 0, "value": "AQ=="}, "1")],
    "point": [({"x": 1.0, "y": 2.0, "wkb": None, "srid": None},) * 2],
    "_text": [(t, t) for t in ([], ["a", None], [MARK])],
}
KEYS = ("int4", "int8", "text", "varchar", "numeric", "jsonb")


@st.composite
def tables(draw):
    """Columns of a table, the first ones its key, and its name."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=7, unique=True))
    key = draw(st.integers(1, min(2, len(names))))
    table = text_of(*(draw(st.sampled_from([n for n in NAMES if n])) for _ in range(2)))
    columns = []
    for at, name in enumerate(names):
        kind = draw(st.sampled_from(KEYS if at < key else list(TYPES)))
        element = kind[1:] if kind.startswith("_") else None
        place = at + 1 if at < key else None
        columns.append(
            CatalogColumn(
                name, kind, not_null=at < key, element_type_name=element, key_position=place
            )
        )
    return table, columns, tuple(names[:key])


def wrapped(fields, payload):
    return {"schema": {"type": "struct", "fields": fields, "optional": False}, "payload": payload}


def envelope_fields(fields):
    row = {"type": "struct", "fields": fields, "optional": True}
    return [
        {**row, "field": "before"},
        {**row, "field": "after"},
        {"type": "struct", "fields": [{"type": "string", "field": "table"}], "field": "source"},
        {"type": "string", "field": "op"},
    ]


def packed(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def event(table, op, image, lsn):
    schema, name = pair_of(table)
    source = {
        "connector": "postgresql", "name": "shop", "ts_ms": 1, "snapshot": "false", "db": "shop",
        "sequence": packed([str(lsn), str(lsn + 8)]).decode(), "ts_us": 1, "schema": schema,
        "table": name, "lsn": lsn + 8,
    }  # fmt: skip
    images = {"before": image, "after": None} if op == "d" else {"before": None, "after": image}
    return {**images, "source": source, "op": op, "ts_ms": 1}


def batch(records):
    columns = [
        ["t"] * len(records), [0] * len(records), range(len(records)),
        *zip(*((key, value) for key, value, *_ in records), strict=True),
        [[{"key": k, "value": v} for k, v in (more[0] if more else [])] for _, _, *more in records],
    ]  # fmt: skip
    arrays = [pa.array(c, f.type) for c, f in zip(columns, fetch.SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=fetch.SCHEMA)


def decoded(records, plan):
    """What both ways make of records: the rows by canonical key, None for what is gone."""
    parts = [batch(records)]
    general = decoder.decode_range(raw_records.of("t", 0, parts), plan)
    assert (general.dead, general.stopped()) == ([], set())
    found = rows_of(general)
    quick = (
        None
        if any(more and more[0] for *_, more in records)
        else CONVERTERS[JSON].plain_range("t", 0, parts, plan)
    )
    if quick is not None:
        assert rows_of(quick) == found
    return found


def rows_of(done):
    return {
        row["key"]: None if row["op"] == "d" else row["row"]
        for _, packet in done.packets
        for row in packet.to_pylist()
    }


@settings(max_examples=examples(150), deadline=None)
@given(tables(), st.data())
def test_whatever_the_columns_are_called(made, data):
    table, columns, key = made
    schema = from_catalog(table, columns, key, MODES)
    fields = [connect_field(column, MODES) for column in columns]
    key_fields = [field for field in fields if field["field"] in key]
    assert from_connect(table, {"fields": fields}, {"fields": key_fields}) == schema
    assert (
        from_envelope(table, {"fields": envelope_fields(fields)}, {"fields": key_fields}) == schema
    )

    records, rows = [], {}
    with_schemas = data.draw(st.sampled_from(["none", "both", "key", "value"]))
    for lsn in range(8, 8 * data.draw(st.integers(2, 5)), 8):
        cells = {c.name: data.draw(st.sampled_from(TYPES[c.type_name])) for c in columns}
        op = data.draw(st.sampled_from("cd"))
        image = {name: sent for name, (sent, _) in cells.items()}
        row = {name: typed for name, (_, typed) in cells.items()}
        named = {name: image[name] for name in key}
        value = event(table, op, image, lsn)
        records.append((
            packed(wrapped(key_fields, named) if with_schemas in ("both", "key") else named),
            packed(
                wrapped(envelope_fields(fields), value)
                if with_schemas in ("both", "value") else value
            ),
        ))  # fmt: skip
        rows[canonical(schema, row)] = None if op == "d" else row
    known = {} if with_schemas == "both" else {table: schema}
    found = schema_of(
        CONVERTERS[JSON],
        table,
        raw_schema=packed(wrapped(envelope_fields(fields), {})["schema"])
        if with_schemas in ("both", "value") else None,
        raw_key=records[0][0],
        schemas=known,
    )  # fmt: skip
    assert found == schema
    plan = StretchPlan(IDENTITY, MODES, schemas=known)
    assert decoded(records, plan) == rows


def canonical(schema: TableSchema, row):
    columns = [schema.column(name) for name in schema.key]
    arrays = [pa.array([row[c.name]], c.type) for c in columns]
    return canonical_from_columns(arrays, columns)[0].as_py()


@pytest.mark.parametrize("image", ["jsonb", "point", "text"])
def test_a_table_that_looks_like_an_envelope(image):
    kinds = {"id": "int8", "op": "text", "before": image, "after": image, "source": "text"}
    columns = [CatalogColumn(name, kind, not_null=name == "id") for name, kind in kinds.items()]
    fields = [connect_field(column, MODES) for column in columns]
    schema = from_catalog("public.audit", columns, ["id"], MODES)
    assert [c.name for c in schema.columns] == list(kinds)
    sent = {"fields": envelope_fields(fields)}
    assert from_envelope("public.audit", sent, {"fields": fields[:1]}) == schema
    cells = {name: TYPES[kind][-1] for name, kind in kinds.items()}
    image, row = ({n: pair[at] for n, pair in cells.items()} for at in (0, 1))
    record = packed({"id": image["id"]}), packed(event("public.audit", "c", image, 8))
    plan = StretchPlan(IDENTITY, MODES, {"public.audit": schema})
    assert decoded([record], plan) == {canonical(schema, row): row}


@pytest.mark.parametrize("names", [("schema", "payload"), ("payload", "schema"), ("payload",)])
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.sampled(6)
def test_a_key_that_looks_like_a_wrapper(names, kind):
    table = "public.t"
    columns = [CatalogColumn(name, kind, not_null=True) for name in names]
    schema = from_catalog(table, columns, names, MODES)
    fields = [connect_field(column, MODES) for column in columns]
    for sent, typed in TYPES[kind]:
        named, row = dict.fromkeys(names, sent), dict.fromkeys(names, typed)
        key = canonical(schema, row)
        for raw, own in (
            (packed(named), None),
            (packed(wrapped(fields, named)), packed(wrapped(fields, 0)["schema"])),
        ):
            assert unwrapped(raw) == (own, packed(named))
            assert CONVERTERS[JSON].key_names(raw) == names
            assert wrapper_schema(raw) == own
            assert canonical_keys([raw], schema) == [key]
            letter = Letter("1", "wrong-type", "", table, "t", 0, 0, key=raw)
            assert (
                planned(
                    [letter],
                    {table: schema},
                    prefix="shop",
                    converter=CONVERTERS[JSON],
                    key_texts=key_texts,
                ).refused
                == []
            )
            gone = event(table, "d", None, 8)  # REPLICA IDENTITY NOTHING: its key alone names it
            assert decoded(
                [(raw, packed(gone))], StretchPlan(IDENTITY, MODES, {table: schema})
            ) == {key: None}


# -- the placeholder's text as a value ------------------------------------------------------------

OLD = [("__debezium.oldkey", b'{"id":"before"}')]
COLUMNS = [CatalogColumn("id", "text", not_null=True, key_position=1), CatalogColumn("v", "text")]
NAMED = from_catalog("public.t", COLUMNS, ["id"], MODES)


def read(records, schema=NAMED):
    return decoded(records, StretchPlan(IDENTITY, MODES, {"public.t": schema}))


def unavailable(op, image, *, headers=(), snapshot="false", schema=NAMED, before=None):
    """The columns that one event lacks, and its row."""
    value = event("public.t", op, image, 8)
    value["before"] = value["before"] or before
    value["source"]["snapshot"] = snapshot
    key = packed({name: image[name] for name in schema.key})
    plan = StretchPlan(IDENTITY, MODES, {"public.t": schema})
    records = raw_records.of("t", 0, [batch([(key, packed(value), headers)])])
    done = decoder.decode_range(records, plan)
    assert (done.dead, done.stopped()) == ([], set())
    (row,) = (row for _, packet in done.packets for row in packet.to_pylist())
    return sorted(row["unavailable"] or []), row["row"]


@pytest.mark.parametrize(
    ("op", "headers", "snapshot", "stands"),
    [
        ("c", (), "false", False),
        ("d", (), "false", False),
        ("r", (), "true", False),
        ("r", (), "last", False),
        ("r", (), "incremental", False),
        ("u", (), "false", True),
        ("c", OLD, "false", True),
        ("c", [("__debezium.oldkey", b"unreadable")], "false", True),
    ],
)
@pytest.mark.parametrize("key", ["k", MARK])
def test_a_placeholder_stands_after_updates_and_outside_of_keys(op, headers, snapshot, stands, key):
    found, row = unavailable(op, {"id": key, "v": MARK}, headers=headers, snapshot=snapshot)
    assert found == (["v"] if stands else [])
    assert row == {"id": key, "v": None if stands else MARK}


@pytest.mark.parametrize(
    ("column", "value", "stands"),
    [
        (CatalogColumn("v", "text"), MARK, True),
        (CatalogColumn("v", "varchar"), MARK, True),
        (CatalogColumn("v", "jsonb"), MARK, True),
        (CatalogColumn("v", "bytea"), base64.b64encode(MODES.placeholder).decode(), True),
        (CatalogColumn("v", "_text", element_type_name="text"), [MARK], True),
        (CatalogColumn("v", "_uuid", element_type_name="uuid"), [MODES.placeholder_uuid], True),
        (CatalogColumn("v", "_int4", element_type_name="int4"), [*MODES.placeholder], True),
        (CatalogColumn("v", "hstore"), packed({MARK: MARK}).decode(), True),
        (CatalogColumn("v", "mood", is_enum=True), MARK, False),
        (CatalogColumn("v", "uuid"), MODES.placeholder_uuid, False),
        (CatalogColumn("v", "_text", element_type_name="text"), [MODES.placeholder_uuid], False),
        (CatalogColumn("v", "_text", element_type_name="text"), [MARK, MARK], False),
        (
            CatalogColumn("v", "_mood", element_type_name="mood", element_is_enum=True),
            [MARK],
            False,
        ),
        (CatalogColumn("v", "_int8", element_type_name="int8"), [1, 2], False),
    ],
)
def test_a_placeholder_stands_for_types_that_may_be_stored_elsewhere(column, value, stands):
    schema = from_catalog("public.t", [COLUMNS[0], column], ["id"], MODES)
    found, row = unavailable("u", {"id": "k", "v": value}, schema=schema)
    assert found == (["v"] if stands else [])
    assert (row["v"] is None) == stands
    assert unavailable("c", {"id": "k", "v": value}, schema=schema)[0] == []


@pytest.mark.parametrize(
    ("before", "stands"),
    [
        (None, True),
        ({"id": "k", "v": None}, True),  # the columns of an index show their old values only
        ({"id": "k", "v": "old"}, False),
        ({"id": "k", "v": MARK}, False),
    ],
)
def test_an_update_that_shows_the_old_value_has_the_new_one(before, stands):
    found, row = unavailable("u", {"id": "k", "v": MARK}, before=before)
    assert (found, row["v"]) == ((["v"], None) if stands else ([], MARK))
    value = {**event("public.t", "u", {"id": "k", "v": MARK}, 8), "before": before}
    records = raw_records.of("t", 0, [batch([(packed({"id": "k"}), packed(value))])])
    heads = decoder.headers(records, StretchPlan(IDENTITY, MODES))
    spliced = output_records.resolved(
        CONVERTERS[JSON],
        records, heads, [0], schema_of=lambda _: NAMED, modes=MODES,
        known=lambda first: {key: {"v": b'"kept"'} for key in first},
    )  # fmt: skip
    assert [b'"kept"' in new for new in spliced.values()] == ([True] if stands else [])


def test_bits_that_spell_the_placeholder_are_bits():
    size = 8 * len(MODES.placeholder)
    schema = from_catalog("public.t", [COLUMNS[0], CatalogColumn("v", "bit", size)], ["id"], MODES)
    sent = base64.b64encode(MODES.placeholder).decode()
    assert unavailable("u", {"id": "k", "v": sent}, schema=schema) == (
        [], {"id": "k", "v": MODES.placeholder},
    )  # fmt: skip


def test_rows_with_the_text_as_their_key_live_and_die():
    here, gone = ({"id": key, "v": "x"} for key in (MARK, "other"))
    events = [("c", here), ("c", gone), ("u", {**here, "v": MARK}), ("d", gone), ("u", here)]
    records = [
        (packed({"id": image["id"]}), packed(event("public.t", op, image, 8 * at)))
        for at, (op, image) in enumerate(events, 1)
    ]
    assert read(records) == {packed([MARK]): here, b'["other"]': None}
