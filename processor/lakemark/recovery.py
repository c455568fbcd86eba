"""Kafka's topics against what the checkpoint says was read of them; the rule is in `gaps`."""

from collections.abc import Iterable
from typing import Any, Final

import structlog

from lakemark import control, gaps, kafka
from lakemark.checkpoint import Checkpoint
from lakemark.config import Config
from lakemark.errors import PipelineError
from lakemark.gaps import Gap, Held
from lakemark.tables import Offsets, PipelineState

log = structlog.get_logger(__name__)

SHOWN: Final = 3  # reasons in one message


def go_over(config: Config, checkpoint: Checkpoint, state: PipelineState) -> PipelineState:
    """Before the query starts: no gap, or only gaps that a person has said may be gone over.

    That is what `lakemark recover --resnapshot` is for: its control record marks the tables, so
    that their snapshot finds what is missing. Topics without tables need nobody's word.

    Returns:
        The state to go on from: the topics with gaps begin again at their first offset.

    Raises:
        PipelineError: `topic-deleted`, `topic-recreated`, `source-data-expired`.
        DependencyError: the brokers do not answer.
    """
    with kafka.Cluster(config) as cluster:
        held = _held(cluster, state)
        found = gaps.gaps(state, checkpoint.topics(), held)
        if found:
            end = cluster.end_offsets([config.topics.control])
            until = end.get((config.topics.control, control.PARTITION), 0)
            told = _told(control.read(config, state.control, until))
            missing = sorted({t for gap in found for t in gap.tables} - told)
            if missing:
                raise _stop([gap for gap in found if set(gap.tables) & set(missing)], missing)
            for gap in found:
                log.warning(
                    "topic.begins_again", topic=gap.topic, code=gap.code, reason=gap.reason,
                    tables=list(gap.tables),
                )  # fmt: skip
            checkpoint.begin_again(
                {gap.topic: held.first.get(gap.topic, {}) for gap in found},
                anew={gap.topic for gap in found if gap.code != gaps.EXPIRED},
            )
    checkpoint.note_topics(held.ids)
    return checkpoint.newest()


def still_there(config: Config, checkpoint: Checkpoint, state: PipelineState) -> set[str]:
    """While the query runs: the topics are those that it began with; new ones are remembered.

    Returns:
        The topics that were looked at; also those that do not exist, of which nothing is lost.

    Raises:
        PipelineError: `topic-deleted`, `topic-recreated`.
        DependencyError: the brokers do not answer.
    """
    known = checkpoint.topics()
    with kafka.Cluster(config) as cluster:
        ids = cluster.topic_ids(state.offsets)
    found = gaps.gaps(state, known, Held(ids, {}, state.offsets))
    found = [gap for gap in found if gap.tables]
    if found:
        raise _stop(found, sorted({table for gap in found for table in gap.tables}))
    if ids.keys() - known.keys():
        checkpoint.note_topics({**known, **ids})
    return set(state.offsets)


def _held(cluster: kafka.Cluster, state: PipelineState) -> Held:
    names = list(state.offsets)
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


def _told(records: Iterable[dict[str, Any]]) -> set[str]:
    """Tables that are to be snapshotted again."""
    return {str(r.get("table")) for r in records if r.get("type") == gaps.RESNAPSHOT}


def _stop(found: list[Gap], tables: list[str]) -> PipelineError:
    reasons = [gap.reason for gap in found[:SHOWN]]
    if len(found) > SHOWN:
        reasons.append(f"and {len(found) - SHOWN} topics more")
    return PipelineError(
        f"events may be missing: {'; '.join(reasons)}",
        code=found[0].code,
        hint=f"`lakemark recover --resnapshot {' '.join(tables)}`, then `lakemark run`: it goes on "
        "with what there is, and a snapshot brings what is missing",
    )
