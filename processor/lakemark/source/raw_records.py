"""Kafka's records as a task has them, read by itself or by Spark: by partition, epoch, offset."""

import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.kafka.output_names import ID
from lakemark.model.decoding import Records
from lakemark.model.events import CONTEXT_HEADERS, NEW_KEY_HEADER, OLD_KEY_HEADER
from lakemark.model.offsets import Offsets


def by_partition(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[str, int, list[pa.RecordBatch]]]:
    """Records by Kafka partition: a task may have several, in turn."""
    place: tuple[str, int] | None = None
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        for topic, partition, part in _pieces(batch):
            if place is not None and place != (topic, partition):
                yield *place, parts
                parts = []
            place = topic, partition
            parts.append(part)
    if place is not None:
        yield *place, parts


def by_epoch(records: Records, epochs: Sequence[Offsets]) -> Iterator[tuple[int, Records]]:
    """The records cut where a new epoch begins; nearly always a single piece.

    A record's epoch is the newest one that begins at or before it, in whatever order they begin.
    """
    begins = [epoch.get(records.topic, {}).get(records.partition, 0) for epoch in epochs]
    starts = [*accumulate(reversed(begins), min)][::-1]
    edges = [0, *(bisect_left(records.offsets, start) for start in starts), len(records.offsets)]
    for epoch, (begin, end) in enumerate(pairwise(edges)):
        if begin < end:
            piece = slice(begin, end)
            yield (
                epoch,
                replace(
                    records,
                    offsets=records.offsets[piece],
                    keys=records.keys[piece],
                    values=records.values[piece],
                    headers=records.headers[piece],
                ),
            )


def epoch_of(
    topic: str, partition: int, ends: tuple[int, int], epochs: Sequence[Offsets]
) -> int | None:
    """The epoch of all records between two offsets; None if another one begins there."""
    begins = [epoch.get(topic, {}).get(partition, 0) for epoch in epochs]
    first, last = (
        max((number for number, begin in enumerate(begins, 1) if begin <= end), default=0)
        for end in ends
    )
    return first if first == last else None


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """A batch cut at changes of topic or partition: nearly always a single piece."""
    topics = batch.column("topic")
    partitions = batch.column("partition").to_numpy()
    names = topics.dictionary_encode()
    ids = names.indices.to_numpy()
    change = np.flatnonzero((np.diff(ids) != 0) | (np.diff(partitions) != 0)) + 1
    edges = [0, *change.tolist(), batch.num_rows]
    for begin, end in pairwise(edges):
        yield topics[begin].as_py(), int(partitions[begin]), batch.slice(begin, end - begin)


def of(
    topic: str,
    partition: int,
    parts: list[pa.RecordBatch],
    *,
    every_header: bool = False,
    read_headers: frozenset[str] = frozenset(),
) -> Records:
    """The records of one partition, by offset.

    Args:
        topic: theirs.
        partition: theirs.
        parts: of the batch, one at least.
        every_header: all headers, not only those of key changes.
        read_headers: others than these that are wanted.
    """
    table = pa.Table.from_batches(parts)
    offsets = table.column("offset").to_pylist()
    records = Records(
        topic,
        partition,
        offsets,
        table.column("key").to_pylist(),
        table.column("value").to_pylist(),
        table.column("headers").to_pylist()
        if every_header
        else _chosen(table.column("headers"), read_headers),
        table.column("value"),
    )
    if any(map(operator.ge, offsets, islice(offsets, 1, None))):
        return _in_order(records)
    return records


def told_by_lakemark(parts: Sequence[pa.RecordBatch]) -> bool:
    """Say whether records of a partition are an output topic's, by the headers of the first.

    They name the same source as the connector's own. An output topic keeps a row's insert for ever,
    so that read as a change topic, by another pipeline or one that begins anew, it revives rows.
    """
    return any(header["key"] == ID for header in parts[0].column("headers")[0].as_py() or ())


def _in_order(records: Records) -> Records:
    order = sorted(range(len(records.offsets)), key=records.offsets.__getitem__)
    return Records(
        records.topic,
        records.partition,
        [records.offsets[i] for i in order],
        [records.keys[i] for i in order],
        [records.values[i] for i in order],
        [records.headers[i] for i in order],
        records.column,
    )


def without_headers(parts: Sequence[pa.RecordBatch]) -> bool:
    """Say whether no record has a header that counts, as key changes and output topics have."""
    flat = [pc.list_flatten(part.column("headers")) for part in parts]
    named = [some.field("key") for some in flat if len(some)]
    return all(pc.all(pc.starts_with(names, CONTEXT_HEADERS)).as_py() for names in named)


def _chosen(headers: pa.ChunkedArray, others: frozenset[str]) -> list[list[dict[str, Any]] | None]:
    """The two headers of key changes and some others, where there are any: most have none."""
    found: list[list[dict[str, Any]] | None] = [None] * len(headers)
    wanted = pa.array([NEW_KEY_HEADER, OLD_KEY_HEADER, *sorted(others)])
    start = 0
    for chunk in headers.chunks:
        flat = pc.list_flatten(chunk)
        if len(flat):
            hits = np.flatnonzero(
                pc.is_in(flat.field("key"), wanted).to_numpy(zero_copy_only=False)
            )
            if hits.size:
                parents = pc.list_parent_indices(chunk).to_numpy()
                for hit, entry in zip(
                    hits.tolist(), flat.take(pa.array(hits)).to_pylist(), strict=True
                ):
                    at = start + int(parents[hit])
                    found[at] = [*(found[at] or []), entry]
        start += len(chunk)
    return found
