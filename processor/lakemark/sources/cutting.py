"""Batches that end between two transactions, and the proof that they do: ``stream.cuts``.

The runner plans a batch up to where Kafka's topics end, which is in the midst of transactions. Here
the batch is made to end earlier: behind a transaction whose end the transaction topic tells, where
the events of later ones begin in each partition. What is held back is the next batch's. While a run
of snapshots is armed nothing is, since its rows are of no transaction.

That a batch ends at a cut is proved afterwards, table by table, and not taken from where it was
made to end (`CutProgress`):

1. *all has come*: the events that the ends of transactions count are as many as those that came;
2. *no more has come*: no partition is past the transactions that have ended.

Counts go wrong where a connector sends events again, or a transform drops some; a table of which
that may be so is doubted. One whose every partition has an event of a later transaction has all
that is before it, whatever the counts say: a partition is written in the log's order. So have all
tables where nothing has come since the connector committed its offsets. There the counts begin
anew.
"""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import structlog

from lakemark.connectors.connector import Connector
from lakemark.converters.registry import converter_of
from lakemark.errors import DependencyError
from lakemark.model import positions
from lakemark.model.cuts import CutProgress, SourceCut
from lakemark.model.decoding import AppliedPosition, Records, Report, StretchPlan
from lakemark.model.events import Kind
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.offsets import EARLIEST, Offsets, has_passed
from lakemark.model.positions import PositionRules
from lakemark.model.transactions import TransactionEnd
from lakemark.ops.visibility import hindrance
from lakemark.settings.table_id import plain_of, unqualified
from lakemark.source import later_events, raw_records
from lakemark.source.later_events import Look, Place, SeenEvent
from lakemark.source.offset_ranges import OffsetRange
from lakemark.state.tables import STREAMING, PipelineState, TableState

log = structlog.get_logger(__name__)

TRANSACTIONS: Final = "transactions"
"""Of `stream.cuts`; and what `Connector.other_topics` calls the topic, without its end."""
HELD_S: Final = 30.0
"""So long nothing but what is held back may wait for a transaction's end; then it is applied."""
EXPIRED: Final = "source-data-expired"
_ONLY: Final = 0  # the partition of a transaction topic
_EVENTS: Final = frozenset({int(Kind.CHANGE), int(Kind.TRUNCATE)})

Read = Callable[[Sequence[OffsetRange]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class TransactionTopic:
    """The transaction topic of one connector, and what its events are read by.

    Attributes:
        name: of the topic.
        connector: whose.
        modes: its settings.
        has_rows: says of a topic whether it has rows of the connector's tables.
        sent: returns ends of its topics that all of a transaction, and all before, is below, by the
            offsets that Connect has committed; None where these do not show it.
        from_start: whether a new checkpoint reads it, and all others, from the beginning.
    """

    name: str
    connector: Connector
    modes: HandlingModes
    has_rows: Callable[[str], bool]
    sent: Callable[[str], Offsets | None] = lambda _: None
    from_start: bool = True

    @property
    def qualifier(self) -> str:
        """See `Connector`."""
        return self.connector.qualifier

    def has(self, table: str) -> bool:
        """Say whether a table is the connector's."""
        return unqualified(self.qualifier, table) is not None


@dataclass(slots=True)
class _OfConnector:
    """The part of a batch that is one connector's.

    Attributes:
        ended: transactions that end in it, in the log's order.
        may_be: whether it can end at a cut at all: not where rows of snapshots come.
        later: partitions that have events of later transactions.
        held: number of records that are held back.
    """

    ended: list[TransactionEnd]
    may_be: bool
    later: set[Place] = field(default_factory=set)
    held: int = 0


@dataclass(slots=True)
class _EndsRead:
    """The ends of transactions that were read and are not counted, from the topic.

    Attributes:
        read: the offset up to which the topic was read.
        ends: in their order.
    """

    read: int
    ends: list[TransactionEnd] = field(default_factory=list)


@dataclass(slots=True)
class Cutting:
    """The cuts of all connectors of a pipeline; none without topics.

    Attributes:
        topics: the transaction topics.
        read: reads ranges of topics.
        ends: where topics end now.
        most: so many records may be held back.
        holds: whether any are; not by a pipeline that ends with what is there.
        clock: monotonic seconds.
        offsets: where the batch at hand ends.
    """

    topics: Sequence[TransactionTopic] = ()
    read: Read = lambda _: ()
    ends: Callable[[Sequence[str]], Offsets] = lambda _: {}
    most: int = 0
    holds: bool = True
    clock: Callable[[], float] = time.monotonic
    offsets: Offsets = field(default_factory=dict)
    _begun: bool = False  # a batch that is repeated may have read all that was planned
    _windows: dict[str, _EndsRead] = field(default_factory=dict)
    _batch: dict[str, _OfConnector] = field(default_factory=dict)
    _waits_since: float | None = None
    _refused: set[str] = field(default_factory=set)

    @property
    def own_topics(self) -> frozenset[str]:
        """The topics that are read here, and by no task."""
        return frozenset(topic.name for topic in self.topics)

    def waits(self) -> bool:
        """Say whether records have been held back for so long that a batch has to apply them."""
        return self._waits_since is not None and self.clock() - self._waits_since > HELD_S

    # -- before the tasks ---------------------------------------------------------------------

    def begin(self, state: PipelineState, before: PipelineState) -> None:
        """Have a batch end between two transactions.

        Args:
            state: the state being made; its offsets are what was planned, and are lowered.
            before: the state before the batch.

        Raises:
            DependencyError: the brokers are away.
        """
        self._batch = {}
        own = {topic.qualifier for topic in self.topics}
        for name, log_state in [("", state), *state.logs.items()]:
            if name not in own:  # what comes meanwhile is not counted: it begins anew some day
                log_state.cutting = CutProgress(kept=log_state.cutting.kept)
        for topic in self.topics:
            holds = self._begun and not (state.runs or state.deferred or self.waits())
            found = self._of(topic, state, before, holds=holds)
            if found is not None:
                self._batch[topic.qualifier] = found
        state.held = sum(one.held for one in self._batch.values())
        self.offsets, self._begun = state.offsets, self.holds
        if not state.held:
            self._waits_since = None
        elif self._waits_since is None or any(one.ended for one in self._batch.values()):
            self._waits_since = self.clock()

    def _of(
        self, topic: TransactionTopic, state: PipelineState, before: PipelineState, *, holds: bool
    ) -> _OfConnector | None:
        log_state = state.own_log(topic.qualifier)
        progress = log_state.cutting
        if progress.epoch != len(log_state.epochs):
            progress = log_state.cutting = CutProgress(epoch=len(log_state.epochs))
        partitions = self.ends([topic.name]).get(topic.name, {})
        if not partitions:
            return None  # nothing has come yet
        if len(partitions) > 1:
            self._refuse(topic, f"{topic.name} has {len(partitions)} partitions, and needs one")
            return None
        end = partitions[_ONLY]
        if not 0 <= progress.read <= end:
            self._start(topic, progress, state, before, end)
        window = self._window(topic, progress, state, end)
        if any(_rules(topic).ended(one.id) is None for one in window.ends[:1]):
            self._refuse(topic, f"its transactions have no ids that tell: {window.ends[0].id}")
            return None
        if not holds:
            return _OfConnector(window.ends, may_be=not state.runs)
        return self._held(topic, window, state, before)

    def _start(
        self,
        topic: TransactionTopic,
        progress: CutProgress,
        state: PipelineState,
        before: PipelineState,
        end: int,
    ) -> None:
        """Begin to count: with the topic, or in its midst, where events may be on their way."""
        is_new = before.batch < 0 and topic.from_start
        progress.read = 0 if is_new else end
        if not is_new:
            progress.unproven |= {table for table in state.tables if topic.has(table)}
        self._windows.pop(topic.qualifier, None)

    def _window(
        self, topic: TransactionTopic, progress: CutProgress, state: PipelineState, end: int
    ) -> _EndsRead:
        """Return the ends that are not counted yet, each once."""
        window = self._windows.get(topic.qualifier)
        if window is None or window.read < progress.read:
            window = self._windows[topic.qualifier] = _EndsRead(progress.read or EARLIEST)
        window.ends = [one for one in window.ends if one.offset >= progress.read]
        if window.read >= end:
            return window
        newest = dict(progress.newest)
        known = [one for one in window.ends if _is_new(topic, one, newest)]
        try:
            for records in self._records([OffsetRange(topic.name, _ONLY, window.read, end)], topic):
                found = converter_of(topic.connector.converter).transaction_ends(records)
                known += [one for one in found if _is_new(topic, one, newest)]
        except DependencyError as error:
            if error.code != EXPIRED:
                raise
            known, progress.read = [], end  # some that were not counted are gone
            progress.unproven |= {table for table in state.tables if topic.has(table)}
        window.ends, window.read = known, end
        return window

    def _held(
        self,
        topic: TransactionTopic,
        window: _EndsRead,
        state: PipelineState,
        before: PipelineState,
    ) -> _OfConnector:
        """Lower the ends of a connector's topics to where later transactions begin."""
        planned = {
            name: state.offsets[name]
            for name in before.offsets
            if name in state.offsets and topic.has_rows(name)
        }
        now = self.ends([*planned]) if planned else {}
        look = self._look(topic, window.ends, state)
        ranges = [
            OffsetRange(name, partition, before.offsets[name].get(partition, 0), end)
            for name, partitions in planned.items()
            for partition, end in partitions.items()
        ]
        beyond = later_events.heads_of(
            [one._replace(start=one.end, end=_end(now, one)) for one in ranges], look
        )
        # What is of a transaction that has been counted was sent again, or comes late.
        firsts = [
            next((e.number for e in events if e.number >= 0), 0) for events in beyond.values()
        ]
        last = min([len(window.ends), *firsts]) - 1
        found = later_events.first_later(ranges, last, look)
        held = sum(planned[name][n] - one.offset for (name, n), one in found.items())
        if held > self.most:
            log.info("cuts.too_much_held", connector=topic.connector.name, records=held)
            return _OfConnector(window.ends, may_be=True)
        for (name, partition), one in found.items():
            state.offsets[name][partition] = one.offset
        later = {place for place, events in beyond.items() if events[0].number > last}
        return _OfConnector(
            window.ends[: last + 1], may_be=True, later=later | set(found), held=held
        )

    def _look(
        self, topic: TransactionTopic, ends: Sequence[TransactionEnd], state: PipelineState
    ) -> Look:
        """Return what reads events; see `later_events.Look`."""
        newest = state.log_of(topic.qualifier).cutting.newest
        number = _rules(topic).numbering([one.id for one in ends], newest)
        converter = converter_of(topic.connector.converter)
        plan = StretchPlan(topic.connector.identity, topic.modes)
        epochs = state.log_of(topic.qualifier).epochs

        def look(ranges: Sequence[OffsetRange]) -> Mapping[Place, Sequence[SeenEvent]]:
            found: dict[Place, list[SeenEvent]] = {}
            for records in self._records(ranges, topic):
                for epoch, piece in raw_records.by_epoch(records, epochs):
                    heads = converter.headers(piece, plan.of_epoch(epoch))
                    found.setdefault((piece.topic, piece.partition), []).extend(
                        SeenEvent(offset, number(transaction, position), position)
                        for offset, kind, transaction, position in zip(
                            piece.offsets, heads.kind, heads.transaction, heads.position,
                            strict=True,
                        )
                        if kind in _EVENTS
                    )  # fmt: skip
            return found

        return look

    def _records(self, ranges: Sequence[OffsetRange], topic: TransactionTopic) -> Iterator[Records]:
        wanted = converter_of(topic.connector.converter).read_headers
        for name, partition, parts in raw_records.by_partition(self.read(ranges)):
            yield raw_records.of(name, partition, parts, read_headers=wanted)

    def _refuse(self, topic: TransactionTopic, reason: str) -> None:
        if topic.name not in self._refused:
            self._refused.add(topic.name)
            log.warning("cuts.refused", connector=topic.connector.name, reason=reason)

    # -- after them ---------------------------------------------------------------------------

    def settle(self, state: PipelineState, reports: Sequence[Report]) -> None:
        """Count what came, and note the cut that the batch has ended at, if it is one.

        Args:
            state: the state after the batch, with what it applied.
            reports: of the batch's stretches.
        """
        for topic in self.topics:
            found = self._batch.get(topic.qualifier)
            if found is not None:
                self._settle(topic, found, state, reports)

    def _settle(
        self,
        topic: TransactionTopic,
        batch: _OfConnector,
        state: PipelineState,
        reports: Sequence[Report],
    ) -> None:
        progress = state.own_log(topic.qualifier).cutting
        tables = {table: entry for table, entry in state.tables.items() if topic.has(table)}
        _count_ended(topic, batch, progress, tables)
        for report in reports:
            for table, told in report.tables.items():
                if table in tables:
                    progress.count(table, told.reads - told.events)
                    if told.bad or told.replays or told.twice:
                        progress.suspect(table)
        ended = self._none_is_later(topic, progress, state)
        for table, entry in tables.items():
            if entry.state != STREAMING or (ended and progress.due.get(table, 0) < 0):
                progress.suspect(table)
            elif ended and entry.topics and _all_later(state, entry, batch.later):
                progress.prove(table)
        if ended and not batch.held and progress.doubts and self._all_sent(topic, progress, state):
            for table, entry in tables.items():
                if entry.state == STREAMING:
                    progress.prove(table)
        if batch.may_be and ended:
            self._note(topic, batch, progress, state)

    def _all_sent(
        self, topic: TransactionTopic, progress: CutProgress, state: PipelineState
    ) -> bool:
        """Say whether all that has ended has come, by what the connector has committed."""
        if not progress.last_ended:
            return False
        ends = topic.sent(progress.last_ended)
        own = {name: state.offsets[name] for name in ends or () if name in state.offsets}
        return bool(ends) and has_passed(own, {t: e for t, e in (ends or {}).items() if t in own})

    def _none_is_later(
        self, topic: TransactionTopic, progress: CutProgress, state: PipelineState
    ) -> bool:
        """Say whether no event was applied of a transaction that has not ended."""
        epochs = len(state.log_of(topic.qualifier).epochs)
        own = positions.epoch_number(topic.connector.kind, epochs).to_bytes(4)
        for reached in _reached(topic, state):
            if not positions.is_of_stream(reached.position):
                continue
            if positions.epoch_of(reached.position) == own and not _rules(topic).has_ended(
                reached.position, reached.seen, progress.newest
            ):
                return False
        return True

    def _note(
        self,
        topic: TransactionTopic,
        batch: _OfConnector,
        progress: CutProgress,
        state: PipelineState,
    ) -> None:
        known, own_whole = progress.last, topic.connector.reads_all_rows
        if not batch.ended and known is None:
            return
        doubtful = progress.unproven | progress.due.keys()
        without = tuple(
            table
            for table in sorted(state.tables)
            if topic.has(table)
            and (table in doubtful or hindrance(state, table, own_whole=own_whole) is not None)
        )
        if not batch.ended and known is not None:
            transaction, ended_ms = known.transaction, known.ended_ms
        else:
            transaction, ended_ms = batch.ended[-1].id, batch.ended[-1].ended_ms
        reached = (one.position for one in _reached(topic, state))
        position = max(filter(positions.is_of_stream, reached), default=b"").hex()
        cut = SourceCut(state.batch, transaction, ended_ms, position, without)
        if known is not None and cut.without == known.without and cut.position == known.position:
            return
        progress.last = cut
        progress.kept.append(cut)


def _rules(topic: TransactionTopic) -> PositionRules:
    return positions.rules_of(topic.connector.kind)


def _is_new(topic: TransactionTopic, end: TransactionEnd, newest: dict[str, int]) -> bool:
    """Say whether a transaction ends for the first time; a restarted connector tells some again."""
    named = _rules(topic).ended(end.id)
    if named is None:
        return True  # whoever numbers them refuses it
    if named.number <= newest.get(named.origin, -1):
        return False
    newest[named.origin] = named.number
    return True


def _count_ended(
    topic: TransactionTopic,
    batch: _OfConnector,
    progress: CutProgress,
    tables: Mapping[str, object],
) -> None:
    names = {plain_of(unqualified(topic.qualifier, table) or ""): table for table in tables}
    for end in batch.ended:
        for name, count in end.events.items():
            with suppress(KeyError):
                progress.count(names[name], count)
        named = _rules(topic).ended(end.id)
        if named is not None:
            progress.newest[named.origin] = named.number
        progress.last_ended = end.id
        progress.read = end.offset + 1


def _all_later(state: PipelineState, entry: TableState, later: Container[Place]) -> bool:
    """Say whether every partition of a table has an event of a later transaction."""
    return all(
        (name, partition) in later
        for name in entry.topics
        for partition in state.offsets.get(name, {})
    )


def _reached(topic: TransactionTopic, state: PipelineState) -> Iterator[AppliedPosition]:
    """Yield the progress of every partition of the connector's tables."""
    topics = {name for table, e in state.tables.items() if topic.has(table) for name in e.topics}
    for name in sorted(topics):
        for reached in state.applied.get(name, {}).values():
            yield reached.reached()


def _end(now: Offsets, one: OffsetRange) -> int:
    """Return where a range's partition ends now."""
    return now.get(one.topic, {}).get(one.partition, one.end)
