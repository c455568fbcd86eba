"""A batch that is repeated though it is not the same any more: nothing of it may be left out.

Between a commit and the state after it, the process may die; what comes next may have read a newer
catalog, other settings or later end offsets, or stand beside an older copy of the checkpoint.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.errors import DependencyError
from lakemark.pipeline import Pipeline
from lakemark.sink import apply, names
from lakemark.sink.delta import pending
from lakemark.state import tables
from tests.kit.memory_pipeline import DiedError
from tests.kit.shop import ITEMS, ORDERS, schema_of

pytestmark = pytest.mark.usefixtures("letters")
TOPIC = f"shop.{ORDERS}"
MOVED = [("__debezium.newkey", b'{"id":2}')]
ARRIVED = [("__debezium.oldkey", b'{"id":1}')]
UNAVAILABLE = "__debezium_unavailable_value"


def entry(shop):
    return shop.state.tables[ORDERS]


def offsets(shop):
    return {topic: dict(partitions) for topic, partitions in shop.read.items()}


def dies(shop, upto=None):
    """The batch up to its state, which is not saved any more; the next call repeats it."""
    shop.checkpoint.dies_before_saving = True
    began = offsets(shop)
    with pytest.raises(DiedError):
        shop.run(upto)
    shop.read = began


def repeat(shop):
    """The process starts anew and repeats the batch."""
    shop.checkpoint.dies_before_saving = False
    shop.schemas = dict(shop.catalog.schemas)  # read at the start
    shop.restart()
    shop.again()
    planned = dict(shop.checkpoint.planned[shop.batch])
    planned.pop(shop.config.topics.control)
    shop.read = planned


def files(shop):
    folder = Path(names.table_path(shop.config.lake.path, ORDERS), "_lakemark/pending")
    return sorted(path.name for path in folder.glob("*.arrow"))


@pytest.fixture
def altered(shop):
    """ALTER TABLE ADD COLUMN: partition 0 has the new column already, partition 1 not yet."""
    shop.put("c", 10, 1, v="a", partition=0)
    shop.put("c", 11, 2, v="b", partition=1)
    shop.run()
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="text", w="int4")
    shop.put("u", 20, 2, v="bb", partition=1)
    shop.put("u", 21, 1, v="aa", w=7, partition=0)
    return shop


def test_a_newer_catalog_at_the_repeat_applies_what_the_older_one_had_to_leave(
    altered, monkeypatch
):
    shop = altered

    def away(self, state):
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "_catch_up", away)  # the database is away, or the process killed
        dies(shop)
    repeat(shop)
    assert shop.values() == {1: "aa", 2: "bb"}
    assert shop.values(column="w") == {1: 7, 2: None}
    assert entry(shop).state == tables.STREAMING


def test_of_a_table_that_one_partition_stops_nothing_is_applied(altered):
    altered.catalog.live = False
    altered.put("c", 22, 7, v="x", table=ITEMS)
    altered.run()
    assert (entry(altered).state, entry(altered).code) == (tables.ERRORED, "schema-stale")
    assert altered.values() == {1: "a", 2: "b"}
    assert altered.values(ITEMS) == {7: "x"}


def test_records_that_a_new_setting_can_decode_are_applied_at_the_repeat(shop, letters):
    small = shop.config.stream.model_copy(update={"max_event_bytes": 1000})
    large = shop.config
    shop.config = shop.pipeline.config = large.model_copy(update={"stream": small})
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.put("u", 11, 1, v="b" * 2000)
    shop.put("c", 12, 2, v="c")
    dies(shop)
    assert [letter.reason for letter in letters[-1:]] == ["record-too-large"]
    shop.config = large
    repeat(shop)
    assert shop.values() == {1: "b" * 2000, 2: "c"}


def test_a_new_partition_whose_old_ones_have_grown_until_the_repeat(shop):
    shop.put("c", 10, 1, v="a", partition=0)
    shop.run()
    shop.put("u", 12, 1, v="b", partition=0)
    shop.put("c", 13, 3, v="x", partition=1)
    dies(shop)
    shop.put("u", 14, 1, v="later", partition=0)
    shop.put("c", 15, 5, v="new", partition=0)
    repeat(shop)
    for _ in range(2):
        shop.run()
    assert shop.values() == {1: "later", 3: "x", 5: "new"}
    assert entry(shop).state == tables.STREAMING


@pytest.mark.parametrize(("first", "then"), [(2, 100), (4, 1)])
def test_a_slice_of_another_size_at_the_repeat(shop, first, then):
    """Both ways: a shorter one goes back in time for a while, and then on to the end."""
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.run()
    for key in range(2, 7):
        shop.put("c", 20 + 2 * key, key, v="n")
        shop.put("u" if key % 2 else "d", 21 + 2 * key, key, v="m")
    shop.run()
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.limit(first)
    dies(shop)
    shop.limit(then)
    repeat(shop)
    shop.limit(100)
    shop.run()
    assert shop.values() == {1: "a", 3: "m", 5: "m"}
    assert entry(shop).state == tables.STREAMING


def older(shop, batches):
    """A copy of the checkpoint from some batches ago is put back."""
    shop.batch -= batches
    planned = dict(shop.checkpoint.planned[shop.batch])
    planned.pop(shop.config.topics.control)
    shop.read = planned
    shop.restart()


def test_a_checkpoint_one_batch_older_than_the_table_loses_nothing(shop):
    """As after a power failure that took Spark's newest plan: the number is given once more."""
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.put("c", 11, 2, v="b")
    shop.run()
    older(shop, 1)
    shop.put("c", 12, 3, v="c")
    shop.run()
    shop.put("c", 13, 4, v="d")
    shop.run()
    assert shop.values() == {1: "a", 2: "b", 3: "c", 4: "d"}
    assert entry(shop).state == tables.STREAMING


def test_a_checkpoint_much_older_stops_the_table_until_it_has_come_up_with_it(shop):
    """Resumed or not, nothing is applied before the batch that the table has, and then all is."""
    for lsn in range(10, 15):
        shop.put("c", lsn, lsn, v="a")
        shop.run()
    newest = shop.batch
    shop.put("d", 20, 10)  # the second time, batches are cut elsewhere
    older(shop, 4)
    for lsn in range(21, 24):
        shop.put("c", lsn, lsn, v="b")
        shop.run()
        assert shop.batch < newest
        assert (entry(shop).state, entry(shop).code) == (tables.ERRORED, "checkpoint-older")
        assert 21 not in shop.values()
        shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.put("c", 24, 24, v="b")
    shop.run()
    assert shop.batch == newest
    shop.put("c", 25, 25, v="b")
    shop.run()
    assert sorted(shop.values()) == [11, 12, 13, 14, 21, 22, 23, 24, 25]
    assert entry(shop).state == tables.STREAMING


def test_the_same_batch_again_makes_no_commit_however_often_it_is_repeated(altered):
    """Also after it had to be applied with other content."""
    shop = altered
    dies(shop)
    for _ in range(3):
        shop.checkpoint.dies_before_saving = True
        shop.schemas = dict(shop.catalog.schemas)
        shop.restart()
        with pytest.raises(DiedError):
            shop.again()
        versions = DeltaTable(names.table_path(shop.config.lake.path, ORDERS)).version()
    repeat(shop)
    assert DeltaTable(names.table_path(shop.config.lake.path, ORDERS)).version() == versions
    assert shop.values() == {1: "aa", 2: "bb"}


# -- halves of key changes -------------------------------------------------------------------------


def test_what_waits_is_there_until_the_state_that_needs_it_no_more_is_durable(shop):
    """The half is used and over in a batch that is repeated, with a catch-up in between."""
    shop.put("c", 10, 1, v="kept")
    shop.put("c", 10, 4, v="d", partition=1)
    shop.run()
    shop.put("d", 11, 1, headers=MOVED)
    shop.run()
    waits = files(shop)
    assert waits
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="text", w="int4")
    shop.put("c", 11, 2, headers=ARRIVED, v=UNAVAILABLE, partition=1)
    shop.put("c", 12, 3, v="c", w=1)
    dies(shop)
    assert set(waits) <= set(files(shop))
    repeat(shop)
    assert shop.values() == {2: "kept", 3: "c", 4: "d"}


def test_two_steps_of_one_batch_leave_halves_under_names_of_their_own(tmp_path):
    halves = pending.Halves(str(tmp_path), "q", {})
    left = {step: pa.table({"x": [step]}) for step in ("stream", "catchup")}
    for step, packet in left.items():
        halves.save(packet, 7, step)
    assert {step: halves.load(7, step) for step in left} == left
    halves.remove(7, "stream")
    assert halves.load(7, "stream") is None
    assert halves.load(7, "catchup") == left["catchup"]


def test_halves_that_a_catch_up_left_are_found_again(shop):
    shop.put("c", 10, 1, v="kept")
    shop.run()
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.put("d", 11, 1, headers=MOVED)
    shop.run()
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.run()
    assert entry(shop).state == tables.STREAMING
    assert len(files(shop)) == 1
    shop.put("c", 11, 2, headers=ARRIVED, v=UNAVAILABLE)
    shop.run()
    assert shop.values() == {2: "kept"}
    for key in (8, 9, 10):
        shop.put("c", 10 + key, key, v="c")
        shop.run()
    assert files(shop) == []


@pytest.mark.parametrize("dropped", ["file", "table"])
def test_halves_that_are_gone_are_said_and_the_table_goes_on(shop, dropped):
    """Also of somebody who dropped the table's folder, to have it made anew."""
    shop.put("c", 10, 1, v="kept")
    shop.run()
    shop.put("d", 11, 1, headers=MOVED)
    shop.run()
    (name,) = files(shop)
    path = Path(names.table_path(shop.config.lake.path, ORDERS))
    if dropped == "file":
        (path / "_lakemark/pending" / name).unlink()
    else:
        path.rename(path.with_name("dropped"))
    shop.put("c", 11, 2, headers=ARRIVED, v=UNAVAILABLE)
    shop.run()
    assert (entry(shop).state, entry(shop).code) == (tables.STREAMING, "")
    assert set(shop.values()) == {2}
    assert "key change" in entry(shop).repair.resnapshot
    assert entry(shop).repair.stale() is None, "any row may miss columns"
    since = entry(shop).repair.resnapshot_since
    shop.put("c", 20, 3, v="c")
    shop.run()
    assert entry(shop).repair.resnapshot_since == since, "said once"


def test_who_was_superseded_in_a_batch_reads_no_slice_and_stores_no_state(shop):
    """What it has merged by then, the new owner merges as well; each table takes it once."""
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.put("u", 11, 1, v="b")
    shop.run()
    shop.records.append({"type": "table-resume", "table": ORDERS})
    checkpoint = shop.checkpoint
    for allowed in (1, 2):  # at the start; before the slice; the third time: before the state
        checkpoint.taken_after = checkpoint.asked + allowed
        with pytest.raises(DependencyError) as caught:
            shop.run() if allowed == 1 else shop.again()
        assert caught.value.code == "superseded"
        assert shop.values() == {1: "a" if allowed == 1 else "b"}
        assert shop.batch not in checkpoint.states
    checkpoint.taken_after = None
    shop.restart()
    shop.again()
    assert shop.values() == {1: "b"}


def lake_away(table, *_, real=apply.apply, **more):
    if table == ORDERS:
        raise DependencyError("the lake is away", code="lake-unavailable")
    return real(table, *_, **more)


@pytest.mark.parametrize("stops", ["has no turn", "cannot be written"])
def test_halves_of_a_try_that_the_repeat_leaves_to_a_later_batch(shop, monkeypatch, stops):
    """The row has left its old key by then: who is to take columns from it is read again."""
    shop.put("c", 10, 1, v="kept")
    shop.put("c", 10, 7, v="x", table=ITEMS)
    shop.run()
    if stops == "has no turn":
        shop.records.append({"type": "table-pause", "table": ORDERS})
        shop.put("d", 11, 1, headers=MOVED)
        shop.run()
        shop.records.append({"type": "table-resume", "table": ORDERS})
    else:
        shop.put("d", 11, 1, headers=MOVED)
    dies(shop)
    with monkeypatch.context() as patch:
        if stops == "has no turn":
            patch.setattr(Pipeline, "_catch_up", lambda *_: [])
        else:
            patch.setattr(apply, "apply", lake_away)
        repeat(shop)
        assert entry(shop).state != tables.STREAMING
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.run()
    shop.put("c", 11, 2, headers=ARRIVED, v=UNAVAILABLE)
    shop.run()
    assert entry(shop).state == tables.STREAMING
    assert shop.values()[2] == "kept" or "[2]" in entry(shop).repair.reread_keys
