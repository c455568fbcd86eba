"""The fates of chunks that had a row: against its events, by the shards' own rule."""

from dataclasses import replace

import pyarrow as pa
import pytest

from lakemark.connectors.postgres import positions as lsns
from lakemark.model import change_batch, net_change
from lakemark.model.change_batch import KeyColumns
from lakemark.model.commit_note import CommitNote
from lakemark.ops.trace.batches import TableBatches
from lakemark.ops.trace.fates import Fates
from lakemark.ops.trace.traced import (
    Fate,
    Told,
    Traced,
    TracedChunk,
    TracedRecord,
    TracedSweep,
    TracedWindow,
)
from lakemark.sink.table_format import TableCommit

T, KEY, ATTEMPT = "public.orders", b"[1]", 7


def at(place: int) -> bytes:
    return lsns.pack(0, place, place)


def packet(*keys: bytes, absent: bool = False) -> bytes:
    make = change_batch.absences if absent else change_batch.reads
    ids = [int(key.strip(b"[]")) for key in keys]
    rows = pa.StructArray.from_arrays([pa.array(ids, pa.int64())], ["id"])
    named = pa.array([*keys], pa.binary())
    found = make(named, rows, source_ts=0, table=T, key_columns=KeyColumns(("id",)))
    return change_batch.encode(found)


def chunk(*, is_row: bool = True) -> TracedChunk:
    low, high = TracedWindow("lo", at(20)), TracedWindow("hi", at(30))
    blob = packet(b"[1]", b"[2]", absent=not is_row)
    return TracedChunk("run", 0, ATTEMPT, KEY, 1, is_row, blob, low, high)


def event(op: str, place: int, *, offset: int = 0) -> TracedRecord:
    make = net_change.delete if op == "d" else None
    step = (
        make(position=at(place), source_ts=0, row=0)
        if make
        else net_change.upsert(op=op, position=at(place), source_ts=0, row=0)
    )
    return TracedRecord("t", 0, offset, KEY, op, at(place), step=step, image={"id": 1})


def history(*batches: tuple[int, int], chunk_in: int = -1) -> list[TableCommit]:
    """Commits that have these offsets of the topic, the newest first."""
    found = [
        TableCommit(
            n, 1, "MERGE", CommitNote(n, "stream", {"t": {0: span}}, [ATTEMPT] * (n == chunk_in))
        )
        for n, span in enumerate(batches)
    ]
    return found[::-1]


def fates(found: list[Traced], commits: list[TableCommit]) -> list[Told]:
    return Fates(T, TableBatches(commits, [], None)).of(found)


def of_chunk(found: list[Traced], commits: list[TableCommit]) -> Told:
    (told,) = [one for one in fates(found, commits) if isinstance(one.what, TracedChunk)]
    return told


def test_a_row_that_no_event_has_touched_counts() -> None:
    told = of_chunk([event("c", 10), chunk()], history((0, 1), (1, 2), chunk_in=1))
    assert told.fate is Fate.APPLIED
    assert told.made is not None
    assert (told.made.batch, told.made.version) == (1, 1)


@pytest.mark.parametrize(("op", "fate"), [("u", Fate.FILLS), ("c", Fate.LOST), ("d", Fate.LOST)])
def test_a_newer_event_counts_instead(op: str, fate: Fate) -> None:
    newer = event(op, 25, offset=1)
    told = of_chunk([event("c", 10), newer, chunk()], history((0, 1), (1, 2), chunk_in=1))
    assert (told.fate, told.by) == (fate, newer)


def test_an_event_that_the_shard_had_not_seen_does_not_beat_it() -> None:
    """It stands behind the close row, in a later batch: the table had the chunk's row meanwhile."""
    newer = event("u", 35, offset=1)
    told = fates([event("c", 10), newer, chunk()], history((0, 1), (5, 6), (1, 2), chunk_in=1))
    by_what = {type(one.what).__name__ + str(one.what.position): one for one in told}
    assert (
        of_chunk([event("c", 10), newer, chunk()], history((0, 1), (5, 6), (1, 2), chunk_in=1)).fate
        is Fate.APPLIED
    )
    assert len(by_what) == 3
    assert [one.fate for one in told] == [Fate.APPLIED] * 3


def test_a_close_that_is_no_row_in_the_log_may_come_before_the_events_that_are_up_to_it() -> None:
    """The event is of a later batch: the table had the chunk's row meanwhile."""
    newer = event("c", 25, offset=5)
    read = [event("c", 10), newer, replace(chunk(), placed=True)]
    told = of_chunk(read, history((0, 1), (1, 2), (5, 6), chunk_in=1))
    assert (told.fate, told.made.version if told.made else None) == (Fate.APPLIED, 1)
    assert of_chunk(read, history((0, 1), (5, 6), chunk_in=1)).fate is Fate.LOST
    assert of_chunk(read, history((0, 1), (5, 6))).fate is Fate.UNKNOWN


def test_an_event_of_the_same_batch_beats_it_also_behind_the_close_row() -> None:
    newer = event("u", 35, offset=1)
    told = of_chunk([event("c", 10), newer, chunk()], history((0, 1), (1, 2), chunk_in=1))
    assert (told.fate, told.by) == (Fate.FILLS, newer)


def test_a_key_without_a_row_is_deleted() -> None:
    told = fates([event("c", 10), chunk(is_row=False)], history((0, 1), (5, 6), chunk_in=1))
    assert [one.fate for one in told] == [Fate.APPLIED, Fate.APPLIED]


@pytest.mark.parametrize(
    ("more", "fate"),
    [
        ({"void": "another reading is made"}, Fate.VOID),
        ({"verify": "report"}, Fate.COMPARED),
        ({"lo": TracedWindow("lo")}, Fate.UNKNOWN),
        ({"lo": None}, Fate.UNKNOWN),
    ],
)
def test_a_reading_that_does_not_count_or_of_which_nothing_tells(more: dict, fate: Fate) -> None:
    assert of_chunk([event("c", 10), replace(chunk(), **more)], history((0, 1))).fate is fate


def test_what_a_commit_has_counts_whatever_was_said_later() -> None:
    told = of_chunk([replace(chunk(), void="its coordinator is gone")], history((0, 1), chunk_in=0))
    assert told.fate is Fate.APPLIED


def test_an_older_event_that_comes_late_is_older_than_the_chunk() -> None:
    late = event("u", 15, offset=1)
    told = fates([late, chunk()], history((5, 6), (1, 2), chunk_in=0))
    assert [(one.fate, isinstance(one.what, TracedChunk)) for one in told] == [
        (Fate.APPLIED, True), (Fate.OLDER, False),
    ]  # fmt: skip
    assert isinstance(told[1].by, TracedChunk)


def test_a_sweep_removes_what_is_older_than_its_run() -> None:
    sweep = TracedSweep("run", at(20), 1)
    commits = history((0, 1))
    note = CommitNote(5, "stream/truncate", {}, [], ["run"])
    told = fates([event("c", 10), sweep], [TableCommit(9, 1, "DELETE", note), *commits])
    assert [(one.fate, one.made.version if one.made else None) for one in told] == [
        (Fate.APPLIED, 0), (Fate.APPLIED, 9),
    ]  # fmt: skip
