"""The coordinator: carries out runs, one step after the other, in one thread of the driver.

The states of runs and their tables stand in `runs`, those of chunks in `reading`; signals and
notifications are dealt with at the `desk`.

Order of effects: what a step changes it changes in memory; what follows goes out at its end, and
again until it is acknowledged, see `book`. After a crash the same is said once more, under the
same ids.

Guarantees: a chunk whose settling was kept is never read again. An attempt number is never used
twice: its upper half counts the coordinators of the pipeline.
"""

import math
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from uuid import UUID

import structlog

from lakemark.connectors.postgres.postgres_windows import OpenWindow
from lakemark.connectors.postgres.visibility import Snapshot, Watermark
from lakemark.errors import ConfigError, LakemarkError
from lakemark.snapshot import runs
from lakemark.snapshot.chunk_scheduler import ChunkScheduler
from lakemark.snapshot.chunks import INTERNAL, REPORT
from lakemark.snapshot.completing import Completing
from lakemark.snapshot.output_frontier import OutputFrontier
from lakemark.snapshot.ports import Ports, Stream
from lakemark.snapshot.run_store import RunStore
from lakemark.snapshot.runs import Chunk, Run, TableRun
from lakemark.snapshot.signal_processor import SignalProcessor
from lakemark.snapshot.table_completion import TableCompletion
from lakemark.snapshot.windows import Windows
from lakemark.state.progress import PAGE_PREFIX

T = TypeVar("T")

log = structlog.get_logger(__name__)

COORDINATOR_KEY: Final = b"_coordinator"
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 30.0
SHORTEST_S: Final = 0.1  # between window rows
# Then what comes in the midst of a reading is left to the next run, or none would ever end.
BEGINS_AGAIN: Final = 3
# Between windows while all runs are paused: shards remember what was changed since the last one.
PAUSED_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the configuration says.

    Attributes:
        pipeline: its name.
        shards: number of shards.
        chunk_rows, parallelism, delay: of runs that do not say otherwise; parallelism is also the
            most that all runs together get.
        interval: seconds between window rows, at most.
        rest: seconds after a run in which its tables get none by themselves, at least.
        ordered: whether chunks wait for the fence: where there are output topics.
        completes: whether tables that have never been complete are read by themselves.
        own_rows: whether the connector reads tables itself as it begins.
        own_whole: whether it reads all of their rows then.
    """

    pipeline: str
    shards: int
    chunk_rows: int = 100_000
    parallelism: int = 4
    delay: float = 0.0
    interval: float = 1.0
    rest: float = 60.0
    ordered: bool = False
    completes: bool = False
    own_rows: bool = False
    own_whole: bool = True

    @property
    def early(self) -> float:
        """By how many seconds window rows come earlier when a chunk waits for them."""
        return self.interval - max(self.interval / 4, min(self.interval, SHORTEST_S))

    @property
    def windows(self) -> str:
        """What window rows name as their run: all runs of the pipeline share them."""
        return f"lakemark:{self.pipeline}"


class Coordinator:
    """The runs of one pipeline, from `start` on; one thread calls `step` again and again."""

    def __init__(self, outside: Ports, settings: Settings) -> None:
        self.outside = outside
        self.settings = settings
        self.inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.windows = Windows()
        self.stream = Stream("", -1, frozenset(), {})
        self.book = RunStore(self)
        self.desk = SignalProcessor(self)
        self.reading = ChunkScheduler(self)
        self.fence = OutputFrontier(self)
        self.completing = Completing(self)
        self.finishing = TableCompletion(self)
        self.ticked = -math.inf
        self.ticking = False
        self.not_before = 0.0
        self.wait = FIRST_WAIT_S
        self.trouble: LakemarkError | None = None
        self.opened_ms = 0

    # -- life -----------------------------------------------------------------------------------

    def start(self, stream: Stream) -> None:
        """Takes up where the last one ended: attempts under way are over, their chunks wait.

        Raises:
            DependencyError: the progress cannot be read or kept.
            StateVersionError: it was written by a newer lakemark.
        """
        self.stream = stream
        self.book.reset()
        self.reading.chunks = {}
        self.finishing.reset()
        kept = self.outside.load()
        life = int(kept.get(COORDINATOR_KEY, b"0")) + 1
        self.outside.save({COORDINATOR_KEY: str(life).encode()})
        self.reading.next_attempt = life << 32
        self.book.say({"type": "attempts", "attempt": self.reading.next_attempt})
        self.desk.take_up(kept)
        pages = {key for key in kept if key.startswith(PAGE_PREFIX)}
        for run, chunks in runs.loaded(kept):
            self.book.runs[run.id] = run
            if run.over:
                self.desk.rest(run)
                continue
            if self.desk.skips(run):
                continue
            for table in run.tables:
                if table.table in chunks:
                    pages -= set(runs.page_keys(run.id, table))
                self._resume(run, table, chunks.get(table.table))
            if run.query != stream.query or run.id not in stream.armed:
                run.state = runs.ARMING
            self.book.changed(run)
            self.book.say_start(run)
        self.book.remove(pages)  # nobody counts on them
        self._follow_snapshots()
        self.book.keep()

    def missed(self) -> Stream:
        """What batches have said while `start` failed: nobody else takes it, it would pile up."""
        self.book.reset()
        for event in self._events(0.0):
            event()
        return self.stream

    def _resume(self, run: Run, table: TableRun, chunks: list[Chunk] | None) -> None:
        """Takes a table up; chunks are None if they are not kept, or needed no more."""
        self.reading.chunks[run.id, table.table] = chunks or []
        anew = run.query != self.stream.query
        if run.query and (anew or run.batch > self.stream.batch):
            if not table.over or table.state == runs.DONE:
                why = "the pipeline began anew" if anew else "the checkpoint is an older one"
                self.reading.begin_again(run, table, why)
        elif table.over or table.state == runs.WAITING:
            return
        elif chunks is None:
            self.reading.begin_again(run, table, "its chunks are not known")
        elif table.state == runs.SWEEPING:
            self.finishing.unswept.append((run, table))
        elif table.state in {runs.CUTTING, runs.CHECKING}:
            table.state = runs.READING if chunks else runs.WAITING

    def planned(self, armed: frozenset[str]) -> None:
        """The offsets of a batch are kept, and the starts of these runs are below them.

        That is enough for them to read: a window that opens from now on stands behind those
        offsets, so all that comes after it is in later batches, whose shards know of the runs.
        From any thread.
        """

        def take() -> None:
            self.stream = replace(self.stream, armed=armed)

        self.inbox.put(take)

    def committed(self, stream: Stream, news: Callable[["Coordinator"], None]) -> None:
        """A batch is done; from any thread."""

        def take() -> None:
            self.stream = stream
            news(self)
            self._follow_snapshots()

        self.inbox.put(take)

    def step(self, timeout: float = 0.0) -> None:
        """Does what there is to do; waits up to `timeout` seconds for something to happen.

        An error of a dependency delays what needs it; nothing is lost.
        """
        for event in self._events(timeout):
            self._tried(event)
        self.desk.answer()
        self.book.arm()
        self.book.disarm()
        self._give_up_stopped()
        now = self.outside.monotonic()
        if now >= self.not_before:
            self._tried(self.desk.queue_repairs)
            self._tried(lambda: self.completing.step(now))
            self._tried(lambda: self._work(now))
        self.book.report(now)
        self._tried(self.book.keep)
        if now >= self.not_before + self.wait:
            self.wait = FIRST_WAIT_S  # for as long nothing has failed
            self.trouble = None

    def _work(self, now: float) -> None:
        self._tick(now)
        self.reading.manifests(now)
        self.reading.begin(now)
        self.finishing.step()
        if self.settings.ordered:
            self.fence.step(now)
        self.reading.unstick(now)
        self.reading.name_blocker()

    def _tried(self, work: Callable[[], None]) -> None:
        try:
            work()
        except LakemarkError as error:
            self.failed(error)

    def _events(self, timeout: float) -> Iterator[Callable[[], None]]:
        try:
            yield self.inbox.get(timeout=timeout) if timeout else self.inbox.get_nowait()
            while True:
                yield self.inbox.get_nowait()
        except queue.Empty:
            return

    def failed(self, error: LakemarkError) -> None:
        """Something is away: everything that needs it is tried again later.

        What fails while that is waited for does not prolong it.
        """
        self.trouble = error
        now = self.outside.monotonic()
        if now >= self.not_before:
            self.not_before = now + self.wait
            self.wait = min(LONGEST_WAIT_S, self.wait * 2)
        self.delayed(error, self.not_before - now)

    def delayed(self, error: LakemarkError, wait: float) -> None:
        """Says what is tried again after so many seconds."""
        log.warning(
            "snapshot.delayed", code=error.code, reason=error.message, hint=error.hint,
            next_try_s=round(wait, 1),
        )  # fmt: skip

    def active(self) -> list[Run]:
        """Runs that read, the most urgent first."""
        found = [run for run in self.book.runs.values() if run.state == runs.READING]
        return sorted(found, key=lambda run: (-run.priority, run.number))

    def is_loading(self, table: TableRun) -> bool:
        """Whether rows of a snapshot of the connector's own came in the newest batch."""
        now = self.stream.tables.get(table.table)
        return now is not None and 0 <= now.own_batch == self.stream.batch

    def streams(self, table: TableRun) -> bool:
        """Whether the stream applies the table's changes now; only then are its chunks."""
        found = self.stream.tables.get(table.table)
        return found is None or found.streaming

    def rebuild_of(self, table: str) -> str:
        """Name of the rebuild that a table is in; empty = none."""
        found = self.stream.tables.get(table)
        return "" if found is None else found.rebuild

    def ask(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        run: Run,
        table: TableRun,
        begun: int,
    ) -> None:
        """Has work done elsewhere; what comes of it is dealt with in a later step."""

        def run_it() -> None:
            try:
                answer = work()
            except LakemarkError as error:
                failure = error
                self.inbox.put(lambda: self.work_failed(run, table, begun, failure))
            except Exception as error:
                log.exception("snapshot.internal_error", table=table.table)
                defect = LakemarkError(type(error).__name__, code=INTERNAL, hint=REPORT)
                self.inbox.put(lambda: self.work_failed(run, table, begun, defect))
            else:
                self.inbox.put(lambda: tell(answer))

        def tell(answer: T) -> None:
            self.reading.answered(run, table)
            done(answer)

        self.outside.submit(run_it)

    def work_failed(self, run: Run, table: TableRun, begun: int, error: LakemarkError) -> None:
        """What was asked for a table failed: it is tried again, or the table fails."""
        if table.begun != begun or table.over or run.over:
            return
        table.state = runs.READING if table.chunks else runs.WAITING
        if error.retried:
            if not self.reading.put_off(run, table, error):
                self.failed(error)
        else:
            self.book.fail_table(run, table, error.code, error.message, error.hint)

    def _give_up_stopped(self) -> None:
        """A table that has stopped until a person mends it holds up no run: the others go on."""
        for run in self.active():
            for table in run.tables:
                now = self.stream.tables.get(table.table)
                if now is not None and now.code and not table.over:
                    reason = f"{table.table} has stopped: {now.reason}"
                    self.book.fail_table(run, table, now.code, reason, now.hint)

    # -- windows --------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        """Has window rows written, elsewhere: a commit may wait for a standby as long as it likes.

        In the meantime chunks are read on, but none of them gets its `hi`.
        """
        busy = bool(self.reading.attempts) or any(not run.paused for run in self.active())
        if self.active() and not self.windows.current and now >= self.ticked + PAUSED_S:
            busy = True  # all are paused: a window is opened, and closed at once
        early = self.settings.early if self.reading.waits_for(self.windows.current) else 0.0
        if self.ticking or not (busy or self.windows.current):
            return
        if busy and self.windows.current and now < self.ticked + self.settings.interval - early:
            return
        self.ticked = now
        uuid = self.outside.uuid() if busy else ""
        oldest = self.windows.oldest(self.reading.in_use()) or uuid or self.windows.current
        closes, opens = self._window(self.windows.current, oldest), self._window(uuid, oldest)
        self.windows.leave(self.stream.batch, last=not busy)

        def tick() -> None:
            try:
                seen = self.outside.tick(closes=closes, opens=opens)
            except Exception as error:  # noqa: BLE001 - raised again in the coordinator's thread
                failure = error
                self.inbox.put(lambda: self._tick_failed(failure))
            else:
                self.inbox.put(lambda: self._ticked(seen))

        self.outside.submit_tick(tick)
        self.ticking = True

    def _ticked(self, seen: Watermark | Snapshot) -> None:
        self.ticking = False
        if isinstance(seen, Watermark):
            self.windows.open(seen, self.reading.in_use())
            self.opened_ms = self.outside.now_ms()
        else:
            self.windows.close()
        if self.reading.blocked is not None and self.windows.ready:
            self.reading.blocked = None

    def _tick_failed(self, error: Exception) -> None:
        self.ticking = False
        self.reading.window_lost(self.windows.lost())
        if not isinstance(error, ConfigError) or error.retried:
            raise error
        self.book.fail_all(error)

    def _window(self, uuid: str, oldest: str) -> OpenWindow | None:
        if not uuid:
            return None
        return OpenWindow(UUID(uuid), self.settings.windows, UUID(oldest))

    # -- what begins again ----------------------------------------------------------------------

    def restarted(self, table_name: str) -> None:
        """The connector reads a table anew: the runs over it begin it again."""
        for run in self.book.open():
            for table in run.tables:
                if table.table == table_name and not table.over and table.state != runs.WAITING:
                    self.reading.begin_again(run, table, "the connector took a snapshot of its own")

    def _follow_snapshots(self) -> None:
        """As `restarted`, by what the stream keeps: a coordinator that ended may have missed it.

        Rows of such a snapshot overwrite whatever is there, so all chunks must be read after the
        last of them; else the sweep would take rows for ghosts. Where it is only that changes were
        missed, or that more keys are in doubt than are listed, the reading serves nobody: but what
        is not answered by it gets a run of its own.
        """
        for run in self.book.open():
            for table in run.tables:
                now = self.stream.tables.get(table.table)
                if now is None or table.over or table.state == runs.WAITING:
                    continue
                unlisted = now.reread_missed if table.whole else -1  # by keys nobody learns of them
                missed = max(now.resnapshot_since, unlisted)
                missed = missed if table.begun // 2 < BEGINS_AGAIN else -1
                if max(missed, now.own_batch) > table.armed:
                    self.reading.begin_again(run, table, "its rows need to be read anew")
