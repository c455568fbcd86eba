"""Where events of later transactions begin in a partition: found by halving, as by reading all."""

from hypothesis import given
from hypothesis import strategies as st

from lakemark.source.later_events import AT_ONCE, SeenEvent, first_later, heads_of
from lakemark.source.offset_ranges import OffsetRange

NEUTRAL = None  # a record of no transaction, such as a tombstone
PARTITION = st.lists(st.sampled_from([0, 0, 0, 1, NEUTRAL]), max_size=200)


class Kafka:
    """Partitions of one topic; each record is the number of its transaction, or neutral."""

    def __init__(self, partitions):
        self.partitions, self.read, self.looks = partitions, 0, 0

    def look(self, ranges):
        self.looks += 1
        found = {}
        for one in ranges:
            assert 0 <= one.start < one.end <= len(self.partitions[one.partition])
            records = self.partitions[one.partition][one.start : one.end]
            self.read += len(records)
            events = [
                SeenEvent(one.start + at, number, b"")
                for at, number in enumerate(records)
                if number is not NEUTRAL
            ]
            if events:
                found[one.topic, one.partition] = events
        return found


def risen(steps):
    """Numbers that never fall, from steps."""
    number, found = 0, []
    for step in steps:
        number += step or 0
        found.append(NEUTRAL if step is NEUTRAL else number)
    return found


@given(st.lists(PARTITION, min_size=1, max_size=3), st.integers(-1, 60), st.data())
def test_the_first_event_of_a_later_transaction_is_found(steps, last, data):
    partitions = [risen(one) for one in steps]
    starts = [data.draw(st.integers(0, len(one))) for one in partitions]
    kafka = Kafka(partitions)
    ranges = [OffsetRange("t", p, s, len(partitions[p])) for p, s in enumerate(starts)]
    found = first_later(ranges, last, kafka.look)
    for number, (records, start) in enumerate(zip(partitions, starts, strict=True)):
        later = [at for at in range(start, len(records)) if (records[at] or -2) > last
                 or (records[at] == 0 and last < 0)]  # fmt: skip
        assert (found[("t", number)].offset if ("t", number) in found else None) == next(
            iter(later), None
        )


def test_of_a_long_stretch_little_is_read():
    kafka = Kafka([list(range(1_000_000))])
    (found,) = first_later([OffsetRange("t", 0, 0, 1_000_000)], 123_456, kafka.look).values()
    assert found.offset == 123_457
    assert kafka.read <= 22 * AT_ONCE
    kafka = Kafka([[*range(1000)]])
    assert first_later([OffsetRange("t", 0, 0, 1000)], 5000, kafka.look) == {}
    assert kafka.read == AT_ONCE, "most stretches have nothing later"


def test_heads_are_the_first_events_of_ranges_that_have_any():
    kafka = Kafka([[7, NEUTRAL, 8], [NEUTRAL] * 3, []])
    ranges = [OffsetRange("t", p, 0, len(one)) for p, one in enumerate(kafka.partitions)]
    found = heads_of(ranges, kafka.look)
    assert {place: [e.number for e in events] for place, events in found.items()} == {
        ("t", 0): [7, 8]
    }
    assert heads_of([OffsetRange("t", 2, 0, 0)], kafka.look) == {}
    assert kafka.looks == 1, "nothing to read is not asked for"
