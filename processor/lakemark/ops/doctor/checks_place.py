"""The pipeline's place in the log, against what the brokers still have. Pure.

Lost records are found as `lakemark run` finds them (`data_loss.gaps`); here records that will be
lost soon are reported as well.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from lakemark.errors import EXPIRED
from lakemark.kafka.own_topics import alter_command
from lakemark.model.findings import Finding, fine, warning, wrong
from lakemark.model.offsets import Offsets
from lakemark.settings.config import Config
from lakemark.state.data_loss import Held, gaps
from lakemark.state.tables import PipelineState

CHECKS: Final = ("place in the log",)

_CHECK: Final = CHECKS[0]
_WEEK_MS: Final = 604_800_000


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """The pipeline's place, and what the brokers have.

    Attributes:
        state: the newest; that of paused tables alone if `missing`; None if it never ran.
        missing: why the checkpoint could not be read, empty if it could or never was.
        known: Kafka's ids of the topics as they were when they were read.
        held: what the brokers have of the state's topics.
        aged: the first offset younger than half of the topic's retention; -1 if all are older.
        retention: of the topics, in milliseconds.
        hidden: topics that we may not look at.
    """

    state: PipelineState | None = None
    missing: str = ""
    known: Mapping[str, str] = field(default_factory=dict)
    held: Held = field(default_factory=lambda: Held({}, {}, {}))
    aged: Offsets = field(default_factory=dict)
    retention: Mapping[str, int] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()


def findings(facts: PlaceFacts, config: Config) -> list[Finding]:
    """Return all findings about the pipeline's place in the log."""
    results = []
    if facts.missing:
        results.append(
            warning(
                _CHECK,
                config.checkpoint,
                f"of tables that stream it cannot be told: {facts.missing}",
                "compare the age of the newest changes in `lakemark status` with the topics'"
                " retention",
            )
        )
    elif facts.state is None:
        results.append(fine(_CHECK, config.checkpoint, "the pipeline has not run yet"))
    if facts.state is not None:
        results += _places(facts, facts.state, config)
    return results


def _places(facts: PlaceFacts, state: PipelineState, config: Config) -> Iterator[Finding]:
    seen = {t: offsets for t, offsets in state.offsets.items() if t not in facts.hidden}
    visible = msgspec.structs.replace(state, offsets=seen)
    lost = {gap.topic: gap for gap in gaps(visible, facts.known, facts.held)}
    for topic, gap in lost.items():
        again = f"lakemark recover --resnapshot {' '.join(gap.tables)}; lakemark run"
        if gap.code == EXPIRED:
            again = f"{_longer(topic, facts, config)}; {again}"
        yield wrong(_CHECK, topic, gap.reason, again if gap.tables else "")
    for topic, wanted in sorted(_wanted(visible).items()):
        if topic not in lost:
            yield _aging(topic, wanted, facts, config)


def _wanted(state: PipelineState) -> Offsets:
    """Return the first offset that is still to be read, by topic and partition."""
    offsets = {topic: dict(partitions) for topic, partitions in state.offsets.items()}
    for entry in state.tables.values():
        for topic, partitions in entry.progress.from_offsets.items():
            for partition, offset in partitions.items():
                if topic in offsets and offset >= 0:  # below: Kafka's own words, such as earliest
                    known = offsets[topic].get(partition, offset)
                    offsets[topic][partition] = min(known, offset)
    return offsets


def _aging(topic: str, offsets: Mapping[int, int], facts: PlaceFacts, config: Config) -> Finding:
    aging = behind = 0
    for partition, offset in offsets.items():
        end = facts.held.end.get(topic, {}).get(partition, offset)
        young = facts.aged.get(topic, {}).get(partition, 0)
        behind += max(0, end - offset)
        aging += max(0, min(end, end if young < 0 else young) - offset)
    if not aging:
        return fine(_CHECK, topic, "everything that is still wanted is there")
    return warning(
        _CHECK,
        topic,
        f"{aging} of {behind} events to be read have passed half of their retention",
        f"{_longer(topic, facts, config)}; start or resume what waits (`lakemark status`)",
    )


def _longer(topic: str, facts: PlaceFacts, config: Config) -> str:
    twice = max(2 * facts.retention.get(topic, 0), _WEEK_MS)
    return alter_command(config, topic, "retention.ms", str(twice))
