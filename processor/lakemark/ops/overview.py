"""The pipeline's state as a command sees it from outside.

1. The newest records of the progress topic: brokers that are away are the usual error.
2. The process itself over HTTP, where its address is known and it answers.
3. Otherwise the same board as the process has, told of the records, the checkpoint's offsets, the
   ends of the change topics, the last day's notifications and one look at the source: page and
   command follow one rule.

A checkpoint that cannot be read from here makes the lag unknown, and nothing else.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

import msgspec

from lakemark.connectors.connector import Connector
from lakemark.connectors.parts import PipelinePart, parts_of
from lakemark.errors import DependencyError, LakemarkError
from lakemark.kafka.brokers import Cluster
from lakemark.kafka.records import read_all
from lakemark.model.offsets import Offsets
from lakemark.ops import lag, question, settings_record, source_watch
from lakemark.ops.board import Board
from lakemark.ops.question import Question
from lakemark.ops.served import served_status
from lakemark.ops.status import PipelineNow, PipelineWord, Status
from lakemark.ops.stored_state import newest_state
from lakemark.settings.config import Config
from lakemark.snapshot import notifications
from lakemark.state.progress import PIPELINE, Kept, kept
from lakemark.state.tables import PipelineState

DEADLINE_S: Final = 60.0
"""For everything that the brokers have to say; each call has `kafka.timeout` of its own."""

_CHECKPOINT_S: Final = 10.0  # an object store that is away; the lag is unknown then
_SOURCE_S: Final = 15.0  # those of several that hang, after one has answered: its three questions
_DAY_MS: Final = 86_400_000
_AGAIN_MS: Final = 60_000  # of clocks that do not agree


T = TypeVar("T")


class Overview(msgspec.Struct, frozen=True):
    """The state of a pipeline, seen from outside.

    Attributes:
        status: as `/v1/status` says it; its pipeline is meaningless if `began` is false.
        began: whether the pipeline has ever run.
        asked: the source of it: the pipeline itself over HTTP, or its topics.
        reread_keys: keys of rows that are to be read again, by table; empty while the brokers are
            away.
        unreadable: keys of progress records that cannot be read; empty if the pipeline said all.
    """

    status: Status
    began: bool
    asked: str
    reread_keys: dict[str, list[str]]
    unreadable: tuple[str, ...]


class Lookout:
    """Looks at one pipeline, again and again: the lag is computed from more than one look."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._board = Board(config.name, verify=config.verify)
        self._began = False
        self._answers_since = time.time_ns() // 1_000_000 - _DAY_MS

    def look(self, *, deadline_s: float = DEADLINE_S) -> Overview:
        """Return the state as far as it is known now.

        Raises:
            DependencyError: the brokers do not answer in time.
            InvalidConfig: they do not let us in.
        """
        return Question("Kafka", self._look).result(deadline_s)

    def _look(self) -> Overview:
        status = served_status(self._config)
        asked = "pipeline" if status else "topics"
        found = self._kept(status)
        if status is None:
            status = self._by_topics(found)
        keys = {
            name: list(e.repair.reread_keys)
            for name, e in found.tables.items()
            if e.repair.reread_keys
        }
        began = asked == "pipeline" or bool(found.tables) or PIPELINE in found.others
        return Overview(status, began, asked, keys, found.unreadable)

    def _kept(self, status: Status | None) -> Kept:
        """Return the content of the progress topic.

        It is empty where the pipeline itself has said all of it, or where the brokers are away and
        the pipeline has said so.
        """
        if status is not None and not any(table.rereads for table in status.tables):
            return Kept({}, {})
        try:
            return kept(read_all(self._config, self._config.topics.progress))
        except DependencyError:
            if status is None:
                raise
            return Kept({}, {})

    def _by_topics(self, progress: Kept) -> Status:
        state = PipelineState(tables=progress.tables, proofs=progress.proofs)
        if progress.tables:
            state.batch, state.offsets = self._place()
        (self._board.tables if self._began else self._board.began)(state)
        self._began = True
        self._board.captured(progress.captured())
        self._board.ends(self._ends(state.offsets))
        self._look_at_source()
        for one in self._notifications():
            self._board.notification(one)
        status = self._board.status()
        # Of how fast it goes, only the process knows.
        tables = tuple(msgspec.structs.replace(t, events_per_second=None) for t in status.tables)
        now = _pipeline(progress, status.pipeline)
        return msgspec.structs.replace(status, tables=tables, pipeline=now)

    def _look_at_source(self) -> None:
        """Look at the source for the board; that it cannot be asked is a problem of its own.

        All connectors are asked at once: one that hangs takes nobody else's time.
        """
        here, away = list[tuple[PipelinePart, Connector]](), list[tuple[str, LakemarkError]]()
        parts = parts_of(self._config)
        read = self._asked({one.name: partial(one.read, attempts=1) for one in parts})
        for part in parts:
            answer = read[part.name]
            if not isinstance(answer, LakemarkError):
                here.append((part, answer))
            elif self._config.several:
                away.append((part.name, answer))
            else:
                self._board.source(source_watch.unknown(part.config, answer))
                return
        if self._config.several:
            self._board.connectors({one.qualifier: part.name for part, one in here}, away)
        look = partial(source_watch.look_once, board=self._board)
        looks = self._asked({part.name: partial(look, part.config, one) for part, one in here})
        for error in looks.values():
            if error is not None and error.code != question.NO_ANSWER:
                raise error

    def _asked(self, questions: Mapping[str, Callable[[], T]]) -> dict[str, T | LakemarkError]:
        """Ask connectors at once; see `question.answers`."""
        asked = {name: Question(f"the connector {name}", ask) for name, ask in questions.items()}
        return question.answers(asked, longer_s=_SOURCE_S)

    def _place(self) -> tuple[int, Offsets]:
        """Return batch and offsets of the checkpoint; none where it cannot be read from here."""
        try:
            stored = Question("the checkpoint", lambda: newest_state(self._config))
            state = stored.result(_CHECKPOINT_S).state
        except LakemarkError:
            return -1, {}
        return (state.batch, state.offsets) if state else (-1, {})

    def _ends(self, applied: Offsets) -> lag.Ends | None:
        if not applied:
            return None
        with Cluster(self._config) as cluster:
            ends, starts = cluster.end_offsets(applied), cluster.start_offsets(applied)
        return lag.Ends(lag.offsets(starts), lag.offsets(ends))

    def _notifications(self) -> Iterator[notifications.Notification]:
        since, self._answers_since = self._answers_since, time.time_ns() // 1_000_000 - _AGAIN_MS
        topic = self._config.topics.notifications
        for record in read_all(self._config, topic, since_ms=since):
            found = notifications.read(record.value)
            if found is not None:
                yield found


def _pipeline(progress: Kept, unknown: PipelineNow) -> PipelineNow:
    """Return the pipeline's last record; `unknown` where there is none that can be read."""
    record = progress.others.get(PIPELINE)
    try:
        stored = msgspec.json.decode(record or b"", type=_Said)
        running = settings_record.decode(progress.others.get(settings_record.KEY))
        return PipelineNow(
            stored.state,
            stored.ts_ms,
            running.ts_ms if running else stored.ts_ms,
            stored.code,
            stored.reason,
            stored.hint,
            stored.batch,
        )
    except msgspec.DecodeError:
        return unknown


class _Said(msgspec.Struct):
    state: PipelineWord
    ts_ms: int
    batch: int = -1
    code: str = ""
    reason: str = ""
    hint: str = ""
