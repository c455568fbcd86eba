"""Rows of snapshots beside events: fills, horizons, and what only the source can mend."""

import pyarrow as pa
import pytest

from lakemark.connectors.postgres import positions as lsns
from lakemark.model import change_batch
from lakemark.model.change_batch import KeyColumns
from lakemark.sink.resolve import Part, resolve
from tests.kit.log_model import PLACEHOLDER, TABLE, Entry, table_schema
from tests.kit.table_model import DictLake
from tests.unit.sink.test_resolve import at, parts, row

KEY = KeyColumns(("id",))


def chunk(lo, *rows, record=change_batch.NET):
    """A part of survivors or fills."""
    image = pa.array(rows, pa.struct(list(table_schema().arrow())))
    keys = pa.array([b"[%d]" % r["id"] for r in rows], pa.binary())
    packet = change_batch.reads(keys, image, source_ts=5, table=TABLE, key_columns=KEY)
    return Part("chunk/1", 0, change_batch.as_of(packet, lo, record=record))


def fill(lo, *rows):
    return chunk(lo, *rows, record=change_batch.FILL)


def apply(lake, found, *, version, **options):
    settings = {"truncated_at": None, "pending": None, "deletes": "hard", **options}
    result = resolve(found, read_rows=lake.read_rows, **settings)
    lake.merge(result.write_set, version=version)
    return result


def values(lake):
    return {
        key: (row["b"], row["_cdc"]["unavailable"], row["_cdc"]["position"])
        for key, row in lake.rows().items()
    }


def update(key, position, b=PLACEHOLDER):
    return Entry("u", position, 1, key=key, after=row(key, 1, b))


@pytest.mark.parametrize("together", [True, False])
def test_an_incremental_read_is_removed_by_a_truncate_that_commits_behind_it(together):
    """Also by one that was written before the close row, whose position the read has."""
    lake = DictLake()
    earlier, later = Entry("t", (48, 56), 1), Entry("t", (104, 80), 1)
    read = Entry("r", (64, 96), 1, key=1, after=row(1), snapshot="incremental")
    if together:
        result = apply(lake, parts(earlier, read, later), version=1)
    else:
        apply(lake, parts(earlier, read), version=1)
        assert lake.rows().keys() == {1}
        result = apply(lake, parts(later), version=2)
        lake.truncate(result.truncate, version=2)
    assert result.truncate == lsns.pack(0, 104, 80)
    assert lake.rows() == {}


def test_a_survivor_loses_against_a_newer_row_and_replaces_an_older_one():
    lake = DictLake()
    apply(lake, parts(update(1, (90, 91), "old"), update(2, (120, 121), "new")), version=1)
    apply(lake, [chunk(at(100), row(1, 1, "read"), row(2, 1, "read"))], version=2)
    assert values(lake) == {1: ("read", None, at(100)), 2: ("new", None, at(120, 121))}


@pytest.mark.parametrize("together", [False, True])
def test_a_fill_gives_the_columns_that_the_row_lacks(together):
    lake = DictLake()
    events = parts(update(1, (105, 106)))
    loser = fill(at(100), row(1, 7, "toast"))
    if together:
        result = apply(lake, [loser, *events], version=1)
    else:
        assert apply(lake, events, version=1).completed is None
        assert values(lake) == {1: (None, ["b"], at(105, 106))}
        result = apply(lake, [loser], version=2)
    assert values(lake) == {1: ("toast", None, at(105, 106))}
    assert lake.rows()[1]["a"] == 1, "what the event has is the event's"
    (completed,) = result.completed.to_pylist()
    assert (completed["id"], completed["a"], completed["b"]) == (1, 1, "toast")
    assert completed["_cdc"]["position"] == at(105, 106)
    assert apply(lake, [loser], version=3).completed is None, "once"


def test_a_fill_never_overwrites():
    lake = DictLake()
    apply(lake, parts(update(1, (105, 106), "value")), version=1)
    result = apply(lake, [fill(at(100), row(1, 7, "other"))], version=2)
    assert values(lake) == {1: ("value", None, at(105, 106))}
    assert result.write_set.num_rows == 0
    assert result.completed is None


@pytest.mark.parametrize("stale", [frozenset({b"[1]"}), None])
def test_what_a_row_kept_from_before_an_event_that_it_misses_is_read_again(stale):
    """An event without b came while key 1 missed one that had changed b."""
    lake = DictLake()
    apply(lake, parts(update(1, (90, 91), "old")), version=1)
    apply(lake, parts(update(1, (105, 106))), version=2, stale=stale)
    once = apply(lake, [fill(at(100), row(1, 7, "new"))], version=3, stale=stale)
    assert values(lake) == {1: (None, ["b"], at(105, 106))}
    assert once.reread == {b"[1]"}
    again = apply(lake, [fill(at(103), row(1, 7, "old"))], version=4, stale=stale)
    assert values(lake) == {1: (None, ["b"], at(105, 106))}, "it may be from before the event"
    assert again.reread == {b"[1]"}
    last = apply(lake, [fill(at(110), row(1, 7, "new"))], version=5, stale=stale)
    assert values(lake) == {1: ("new", None, at(105, 106))}
    assert last.reread == set()
    assert lake.rows()[1]["a"] == 1, "no event lacks a number"


def test_an_event_that_brings_the_column_ends_the_doubt():
    lake, stale = DictLake(), frozenset({b"[1]"})
    apply(lake, parts(update(1, (90, 91), "old")), version=1)
    apply(lake, [fill(at(80), row(1, 7, "new"))], version=2, stale=stale)
    apply(lake, parts(update(1, (105, 106), "newest")), version=3, stale=stale)
    assert values(lake) == {1: ("newest", None, at(105, 106))}


def test_a_row_that_agrees_with_the_chunk_or_misses_nothing_is_left_alone():
    lake = DictLake()
    apply(lake, parts(update(1, (105, 106), "same"), update(2, (107, 108), "own")), version=1)
    found = [fill(at(100), row(1, 7, "same"), row(2, 7, "other"))]
    result = apply(lake, found, version=2, stale=frozenset({b"[1]"}))
    assert result.write_set.num_rows == 0
    assert result.reread == set()


def test_a_fill_is_for_rows_that_are_there():
    lake = DictLake()
    apply(lake, [fill(at(100), row(1, 7, "toast"))], version=1)
    assert values(lake) == {}


def test_a_fill_is_not_for_a_later_incarnation():
    lake = DictLake()
    moved = Entry("c", (105, 107), 1, key=2, after=row(2, 1, PLACEHOLDER), old_key=1)
    apply(lake, parts(moved), version=1)
    assert values(lake) == {2: (None, ["b"], at(105, 107))}
    apply(lake, [fill(at(100), row(2, 1, "another life"))], version=2)
    assert values(lake) == {2: (None, ["b"], at(105, 107))}
    apply(lake, [fill(at(110), row(2, 1, "this one"))], version=3)
    assert values(lake) == {2: ("this one", None, at(105, 107))}


def test_without_partial_rows_fills_read_nothing():
    lake = DictLake()
    apply(lake, parts(update(1, (105, 106), "value")), version=1)

    def refuse(_):
        raise AssertionError("the lake is not read")

    result = resolve(
        [fill(at(100), row(1, 7, "x"))], truncated_at=None, pending=None, read_rows=refuse,
        deletes="hard", partial=False,
    )  # fmt: skip
    assert result.write_set.num_rows == 0


def key_change(position):
    """Key 1 becomes 2; b is an unchanged TOAST column."""
    major, minor = position
    return parts(
        Entry("d", (major, minor), 1, key=1, before=row(1), new_key=2),
        Entry("c", (major, minor), 1, key=2, after=row(2, 1, PLACEHOLDER), old_key=1),
    )


def test_a_key_change_above_the_applied_close_carries_columns_over():
    lake = DictLake()
    apply(lake, [chunk(at(100), row(1, 1, "toast"))], version=1)
    result = apply(lake, key_change((130, 131)), version=2, applied_close=at(120))
    assert values(lake) == {2: ("toast", None, at(130, 131))}
    assert result.reread == frozenset()


def test_a_key_change_from_below_the_applied_close_does_not_and_is_read_again():
    """The chunk may have seen a later row under the old key, whose events are still to come."""
    lake = DictLake()
    apply(lake, [chunk(at(100), row(1, 1, "of a later row"))], version=1)
    result = apply(lake, key_change((110, 111)), version=2, applied_close=at(120))
    assert values(lake) == {2: (None, ["b"], at(110, 111))}
    assert result.reread == {b"[1]", b"[2]"}


def test_a_row_that_arrives_without_anything_to_carry_over_is_read_again():
    lake = DictLake()
    result = apply(lake, key_change((130, 131)), version=1)
    assert values(lake) == {2: (None, ["b"], at(130, 131))}
    assert result.reread == {b"[2]"}


def test_a_row_whose_other_half_is_still_to_come_is_not_yet_read_again():
    lake = DictLake()
    arrived = Entry("c", (130, 131), 1, key=2, after=row(2, 1, PLACEHOLDER), old_key=1)
    result = apply(lake, parts(arrived), version=1)
    assert result.pending is not None
    assert result.reread == frozenset()
    gone = apply(lake, parts(update(9, (140, 141), "x")), version=2, pending=result.pending,
                 settled=at(200))  # fmt: skip
    assert gone.reread == {b"[2]"}, "every partition is past it: it will not come"


def test_an_absent_key_removes_an_older_row_only():
    lake = DictLake()
    apply(lake, parts(update(1, (90, 91), "ghost"), update(2, (120, 121), "newer")), version=1)
    image = pa.array([{"id": 1}, {"id": 2}], pa.struct([("id", pa.int64())]))
    keys = pa.array([b"[1]", b"[2]"], pa.binary())
    packet = change_batch.absences(keys, image, source_ts=5, table=TABLE, key_columns=KEY)
    apply(lake, [Part("chunk/1", 0, change_batch.as_of(packet, at(100)))], version=2)
    assert set(values(lake)) == {2}


def test_one_packet_with_a_column_missing_is_enough_for_fills_to_count():
    lake = DictLake()
    found = [fill(at(100), row(1, 7, "toast")), *parts(update(1, (105, 106)))]
    apply(lake, found, version=1, partial=False)
    assert values(lake) == {1: ("toast", None, at(105, 106))}


def test_rows_that_still_lack_columns_are_counted_and_no_others():
    """Not those that take them from the table's row if it has one, and from a read if not."""
    read = Entry("r", (64, 96), 1, key=3, after=row(3, 1, "t"), snapshot="incremental")
    lacking, composed = parts(update(1, (105, 106))), parts(read, update(3, (107, 108)))
    apart = [
        Part(f"other/{at_}", 0, part.packet)
        for at_, b in ((109, "x"), (111, "y"))
        for part in parts(update(2, (at_, at_ + 1), b))
    ]
    result = apply(DictLake(), [*lacking, *composed, *apart], version=1)
    assert (result.unavailable, result.write_set.num_rows) == (1, 3)


@pytest.mark.parametrize("touched", [False, True])
def test_a_row_that_waits_for_columns_gets_them_in_whichever_batch_the_other_half_comes(touched):
    """Also if nothing else comes of its key, or only what lacks the column as well."""
    lake = DictLake()
    apply(lake, parts(Entry("c", (1, 2), 1, key=1, after=row(1, 5, "T1"))), version=1)
    came = Entry("c", (105, 106), 1, key=2, after=row(2, 1, PLACEHOLDER), old_key=1)
    gone = Entry("d", (105, 106), 1, key=1, before=row(1), new_key=2)
    first = apply(lake, parts(came), version=2)
    assert values(lake)[2][:2] == (None, ["b"])
    more = [update(2, (107, 108))] if touched else []
    apply(lake, parts(gone, *more), version=3, pending=first.pending)
    position = at(107, 108) if touched else at(105, 106)
    assert values(lake) == {2: ("T1", None, position)}
