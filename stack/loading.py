"""A snapshot as the demo shows it: asked for by signals, known from what lakemark writes.

topic           what is learned from it
--------------  ------------------------------------------------------------------------
notifications   how far the run has come; what any user of lakemark follows
control         which chunks were read, each reading under a number of its own
progress        which chunks are settled for good, also after a kill

The last two are lakemark's own; they are read to prove what a kill did and did not interrupt.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from lakemark.kafka.records import Tail, publish, read_compacted
from lakemark.settings.config import Config
from lakemark.snapshot import notifications, runs
from lakemark.snapshot.run_tracker import FollowedRun, then

RUN: Final = "first-load"
"""Id of the signal, and so of the run."""

Place = tuple[str, int]
"""A chunk: its table, and its number there."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A reading of a chunk that is complete: only the close row of its window is waited for.

    Attributes:
        number: of the reading; later ones have higher numbers.
        place: the chunk.
        window: whose close row is its upper bound.
    """

    number: int
    place: Place
    window: str


class Loading:
    """One run from its signal to its end.

    Args:
        config: lakemark's configuration; its topics exist once it has started.

    Attributes:
        run: as its notifications show it.
        attempts: all readings so far, in the order in which they were completed.
        life: number that the readings of lakemark's present life begin with; 0 in its first.
        windows: ends of windows that the control topic has, `<window>-open` and `<window>-close`;
            of a database into which nothing is written, which are all.
    """

    def __init__(self, config: Config) -> None:
        self.run = FollowedRun(RUN)
        self.attempts: list[Attempt] = []
        self.life = 0
        self.windows: set[str] = set()
        self._config = config
        self._notifications = Tail(config, config.topics.notifications)
        self._control = Tail(config, config.topics.control)

    def __enter__(self) -> Self:
        """Is ready when it was made."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves the topics."""
        self._notifications.__exit__()
        self._control.__exit__()

    def send(self, kind: str, data: Mapping[str, Any], id_: str) -> str:
        """Write a signal and return its text."""
        value = json.dumps({"id": id_, "type": kind, "data": data})
        key = self._config.name.encode()
        publish(self._config, self._config.topics.signals, [(key, value.encode())])
        return value

    def look(self, silence_s: float = 0.0) -> None:
        """Take what has come since the last look, until nothing comes for so many seconds."""
        while value := self._control.value(silence_s):
            self._take(json.loads(value))
        while value := self._notifications.value(silence_s):
            found = notifications.read(value)
            if found is not None:
                self.run = then(self.run, found)

    def _take(self, record: Mapping[str, Any]) -> None:
        """Take a control record: a reading, an end of a window, or where a new life begins."""
        if record.get("type") == "window":
            self.windows.add(record["window"])
        elif record.get("type") == "attempts":
            self.life = record["attempt"]
        elif record.get("type") == "chunk" and record.get("run") == RUN:
            place = (record["table"], record["chunk"])
            self.attempts.append(Attempt(record["attempt"], place, record["hi"]))

    @property
    def settled(self) -> int:
        """Chunks that the notifications say are settled."""
        return sum(scan.chunks for scan in self.run.tables.values())

    @property
    def chunks(self) -> int:
        """Chunks of the tables that were cut so far."""
        return sum(scan.total_chunks or 0 for scan in self.run.tables.values())

    @property
    def rows(self) -> int:
        """Rows of the settled chunks."""
        return sum(scan.rows for scan in self.run.tables.values())

    def kept(self) -> frozenset[Place]:
        """Return the chunks that are settled according to what lakemark keeps of its run."""
        return settled_in(read_compacted(self._config, self._config.topics.progress))

    def in_flight(self, settled: frozenset[Place]) -> frozenset[Place]:
        """Return the chunks that were read but are not among those that are settled."""
        return frozenset(attempt.place for attempt in self.attempts) - settled

    def read_in_this_life(self) -> frozenset[Place]:
        """Return the chunks that were read since lakemark was started last."""
        return frozenset(a.place for a in self.attempts if a.number >= self.life)


def settled_in(kept: Mapping[bytes, bytes]) -> frozenset[Place]:
    """Return the chunks of the run that are settled according to records of the progress topic."""
    found: set[Place] = set()
    for run, chunks in runs.loaded(kept):
        if run.id != RUN:
            continue
        for table in run.tables:
            found |= _settled(table, chunks.get(table.table, ()))
    return frozenset(found)


def _settled(table: runs.TableRun, chunks: Iterable[runs.Chunk]) -> set[Place]:
    if table.state == runs.DONE:  # its chunks are no longer kept one by one
        return {(table.table, at) for at in range(table.chunks)}
    return {(table.table, at) for at, chunk in enumerate(chunks) if chunk.done}
