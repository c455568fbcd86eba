"""One table, one batch: the order of effects, with the real engine."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.errors import TableError
from lakemark.model.commit_note import TRUNCATES, CommitNote
from lakemark.sink import formats
from lakemark.sink.apply import apply
from lakemark.sink.delta import delta_rs, maintenance, pending
from lakemark.sink.delta.engines import ENGINE, SPARK_MERGE
from lakemark.sink.delta.maintenance import Policy
from lakemark.sink.lake_plan import LakePlan, TablePlan
from lakemark.sink.names import CDC, table_path
from lakemark.sink.resolve import Part
from lakemark.sink.row_images import cdc_type
from tests.kit.log_model import TABLE, Entry
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.shop import ORDERS, Shop, schema_of
from tests.unit.sink.test_resolve import at, parts, row
from tests.unit.sink.test_resolve_snapshots import PLACEHOLDER


def test_upkeep_joins_small_files_and_leaves_what_waits_beside_the_table(shop, monkeypatch):
    for name in ("wants_upkeep", "maintain"):
        eager = partial(getattr(maintenance, name), policy=Policy(spare_files=3))
        monkeypatch.setattr(maintenance, name, eager)
    path = table_path(shop.config.lake.path, ORDERS)
    shop.put("c", 1, 1, v="a")
    shop.run()
    halves = pending.Halves(path, "query-0000", {})
    halves.save(pa.table({"x": [1]}), 99, "stream")
    for lsn in range(2, 12):
        shop.put("c", lsn, lsn, v="a")
        shop.run()
    table = delta_rs.open_table(path)
    assert table is not None
    assert len(table.file_uris()) <= 5
    assert len(shop.values()) == 11
    assert halves.load(99, "stream") is not None


def test_a_batch_that_is_repeated_after_its_commit_asks_for_the_same_keys_again(tmp_path):
    """Also for those that only what earlier batches left makes doubtful."""
    path = str(tmp_path / "t")

    def batch(number, found, **known):
        own = TablePlan(path, partial=True, **known)
        return apply(TABLE, found, LakePlan("q", number, "stream", lambda _: own))

    arrived = Entry("c", (130, 131), 1, key=2, after=row(2, 1, PLACEHOLDER), old_key=1)
    assert batch(1, parts(arrived)).pending
    later = parts(Entry("c", (140, 141), 1, key=9, after=row(9, 1, "b")))
    known = {"pending": 1, "settled": at(200)}  # the other half will not come
    first = batch(2, later, **known)
    assert (first.skipped, first.reread) == (False, ["[2]"])
    again = batch(2, later, **known)
    assert again.skipped
    assert set(first.reread) <= set(again.reread)


def test_what_waited_is_deleted_once_nobody_needs_it(shop):
    path = table_path(shop.config.lake.path, ORDERS)

    def files():
        return sorted(p.name for p in Path(path, "_lakemark/pending").glob("*.arrow"))

    shop.put("c", 1, 1, v="a")
    shop.run()
    gone = [("__debezium.newkey", b'{"id":2}')]
    shop.put("d", 2, 1, headers=gone)  # the other half comes later
    shop.run()
    assert len(files()) == 1
    shop.put("c", 3, 7, v="b")
    shop.run()
    assert len(files()) == 2, "a batch that is repeated needs the file before"
    for key in (8, 9):  # the position is settled: nothing waits any more
        assert len(files()) <= 2
        shop.put("c", key, key, v="c")
        shop.run()
    assert files() == []


def test_an_older_checkpoint_beside_a_newer_table_stops_the_table(tmp_path):
    """Its batches have the numbers of others that the table has: none may be left out."""
    path = str(tmp_path / "t")

    def batch(number, key):
        found = parts(Entry("c", (100 + key, 1), 1, key=key, after=row(key, 1, "b")))
        return apply(TABLE, found, LakePlan("q", number, "stream", lambda _: TablePlan(path)))

    for number in range(3):
        batch(number, number)
    with pytest.raises(TableError) as error:
        batch(1, 7)
    assert error.value.code == "checkpoint-older"
    assert batch(2, 2).skipped, "the newest one is repeated"
    assert batch(3, 3).inserted == 1


def test_changes_with_different_types_name_the_column_and_the_way_on(tmp_path):
    """Records that carry schemas may have both types in one batch."""
    path = str(tmp_path / "t")
    found = parts(Entry("c", (100, 1), 1, key=1, after=row(1, 1, "b")))
    other = parts(Entry("c", (101, 1), 1, key=2, after=row(2, 1, "c")))
    packet = other[0].packet
    rows = packet.column("row").combine_chunks()
    fields = [f.with_type(pa.int32()) if f.name == "b" else f for f in rows.type]
    cells = [pa.nulls(len(rows), f.type) if f.name == "b" else rows.field(f.name) for f in fields]
    at_row = packet.schema.get_field_index("row")
    changed = packet.set_column(at_row, "row", pa.StructArray.from_arrays(cells, fields=fields))
    two = [*found, Part("p", 2, changed)]
    with pytest.raises(TableError) as caught:
        apply(TABLE, two, LakePlan("q", 1, "stream", lambda _: TablePlan(path)))
    assert caught.value.code == "schema-incompatible"
    assert path in caught.value.hint
    assert f"lakemark table skip {TABLE}" in caught.value.hint


def test_another_process_that_commits_the_same_batch_first_keeps_nothing_out(tmp_path, monkeypatch):
    """A process that was taken for dead: what it had in the batch need not be what we have."""
    path, real, theirs = str(tmp_path / "t"), delta_rs.merge, []

    def batch(number, key):
        found = parts(Entry("c", (100 + key, 1), 1, key=key, after=row(key, 1, "b")))
        found = [replace(part, digest=key) for part in found]
        return apply(TABLE, found, LakePlan("q", number, "stream", lambda _: TablePlan(path)))

    def overtaken(*arguments, **more):
        if not theirs:
            theirs.append(1)
            batch(1, 8)
        return real(*arguments, **more)

    batch(0, 0)
    monkeypatch.setattr(delta_rs, "merge", overtaken)
    assert batch(1, 9).inserted == 1
    found = pa.table(DeltaTable(path).to_pyarrow_table())
    assert sorted(found.column("id").to_pylist()) == [0, 8, 9]
    assert batch(1, 9).skipped
    assert not batch(1, 8).skipped, "the last content counts: others may have undone this one"


@pytest.mark.parametrize("digests", [(1, 2), (2, 1), (3, 3)])
def test_a_truncate_is_not_left_out_though_the_batch_had_another_one(
    tmp_path, monkeypatch, digests
):
    """The process died between the first one and its merge."""
    path = str(tmp_path / "t")

    def batch(number, *entries, digest=0):
        found = [replace(part, digest=digest) for part in parts(*entries)]
        return apply(TABLE, found, LakePlan("q", number, "stream", lambda _: TablePlan(path)))

    def dies(*_, **__):
        raise DiedError

    rows = [Entry("c", (at_, 1), 1, key=at_, after=row(at_, 1, "b")) for at_ in (110, 120, 130)]
    batch(0, *rows)
    first, second = (Entry("t", (at_, 1), 1) for at_ in (115, 125))
    created = Entry("c", (140, 1), 1, key=140, after=row(140, 1, "b"))
    with monkeypatch.context() as patch:
        patch.setattr(delta_rs, "merge", dies)
        with pytest.raises(DiedError):
            batch(1, first, created, digest=digests[0])
    batch(1, first, second, created, digest=digests[1])
    found = pa.table(DeltaTable(path).to_pyarrow_table())
    assert sorted(found.column("id").to_pylist()) == [130, 140]
    assert batch(1, first, second, created, digest=digests[1]).skipped


def test_a_truncate_of_a_table_that_never_had_a_row_makes_none(tmp_path):
    path = str(tmp_path / "t")
    found = parts(Entry("t", (100, 1), 1))
    outcome = apply(TABLE, found, LakePlan("q", 1, "stream", lambda _: TablePlan(path)))
    assert (outcome.rows, outcome.truncate) == (0, at(100))
    assert not DeltaTable.is_deltatable(path)


def test_a_table_of_an_engine_from_which_nothing_leads_back_is_not_written(tmp_path):
    """Though the rows would go into it as it is."""
    path = str(tmp_path / "t")

    def batch(number):
        found = parts(Entry("c", (100 + number, 1), 1, key=number, after=row(number, 1, "b")))
        return apply(TABLE, found, LakePlan("q", number, "stream", lambda _: TablePlan(path)))

    batch(0)
    properties = {ENGINE: SPARK_MERGE}
    DeltaTable(path).alter.set_table_properties(properties, raise_if_not_exists=False)
    version = DeltaTable(path).version()
    with pytest.raises(TableError) as refused:
        batch(1)
    assert (refused.value.code, DeltaTable(path).version()) == ("engine-mismatch", version)


@pytest.mark.parametrize("engine", ["task-merge", "deletion-vectors", SPARK_MERGE])
def test_the_driver_finishes_what_the_task_did_not_merge(tmp_path, engine):
    found = parts(Entry("c", (100, 1), 1, key=1, after=row(1, 1, "b")))
    plan = LakePlan("q", 1, "stream", lambda _: TablePlan(str(tmp_path / "t"), engine=engine))
    outcome = apply(TABLE, found, plan)
    staged = engine == SPARK_MERGE
    assert (outcome.unfinished, bool(outcome.needs), outcome.inserted) == (
        staged,
        staged,
        not staged,
    )


def test_a_table_made_anew_that_died_before_its_first_row_begins_anew(tmp_path):
    """It has two versions already, and nothing of what it should have."""
    path = str(tmp_path / "t")
    some = pa.schema([("id", pa.int64()), ("a", pa.int32()), (CDC, cdc_type(deletes="hard"))])
    delta_rs.ensure(path, some, key=["id"], table=TABLE)
    delta_rs.ensure(path, some.append(pa.field("more", pa.string())), key=["id"], table=TABLE)
    own = TablePlan(path, written=True, recorded=5, recorded_as="stream", key=("id",))
    found = parts(Entry("c", (130, 131), 1, key=1, after=row(1, 1, "b")))
    outcome = apply(TABLE, found, LakePlan("q", 6, "stream", lambda _: own))
    assert (outcome.made, outcome.inserted) == (True, 1)


@pytest.mark.parametrize("lost", [False, True])
def test_where_halves_are_lost_no_row_is_sure_of_what_it_has(tmp_path, lost):
    path = str(tmp_path / "t")

    def batch(number, *entries, **known):
        own = TablePlan(path, partial=True, written=number > 1, key=("id",), **known)
        return apply(TABLE, parts(*entries), LakePlan("q", number, "stream", lambda _: own))

    batch(1, Entry("c", (110, 111), 1, key=1, after=row(1, 1, "b")))
    moves = (
        Entry("d", (120, 121), 1, key=1, before=row(1), new_key=2),
        Entry("c", (120, 121), 1, key=2, after=row(2, 1, PLACEHOLDER), old_key=1),
    )
    outcome = batch(2, *moves, settled=at(50), pending=0 if lost else -1)
    assert outcome.lost == lost
    assert outcome.reread == (["[2]"] if lost else [])


@pytest.mark.parametrize("engine", ["task-merge", "deletion-vectors"])
def test_a_commit_says_which_batch_made_it_and_of_what(tmp_path, cache, letters, engine):
    schemas = {ORDERS: schema_of(ORDERS, id="int8", v="text")}
    shop = Shop(tmp_path, Broker(), schemas, {"engine": engine})
    topic = f"shop.{ORDERS}"
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.put("u", 11, 1, v="b")
    shop.put("t", 12, 1)
    shop.put("c", 13, 2, v="c")
    shop.run()
    reader = formats.format_of(shop.config.lake).reader_of(
        table_path(str(tmp_path / "lake"), ORDERS), {}
    )
    notes = [commit.note for commit in reader.history() if commit.note is not None]
    assert notes == [
        CommitNote(1, "stream", {topic: {0: (1, 4)}}),
        CommitNote(1, f"stream{TRUNCATES}", {topic: {0: (1, 4)}}),
        CommitNote(0, "stream", {topic: {0: (0, 1)}}),
    ]
    assert [note.truncates for note in notes] == [False, True, False]
