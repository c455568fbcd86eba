"""Records of Kafka's topics for a trace: a bounded stretch of them, read piece by piece."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa

from lakemark.converters.registry import converter_of
from lakemark.kafka.brokers import Cluster
from lakemark.kafka.client_settings import by_offset, carried
from lakemark.model.decoding import Records, StretchPlan
from lakemark.model.offsets import Offsets
from lakemark.ops.trace.batches import TableBatches
from lakemark.ops.trace.key_records import KeyRecords, cut
from lakemark.ops.trace.traced import TracedRecord
from lakemark.settings.config import Config
from lakemark.source import fetch, raw_records
from lakemark.source.offset_ranges import OffsetRange

MOST: Final = 1_000_000
"""Records of a table's topics that are read where nobody says since when: some ten seconds."""
_SLICE: Final = 20_000  # records in memory at a time
_KEYS: Final = 8  # that are followed from change to change of a key

Tick = Callable[[str, int, int], None]
"""Told of each piece that was read: the topic, how many records so far, how many in all."""


@dataclass(frozen=True, slots=True)
class Since:
    """The place where reading begins: a time, or an offset of each partition; neither = `MOST`."""

    moment: datetime | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """The stretch of a partition that was read.

    Attributes:
        topic, partition: which.
        first, end: offsets: the first, and the one behind the last.
        held: the first offset that Kafka still has.
    """

    topic: str
    partition: int
    first: int
    end: int
    held: int


@dataclass(frozen=True, slots=True)
class LogFound:
    """The records of some keys.

    Attributes:
        keys: canonical: the one asked for, and those that its row had before or has had since.
        records: by partition, in its order.
        spans: what was read.
        read: how many records were looked at.
        left: keys that were not followed, since there are too many.
    """

    keys: frozenset[bytes]
    records: list[TracedRecord]
    spans: list[ReadSpan]
    read: int
    left: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class StretchReader:
    """Reads stretches of topics for one trace.

    Attributes:
        config: ours.
        plan: how the connector's records are decoded.
        epochs: see `raw_records.by_epoch`.
        tick: told of the progress.

    Raises (every method):
        DependencyError: the brokers do not answer, or no longer have what is asked for.
        InvalidConfig: they do not let us in.
    """

    config: Config
    plan: StretchPlan
    epochs: Sequence[Offsets]
    tick: Tick

    def spans(self, topics: Sequence[str], since: Since, *, most: int = MOST) -> list[ReadSpan]:
        """Return what is to be read of topics, up to their ends as of now.

        Args:
            topics: which; one that does not exist has none.
            since: where it begins.
            most: records, where nobody says since when: the newest of each partition.
        """
        with Cluster(self.config) as cluster:
            ends, held = cluster.end_offsets(topics), cluster.start_offsets(topics)
            begin: Mapping[tuple[str, int], int] = held
            if since.moment is not None:
                found = cluster.offsets_since(topics, int(since.moment.timestamp() * 1000))
                begin = {place: at if at >= 0 else ends[place] for place, at in found.items()}
            elif since.offset is not None:
                begin = dict.fromkeys(held, since.offset)
            elif sum(end - held[place] for place, end in ends.items()) > most:
                begin = {place: end - most // len(ends) for place, end in ends.items()}
        return [
            ReadSpan(*place, min(end, max(begin[place], held[place])), end, held[place])
            for place, end in sorted(ends.items())
        ]

    def batches(
        self, spans: Sequence[ReadSpan], *, size: int = _SLICE
    ) -> Iterator[list[pa.RecordBatch]]:
        """Yield the records of spans, one partition after the other, so many at a time."""
        client, done = carried(by_offset(self.config)), 0
        total = sum(span.end - span.first for span in spans)
        for span in spans:
            for first in range(span.first, span.end, size):
                end = min(first + size, span.end)
                part = OffsetRange(span.topic, span.partition, first, end)
                yield [*fetch.records([part], client)]
                done += end - first
                self.tick(span.topic, done, total)

    def stretches(
        self, spans: Sequence[ReadSpan], edges: Callable[[str, int], Sequence[int]]
    ) -> Iterator[tuple[Records, StretchPlan]]:
        """Yield the records of spans in stretches of one epoch, each with its plan.

        Args:
            spans: what is read.
            edges: of a partition, offsets before which a stretch ends.
        """
        wanted = converter_of(self.plan.converter).read_headers
        for parts in self.batches(spans):
            for topic, partition, some in raw_records.by_partition(parts):
                if not self.plan.outputs and raw_records.told_by_lakemark(some):
                    continue
                whole = raw_records.of(topic, partition, some, read_headers=wanted)
                for piece in cut(whole, edges(topic, partition)):
                    for epoch, records in raw_records.by_epoch(piece, self.epochs):
                        yield records, self.plan.of_epoch(epoch)

    def key_records(
        self, spans: Sequence[ReadSpan], *, table: str, key: bytes, batches: TableBatches
    ) -> LogFound:
        """Return the records of a key, and of the keys that its row had before or has had since.

        The topics are read again for each such key: only then is it known.

        Args:
            spans: what is read.
            table: its name.
            key: canonical.
            batches: where batches end, and where each partition was then.
        """
        keys = frozenset([key])
        while True:
            by_place: dict[tuple[str, int], KeyRecords] = {}
            for records, plan in self.stretches(spans, batches.edges):
                place = records.topic, records.partition
                if place not in by_place:
                    by_place[place] = KeyRecords(table, keys, known=batches.known(*place))
                by_place[place].take(records, plan)
            found = [record for one in by_place.values() for record in one.found]
            read = sum(one.read for one in by_place.values())
            others = frozenset(one.other_key for one in found if one.other_key) - keys
            if not others or len(keys | others) > _KEYS:
                return LogFound(keys, found, [*spans], read, others)
            keys |= others


def alone(plan: StretchPlan, tables: frozenset[str]) -> StretchPlan:
    """Return a plan for some tables, whose bad records are bad for certain, however many."""
    return replace(
        plan, selected=tables, verified=tables, converter_asked=True, max_bad=1 << 62, applied={}
    )
