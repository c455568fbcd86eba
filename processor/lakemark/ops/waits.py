"""Waiting until all that was committed up to a place of the log is visible in tables of the lake.

Two things have to be shown, by evidence and not by a delay:

1. All of it has come to the stream. Either Connect has committed an offset of the connector's at or
   behind the place (`LogPlace.is_sent`), the change topics' ends were taken afterwards, and a batch
   has passed these ends. Or every partition of the table's topic has brought an event from behind
   the place, and the topic has no other partitions.
2. Nothing of the table is in doubt, see `visibility`.

Where the source is silent nothing would show it: then the log is moved on, see `LogEnd.move`.
Nothing here waits: `Waits.look` is asked again and again, by who waits, and asks others seldom.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from lakemark.connectors.log_place import LogPlace
from lakemark.errors import DependencyError, LakemarkError, RefusedError, cut, nearest
from lakemark.model import positions
from lakemark.model.offsets import Offsets, has_passed, lowered, unread
from lakemark.ops.board import Board
from lakemark.ops.status import SourceProblem
from lakemark.ops.visibility import BEHIND, Hindrance, hindrance, passed
from lakemark.state.tables import PipelineState

CANNOT: Final = "cannot-wait"
AGAIN_S: Final = 10.0
"""Seconds until ends that were not passed are compared with those of now, and the log is moved on
once more. Topics are deleted, and places given that the log has not come to, seldom."""


class SentEvents(Protocol):
    """A connector's side: how far it is, see `sent_events.ConnectorEvents`.

    Attributes:
        name: of the connector, where there are several.
        qualifier: of its tables' names.
        own_whole: whether its own snapshots leave out no row.
        kind: of its positions, see `positions.KINDS`.
        one_topic: whether each of its tables has one topic, whatever comes.
    """

    name: str
    qualifier: str
    own_whole: bool
    kind: str
    one_topic: bool

    def has(self, table: str) -> bool:
        """Say whether a table is this connector's."""

    def end(self) -> LogPlace:
        """Ask the database where its log ends; raises LakemarkError."""

    def place(self, text: str) -> LogPlace:
        """Read a place; raises RefusedError."""

    def ends_past(self, place: LogPlace) -> Offsets | None:
        """Return ends of the change topics that all before a place is below; None = not shown.

        Asks Connect and Kafka where the last answer is old; never for longer than it may take.
        """

    def partitions(self, topic: str) -> int | None:
        """Ask Kafka how many partitions a topic has now; None if it does not say."""

    def move(self, since: float) -> None:
        """Have an event come, unless the log was moved on since then (monotonic seconds)."""

    @property
    def trouble(self) -> LakemarkError | None:
        """The reason why nothing is shown, as far as that is known."""


class WaitRequest(msgspec.Struct, frozen=True):
    """A wait as it is asked for.

    Attributes:
        tables: names; none = all.
        places: of the log, in the words of the database, each with its connector; an empty one
            means the connector that there is, or that the tables have. None = where logs end now.
    """

    tables: tuple[str, ...] = ()
    places: tuple[tuple[str, str], ...] = ()


class AskedPlace(msgspec.Struct, frozen=True):
    """The place of one connector's log that is waited for.

    Attributes:
        connector: the qualifier of its tables; empty for the only one.
        position: as the database prints it.
    """

    connector: str
    position: str


class TableAnswer(msgspec.Struct, frozen=True):
    """One table.

    Attributes:
        table: its name.
        visible: whether everything up to the place is in it.
        version: of the Delta table, that has it; None where there is no table, or not yet.
        code, reason, hint: why not.
    """

    table: str
    visible: bool
    version: int | None = None
    code: str = ""
    reason: str = ""
    hint: str = ""


class WaitAnswer(msgspec.Struct, frozen=True):
    """The answer to a wait: how far it is.

    Attributes:
        visible: whether everything is visible in all tables.
        positions: what is waited for.
        tables: each.
    """

    visible: bool
    positions: tuple[AskedPlace, ...]
    tables: tuple[TableAnswer, ...]


@dataclass(slots=True)
class _Goal:
    """A place that is waited for, and what was shown so far.

    Attributes:
        side: the connector.
        place: of its log.
        since: when it was asked for, monotonic seconds.
        ends: once it is sent, what has to be read.
        next_look: when the ends are compared with those of now.
    """

    side: SentEvents
    place: LogPlace
    since: float
    ends: Offsets | None = None
    next_look: float = 0.0

    def advance(self, state: PipelineState, now: float) -> None:
        """Find out whether it is sent; move the log on where nothing shows it."""
        if self.ends is not None and has_passed(state.offsets, self.ends):
            return
        if self.ends is None or now >= self.next_look:
            ends = self.side.ends_past(self.place)
            if ends is not None:
                self.ends = ends if self.ends is None else lowered(self.ends, ends)
                self.next_look = now + AGAIN_S
            elif self.ends is None:
                self.side.move(max(self.since, now - AGAIN_S))

    def lacks(self, state: PipelineState, problem: SourceProblem | None) -> Hindrance | None:
        """Return what has to come yet; None if everything has.

        Args:
            state: of the tables.
            problem: why no changes come at all, if that is known.
        """
        if self.ends is None:
            if problem is not None:
                return Hindrance(problem.code, problem.reason, problem.hint)
            trouble = self.side.trouble
            if trouble is not None:
                return Hindrance.of(trouble)
            reason = f"the connector has not shown yet that all up to {self.place.text} is in Kafka"
            return Hindrance("waits-for-connector", reason, HINT)
        if has_passed(state.offsets, self.ends):
            return None
        left = unread(state.offsets, self.ends)
        return Hindrance(BEHIND, f"{left} records of the connector are to be applied yet")


HINT: Final = (
    "it shows it by the offsets that Connect commits (source.connect, offset.flush.interval.ms), "
    "by heartbeats (heartbeat.interval.ms), or by later events of all partitions of the table"
)


@dataclass(slots=True)
class Wait:
    """A wait under way; for one thread at a time.

    Attributes:
        tables: which.
        goals: by the qualifier of the connector.
        passed: tables of which every partition has passed the place.
    """

    tables: tuple[str, ...]
    goals: dict[str, _Goal]
    passed: set[str] = field(default_factory=set)

    def goal_of(self, table: str) -> _Goal:
        """Return what a table waits for."""
        return next(goal for goal in self.goals.values() if goal.side.has(table))


class Waits:
    """Waits in the process that runs the pipeline; every method may be called from any thread.

    Args:
        board: has the tables' states.
        clock: monotonic seconds.
    """

    def __init__(self, board: Board, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._board, self._clock = board, clock
        self._lock = threading.Lock()
        self._sides: tuple[SentEvents, ...] = ()
        self._newest: Callable[[str], int | None] = lambda _: None

    @contextmanager
    def attached(
        self, sides: Sequence[SentEvents], newest: Callable[[str], int | None]
    ) -> Iterator[None]:
        """Answer while the block runs, and a pipeline with it.

        Args:
            sides: of its connectors.
            newest: the newest version of a table of the lake; None without one. May raise
                LakemarkError.
        """
        with self._lock:
            self._sides, self._newest = tuple(sides), newest
        try:
            yield
        finally:
            with self._lock:
                self._sides = ()

    def begin(self, request: WaitRequest) -> Wait:
        """Return the wait that is asked for; asks the databases where their logs end.

        Raises:
            RefusedError: ``unknown-table``, ``bad-value``: it cannot be waited for.
            DependencyError: ``cannot-wait``, or the database is away.
            LakemarkError: it cannot be asked.
        """
        sides = self._attached()
        tables = self._tables(request, sides)
        own = [side for side in sides if any(map(side.has, tables))]
        now = self._clock()
        if not request.places:
            goals = {one.qualifier: _Goal(one, one.end(), now) for one in own}
        else:
            goals = {
                side.qualifier: _Goal(side, side.place(text), now)
                for side, text in _placed(request, sides, own)
            }
        if not request.tables:
            tables = tuple(t for t in tables if any(g.side.has(t) for g in goals.values()))
        for table in tables:
            if not any(goal.side.has(table) for goal in goals.values()):
                raise _ambiguous(f"no position is given for the database of {table}", sides)
        return Wait(tables, goals)

    def look(self, wait: Wait) -> WaitAnswer:
        """Return how far a wait is.

        Raises:
            DependencyError: ``cannot-wait``.
        """
        self._attached()
        now = self._clock()
        state = self._board.applied()
        for table in wait.tables:
            if table not in wait.passed and self._is_passed(wait.goal_of(table), state, table):
                wait.passed.add(table)
        for goal in wait.goals.values():
            if any(goal.side.has(table) for table in wait.tables if table not in wait.passed):
                goal.advance(state, now)
        tables = tuple(self._answer(wait, state, table) for table in wait.tables)
        asked = tuple(AskedPlace(one, goal.place.text) for one, goal in wait.goals.items())
        return WaitAnswer(all(one.visible for one in tables), asked, tables)

    def _answer(self, wait: Wait, state: PipelineState, table: str) -> TableAnswer:
        goal = wait.goal_of(table)
        found = hindrance(state, table, own_whole=goal.side.own_whole)
        if found is None and table not in wait.passed:
            found = goal.lacks(state, self._board.source_problem(goal.side.qualifier))
        if found is None:
            try:
                return TableAnswer(table, visible=True, version=self._newest(table))
            except LakemarkError as error:
                found = Hindrance.of(error)
        return TableAnswer(
            table, visible=False, code=found.code, reason=found.reason, hint=found.hint
        )

    def _is_passed(self, goal: _Goal, state: PipelineState, table: str) -> bool:
        """Say whether every partition of the table's topic has an event from behind the place."""
        side = goal.side
        if not side.one_topic or side.kind not in positions.KINDS:
            return False
        epoch = positions.epoch_number(side.kind, len(state.log_of(side.qualifier).epochs))
        position = passed(state, table, epoch=epoch)
        if not position or not goal.place.is_passed(position):
            return False
        # A new partition may have something from before the place: it is there by now.
        (topic,) = state.tables[table].topics
        return side.partitions(topic) == len(state.offsets[topic])

    def _attached(self) -> tuple[SentEvents, ...]:
        with self._lock:
            sides = self._sides
        if not sides:
            raise DependencyError(
                "the pipeline does not stream here now: it starts, stands by or is degraded",
                code=CANNOT,
                hint="ask again; /healthz and /v1/status say what it does",
            )
        return sides

    def _tables(self, request: WaitRequest, sides: Sequence[SentEvents]) -> tuple[str, ...]:
        known = [one.name for one in self._board.status().tables if one.state != "dropped"]
        here = tuple(table for table in known if any(side.has(table) for side in sides))
        for table in request.tables:
            if table not in here:
                raise RefusedError(
                    f"there is no table {cut(table)} in this pipeline",
                    code="unknown-table",
                    hint=nearest(table, here, "lakemark status lists its tables"),
                )
        if not here:
            raise RefusedError(
                "the pipeline has no tables",
                code="unknown-table",
                hint="see what the connector captures: lakemark doctor",
            )
        return tuple(dict.fromkeys(request.tables)) or here


def _placed(
    request: WaitRequest, sides: Sequence[SentEvents], own: Sequence[SentEvents]
) -> Iterator[tuple[SentEvents, str]]:
    """Yield the places that are given, each with its connector."""
    names: Mapping[str, SentEvents] = {
        name: side for side in sides for name in (side.name, side.qualifier) if name
    }
    for connector, text in request.places:
        if connector:
            if connector not in names:
                raise RefusedError(
                    f"there is no connector {cut(connector)} in this pipeline",
                    code="bad-value",
                    hint=nearest(connector, names, "lakemark status lists them"),
                )
            yield names[connector], text
        elif len(own) == 1:
            yield own[0], text
        else:
            raise _ambiguous("a position is one of a single database's log", sides)


def _ambiguous(message: str, sides: Sequence[SentEvents]) -> RefusedError:
    named = ", ".join(sorted(side.name or side.qualifier for side in sides))
    return RefusedError(
        message,
        code="bad-value",
        hint=f"name the connector of each position, or tables of one database alone; here: {named}",
    )
