"""The output frontier: the position up to which all changes have gone through the stream.

The rows of a chunk that a shard lets pass go to an output topic, where nothing can be taken back:
every event up to the chunk's `hi` must be there before. Kafka's end offsets alone do not prove
that, because a connector's producer may hold back a record of one partition while later ones of
others are written. One of these does:

* the connector's *committed source offset*: Connect commits it for records that are acknowledged.
  Then the end offsets of the change topics, taken after it, and a batch that has passed them;
* an event past the position in every partition of the tables that are read.

The frontier is a control record (`Fence`); shards decide a chunk when its `hi` is not above it.
"""

from typing import Final

import structlog

from lakemark.errors import DependencyError, LakemarkError
from lakemark.model.control import Fence
from lakemark.model.offsets import has_passed, lowered
from lakemark.snapshot.ports import Committed, Executor, WindowLog
from lakemark.snapshot.run_store import RunStore
from lakemark.snapshot.snapshot_state import SnapshotState

log = structlog.get_logger(__name__)

EVERY_S: Final = 1.0
AGAIN_S: Final = 10.0  # after an error
SAY_AFTER_S: Final = 30.0
CODE: Final = "waits-for-connector"
WAITS: Final = (
    "chunks of tables with output topics wait until the connector shows that all events up to "
    "their windows are in Kafka"
)
HINT: Final = (
    "give lakemark Connect's REST address (source.connect), Connect 3.6 or newer, and set "
    "offset.flush.interval.ms=5000 on its workers; or let every partition of the tables have a "
    "later event"
)


class OutputFrontier:
    """Moves the frontier on while chunks wait for it.

    Attributes:
        trouble: why they wait for long; None while they do not.
    """

    def __init__(
        self, state: SnapshotState, store: RunStore, *, windows: WindowLog, executor: Executor
    ) -> None:
        self.state = state
        self.windows = windows
        self.executor = executor
        self.store = store
        self.said = b""
        self.trouble: LakemarkError | None = None
        self._asking = False
        self._next = 0.0
        self._waits_for: Committed | None = None
        self._since: float | None = None

    def step(self, now: float) -> None:
        """Write the frontier, if it is further than the one written before."""
        if not any(attempt.hi for attempt in self.state.attempts.values()):
            self._since = self.trouble = None
            return
        self._since = now if self._since is None else self._since
        found, stream = self._waits_for, self.state.stream
        if found is not None and has_passed(stream.offsets, found.ends):
            self._waits_for = None
            self._say(found.position, now)
        self._say(self._passed(), now)
        if not self._asking and now >= self._next + (AGAIN_S if self._waits_for else 0.0):
            self._ask(now)
        if now - self._since > SAY_AFTER_S:
            self._since = now
            self.trouble = self.trouble or DependencyError(WAITS, code=CODE, hint=HINT)
            log.warning("snapshot.waits_for_connector", hint=HINT)

    def _say(self, position: bytes, now: float) -> None:
        if position > self.said:
            self.said, self._since, self.trouble = position, now, None
            self.store.say(Fence(position=position.hex()))

    def _passed(self) -> bytes:
        """Return the position that every partition of all tables under runs has passed."""
        tables = {
            table.table for run in self.state.active() for table in run.tables if not table.over
        }
        stream = self.state.stream.tables
        if not tables <= stream.keys():
            return b""
        return min((stream[table].passed for table in tables), default=b"")

    def _ask(self, now: float) -> None:
        self._asking, self._next = True, now + EVERY_S
        windows, inbox = self.windows, self.state.inbox
        epoch = self.state.stream.epoch

        def ask() -> None:
            try:
                found = windows.committed(epoch)
            except Exception as error:  # noqa: BLE001 - raised again in the coordinator's thread
                failure = error
                inbox.put(lambda: self._failed(failure))
            else:
                inbox.put(lambda: self._answered(found))

        self.executor.submit(ask)

    def _failed(self, error: Exception) -> None:
        """Delay the next question to Connect; meanwhile, events may prove as much."""
        self._asking = False
        if not isinstance(error, LakemarkError):
            raise error
        self._next = self.executor.monotonic() + AGAIN_S
        self.trouble = error
        log.warning(
            "snapshot.fence_delayed", code=error.code, reason=error.message, hint=error.hint
        )

    def _answered(self, committed: Committed) -> None:
        """Take an answer of Connect's; one given before is waited for first, see `lowered`."""
        self._asking = False
        before = self._waits_for
        if before is not None and committed.position:
            self._waits_for = Committed(before.position, lowered(before.ends, committed.ends))
        elif committed.position > self.said:
            self._waits_for = committed
