"""The coordinator's windows: none that a chunk may still use is announced as out of use."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.snapshot.visibility import Server, Snapshot, Watermark
from lakemark.snapshot.windows import Windows

SERVER = Server("2026-01-01T00:00:00Z", 1)


def mark(n: int, xmin: int, xmax: int, server: Server = SERVER) -> Watermark:
    return Watermark(f"w{n}", Snapshot(xmin, xmax, server))


def test_without_other_transactions_each_tick_makes_the_one_before_needless():
    windows = Windows()
    assert (windows.oldest([]), windows.ready) == ("", False)
    for n in range(1, 4):
        windows.open(mark(n, 10 * n, 10 * n), [])
        assert (windows.oldest([]), windows.current, windows.ready) == (f"w{n}", f"w{n}", True)
    assert windows.lo(Snapshot(30, 31, SERVER)) == "w3"
    assert windows.lo(Snapshot(29, 31, SERVER)) is None


def test_a_long_transaction_keeps_older_windows():
    windows = Windows()
    windows.open(mark(1, 10, 10), [])
    windows.open(mark(2, 11, 20), [])  # transaction 11 is open
    windows.open(mark(3, 11, 30), [])
    assert windows.floor == "w1"
    assert windows.lo(Snapshot(11, 40, SERVER)) == "w1"
    windows.open(mark(4, 31, 40), [])  # it has ended
    assert windows.floor == "w3"
    assert windows.lo(Snapshot(31, 41, SERVER)) == "w3"


def test_what_is_under_way_keeps_its_window_but_new_reads_do_not_prolong_it():
    windows = Windows()
    windows.open(mark(1, 10, 10), [])
    windows.open(mark(2, 20, 20), ["w1"])
    assert (windows.floor, windows.oldest(["w1"])) == ("w2", "w1")
    assert windows.lo(Snapshot(12, 15, SERVER)) == "w1"
    windows.open(mark(3, 30, 30), ["w2"])
    assert windows.oldest(["w2"]) == "w2"
    assert windows.lo(Snapshot(12, 15, SERVER)) is None


def test_another_server_begins_anew():
    other = Server("2026-01-02T00:00:00Z", 1)
    windows = Windows()
    windows.open(mark(1, 10, 10), [])
    windows.open(mark(2, 5, 5, other), ["w1"])
    assert windows.floor == "w2"
    assert windows.lo(Snapshot(50, 50, SERVER)) == "w1"
    assert windows.lo(Snapshot(5, 5, other)) == "w2"


def test_a_tick_that_is_not_acknowledged_leaves_no_current_window():
    windows = Windows()
    windows.open(mark(1, 10, 10), [])
    windows.leave()
    assert (windows.current, windows.readable) == ("", True)  # what is read waits for its `hi`
    assert windows.lost() == "w1"
    assert (windows.current, windows.readable) == ("", False)
    windows.open(mark(2, 20, 20), [])
    assert windows.current == "w2"
    windows.leave()
    windows.open(mark(3, 30, 30), [])
    assert (windows.current, windows.closing) == ("w3", "")
    windows.leave(last=True)
    assert not windows.readable  # nothing would be open when it has been read
    assert windows.lost() == "w3"
    assert windows.oldest([]) == ""
    windows.open(mark(4, 40, 41), [])
    assert windows.oldest([]) == "w4", "what the next tick announced"
    windows.close()
    assert (windows.current, windows.oldest([]), windows.readable) == ("", "", False)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4), st.integers(0, 4)), max_size=40))
def test_no_chunk_takes_a_window_older_than_announced(steps):
    """A read begins at every tick, ends some ticks later, and is settled still later."""
    windows, now, xmin = Windows(), 100, 100
    reads: list[list] = []  # floor or lo, snapshot, tick of its end, tick of its settling
    newest = 0
    for n, (lag, length, settling) in enumerate(steps):
        for read in reads:
            if read[2] == n:
                read[0] = windows.lo(read[1])
                assert read[0] is None or int(read[0][1:]) >= newest
        reads = [read for read in reads if read[0] is not None and read[3] > n]
        in_use = [read[0] for read in reads]
        oldest = windows.oldest(in_use) or f"w{n}"
        assert int(oldest[1:]) >= newest, "an announcement is never taken back"
        newest = int(oldest[1:])
        now += 3
        xmin = max(xmin, now - lag)
        windows.open(mark(n, xmin, now), in_use)
        assert all(any(w.window == used for w in windows.usable) for used in in_use)
        now += 1
        snapshot = Snapshot(max(xmin, now - lag), now, SERVER)
        assert not windows.ready or windows.lo(snapshot) is not None
        reads.append([windows.floor, snapshot, n + 1 + length, n + 2 + length + settling])
