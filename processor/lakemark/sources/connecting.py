"""The connectors of a pipeline, asked for when its query starts.

A pipeline with one connector waits until it can be used. Of several each is for itself, and all are
asked at once: one that cannot be used, or answers later than `ANSWER_S` after the first of them,
leaves its topics and tables out, as if the configuration did not name them (`state.selection`), and
is asked for again; the others do not wait for it. When it is there, the query is started again with
the answer that it gave, however long that took, and its tables go on from where they stopped. A
connector that this process has used goes on as it was known last, unless its settings are others
now: its watch would have the query started again and again.

The topics of one that is away are read for nobody, also where another's names begin likewise
(`shop` and `shop.eu`): by its settings, or as the checkpoint knows its topic prefix.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import structlog

from lakemark.connectors.catalogs import catalog_of
from lakemark.connectors.connect_rest import ATTEMPTS
from lakemark.connectors.connector import Connector, usual_topics
from lakemark.connectors.parts import PipelinePart, parts_of, shared_prefixes
from lakemark.errors import DependencyError, LakemarkError, PipelineError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.ops import question
from lakemark.ops.question import Question
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig
from lakemark.sources.source_set import PipelineSource
from lakemark.state import encoding
from lakemark.state.checkpoint import Checkpoint
from lakemark.state.connector_drift import ChangedError, agree, require_source

log = structlog.get_logger(__name__)

EVERY_S: Final = 15.0
ANSWER_S: Final = 15.0
"""How long the others are waited for. A refused connection to Connect takes 3.5 s with all its
attempts, a rebalance of its workers some seconds; one that hangs would take 44 s."""


@dataclass(frozen=True)
class Connected:
    """A connector that can be used.

    Attributes:
        source: it, as the batches need it.
        captured: the tables that it captures, by the catalog.
        part: its part of the configuration.
        begins: whether it is one of several that the checkpoint has never read.
    """

    source: PipelineSource
    captured: dict[str, TableSchema]
    part: PipelinePart
    begins: bool = False

    def leaving(self, away: Mapping[str, str], others: Iterable[Connector]) -> "Connected":
        """See `Connector.leaving`."""
        connector = self.source.connector
        own = frozenset(map(connector.topic_of, self.captured))
        connector = connector.leaving(away, others, own)
        return replace(self, source=replace(self.source, connector=connector))


@dataclass
class Connecting:
    """The connectors of one configuration; for the supervisor's thread.

    Attributes:
        config: names them.
        away: why some of several cannot be used, by their names.
    """

    config: Config
    away: dict[str, LakemarkError] = field(default_factory=dict)
    _absent: "Absent | None" = None
    _known: dict[str, Connected] = field(default_factory=dict)
    _read: dict[str, Connector] = field(default_factory=dict)

    @property
    def qualifiers(self) -> dict[str, str]:
        """The qualifiers of all connectors by their names; empty where they are not known."""
        read = self._read
        names = [part.name for part in parts_of(self.config)]
        return {name: read[name].qualifier if name in read else "" for name in names}

    def connect(self, checkpoint: Checkpoint, written: Sequence[str]) -> list[Connected]:
        """Return the connectors that can be used, and make the checkpoint agree with them.

        Args:
            checkpoint: of the pipeline.
            written: prefixes of output topics, see `Connector.having_written`.

        Raises:
            PipelineError: the checkpoint is of the other form, see `_require_form`.
            LakemarkError: none of them can; of those for which it is worth to wait the first one
                says it.
        """
        _require_form(checkpoint, several=self.config.several)
        parts = parts_of(self.config)
        answers = self._answers(parts, written)
        self.away, found = {}, dict[str, Connected]()
        for part in parts:
            try:
                answer = answers[part.name]
                found[part.name] = self._accepted(part, answer, checkpoint, found.values())
            except LakemarkError as error:
                if not self.config.several:
                    raise
                self.away[part.name] = error
                log.warning(
                    "connector.away", connector=part.name, code=error.code, reason=error.message,
                    hint=error.hint,
                )  # fmt: skip
        if not found:
            raise min(self.away.values(), key=_is_final)
        self._known |= found
        if not self.config.several:
            return [*found.values()]
        here = {one.source.qualifier for one in found.values()}
        topics = self._topics_away(here, checkpoint.newest().logs)
        return [one.leaving(topics, self._read.values()) for one in found.values()]

    def _topics_away(self, here: Collection[str], known: Iterable[str]) -> dict[str, str]:
        """Return the topics of connectors that are not there, see `Connector.leaving`.

        Args:
            here: the qualifiers of those that are.
            known: of all that were ever read.
        """
        found = {own.start: own.pattern for own in map(usual_topics, known)}
        found |= {one.topic_start: one.own_topics for one in self._read.values()}
        starts = {one.topic_start for one in self._read.values() if one.qualifier in here}
        starts |= {usual_topics(one).start for one in here}
        return {start: own for start, own in found.items() if start not in starts}

    def _answers(
        self, parts: Sequence[PipelinePart], written: Sequence[str]
    ) -> dict[str, Connected | LakemarkError]:
        """Ask all of them at once, but for those that `Absent` has asked.

        Those have just said that they are back; or they have let a start wait for them already, and
        the next one does not.
        """
        if not self.config.several:
            return {part.name: self._ask(part, written) for part in parts}
        known: dict[str, Connected | LakemarkError] = {}
        if self._absent is not None:
            known |= {n: why for n, why in self.away.items() if why.code == question.NO_ANSWER}
            known |= self._absent.back
            self._absent = None
        questions = {
            part.name: Question(f"the connector {part.name}", partial(self._ask, part, written))
            for part in parts
            if part.name not in known
        }
        has_one = any(isinstance(answer, Connected) for answer in known.values())
        return known | question.answers(questions, longer_s=ANSWER_S, has_one=has_one)

    def _ask(
        self, part: PipelinePart, written: Sequence[str], *, attempts: int = ATTEMPTS
    ) -> Connected:
        """Ask Connect and the database; from any thread."""
        connector = self._read[part.name] = part.read(attempts=attempts)
        return _usable(part, connector, written)

    def _accepted(
        self,
        part: PipelinePart,
        answer: Connected | LakemarkError,
        checkpoint: Checkpoint,
        others: Iterable[Connected],
    ) -> Connected:
        try:
            if isinstance(answer, LakemarkError):
                raise answer
            found = _fitting(answer, checkpoint, others)
            connector = found.source.connector
            begins = self.config.several and checkpoint.decoding(connector.qualifier) is None
            agree(part.config, checkpoint, connector)
            found = replace(found, begins=begins)
        except DependencyError:
            known, newest = self._known.get(part.name), self._read.get(part.name)
            if known is None or newest is None or not self.config.several:
                raise
            if encoding.changed(known.source.connector.settings, newest.settings):
                raise
            return known
        return found

    def absent(
        self, checkpoint: Checkpoint, written: Sequence[str], here: Sequence[Connected]
    ) -> "Absent":
        """Return what asks for those that are away.

        Args:
            checkpoint: as for `connect`.
            written: likewise.
            here: the others.
        """

        def asking(part: PipelinePart) -> Callable[[], Connected]:
            return lambda: _fitting(self._ask(part, written, attempts=1), checkpoint, here)

        away = (part for part in parts_of(self.config) if part.name in self.away)
        self._absent = Absent({part.name: asking(part) for part in away})
        return self._absent


class Absent:
    """Asks for connectors that could not be used, in a thread for each: answers take long.

    Attributes:
        back: those that can be used now, by their names.
    """

    def __init__(
        self,
        questions: Mapping[str, Callable[[], Connected]],
        *,
        every_s: float | None = None,
    ) -> None:
        """Note who is away.

        Args:
            questions: by their names; each raises `LakemarkError` if it still cannot be used.
            every_s: seconds between two questions; None = `EVERY_S`.
        """
        self._questions = questions
        self._every_s = EVERY_S if every_s is None else every_s
        self._over = threading.Event()
        self.back: dict[str, Connected] = {}

    def require_absent(self) -> None:
        """Raise `ChangedError` once one of them can be used."""
        if self.back:
            log.info("connector.back", connector=", ".join([*self.back]))
            raise ChangedError

    @contextmanager
    def running(self) -> Iterator["Absent"]:
        """Ask for each every 15 s while the block runs."""
        for name, ask in self._questions.items():
            asking = threading.Thread(
                target=self._run, args=(name, ask), name="absent", daemon=True
            )
            asking.start()
        try:
            yield self
        finally:
            self._over.set()

    def _run(self, name: str, ask: Callable[[], Connected]) -> None:
        while not self._over.wait(self._every_s):
            try:
                self.back[name] = ask()
            except LakemarkError as error:
                log.debug("connector.still_away", code=error.code, reason=error.message)
            except Exception:
                log.exception("connector.internal_error", retried=True)
            else:
                return


def _usable(part: PipelinePart, connector: Connector, written: Sequence[str]) -> Connected:
    """Ask the database of a connector for its tables.

    Raises:
        DependencyError: it does not answer.
        InvalidConfig: the connector cannot be used.
    """
    connector = connector.having_written(written)
    connector.require()
    for problem in connector.problems:
        log.warning(
            "connector.problem", where=problem.path, what=problem.message, hint=problem.hint
        )
    modes = HandlingModes.from_connector(connector.settings)
    catalog = catalog_of(part.config, modes, connector)
    tables = catalog.read(None)
    captured = {table: schema for table, schema in tables.items() if table in connector.tables}
    connector.require_visible([t for t in catalog.tables() if t in connector.chosen])
    return Connected(PipelineSource(part.config, connector, catalog, modes), captured, part)


def _fitting(answer: Connected, checkpoint: Checkpoint, others: Iterable[Connected]) -> Connected:
    """Return a connector that fits the others and the checkpoint.

    Raises:
        InvalidConfig: another one has its topic prefix.
        PipelineError: it is that of another source than before.
    """
    _require_own_prefix(answer.part, answer.source.connector, others)
    require_source(checkpoint, answer.source.connector)
    return answer


def _require_own_prefix(
    part: PipelinePart, connector: Connector, others: Iterable[Connected]
) -> None:
    """Raise `InvalidConfig` if another connector has the same topic prefix."""
    here = [(other.part, other.source.connector) for other in others]
    parts, known = zip(*here, (part, connector), strict=True)
    shared = [mistake for _, mistake in shared_prefixes(parts, known)]
    if shared:
        raise InvalidConfig(shared)


def _is_final(error: LakemarkError) -> tuple[bool, bool]:
    """Return a key to sort by: what goes away by itself comes before what a person has to mend."""
    return not isinstance(error, DependencyError), not error.retried


def _require_form(checkpoint: Checkpoint, *, several: bool) -> None:
    """Raise `PipelineError` if the checkpoint is that of the other form of the configuration.

    Tables have other names in it, and places of the log are other ones' there: events would be
    taken for replays of one, or rows that were never read for those of a table that is complete.
    """
    other = checkpoint.decoding() is not None if several else bool(checkpoint.newest().logs)
    if other:
        was, now = ("source.connect", "source.connectors")[:: 1 if several else -1]
        raise PipelineError(
            f"the checkpoint was made with {was}, not with {now}: tables have other names there",
            code="connector-changed",
            hint=f"set {was} again; or, if {now} is meant, give the pipeline a new checkpoint and "
            "snapshot its tables again",
        )
