"""Rows of chunks in data files make the table that the same rows in packets make.

The same batches, events beside chunks, go into two tables by the way of `sink.apply`: in one the
chunks' rows come as packets, in the other from data files. After every batch both hold the same.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres import positions as lsns
from lakemark.errors import TableError
from lakemark.model import change_batch
from lakemark.model.change_batch import KeyColumns
from lakemark.settings.config import LakeConfig
from lakemark.sink.apply import apply
from lakemark.sink.delta import chunk_files, deletion_vectors
from lakemark.sink.delta.engines import DELETION_VECTORS
from lakemark.sink.delta.maintenance import forget
from lakemark.sink.lake_plan import LakePlan, TablePlan
from lakemark.sink.resolve import Part
from tests.kit.delta_table import actions, content
from tests.kit.log_model import PLACEHOLDER, TABLE, Entry, table_schema
from tests.kit.nightly import examples
from tests.unit.sink.test_resolve import at, parts, row

KEY = KeyColumns(("id",))
KEYS = range(8)


@dataclass
class Chunk:
    """Some rows read at `lo`; those in `lost` do not count, those in `filling` fill."""

    lo: int
    rows: dict[int, str]
    lost: set[int] = field(default_factory=set)
    filling: set[int] = field(default_factory=set)
    run: str = ""


@dataclass
class Lake:
    """One of the two tables."""

    folder: Path
    filed: bool
    deletes: str = "hard"
    batch: int = 0
    partial: bool = False
    truncated_at: bytes | None = None
    pending: int = -1

    @property
    def path(self):
        return str(self.folder / "public" / "things")

    def run(self, chunks, events):
        """One batch of events and chunks."""
        self.batch += 1
        found = [*parts(*events), *(self.part(n, chunk) for n, chunk in enumerate(chunks))]
        own = TablePlan(
            self.path, deletes=self.deletes, engine=DELETION_VECTORS, partial=self.partial,
            truncated_at=self.truncated_at, pending=self.pending,
        )  # fmt: skip
        outcome = apply(TABLE, found, LakePlan("q", self.batch, "stream", lambda _: own))
        assert not outcome.code, outcome
        self.partial |= outcome.partial
        self.pending = self.batch if outcome.pending else -1
        self.truncated_at = max(filter(None, (self.truncated_at, outcome.truncate)), default=None)
        return outcome

    def part(self, number, chunk):
        """What a shard makes of a chunk."""
        keys = pa.array([b"[%d]" % key for key in chunk.rows], pa.binary())
        rows = pa.table(
            pa.array([row(k, k, b) for k, b in chunk.rows.items()],
                     pa.struct(list(table_schema().arrow()))).flatten(),
            schema=table_schema().arrow(),
        )  # fmt: skip
        told = {"source_ts": 5, "table": TABLE, "key_columns": KEY}
        if self.filed and chunk.rows:
            lake = LakeConfig(path=str(self.folder), engine=DELETION_VECTORS, deletes=self.deletes)
            write = chunk_files.ChunkFileWriter(lake)
            file = write(TABLE, rows, key=["id"], position=at(chunk.lo), source_ts=5, run=chunk.run)
            places = pa.array(range(len(keys)), pa.int32())
            packet = change_batch.filed(keys, places, file, **told)
        else:
            packet = change_batch.reads(keys, rows.to_struct_array().combine_chunks(), **told)
        lost = np.array([key in chunk.lost for key in chunk.rows], bool)
        fill = np.array([key in chunk.filling for key in chunk.rows], bool)
        blob = change_batch.settled([(change_batch.encode(packet), lost, fill)], at(chunk.lo))
        packet, rest = change_batch.parted(blob)
        return Part(f"chunk/{self.batch}/{number}", 0, packet, filed=rest)

    def rows(self):
        """The table's rows, as delta-rs reads them."""
        if not Path(self.path, "_delta_log").exists():
            return []
        found = content(self.path)
        return sorted(found.to_pylist(), key=lambda one: one["id"])


@st.composite
def batches(draw):
    """Batches of chunks and events; positions only rise, but for chunks that are a bit behind."""
    made, held, now = [], [], 100
    for _ in range(draw(st.integers(1, 4))):
        chunks, events, held = [], held, []
        for _ in range(draw(st.integers(0, 3))):
            lo = now - draw(st.integers(0, 30))
            rows = dict.fromkeys(draw(st.sets(st.sampled_from(KEYS))), f"read {lo}")
            lost = (
                draw(st.sets(st.sampled_from(sorted(rows) or [0])))
                if draw(st.booleans())
                else set()
            )
            lost &= set(rows)
            filling = {k for k in lost if k % 2}
            chunks.append(Chunk(lo, rows, lost, filling))
        for _ in range(draw(st.integers(0, 4))):
            now += draw(st.integers(1, 9))
            key, place = draw(st.sampled_from(KEYS)), (now, now + 1)
            kind = draw(st.sampled_from("cuupdmt"))
            if kind == "m":
                other = draw(st.sampled_from([k for k in KEYS if k != key]))
                after = row(other, now, PLACEHOLDER)
                leaves = Entry("d", place, now, key=key, before=row(key), new_key=other)
                arrives = Entry("c", place, now, key=other, after=after, old_key=key)
                late = draw(st.sampled_from([None, leaves, arrives]))  # of another partition
                events += [one for one in (leaves, arrives) if one is not late]
                held += [late] if late else []
            elif kind == "t":
                events.append(Entry("t", place, now))
            elif kind == "d":
                events.append(Entry("d", place, now, key=key, before=row(key)))
            else:
                value = PLACEHOLDER if kind == "p" else f"event {now}"
                op = "u" if kind == "p" else kind
                events.append(Entry(op, place, now, key=key, after=row(key, now, value)))
        if chunks or events:
            made.append((chunks, events))
    return made


@settings(max_examples=examples(12, nightly=600), deadline=None)
@given(batches(), st.sampled_from(["hard", "soft"]))
def test_both_ways_make_the_same_table(found, deletes):
    with TemporaryDirectory() as folder:
        plain = Lake(Path(folder) / "plain", filed=False, deletes=deletes)
        filed = Lake(Path(folder) / "filed", filed=True, deletes=deletes)
        for chunks, events in found:
            one, other = plain.run(chunks, events), filed.run(chunks, events)
            assert filed.rows() == plain.rows()
            assert (one.reread, one.partial) == (other.reread, other.partial)
            assert one.rows == other.rows == len(filed.rows()) or one.rows < 0
        forget()


def test_a_value_that_is_awaited_is_asked_for_when_an_older_row_of_a_chunk_comes(tmp_path):
    """The key came from one that the table does not have; the chunk's row is older and no help."""
    place = (120, 121)
    leaves = Entry("d", place, 1, key=1, before=row(1), new_key=2)
    arrives = Entry("c", place, 1, key=2, after=row(2, 120, PLACEHOLDER), old_key=1)
    made = []
    for filed in (False, True):
        lake = Lake(tmp_path / str(filed), filed=filed)
        lake.run([], [Entry("c", (80, 81), 1, key=2, after=row(2, 80, "x")), leaves, arrives])
        lake.run([Chunk(110, {})], [])
        made.append((lake.run([Chunk(110, {2: "read", 3: "read"})], []).reread, lake.rows()))
    assert made[0] == made[1]
    assert made[0][0] == ["[2]"]


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path, filed=True)


def added(lake, version):
    return [add["path"] for add in actions(lake.path, version).get("add", [])]


def written(lake):
    return {p.name for p in Path(lake.path).glob("*.parquet")}


def test_rows_that_nothing_else_concerns_stay_in_their_file(lake):
    outcome = lake.run([Chunk(100, {1: "a", 2: "b", 3: "c"}, lost={2})], [])
    (file,) = written(lake)
    assert added(lake, 1) == [file]
    assert outcome.inserted == 2
    assert [(one["id"], one["b"]) for one in lake.rows()] == [(1, "a"), (3, "c")]


def test_rows_of_the_table_that_are_newer_stay_older_ones_go(lake):
    newer = Entry("u", (120, 121), 1, key=1, after=row(1, 1, "new"))
    older = Entry("u", (90, 91), 1, key=2, after=row(2, 1, "old"))
    lake.run([], [older, newer])
    outcome = lake.run([Chunk(100, {1: "read", 2: "read", 3: "read"})], [])
    assert {one["id"]: one["b"] for one in lake.rows()} == {1: "new", 2: "read", 3: "read"}
    assert (outcome.inserted, outcome.updated) == (1, 1)


def test_a_row_that_an_event_of_the_batch_concerns_goes_with_it(lake):
    event = Entry("u", (120, 121), 1, key=2, after=row(2, 9, "event"))
    lake.run([Chunk(100, dict.fromkeys(range(6), "read"))], [event])
    assert {one["id"]: one["b"] for one in lake.rows()}[2] == "event"
    assert len(written(lake)) == 2, "the chunk's own, and one with the event's row"


def test_a_file_whose_position_is_before_the_chunks_is_read(lake):
    part = lake.part(0, Chunk(100, {1: "a", 2: "b"}))
    part = replace(part, filed=replace(part.filed, position=at(101)))
    own = TablePlan(lake.path, engine=DELETION_VECTORS)
    apply(TABLE, [part], LakePlan("q", 1, "stream", lambda _: own))
    assert {one["_cdc"]["position"] for one in lake.rows()} == {at(101)}
    assert len(written(lake)) == 2


def test_a_file_that_the_table_has_already_is_not_added_twice(lake):
    """Other parts of it come in a later batch."""
    part = lake.part(0, Chunk(100, {1: "a", 2: "b", 3: "c", 4: "d"}, lost={3, 4}))
    own = TablePlan(lake.path, engine=DELETION_VECTORS)
    for batch, out in ((1, 0b00110000), (2, 0b11000000)):
        blobs = [(blob, bytes([out])) for blob, _ in part.filed.parts]
        some = replace(part, order=batch, filed=replace(part.filed, parts=blobs))
        assert not apply(TABLE, [some], LakePlan("q", batch, "stream", lambda _: own)).code
    assert [one["b"] for one in lake.rows()] == ["a", "b", "c", "d"]


def test_keys_that_are_there_twice_are_no_file(lake):
    write = chunk_files.ChunkFileWriter(LakeConfig(path=str(lake.folder)))
    rows = pa.table({"id": [1, 2, 1], "b": ["x", "y", "z"]})
    told = {"key": ["id"], "position": at(100), "source_ts": 5}
    assert write(TABLE, rows, **told) is None
    assert write(TABLE, rows, **{**told, "key": ["id", "b"]}) is not None


def test_chunks_of_one_run_share_no_key_and_nobody_looks(lake, monkeypatch):
    monkeypatch.setattr(change_batch.Filed, "keys", None)
    lake.run([Chunk(100, {1: "a"}, run="r"), Chunk(100, {2: "b"}, run="r")], [])
    assert [one["b"] for one in lake.rows()] == ["a", "b"]


def test_a_file_that_is_gone_makes_its_chunk_be_read_again(lake):
    part = lake.part(0, Chunk(100, {1: "a", 2: "b"}))
    for place in Path(lake.path).glob("*.parquet"):
        place.unlink()
    own = TablePlan(lake.path, engine=DELETION_VECTORS)
    with pytest.raises(TableError, match="is gone") as caught:
        apply(TABLE, [part], LakePlan("q", 1, "stream", lambda _: own))
    assert (caught.value.code, caught.value.retried) == ("chunk-file-missing", True)


def test_another_writer_that_comes_first_costs_no_row(lake, monkeypatch):
    """The commit is made again; the chunk's file is still there."""
    lake.run([], [Entry("u", (90, 91), 1, key=1, after=row(1, 1, "old"))])
    real, calls = deletion_vectors.table_log.commit, []

    def commit(*given):
        calls.append(given)
        return None if len(calls) == 1 else real(*given)

    monkeypatch.setattr(deletion_vectors.table_log, "commit", commit)
    lake.run([Chunk(100, {1: "read", 2: "read"}, lost={1})], [])
    assert len(calls) == 2
    assert {one["id"]: one["b"] for one in lake.rows()} == {1: "old", 2: "read"}


def test_tables_of_other_engines_take_the_rows_from_the_file(lake):
    part = lake.part(0, Chunk(100, {1: "a", 2: "b"}, lost={1}))
    own = TablePlan(lake.path)
    apply(TABLE, [part], LakePlan("q", 1, "stream", lambda _: own))
    assert [one["b"] for one in lake.rows()] == ["b"]
    assert len(lake.rows()[0]["_cdc"]["position"]) == lsns.WIDTH
