"""Merging tasks compare the rows of verify runs with a table as it was before the batch."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakemark import tasks
from lakemark.connectors.postgres import positions as lsns
from lakemark.errors import DependencyError
from lakemark.model import change_batch
from lakemark.model.change_batch import KeyColumns
from lakemark.model.comparisons import ComparedChunk, Comparison
from lakemark.model.control import REPAIR, REPORT
from lakemark.reconcile.outputs import COMPARED, COMPARISON
from lakemark.sink import formats
from lakemark.sink.delta.engines import DELETION_VECTORS, TASK_MERGE
from lakemark.sink.lake_plan import LakePlan, TableOutcome, TablePlan
from tests.kit.shop import ORDERS

KEY = KeyColumns(("id",))
EVENTS = pa.schema([field for field in tasks.DECODED if field.name != "shard"])


def at(n: int) -> bytes:
    return lsns.pack(0, n, n)


def packet(rows: dict[int, str], position: int, *, absent: Sequence[int] = ()) -> pa.Table:
    """Rows of a chunk that has this position."""
    found = []
    for numbers, texts, make in (
        ([*rows], [*rows.values()], change_batch.reads), ([*absent], None, change_batch.absences)
    ):  # fmt: skip
        columns = {"id": pa.array(numbers, pa.int64())}
        if texts is not None:
            columns["v"] = pa.array(texts, pa.string())
        images = pa.StructArray.from_arrays([*columns.values()], names=[*columns])
        keys = pa.array([b"[%d]" % n for n in numbers], pa.binary())
        found.append(make(keys, images, source_ts=1, table=ORDERS, key_columns=KEY))
    whole = pa.concat_tables(found, promote_options="permissive")
    return change_batch.as_of(whole.replace_schema_metadata(found[0].schema.metadata), at(position))


def told(kind: str, blob: bytes, source: str = "chunk/1") -> dict:
    return {"kind": kind, "table": ORDERS, "source": source, "first": 0, "slot": 0, "blob": blob}


def comparison(rows: dict[int, str], *, verify=REPORT, absent=(), newer=0, values=False) -> dict:
    one = Comparison(
        "r1", ORDERS, 0, 1, 0, at(50), verify,
        change_batch.encode(packet(rows, 50, absent=absent)), newer, values,
    )  # fmt: skip
    return told(COMPARISON, msgspec.msgpack.encode(one))


class Lake:
    """A table, and the batches of a query that write it."""

    def __init__(self, path, engine: str, deletes: str = "hard") -> None:
        self.path, self.engine, self.deletes = str(path), engine, deletes
        self.written = False

    def batch(self, number: int, *rows: dict, stopped=frozenset(), publish=None):
        own = TablePlan(
            self.path, deletes=self.deletes, engine=self.engine, written=self.written, key=("id",)
        )
        plan = LakePlan("q", number, "stream", lambda _: own, {ORDERS: own}, stopped=stopped)
        (said,) = tasks.merge([pa.RecordBatch.from_pylist([*rows], EVENTS)], plan, publish)
        self.written = True
        found = said.to_pylist()
        return (
            [
                msgspec.msgpack.decode(r["blob"], type=ComparedChunk)
                for r in found
                if r["kind"] == COMPARED
            ],
            [
                msgspec.msgpack.decode(r["blob"], type=TableOutcome)
                for r in found
                if r["kind"] == tasks.OUTCOME
            ],
        )

    def rows(self) -> dict[int, str]:
        reader = formats.format_named("delta").reader_of(self.path, {})
        found = [row for piece in reader.rows(["id", "v"]) for row in piece.to_pylist()]
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: row["v"] for row in found}


@pytest.fixture(params=[TASK_MERGE, DELETION_VECTORS])
def lake(request, tmp_path) -> Lake:
    found = Lake(tmp_path / "t", request.param)
    found.batch(0, told(tasks.PACKET, change_batch.encode(packet({1: "a", 2: "b", 3: "c"}, 10))))
    return found


def kinds(one: ComparedChunk) -> list[tuple[str, str]]:
    return [(found.kind, found.key) for found in one.findings]


UNLIKE = {1: "a", 2: "B", 4: "d"}, (3, 5)
FOUND = [("differing", "[2]"), ("missing", "[4]"), ("extra", "[3]")]
BEFORE, AFTER = {1: "a", 2: "b", 3: "c"}, {1: "a", 2: "B", 4: "d"}


def test_what_differs_is_reported_and_nothing_is_written(lake):
    rows, absent = UNLIKE
    (one,), outcomes = lake.batch(1, comparison(rows, absent=absent, newer=2, values=True))
    assert (kinds(one), one.rows, one.newer, one.code) == (FOUND, 5, 2, "")
    assert (one.run, one.table, one.chunk, one.attempt, one.shard) == ("r1", ORDERS, 0, 1, 0)
    differing, missing, extra = one.findings
    assert differing.columns == ("v",)
    assert (differing.source, differing.kept) == ('{"id":2,"v":"B"}', '{"id":2,"v":"b"}')
    assert (missing.source, missing.kept) == ('{"id":4,"v":"d"}', "")
    assert (extra.source, extra.kept) == ("", '{"id":3,"v":"c"}')
    assert outcomes == []
    assert lake.rows() == BEFORE


def test_rows_that_lost_and_could_fill_others_are_not_compared(lake):
    blob = change_batch.encode(packet({1: "A", 2: "B"}, 50))
    lost = np.array([True, False])
    rows = change_batch.settled([(blob, lost, lost)], at(50))
    one = Comparison("r1", ORDERS, 0, 1, 0, at(50), REPORT, rows, 1)
    (found,), _ = lake.batch(1, told(COMPARISON, msgspec.msgpack.encode(one)))
    assert (kinds(found), found.rows, found.newer) == ([("differing", "[2]")], 1, 1)


def test_values_are_told_only_where_they_are_asked_for(lake):
    (one,), _ = lake.batch(1, comparison({2: "B"}))
    assert [(found.source, found.kept) for found in one.findings] == [("", "")]


def test_what_differs_is_mended_and_found_again_by_a_batch_that_is_repeated(lake):
    rows, absent = UNLIKE
    asked = comparison(rows, absent=absent, verify=REPAIR)
    (one,), (outcome,) = lake.batch(1, asked)
    assert (kinds(one), outcome.code) == (FOUND, "")
    assert (outcome.inserted, outcome.updated, outcome.deleted) == (1, 1, 1)
    assert lake.rows() == AFTER
    (again,), (outcome,) = lake.batch(1, asked)
    assert (kinds(again), outcome.skipped) == (FOUND, True)
    (later,), outcomes = lake.batch(2, asked)
    assert (kinds(later), outcomes, lake.rows()) == ([], [], AFTER)


class Output:
    """The output topic of the table: what goes out as rows of snapshots do."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, str]] = []

    def of(self, table, survivors, parts):
        assert table == ORDERS
        self.rows += [
            (row["key"], row["action"]) for packet in survivors for row in packet.to_pylist()
        ]
        return self

    def __call__(self, truncate, content):
        assert truncate == b""

    def completed(self, rows, content):
        raise AssertionError("no event has left a row incomplete")


@pytest.mark.parametrize("verify", [REPORT, REPAIR])
def test_what_is_mended_goes_to_the_output_topic_and_nothing_else(lake, verify):
    rows, absent = UNLIKE
    output = Output()
    lake.batch(1, comparison(rows, absent=absent, verify=verify), publish=output)
    mended = [(b"[2]", "upsert"), (b"[4]", "upsert"), (b"[3]", "delete")]
    assert output.rows == (mended if verify == REPAIR else [])


def test_events_of_the_batch_are_no_difference_and_win(lake):
    """Keys that they touch are none of the rows: the shard has taken them out."""
    events = told(tasks.PACKET, change_batch.encode(packet({3: "new"}, 60)), "shop.orders/0")
    (one,), _ = lake.batch(1, events, comparison({1: "a", 2: "B"}, verify=REPAIR, newer=1))
    assert kinds(one) == [("differing", "[2]")]
    assert lake.rows() == {1: "a", 2: "B", 3: "new"}


def test_a_row_that_the_lake_has_from_a_newer_event_is_left_alone(lake):
    lake.batch(1, told(tasks.PACKET, change_batch.encode(packet({1: "newer"}, 70))))
    (one,), outcomes = lake.batch(2, comparison({1: "a"}, absent=[2], verify=REPAIR, newer=1))
    assert (kinds(one), one.rows, one.newer) == ([("extra", "[2]")], 1, 2)
    assert lake.rows() == {1: "newer", 3: "c"}
    assert [outcome.deleted for outcome in outcomes] == [1]


def test_rows_that_are_marked_deleted(tmp_path):
    lake = Lake(tmp_path / "t", TASK_MERGE, "soft")
    lake.batch(0, told(tasks.PACKET, change_batch.encode(packet({1: "a"}, 10, absent=[2]))))
    (one,), _ = lake.batch(1, comparison({1: "a", 2: "b"}, verify=REPAIR))
    assert kinds(one) == [("missing", "[2]")]
    assert lake.rows() == {1: "a", 2: "b"}
    (one,), _ = lake.batch(2, comparison({}, absent=[1, 2], verify=REPAIR))
    assert kinds(one) == [("extra", "[1]"), ("extra", "[2]")]
    assert lake.rows() == {}


def test_a_table_that_is_not_there_lacks_all_rows(tmp_path):
    lake = Lake(tmp_path / "t", TASK_MERGE)
    (one,), outcomes = lake.batch(0, comparison({1: "a"}, absent=[2]))
    assert (kinds(one), outcomes) == ([("missing", "[1]")], [])
    _, (outcome,) = lake.batch(0, comparison({1: "a"}, absent=[2], verify=REPAIR))
    assert (outcome.code, lake.rows()) == ("", {1: "a"})


def test_nothing_is_compared_with_a_table_that_does_not_stream_or_stops_in_the_batch(lake):
    assert lake.batch(1, comparison({2: "B"}), stopped=frozenset([ORDERS])) == ([], [])
    stop = told(tasks.STOP, b"", "shop.orders/0")
    assert lake.batch(1, stop, comparison({2: "B"}, verify=REPAIR)) == ([], [])
    assert lake.rows() == BEFORE


def test_rows_that_are_there_twice_are_said_and_left_as_they_are(lake):
    table = DeltaTable(lake.path)
    twin = pa.table(table.scan(predicate="id = 1"))
    write_deltalake(table, twin.cast(pa.schema(table.schema().to_arrow())), mode="append")
    (one,), outcomes = lake.batch(1, comparison({1: "a", 2: "b", 3: "c"}, verify=REPAIR))
    assert (kinds(one), outcomes) == ([("duplicate", "[1]")], [])


def test_a_lake_that_is_away_ends_the_comparison_and_not_the_batch(lake, monkeypatch):
    def away(*_, **__):
        raise DependencyError("the lake is away", code="lake-away", hint="wait")

    monkeypatch.setattr("lakemark.sink.verification._before", away)
    (one,), outcomes = lake.batch(1, comparison({2: "B"}, newer=1))
    assert (one.code, one.reason, one.hint, one.retried) == (
        "lake-away",
        "the lake is away",
        "wait",
        True,
    )
    assert (one.rows, one.newer, one.findings, outcomes) == (0, 1, [], [])


def test_values_that_the_table_cannot_have_are_said(lake, monkeypatch):
    rows = packet({1: "a"}, 50)
    text = pa.StructArray.from_arrays([pa.array(["x"]), pa.array(["a"])], names=["id", "v"])
    blob = change_batch.encode(change_batch.with_column(rows, "row", text))
    one = Comparison("r1", ORDERS, 0, 1, 0, at(50), REPAIR, blob)
    (found,), outcomes = lake.batch(1, told(COMPARISON, msgspec.msgpack.encode(one)))
    assert (found.code, found.retried, outcomes) == ("not-comparable", False, [])
