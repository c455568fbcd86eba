"""Topics that get partitions while their tables stream, batch by batch."""

from lakemark.state import catch_up, tables
from lakemark.state.new_partitions import follow
from lakemark.state.tables import PipelineState, TableState
from tests.kit.shop import ORDERS


def test_keys_that_moved_to_a_new_partition_come_in_the_right_order(shop):
    shop.put("c", 10, 1, v="a")
    shop.put("c", 11, 2, v="b")
    shop.run()
    # the topic gets a second partition: key 1 now goes there, its last old event is still unread
    shop.put("u", 12, 1, v="late", partition=0)
    shop.put("d", 13, 1, partition=1)
    topic = f"shop.{ORDERS}"
    shop.run({topic: {0: 2, 1: 1}})  # the batch sees the delete, not the update before it
    assert shop.values() == {2: "b"} or shop.state.tables[ORDERS].state == tables.CATCHING_UP
    shop.put("u", 14, 2, v="bb", partition=0)
    shop.run()
    assert shop.values() == {2: "bb"}
    assert shop.state.tables[ORDERS].state == tables.STREAMING


def test_a_new_partition_that_is_listed_empty_first_is_noticed_with_its_first_record(shop):
    shop.put("c", 10, 1, v="a")
    shop.run()
    topic = f"shop.{ORDERS}"
    shop.broker.topics[topic].append([])
    shop.put("u", 11, 1, v="b")
    shop.run({topic: {0: 2, 1: 0}})
    shop.put("u", 12, 1, v="late", partition=0)
    shop.put("d", 13, 1, partition=1)
    shop.run({topic: {0: 2, 1: 1}})  # the delete comes first
    shop.run()
    assert shop.values() == {}


def test_an_event_lost_on_its_way_to_an_old_partition_counts_in_a_new_one(shop):
    """The connector dies with it, and begins there again when the topic has more partitions."""
    shop.put("c", 10, 1, v="a")
    shop.put("c", 12, 2, v="b")
    shop.run()
    shop.put("c", 13, 4, v="d")  # written when the connector knew of the new partition
    shop.run()
    shop.put("u", 11, 1, v="lost before", partition=1)
    shop.put("c", 12, 3, v="c", partition=1)
    shop.run()
    shop.run()
    assert shop.values() == {1: "lost before", 2: "b", 3: "c", 4: "d"}
    assert shop.state.tables[ORDERS].repair.resnapshot == ""


def test_two_topics_of_one_table_get_partitions_and_both_are_read_old_partitions_first():
    known, ends = {"a": {0: 5}, "b": {0: 7}}, {"a": {0: 9, 1: 1}, "b": {0: 9, 1: 1}}
    entry = TableState(topics=["a", "b"])
    before = PipelineState(offsets=known, tables={"t": entry})
    state = PipelineState(batch=1, offsets=ends, tables={"t": entry})
    follow(
        state, before=before, start=known, end_offsets=lambda topics: {t: ends[t] for t in topics}
    )
    assert catch_up.slice_of(entry, ends, limit=10) == (known, {"a": {0: 9}, "b": {0: 9}})
