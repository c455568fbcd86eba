"""Kafka's topics against the checkpoint's record of what was read; the rules are in `data_loss`.

topic           that lost records, or is another one than was read
--------------  ----------------------------------------------------------------------------------
change topic    the start is refused, until `lakemark recover --resnapshot` names its tables; tables
                that the configuration names again are marked without being asked for
`…control`      the start is refused, until `lakemark recover --control`: commands of a person may
                be among the lost records. The coordinator writes its own again at every start.
`…chunks`       it begins again: attempts under way are void after every start, and their chunks
                are read again

A new checkpoint begins at the end of the control topic: the records there were carried out by a
checkpoint that is no more. `control_records.first_state` keeps some of their effects.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from lakemark.errors import EXPIRED, PipelineError
from lakemark.kafka import brokers
from lakemark.kafka.records import read_compacted
from lakemark.model.offsets import Offsets
from lakemark.model.wanted import Wanted
from lakemark.settings.config import Config
from lakemark.state import (
    control,
    control_records,
    data_loss,
    progress,
    selection,
    stored_form,
)
from lakemark.state.checkpoint import Checkpoint
from lakemark.state.data_loss import Gap, Held
from lakemark.state.selection import Changed
from lakemark.state.tables import PipelineState

log = structlog.get_logger(__name__)

SHOWN: Final = 3  # reasons in one message


def go_over(
    config: Config,
    checkpoint: Checkpoint,
    wanted: Wanted,
    patterns: Sequence[str],
    *,
    begins: Callable[[str], bool] = lambda _: False,
) -> PipelineState:
    """Find gaps before the query starts, and go over those that may be; see the table above.

    Tables that the configuration no longer names are left out, those named again are taken back.

    Args:
        config: the settings.
        checkpoint: of the pipeline.
        wanted: the topics and tables that are named.
        patterns: Java regular expressions of the topics that are read.
        begins: says of a topic whether it is of a connector that the checkpoint has never read:
            then it begins as `stream.starting` says, though the query goes on.

    Returns:
        The state to go on from: the topics with gaps begin again at their first offset.

    Raises:
        PipelineError: `topic-deleted`, `topic-recreated`, `source-data-expired`, `control-lost`.
        DependencyError: the brokers do not answer.
    """
    if checkpoint.is_new():
        checkpoint.begin(_first_state(config))
    before, planned = checkpoint.goes_on()
    known = checkpoint.topics()
    names = config.topics
    own = {t: planned[t] for t in (names.control, names.chunks) if t in planned}
    with brokers.Cluster(config) as cluster:
        state = stored_form.copied(before)
        changed = selection.select(state, wanted)
        late = set(cluster.topics(*patterns)) - set(state.offsets)
        unread = {t for t in checkpoint.topics_ahead() if not wanted.topic(t)}.difference(
            names.all()
        )
        begun = {} if planned else checkpoint.begun()
        aside = {topic: begun.pop(topic) for topic in unread.intersection(begun)}
        asked = {*state.offsets, *own, *begun, *(late if planned else ())}
        held = _held(cluster, sorted(asked))
        ends = _ends(config, filter(begins, late), held) if planned else {}
        found = data_loss.gaps(state, known, held)
        own_found = data_loss.own_gaps(own, known, held)
        if found or own_found:
            end = cluster.end_offsets([names.control]).get((names.control, control.PARTITION), 0)
            lost = any(gap.topic == names.control for gap in own_found)
            records = control.read(config, 0 if lost else state.control, end)
            _refuse(found, own_found, changed, records, names.control)
    if why := data_loss.before_anything(begun, held):
        raise PipelineError(
            f"the first batch was never completed, and Kafka lost events of it: {why}",
            code=EXPIRED,
            hint=f"empty {config.checkpoint} and start again; then, for the rows from before: "
            "lakemark snapshot start '.*'",
        )
    work = _Work(wanted, changed, found, own_found, held, names.control, ends, unread, aside)
    topics = work.topics(state, _begins_late(state, late, held) | ends if planned else {})
    if topics or changed.left or changed.back or changed.uncaptured:
        work.say(topics)
        checkpoint.amend(work.change, topics, own=names.all())
    elsewhere = {t: number for t, number in known.items() if t in state.left_offsets}
    read = {*state.offsets, *own, *ends}
    here = {t: number for t, number in held.ids.items() if t in read}
    checkpoint.note_topics(elsewhere | here)
    return checkpoint.newest()


@dataclass(frozen=True, slots=True)
class _Work:
    """The changes that a start makes to the checkpoint.

    Attributes:
        wanted, changed, held: see `go_over`.
        found, own: gaps in change topics, and in lakemark's own.
        control: the control topic.
        ends: of topics that begin there.
        unread: topics that the query would go on with, and that nobody reads now.
        aside: those of them that the query was to begin with, and where: no batch has come so far.
    """

    wanted: Wanted
    changed: Changed
    found: list[Gap]
    own: list[Gap]
    held: Held
    control: str
    ends: Offsets
    unread: Collection[str]
    aside: Offsets

    def topics(self, state: PipelineState, late: Offsets) -> Offsets:
        """Return the offsets of topics in which the query goes on elsewhere than it stopped."""
        topics: Offsets = {topic: {} for topic in (*self.unread, *self.changed.topics_left)}
        topics |= {topic: state.offsets[topic] for topic in self.changed.topics_back}
        topics |= late
        return topics | self._first(*self.found, *self.own)

    def _first(self, *found: Gap) -> Offsets:
        return {gap.topic: self.held.first.get(gap.topic, {}) for gap in found}

    def change(self, state: PipelineState) -> None:
        """Change the state after a batch to the one that the query goes on from."""
        selection.select(state, self.wanted)
        state.offsets |= {topic: dict(ends) for topic, ends in self.ends.items()}
        state.left_offsets |= self.aside  # the first batch is repeated without them
        anew = {gap.topic for gap in self.found if gap.code != EXPIRED}
        data_loss.begin_again(state, self._first(*self.found), anew=anew)
        for gap in self.found:
            for name in set(gap.tables).intersection(self.changed.back, state.tables):
                why = f"it was left out for a while, and events of it are gone: {gap.reason}"
                state.tables[name].repair.doubt_all(why, state.batch)
        if any(gap.topic == self.control for gap in self.own):
            state.control = self.held.first[self.control][control.PARTITION]

    def say(self, topics: Offsets) -> None:
        """Log changes that an operator may ask about later."""
        for name in self.changed.left:
            log.warning("table.left_out", table=name)
        for name in self.changed.back:
            log.info("table.taken_back", table=name)
        said = {gap.topic: gap for gap in [*self.found, *self.own]}
        for topic in topics:
            gap = said.get(topic)
            if gap is not None:
                log.warning(
                    "topic.begins_again", topic=topic, code=gap.code, reason=gap.reason,
                    tables=list(gap.tables),
                )  # fmt: skip


def _begins_late(state: PipelineState, late: Iterable[str], held: Held) -> Offsets:
    """Return first offsets of topics never read whose first records are gone: for Spark, a loss.

    Rows that the source had before are in no table yet: they come with the first snapshot.
    """
    found: Offsets = {}
    for topic in late:
        first = held.first.get(topic, {})
        if topic not in state.offsets and any(first.values()):
            log.warning("topic.begins_late", topic=topic, offsets=first)
            found[topic] = first
    return found


def _ends(config: Config, begin: Iterable[str], held: Held) -> Offsets:
    """Return the ends of topics that begin there: for Spark they are new ones, to be read whole."""
    if config.stream.starting != "latest":
        return {}
    found = {topic: held.end.get(topic, {}) for topic in sorted(begin)}
    for topic, ends in found.items():
        log.info("topic.begins_at_its_end", topic=topic, offsets=ends)
    return found


def _refuse(
    found: list[Gap],
    own: list[Gap],
    changed: Changed,
    records: Iterable[dict[str, Any]],
    control_topic: str,
) -> None:
    """Refuse gaps that only a person may let go on, unless a control record has let them."""
    said = list(records)
    lost = next((gap for gap in own if gap.topic == control_topic), None)
    if lost is not None and not any(r.get("type") == data_loss.CONTROL_LOST for r in said):
        raise _stop_control(lost)
    told = {str(r.get("table")) for r in said if r.get("type") == data_loss.RESNAPSHOT}
    missing = sorted({t for gap in found for t in gap.tables} - told - set(changed.back))
    if missing:
        raise _stop([gap for gap in found if set(gap.tables) & set(missing)], missing)


def still_there(config: Config, checkpoint: Checkpoint, state: PipelineState) -> set[str]:
    """Check that the query's topics are still those it began with, and remember new ones.

    Returns:
        The topics that were looked at; also those that do not exist, of which nothing is lost.

    Raises:
        PipelineError: `topic-deleted`, `topic-recreated`.
        DependencyError: the brokers do not answer.
    """
    known, ids = checkpoint.topics(), _ids(config, state.offsets)
    found = data_loss.gaps(state, known, Held(ids, {}, state.offsets))
    found = [gap for gap in found if gap.tables]
    if found:
        raise _stop(found, sorted({table for gap in found for table in gap.tables}))
    if ids.keys() - known.keys():
        checkpoint.note_topics({**known, **ids})
    return set(state.offsets)


def remember(config: Config, checkpoint: Checkpoint, topics: Iterable[str]) -> None:
    """Store the ids of new topics, before anything of a batch that has them is done.

    However soon the process ends, the next one finds out if they are others by then.

    Raises:
        DependencyError: the brokers do not answer.
    """
    known = checkpoint.topics()
    if new := [topic for topic in topics if topic not in known]:
        checkpoint.note_topics({**known, **_ids(config, new)})


def _ids(config: Config, topics: Iterable[str]) -> dict[str, str]:
    with brokers.Cluster(config) as cluster:
        return cluster.topic_ids(topics)


def _first_state(config: Config) -> PipelineState:
    """Return the state of a new checkpoint, by the topics' records of the one before."""
    with brokers.Cluster(config) as cluster:
        place = config.topics.control, control.PARTITION
        start, end = (
            offsets([config.topics.control]).get(place, 0)
            for offsets in (cluster.start_offsets, cluster.end_offsets)
        )
        said = control.read(config, start, end)
        newest = read_compacted(config, config.topics.progress)
        known, proofs = progress.tables_of(newest), progress.proofs_of(newest)
        named = {topic for entry in known.values() for topic in entry.topics}
        latest = config.stream.starting == "latest"
        places = _by_topic((cluster.end_offsets if latest else cluster.start_offsets)(named))
    state = control_records.first_state(said, known, control=end, places=places, proofs=proofs)
    for name in state.tables:
        log.info("table.stays_paused", table=name)
    return state


def _held(cluster: brokers.Cluster, names: list[str]) -> Held:
    return Held(
        cluster.topic_ids(names),
        _by_topic(cluster.start_offsets(names)),
        _by_topic(cluster.end_offsets(names, committed=False)),
    )


def _by_topic(offsets: dict[tuple[str, int], int]) -> Offsets:
    found: Offsets = {}
    for (topic, partition), offset in offsets.items():
        found.setdefault(topic, {})[partition] = offset
    return found


def _stop(found: list[Gap], names: list[str]) -> PipelineError:
    reasons = [gap.reason for gap in found[:SHOWN]]
    if len(found) > SHOWN:
        reasons.append(f"and {len(found) - SHOWN} topics more")
    return PipelineError(
        f"events may be missing: {'; '.join(reasons)}",
        code=found[0].code,
        hint=f"`lakemark recover --resnapshot {' '.join(names)}`, then `lakemark run`: it goes on "
        "with what there is, and a snapshot brings what is missing",
    )


def _stop_control(gap: Gap) -> PipelineError:
    return PipelineError(
        f"commands may be missing: {gap.reason}. They may have paused, resumed or skipped tables, "
        "or have been those of `lakemark recover`; no change of a table is among them",
        code=data_loss.CONTROL_LOST,
        hint="`lakemark recover --control`, then `lakemark run`: it goes on without them, and "
        "snapshots under way go on by themselves. Then look at `lakemark status`, and give the "
        "commands again that were not carried out; let the topic keep its records for longer",
    )
