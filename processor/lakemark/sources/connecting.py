"""The connectors of a pipeline, asked for when its query starts.

A pipeline with one connector waits until it can be used. Of several each is for itself: one that
cannot be used leaves its topics and tables out, as if the configuration did not name them
(`state.selection`), and is asked for again; the others do not wait for it. When it is there, the
query is started again with it, and its tables go on from where they stopped. A connector that this
process has used goes on as it was known last, unless its settings are others now: its watch would
have the query started again and again.

The topics of one that is away are read for nobody, also where another's names begin likewise
(`shop` and `shop.eu`): by its settings, or as the checkpoint knows its topic prefix.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from lakemark.connectors.catalogs import catalog_of
from lakemark.connectors.connector import Connector, usual_topics
from lakemark.connectors.parts import PipelinePart, parts_of, shared_prefixes
from lakemark.errors import DependencyError, LakemarkError, PipelineError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig
from lakemark.sources.source_set import PipelineSource
from lakemark.state import encoding
from lakemark.state.checkpoint import Checkpoint
from lakemark.state.connector_drift import ChangedError, agree, require_source

log = structlog.get_logger(__name__)

EVERY_S: Final = 15.0


@dataclass(frozen=True)
class Connected:
    """A connector that can be used.

    Attributes:
        source: it, as the batches need it.
        captured: the tables that it captures, by the catalog.
        part: its part of the configuration.
    """

    source: PipelineSource
    captured: dict[str, TableSchema]
    part: PipelinePart

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
        self.away, found = {}, dict[str, Connected]()
        for part in parts_of(self.config):
            try:
                found[part.name] = self._connected(part, checkpoint, written, found.values())
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

    def _connected(
        self,
        part: PipelinePart,
        checkpoint: Checkpoint,
        written: Sequence[str],
        others: Iterable[Connected],
    ) -> Connected:
        try:
            connector = self._read[part.name] = part.read()
            found = _usable(part, connector, checkpoint, written, others)
            agree(part.config, checkpoint, found.source.connector)
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
        return Absent(
            [part for part in parts_of(self.config) if part.name in self.away],
            lambda part: _usable(part, part.read(attempts=1), checkpoint, written, here),
        )


class Absent:
    """Asks for connectors that could not be used, in a thread of its own: answers take long.

    Attributes:
        back: the name of one that can be used now; empty as long as there is none.
    """

    def __init__(
        self,
        parts: Sequence[PipelinePart],
        require: Callable[[PipelinePart], object],
        *,
        every_s: float | None = None,
    ) -> None:
        """Note who is away.

        Args:
            parts: of the configuration.
            require: raises `LakemarkError` if a connector still cannot be used.
            every_s: seconds between two questions; None = `EVERY_S`.
        """
        self._parts, self._require = parts, require
        self._every_s = EVERY_S if every_s is None else every_s
        self._over = threading.Event()
        self.back = ""

    def require_absent(self) -> None:
        """Raise `ChangedError` once one of them can be used."""
        if self.back:
            log.info("connector.back", connector=self.back)
            raise ChangedError

    @contextmanager
    def running(self) -> Iterator["Absent"]:
        """Ask every 15 s while the block runs, if there is anybody to ask for."""
        if self._parts:
            threading.Thread(target=self._run, name="absent", daemon=True).start()
        try:
            yield self
        finally:
            self._over.set()

    def _run(self) -> None:
        while not self.back and not self._over.wait(self._every_s):
            for part in self._parts:
                try:
                    self._require(part)
                except LakemarkError as error:
                    log.debug("connector.still_away", code=error.code, reason=error.message)
                except Exception:
                    log.exception("connector.internal_error", retried=True)
                else:
                    self.back = part.name


def _usable(
    part: PipelinePart,
    connector: Connector,
    checkpoint: Checkpoint,
    written: Sequence[str],
    others: Iterable[Connected],
) -> Connected:
    """Ask the database of a connector for its tables.

    Raises:
        DependencyError: it does not answer.
        InvalidConfig: the connector cannot be used.
        PipelineError: it is that of another source than before.
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
    _require_own_prefix(part, connector, others)
    require_source(checkpoint, connector)
    return Connected(PipelineSource(part.config, connector, catalog, modes), captured, part)


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
