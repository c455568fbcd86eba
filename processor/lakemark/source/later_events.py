"""The places where events of later transactions begin in partitions; pure but for who looks.

A connector writes each partition in the order of its log, so that the place is found by halving:
few records are read, however long the stretch is. After a restart it writes a stretch again; the
place found may then be another one, which whoever uses it has to notice by the events that come.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakemark.source.offset_ranges import OffsetRange

AT_ONCE: Final = 16
"""Records of a partition that one look reads."""


class SeenEvent(NamedTuple):
    """An event of some transaction.

    Attributes:
        offset: in Kafka.
        number: of its transaction, see `PositionRules.numbering`.
        position: of it.
    """

    offset: int
    number: int
    position: bytes


Place = tuple[str, int]
"""Topic and partition."""
Look = Callable[[Sequence[OffsetRange]], Mapping[Place, Sequence[SeenEvent]]]
"""Reads ranges of different partitions: the events of transactions among them, in their order."""


@dataclass(slots=True)
class _Search:
    """The search in one partition: events before `low` are not later, those from `high` on are.

    Attributes:
        low, high: offsets.
        found: the event at `high`; None as long as none was seen.
    """

    low: int
    high: int
    found: SeenEvent | None = None

    def window(self) -> tuple[int, int]:
        """Return the offsets to look at next: the last ones first, as most stretches are short."""
        if self.found is None:
            return max(self.low, self.high - AT_ONCE), self.high
        begin = (self.low + self.high) // 2 if self.high - self.low > AT_ONCE else self.low
        return begin, min(self.high, begin + AT_ONCE)

    def take(self, begin: int, end: int, events: Sequence[SeenEvent], last: int) -> bool:
        """Take in what was seen; say whether the search is over."""
        at = next((n for n, event in enumerate(events) if event.number > last), None)
        if at is None and self.found is None:
            self.high = begin
            return bool(events) or begin <= self.low  # nothing later at the very end: none at all
        if at is None:
            self.low = end
            return self.low >= self.high
        self.found, self.high = events[at], events[at].offset
        return at > 0 or begin == self.low


def first_later(ranges: Sequence[OffsetRange], last: int, look: Look) -> dict[Place, SeenEvent]:
    """Return the first event of a later transaction in each range; those without are left out.

    Args:
        ranges: of different partitions, each with a first offset.
        last: the number of the transaction that is not later.
        look: reads.
    """
    searches = {
        (one.topic, one.partition): _Search(one.start, one.end) for one in ranges if one.size > 0
    }
    left = dict(searches)
    while left:
        windows = {place: search.window() for place, search in left.items()}
        seen = look([OffsetRange(*place, *window) for place, window in windows.items()])
        for place, (begin, end) in windows.items():
            if left[place].take(begin, end, seen.get(place, ()), last):
                del left[place]
    return {place: one.found for place, one in searches.items() if one.found is not None}


def heads_of(ranges: Sequence[OffsetRange], look: Look) -> Mapping[Place, Sequence[SeenEvent]]:
    """Return the events among the first records of each range; ranges without any are left out."""
    heads = [one._replace(end=min(one.end, one.start + AT_ONCE)) for one in ranges if one.size > 0]
    found = look(heads) if heads else {}
    return {place: events for place, events in found.items() if events}
