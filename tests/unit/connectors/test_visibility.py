"""The xmin rule, against a database whose commits become visible out of order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.database import Watermark, visible
from lakemark.connectors.postgres import positions as lsns
from lakemark.connectors.postgres.visibility import Blocker, Server, Snapshot, bound_of

HERE = Server("2024-01-01T00:00:00.000000Z", 1)


def snapshot(xmin: int, xmax: int, server: Server = HERE) -> Snapshot:
    return Snapshot(xmin, xmax, server)


def test_the_newest_that_qualifies_is_taken():
    old, new = Watermark("a", snapshot(5, 8)), Watermark("b", snapshot(8, 12))
    assert visible(snapshot(12, 20), [old, new]) == new
    assert visible(snapshot(11, 20), [old, new]) == old
    assert visible(snapshot(7, 20), [old, new]) is None
    assert visible(snapshot(12, 20), []) is None


def test_another_life_of_the_server_proves_nothing():
    mark = Watermark("a", snapshot(5, 8))
    for other in (Server("2024-01-02T00:00:00.000000Z", 1), Server(HERE.start, 2)):
        assert visible(snapshot(12, 20, other), [mark]) is None


def test_a_watermarks_position_is_below_what_commits_behind_it_and_above_what_came_before():
    """Events name the commit before their own transaction's: (last commit, own LSN)."""
    position = Watermark("a", snapshot(5, 8), bound_of(1000)).position(2)
    before = [
        lsns.pack(2, 900, 5000),
        lsns.pack(2, 1000, 990),
        lsns.pack(1, 9999, 9),
    ]
    behind = [lsns.pack(2, 1001, 10), lsns.pack(2, 1001, 5000), lsns.pack(3, 1, 1)]
    assert max(before) < position < min(behind)


@pytest.mark.parametrize("text", ["", "1:2", "a:2:", "1:2:3;4", "-1:2:"])
def test_what_is_no_snapshot_is_refused(text):
    with pytest.raises(ValueError):
        Snapshot.parse(text, HERE)


def test_a_snapshot_is_parsed():
    assert Snapshot.parse("10:20:10,14", HERE) == snapshot(10, 20)
    assert Snapshot.parse(f"{1 << 40}:{1 << 41}:", HERE) == snapshot(1 << 40, 1 << 41)


def test_a_blocker_is_named_without_its_query():
    shown = str(Blocker(7, 123, "", "2024-01-01T00:00:00+00:00", "active"))
    assert shown == "transaction 7 (pid 123, unnamed, query of 2024-01-01T00:00:00+00:00)"
    assert str(Blocker(7, None, "t", None, "prepared")) == "transaction 7 (prepared, t)"


class Primary:
    """Transactions get an id, write their commit record, and become visible, each when it likes."""

    def __init__(self) -> None:
        self.next = 10
        self.running: dict[int, int | None] = {}  # xid -> place of its commit record
        self.log = 0

    def begin(self) -> int:
        self.running[self.next] = None
        self.next += 1
        return self.next - 1

    def write(self, xid: int) -> int:
        self.log += 1
        self.running[xid] = self.log
        return self.log

    def seen(self) -> Snapshot:
        return snapshot(min(self.running, default=self.next), self.next)


@given(st.lists(st.tuples(st.sampled_from("bcvwr"), st.integers(0, 5)), max_size=60))
def test_all_that_precedes_the_open_row_in_the_log_is_visible(steps):
    database = Primary()
    marks: list[Watermark] = []
    places: dict[str, int] = {}
    for what, which in steps:
        begun = sorted(x for x, place in database.running.items() if place is None)
        written = sorted(x for x, place in database.running.items() if place is not None)
        if what == "b":
            database.begin()
        elif what == "c" and begun:
            database.write(begun[which % len(begun)])
        elif what == "v" and written:
            del database.running[written[which % len(written)]]
        elif what == "w":
            xid = database.begin()
            places[str(xid)] = database.write(xid)
            del database.running[xid]
            marks.append(Watermark(str(xid), database.seen()))
        else:
            chunk = database.seen()
            found = visible(chunk, marks)
            if found is not None:
                late = [p for p in database.running.values() if p is not None]
                assert all(place > places[found.window] for place in late)
