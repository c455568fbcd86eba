"""Topics that get partitions: keys go elsewhere, so their tables catch up, old partitions first.

Nothing of the batch in which they are seen is applied to such a table. It reads the old partitions
to the ends that they have by then, in one piece, because what follows of a key may be anywhere.

New partitions have no applied position. An event that was lost on its way to an old while later
ones were stored, is sent again, and now it comes to a new one: by what the old ones have passed it
would be a replay. What passes that really is one changes nothing in a table in the end; an output
topic may repeat it.

With a multiple of partitions keys only move to new ones. Else they move between old ones too, where
nothing tells when, and events may have been applied in the wrong order: the table needs a run with
a sweep.

Where offsets are the places of records an epoch begins: what comes of a key in its new partition is
newer than what came in the old one.
"""

from collections.abc import Callable, Sequence

import structlog

from lakemark.model.offsets import Offsets
from lakemark.state import tables
from lakemark.state.tables import PipelineState

log = structlog.get_logger(__name__)


def known_ends(before: Offsets, end: Offsets) -> Offsets:
    """Return the end offsets of all partitions: a batch may leave out those without records.

    New partitions of a known topic stay unknown until one of them has a record: only then was the
    last record of the old partitions written, and only then is it a change of their number.
    """
    merged = {topic: dict(partitions) for topic, partitions in before.items()}
    added = set(repartitioned(before, end))
    for topic, partitions in end.items():
        known = before.get(topic)
        merged.setdefault(topic, {}).update(
            (p, at) for p, at in partitions.items() if not known or p in known or topic in added
        )
    return merged


def repartitioned(before: Offsets, end: Offsets) -> list[str]:
    """Return topics known before that have records in partitions not known before."""
    return [
        topic
        for topic, partitions in end.items()
        if before.get(topic)
        and any(p not in before[topic] and offset > 0 for p, offset in partitions.items())
    ]


def follow(
    state: PipelineState,
    *,
    before: PipelineState,
    start: Offsets,
    end_offsets: Callable[[Sequence[str]], Offsets],
) -> None:
    """Take tables out of the stream whose topics have got partitions in this batch.

    Args:
        state: the state being made.
        before: the state before the batch.
        start: Kafka offsets at which the batch began.
        end_offsets: asks the brokers for those of topics.

    Raises:
        DependencyError: the brokers do not answer.
    """
    for topic in repartitioned(before.offsets, state.offsets):
        ends = end_offsets([topic]).get(topic, {})
        known = before.offsets[topic]
        old = {p: ends[p] for p in known if p in ends}
        tables.count_offsets_anew(state, {topic: dict.fromkeys(ends, 0) | old}, start)
        state.offsets[topic] = {**dict.fromkeys(ends, 0), **state.offsets[topic]}
        count = len(state.offsets[topic])
        left = {name: one.entry for name, one in state.left.items()}
        for name, entry in (state.tables | left).items():
            if topic not in entry.topics:
                continue
            log.warning("table.repartitioned", table=name, topic=topic, partitions=count)
            if entry.state == tables.STREAMING and name not in left:
                tables.stop(
                    state,
                    name,
                    to=tables.CATCHING_UP,
                    start=start,
                    before=before,
                    code="repartitioned",
                    reason=f"{topic} has new partitions",
                )
            entry.progress.repartition({topic: old}, state.offsets)
            if count % len(known):
                why = f"{topic} went from {len(known)} to {count} partitions, which is no multiple"
                entry.repair.doubt_all(f"{why}: keys moved between the old ones", state.batch)
