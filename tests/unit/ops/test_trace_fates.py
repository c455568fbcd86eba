"""The fates that a trace tells, against what the pipeline really did: each line is looked up in the
version of the table that it names.

TableBatches are the real ones over a Kafka in memory; histories are drawn by dice.
"""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.model import positions
from lakemark.model.decoding import StretchPlan
from lakemark.ops.trace import facts_rows
from lakemark.ops.trace.batches import TableBatches
from lakemark.ops.trace.facts_log import alone
from lakemark.ops.trace.facts_rows import KeyOfRow
from lakemark.ops.trace.fates import Fates, newest_first
from lakemark.ops.trace.key_records import KeyRecords, cut
from lakemark.ops.trace.traced import Fate, TracedRecord
from lakemark.sink import formats, names
from lakemark.source import raw_records
from lakemark.state import tables
from tests.kit.memory_pipeline import Broker
from tests.kit.nightly import examples
from tests.kit.shop import ORDERS, Shop, compact, schema_of

TOPIC = f"shop.{ORDERS}"
pytestmark = pytest.mark.usefixtures("letters")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return made(tmp_path)


def made(root: Path, **settings: object) -> Shop:
    """A shop whose topic has two partitions, each with a record of another row."""
    shop = Shop(root, Broker(), {ORDERS: schema_of(ORDERS, id="int8", v="text")}, dict(settings))
    for partition in range(2):
        shop.put("c", 1 + partition, 90 + partition, v="x", partition=partition)
    shop.run()
    return shop


class Trace:
    """The trace of one row of a shop, without the edges: see `trace.trace`."""

    def __init__(self, shop: Shop, key: int, *, first: int = 0, kept: int = 100) -> None:
        self.key = b"[%d]" % key
        made_by = formats.format_of(shop.config.lake)
        self.reader = made_by.reader_of(names.table_path(shop.config.lake.path, ORDERS), {})
        newest = sorted(shop.checkpoint.states)[-kept:]
        states = [shop.checkpoint.load(batch) for batch in newest]
        self.batches = TableBatches(self.reader.history(), states, shop.state.tables.get(ORDERS))
        (source,) = shop.pipeline.sources.of
        plan = StretchPlan(
            identity=source.connector.identity,
            modes=source.modes,
            schemas=shop.schemas,
            converter=source.connector.converter,
        )
        self.records: list[TracedRecord] = []
        for partition, messages in enumerate(shop.broker.topics.get(TOPIC, [])):
            own = KeyRecords(
                ORDERS, frozenset([self.key]), known=self.batches.known(TOPIC, partition)
            )
            start, end = {TOPIC: {partition: first}}, {TOPIC: {partition: len(messages)}}
            parts = shop.broker.read(start, end)
            if parts:
                whole = raw_records.of(TOPIC, partition, parts)
                for piece in cut(whole, self.batches.edges(TOPIC, partition)):
                    own.take(piece, alone(plan, frozenset([ORDERS])))
            self.records += own.found
        lake = self.reader.schema()
        self.row = facts_rows.typed_key(ORDERS, ["id"], [str(key)], {}, lake)
        hard = shop.config.lake.deletes == "hard"
        self.told = Fates(ORDERS, self.batches, hard, self._begin(self.row)).of(self.records)

    def _begin(self, row: KeyOfRow) -> dict:
        versions = [
            made.version
            for r in self.records
            if (made := self.batches.of_record(r.topic, r.partition, r.offset))
            if made.version is not None and not r.resent
        ]
        if not versions:
            return {}
        return {row.canonical: facts_rows.at_start(self.reader, row, min(versions) - 1)}

    def fates(self) -> dict[tuple[int, int], Fate]:
        """By partition and offset."""
        return {(t.what.partition, t.what.offset): t.fate for t in self.told}  # type: ignore[union-attr]

    def row_at(self, version: int) -> dict | None:
        rows = self.reader.rows_at(version, self.row.columns)
        assert rows is not None
        found = facts_rows.in_lake(rows, version)
        return {**(found.row or {}), "_cdc": found.cdc} if found.is_alive else None

    def check(self) -> None:
        """Look every line up in the version that it names."""
        for one in self.told:
            what, version = one.what, one.made.version if one.made else None
            assert isinstance(what, TracedRecord)
            if one.fate is Fate.APPLIED and not what.is_truncate:
                assert version is not None, one
                row = self.row_at(version)
                if what.op == "d":
                    assert row is None, one
                else:
                    assert row is not None, one
                    assert row["_cdc"]["position"] == what.position, one
                    assert row["v"] == what.image["v"], one
            elif one.fate is Fate.SUPERSEDED:
                assert isinstance(one.by, TracedRecord)
                assert one.by.position >= what.position
                assert self.fates()[one.by.partition, one.by.offset] is Fate.APPLIED
            elif one.fate is Fate.OLDER and not what.is_truncate:
                row = self.row_at(version or 0)
                if row is None:  # what is newer stands in the same batch, and was deleted there
                    gone = [t for t in self.told if t.fate is Fate.APPLIED and t.made == one.made]
                    assert [t.what.op for t in gone] == ["d"], one  # type: ignore[union-attr]
                else:
                    assert row["_cdc"]["position"] > what.position, one
            elif one.fate is Fate.BEFORE_TRUNCATE:
                assert one.by is not None
                assert positions.below_truncate(what.position, one.by.position)
            else:
                assert one.fate in {Fate.RESENT, Fate.NONE, Fate.APPLIED, Fate.OLDER}, one


def test_each_line_of_a_row(shop: Shop) -> None:
    shop.put("c", 10, 1, v="a")
    shop.put("c", 11, 2, v="b")
    shop.run()
    shop.put("u", 12, 1, v="b")
    shop.put("u", 13, 1, v="c")
    shop.run()
    shop.put("u", 12, 1, v="b")  # again, as a connector does that was started anew
    shop.put("d", 14, 1)
    shop.broker.put(TOPIC, 0, compact({"id": 1}), None)
    shop.run()
    shop.put("c", 15, 1, v="d")
    trace = Trace(shop, 1)
    assert trace.fates() == {
        (0, 1): Fate.APPLIED,
        (0, 3): Fate.SUPERSEDED,
        (0, 4): Fate.APPLIED,
        (0, 5): Fate.RESENT,
        (0, 6): Fate.APPLIED,
        (0, 7): Fate.NONE,
        (0, 8): Fate.WAITING,
    }
    order = [one.what.offset for one in newest_first(trace.told)]  # type: ignore[union-attr]
    assert order == [8, 7, 6, 4, 5, 3, 1]
    made = {one.what.offset: one.made for one in trace.told}  # type: ignore[union-attr]
    assert made[8] is None
    assert [made[at].batch for at in (1, 3, 4, 5, 6, 7)] == [1, 2, 2, 3, 3, 3]  # type: ignore[union-attr]
    assert made[3] == made[4]


def test_what_cannot_be_decoded_is_of_the_row_that_its_key_says(shop: Shop) -> None:
    shop.put("c", 10, 1, v="a")
    shop.broker.put(TOPIC, 0, compact({"id": 1}), b'{"before":')
    shop.broker.put(TOPIC, 0, compact({"id": 2}), b'{"before":')
    shop.run()
    (bad,) = [one for one in Trace(shop, 1).told if one.fate is Fate.DEAD_LETTER]
    assert isinstance(bad.what, TracedRecord)
    assert (bad.what.offset, bad.what.bad) == (2, "invalid-json")


def test_a_key_change_names_the_other_key(shop: Shop) -> None:
    shop.put("c", 10, 1, v="a")
    shop.run()
    header = "__debezium.newkey", compact({"id": 7})
    shop.put("d", 11, 1, headers=[header])
    shop.put("c", 11, 7, v="a", headers=[("__debezium.oldkey", compact({"id": 1}))])
    shop.run()
    one, seven = Trace(shop, 1), Trace(shop, 7)
    assert [record.other_key for record in one.records] == [b"", b"[7]"]
    assert [record.other_key for record in seven.records] == [b"[1]"]
    one.check()
    seven.check()


def test_a_truncate_and_what_is_below_it(shop: Shop) -> None:
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.put("t", 20, 1)
    shop.put("c", 15, 1, v="late", partition=1)
    shop.put("c", 21, 1, v="new")
    shop.run()
    trace = Trace(shop, 1)
    assert trace.fates() == {
        (0, 1): Fate.APPLIED,
        (0, 2): Fate.APPLIED,
        (1, 1): Fate.BEFORE_TRUNCATE,
        (0, 3): Fate.APPLIED,
    }
    trace.check()


def test_what_another_partition_brings_late_is_older_than_the_row(shop: Shop) -> None:
    shop.put("c", 10, 1, v="a")
    shop.put("u", 20, 1, v="b", partition=1)
    shop.run({TOPIC: {0: 2, 1: 2}})
    shop.put("u", 15, 1, v="late")
    shop.run()
    trace = Trace(shop, 1)
    assert trace.fates()[0, 2] is Fate.OLDER
    (late,) = [one for one in trace.told if one.fate is Fate.OLDER]
    assert late.by is not None
    assert late.by.partition == 1  # type: ignore[union-attr]
    trace.check()


def test_what_a_table_skips_is_left_out(shop: Shop) -> None:
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.put("u", 11, 1, v="b")
    shop.run()
    assert Trace(shop, 1).fates()[0, 2] is Fate.WAITING
    skip = {"type": "table-skip", "table": ORDERS, "offsets": {TOPIC: {"0": 3}}}
    shop.records.append(skip)
    shop.run()
    shop.put("u", 12, 1, v="c")
    shop.run()
    assert shop.state.tables[ORDERS].state == tables.STREAMING
    trace = Trace(shop, 1)
    assert trace.fates() == {(0, 1): Fate.APPLIED, (0, 2): Fate.LEFT_OUT, (0, 3): Fate.APPLIED}


def test_a_table_that_caught_up_has_it_from_the_catching_up(shop: Shop) -> None:
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.put("u", 11, 1, v="b")
    shop.run()
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.run()
    trace = Trace(shop, 1)
    assert trace.fates()[0, 2] is Fate.APPLIED
    (told,) = [one for one in trace.told if one.what.offset == 2]  # type: ignore[union-attr]
    assert told.made is not None
    assert told.made.step == "catchup"
    trace.check()


def test_where_nothing_tells_of_commits_they_are_not_known(shop: Shop) -> None:
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.put("u", 11, 1, v="b")
    shop.run()
    trace = Trace(shop, 1)
    silent = TableBatches([], [], None)
    told = Fates(ORDERS, silent).of(trace.records)
    assert [(one.fate, one.made) for one in told] == [(Fate.APPLIED, None)] * 2


def test_a_story_may_begin_in_the_midst(shop: Shop) -> None:
    shop.put("c", 10, 1, v="a")
    shop.put("u", 30, 1, v="b", partition=1)
    shop.run()
    shop.put("u", 20, 1, v="late")
    shop.run()
    trace = Trace(shop, 1, first=2, kept=1)
    assert trace.fates() == {(0, 2): Fate.OLDER}, "the row that was there tells"


def play(shop: Shop, dice: random.Random) -> None:
    """A history of three keys, in batches: with records that come again, late, or elsewhere."""
    place, alive, sent = 10, set[int](), list[tuple[str, int, int, int, str]]()
    for _ in range(dice.randrange(1, 5)):
        for _ in range(dice.randrange(6)):
            key, partition, again = dice.randrange(3), dice.randrange(2), dice.random() < 0.2
            if again and sent:
                op, at, which, partition, value = dice.choice(sent)
                shop.put(op, at, which, partition=partition, v=value)
                continue
            place += 1
            if dice.random() < 0.1:
                shop.put("t", place, key, partition=partition)
                alive.clear()
                continue
            op = dice.choice("ud") if key in alive else "c"
            alive ^= {key} if op in "cd" else set()
            shop.put(op, place, key, partition=partition, v=f"v{place}")
            sent.append((op, place, key, partition, f"v{place}"))
        shop.run()


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(24, nightly=1200), deadline=None)
def test_any_history(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    dice = random.Random(seed)
    shop = made(tmp_path_factory.mktemp("shop"))
    play(shop, dice)
    if ORDERS not in shop.state.tables:
        return
    for key in range(3):
        trace = Trace(shop, key)
        if trace.reader.schema() is None:
            continue
        assert len(trace.told) == len(trace.records)
        trace.check()
