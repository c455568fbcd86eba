"""The replay gate, case by case."""

import pytest

from lakemark.connectors.mysql.positions import pack
from lakemark.connectors.postgres import positions as lsns
from lakemark.model import positions
from lakemark.model.decoding import AppliedPosition
from lakemark.model.events import Kind
from lakemark.source.replay_filter import beginnings, drop_replays

CHANGE, OWN, READ, TRUNCATE = Kind.CHANGE, Kind.OWN_SNAPSHOT, Kind.INCREMENTAL, Kind.TRUNCATE


def at(major, minor=None):
    return lsns.pack(0, major, major if minor is None else minor)


def own(lsn):
    return lsns.pack(0, 0, lsn)


def run(events, start=None):
    """events: (kind, position) or (kind, position, source time)."""
    whole = [(*e, 1) if len(e) == 2 else e for e in events]
    kinds, where, times = ([e[n] for e in whole] for n in range(3))
    return drop_replays(kinds, where, times, start or AppliedPosition())


def test_nothing_comes_out_of_nothing():
    start = AppliedPosition(at(7), 9)
    result = run([], start)
    assert (result.keep, result.replays, result.regressed, result.after) == ([], 0, None, start)


def test_new_events_pass_and_raise_the_high_water():
    result = run([(CHANGE, at(1), 10), (CHANGE, at(2), 30), (TRUNCATE, at(3), 20)])
    assert result.keep == [0, 1, 2]
    assert result.after == AppliedPosition(at(3), 30)


def test_what_comes_again_is_dropped_and_counted():
    result = run([(CHANGE, at(5)), (CHANGE, at(3)), (CHANGE, at(4)), (CHANGE, at(6))])
    assert result.keep == [0, 3]
    assert result.replays == 2
    assert result.regressed is None


def test_the_high_water_of_an_earlier_batch_counts():
    result = run([(CHANGE, at(4)), (CHANGE, at(5))], AppliedPosition(at(5), 1))
    assert result.keep == [1]


def test_equal_positions_pass():
    """One WAL record of a COPY holds many rows."""
    result = run([(CHANGE, at(5))] * 3, AppliedPosition(at(5), 1))
    assert result.keep == [0, 1, 2]


def test_commit_order_decides_and_not_the_own_lsn():
    result = run([(CHANGE, at(100, 130)), (CHANGE, at(140, 98))])
    assert result.keep == [0, 1]


def test_rows_of_an_own_snapshot_start_the_partition_again():
    result = run(
        [(OWN, own(50)), (OWN, own(50)), (CHANGE, at(60)), (CHANGE, at(55))],
        AppliedPosition(at(100), 1),
    )
    assert result.keep == [0, 1, 2]
    assert result.after.position == at(60)


def test_incremental_reads_pass_but_never_raise_the_high_water():
    result = run([(CHANGE, at(5)), (READ, at(9)), (CHANGE, at(6)), (READ, at(4))])
    assert result.keep == [0, 1, 2]
    assert result.replays == 1
    assert result.after.position == at(6)


def test_a_low_position_with_a_newer_source_time_is_no_replay():
    result = run([(CHANGE, at(5), 100), (CHANGE, at(3), 90), (CHANGE, at(2), 101)])
    assert result.regressed == 2
    assert result.keep == [0]


def test_the_first_regressed_event_is_named():
    result = run([(CHANGE, at(5), 100), (CHANGE, at(3), 200), (CHANGE, at(2), 300)])
    assert result.regressed == 1


def test_the_newest_source_time_is_kept_over_batches():
    start = run([(CHANGE, at(5), 100)]).after
    assert run([(CHANGE, at(3), 100)], start).regressed is None
    assert run([(CHANGE, at(3), 101)], start).regressed == 0


def test_a_truncate_always_passes_but_never_lowers_the_high_water():
    """It has no key: lost on its way and sent again, it may come to a partition that is past it."""
    result = run([(TRUNCATE, at(3), 101), (CHANGE, at(4))], AppliedPosition(at(5), 100))
    assert result.keep == [0]
    assert result.regressed is None
    assert result.after == AppliedPosition(at(5), 100)


def test_other_kinds_concern_no_table():
    kinds = [k for k in Kind if k not in {CHANGE, OWN, READ, TRUNCATE}]
    result = run([(k, positions.LOWEST) for k in kinds], AppliedPosition(at(5), 1))
    assert result.keep == []
    assert result.replays == 0
    assert result.after == AppliedPosition(at(5), 1)


def first(lsn):
    return lsns.pack(0, *lsns.of_stream(f'[null,"{lsn}"]', None))


@pytest.mark.parametrize(
    ("events", "times"),
    [
        ([(CHANGE, first(1600), 50), (CHANGE, first(1608), 50), (CHANGE, at(1640), 60)], [50]),
        ([(CHANGE, at(800, 816), 40), (CHANGE, first(1600), 50), (TRUNCATE, first(2400), 90)], [50, 90]),
        ([(CHANGE, at(816), 45), (CHANGE, at(824, 832), 46)], []),
        ([(Kind.SIGNAL, first(1600), 50), (Kind.SIGNAL, at(1640), 60)], [50]),
        ([(OWN, own(1601), 45)], []),
        ([(READ, first(1600), 50)], []),  # without a transaction of its own, where it may not write
        ([], []),
    ],
)  # fmt: skip
def test_a_slots_first_transaction_is_told_by_what_it_lacks(events, times):
    kinds, where, when = ([b"", *(e[n] for e in events)] for n in range(3))
    keep = [n for n, kind in enumerate(kinds) if n and kind != Kind.SIGNAL]
    assert beginnings(kinds, where, when, keep) == {time: time for time in times}


def read_at(file: int) -> bytes:
    """The position of what MySQL's connector read at the beginning of a file of the log."""
    fields = {"file": [f"binlog.{file:06}"], "pos": [4], "total_order": [None]}
    (found,) = positions.rules_of("mysql").from_source(
        fields, [True], positions.epoch_number("mysql", 0)
    )
    return found


def test_a_read_structure_is_one_beginning_and_its_records_have_one_place():
    first, second = (read_at(file) for file in (3, 4))
    events = [(first, 50), (first, 51), (positions.LOWEST, 52), (second, 60)]
    where, when = ([event[n] for event in events] for n in range(2))
    kinds = [Kind.SCHEMA_CHANGE] * len(events)
    told = {positions.snapshot_of(first): 50, positions.snapshot_of(second): 60}
    assert beginnings(kinds, where, when, []) == told
    assert beginnings([Kind.SCHEMA_CHANGE], [first], [70], []) == {positions.snapshot_of(first): 70}


# -- events by names that all servers know ---------------------------------------------------------

A, B = "aaaaaaaa-0000-11f1-befd-02fc00000001", "bbbbbbbb-0000-11f1-befd-02fc00000001"


def named(start, *events):
    """A stretch of (kind, place, origin, number, order, time), the order 0 where it is not told.

    In positions, and in what a partition has seen, an order that is told is one more.
    """
    epoch = positions.epoch_number("mysql", 0)
    kinds = [event[0] for event in events]
    found = [
        bytes(20) if event[0] == OWN else pack(epoch, *event[1], event[4] + 1 if event[4] else 1)
        for event in events
    ]

    def logged(index):
        return positions.event_of("mysql", f"{events[index][2]}:{events[index][3]}", found[index])

    return drop_replays(kinds, found, [event[5] for event in events], start, logged)


def after(place, ts=100, **seen):
    """Progress up to a place of the first server's log."""
    names = {"a": A, "b": B}
    known = {names[origin]: newest for origin, newest in seen.items()}
    return AppliedPosition(pack(positions.epoch_number("mysql", 0), *place, 2), ts, seen=known)


def test_what_never_came_and_stands_below_is_of_another_log():
    found = named(after((4, 900), a=(9, 2)), (CHANGE, (1, 300), A, 10, 1, 50))
    assert (found.regressed, found.proven, found.keep) == (0, True, [])
    other = named(after((4, 900), a=(9, 2)), (CHANGE, (1, 300), B, 1, 1, 50))
    assert (other.regressed, other.proven) == (0, True)


def test_what_came_and_stands_below_is_a_replay_unless_it_is_newer():
    start = after((4, 900), a=(9, 2))
    assert named(start, (CHANGE, (1, 300), A, 9, 1, 100)).regressed is None
    reset = named(start, (CHANGE, (1, 300), A, 3, 1, 101))
    assert (reset.regressed, reset.proven) == (0, False)


def test_nothing_is_proven_where_no_names_were_noted():
    found = named(
        after((4, 900)), (CHANGE, (1, 300), A, 10, 1, 50), (CHANGE, (1, 300), A, 10, 1, 200)
    )
    assert (found.regressed, found.proven) == (1, False)


def test_what_another_server_sends_again_above_is_dropped_and_read_again():
    start = after((4, 900), a=(9, 2))
    again, fresh = (CHANGE, (5, 100), A, 8, 1, 90), (CHANGE, (5, 300), B, 1, 1, 120)
    found = named(start, again, (CHANGE, (5, 200), A, 9, 1, 100), fresh)
    assert (found.keep, found.replays, list(found.doubtful)) == ([2], 2, [0, 1])
    assert found.after.seen == {A: (9, 2), B: (1, 2)}
    newer = named(start, (CHANGE, (5, 100), A, 8, 1, 101))
    assert newer.keep == [0], "numbers of its origin do not rise: by its time it is new"


def test_an_older_event_at_the_very_place_of_the_newest_is_of_another_log():
    start = after((4, 900), a=(9, 2))
    assert named(start, (CHANGE, (4, 900), A, 9, 1, 100)).keep == [0]
    older = named(start, (CHANGE, (4, 900), A, 8, 1, 90))
    assert (older.keep, list(older.doubtful)) == ([], [0])


def test_the_rest_of_a_transaction_that_a_connector_broke_off_is_new():
    start = after((4, 900), a=(9, 3))  # two of its events: orders begin with 2
    whole = [(CHANGE, (5, 100), A, 9, order, 100) for order in (1, 2, 3)]
    assert named(start, *whole).keep == [2]
    below = named(start, *[(kind, (1, 100), *rest) for kind, _, *rest in whole])
    assert (below.keep, below.regressed, below.proven) == ([], 2, True)


def test_without_an_order_the_newest_transaction_may_be_new():
    start = after((4, 900), a=(9, 0))
    assert named(start, (CHANGE, (5, 100), A, 9, 0, 100)).keep == [0]
    below = named(start, (CHANGE, (1, 100), A, 9, 0, 100))
    assert (below.keep, list(below.doubtful)) == ([], [0])


def test_behind_rows_of_the_connectors_own_snapshot_all_counts_again():
    start = after((4, 900), a=(9, 2))
    found = named(start, (OWN, None, A, 0, 0, 110), (CHANGE, (4, 800), A, 8, 1, 90))
    assert (found.keep, found.after.seen) == ([0, 1], {A: (8, 2)})


def test_truncates_that_came_or_are_of_another_log_do_not_pass():
    start = after((4, 900), a=(9, 2))
    again = named(start, (TRUNCATE, (5, 100), A, 8, 0, 90))
    assert (again.keep, list(again.doubtful)) == ([], [0])
    other = named(start, (TRUNCATE, (1, 100), A, 10, 0, 110))
    assert (other.keep, other.regressed, other.proven) == ([], 0, True)
    late = named(start, (TRUNCATE, (4, 800), A, 8, 0, 90))
    assert late.keep == [0]


@pytest.mark.parametrize(
    ("place", "order", "may"),
    [((7, 400), 3, True), ((7, 400), 2, True), ((7, 399), 9, False), ((6, 400), 9, False)],
)
def test_an_event_of_the_newest_transaction_may_have_been_counted_anew(place, order, may):
    epoch = positions.epoch_number("mysql", 0)
    start = AppliedPosition(pack(epoch, 7, 400, 5), 10)
    for time in (9, 11):
        result = run([(CHANGE, pack(epoch, *place, order), time)], start)
        assert result.keep == []
        assert result.doubtful == ([0] if may else [])
        assert result.regressed == (0 if time > 10 and not may else None)
    passes = run([(CHANGE, pack(epoch, 7, 400, 5))], start)
    assert (passes.keep, [*passes.doubtful]) == ([0], [])
