"""A table that cannot be written holds up no other, in whatever state the others are."""

from itertools import pairwise
from time import monotonic

import pytest

from lakemark import plans, tasks
from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.errors import DependencyError
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink.delta.failures import classified
from lakemark.state import catch_up, tables
from lakemark.state.schema_refresh import RETRY_S
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.shop import ITEMS, ORDERS, Shop, schema_of

OTHER = "public.other"


@pytest.mark.parametrize("others", [[OTHER], []], ids=["a third streams", "nothing else streams"])
def test_a_table_that_catches_up_beside_one_whose_storage_is_away(tmp_path, others, monkeypatch):
    schemas = {table: schema_of(table, id="int8", v="text") for table in (ORDERS, ITEMS, OTHER)}
    shop = Shop(tmp_path, Broker(), schemas)
    for number, table in enumerate([ORDERS, ITEMS, *others]):
        shop.put("c", 10 + number, 1, v="a", table=table)
    shop.run()
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.run()
    shop.put("c", 20, 2, v="b")
    shop.run()
    away(monkeypatch, ITEMS)
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.put("c", 21, 2, v="b", table=ITEMS)
    shop.run()
    shop.run()
    assert shop.values() == {1: "a", 2: "b"}
    assert shop.state.tables[ITEMS].code == "lake-unavailable"
    monkeypatch.undo()
    shop.pipeline.refresh.clock = lambda: monotonic() + RETRY_S
    shop.run()
    shop.run()
    assert shop.values(ITEMS) == {1: "a", 2: "b"}


def test_a_table_that_fails_again_is_not_tried_with_every_batch(shop, monkeypatch):
    """Each try reads a slice of its topics again, and the others wait for that."""
    for table in (ORDERS, ITEMS):
        shop.put("c", 10, 1, v="a", table=table)
    shop.run()
    tried = []
    away(monkeypatch, ITEMS, tried=tried)
    shop.put("c", 20, 2, v="b", table=ITEMS)
    shop.run()
    tries = {0.0: True, 1.0: False, RETRY_S / 2: False, RETRY_S + 2: True, RETRY_S + 3: False}
    for later_s, expected in tries.items():
        shop.pipeline.refresh.clock = lambda later_s=later_s: monotonic() + later_s
        tried.clear()
        shop.run()
        assert bool(tried) == expected, later_s
        assert shop.state.tables[ITEMS].code == "lake-unavailable"
    monkeypatch.undo()
    shop.records.append({"type": "table-resume", "table": ITEMS})  # a person's word does not wait
    shop.run()
    assert shop.values(ITEMS) == {1: "a", 2: "b"}


def test_the_whole_lake_is_away_and_every_table_but_one_was_to_catch_up(tmp_path, monkeypatch):
    """That they are about to catch up does not say that they can."""
    schemas = {table: schema_of(table, id="int8", v="text") for table in (ORDERS, ITEMS)}
    shop = Shop(tmp_path, Broker(), schemas)
    shop.put("c", 10, 1, v="a")
    shop.put("c", 11, 1, v="a", table=ITEMS)
    shop.run()
    away(monkeypatch, ORDERS, ITEMS)
    shop.put("c", 20, 2, v="b")
    shop.run()
    assert shop.state.tables[ORDERS].state == "errored", "one table alone: the other streams"
    shop.put("c", 21, 3, v="c", table=ITEMS)
    for again in (shop.run, shop.again):
        with pytest.raises(DependencyError) as caught:
            again()
        assert caught.value.code == "lake-unavailable"
    monkeypatch.undo()
    shop.again()
    assert shop.values() == {1: "a", 2: "b"}
    assert shop.values(ITEMS) == {1: "a", 3: "c"}


def test_a_table_whose_key_is_a_list_stops_alone(shop):
    table = "public.lists"
    columns = [CatalogColumn("id", "_int4", element_type_name="int4", key_position=1)]
    shop.catalog.schemas[table] = from_catalog(table, columns, ["id"], HandlingModes())
    shop.put("c", 10, [1, 2], table=table)
    shop.put("c", 10, 7, v="x", table=ITEMS)
    shop.run()
    stopped = shop.state.tables[table]
    assert (stopped.code, stopped.retried) == ("key-type", False)
    assert "list" in stopped.reason
    assert "message.key.columns" in stopped.hint
    assert shop.values(ITEMS) == {7: "x"}


def test_a_paused_table_can_be_resumed_though_the_only_other_one_cannot_be_written(
    tmp_path, monkeypatch
):
    schemas = {table: schema_of(table, id="int8", v="text") for table in (ORDERS, ITEMS)}
    shop = Shop(tmp_path, Broker(), schemas)
    shop.put("c", 10, 1, v="a")
    shop.put("c", 11, 1, v="a", table=ITEMS)
    shop.run()
    away(monkeypatch, ITEMS)
    shop.put("c", 20, 2, v="b", table=ITEMS)
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.run()
    shop.put("c", 30, 2, v="b")
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.run()
    shop.run()
    assert shop.values() == {1: "a", 2: "b"}
    assert shop.state.tables[ITEMS].code == "lake-unavailable"


def away(monkeypatch: pytest.MonkeyPatch, *names: str, tried: list[str] | None = None) -> None:
    """The storage of some tables cannot be reached any more; `tried` tells who did."""
    real = tasks.apply.apply

    def apply(table, *given, **named):
        if table in names:
            (tried if tried is not None else []).append(table)
            raise classified(OSError("connection refused"), "s3://other/items")
        return real(table, *given, **named)

    monkeypatch.setattr(tasks.apply, "apply", apply)


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False], ids=["known tables", "tables just created"])
def test_many_tables_that_begin_at_once_hold_up_no_other(tmp_path, monkeypatch, known):
    """Each batch takes some of them, and what has come of a table that was there before."""
    monkeypatch.setattr(plans, "TABLES_A_SLOT", 1)
    monkeypatch.setattr(catch_up, "TABLES_A_SLOT", 1)
    many = [f"public.new{number}" for number in range(9)]
    schemas = {table: schema_of(table, id="int8", v="text") for table in (ORDERS, *many)}
    shop = Shop(tmp_path, Broker(), schemas)
    if not known:
        for table in many:
            del shop.pipeline.schemas[table]
    shop.put("c", 10, 1, v="0")
    shop.run()
    for number, table in enumerate(many):
        shop.put("c", 20 + number, 1, v="new", table=table)
    streaming = []
    for number in range(1, 9):
        shop.put("u", 100 + number, 1, v=str(number))
        for table in many[:4]:
            shop.put("u", 200 + number, 1, v=str(number), table=table)
        shop.run()
        assert shop.values() == {1: str(number)}
        streaming.append(sum(shop.state.tables[t].state == tables.STREAMING for t in many))
        if streaming[-1] == len(many):
            break
    # Two merge tasks: a table of each may begin in the stream, two have a turn beside it.
    steps = [now - before for before, now in pairwise([0, *streaming])]
    assert 0 < steps[0] <= (4 if known else 2)
    assert set(steps[1:-1]) <= {1, 2}
    assert steps[-1] > 0
    for table in many:
        touched = str(number) if table in many[:4] else "new"
        assert shop.values(table) == {1: touched}
        assert shop.state.tables[table].size.events == (number + 1 if table in many[:4] else 1)
        assert (shop.state.tables[table].code, shop.state.tables[table].repair.resnapshot) == (
            "",
            "",
        )


def test_where_nothing_else_waits_all_tables_begin_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "TABLES_A_SLOT", 1)
    many = [f"public.new{number}" for number in range(6)]
    shop = Shop(tmp_path, Broker(), {t: schema_of(t, id="int8", v="text") for t in many})
    for number, table in enumerate(many):
        shop.put("c", 20 + number, 1, v="new", table=table)
    shop.run()
    assert {shop.state.tables[table].state for table in many} == {tables.STREAMING}
    assert {shop.state.tables[table].progress.slice_batch for table in many} == {-1}


def test_a_table_that_began_in_a_batch_that_died_is_put_off_by_its_repeat(tmp_path, monkeypatch):
    """The repeated batch has other tables before it; its rows are there once all the same."""
    monkeypatch.setattr(plans, "TABLES_A_SLOT", 1)
    many = [f"public.new{number}" for number in range(5)]
    schemas = {table: schema_of(table, id="int8", v="text") for table in (ORDERS, *many)}
    shop = Shop(tmp_path, Broker(), schemas)
    shop.put("c", 10, 1, v="0")
    shop.run()
    for number, table in enumerate(many):
        shop.put("c", 20 + number, 1, v="a" * (10 - number), table=table)
    shop.checkpoint.dies_before_saving = True
    with pytest.raises(DiedError):
        shop.run()
    shop.restart()
    for number, table in enumerate(many):  # those that were large are small now
        shop.put("c", 30 + number, 2, v="b" * (100 * number), table=table)
    ends = shop.broker.ends()
    shop.checkpoint.planned[shop.batch].update(ends)
    shop.again()
    shop.read = ends
    for _ in range(4):
        shop.run()
    for number, table in enumerate(many):
        assert shop.state.tables[table].state == tables.STREAMING
        assert shop.values(table) == {1: "a" * (10 - number), 2: "b" * (100 * number)}


def test_tables_that_catch_up_together_are_each_their_own(tmp_path, monkeypatch):
    """One read for all of them: one cannot be written, one stops by its records, the others go on."""
    names = [f"public.t{number}" for number in range(4)]
    schemas = {table: schema_of(table, id="int8", v="text") for table in (ORDERS, *names)}
    shop = Shop(tmp_path, Broker(), schemas)
    for number, table in enumerate([ORDERS, *names]):
        shop.put("c", 10 + number, 1, v="a", table=table)
    shop.run()
    shop.records.extend({"type": "table-pause", "table": table} for table in names)
    shop.run()
    for number, table in enumerate([ORDERS, *names]):
        shop.put("u", 30 + number, 1, v="b", table=table)
        shop.put("c", 40 + number, 2, v="c", table=table)
    shop.run()
    away(monkeypatch, names[1])
    shop.put("u", 2, 1, v="restored", ts=2000, table=names[2])  # below, and its source time newer
    shop.records.extend({"type": "table-resume", "table": table} for table in names)
    shop.run()
    codes = {table: shop.state.tables[table].code for table in names}
    assert codes == dict(
        zip(names, ["", "lake-unavailable", "position-regressed", ""], strict=True)
    )
    for table in (ORDERS, names[0], names[3]):
        assert shop.values(table) == {1: "b", 2: "c"}
        assert shop.state.tables[table].state == tables.STREAMING
    for table in names[1:3]:
        assert shop.values(table) == {1: "a"}
        assert shop.state.tables[table].progress.from_offsets == {f"shop.{table}": {0: 1}}
    monkeypatch.undo()
    shop.records.append({"type": "table-resume", "table": names[1]})
    shop.run()
    assert shop.values(names[1]) == {1: "b", 2: "c"}
