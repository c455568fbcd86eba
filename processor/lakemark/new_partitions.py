"""Topics that get partitions: keys go elsewhere, so their tables catch up, old partitions first.

Nothing of the batch in which they are seen is applied to such a table. It reads the old partitions
to the ends that they have by then, in one piece, because what follows of a key may be anywhere.
"""

from collections.abc import Callable, Sequence

import structlog

from lakemark import tables
from lakemark.tables import Offsets, PipelineState, TableState, Water

log = structlog.get_logger(__name__)


def known_ends(before: Offsets, end: Offsets) -> Offsets:
    """End offsets of all partitions: a batch's log may leave out what it has nothing of.

    A partition that a known topic has got is unknown until it has a record: only then was the last
    record of the old partitions written, and only then is it a change of the partition count.
    """
    merged = {topic: dict(partitions) for topic, partitions in before.items()}
    for topic, partitions in end.items():
        known = before.get(topic)
        merged.setdefault(topic, {}).update(
            (p, offset) for p, offset in partitions.items() if not known or p in known or offset > 0
        )
    return merged


def repartitioned(before: Offsets, end: Offsets) -> list[str]:
    """Topics known before that have records in partitions not known before."""
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
    """Takes tables out of the stream whose topics have got partitions in this batch.

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
        old = {p: ends[p] for p in before.offsets[topic] if p in ends}
        for name, entry in state.tables.items():
            if topic not in entry.topics:
                continue
            log.warning("table.repartitioned", table=name, topic=topic)
            if entry.state == tables.STREAMING:
                tables.stop(
                    state,
                    name,
                    to=tables.CATCHING_UP,
                    start=start,
                    before=before,
                    code="repartitioned",
                    reason=f"{topic} has new partitions",
                )
            repartition(entry, old_ends={topic: old}, end=state.offsets)


def repartition(entry: TableState, *, old_ends: Offsets, end: Offsets) -> None:
    """After a change of the partition count: old partitions first, up to the ends seen now.

    New partitions, which are those in `end`, begin at 0, with the highest of the old high-waters,
    so that a replay written into them is recognised.
    """
    entry.old_ends = old_ends
    for topic in old_ends.keys() & entry.from_offsets.keys():
        entry.from_offsets[topic] = {**dict.fromkeys(end[topic], 0), **entry.from_offsets[topic]}
    for topic, waters in entry.high_waters.items():
        highest = max(waters.values(), key=lambda w: w.position, default=Water())
        newest = max((w.source_ts for w in waters.values()), default=0)
        known = set(waters)
        for partition in entry.from_offsets.get(topic, {}):
            if partition not in known:
                waters[partition] = Water(highest.position, newest, highest.creates)
