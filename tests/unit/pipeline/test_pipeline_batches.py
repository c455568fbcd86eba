"""The driver's batches, scenario by scenario, with the real tasks and the real delta-rs engine."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable

from lakemark.connectors.postgres import positions as lsns
from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.errors import DependencyError
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink import apply, lake_plan, names
from lakemark.state import tables
from tests.kit.memory_pipeline import DiedError
from tests.kit.shop import ITEMS, ORDERS, event, schema_of

pytestmark = pytest.mark.usefixtures("letters")


def test_a_batch_lands_and_the_next_one_builds_on_it(shop):
    shop.put("c", 10, 1, v="a")
    shop.put("c", 11, 2, v="b")
    shop.put("c", 12, 7, v="item", table=ITEMS)
    shop.run()
    shop.put("u", 13, 1, v="aa")
    shop.put("d", 14, 2)
    shop.run()
    assert shop.values() == {1: "aa"}
    assert shop.values(ITEMS) == {7: "item"}
    assert shop.state.tables[ORDERS].size.events == 4


def test_a_batch_that_died_before_its_state_was_saved_is_repeated_without_effect(shop):
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.put("u", 11, 1, v="b")
    shop.put("d", 12, 1)
    shop.put("c", 13, 1, v="c")
    shop.checkpoint.dies_before_saving = True
    with pytest.raises(DiedError):
        shop.run()
    version = DeltaTable(names.table_path(shop.config.lake.path, ORDERS)).version()
    shop.restart()
    before = {t: dict(p) for t, p in shop.read.items()}
    shop.again()
    shop.read = shop.broker.ends()
    assert before
    assert shop.values() == {1: "c"}
    assert DeltaTable(names.table_path(shop.config.lake.path, ORDERS)).version() == version


def test_what_a_connector_sends_again_is_dropped_and_counted(shop):
    shop.put("c", 10, 1, v="a")
    shop.put("d", 11, 1)
    shop.put("c", 12, 2, v="b")
    shop.run()
    for op, lsn, key in (("c", 10, 1), ("d", 11, 1), ("c", 12, 2)):
        shop.put(op, lsn, key, v="a" if key == 1 else "b")
    shop.run({f"shop.{ORDERS}": {0: 4}})  # the cut is after the old insert: it must not come back
    assert shop.values() == {2: "b"}
    shop.run()
    assert shop.values() == {2: "b"}
    assert shop.state.tables[ORDERS].size.replays == 2


def test_a_paused_table_loses_nothing_and_the_others_go_on(shop):
    shop.put("c", 10, 1, v="a")
    shop.put("c", 10, 7, v="x", table=ITEMS)
    shop.run()
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.put("u", 11, 1, v="b")
    shop.put("u", 11, 7, v="y", table=ITEMS)
    shop.run()
    shop.put("d", 12, 1)
    shop.put("c", 13, 2, v="c")
    shop.run()
    assert shop.values() == {1: "a"}
    assert shop.values(ITEMS) == {7: "y"}
    assert shop.state.tables[ORDERS].state == tables.PAUSED
    shop.restart()
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.put("u", 14, 2, v="d")
    shop.run()
    assert shop.values() == {2: "d"}
    assert shop.state.tables[ORDERS].state == tables.STREAMING
    assert not shop.state.tables[ORDERS].progress.from_offsets


def test_replays_that_came_while_a_table_stood_still_are_recognised_when_it_catches_up(shop):
    shop.put("c", 10, 1, v="a")
    shop.put("d", 11, 1)
    shop.run()
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.put("c", 12, 2, v="b")
    shop.run()
    assert shop.values() == {2: "b"}


def test_an_incompatible_change_stops_that_table_by_name_and_no_other(shop):
    shop.put("c", 10, 1, v="a")
    shop.put("c", 10, 7, v="x", table=ITEMS)
    shop.run()
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="bool")
    shop.restart()
    shop.pipeline.schemas.update(shop.catalog.schemas)
    shop.put("u", 11, 1, v=True)
    shop.put("u", 11, 7, v="y", table=ITEMS)
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.code) == (tables.ERRORED, "schema-incompatible")
    assert "'v'" in entry.reason
    assert entry.hint
    assert shop.values() == {1: "a"}
    assert shop.values(ITEMS) == {7: "y"}


def test_who_looks_at_the_catalog_is_told_of_events_of_another_form(shop):
    told = []
    shop.pipeline.forms_change = lambda: told.append(shop.batch)
    for at, more in ((10, {}), (11, {}), (12, {"w": "new"}), (13, {"w": "known"})):
        if more:
            shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="text", w="text")
        shop.put("c", at, at, v="a", **more)
        shop.run()
    assert told == [2]
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="bool", w="text")
    shop.pipeline.schemas.update(shop.catalog.schemas)
    shop.put("c", 14, 14, v=True, w="x")
    shop.run()
    assert shop.state.tables[ORDERS].code == "schema-incompatible"
    assert told == [2, 4]


def test_a_column_that_appears_is_looked_up_and_nothing_of_the_batch_is_lost(shop):
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="text", w="int4")
    shop.put("c", 11, 2, v="b", w=5)
    shop.put("u", 12, 1, v="aa", w=6)
    shop.run()
    assert shop.values(column="w") == {1: 6, 2: 5}
    assert shop.state.tables[ORDERS].state == tables.STREAMING
    assert shop.catalog.asked == 1


def test_a_column_the_database_no_longer_has_is_left_out(shop):
    shop.put("c", 11, 2, v="b", gone=5)
    shop.run()
    assert shop.values() == {2: "b"}
    assert shop.state.ignorable == {ORDERS: ["gone"]}
    shop.put("c", 12, 3, v="c", gone=6)
    shop.run()
    assert shop.values() == {2: "b", 3: "c"}
    assert shop.catalog.asked == 1


def test_a_new_column_without_a_live_catalog_stops_the_table_by_name(shop):
    shop.catalog.live = False
    shop.put("c", 11, 2, v="b", w=5)
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.code) == (tables.ERRORED, "schema-stale")
    assert "w" in entry.reason


def test_a_table_that_is_created_while_the_query_runs_is_looked_up(shop):
    table = "public.later"
    shop.catalog.schemas[table] = schema_of(table, id="int8", v="text")
    shop.put("c", 10, 1, v="a", table=table)
    shop.run()
    assert shop.values(table) == {1: "a"}


def test_a_value_of_another_type_is_checked_against_the_catalog_before_it_is_a_dead_letter(
    shop, letters
):
    shop.catalog.schemas[ORDERS] = shop.pipeline.schemas[ORDERS] = schema_of(
        ORDERS, id="int8", v="int4"
    )
    shop.put("c", 10, 1, v=1)
    shop.run()
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="int8")  # widened at the source
    shop.put("c", 11, 2, v=1 << 40)
    shop.put("c", 12, 3, v="poison")
    shop.put("c", 13, 4, v=4)
    shop.run()
    assert shop.values() == {1: 1, 2: 1 << 40, 4: 4}
    assert {letter.reason for letter in letters} == {"wrong-type"}
    assert {letter.offset for letter in letters} == {2}
    assert shop.state.tables[ORDERS].repair.reread_keys == {"[3]": shop.batch}


def test_poison_becomes_dead_letters_and_the_rest_of_the_batch_lands(shop, letters):
    topic = f"shop.{ORDERS}"
    shop.put("c", 10, 1, v="a")
    good = event("c", 11, {"id": 2, "v": "b"})
    key = b'{"id":2}'
    shop.broker.put(topic, 0, key, good[:-20])
    shop.broker.put(topic, 0, key, good.replace(b'"b"', b'"\xff\xfe"'))
    shop.broker.put(topic, 0, key, event("c", 12, {"id": 2, "v": "b"}, name="other"))
    shop.broker.put(topic, 0, None, event("c", 13, {"id": 2, "v": "b"}))
    shop.broker.put(topic, 0, key, event("c", 14, {"id": 2, "v": "x" * (5 << 20)}))
    shop.broker.put(topic, 0, key, good.replace(b'"op":"c"', b'"op":"z"'))
    shop.put("c", 15, 3, v="c")
    shop.run()
    assert shop.values() == {1: "a", 3: "c"}
    reasons = {letter.offset: letter.reason for letter in letters}
    assert reasons == {
        1: "invalid-json",
        2: "invalid-utf8",
        3: "foreign-connector",
        4: "null-key",
        5: "record-too-large",
        6: "unknown-op",
    }
    assert all(letter.value == shop.broker.topics[topic][0][letter.offset][1] for letter in letters)


def test_a_flood_of_bad_records_stops_the_table_and_not_one_is_shovelled_away(shop, letters):
    shop.put("c", 10, 1, v="a")
    shop.run()
    limit = shop.config.dead_letters.max_per_batch
    for _ in range(limit + 1):
        shop.broker.put(f"shop.{ORDERS}", 0, b'{"id":1}', b"not json")
    shop.put("c", 11, 2, v="b")
    shop.put("c", 11, 7, v="x", table=ITEMS)
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.code) == (tables.ERRORED, "too-many-bad-records")
    assert (entry.size.dead_letters, entry.repair.reread_keys) == (0, {}), (
        "it is all said when it goes on"
    )
    assert letters == []
    assert shop.values(ITEMS) == {7: "x"}


@pytest.mark.parametrize(("bare", "stops"), [("orders", True), ("strange", False)])
def test_a_flood_of_nothing_else_stops_the_table_that_the_topic_is_named_after(
    shop, letters, bare, stops
):
    flood = shop.config.dead_letters.max_per_batch + 1
    for _ in range(flood):
        shop.broker.put(f"shop.public.{bare}", 0, b'{"id":1}', b"not json")
    shop.run()
    codes = {table: entry.code for table, entry in shop.state.tables.items()}
    assert codes == ({ORDERS: "too-many-bad-records"} if stops else {})
    assert len({letter.offset for letter in letters}) == (0 if stops else flood)


AVRO = (b"\x00\x00\x00\x00\x01\x02", b"\x00\x00\x00\x00\x02\xff\xfe")


@pytest.mark.parametrize("known", [True, False])
def test_a_connector_that_writes_avro_from_now_on_stops_its_table(shop, letters, known):
    if not known:  # as with schemas in the records and no database
        shop.catalog.schemas.clear()
    shop.put("c", 10, 1, v="a")
    shop.run()
    if not known:
        shop.restart()
        shop.pipeline.schemas.clear()
    for _ in range(shop.config.dead_letters.max_per_batch + 1):
        shop.broker.put(f"shop.{ORDERS}", 0, *AVRO)
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.code) == (tables.ERRORED, "too-many-bad-records")
    assert (entry.repair.resnapshot, letters) == ("", [])


def test_a_few_records_without_a_readable_key_ask_for_a_snapshot_also_while_it_catches_up(shop):
    shop.put("c", 10, 1, v="a")
    shop.run()
    for _ in range(2):
        shop.broker.put(f"shop.{ORDERS}", 0, *AVRO)
        shop.run()
        entry = shop.state.tables[ORDERS]
        assert entry.state == tables.STREAMING
        assert "not even the key" in entry.repair.resnapshot
        assert entry.repair.resnapshot_since == entry.repair.reread_missed == shop.batch
        shop.records.append({"type": "table-read", "table": ORDERS, "until": shop.batch})
        shop.records.append({"type": "table-pause", "table": ORDERS})
        shop.run()
        assert shop.state.tables[ORDERS].repair.resnapshot == ""
        shop.records.append({"type": "table-resume", "table": ORDERS})


def test_the_last_commit_is_that_of_rows_and_outlives_the_process(shop, monkeypatch):
    def run(seconds):
        monkeypatch.setattr(lake_plan, "time", SimpleNamespace(time=lambda: seconds))
        shop.run()
        return shop.state.tables[ORDERS].size.committed_ms

    shop.put("c", 10, 1, v="a")
    shop.put("c", 11, 2, v="b")
    assert run(5) == 5000
    shop.put("c", 10, 1, v="a")  # sent again
    assert run(6) == 5000
    shop.restart()
    shop.put("d", 12, 1)
    assert run(7) == 7000
    shop.broker.put(f"shop.{ORDERS}", 0, *AVRO)
    assert run(8) == 7000


def test_a_source_that_went_back_in_time_stops_the_table_until_a_new_epoch(shop):
    shop.put("c", 1000, 1, v="a")
    shop.put("c", 1001, 2, v="b")
    shop.run()
    shop.put("u", 50, 1, v="restored", ts=2000)  # lower position, newer source time
    shop.put("c", 7, 7, v="x", table=ITEMS)
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.code) == (tables.ERRORED, "position-regressed")
    assert shop.values() == {1: "a", 2: "b"}
    shop.records.append({"type": "new-epoch"})
    shop.put("d", 60, 2, ts=2001)
    shop.run()
    assert shop.values() == {1: "restored"}
    assert shop.state.tables[ORDERS].repair.resnapshot
    row = shop.rows()[1]
    assert lsns.unpack(row["_cdc"]["position"])[0] == 1
    shop.put("u", 70, 1, v="on", ts=2002)
    shop.run()
    assert shop.values() == {1: "on"}


def test_the_connectors_own_snapshot_over_rows_asks_for_a_new_one(shop):
    shop.put("r", 5, 1, v="a", snapshot="true")
    shop.put("r", 5, 2, v="b", snapshot="true")
    shop.put("u", 10, 1, v="aa")
    shop.run()
    assert shop.state.tables[ORDERS].repair.resnapshot == ""
    # deleted and created again: row 2 is gone meanwhile, which is in no record
    shop.put("r", 900, 1, v="again", snapshot="true")
    shop.put("r", 900, 3, v="new", snapshot="true")
    shop.put("u", 901, 3, v="newer")
    shop.run()
    assert shop.values() == {1: "again", 2: "b", 3: "newer"}
    assert shop.state.tables[ORDERS].repair.resnapshot


def test_a_truncate_is_a_floor_for_whatever_comes_late(shop):
    shop.put("c", 10, 1, v="a")
    shop.put("c", 11, 2, v="b", partition=1)
    shop.run()
    shop.put("t", 20, 0, partition=0)
    shop.put("u", 12, 2, v="late", partition=1)
    shop.put("c", 30, 3, v="c", partition=1)
    shop.run({f"shop.{ORDERS}": {0: 2, 1: 1}})
    assert shop.values() == {}
    shop.run()
    assert shop.values() == {3: "c"}


def test_a_lake_that_is_away_holds_the_batch_and_sends_nothing_to_the_dead_letters(
    shop, letters, monkeypatch
):
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.put("u", 11, 1, v="b")

    def away(*_, **__):
        raise DependencyError("the lake does not answer", code="lake-unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(apply, "apply", away)
        with pytest.raises(DependencyError):
            shop.run()
    shop.restart()
    shop.again()
    assert shop.values() == {1: "b"}
    assert letters == []


def failing(error: Exception):
    """`apply` as it is, but for one table."""
    real = apply.apply

    def fails(table, *rest, **more):
        if table == ORDERS:
            raise error
        return real(table, *rest, **more)

    return fails


def test_one_table_whose_lake_is_away_catches_up_by_itself(shop, monkeypatch):
    for table, key in ((ORDERS, 1), (ITEMS, 7)):
        shop.put("c", 10, key, v="a", table=table)
    shop.run()
    shop.put("u", 11, 1, v="b")
    shop.put("u", 11, 7, v="b", table=ITEMS)
    away = DependencyError("the lake does not answer", code="lake-unavailable")
    with monkeypatch.context() as patch:
        patch.setattr(apply, "apply", failing(away))
        shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.retried) == (tables.ERRORED, True)
    assert shop.values(ITEMS) == {7: "b"}
    shop.run()
    assert shop.values() == {1: "b"}
    assert shop.state.tables[ORDERS].state == tables.STREAMING


def test_a_defect_met_by_one_table_stops_that_table_only(shop, monkeypatch):
    monkeypatch.setattr(apply, "apply", failing(ZeroDivisionError()))
    shop.put("c", 10, 1, v="a")
    shop.put("c", 10, 7, v="x", table=ITEMS)
    shop.run()
    assert shop.state.tables[ORDERS].code == "internal-error"
    assert shop.values(ITEMS) == {7: "x"}


def test_a_record_without_a_key_in_a_table_without_one_stops_that_table(shop):
    table = "public.nokey"
    shop.catalog.schemas[table] = replace(schema_of(table, id="int8", v="text"), key=())
    shop.broker.put(f"shop.{table}", 0, None, event("c", 10, {"id": 1, "v": "a"}, table=table))
    shop.put("c", 10, 7, v="x", table=ITEMS)
    shop.run()
    assert shop.state.tables[table].code == "no-key"
    assert shop.values(ITEMS) == {7: "x"}


def test_a_char_key_is_found_again_though_its_column_is_padded(shop):
    """char(n): events and lake must agree on the key, or a key change finds no old row."""
    columns = [
        CatalogColumn("id", "bpchar", typmod=9, key_position=1),
        CatalogColumn("v", "text"),
    ]
    schema = from_catalog(ORDERS, columns, ["id"], HandlingModes())
    shop.catalog.schemas[ORDERS] = shop.pipeline.schemas[ORDERS] = schema
    shop.put("c", 10, "a    ", v="kept")
    shop.run()
    moved = ("__debezium.newkey", b'{"id":"b    "}'), ("__debezium.oldkey", b'{"id":"a    "}')
    shop.put("d", 20, "a    ", headers=[moved[0]])
    shop.put("c", 20, "b    ", headers=[moved[1]], v="__debezium_unavailable_value")
    shop.run()
    assert shop.values() == {"b    ": "kept"}
    assert shop.rows()["b    "]["_cdc"]["unavailable"] is None


def test_the_reconcile_lane_is_armed_from_the_batch_of_a_runs_start_until_its_last_end(shop):
    def batch(*controls):
        shop.records.extend(controls)
        shop.put("u", 10 + shop.batch, 1, v="a")
        shop.run()
        return shop.runner.armed

    assert not batch()
    assert batch({"type": "run-start", "run": "r1", "tables": [ORDERS]})
    shop.restart()
    assert batch({"type": "run-start", "run": "r2", "tables": [ITEMS]})
    assert batch({"type": "run-end", "run": "r1"})
    assert not batch({"type": "run-end", "run": "r2"})


def test_topics_are_told_before_anything_of_their_first_batch_is_done(shop):
    """A process that ends soon after has noted which topics they were."""
    told = []

    def begin(topics):
        assert shop.batch not in shop.checkpoint.states
        assert not any(DeltaTable.is_deltatable(path(t)) for t in (ORDERS, ITEMS) if not told)
        told.append(sorted(topics))

    def path(table):
        return names.table_path(shop.config.lake.path, table)

    shop.pipeline.topics_begin = begin
    shop.run()
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.put("c", 11, 2, v="b")
    shop.put("c", 12, 7, v="item", table=ITEMS)
    shop.run()
    assert told == [[f"shop.{ORDERS}"], [f"shop.{ITEMS}"]]
    assert shop.values() == {1: "a", 2: "b"}
