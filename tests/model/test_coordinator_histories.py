"""Random histories of the coordinator: signals, doubt, crashes, others away; then a fair world.

The world notes what must never happen while it goes (`FakeWorld.wrong`): windows announced as out
of use too early, a `hi` closed before its read ended, sweeps that take rows, chunks read again.
"""

import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.snapshot.chunks import STATEMENT_TIMEOUT, ChunkError
from lakemark.state.progress import PAGE_PREFIX
from tests.kit.fake_world import ITEMS, ORDERS, CrashError, FakeWorld, Fault, away, with_settings
from tests.kit.nightly import examples

TABLES = (ORDERS, ITEMS)
AWAY = (
    *("tick", "read", "cut", "fingerprint", "partial_keys", "texts"),
    *("control", "notify", "save", "tables", "signals"),
)
ERRORS = {
    "late": ChunkError(code=STATEMENT_TIMEOUT, message="slow", retried=True),
    "lost": ChunkError(code="job-failed", message="lost", retried=True),
    "gone": ChunkError(code="table-gone", message="gone"),
    "schema": ChunkError(code="schema-changed", message="changed"),
}
VOIDS = ("unreadable-key", "own-snapshot", "overlapping-run", "table-stopped")


class History:
    """A world, and what may happen in it; `draw` chooses from a sequence."""

    def __init__(self, draw) -> None:
        self.draw = draw
        self.world: FakeWorld = with_settings(parallelism=draw((1, 2, 4)), chunk_rows=draw((3, 10)))
        self.signals = 0
        self.runs: list[str] = []
        self.long: list[int] = []

    def execute(self) -> None:
        name = f"r{len(self.runs)}"
        tables = self.draw(((ORDERS,), (ITEMS,), TABLES))
        more = self.draw(({}, {"priority": 3}, {"parallelism": 1}, {"delay": "2s"}))
        if len(tables) == 1:
            more = self.draw((more, {"keys": [1, 3, 77]}))
        self.world.execute(name, *tables, **more)
        self.runs.append(name)

    def change(self) -> None:
        self.signals += 1
        name = self.draw(self.runs or ["none"])
        kind, data = self.draw(
            (
                ("set", {"id": name, "chunk_rows": self.draw((1, 4, 50))}),
                ("set", {"id": name, "parallelism": 1}),
                ("pause", {}),
                ("resume", {}),
                ("stop", {}),
                ("stop", {"data_collections": [ORDERS]}),
            )
        )
        self.world.send(kind, f"s{self.signals}", **data)

    def stream(self) -> None:
        stream, table = self.world.stream, self.draw(TABLES)
        what = self.draw(
            ("void", "pause", "own", "reread", "lag", "swept", "lost", "slow", "whole")
        )
        if what == "void":
            stream.voids.append(self.draw(VOIDS))
        elif what == "pause":
            now = stream.tables.get(table)
            stream.table(table, streaming=now is not None and not now.streaming)
        elif what == "own":
            stream.table(table, resnapshot_since=stream.number + 1)
            stream.restarts.append(table)
        elif what == "reread":
            stream.table(table, reread={"[1]": stream.number + 1})
        elif what == "lag":
            stream.lag = self.draw((0, 1, 4))
        elif what == "slow":
            self.world.slow = not self.world.slow
        elif what == "whole":
            stream.table(table, partial=bool(self.world.partial.get(table)))
        elif what == "swept":
            stream.swept_void += 1
        elif self.world.coordinator is not None:
            stream.lost.add(self.world.coordinator.state.next_attempt)

    def database(self) -> None:
        world = self.world
        what = self.draw(
            ("begin", "end", "restart", "error", "partial", "hold", "release", "standby", "tick")
        )
        if what == "begin":
            self.long.append(world.database.begin())
        elif what == "end" and self.long:
            world.database.end(self.long.pop(0))
        elif what == "restart":
            world.database.restart()
        elif what == "error":
            error = ERRORS[self.draw(sorted(ERRORS))]
            world.answers.setdefault(self.draw(TABLES), []).append(error)
        elif what == "partial":
            table = self.draw(TABLES)
            world.stream.table(table, partial=True)
            world.partial[table] = ["[2]"]
        elif what == "hold":
            world.hold = True
        elif what == "standby":
            world.hold_ticks = not world.hold_ticks
        elif what == "tick":
            self.safely(world.release_tick)
        elif world.held:
            self.safely(lambda: world.release(self.draw(range(1, len(world.held) + 1))))

    def others(self) -> None:
        self.world.away = {self.draw(AWAY)} if self.draw((True, False)) else set()

    def fail(self) -> None:
        error = self.draw((CrashError(), away()))
        self.world.fault = Fault(self.world.passed + self.draw(range(1, 25)), error)

    def wait(self) -> None:
        for _ in range(self.draw((1, 2, 4, 8))):
            self.safely(self.world.step)

    def safely(self, work) -> None:
        try:
            work()
        except (Exception, CrashError) as error:
            if self.world.coordinator is not None and not isinstance(error, CrashError):
                raise
            self.world.coordinator = None

    def fair(self) -> None:
        """Nothing goes wrong any more: every run ends."""
        world = self.world
        world.away, world.fault, world.hold, world.tick_error = set(), None, False, None
        world.stream.lag, world.stream.swept_void, world.hold_ticks = 0, 0, False
        world.stream.voids.clear()
        world.answers.clear()
        for xid in self.long:
            world.database.end(xid)
        for table in TABLES:
            world.stream.table(table, streaming=True)
        self.safely(world.release)
        self.safely(world.release_tick)
        world.send("resume", "at-last")
        self.safely(world.step)
        world.go(1500, until=self.quiet)

    def quiet(self) -> bool:
        state = self.world.coordinator.state
        heard = self.world.offset == len(self.world.inbox)
        stream = self.world.stream
        asked = any(now.reread or now.resnapshot_since >= 0 for now in stream.tables.values())
        return heard and not (asked or state.open_runs() or stream.armed)

    def check(self) -> None:
        world = self.world
        world.go(3)
        assert not world.wrong, world.wrong
        assert not world.stream.under_way(), "an attempt neither settled nor void"
        assert not [key for key in world.progress if key.startswith(PAGE_PREFIX)]
        for name in self.runs:
            said = world.said(name)
            assert said, f"no answer to {name}"
            assert said[-1] in {"COMPLETED", "ABORTED", "REJECTED"}, said
            if said[-1] != "COMPLETED" or world.run(name).tables[0].keys is not None:
                continue
            ghosts = {record["table"] for record in world.stream.sweeps if record["run"] == name}
            done = {one.table for one in world.run(name).tables if one.state == "done"}
            assert done <= ghosts | self.asked()

    def asked(self) -> set[str]:
        """Tables with keys that are asked for: they may not be swept."""
        return {name for name, now in self.world.stream.tables.items() if now.reread}


@settings(max_examples=examples(100, nightly=2000))
@given(st.data())
def test_every_run_ends_and_no_row_is_lost(data):
    def draw(choices):
        return data.draw(st.sampled_from(choices))

    history = History(draw)
    steps = (
        *(History.execute, History.change, History.stream, History.database, History.others),
        *(History.fail, History.wait, History.wait, History.wait, History.wait),
    )
    with structlog.testing.capture_logs():
        history.execute()
        for step in data.draw(st.lists(st.sampled_from(steps), max_size=40)):
            step(history)
        history.fair()
        history.check()
