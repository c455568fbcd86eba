"""The middle of the demo: the shop changes while its tables are loaded by a snapshot.

    1. writers start; then a signal asks for all tables
    2. after some chunks: pause; what was under way is settled, then nothing is read; resume
    3. when some more are read: kill -9 inside a window, chunks in flight, and start again
    4. the snapshot goes on to its end; no chunk that was settled before is read again
    5. a column is added to a table; writers go on for a while, then stop

Every step waits for what it names, up to a deadline; none waits for a time to pass, but for 5.
"""

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from stack.database import Database
from stack.demo_view import Measured, Screen
from stack.lakemark_process import LakemarkProcess
from stack.loading import RUN, Loading, Place
from stack.processes import StackError
from stack.workload import Workload

PULSE: Final = "pulse"
BEAT_S: Final = 0.25
LOOK_S: Final = 0.1
CHUNK_ROWS: Final = 1000
SIGNAL: Final = {"chunk-rows": CHUNK_ROWS, "parallelism": 2, "delay": "250ms"}
"""Small chunks and a pause after each, so that on a fast machine, too, there are some left to be
paused and killed among."""
PAUSE_AT: Final = 5
"""Settled chunks before the pause."""
KILL_AFTER: Final = 8
"""Chunks that are read between the end of the pause and the kill: some of them are not settled."""
ANSWER_S: Final = 900.0
"""Deadline of every step; a busy machine may need a minute for one."""
ROWS_PER_S: Final = 1000.0
"""That writers change in a shop of full size; in a smaller one there is less to do."""
REST_S: Final = 5.0
"""How long the shop is changed after the snapshot."""
LOAD_S: Final = 120.0
"""How long the shop is changed at most: a slow machine would never catch up with more."""


def create_pulse(database: Database) -> None:
    """Create the table whose one row tells how old the newest change in the lake is."""
    database.execute(f"CREATE TABLE {PULSE} (id int PRIMARY KEY, at {database.INSTANT} NOT NULL)")
    database.execute(f"INSERT INTO {PULSE} VALUES (1, current_timestamp(6))")


def signal_for(database: Database, *, scale: float = 1.0) -> dict[str, Any]:
    """Return the signal that asks for all tables, the largest first."""
    all_tables = database.identifier("").replace(".", r"\.") + ".*"
    tables = [database.identifier("line_items"), database.identifier("orders"), all_tables]
    rows = max(1, round(CHUNK_ROWS * scale))
    return {"data-collections": tables, **SIGNAL, "chunk-rows": rows}


class Load:
    """One load of the shop's tables.

    Args:
        database: the shop, with the table of the pulse.
        lakemark: runs.
        screen: where it is shown.
        seen: what is measured goes there.
        scale: how large the shop is; there are as many chunks in a small one, and fewer changes.

    Attributes:
        workload: the writers.
    """

    def __init__(
        self,
        database: Database,
        lakemark: LakemarkProcess,
        screen: Screen,
        seen: Measured,
        *,
        scale: float = 1.0,
    ) -> None:
        self._signal = signal_for(database, scale=scale)
        self._pulse = database.identifier(PULSE)
        self.workload = Workload(database, rows_per_s=ROWS_PER_S * min(1.0, scale))
        self._lakemark = lakemark
        self._screen = screen
        self._seen = seen
        self._connection = database.connect()
        self._loading = Loading(load(lakemark.config))
        self._beaten = 0.0
        self._write_until = math.inf

    def run(self) -> None:
        """Do all of it.

        Raises:
            StackError: a step did not end well, or not in time.
        """
        with self._connection, self._loading:
            self.workload.start()
            self._write_until = time.monotonic() + LOAD_S
            self._screen.say("changing the shop from now on")
            self._ask()
            begun = time.monotonic()
            self._until(lambda: self._loading.settled >= PAUSE_AT, "the first settled chunks")
            self._pause()
            settled = self._kill()
            self._until(lambda: self._loading.run.has_ended, "the end of the snapshot")
            self._end(settled, time.monotonic() - begun)
            self._add_column()
            end = time.monotonic() + REST_S
            self._until(lambda: time.monotonic() > end, "the rest of the changes")
            self._stop_writing()

    # -- steps ------------------------------------------------------------------------------------

    def _ask(self) -> None:
        self._screen.say("the lake is empty; this signal asks for all tables:")
        shown = json.dumps({"id": RUN, "type": "execute-snapshot", "data": self._signal})
        self._screen.console.print(f"          {shown}", markup=False, soft_wrap=True)
        self._loading.send("execute-snapshot", self._signal, RUN)
        self._until(lambda: self._loading.run.state == "running", "the answer STARTED")

    def _pause(self) -> None:
        loading = self._loading
        loading.send("pause-snapshot", {}, "pause")
        self._until(lambda: loading.run.state == "paused", "the answer PAUSED")
        before = loading.settled
        self._screen.say(f"[bold]paused[/] with {before} chunks settled")
        self._until(self._is_idle, "the last window to be closed")
        self._batch()
        held = len(loading.kept())
        self._screen.say(f"  {held - before} more were under way and are settled now")
        self._batch()
        self._batch()
        after = len(loading.kept())
        if after != held:
            raise StackError(f"{after - held} chunks were settled in a pause")
        loading.send("resume-snapshot", {}, "resume")
        self._until(lambda: loading.run.state == "running", "the answer RESUMED")
        self._screen.say(f"[bold]resumed[/] with {after} chunks settled")
        self._seen.paused = f"{held} chunks were settled when it began, {after} when it ended"

    def _kill(self) -> frozenset[Place]:
        """Return the chunks that are settled when lakemark is dead, and start it again."""
        goal = len(self._loading.attempts) + KILL_AFTER
        self._until(lambda: len(self._loading.attempts) >= goal, "more chunks to be read")
        self._until(self._in_window, "a chunk that waits for its window to be closed")
        killed = time.monotonic()
        self._lakemark.kill()
        self._loading.look(1.0)
        settled = self._loading.kept()
        flying = len(self._loading.in_flight(settled))
        self._screen.say(
            "[bold red]killed lakemark[/]: driver, JVM and Python workers, inside a window; "
            f"{len(settled)} chunks settled, {flying} in flight"
        )
        self._seen.lag, self._seen.earlier = None, self._seen.batches
        self._show()
        writing = "; the shop goes on changing" if self._write_until < math.inf else ""
        with self._screen.doing(f"starting lakemark again{writing}"):
            self._lakemark.start()
        self._seen.restart_s = time.monotonic() - killed
        self._batch()
        self._seen.applied_s = time.monotonic() - killed
        self._screen.say(f"  first batch done {self._seen.applied_s:.1f} s after the kill")
        return settled

    def _end(self, settled: frozenset[Place], seconds: float) -> None:
        """Say what came of the snapshot.

        Raises:
            StackError: a chunk was read again that was settled before the kill.
        """
        loading = self._loading
        self._screen.leave()
        details = loading.run.last.additional_data if loading.run.last else {}
        after = loading.read_in_this_life()
        if again := after & settled:
            raise StackError(f"{len(again)} settled chunks were read again")
        self._seen.snapshot = (
            f"{loading.rows:,} rows in {loading.chunks} chunks, "
            f"{int(details.get('rows_per_second', 0)):,} rows/s while it was reading; "
            f"{seconds:.1f} s with pause and kill"
        )
        self._seen.killed = (
            f"{len(settled)} chunks were settled before it, none of them was read again; "
            f"{len(after)} were read after it"
        )
        self._screen.say(f"[bold]all tables are loaded[/]: {self._seen.snapshot}")
        self._screen.say(f"  {self._seen.killed}")

    def _add_column(self) -> None:
        self._screen.say("[bold]a column is added[/] to shelves, and gets values in some rows")
        self._connection.execute("ALTER TABLE shelves ADD COLUMN checked date")
        self._connection.execute("UPDATE shelves SET checked = '2026-01-31' WHERE id <= 50")

    def _stop_writing(self) -> None:
        if self._write_until < math.inf:
            self._write_until = math.inf
            self._screen.say(f"writes have stopped: {self.workload.stop()}")

    # -- waiting ----------------------------------------------------------------------------------

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        """Show how it goes until something holds.

        Raises:
            StackError: it did not in time; lakemark has ended, or the snapshot has and not well.
        """
        end = time.monotonic() + ANSWER_S
        while not holds():
            if not self._lakemark.is_running:
                raise StackError(f"lakemark has ended\n{self._lakemark.log_tail()}")
            if time.monotonic() > end:
                raise StackError(f"waited {ANSWER_S:g} s in vain for {what}")
            if time.monotonic() > self._write_until:
                self._screen.say(f"this machine is slow: no more changes after {LOAD_S:.0f} s")
                self._stop_writing()
            self._beat()
            self._loading.look()
            self._check(what)
            self._show()
            time.sleep(LOOK_S)

    def _check(self, what: str) -> None:
        run = self._loading.run
        if not run.has_ended or (run.is_good and self._seen.applied_s):
            return
        details = run.last.additional_data if run.last else {}
        why = details.get("reason", "") or run.unread() or f"before {what}"
        raise StackError(f"the snapshot is {run.state}: {why}")

    def _batch(self) -> None:
        """Wait for another finished batch."""
        count = len(self._seen.batches)
        self._until(lambda: len(self._seen.batches) > count, "another batch")

    def _ends(self) -> set[str]:
        """Return the ends of windows so far, written into the database or not."""
        rows = self._connection.execute("SELECT id FROM debezium_signal").fetchall()
        return self._loading.windows.union(end for (end,) in rows)

    def _is_idle(self) -> bool:
        """Whether all windows are closed: no chunk is being read or waits to be settled."""
        ends = self._ends()
        opened = {end.removesuffix("-open") for end in ends if end.endswith("-open")}
        return opened <= {end.removesuffix("-close") for end in ends}

    def _in_window(self) -> bool:
        """Whether the chunk that was read last waits for its window to be closed."""
        ends = self._ends()
        return any(f"{a.window}-close" not in ends for a in self._loading.attempts[-1:])

    def _beat(self) -> None:
        """Change the pulse now and then; after a batch, read it from the lake."""
        if time.monotonic() > self._beaten + BEAT_S:
            self._beaten = time.monotonic()
            beat = f"UPDATE {PULSE} SET at = current_timestamp(6) WHERE id = 1"
            self._connection.execute(beat)
        if self._seen.see(self._lakemark.events("batch.done")):
            self._look()

    def _look(self) -> None:
        """Read the pulse from the lake: its age right after a batch is the lag."""
        path = folder_of(load(self._lakemark.config).lake, self._pulse)
        with suppress(DeltaError, FileNotFoundError):
            held = DeltaTable(path).to_pyarrow_table(columns=["at"]).column("at").to_pylist()
            if held:
                self._seen.lag = (datetime.now(UTC) - held[0]).total_seconds()
                self._seen.lags.append(self._seen.lag)

    def _show(self) -> None:
        written, seen = self.workload.written, self._seen
        lag = "grows: nobody applies them" if seen.lag is None else f"{seen.lag:.1f} s"
        text = (
            f"{written.transactions:,} transactions, {written.rows:,} rows written; "
            f"{seen.events:,} events in {len(seen.batches)} batches applied; lag {lag}"
        )
        run = self._loading.run
        self._screen.now(text, None if run.has_ended else run)
