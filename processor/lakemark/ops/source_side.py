"""The source side: do changes come to Kafka, and up to when have all of them come? Pure.

Kafka that has nothing unread says nothing of a connector that has stopped. So the source is looked
at every few seconds, and each look may prove that what had been committed up to some moment has
been sent. What proves it, the first of these that there is:

evidence                                 proves everything up to
---------------------------------------  -------------------------------------------------------
the server says up to where the          the newest look at which its log did not end beyond
connector has received its log           that
the server says that what the connector  this look: it is not far behind (`LogReader.near`); no more
has confirmed is near the log's end      can be seen without rights on the server, or by one look
the newest heartbeat                     the time of the heartbeat
Connect says that all tasks run          this look

Where a problem is known, nothing is proven. An event proves what was committed before it, see
`lag.proven_by`.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lakemark.connectors.connector_traits import ConnectorTraits
from lakemark.connectors.log_watch import LogReader
from lakemark.errors import LakemarkError
from lakemark.ops.connector_trace import last_cause
from lakemark.ops.doctor.checks_connector import Task
from lakemark.ops.status import SourceNow, SourceProblem

RUNNING, PAUSED, STOPPED, FAILED = "RUNNING", "PAUSED", "STOPPED", "FAILED"
UNASSIGNED, RESTARTING, MISSING = "UNASSIGNED", "RESTARTING", "MISSING"
CONNECTOR_STATES: Final = (RUNNING, PAUSED, STOPPED, FAILED, UNASSIGNED, RESTARTING, MISSING)

_GRAVEST: Final = (FAILED, STOPPED, PAUSED, RESTARTING, UNASSIGNED)
# What a rebalance or a restart of the connector shows for a moment: it must be seen twice.
_PASSING: Final = frozenset({"connect-unavailable", "connector-unassigned", "database-unavailable"})
_LOST_HEARTBEATS: Final = 3  # intervals; one may be late
_QUIET_S: Final = 30.0  # no silence is said before
_LOOKS: Final = 4000  # ends of the log that are remembered: hours

Clock = float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Expected:
    """The facts about the source that are known before anybody is asked.

    Attributes:
        name: the connector's.
        place: its address in Connect; empty where only its file is known.
        settings: its configuration.
        heartbeat_s: how often it writes a heartbeat; 0 = never.
        database: whether the database can say how it reads the log.
        traits: of its kind.
        unpromised: see `SourceNow`.
    """

    name: str
    place: str
    settings: Mapping[str, str]
    heartbeat_s: float
    database: bool
    traits: ConnectorTraits
    unpromised: str = ""

    @property
    def watched(self) -> bool:
        """Say whether anything can ever show that changes come."""
        return bool(self.place or self.heartbeat_s or self.database)


@dataclass(frozen=True, slots=True)
class ConnectorSeen:
    """The states of the connector and of its tasks, from Connect."""

    state: str
    tasks: tuple[Task, ...] = ()

    @property
    def worst(self) -> str:
        """Return the gravest of the states; a connector without tasks does nothing."""
        states = {self.state, *(task.state for task in self.tasks)}
        if self.state == RUNNING and not self.tasks:
            states.add(UNASSIGNED)
        return next((state for state in _GRAVEST if state in states), self.state)


@dataclass(frozen=True, slots=True)
class SourceLook:
    """The answers at one moment; an error where somebody did not answer.

    Attributes:
        at: when.
        connector: None where there is only a connector's file.
        reader: what the server says of it; None where there is no database, or it has no say.
        heartbeat: when the newest one was written; None where none is known.
        heartbeats_read: whether Kafka could be asked for heartbeats.
    """

    at: Clock
    connector: ConnectorSeen | LakemarkError | None = None
    reader: LogReader | LakemarkError | None = None
    heartbeat: Clock | None = None
    heartbeats_read: bool = True


class SourceSide:
    """The looks at one source, one after the other.

    Args:
        expected: the facts known before.
        patient: whether there will be more looks: a problem that may pass by itself must then be
            seen twice.
    """

    def __init__(self, expected: Expected, *, patient: bool = True) -> None:
        self._expected, self._patient = expected, patient
        self._begun: Clock | None = None
        self._since: dict[str, Clock] = {}
        self._ends: deque[tuple[Clock, int]] = deque(maxlen=_LOOKS)
        self._proven: Clock | None = None

    def unseen(self, at: Clock) -> SourceNow:
        """Return the source's state before the first look."""
        return SourceNow(_ms(at), self._expected.watched, unpromised=self._expected.unpromised)

    def seen(self, look: SourceLook) -> SourceNow:
        """Return the source's state after a look; `look.at` never goes back."""
        if self._begun is None:
            self._begun = look.at
        problems = {problem[0]: problem for problem in self._problems(look)}
        wait = self._patient and not self._since  # one trouble may follow another at once
        reader = look.reader if isinstance(look.reader, LogReader) else None
        silence = reader.silence if reader else None
        passing = _PASSING | ({silence.code} if silence else set())
        self._since = {code: self._since.get(code, look.at) for code in problems}
        shown = [
            SourceProblem(code, reason, hint, _ms(self._since[code]))
            for code, reason, hint in problems.values()
            if not (wait and code in passing)
        ]
        if not problems:
            self._prove(self._evidence(look))
        if reader is not None:
            self._ends.append((look.at, reader.end))
        return SourceNow(
            _ms(look.at),
            self._expected.watched,
            _word(look.connector),
            reader.name if reader else "",
            reader.active if reader else None,
            reader.distance if reader else None,
            _ms(look.heartbeat) if look.heartbeat is not None else None,
            _ms(self._proven) if self._proven is not None else None,
            tuple(shown),
            self._expected.unpromised,
        )

    # -- what is proven -------------------------------------------------------------------------

    def _prove(self, moment: Clock | None) -> None:
        if moment is not None:
            self._proven = max(moment, self._proven or moment)

    def _evidence(self, look: SourceLook) -> Clock | None:
        if isinstance(look.reader, LogReader):
            return self._by_reader(look.reader, look.at)
        if self._expected.heartbeat_s:
            return look.heartbeat
        return look.at if isinstance(look.connector, ConnectorSeen) else None

    def _by_reader(self, reader: LogReader, at: Clock) -> Clock | None:
        reached = max(reader.received or 0, reader.confirmed or 0)
        if reached >= reader.end:
            return at
        if reader.received is not None and self._patient:
            return next((then for then, end in reversed(self._ends) if end <= reached), None)
        return at if reader.distance is not None and reader.distance <= reader.near else None

    # -- what is wrong --------------------------------------------------------------------------

    def _problems(self, look: SourceLook) -> Iterator[tuple[str, str, str]]:
        """Yield problems (code, reason, hint), causes before their consequences.

        Silence that a stopped connector causes is no problem of its own.
        """
        found = [*self._of_connect(look.connector), *self._of_reader(look.reader)]
        yield from found or self._of_silence(look)

    def _of_connect(
        self, seen: ConnectorSeen | LakemarkError | None
    ) -> Iterator[tuple[str, str, str]]:
        name, place = self._expected.name, self._expected.place
        if seen is None:
            return
        if isinstance(seen, LakemarkError):
            yield seen.code, seen.message, seen.hint
            return
        worst = seen.worst
        if worst in {PAUSED, STOPPED}:
            unread = self._expected.traits.unread_log
            reason = f"the connector {name} is {worst}: no changes come, and {unread}"
            yield "connector-paused", reason, f"`curl -X PUT {place}/resume`"
        elif worst == FAILED:
            code = "connector-failed"
            yield code, self._failed(seen), _again(place)
        elif worst != RUNNING:
            what = "has no task that runs" if worst == UNASSIGNED else f"is {worst}"
            reason = f"the connector {name} {what}: no changes come"
            yield "connector-unassigned", reason, f"see `curl -s {place}/status`; {_again(place)}"

    def _failed(self, seen: ConnectorSeen) -> str:
        failed = [task for task in seen.tasks if task.state == FAILED]
        if not failed:
            return f"the connector {self._expected.name} has FAILED: no changes come"
        cause = last_cause(failed[0].trace, self._expected.settings, self._expected.traits)
        why = f" ({cause})" if cause else ""
        return f"task {failed[0].id} of the connector {self._expected.name} has FAILED{why}"

    def _of_reader(self, seen: LogReader | LakemarkError | None) -> Iterator[tuple[str, str, str]]:
        if isinstance(seen, LogReader) and seen.trouble is not None:
            yield seen.trouble.code, seen.trouble.reason, seen.trouble.hint

    def _of_silence(self, look: SourceLook) -> Iterator[tuple[str, str, str]]:
        expected, reader = self._expected, look.reader
        see = f"see `curl -s {expected.place}/status`" if expected.place else "see its log"
        if isinstance(reader, LogReader) and reader.silence is not None:
            hint = f"wait if the connector {expected.name} is at its own snapshot, else start it"
            yield reader.silence.code, reader.silence.reason, f"{hint}; {see}"
            return
        silent = self._silent_s(look)
        if silent is not None:
            reason = (
                f"the connector {expected.name} has written no heartbeat for {silent:.0f} s, and "
                f"writes one every {expected.heartbeat_s:g} s"
            )
            yield "heartbeat-silent", reason, f"look at the connector: {see}"
        elif isinstance(reader, LakemarkError) and not expected.heartbeat_s:
            yield reader.code, reader.message, reader.hint

    def _silent_s(self, look: SourceLook) -> float | None:
        """Return for how long (seconds) no heartbeat has come; None if that is not too long."""
        every = self._expected.heartbeat_s
        if not every or not look.heartbeats_read:
            return None
        since = look.heartbeat if look.heartbeat is not None else (self._begun or look.at)
        silent = look.at - since
        return silent if silent > max(_LOST_HEARTBEATS * every, _QUIET_S) else None


def _again(place: str) -> str:
    return f"mend it, then `curl -X POST '{place}/restart?includeTasks=true&onlyFailed=true'`"


def _word(seen: ConnectorSeen | LakemarkError | None) -> str:
    if isinstance(seen, ConnectorSeen):
        return seen.worst
    return MISSING if seen is not None and seen.code == "connector-missing" else ""


def _ms(moment: Clock) -> int:
    return int(moment * 1000)
