"""Records of which not even the header can be read: whose they are, and which rows miss them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.model import change_batch
from lakemark.model.decoding import Records, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.source.decoder import decode_range
from tests.kit.shop import ITEMS, ORDERS, event, schema_of

SIGNALS = "public.debezium_signal"
TABLES = (ORDERS, ITEMS, SIGNALS)
PLAN = StretchPlan(
    SourceIdentity("postgresql", "shop", SIGNALS),
    HandlingModes(),
    schemas={table: schema_of(table, id="int8", v="text") for table in TABLES},
    max_bad=1000,
)


def records(*pairs, topic=f"shop.{ORDERS}"):
    """Records of (key, value), from offset 0 on."""
    count = len(pairs)
    found, values = [key for key, _ in pairs], [value for _, value in pairs]
    return Records(topic, 0, list(range(count)), found, values, [None] * count)


def missed(done):
    """The packets of missed events: table, and its keys with their positions."""
    return [
        (table, list(zip(*(packet.column(n).to_pylist() for n in ("key", "position")), strict=True)))
        for table, packet in done.packets
        if set(packet.column("record").to_pylist()) == {change_batch.MISSED}
    ]  # fmt: skip


def key(number):
    return json.dumps({"id": number}).encode()


def test_all_that_a_table_misses_is_one_packet_in_the_order_of_the_log():
    foreign = event("u", 7, {"id": 3, "v": "x"}, table=ITEMS, name="other")
    bad = [(key(2), b"{"), (key(1), b"[]"), (key(3), foreign), (key(4), b"{}"), (key(9), b"\xff")]
    done = decode_range(records(*bad), PLAN)
    (orders, items) = missed(done)
    assert (orders[0], [found for found, _ in orders[1]]) == (
        ORDERS,
        [b"[2]", b"[1]", b"[4]", b"[9]"],
    )
    assert (items[0], [found for found, _ in items[1]]) == (ITEMS, [b"[3]"])
    assert done.tables[ORDERS].reread == ["[2]", "[1]", "[4]", "[9]"]
    assert (done.tables[ORDERS].bad, done.tables[ITEMS].bad) == (4, 1)
    assert [letter.table for letter in done.dead] == [ORDERS, ORDERS, ITEMS, ORDERS, ORDERS]


def test_keys_of_other_columns_stand_where_they_came():
    both = b'{"id":2,"v":"b"}'
    done = decode_range(records((key(1), b"{"), (both, b"{"), (key(3), b"{")), PLAN)
    assert done.tables[ORDERS].reread == ["[1]", '[2,"b"]', "[3]"]


@pytest.mark.parametrize(
    ("topic", "selected", "table"),
    [
        (f"shop.{ORDERS}", None, ORDERS),
        (f"shop.{ORDERS}", {ORDERS}, ORDERS),
        (f"shop.{ORDERS}", {ITEMS}, ""),
        ("shop.public.nothing", None, ""),
        ("all-tables", None, ""),
        (f"shop.{SIGNALS}", None, ""),
    ],
)
def test_a_letter_is_the_tables_whose_topic_it_was_in(topic, selected, table):
    done = decode_range(records((key(1), b"{"), topic=topic), replace(PLAN, selected=selected))
    assert [letter.table for letter in done.dead] == [table]
    assert set(done.tables) == ({table} if table else set())
    assert [name for name, _ in missed(done)] == ([table] if table else [])


def test_a_table_that_stands_still_misses_nothing_yet():
    done = decode_range(records((key(1), b"{")), replace(PLAN, stopped=frozenset({ORDERS})))
    assert missed(done) == []


PLAIN = st.dictionaries(st.sampled_from(["id", "v", "uid"]), st.integers(0, 9), max_size=2)
KEYS = st.one_of(
    st.none(),
    PLAIN.map(lambda row: json.dumps(row).encode()),
    PLAIN.map(lambda row: json.dumps({"schema": None, "payload": row}).encode()),
    st.sampled_from([b"", b"7", b"{", b"\xff", b'{"id":"x"}', b'{"id":null}', b'{"id":1,"v":"a"}']),
)


@given(st.lists(st.tuples(KEYS, st.sampled_from([None, b"{", b"[]"])), max_size=6))
def test_a_record_with_any_key_hides_no_others(pairs):
    together = missed(decode_range(records(*pairs), PLAN))
    apart = [found for pair in pairs for found in missed(decode_range(records(pair), PLAN))]
    assert len(together) == min(1, len(apart))
    assert [m for _, ms in together for m in ms] == [m for _, ms in apart for m in ms]


AVRO = (b"\x00\x00\x00\x00\x01\x02", b"\x00\x00\x00\x00\x02\xff\xfe")
ROUTED = f"shop.{ORDERS}"


@pytest.mark.parametrize(
    ("known", "unread"),
    [
        ({"carried": {ROUTED: (ORDERS,)}}, {ORDERS: 2}),
        ({"carried": {ROUTED: (ITEMS, ORDERS)}}, {ITEMS: 2, ORDERS: 2}),
        ({"known_keys": {ORDERS: ("id",)}}, {ORDERS: 2}),
        ({"schemas": PLAN.schemas}, {ORDERS: 2}),
        ({"carried": {ROUTED: (ORDERS,)}, "selected": {ITEMS}}, {}),
        ({"carried": {ROUTED: (ORDERS,)}, "stopped": frozenset({ORDERS})}, {ORDERS: 0}),
        ({}, {}),
    ],
)
def test_any_row_may_miss_what_has_no_readable_key_either(known, unread):
    nothing = replace(PLAN, schemas={}, converter_asked=True)
    done = decode_range(records(AVRO, (None, b"{")), replace(nothing, **known))
    assert {table: report.unread for table, report in done.tables.items()} == unread
    assert len(done.dead) == 2


def test_an_event_without_its_key_is_missed_by_any_row():
    value = event("u", 7, {"id": 3, "v": "x"})
    sure = replace(PLAN, verified=frozenset({ORDERS}))
    done = decode_range(records((key(3), value), (None, value), (b'{"id":"x"}', value)), sure)
    assert (done.tables[ORDERS].unread, done.tables[ORDERS].reread) == (2, [])


def test_what_stops_the_table_is_said_when_it_goes_on():
    done = decode_range(records(*[AVRO] * 3), replace(PLAN, max_bad=2, converter_asked=True))
    report = done.tables[ORDERS]
    assert (report.stop[0], report.unread, report.bad) == ("too-many-bad-records", 0, 0)
    assert done.dead == []


def test_a_connector_that_began_without_offsets_leaves_no_table_out_of_doubt(shop):
    shop.put("c", 80, 1, v="a")
    shop.put("c", 88, 7, v="x", table=ITEMS)
    shop.run()
    shop.put("u", 160, 1, v="b", anew=True, ts=168)
    shop.put("u", 168, 1, v="c", anew=True, ts=168)
    shop.run()
    assert {t: e.repair.resnapshot_since for t, e in shop.state.tables.items()} == {
        ORDERS: 1,
        ITEMS: 1,
    }
    assert shop.state.tables[ITEMS].repair.resnapshot.startswith(
        "the connector began without offsets"
    )
    shop.put("u", 176, 1, v="d", anew=True, ts=168)  # its first transaction goes on
    shop.put("u", 240, 1, v="e", tx=200)
    shop.run()
    assert {e.repair.resnapshot_since for e in shop.state.tables.values()} == {1}
    assert (shop.values(), shop.values(ITEMS)) == ({1: "e"}, {7: "x"})


@pytest.mark.parametrize(
    "touched",
    ["a table without events", "a partition without events", "a loaded table", "a signal"],
)
def test_a_new_slot_is_noticed_whatever_its_first_transaction_touches(shop, touched):
    shop.reconnect(signal_table=SIGNALS)
    if touched == "a loaded table":
        shop.put("r", 72, 1, v="a", table=ITEMS, snapshot="true")
    shop.put("c", 80, 1, v="a")
    shop.broker.topics["shop.public.orders"].append([])
    shop.run()
    if touched == "a signal":
        shop.put("c", 160, "s", table=SIGNALS, type="log", data="{}", anew=True)
    elif touched == "a partition without events":
        shop.put("c", 160, 2, v="x", partition=1, anew=True)
    else:
        shop.put("u", 160, 1, v="x", table=ITEMS, anew=True)
    shop.put("u", 168, 1, v="b", tx=164)
    shop.run()
    assert shop.state.tables[ORDERS].repair.resnapshot_since == 1
    shop.put("u", 176, 1, v="c", tx=172)
    shop.run()
    assert shop.state.tables[ORDERS].repair.resnapshot_since == 1


def test_the_first_slot_of_a_pipeline_is_not_a_new_one(shop):
    shop.put("r", 72, 1, v="a", table=ITEMS, snapshot="true")
    shop.put("c", 80, 1, v="a", anew=True, ts=85)
    shop.run()
    shop.put("u", 82, 1, v="b", table=ITEMS, anew=True, ts=85)  # the same transaction, read later
    shop.put("u", 96, 1, v="b", tx=88)
    shop.run()
    assert {entry.repair.resnapshot for entry in shop.state.tables.values()} == {""}
    shop.put("u", 160, 1, v="c", anew=True, ts=165)
    shop.run()
    assert {entry.repair.resnapshot_since for entry in shop.state.tables.values()} == {2}
