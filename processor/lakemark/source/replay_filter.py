"""The replay gate: what a connector emits again is recognised by position and dropped.

A connector emits each Kafka partition in position order. After a restart it emits a stretch again;
everything below the partition's applied position has been applied before. Rows of the
connector's own snapshot start the partition again: their positions are sampled outside the stream.
Applied positions are state of a *batch*, not of the table: a repeated batch starts from the same
ones and decides as it did the first time.

A connector that goes on at another server writes that server's positions, and may emit transactions
again that came from the first one. Where transactions have names that all servers know
(`LoggedEvent`), an event below the applied position whose transaction never came is of another log:
in the same log it would have been applied. One above it whose transaction came is emitted again.

Where events of a transaction are told apart by a number that the connector counts
(`may_be_counted_anew`), one of the newest transaction with a number that came may never have come.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from lakemark.model import positions
from lakemark.model.decoding import AppliedPosition, came, is_new, may_be_new, note_event
from lakemark.model.events import Kind
from lakemark.model.positions import LoggedEvent

_PASSING: Final = frozenset({int(Kind.CHANGE), int(Kind.TOMBSTONE), int(Kind.HEARTBEAT)})
_LOGGED: Final = frozenset({int(Kind.CHANGE), int(Kind.TRUNCATE), int(Kind.SIGNAL)})


@dataclass(frozen=True, slots=True)
class Gated:
    """The decision about a stretch of one partition.

    Attributes:
        keep: indices that are applied, in offset order.
        replays: number of events dropped as replays.
        regressed: index of the first event below the applied position that is no replay: its source
            time is newer than anything seen, or its transaction never came. None = none.
        after: the partition's applied position after the stretch.
        proven: whether the event at `regressed` is of another log for certain.
        doubtful: indices of events that were dropped by their transaction's number, which a server
            may have given otherwise, or by their order in it, which a connector that was started
            again may have counted anew: their rows are to be read again.
    """

    keep: list[int]
    replays: int
    regressed: int | None
    after: AppliedPosition
    proven: bool = False
    doubtful: Sequence[int] = ()


Logged = Callable[[int], LoggedEvent | None]
"""Returns a change or a truncate of a stretch, by its index; None where it has no name."""


def drop_replays(
    kinds: Sequence[int],
    position: Sequence[bytes],
    source_ts: Sequence[int],
    start: AppliedPosition,
    logged: Logged | None = None,
) -> Gated:
    """Decides which events of one partition, in offset order, are new.

    Events equal to the applied position pass: one WAL record can hold many rows (COPY), and
    applying an event twice changes nothing. Reads of incremental snapshots never raise it.

    Truncates pass, but for those that came here before under another position. They have no key:
    one that was lost on its way and is sent again may come to another partition, which is past it.
    They are applied by position, so an old one does no harm.

    Args:
        kinds: of the records.
        position: of the same.
        source_ts: of the same.
        start: the partition's progress before them.
        logged: names them; None where the connector names no transactions.
    """
    usual = _in_order(kinds, position, source_ts, start, logged)
    if usual is not None:
        return usual
    high, newest, seen = start.position, start.source_ts, dict(start.seen)
    keep: list[int] = []
    replays = 0
    regressed: int | None = None
    proven = False
    doubtful: list[int] = []
    change, truncate = int(Kind.CHANGE), int(Kind.TRUNCATE)
    own, incremental = int(Kind.OWN_SNAPSHOT), int(Kind.INCREMENTAL)
    for index, kind in enumerate(kinds):
        at = position[index]
        event = logged(index) if logged is not None and kind in {change, truncate} else None
        fresh = at < high and event is not None and bool(seen) and is_new(event, seen)
        if fresh or (kind == change and at < high):
            anew = not fresh and positions.may_be_counted_anew(at, high)
            if not anew and (fresh or source_ts[index] > newest) and regressed is None:
                regressed, proven = index, fresh
            elif anew or (event is not None and may_be_new(event, seen)):
                doubtful.append(index)
            replays += 1
        elif kind in {change, truncate}:
            again = at >= high and came(event, seen, at=at, high=high)
            if again and source_ts[index] <= newest:
                replays += 1
                doubtful.append(index)
                continue
            if at >= high:
                high = at
                newest = max(newest, source_ts[index])
                note_event(seen, event)
            keep.append(index)
        elif kind == own:
            high, seen = at, {}  # all that comes behind it counts again
            newest = max(newest, source_ts[index])
            keep.append(index)
        elif kind == incremental:
            if at < high:
                replays += 1
            else:
                keep.append(index)
    after = AppliedPosition(high, newest, seen=seen)
    return Gated(keep, replays, regressed, after, proven, doubtful)


def _in_order(
    kinds: Sequence[int],
    position: Sequence[bytes],
    source_ts: Sequence[int],
    start: AppliedPosition,
    logged: Logged | None,
) -> Gated | None:
    """The usual stretch, decided as a whole: changes only, none of them a replay."""
    if not _PASSING.issuperset(kinds):
        return None
    change = int(Kind.CHANGE)
    keep = [index for index, kind in enumerate(kinds) if kind == change]
    if not keep:
        return None
    at = [position[index] for index in keep]
    if at[0] < start.position or not all(map(operator.le, at, islice(at, 1, None))):
        return None
    seen = dict(start.seen)
    if logged is not None:
        before = start.position
        for index, place in zip(keep, at, strict=True):
            event = logged(index)
            if came(event, seen, at=place, high=before):
                return None
            note_event(seen, event)
            before = place
    newest = max(start.source_ts, *map(source_ts.__getitem__, keep))
    return Gated(keep, 0, None, AppliedPosition(at[-1], newest, seen=seen))


def beginnings(
    kinds: Sequence[int],
    position: Sequence[bytes],
    source_ts: Sequence[int],
    keep: Sequence[int],
) -> dict[int, int]:
    """Return when the connector began without offsets, as a stretch shows it; mostly never.

    After it had sent something, what was changed before may be in no record. PostgreSQL's has a new
    slot then, whose first transaction has no last commit; all events of a transaction have the same
    source time. Those of MySQL and MariaDB read the structure of their tables, and say so in the
    schema topic: all records of it have the place in the log, and each a later time.

    Args:
        kinds: of the records of one partition.
        position: of the same.
        source_ts: of the same.
        keep: indices of the events that are new; rows of the signal table count beside them.

    Returns:
        source times in microseconds, by a number that is each beginning's own.
    """
    signal, events = int(Kind.SIGNAL), list(keep)
    if signal in kinds:
        events += [at for at, kind in enumerate(kinds) if kind == signal]
    found = positions.which_first([*map(position.__getitem__, events)])
    times = {source_ts[events[at]] for at in found if kinds[events[at]] in _LOGGED}
    told = {time: time for time in sorted(times)}
    structure = int(Kind.SCHEMA_CHANGE)
    for at, kind in enumerate(kinds) if structure in kinds else ():
        if kind == structure and position[at] != positions.LOWEST:
            place = positions.snapshot_of(position[at])
            told[place] = min(told.get(place, source_ts[at]), source_ts[at])
    return told
