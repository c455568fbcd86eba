"""The coordinator: carries out runs, one step after the other, in one thread of the driver.

The states of runs and their tables stand in `runs`, those of attempts in `chunk_scheduler`; signals
and notifications are dealt with by `signal_processor`. All of them share one `SnapshotState`.

Order of effects: a step changes the state in memory; at its end the records that follow are
written, again and again until they are acknowledged, see `run_store`. After a crash the same
records are written once more, under the same ids.

Guarantees: a chunk that was stored as settled is never read again. An attempt number is never used
twice: its upper half counts the coordinators of the pipeline.
"""

import math
import queue
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final
from uuid import UUID

import structlog

from lakemark.connectors.database import OpenWindow, Proof, Watermark
from lakemark.errors import ConfigError, DependencyError, LakemarkError
from lakemark.model import positions
from lakemark.model.control import AttemptsBegin, WindowPlace
from lakemark.snapshot import runs
from lakemark.snapshot.chunk_scheduler import ChunkScheduler
from lakemark.snapshot.chunk_splitter import ChunkSplitter
from lakemark.snapshot.completing import Completing
from lakemark.snapshot.output_frontier import OutputFrontier
from lakemark.snapshot.own_verifying import OwnVerifying
from lakemark.snapshot.ports import Ports, Stream
from lakemark.snapshot.retries import Retries
from lakemark.snapshot.run_store import RunStore
from lakemark.snapshot.runs import Chunk, Run, TableRun
from lakemark.snapshot.signal_processor import SignalProcessor
from lakemark.snapshot.snapshot_state import Settings, SnapshotState
from lakemark.snapshot.table_completion import TableCompletion
from lakemark.snapshot.verify_scans import VerifyScans
from lakemark.state import tables
from lakemark.state.progress import PAGE_PREFIX

log = structlog.get_logger(__name__)

COORDINATOR_KEY: Final = b"_coordinator"
# Then what comes in the midst of a reading is left to the next run, or none would ever end.
BEGINS_AGAIN: Final = 3
# Between windows while all runs are paused: shards remember what was changed since the last one.
PAUSED_S: Final = 30.0


class Coordinator:
    """The runs of one pipeline, from `start` on; one thread calls `step` again and again."""

    def __init__(self, ports: Ports, settings: Settings) -> None:
        self.ports = ports
        self.state = state = SnapshotState(settings)
        self.store = RunStore(state, progress=ports, executor=ports)
        self.retries = Retries(state, self.store, executor=ports)
        self.splitter = ChunkSplitter(state, self.store, self.retries, reader=ports)
        self.scheduler = ChunkScheduler(
            state, self.store, self.retries, self.splitter, reader=ports, executor=ports
        )
        self.scans = VerifyScans(state, self.store, self.retries, reader=ports, executor=ports)
        self.completion = TableCompletion(
            state, self.store, self.retries, self.splitter, reader=ports, executor=ports
        )
        self.signals = SignalProcessor(
            state,
            self.store,
            self.retries,
            progress=ports,
            source=ports,
            reader=ports,
            executor=ports,
        )
        self.completing = Completing(
            state, self.store, self.signals, source=ports, windows=ports, executor=ports
        )
        self.verifying = OwnVerifying(state, self.store, source=ports, executor=ports)
        self.frontier = OutputFrontier(state, self.store, windows=ports, executor=ports)
        self.ticked = -math.inf
        self.ticking = False
        self.opened_ms = 0

    # -- life -----------------------------------------------------------------------------------

    def start(self, stream: Stream) -> None:
        """Take up the stored runs: attempts that were under way are over, their chunks wait.

        Raises:
            DependencyError: the progress cannot be read or kept.
            StateVersionError: it was written by a newer lakemark.
        """
        self.state.stream = stream
        self.store.reset()
        self.state.chunks = {}
        self.completion.reset()
        self.scans.reset()
        stored = self.ports.load()
        life = int(stored.get(COORDINATOR_KEY, b"0")) + 1
        self.ports.save({COORDINATOR_KEY: str(life).encode()})
        self.state.next_attempt = life << 32
        self.store.say(AttemptsBegin(attempt=self.state.next_attempt))
        self.signals.take_up(stored)
        self.verifying.take_up(stored)
        pages = {key for key in stored if key.startswith(PAGE_PREFIX)}
        for run, chunks in runs.loaded(stored):
            self.state.runs[run.id] = run
            if run.over:
                self.store.rest(run)
                continue
            if self.signals.skips(run):
                continue
            for table in run.tables:
                if table.table in chunks:
                    pages -= set(runs.page_keys(run.id, table))
                self._resume(run, table, chunks.get(table.table))
            self.store.changed(run)
            if run.state == runs.SCANNING:
                self.scans.again(run)
                continue
            if run.query != stream.query or run.id not in stream.armed:
                run.state = runs.ARMING
            self.store.say_start(run)
        self.store.remove(pages)  # nobody counts on them
        self._follow_snapshots()
        self.store.keep()

    def missed(self) -> Stream:
        """Take in the batches that ended while `start` failed, so that they do not pile up."""
        self.store.reset()
        for event in self._events(0.0):
            event()
        return self.state.stream

    def _resume(self, run: Run, table: TableRun, chunks: list[Chunk] | None) -> None:
        """Take a table up; chunks are None if they are not stored, or needed no more."""
        self.state.chunks[run.id, table.table] = chunks or []
        anew = run.query != self.state.stream.query
        if run.query and (anew or run.batch > self.state.stream.batch):
            if not table.over or table.state == runs.DONE:
                why = "the pipeline began anew" if anew else "the checkpoint is an older one"
                self.store.begin_again(run, table, why)
        elif table.over or table.state == runs.WAITING:
            return
        elif chunks is None:
            self.store.begin_again(run, table, "its chunks are not known")
        elif table.state == runs.SWEEPING:
            self.completion.unswept.append((run, table))
        elif table.state in {runs.CUTTING, runs.CHECKING}:
            table.state = runs.READING if chunks else runs.WAITING

    def planned(self, armed: frozenset[str]) -> None:
        """Note that a batch's offsets are durable, and that these runs' starts are below them.

        That is enough for them to read: a window that opens from now on stands behind those
        offsets, so all that comes after it is in later batches, whose shards know of the runs.
        From any thread.
        """

        def take() -> None:
            self.state.stream = replace(self.state.stream, armed=armed)

        self.state.inbox.put(take)

    def committed(self, stream: Stream, news: Callable[["Coordinator"], None]) -> None:
        """Note that a batch is done; from any thread."""

        def take() -> None:
            begins = stream.epoch != self.state.stream.epoch
            self.state.stream = stream
            news(self)
            if begins:
                self._follow_epoch()
            self._follow_snapshots()

        self.state.inbox.put(take)

    def step(self, timeout: float = 0.0) -> None:
        """Take one step; wait up to `timeout` seconds for something to happen.

        An error of a dependency delays what needs it; nothing is lost.
        """
        for event in self._events(timeout):
            self._tried(event)
        self.signals.answer()
        self.store.arm()
        self.store.disarm()
        self._give_up_stopped()
        now = self.ports.monotonic()
        if now >= self.retries.not_before:
            self._tried(self.signals.queue_repairs)
            self._tried(lambda: self.completing.step(now))
            self._tried(lambda: self.verifying.step(now))
            self._tried(lambda: self._work(now))
        self.store.report(now)
        self._tried(self.store.keep)
        self.retries.over(now)

    def _work(self, now: float) -> None:
        self._tick(now)
        self.scheduler.manifests(now)
        self.scheduler.begin(now)
        self.scans.step(now)
        self.completion.step()
        if self.state.settings.ordered or any(run.verify for run in self.state.active()):
            self.frontier.step(now)
        self.scheduler.unstick(now)
        self.scheduler.name_blocker()

    def _tried(self, work: Callable[[], None]) -> None:
        try:
            work()
        except LakemarkError as error:
            self.retries.failed(error)

    def _events(self, timeout: float) -> Iterator[Callable[[], None]]:
        try:
            yield (
                self.state.inbox.get(timeout=timeout) if timeout else self.state.inbox.get_nowait()
            )
            while True:
                yield self.state.inbox.get_nowait()
        except queue.Empty:
            return

    def _give_up_stopped(self) -> None:
        """Fail tables in runs that stand until a person mends them: the others go on."""
        for run in self.state.active():
            for table in run.tables:
                now = self.state.stream.tables.get(table.table)
                if now is not None and now.code and not table.over:
                    reason = f"{table.table} has stopped: {now.reason}"
                    self.store.fail_table(run, table, now.code, reason, now.hint)

    # -- windows --------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        """Have window rows written in another thread: a commit may wait for a standby for long.

        In the meantime chunks are read on, but none of them gets its `hi`.
        """
        busy = bool(self.state.attempts) or any(not run.paused for run in self.state.active())
        if self.state.active() and not self.state.windows.current and now >= self.ticked + PAUSED_S:
            busy = True  # all are paused: a window is opened, and closed at once
        early = (
            self.state.settings.early if self.state.waits_for(self.state.windows.current) else 0.0
        )
        if self.ticking or not (busy or self.state.windows.current):
            return
        if (
            busy
            and self.state.windows.current
            and now < self.ticked + self.state.settings.interval - early
        ):
            return
        self.ticked = now
        uuid = self.ports.uuid() if busy else ""
        oldest = (
            self.state.windows.oldest(self.state.windows_in_use())
            or uuid
            or self.state.windows.current
        )
        closes, opens = self._window(self.state.windows.current, oldest), self._window(uuid, oldest)
        self.state.windows.leave(self.state.stream.batch, last=not busy)
        stream = self.state.stream

        def tick() -> None:
            try:
                seen = self.ports.tick(closes=closes, opens=opens, reached=stream.reached)
            except Exception as error:  # noqa: BLE001 - raised again in the coordinator's thread
                failure = error
                self.state.inbox.put(lambda: self._tick_failed(failure))
            else:
                self.state.inbox.put(lambda: self._ticked(seen, closes, opens, stream))

        self.ports.submit_tick(tick)
        self.ticking = True

    def _ticked(
        self,
        seen: Watermark | Proof,
        closes: OpenWindow | None,
        opens: OpenWindow | None,
        stream: Stream,
    ) -> None:
        """Take the answer of a tick, which was asked for when the stream was as `stream` says."""
        proof = seen.after if isinstance(seen, Watermark) else seen
        place = positions.of_epoch(stream.epoch, proof.place) if proof.place else b""
        if place and place < stream.reached.position:
            self._tick_failed(_other_log(self.state.settings.qualifier))
        self.ticking = False
        for end, window in (("close", closes), ("open", opens)):
            if place and window is not None:
                self._say_window(window, end, place, proof.life)
        if isinstance(seen, Watermark):
            self.state.windows.open(seen, self.state.windows_in_use())
            self.opened_ms = self.ports.now_ms()
        else:
            self.state.windows.close()
        if self.state.blocked is not None and self.state.windows.ready:
            self.state.blocked = None

    def _tick_failed(self, error: Exception) -> None:
        self.ticking = False
        self.scheduler.window_lost(self.state.windows.lost())
        if not isinstance(error, ConfigError) or error.retried:
            raise error
        self.store.fail_all(error)

    def _say_window(self, window: OpenWindow, end: str, position: bytes, server: str) -> None:
        """Write the record that stands for a window row whose place in the log is known already."""
        self.store.say(
            WindowPlace(
                window=f"{window.uuid}-{end}",
                run=window.run,
                oldest=str(window.oldest),
                position=position.hex(),
                server=server,
            )
        )

    def _window(self, uuid: str, oldest: str) -> OpenWindow | None:
        if not uuid:
            return None
        return OpenWindow(UUID(uuid), self.state.settings.windows, UUID(oldest))

    # -- what begins again ----------------------------------------------------------------------

    def restarted(self, table_name: str) -> None:
        """Begin a table again in all runs over it: the connector reads it anew."""
        for run in self.state.open_runs():
            for table in run.tables:
                if table.table == table_name and not table.over and table.state != runs.WAITING:
                    self.store.begin_again(run, table, "the connector took a snapshot of its own")

    def _follow_epoch(self) -> None:
        """Read again what was not decided when the positions of the source began again.

        Before the epoch is known, windows of the new log get positions of the old one. Shards may
        take them for windows that were used long ago, and would wait for them for ever: so chunks
        take none that was opened by then.
        """
        for run in self.state.open_runs():
            for attempt in self.state.attempts_of(run):
                self.store.void(attempt, "new-epoch")
            self.state.since[run.id] = self.state.windows.begun

    def _follow_snapshots(self) -> None:
        """Begin tables again as `restarted` does, by the stream's state.

        A coordinator that has ended may have missed the event. Rows of the connector's snapshot
        overwrite all others, so all chunks must be read after the last of them; else the sweep
        would take rows for ghosts. Where changes were missed, or more keys are in doubt than are
        listed, a table begins again at most `BEGINS_AGAIN` times; after that, another run answers
        what the present one cannot.
        """
        for run in self.state.open_runs():
            for table in run.tables:
                now = self.state.stream.tables.get(table.table)
                if now is None or table.over or table.state == runs.WAITING:
                    continue
                unlisted = now.reread_missed if table.whole else -1  # by keys nobody learns of them
                missed = max(now.resnapshot_since, unlisted)
                missed = missed if table.begun // 2 < BEGINS_AGAIN else -1
                if max(missed, now.own_batch) > table.armed:
                    self.store.begin_again(run, table, "its rows need to be read anew")


def _other_log(connector: str) -> DependencyError:
    return DependencyError(
        "the log of the database ends before events that were applied: it is another server's",
        code="other-log",
        hint="let database.url lead to the server that the connector reads; after a failover it"
        " goes on by itself once events of the new server have come, or by: "
        + tables.new_epoch_command(connector),
    )
