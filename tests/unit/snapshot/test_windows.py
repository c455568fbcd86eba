"""The coordinator's windows: none that a chunk may still use is announced as out of use."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakemark.connectors.database import Watermark
from lakemark.connectors.postgres.visibility import Server, Snapshot
from lakemark.snapshot.windows import Windows
from tests.kit.nightly import examples

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
    windows.leave(0)
    assert (windows.current, windows.readable) == ("", True)  # what is read waits for its `hi`
    assert windows.lost() == "w1"
    assert (windows.current, windows.readable) == ("", False)
    windows.open(mark(2, 20, 20), [])
    assert windows.current == "w2"
    windows.leave(0)
    windows.open(mark(3, 30, 30), [])
    assert (windows.current, windows.closing) == ("w3", "")
    windows.leave(0, last=True)
    assert not windows.readable  # nothing would be open when it has been read
    assert windows.lost() == "w3"
    assert windows.oldest([]) == ""
    windows.open(mark(4, 40, 41), [])
    assert windows.oldest([]) == "w4", "what the next tick announced"
    windows.close()
    assert (windows.current, windows.oldest([]), windows.readable) == ("", "", False)


@dataclass
class Read:
    """A chunk's read.

    Attributes:
        floor: the window that counts as used until `lo` is known.
        begun: the database's snapshot when it began: what it sees at least.
    """

    floor: str
    begun: Snapshot
    lo: str = ""
    hi: str = ""

    @property
    def used(self) -> str:
        return self.lo or self.floor


class Chunks(RuleBasedStateMachine):
    """The coordinator's ticks and reads against a log that has, or may have, every announcement.

    A row of a window announces the oldest window in use: shards forget what they know of the time
    before it. So none may be announced while a chunk that counts in the end has taken an older one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.windows = Windows()
        self.names: list[str] = []  # all windows, as they were opened
        self.next, self.transactions = 100, []  # the next id; those that are open
        self.reads: list[Read] = []
        self.announced = ""
        self.tick: str | None = None  # what is on its way: a window, "" = none is opened
        self.close_rows: set[str] = set()

    def snapshot(self) -> Snapshot:
        return Snapshot(min(self.transactions, default=self.next), self.next, SERVER)

    @rule()
    def begin_transaction(self):
        self.transactions.append(self.next)
        self.next += 1

    @precondition(lambda self: self.transactions)
    @rule(at=st.integers(0, 9))
    def end_transaction(self, at):
        self.transactions.pop(at % len(self.transactions))

    @precondition(lambda self: self.tick is None)
    @rule(more=st.booleans())
    def begin_tick(self, more):
        busy = more or bool(self.reads)
        if not busy and not self.windows.current:
            return
        self.tick = f"w{len(self.names)}" if busy else ""
        if self.tick:
            self.names.append(self.tick)
        in_use = [read.used for read in self.reads]
        oldest = self.windows.oldest(in_use) or self.tick or self.windows.current
        self.announce(oldest)
        self.closed = self.windows.current
        self.windows.leave(0, last=not busy)

    def announce(self, oldest: str) -> None:
        assert oldest in self.names
        if self.announced:
            back = self.names.index(oldest) < self.names.index(self.announced)
            assert not back, "what is forgotten does not come back"
        self.announced = oldest

    @precondition(lambda self: self.tick is not None)
    @rule()
    def tick_is_acknowledged(self):
        window, self.tick = self.tick, None
        self.close_rows.add(self.closed)
        if window:
            self.next += 2  # the open row's transaction, and the one after it
            seen = Watermark(window, self.snapshot())
            self.windows.open(seen, [read.used for read in self.reads])
            assert self.windows.current == window
        else:
            self.windows.close()

    @precondition(lambda self: self.tick is not None)
    @rule()
    def tick_fails(self):
        self.tick = None
        lost = self.windows.lost()
        assert lost == self.closed
        self.reads = [read for read in self.reads if not lost or read.hi != lost]
        assert not self.windows.readable or self.windows.current

    @precondition(lambda self: self.windows.readable)
    @rule()
    def begin_read(self):
        assert self.tick != "", "no window would be open when it has been read"
        self.reads.append(Read(self.windows.floor, self.snapshot()))

    @rule(at=st.integers(0, 9), late=st.booleans())
    def end_read(self, at, late):
        reading = [read for read in self.reads if not read.lo]
        if not reading:
            return
        read = reading[at % len(reading)]
        seen = self.snapshot() if late else read.begun
        read.lo = self.windows.lo(seen) or ""
        if not read.lo:
            self.reads.remove(read)

    @precondition(lambda self: self.windows.current)
    @rule()
    def say_manifests(self):
        assert self.tick is None, "its close row may be written by now, before the read ended"
        for read in self.reads:
            if read.lo and not read.hi:
                read.hi = self.windows.current

    @rule()
    def settle(self):
        done = [read for read in self.reads if read.hi in self.close_rows and read.hi]
        self.reads = [read for read in self.reads if read not in done]

    @invariant()
    def nothing_is_forgotten_that_a_chunk_uses(self):
        oldest = self.names.index(self.announced) if self.announced else 0
        usable = [watermark.window for watermark in self.windows.usable]
        for read in self.reads:
            assert self.names.index(read.used) >= oldest
            assert read.lo or read.floor in usable

    @invariant()
    def a_chunk_read_now_finds_a_window(self):
        if self.windows.ready and self.windows.readable:
            assert self.windows.lo(self.snapshot()) is not None


TestChunks = Chunks.TestCase
TestChunks.settings = settings(max_examples=examples(200), stateful_step_count=50, deadline=None)
