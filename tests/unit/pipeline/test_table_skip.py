"""A table that skips what it cannot apply: through the driver, batch by batch."""

import json
import shutil
from decimal import Decimal

import pytest

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink import names
from lakemark.state import data_loss, tables
from lakemark.state.tables import PipelineState, TableState
from tests.kit.memory_pipeline import DiedError
from tests.kit.shop import ITEMS, ORDERS, schema_of
from tests.kit.table_states import table_state

pytestmark = pytest.mark.usefixtures("letters")
TOPIC = f"shop.{ORDERS}"


def skip(shop, end=None):
    """The command, as of an end of the log: of now, unless told otherwise."""
    upto = len(shop.broker.topics[TOPIC][0]) if end is None else end
    record = {"type": "table-skip", "table": ORDERS, "offsets": {TOPIC: {0: upto}}}
    shop.records.append(json.loads(json.dumps(record)))


def pause(shop):
    shop.records.append({"type": "table-pause", "table": ORDERS})


def entry(shop):
    return shop.state.tables[ORDERS]


@pytest.fixture
def errored(shop):
    """Orders stand still at an event that no batch can apply; the stream is past it."""
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="bool")
    shop.restart()
    shop.pipeline.schemas.update(shop.catalog.schemas)
    shop.put("u", 11, 1, v=True)
    shop.run()
    assert entry(shop).code == "schema-incompatible"
    return shop


def heal(shop):
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="text")
    shop.pipeline.schemas.update(shop.catalog.schemas)


def test_an_errored_table_goes_on_behind_what_it_cannot_apply(errored):
    shop = errored
    heal(shop)
    skip(shop)
    shop.put("c", 12, 2, v="b")
    shop.run()
    assert shop.values() == {1: "a", 2: "b"}
    assert entry(shop).state == tables.STREAMING
    assert "skipped" in entry(shop).repair.resnapshot
    assert entry(shop).repair.resnapshot_since == shop.batch
    assert entry(shop).repair.stale() is None, "any row may miss an event"
    shop.put("u", 13, 1, v="c")
    shop.run()
    assert shop.values() == {1: "c", 2: "b"}


def test_the_hint_of_a_type_that_does_not_fit_leads_on_with_the_new_type(errored, tmp_path):
    shop, folder = errored, names.table_path(errored.config.lake.path, ORDERS)
    assert f"move the folder {folder} away" in entry(shop).hint
    assert f"`lakemark table skip {ORDERS}`" in entry(shop).hint
    shutil.move(folder, tmp_path / "away")
    skip(shop)
    shop.put("c", 12, 2, v=False)
    shop.run()
    assert entry(shop).state == tables.STREAMING
    assert shop.values() == {2: False}
    assert entry(shop).repair.resnapshot, (
        "what was left out and what was moved comes with a snapshot"
    )


def test_the_hint_of_a_type_that_does_not_fit_leads_on_with_the_old_type(shop):
    """Events of the mended column would be taken for the other type, had nobody asked again."""
    decimals = [
        CatalogColumn("id", "int8", key_position=1),
        CatalogColumn("v", "numeric", typmod=(10 << 16 | 2) + 4),
    ]
    mended = from_catalog(ORDERS, decimals, ["id"], HandlingModes())
    shop.catalog.schemas[ORDERS] = shop.pipeline.schemas[ORDERS] = mended
    shop.put("c", 10, 1, v="Au4=")
    shop.run()
    shop.catalog.schemas[ORDERS] = shop.pipeline.schemas[ORDERS] = schema_of(
        ORDERS, id="int8", v="text"
    )
    shop.put("u", 11, 1, v="seven fifty")
    shop.run()
    assert entry(shop).code == "schema-incompatible"
    assert "change the column back" in entry(shop).hint
    shop.catalog.schemas[ORDERS] = mended
    skip(shop)
    shop.put("c", 12, 2, v="Au4=")
    shop.run()
    assert entry(shop).state == tables.STREAMING
    assert shop.values() == {1: Decimal("7.50"), 2: Decimal("7.50")}


def test_without_the_skip_the_same_table_stops_again(errored):
    errored.records.append({"type": "table-resume", "table": ORDERS})
    errored.put("c", 12, 2, v="b")
    errored.run()  # the catalog is read again
    errored.run()
    assert entry(errored).state == tables.ERRORED


def test_nothing_is_given_up_before_the_stream_is_at_the_end_that_was_told(shop):
    shop.put("c", 10, 1, v="a")
    shop.run()
    pause(shop)
    for lsn, value in ((11, "b"), (12, "c"), (13, "d")):
        shop.put("u", lsn, 1, v=value)
    skip(shop)  # up to offset 4
    shop.run({TOPIC: {0: 3}})
    assert (entry(shop).state, entry(shop).code) == (tables.PAUSED, "skipping")
    assert entry(shop).progress.from_offsets == {TOPIC: {0: 1}}
    shop.restart()
    shop.run({TOPIC: {0: 4}})
    assert entry(shop).state == tables.PAUSED
    shop.put("c", 14, 2, v="x")
    shop.run()
    assert shop.values() == {1: "a", 2: "x"}
    assert entry(shop).progress.skip_to is None


@pytest.mark.parametrize("command", ["table-resume", "table-pause"])
def test_a_later_command_takes_the_skip_back(shop, command):
    shop.put("c", 10, 1, v="a")
    shop.run()
    pause(shop)
    shop.put("u", 11, 1, v="b")
    skip(shop)
    shop.run()
    shop.records.append({"type": command, "table": ORDERS})
    shop.put("c", 12, 2, v="x")
    shop.run()
    if command == "table-pause":
        assert (entry(shop).state, entry(shop).code) == (tables.PAUSED, "paused")
        shop.records.append({"type": "table-resume", "table": ORDERS})
        shop.run()
    assert shop.values() == {1: "b", 2: "x"}
    assert not entry(shop).repair.resnapshot


@pytest.fixture
def sent_again(shop):
    """Key 2 came and went while orders stood still; behind the skip the connector sends it again."""
    shop.put("c", 10, 1, v="a")
    shop.run()
    pause(shop)
    shop.put("c", 11, 2, v="b")
    shop.put("d", 12, 2)
    shop.run()
    skip(shop)
    shop.put("c", 11, 2, v="b")
    return shop


def test_replays_of_what_came_while_it_stood_still_are_recognised_by_the_streams_high_waters(
    sent_again,
):
    """By the applied positions of where it stopped, the old insert would come back."""
    shop = sent_again
    shop.run()
    assert entry(shop).state == tables.STREAMING
    assert shop.values() == {1: "a"}
    shop.put("c", 13, 3, v="c")
    shop.run()
    assert shop.values() == {1: "a", 3: "c"}


def test_new_partitions_in_the_batch_of_the_skip_are_read_from_where_it_goes_on(sent_again):
    shop = sent_again
    shop.put("c", 13, 3, v="c", partition=1)
    shop.run()
    shop.run()
    assert entry(shop).state == tables.STREAMING
    assert shop.values() == {1: "a", 3: "c"}


def test_a_batch_that_is_repeated_decides_as_it_did(shop):
    shop.put("c", 10, 1, v="a")
    shop.run()
    pause(shop)
    shop.put("u", 11, 1, v="b")
    shop.run()
    skip(shop)
    shop.put("c", 12, 2, v="c")
    shop.put("d", 13, 2)
    shop.put("c", 14, 3, v="d")
    shop.checkpoint.dies_before_saving = True
    with pytest.raises(DiedError):
        shop.run()
    once = shop.values()
    shop.put("c", 15, 4, v="later")  # more has come, but not to this batch
    shop.restart()
    shop.again()
    shop.read = {TOPIC: {0: 5}}
    assert shop.values() == once == {1: "a", 3: "d"}
    assert entry(shop).repair.resnapshot_since == shop.batch
    shop.run()
    assert shop.values() == {1: "a", 3: "d", 4: "later"}


def test_a_skip_is_for_tables_that_stand_still(shop):
    shop.put("c", 10, 1, v="a")
    shop.put("c", 10, 7, v="x", table=ITEMS)
    shop.run()
    skip(shop)
    shop.records.append({"type": "table-skip", "table": "public.nothing", "offsets": {}})
    shop.put("u", 11, 1, v="b")
    shop.run()
    assert shop.values() == {1: "b"}
    assert not entry(shop).repair.resnapshot
    assert "public.nothing" not in shop.state.tables


@pytest.mark.parametrize("upto", [None, 5, {TOPIC: 3}, {TOPIC: {"zero": 3}}, {TOPIC: {"0": "x"}}])
def test_a_record_that_does_not_say_how_far_changes_nothing(upto):
    state = PipelineState(tables={ORDERS: TableState(state=tables.PAUSED, code="paused")})
    assert not tables.skip(state, ORDERS, upto=upto)
    assert state.tables[ORDERS] == TableState(state=tables.PAUSED, code="paused")


def test_a_source_that_went_back_takes_a_new_epoch_not_a_skip(shop):
    shop.put("c", 10, 1, v="a")
    shop.put("c", 20, 2, v="b")
    shop.run()
    shop.put("u", 12, 1, v="restored", ts=99)
    shop.run()
    assert entry(shop).code == "position-regressed"
    skip(shop)
    shop.run()
    assert entry(shop).code == "position-regressed"
    shop.records.append({"type": "new-epoch"})
    shop.run()
    assert shop.values() == {1: "restored", 2: "b"}


def test_a_skip_does_not_wait_for_offsets_of_a_topic_that_was_made_again():
    state = PipelineState(
        offsets={TOPIC: {0: 90}},
        tables={
            ORDERS: table_state(state=tables.PAUSED, topics=[TOPIC], from_offsets={TOPIC: {0: 5}})
        },
    )
    assert tables.skip(state, ORDERS, upto={TOPIC: {"0": 100}})
    assert tables.end_skips(state, state.offsets) == []
    data_loss.begin_again(state, {TOPIC: {0: 0}})
    assert tables.end_skips(state, state.offsets) == [ORDERS]
