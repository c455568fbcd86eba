"""Headers of every kind of record a connector writes."""

import json

import pytest

from lakemark.connectors.postgres import positions as lsns
from lakemark.converters.json import envelope
from lakemark.model import positions
from lakemark.model.events import Headers, Kind, SourceIdentity
from tests.kit.golden import Golden, case, cases, placed, samples

SHOP = SourceIdentity("postgresql", "shop", "public.dbz_signal")
SHOPS = SourceIdentity("postgresql", "shops", "public.dbz_signal")
ANY = SourceIdentity("", "")

KINDS = {
    "c_": Kind.CHANGE,
    "u_": Kind.CHANGE,
    "d_": Kind.CHANGE,
    "pk_change": Kind.CHANGE,
    "heartbeat": Kind.HEARTBEAT,
    "m_": Kind.MESSAGE,
    "notification": Kind.NOTIFICATION,
    "r_incremental": Kind.INCREMENTAL,
    "r_initial": Kind.OWN_SNAPSHOT,
    "signal_table_row": Kind.SIGNAL,
    "signal_topic": Kind.BAD,  # a signal on the change topics is nobody's record
    "t_truncate": Kind.TRUNCATE,
    "tombstone": Kind.TOMBSTONE,
    "transaction": Kind.TRANSACTION,
}


def decode(records: list[Golden], identity: SourceIdentity = SHOP, **options) -> Headers:
    return envelope.decode(
        [r.value for r in records],
        [r.key for r in records],
        identity=identity,
        epoch=1,
        **options,
    )


def one(value: object, key: bytes | None = b'{"id":1}', identity: SourceIdentity = SHOP, **options):
    raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    out = envelope.decode([raw], [key], identity=identity, epoch=1, **options)
    return Kind(out.kind[0]), out.reason[0], out


def change(op: str = "c", **fields) -> dict:
    source = {
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 5,
        "snapshot": "false",
        "db": "shop",
        "sequence": '["10","20"]',
        "ts_us": 5001,
        "schema": "public",
        "table": "orders",
        "lsn": 20,
    }
    source |= fields.pop("source", {})
    value = {"before": None, "after": {"id": 1}, "source": source, "op": op}
    return value | fields


@pytest.mark.parametrize("wrapped", [False, True])
def test_every_sample_has_its_kind(wrapped):
    records = list(samples(wrapped=wrapped).values())
    out = decode(records, SHOPS if wrapped else SHOP)
    for at, r in enumerate(records):
        expected = next(kind for start, kind in KINDS.items() if r.label.startswith(start))
        assert Kind(out.kind[at]) == expected, r.label
        assert (out.reason[at] is None) == (expected != Kind.BAD), r.label


@pytest.mark.parametrize("wrapped", [False, True])
def test_header_of_samples(wrapped):
    table = samples(wrapped=wrapped)
    out = decode(list(table.values()), SHOPS if wrapped else SHOP)
    for at, r in enumerate(table.values()):
        value = json.loads(r.value) if r.value else {}
        payload = value.get("payload", value)
        source = payload.get("source")
        if not source:
            assert out.position[at] == positions.LOWEST
            assert out.table[at] == out.op[at] == ""
            continue
        assert out.op[at] == payload["op"]
        assert out.table[at] == (f"{source['schema']}.{source['table']}".strip("."))
        assert out.snapshot[at] == source["snapshot"]
        assert out.source_ts[at] == source["ts_us"]
        for name, image in (("before", out.before[at]), ("after", out.after[at])):
            assert (json.loads(image) if image else None) == payload.get(name), r.label
        assert (json.loads(out.schema[at]) if out.schema[at] else None) == value.get("schema")
        first, second = json.loads(source["sequence"])
        if out.kind[at] == Kind.OWN_SNAPSHOT:
            assert lsns.unpack(out.position[at]) == (1, 0, source["lsn"])
        else:
            shown = (None if first is None else int(first), int(second))
            assert lsns.sequence_of(out.position[at]) == shown


def test_a_truncate_and_a_key_change_have_the_positions_of_their_transaction():
    table = samples(wrapped=False)
    d, c = decode([table["pk_change_1_d"], table["pk_change_2_c"]]).position
    assert d == c


def test_equal_schemas_share_one_object():
    r = samples(wrapped=True)["u_orders_default_identity"]
    schemas = decode([r, r, r], SHOPS).schema
    assert schemas[0] is schemas[1] is schemas[2] is not None


def test_wrapped_tables_that_alternate_keep_their_own_schemas():
    table = samples(wrapped=True)
    records = [table[n] for n in ("c_orders_default_identity", "u_update_default_identity")] * 3
    out = decode(records, SHOPS)
    assert [json.loads(s)["name"] for s in out.schema] == [
        "shops.public.orders.Envelope",
        "shops.public.customers.Envelope",
    ] * 3
    assert out.table == ["public.orders", "public.customers"] * 3


def test_what_a_wrapped_record_decodes_to_does_not_depend_on_those_before_it():
    """The short cut over known schemas must decide as the long way does."""
    good = samples(wrapped=True)["c_orders_default_identity"].value
    broken = [
        good[:-1],
        good[:-1] + b"]",
        good[:-1] + b"x",
        good[:-1] + b',"payload":null}',
        good + b" ",
        good + b"x",
        good.replace(b'"op":"c"', b'"op":7'),
        good.replace(b'"op":"c","ts_ms":', b'"op":"c","ts_ms":"x","y":'),
        good[: good.index(b',"payload"')] + b',"payload":null}',
        good.replace(b'"note":"', b'"note":"\xff'),
        good.replace(b'"note":"', '"note":"ä'.encode()),
    ]
    for value in broken:
        envelope._wrappers._known.clear()
        alone = envelope.decode([value], [b"1"], identity=SHOPS, epoch=1)
        after = envelope.decode([good, good, value], [b"1"] * 3, identity=SHOPS, epoch=1)
        assert after.kind[2] == alone.kind[0]
        assert after.reason[2] == alone.reason[0]
        assert after.after[2] == alone.after[0]
        assert after.schema[2] == alone.schema[0]


def test_the_size_limit_counts_the_wrapper_even_when_the_schema_is_known():
    good = samples(wrapped=True)["c_orders_default_identity"].value
    limit = {"identity": SHOPS, "epoch": 1, "max_bytes": len(good) - 1}
    assert envelope.decode([good, good], [b"1"] * 2, **limit).reason == ["record-too-large"] * 2


def test_wrappers_of_another_form_are_read_but_not_learned():
    envelope._wrappers._known.clear()
    good = json.loads(samples(wrapped=True)["c_orders_default_identity"].value)
    turned = {"payload": good["payload"], "schema": good["schema"]}
    for value in (json.dumps(good), json.dumps(turned), json.dumps(good | {"more": 1})):
        kind, _, out = one(value.encode(), identity=SHOPS)
        assert kind == Kind.CHANGE
        assert json.loads(out.schema[0]) == good["schema"]
        assert json.loads(out.after[0]) == good["payload"]["after"]
    assert envelope._wrappers._known == []


def test_the_schema_cache_is_bounded():
    good = samples(wrapped=True)["c_orders_default_identity"].value
    for n in range(envelope._Wrappers.LIMIT + 10):
        envelope.decode(
            [good.replace(b'"type":"struct"', b'"type":"struct","n":%d' % n, 1)],
            [None],
            identity=SHOPS,
            epoch=1,
        )
    assert len(envelope._wrappers._known) == envelope._Wrappers.LIMIT


def test_payload_without_schema():
    kind, _, out = one({"payload": change()})
    assert (kind, out.schema[0], out.after[0]) == (Kind.CHANGE, None, b'{"id": 1}')
    assert one({"schema": None, "payload": change()})[2].schema == [None]


@pytest.mark.parametrize(
    "value",
    [None, b"", b"null", b" null\n", b'{"schema":null,"payload":null}', b'{"payload":null}'],
)
def test_tombstones(value):
    assert one(value)[:2] == (Kind.TOMBSTONE, None)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{]", "invalid-json"),
        (b"{", "invalid-json"),
        (b'{"op":"c"', "invalid-json"),
        (b"\x00\x01\x02", "another-form"),
        (b'{"a":' + b"[" * 100_000, "invalid-json"),
        (b'{"after":{"a":"\xff"}}', "invalid-utf8"),
        (json.dumps(change()).encode().replace(b'{"id"', b'{"\xc3\x28"'), "invalid-utf8"),
        (b"{}", "not-debezium"),
        (b"[]", "not-debezium"),
        (b"5", "not-debezium"),
        (b'{"op":"u"}', "not-debezium"),
        (b'{"id":1,"name":"flattened"}', "not-debezium"),
        (change(source={"table": None}), "not-debezium"),
        (change(source={"lsn": "x"}), "not-debezium"),
        (change(source=5) if False else {"op": "c", "source": 5}, "not-debezium"),
        (change("XX"), "unknown-op"),
        ({"op": "XX", "after": {}}, "unknown-op"),
        (change("c", after=None), "missing-image"),
        (change("u", after=None, before={"id": 1}), "missing-image"),
        (change("r", after=None), "missing-image"),
        (change(source={"sequence": None}), "missing-position"),
        (change(source={"sequence": "[null,null]", "lsn": None}), "missing-position"),
        (change(source={"sequence": "garbage"}), "missing-position"),
        (change("t", source={"sequence": None}), "missing-position"),
        (change(source={"name": "other"}), "foreign-connector"),
        (change(source={"connector": "mysql"}), "foreign-connector"),
        (change(source={"name": None}), "foreign-connector"),
    ],
)
def test_bad_records(value, reason):
    kind, found, out = one(value)
    assert (kind, found) == (Kind.BAD, reason)
    assert out.detail[0]


def test_details_hold_no_values():
    for value in (
        b'{"op":"c","source":{"table":["secret"]}}',
        json.dumps(change(after={"a": "secret"})).encode()[:-1],
        json.dumps(change("secret")).encode(),
        json.dumps(change(source={"name": "secret"})).encode(),
        json.dumps(change(source={"sequence": "secret"})).encode(),
    ):
        assert "secret" not in (one(value)[2].detail[0] or "")


def test_too_large():
    value = json.dumps(change()).encode()
    assert one(value, max_bytes=len(value))[:2] == (Kind.CHANGE, None)
    assert one(value, max_bytes=len(value) - 1)[:2] == (Kind.BAD, "record-too-large")


def test_a_delete_needs_a_key_or_a_before_image():
    bare = change("d", before=None, after=None)
    assert one(bare, key=b'{"id":1}')[0] == Kind.CHANGE
    assert one(change("d", before={"id": 1}, after=None), key=None)[0] == Kind.CHANGE
    for key in (None, b"", b"null", b'{"schema":{"type":"struct"},"payload":null}'):
        assert one(bare, key=key)[:2] == (Kind.BAD, "missing-image")


def test_first_number_null_counts_as_own_lsn():
    out = one(change(source={"sequence": '[null,"20"]'}))[2]
    assert lsns.unpack(out.position[0]) == (1, 20, 21)


@pytest.mark.parametrize("snapshot", ["true", "first", "first_in_data_collection", "last", True])
def test_own_snapshot_rows_have_major_zero(snapshot):
    for sequence in ('[null,"20"]', '["10","20"]', None):
        kind, _, out = one(change("r", source={"snapshot": snapshot, "sequence": sequence}))
        assert kind == Kind.OWN_SNAPSHOT
        assert lsns.unpack(out.position[0]) == (1, 0, 20)
    lost = change("r", source={"snapshot": snapshot, "sequence": None, "lsn": None})
    assert one(lost)[:2] == (Kind.BAD, "missing-position")


def test_incremental_reads_have_no_lsn():
    kind, _, out = one(change("r", source={"snapshot": "incremental", "lsn": None}))
    assert kind == Kind.INCREMENTAL
    assert lsns.unpack(out.position[0]) == (1, 10, 20)


@pytest.mark.parametrize("snapshot", ["false", None, False])
def test_a_read_that_claims_no_snapshot_overwrites_nothing(snapshot):
    assert one(change("r", source={"snapshot": snapshot}))[0] == Kind.INCREMENTAL


def test_source_time_is_micros_else_millis_else_zero():
    assert one(change())[2].source_ts == [5001]
    assert one(change(source={"ts_us": None}))[2].source_ts == [5000]
    assert one(change(source={"ts_us": None, "ts_ms": None}))[2].source_ts == [0]
    assert one(change(source={"ts_us": None, "ts_ms": 1 << 62}))[2].source_ts == [0]
    assert one({"ts_ms": 7})[2].source_ts == [7000]
    assert one({"ts_ms": 1 << 62})[2].source_ts == [0]


def test_schema_change_records():
    value = {"source": {"connector": "mysql"}, "databaseName": "d", "ddl": "x", "tableChanges": []}
    kind, _, found = one(value)
    assert (kind, found.statements) == (Kind.SCHEMA_CHANGE, {0: "x"})
    value["source"]["snapshot"] = "true"
    assert one(value)[2].statements == {}, "it says how a table is, and was made long ago"


def test_signal_rows_of_any_op():
    for op in "curdt":
        source = {"table": "dbz_signal"}
        kind, _, _ = one(change(op, source=source))
        assert kind == Kind.SIGNAL
    other = SourceIdentity("postgresql", "shop", "public.other_signal")
    assert one(change(source={"table": "dbz_signal"}), identity=other)[0] == Kind.CHANGE


def test_a_bad_record_leaves_its_neighbours_alone():
    good = json.dumps(change()).encode()
    values = [good, b"{]", None, good, json.dumps(change("c", after=None)).encode(), good]
    out = envelope.decode(values, [b"1"] * 6, identity=SHOP, epoch=1)
    assert [Kind(k) for k in out.kind] == [
        Kind.CHANGE,
        Kind.BAD,
        Kind.TOMBSTONE,
        Kind.CHANGE,
        Kind.BAD,
        Kind.CHANGE,
    ]
    assert out.position[0] == out.position[3] == out.position[5]
    assert out.position[1] == out.position[2] == positions.LOWEST


def test_no_records():
    assert len(envelope.decode([], [], identity=SHOP, epoch=1)) == 0


EXPECTED_BY_OFFSET = {"seatunnel_bad_records": {"invalid-json", "not-debezium", "unknown-op"}}


@pytest.mark.parametrize("name", cases())
def test_other_projects_records_are_read(name):
    """Sources without a position are given one; nothing else is bad about them."""
    records = placed(case(name))
    out = decode(records, ANY)
    assert set(out.reason) - {None} == EXPECTED_BY_OFFSET.get(name, set())
    rows = [at for at, k in enumerate(out.kind) if k in {Kind.CHANGE, Kind.OWN_SNAPSHOT}]
    after_snapshot = [out.position[at] for at in rows]
    assert after_snapshot == sorted(after_snapshot)


def test_without_sequence_only_the_own_snapshot_has_a_position():
    """lsn alone is never a position, so changes of Debezium before 1.5 are refused by name."""
    identity = SourceIdentity("postgresql", "fullfillment")
    out = decode(case("flink_postgres_replica_identity"), identity)
    assert [Kind(k) for k in out.kind] == [Kind.OWN_SNAPSHOT] * 9 + [Kind.BAD] * 7
    assert set(out.reason[9:]) == {"missing-position"}


def test_what_begins_as_records_of_a_registry_do_names_the_way_out():
    """Such a datum is seldom UTF-8: the zero before it says more."""
    raw = b"\0\0\0\0\7\xff\xfe"
    (detail,) = envelope.decode([raw], [None], identity=SHOP, epoch=1).detail
    assert "source.converter" in detail
