"""The records of change topics that Kafka has lost, found before anything is read.

Pure. Spark alone compares offsets: a topic that was deleted and made again is read on from the old
offset, without a word, as soon as it has more records than that. So the ids of the topics are
remembered, and compared at every start and while the query runs.

code                  what happened
--------------------  -------------------------------------------------------------------
topic-deleted         the topic, or a partition of it, is gone
topic-recreated       a topic of the same name, but another one; or it ends before our offset
source-data-expired   records that were not read yet are older than the topic's retention

Events may be missing then of the tables that the topic carries: they need a snapshot and a sweep.
Of lakemark's own topics see `recovery`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from lakemark.errors import EXPIRED
from lakemark.model.offsets import Offsets
from lakemark.state import tables
from lakemark.state.tables import PipelineState, TableState

RESNAPSHOT: Final = "table-resnapshot"
ANEW: Final = "it was left out while its topic was made anew: events of it may be missing"
DELETED: Final = "topic-deleted"
RECREATED: Final = "topic-recreated"
CONTROL_LOST: Final = "control-lost"


@dataclass(frozen=True, slots=True)
class Held:
    """Topics as the brokers have them: ids, and the first and the end offset by partition."""

    ids: Mapping[str, str]
    first: Offsets
    end: Offsets


@dataclass(frozen=True, slots=True)
class Gap:
    """One topic of which events may be missing.

    Attributes:
        topic: its name.
        code: one of the table in the module's docstring.
        reason: what happened, with offsets.
        tables: the tables it carries; none: a topic without rows, of which nothing is lost.
    """

    topic: str
    code: str
    reason: str
    tables: tuple[str, ...]


def gaps(state: PipelineState, known: Mapping[str, str], held: Held) -> list[Gap]:
    """Return the gaps between the pipeline's place and the brokers' records, by topic.

    Args:
        state: the newest state.
        known: ids of the topics as they were when they were read.
        held: what the brokers have now of the state's topics.
    """
    found = []
    for topic, offsets in sorted(state.offsets.items()):
        carried = tuple(sorted(t for t, entry in state.tables.items() if topic in entry.topics))
        wanted = _wanted(offsets, topic, (state.tables[t] for t in carried))
        what = _gap(topic, wanted, known.get(topic), held)
        if what is not None:
            found.append(Gap(topic, *what, carried))
    return found


def _wanted(
    offsets: Mapping[int, int], topic: str, carried: Iterable[TableState]
) -> dict[int, int]:
    """Return the next offset to read of each partition: stopped tables need earlier ones."""
    wanted = dict(offsets)
    for entry in carried:
        for partition, offset in entry.progress.from_offsets.get(topic, {}).items():
            if offset < 0:
                continue  # Kafka's own word for the first one
            wanted[partition] = min(offset, wanted.get(partition, offset))
    return wanted


def before_anything(begun: Offsets, held: Held) -> str:
    """Return why a first batch, planned but not committed, cannot be read; empty if it can."""
    for topic, offsets in sorted(begun.items()):
        for partition, offset in sorted(offsets.items()):
            first = held.first.get(topic, {}).get(partition)
            if first is None or first > offset:
                now = "is gone" if first is None else f"begins at offset {first} now"
                return f"{topic}-{partition} {now}, and was to be read from {offset} on"
    return ""


def _gap(
    topic: str, wanted: Mapping[int, int], known: str | None, held: Held
) -> tuple[str, str] | None:
    now = held.ids.get(topic)
    if now is None:
        return DELETED, f"the topic {topic} does not exist any more"
    if known is not None and known != now:
        return RECREATED, f"the topic {topic} was deleted and made again (id {known}, now {now})"
    first, end = held.first.get(topic, {}), held.end.get(topic, {})
    found = [
        _lost(f"{topic}-{partition}", offset, first.get(partition, 0), end.get(partition))
        for partition, offset in sorted(wanted.items())
    ]
    found += [
        (EXPIRED, f"{topic}-{partition} is new, and begins at offset {begins} already")
        for partition, begins in sorted(first.items())
        if partition not in wanted and begins > 0
    ]
    return next((gap for gap in found if gap is not None), None)


def _lost(place: str, offset: int, first: int, end: int | None) -> tuple[str, str] | None:
    """Return the code and reason of a partition's loss, if it is to be read from this offset on."""
    if offset > 0 and end is None:
        return DELETED, f"the partition {place} does not exist any more"
    if end is not None and offset > end:
        return RECREATED, (
            f"{place} ends at offset {end}, before {offset}, up to "
            "which it was read: it was deleted and made again, or truncated"
        )
    if 0 <= offset < first:
        return EXPIRED, (
            f"{place} begins at offset {first}; those from {offset} on were not read yet"
        )
    return None


def own_gaps(offsets: Offsets, known: Mapping[str, str], held: Held) -> list[Gap]:
    """Return the same as `gaps` for lakemark's own topics, which carry no tables.

    Args:
        offsets: the next offset to read, by topic and partition.
        known: ids of the topics as they were when they were read.
        held: these topics as the brokers have them.
    """
    found = []
    for topic, wanted in sorted(offsets.items()):
        what = _gap(topic, wanted, known.get(topic), held)
        if what is not None:
            found.append(Gap(topic, *what, ()))
    return found


def begin_again(
    state: PipelineState,
    topics: Mapping[str, Mapping[int, int]],
    *,
    anew: Collection[str] = (),
) -> None:
    """Let the state go on at these offsets of some topics, whatever it was at.

    Args:
        state: is changed.
        topics: where they go on; one without offsets is read no more.
        anew: those of them that are other topics of the same name than were read: the offsets noted
            for the old ones mean nothing in them. Their records are of the newest epoch.
    """
    made = {topic: {**first} for topic, first in topics.items() if topic in anew}
    tables.count_offsets_anew(state, made, state.offsets)
    for topic, first in topics.items():
        old = state.offsets.get(topic, {})
        if topic in anew:
            state.begun_after[topic] = state.batch
            epochs = chain.from_iterable(log.epochs for log in state.every_log())
            for begins in (*epochs, state.regressed):
                begins.pop(topic, None)
        if set(first) != set(old):  # keys are in other partitions now
            state.applied.pop(topic, None)
            for entry in state.tables.values():
                entry.progress.forget_positions(topic)
        state.offsets[topic] = dict(first)
        for entry in state.tables.values():
            entry.progress.begin_again(topic, first)
        for one in state.left.values() if topic in anew else ():  # of others its own gap says so
            if topic in one.entry.topics:
                one.entry.progress.begin_again(topic, first)
                one.entry.progress.forget_positions(topic)
                one.entry.repair.doubt_all(ANEW, state.batch)
        if not first:
            del state.offsets[topic]
