"""The lag of tables behind the source, in seconds and in records; pure.

Records: end offsets of Kafka minus the offsets that were applied. Seconds: how late the newest
event was when it was applied, and for how long something has been unread since; 0 while nothing is.
A source that is silent for an hour is no lag of an hour: the time of its newest event counts only
against the moment it was applied at.

Kafka may not have everything yet: where the source is not known to have sent everything, the time
since it was known last counts instead, see `bounded` and `source_side`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from lakemark.model.offsets import Offsets
from lakemark.ops.status import Lag, SourceNow
from lakemark.state.tables import STREAMING, TableState

FRESH_S: Final = 30.0
"""For so long a proof counts as now: looks are 5 s apart, the connector's reports mostly 10 s."""


class Ends(msgspec.Struct, frozen=True):
    """Kafka's offsets: the first of each partition when it was first seen, and the end."""

    starts: Offsets
    ends: Offsets


class Clock(msgspec.Struct):
    """A table's times that count for its lag, in seconds since the epoch.

    Attributes:
        applied_at: when its newest event was applied; None if this process has applied none.
        unread_since: when something unread was seen first; None while nothing is.
    """

    applied_at: float | None = None
    unread_since: float | None = None


def unread(topics: Iterable[str], applied: Offsets, known: Ends) -> int | None:
    """Count the records of topics that were not applied; None if an end is not known."""
    found = 0
    for topic in topics:
        ends = known.ends.get(topic)
        if ends is None:
            return None
        for partition, end in ends.items():
            start = known.starts.get(topic, {}).get(partition, 0)
            reached = applied.get(topic, {}).get(partition, start)
            found += max(0, end - max(reached, start))
    return found


def unread_of(entry: TableState, applied: Offsets, known: Ends) -> int | None:
    """Count a table's unread records; one that does not stream goes on from where it stopped."""
    own = applied if entry.state == STREAMING else entry.progress.from_offsets
    return unread(entry.topics, own, known) if entry.topics else None


def lag_of(entry: TableState, records: int | None, clock: Clock, now: float) -> Lag:
    """Return the lag of a table, and bring `clock` up to date with what is unread."""
    if not records:
        clock.unread_since = None
        return Lag(None if records is None else 0.0, records)
    if clock.unread_since is None:
        clock.unread_since = now
    newest = entry.size.newest_ts / 1_000_000
    if clock.applied_at is None:  # nothing since the start: what was known before counts
        since = newest or clock.unread_since
        return Lag(round(max(0.0, now - since), 3), records)
    late = max(0.0, clock.applied_at - newest) if newest else 0.0
    waiting = max(0.0, now - max(clock.applied_at, clock.unread_since))
    return Lag(round(late + waiting, 3), records)


def worst(lags: Iterable[Lag], records: int | None) -> Lag:
    """Return the pipeline's lag: the longest of the tables', None if one of them is not known."""
    seconds = [lag.seconds for lag in lags]
    known = [found for found in seconds if found is not None]
    if records is None or len(known) < len(seconds):
        return Lag(None, records)
    return Lag(max(known, default=0.0), records)


def proven_by(source: SourceNow | None, newest: float, now: float) -> SourceNow | None:
    """Return the source with the proof of its events: all committed before the newest has come.

    Args:
        source: as it was found last; None if nobody looks at it.
        newest: time of the newest event that was applied, 0 = none.
        now: both in seconds since the epoch.
    """
    if source is None or not newest:
        return source
    proven = max(source.proven_ms or 0, round(min(newest, now) * 1000))
    return msgspec.structs.replace(source, proven_ms=proven)


def bounded(lag: Lag, source: SourceNow | None, now: float) -> Lag:
    """Return the lag with the time of what may still be on its way to Kafka.

    Args:
        lag: by what Kafka has.
        source: see `proven_by`; None if nobody looks at it.
        now: seconds since the epoch.

    Returns:
        the same while there is a fresh proof and no problem; else the time since the last proof,
        if that is longer, or None where there never was one.
    """
    if source is None or lag.seconds is None:
        return lag
    if source.proven_ms is None:
        return Lag(None, lag.records)
    silent = round(max(0.0, now - source.proven_ms / 1000), 3)
    if silent <= FRESH_S and not source.problems:
        return lag
    return Lag(max(lag.seconds, silent) if source.watched else None, lag.records)


def offsets(found: Mapping[tuple[str, int], int]) -> Offsets:
    """Return offsets by topic and then partition."""
    made: Offsets = {}
    for (topic, partition), offset in found.items():
        made.setdefault(topic, {})[partition] = offset
    return made
