"""The compiled way says what the general way says, or that it cannot tell: whatever comes."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import event as note
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.connectors.mysql import positions as places
from lakemark.connectors.postgres import positions as lsns
from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.converters.registry import CONVERTERS, JSON
from lakemark.model import positions
from lakemark.model.decoding import AppliedPosition, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.source import decoder, fetch, raw_records
from tests.kit.nightly import examples

TABLE, TOPIC = "public.orders", "shop.public.orders"
MODES = HandlingModes()
TYPES = {"id": "int8", "v": "text", "n": "int4", "flag": "bool", "ratio": "float8"}
SCHEMA = from_catalog(
    TABLE,
    [CatalogColumn(n, t, key_position=1 if n == "id" else None) for n, t in TYPES.items()],
    ["id"],
    MODES,
)
NAMED = from_catalog(
    TABLE,
    [CatalogColumn("id", "text", key_position=1), CatalogColumn("v", "text", key_position=2)],
    ["id", "v"],
    MODES,
)
PLAN = StretchPlan(SourceIdentity("postgresql", "shop"), MODES, schemas={TABLE: SCHEMA})
EPOCH = positions.epoch_number("mariadb", 0)
PLACES = replace(PLAN, identity=SourceIdentity("mariadb", "shop"), epoch=EPOCH)
WRAPPER = b'{"schema":{"type":"struct","fields":[%s],"optional":false},"payload":'
STRUCT = b'{"type":"struct","fields":[%s],"optional":true,"field":"%s"}'
FIELDS = b",".join(
    b'{"type":"%s","optional":%s,"field":"%s"}' % (kind, b"false" if n == b"id" else b"true", n)
    for kind, n in ((b"int64", b"id"), (b"string", b"v"))
)
WRAPPED = WRAPPER % b",".join(
    [*(STRUCT % (FIELDS, n) for n in (b"before", b"after")), b'{"type":"string","field":"op"}']
)


def packed(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def batch(records, first=100):
    """Records (key, value, headers) as Spark hands them to a task."""
    keys, values, headers = zip(*records, strict=True) if records else ((), (), ())
    count = len(records)
    columns = [
        [TOPIC] * count, [0] * count, range(first, first + count), keys, values,
        [[{"key": k, "value": v} for k, v in h] for h in headers],
    ]  # fmt: skip
    arrays = [pa.array(c, f.type) for c, f in zip(columns, fetch.SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=fetch.SCHEMA)


def both(parts, plan=PLAN):
    """What the compiled way says, and the general one."""
    parts = parts if isinstance(parts, list) else [parts]
    quick = CONVERTERS[JSON].plain_range(TOPIC, 0, parts, plan)
    return quick, decoder.decode_range(raw_records.of(TOPIC, 0, parts), plan)


def by_key(*packets):
    return sorted(
        (row for packet in packets for row in packet.to_pylist()), key=lambda row: row["key"]
    )


def assert_same(quick, general):
    assert quick.kinds == general.kinds
    assert quick.tables == general.tables
    assert quick.applied_position == general.applied_position
    assert (quick.first, quick.last, quick.regressed) == (general.first, general.last, -1)
    assert (quick.dead, quick.beginnings) == (general.dead, general.beginnings) == ([], {})
    assert {table for table, _ in quick.packets + general.packets} == set(quick.tables)
    ((_, packet),) = quick.packets
    packet.validate(full=True)
    # The general way has two packets where some keys are folded event by event.
    for _, other in general.packets:
        assert packet.schema.equals(other.schema, check_metadata=True)
    assert by_key(packet) == by_key(*(other for _, other in general.packets))


# -- events as a connector writes them ------------------------------------------------------------

texts = st.one_of(
    st.none(), st.text(max_size=8), st.sampled_from(["", "a\nb", "\\", '"', "é€😀", "null", "}"])
)
images = st.fixed_dictionaries({
    "v": texts, "n": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
    "flag": st.one_of(st.none(), st.booleans()),
    "ratio": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
})  # fmt: skip


@st.composite
def stretches(draw):
    """Inserts, updates and deletes in log order, of few keys and transactions, and tombstones.

    By the dice of PostgreSQL or of MariaDB: the plan is that of the connector.
    """
    of_places = draw(st.booleans())
    ordered = draw(st.booleans())  # whether the connector tells the order in a transaction
    whole = draw(st.booleans())  # REPLICA IDENTITY FULL
    tombstones = draw(st.booleans())
    commit = own = draw(st.integers(1, 1000)) * 8
    order, records = 0, []
    for _ in range(draw(st.integers(1, 12))):
        if draw(st.booleans()):  # another transaction
            commit, order = own, 0
        own += 8 * draw(st.integers(0, 2))
        order += draw(st.integers(0, 2))
        op, key = draw(st.sampled_from("cud")), draw(st.integers(1, 3))
        row, was = ({"id": key, **draw(images)} for _ in range(2))
        before = was if whole and op != "c" else {"id": key} if op == "d" else None
        after = None if op == "d" else row
        if of_places:
            at = (9 + commit // 800, own % 800 if draw(st.booleans()) else own)
            records.append(placed(op, key, before, after, *at, order if ordered else None, draw))
        else:
            records.append(change(op, key, before, after, commit, own, draw))
        if op == "d" and tombstones:
            records.append((records[-1][0], None, []))
    return records, PLACES if of_places else PLAN


def _snapshot(draw):
    """As the converter writes the field's default: `replace.null.with.default`."""
    return draw(st.shared(st.sampled_from(["false", None]), key="snapshot")) if draw else "false"


def _gtid(file, pos, draw):
    """Of one domain whose numbers rise, as a rule; of two, of numbers that fall, or none."""
    kinds = ["one", "one", "one", "two", "fall", "none"]
    kind = draw(st.shared(st.sampled_from(kinds), key="gtid")) if draw else "one"
    number = 1000 * file + pos
    if kind == "none":
        return None
    domain = draw(st.sampled_from([0, 1])) if kind == "two" else 0
    return f"{domain}-7-{10**6 - number if kind == 'fall' else number}"


SEEN = ({}, {}, {"0": (1, 2)}, {"0": (9_500, 0)}, {"0": (10**6, 2)}, {"1": (1, 0)})


def placed(op, key, before, after, file, pos, order=None, draw=None):
    """A change of MariaDB or MySQL."""
    source = {
        "version": "3.5.0.Final", "connector": "mariadb", "name": "shop", "ts_ms": pos,
        "snapshot": _snapshot(draw), "db": "public", "sequence": None, "ts_us": pos * 1000,
        "table": "orders", "server_id": 7, "gtid": _gtid(file, pos, draw), "file": f"binlog.{file:06d}",
        "pos": pos, "row": 0, "thread": None, "query": None,
    }  # fmt: skip
    within = None
    if order is not None:
        within = {"id": f"0-7-{pos}", "total_order": order, "data_collection_order": 1}
    value = {"before": before, "after": after, "source": source, "transaction": within, "op": op}
    if draw and draw(st.booleans()):
        value = dict(sorted(value.items(), key=lambda item: item[0] != "transaction"))
    return packed({"id": key}), packed(value), []


def change(op, key, before, after, commit, own, draw=None):
    more = draw(st.booleans()) if draw else False
    source = {
        "version": "3.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": own,
        "snapshot": _snapshot(draw), "db": "shop", "sequence": packed([str(commit), str(own)]).decode(),
        "ts_us": own * 1000 + commit % 7, "ts_ns": own * 10**6, "schema": "public",
        "table": "orders", "txId": 1, "lsn": own, "xmin": None,
    }  # fmt: skip
    value = {"before": before, "after": after, "source": source, "op": op, "ts_ms": own}
    if more:
        value = {"transaction": {"id": "1:2", "total_order": 1}, **value, "ts_us": 1.5e3}
    return packed({"id": key}), packed(value), []


@given(stretches(), st.data())
def test_plain_stretches_are_read_and_come_out_the_same(found, data):
    records, of = found
    somewhere = lsns.pack(0, 8, 8) if of is PLAN else places.pack(EPOCH, 9, 8, 1)
    first = data.draw(st.sampled_from([positions.LOWEST, somewhere]))
    reached = AppliedPosition(
        first, data.draw(st.integers(0, 10**6)), creates=data.draw(st.booleans()),
        seen=data.draw(st.sampled_from(SEEN)),
    )  # fmt: skip
    plan = replace(of, applied={(TOPIC, 0): reached})
    quick, general = both(batch(records), plan)
    note(f"{of.identity.connector} {'read' if quick else 'left'}")
    if quick is not None:
        assert_same(quick, general)


@given(stretches(), st.integers(0, 12))
def test_however_a_stretch_is_cut(found, at):
    records, plan = found
    cut = min(at, len(records))
    whole = batch(records)
    quick, general = both([whole.slice(0, cut), whole.slice(cut)], plan)
    assert (quick is None) == (both(whole, plan)[0] is None)
    if quick is not None:
        assert_same(quick, general)


@settings(max_examples=examples(150, nightly=3000))
@given(stretches(), st.data())
def test_whatever_bytes_come_it_never_says_something_else(found, data):
    records, plan = found
    at = data.draw(st.integers(0, len(records) - 1))
    key, value, headers = records[at]
    text = bytearray(value or key)
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.integers(0, len(text)))
        byte = data.draw(st.sampled_from(b'{}[]",:\\ \n\x00-+.0129eEun/\xc3\xff'))
        kind = data.draw(st.integers(0, 3))
        if kind == 0:
            text.insert(place, byte)
        elif kind == 1:
            del text[place : place + 1]
        elif kind == 2:
            text[place : place + 1] = bytes([byte])
        else:  # a piece of it once more
            text[place:place] = text[place : place + data.draw(st.integers(1, 30))]
    records[at] = (key, bytes(text), headers) if value else (bytes(text), value, headers)
    quick, general = both(batch(records), plan)
    note("read" if quick else "left")
    if quick is not None:
        assert_same(quick, general)


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), json_values, max_size=4), st.booleans())
def test_any_json_may_stand_where_nobody_looks(values, ascii_only):
    key, value, _ = change("c", 1, None, {"id": 1, "v": "x"}, 8, 16)
    inner = json.dumps(values, separators=(",", ":"), ensure_ascii=ascii_only).encode()
    surrogates = b"\\ud" in inner
    value = value.replace(b',"op"', b',"other":%s,"op"' % inner)
    quick, general = both(batch([(key, value, [])]))
    assert (quick is None) == surrogates
    if quick is not None:
        assert_same(quick, general)


# -- what is plain, and what is not ---------------------------------------------------------------

ROW = {"id": 1, "v": "x", "n": 5, "flag": True, "ratio": 0.5}
ONE = change("c", 1, None, ROW, 8, 16)
TWO = change("u", 2, {**ROW, "id": 2}, {**ROW, "id": 2}, 16, 24)


def read(records, plan=PLAN):
    quick, general = both(batch(records), plan)
    if quick is not None:
        assert_same(quick, general)
    return quick


def test_the_usual_stretch_is_read():
    gone = change("d", 1, ROW, None, 24, 32)
    again = change("c", 1, None, {**ROW, "v": "y"}, 32, 40)
    quick = read([ONE, TWO, gone, (gone[0], None, []), (gone[0], b"", []), again])
    assert quick.kinds == {0: 4, 4: 2}
    (packet,) = (packet for _, packet in quick.packets)
    assert packet.column("key").to_pylist() == [b"[1]", b"[2]"]
    assert packet.column("row").to_pylist() == [{**ROW, "v": "y"}, {**ROW, "id": 2}]
    assert quick.applied_position == AppliedPosition(lsns.pack(0, 32, 40), 40004, creates=True)


def test_records_with_their_schema_are_read():
    value = WRAPPED + change("c", 1, None, {"id": 1, "v": "x"}, 8, 16)[1] + b"}"
    key = (
        b'{"schema":{"type":"struct","fields":[{"type":"int64","optional":false,"field":"id"}],'
        b'"optional":false},"payload":{"id":%d}}'
    )
    quick = read([(key % 1, value, []), (key % 2, value.replace(b'"id":1', b'"id":2'), [])])
    assert quick.packets[0][1].column("row").to_pylist() == [
        {"id": 1, "v": "x"}, {"id": 2, "v": "x"},
    ]  # fmt: skip


def test_any_key_will_do():
    plan = replace(PLAN, schemas={TABLE: NAMED})
    _, value, _ = change("c", 1, None, {"id": "a", "v": "é"}, 8, 16)
    quick = read([(packed({"id": "a", "v": "é"}), value, [])], plan)
    assert quick.packets[0][1].column("key").to_pylist() == ['["a","é"]'.encode()]


def replaced(old, new, record=TWO):
    assert old in record[1]
    return record[0], record[1].replace(old, new), record[2]


@pytest.mark.parametrize(
    "odd",
    [
        replaced(b'"op":"u"', b'"op":"r"'),
        replaced(b'"op":"u"', b'"op":"uu"'),
        replaced(b'"op":"u"', b'"op" :"u"'),
        replaced(b'"op":"u"', b'"op":"u","op":"u"'),
        replaced(b',"op":"u"', b""),
        replaced(b'"after":{', b'"after":[{}],"x":{'),
        replaced(b'"after":{', b'"x":{'),
        replaced(b'"op":"c"', b'"op":"d"', ONE),  # a delete without the row before
        replaced(b'"table":"orders"', b'"table":"items"'),
        replaced(b'"table":"orders",', b""),
        replaced(b'"ts_us":', b'"ts_ns2":'),
        replaced(b'"name":"shop"', b'"name":"sh\\u006fp"'),
        replaced(b'"snapshot":"false"', b'"snapshot":false'),
        replaced(b'"snapshot":"false"', b'"snapshot":"true"'),
        replaced(b'"snapshot":"false"', b'"snapshot":null'),  # its neighbour says it
        replaced(b'"snapshot":"false"', b'"snapshot":nul'),
        replaced(b'[\\"16\\",', b"[null,"),
        replaced(b'\\"24\\"]', b'\\"25\\"]'),  # the first transaction of a slot
        replaced(b'[\\"16\\",', b'[\\"1234567890123456789\\",'),
        replaced(b'[\\"16\\",', b'[\\"0\\",'),  # below the one before
        replaced(b'"lsn":24', b'"lsn":"24"'),
        replaced(b'"lsn":24', b'"lsn":024'),
        replaced(b'"n":5', b'"n":05'),
        replaced(b'"n":5', b'"n":"5"'),
        replaced(b'"n":5', b'"n":99999999999'),
        replaced(b'"n":5', b'"m":5'),
        *(
            (TWO[0], TWO[1].replace(b'"n":5', b'"n":%b' % number, 1), [])  # nobody looks at it
            for number in (b"05", b"-", b"5.", b".5", b"+5", b"5e", b"5e+", b"0x5", b"-05", b"")
        ),
        replaced(b'"v":"x"', b'"v":"\\ud83d\\ude00"'),
        replaced(b'"v":"x"', b'"v":"\xff"'),
        replaced(b'"v":"x"', b'"v":"\x01"'),
        replaced(b'"v":"x"', b'"v":"%s"' % MODES.placeholder_text.encode()),
        (TWO[0], TWO[1] + b" ", []),
        (TWO[0], TWO[1][:-1], []),
        (TWO[0], b"null", []),
        (TWO[0], b"{", []),
        (TWO[0], b"{}", []),
        (TWO[0], b"[" * 70, []),
        (None, TWO[1], []),
        (b"", TWO[1], []),
        (b'{"id":"2"}', TWO[1], []),
        (b'{"id": 1}', TWO[1], []),  # another spelling of the first one's key
    ],
)
def test_what_is_not_plain_goes_the_general_way(odd):
    assert read([ONE, TWO]) is not None
    assert read([ONE, odd]) is None


@pytest.mark.parametrize(
    "change_of",
    [
        {"identity": SourceIdentity("postgresql", "other")},
        {"identity": SourceIdentity("postgresql", "shop", signal_table=TABLE)},
        {"schemas": {}},
        {"selected": frozenset()},
        {"stopped": frozenset([TABLE])},
        {"max_event_bytes": 100},
        {"partial": frozenset([TABLE]), "carried": {TOPIC: (TABLE,)}},
        {"applied": {(TOPIC, 0): AppliedPosition(lsns.pack(0, 8, 24))}},
        {"applied": {(TOPIC, 0): AppliedPosition(lsns.pack(1, 0, 0))}},
    ],
)
def test_nor_do_other_tables_and_replays(change_of):
    assert read([ONE, TWO], replace(PLAN, **change_of)) is None


@pytest.mark.parametrize(
    ("gtids", "seen", "plain"),
    [
        (("0-7-5", "0-7-6"), {}, True),
        (("0-7-5", "0-7-6"), {"0": (4, 2), "1": (9, 2)}, True),
        (("0-7-5", "0-7-6"), {"0": (5, 2)}, False),  # it came, and stands above: of another log
        (("0-7-5", "0-7-6"), {"0": (7, 2)}, False),
        (("0-7-6", "0-7-5"), {}, False),
        (("0-7-5", "1-7-6"), {}, False),
        (("0-7-5", None), {}, False),
        ((None, "0-7-5"), {}, False),
        ((None, None), {"0": (7, 2)}, True),
    ],
)
def test_names_of_transactions_that_do_not_rise_are_for_the_general_way(gtids, seen, plain):
    records = []
    for pos, gtid in zip((100, 200), gtids, strict=True):
        key, value, _ = placed("u", 1, {"id": 1, "v": "a"}, {"id": 1, "v": "b"}, 9, pos, 1)
        event = json.loads(value)
        event["source"]["gtid"] = gtid
        records.append((key, packed(event), []))
    start = AppliedPosition(places.pack(EPOCH, 9, 50, 2), 0, seen=seen)
    quick, general = both(batch(records), replace(PLACES, applied={(TOPIC, 0): start}))
    assert (quick is not None) == plain
    if quick is not None:
        assert_same(quick, general)


def test_two_rows_of_one_key_are_for_the_general_way():
    gone, shifted = (change(op, 1, ROW, None if op == "d" else ROW, 24, 32) for op in "du")
    later = change("u", 1, ROW, ROW, 32, 40)
    assert read([ONE, gone, later]) is None
    assert read([ONE, shifted, change("d", 1, ROW, None, 24, 40)]) is None
    assert read([ONE, gone, change("u", 1, None, ROW, 32, 40)]) is not None  # never two without it
    assert read([ONE, gone, replaced(b'"op":"d"', b'"op":"d"', gone)]) is not None  # sent twice


def test_a_delete_within_a_transaction_that_goes_on_is_for_the_general_way():
    gone = change("d", 1, ROW, None, 8, 24)
    for major, creates, taken in ((8, True, False), (8, False, True), (0, True, True)):
        reached = AppliedPosition(lsns.pack(0, major, 16), 0, creates=creates)
        plan = replace(PLAN, applied={(TOPIC, 0): reached})
        assert (read([gone], plan) is not None) == taken


PLACED = placed("c", 1, None, ROW, 9, 400, 1)


def test_a_stretch_of_places_in_a_log_is_read():
    """Also where a transaction's events have one place, and where nobody tells their order."""
    for order in (2, None):
        later = placed("u", 2, ROW, {**ROW, "id": 2}, 9, 400, order)
        gone = placed("d", 1, ROW, None, 10, 4, order)
        quick = read([PLACED, later if order else replaced_order(later), gone], PLACES)
        assert quick.kinds == {0: 3}
        assert quick.applied_position.position == places.pack(EPOCH, 10, 4, 3 if order else 1)
    large = placed("u", 1, ROW, ROW, 1_000_000, 4, 1)
    assert read([placed("c", 1, None, ROW, 999_999, 4, 1), large], PLACES) is not None


def replaced_order(record):
    """Nobody tells it, so that it counts as the first: behind the one before it is no more."""
    return placed("u", 2, ROW, {**ROW, "id": 2}, 9, 401)


@pytest.mark.parametrize(
    "odd",
    [
        replaced(b'"binlog.000009"', b"null", PLACED),
        replaced(b'"binlog.000009"', b'"binlog"', PLACED),
        replaced(b'"binlog.000009"', b'"binlog.00000x"', PLACED),
        replaced(b'"binlog.000009"', b'"binlog.99999999999"', PLACED),
        replaced(b'"binlog.000009"', b'"binlog.9999999999"', PLACED),
        replaced(b'"pos":400', b'"pos":null', PLACED),
        replaced(b'"pos":400', b'"pos":-4', PLACED),
        replaced(b'"pos":400', b'"pos":2000000000000', PLACED),
        replaced(b'"pos":400', b'"pos":400,"pos":400', PLACED),
        replaced(b'"file":', b'"file":"a.1","file":', PLACED),
        replaced(b'"total_order":1', b'"total_order":"1"', PLACED),
        replaced(b'"total_order":1', b'"total_order":-1', PLACED),
        replaced(b'"total_order":1', b'"total_order":1,"total_order":2', PLACED),
        replaced(b'"total_order":1', b'"total_order":9999999999', PLACED),
        replaced(b'"transaction":{', b'"transaction":[],"x":{', PLACED),
        replaced(b'"binlog.000009"', b'"binlog.000010"', PLACED),  # the one after it stands below
        replaced(b'"sequence":null', b'"sequence":"["8","16"]"', PLACED),
        replaced(b'"connector":"mariadb"', b'"connector":"postgresql"', PLACED),
        replaced(b'"connector":"mariadb"', b'"connector":"oracle"', PLACED),
    ],
)
def test_odd_places_go_the_general_way(odd):
    after = placed("u", 2, ROW, {**ROW, "id": 2}, 9, 404, 1)
    assert read([PLACED, after], PLACES) is not None
    quick, _ = both(batch([odd, after]), PLACES)
    assert quick is None or odd[1].count(b'"sequence":"'), "another form beside it says nothing"


def test_what_stands_below_in_its_transaction_goes_the_general_way():
    again = placed("u", 2, ROW, {**ROW, "id": 2}, 9, 400, 1)
    assert read([placed("c", 1, None, ROW, 9, 400, 1), again], PLACES) is not None
    assert read([placed("c", 1, None, ROW, 9, 400, 2), again], PLACES) is None


def test_a_key_of_a_log_of_places_has_one_row():
    """No constraint is checked at the commit there: a delete is always of the newest row."""
    gone = placed("d", 1, ROW, None, 9, 400, 2)
    assert read([PLACED, gone], PLACES) is not None
    assert read([PLACED, gone, placed("c", 1, None, ROW, 9, 400, 3)], PLACES) is not None


@pytest.mark.slow
def test_keys_that_are_made_to_meet_do_not_hold_it_up():
    # FNV-1a forgets nothing of its end: of these keys the lowest bits of the hash are the same.
    records, at = [], 0
    while len(records) < 2100:
        at += 1
        hashed = 14695981039346656037
        for byte in b'{"id":%d}' % at:
            hashed = (hashed ^ byte) * 1099511628211 % (1 << 64)
        place = (hashed ^ hashed >> 32) & 0x1FFF
        if place >> 7 == 7:
            records.append((*change("c", at, None, {**ROW, "id": at}, 8, 16)[:2], []))
    quick, general = both(batch(records))
    assert quick is None
    assert len(general.packets[0][1]) == 2100


def test_records_out_of_order_or_of_another_type_are_for_the_general_way():
    whole = batch([ONE, TWO])
    assert CONVERTERS[JSON].plain_range(TOPIC, 0, [whole.slice(1), whole.slice(0, 1)], PLAN) is None
    large = whole.set_column(4, "value", whole.column("value").cast(pa.large_binary()))
    assert CONVERTERS[JSON].plain_range(TOPIC, 0, [large], PLAN) is None
    assert CONVERTERS[JSON].plain_range(TOPIC, 0, [whole.slice(0, 0)], PLAN) is None
