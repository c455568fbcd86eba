"""Kafka's records, read by the task that decodes them.

Spark's own reader hands every record from Java to Python: as a row, as an Arrow column, through a
pipe. Here librdkafka fetches them in the worker itself, in threads of its own, and they are copied
from its memory into Arrow's (`scan_messages`); only headers become Python objects. Those that say
which task wrote a record are left out unless they are asked for: every record has them.

Read is what `read_committed` shows: no records of open or aborted transactions. A range is read
whole or an error is raised: offsets that Kafka no longer has are never skipped.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from lakemark.converters import compiler
from lakemark.converters.registry import CONVERTERS
from lakemark.errors import DependencyError, lost
from lakemark.kafka.client_errors import Admission, refused_settings
from lakemark.kafka.client_settings import here
from lakemark.model.events import CONTEXT_HEADERS
from lakemark.settings.masking import foreign
from lakemark.source import librdkafka, scan_messages
from lakemark.source.offset_ranges import OffsetRange

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
"""Of what is read: `topics.COLUMNS` as Arrow has them."""

PATIENCE_S: Final = 60.0  # without any record
_MOST: Final = 10_000  # records at a time
_AHEAD: Final = 20_000  # records of ranges that are read at a time
_MOST_BYTES: Final = 1 << 30  # of an Arrow array
_WAIT_S: Final = 0.02
_CLIENT: Final = {
    # Records beyond a range are fetched in vain: so few at a time. The client waits for a second
    # where its queue is full, unless told otherwise.
    "queued.max.messages.kbytes": 4096,
    "fetch.message.max.bytes": 2 << 20,
    "fetch.queue.backoff.ms": 1,
    "fetch.wait.max.ms": 5,
    "check.crcs": True,  # as Java's client does
}
_OURS: Final = {
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
_GONE: Final = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 - what it is called where offsets are gone
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
_PASSING: Final = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)


def ready() -> bool:
    """Compiles what records are fetched and decoded by, or takes it from the cache: see `compiler`.

    Returns:
        False where that cannot be done: all records of this process go the general way then.
    """
    return compiler.ready(
        *(converter.prepare for converter in CONVERTERS.values()), scan_messages.example
    )


def records(
    ranges: Sequence[OffsetRange], client: Mapping[str, Any], *, context: bool = False
) -> Generator[pa.RecordBatch]:
    """All records of the ranges (`SCHEMA`): one range after the other, in any order of ranges.

    Ranges of `_AHEAD` records in all are read at a time, or a single larger one: the others wait.

    Args:
        ranges: of different partitions.
        client: librdkafka settings with a `group.id`: see `client_settings.by_offset`, `carried`.
        context: whether headers are wanted that say which task wrote a record.

    Raises:
        DependencyError: `source-data-expired`: Kafka no longer has all of them;
            `kafka-unavailable`: nothing came for `PATIENCE_S`; `kafka-refused`.
        InvalidConfig: the client does not take a setting.
        LoginRefused: the brokers do not let us in.
    """
    if any(one.start < 0 for one in ranges):
        _forget(_kept)  # where a partition begins it knows from the last time that it read it
    kept = _reader(client)
    try:
        waiting = list(reversed(ranges))
        while waiting:
            share = [waiting.pop()]
            while waiting and sum(one.size for one in share) + waiting[-1].size <= _AHEAD:
                share.append(waiting.pop())
            yield from _read(share, kept, context=context)
        kept.reader.drop_all()
    except BaseException as error:
        _forget(kept)  # whatever it still has of this task is not the next one's
        if isinstance(error, KafkaException):
            raise _unread(f"the change topics: {error.args[0].str()}") from error
        raise


def _read(
    ranges: Sequence[OffsetRange], kept: "_Kept", *, context: bool
) -> Iterator[pa.RecordBatch]:
    reader = kept.reader
    left = {(one.topic, one.partition): _Reading(one) for one in ranges}
    reader.add((one.topic, one.partition, one.start) for one in ranges)
    until = time.monotonic() + PATIENCE_S
    while left:
        # More than can come is waited for until the time is over.
        most = min(_MOST, sum(one.range.size for one in left.values()))
        messages = reader.some(max(1, most), _WAIT_S)
        try:
            done, came = _sort(messages, left, context=context)
        finally:
            _release(messages)
        kept.admission.require()
        if came:
            until = time.monotonic() + PATIENCE_S
        elif time.monotonic() > until:
            raise _silent(next(iter(left.values())).range)
        for place in done:
            reader.drop(*place)  # what stands behind the range is not wanted
            yield from left.pop(place).parts
            until = time.monotonic() + PATIENCE_S  # whoever takes them may have taken his time


class _Reading:
    """A range and what is there of it."""

    def __init__(self, one: OffsetRange) -> None:
        self.range = one
        self.parts: list[pa.RecordBatch] = []

    def meets(self, error: KafkaError, offset: int) -> bool:
        """Say whether an error of the client's means that the range's end is reached.

        Raises:
            DependencyError: it means that the range cannot be read.
        """
        code, one = error.code(), self.range
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return offset >= one.end  # else this broker is behind, as a follower may be
        where = f"{one.topic}-{one.partition}"
        if code in _GONE:
            raise lost(f"{where} from offset {one.start} on: {error.str()}")
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise DependencyError(
                f"{one.topic} may not be read: {error.str()}",
                code="kafka-refused",
                hint=f"lakemark needs Read and Describe on the topic {one.topic}",
            )
        if code not in _PASSING:
            raise _unread(f"{where}: {error.str()}")
        return False


_Messages = npt.NDArray[np.int64]


def _sort(
    messages: _Messages, left: Mapping[tuple[str, int], _Reading], *, context: bool
) -> tuple[list[tuple[str, int]], bool]:
    """Adds the messages to what is there of their ranges.

    A range's end is reached with its last record, with one behind it, or with the end of the
    partition: its last records may be gone, or be those of an aborted transaction.

    Returns:
        The ranges that are whole now, and whether records came.
    """
    done: dict[tuple[str, int], None] = {}
    at, came = 0, False
    while at < len(messages):
        first = librdkafka.message(messages[at])
        place = librdkafka.topic_of(first), first.partition
        reading, error = left.get(place), librdkafka.error_of(first)
        if error is not None:
            # Others are of partitions that are read no more, or of a group, and we are in none.
            if reading is not None and reading.meets(error, first.offset):
                done[place] = None
            at += 1
        elif reading is None or place in done or first.offset >= reading.range.end:
            if reading is not None:
                done[place] = None
            at += 1
        else:
            count, batch = _batch(messages[at:], reading.range, context=context)
            reading.parts.append(batch)
            came = True
            if librdkafka.message(messages[at + count - 1]).offset == reading.range.end - 1:
                done[place] = None
            at += count
    return list(done), came


def _batch(messages: _Messages, one: OffsetRange, *, context: bool) -> tuple[int, pa.RecordBatch]:
    """The first records of a range, and how many they are: compiled, but for headers.

    Args:
        messages: pointers; the first is to a record of the range.
        one: the range.
        context: see `records`.
    """
    if not compiler.usable():
        return 1, _listed(messages[0], one, context=context)
    found, told = np.empty(scan_messages.FOUND, np.int64), np.zeros(len(messages), np.uint8)
    get_all = 0 if context else librdkafka.HEADER_GET_ALL
    addresses = librdkafka.HEADERS_OF, get_all
    count = scan_messages.run(messages, one.end, _MOST_BYTES, *addresses, told, found)
    values = _buffers(count, int(found[scan_messages.BYTES_OF_VALUES]))
    keys = _buffers(count, int(found[scan_messages.BYTES_OF_KEYS]))
    offsets = np.empty(count, np.int64)
    scan_messages.take(messages[:count], *values, *keys, offsets)
    headers: pa.Array = pa.nulls(count, HEADERS)
    if found[scan_messages.HEADERS]:
        listed: list[list[dict[str, Any]] | None] = [None] * count
        for at in np.flatnonzero(told).tolist():
            listed[at] = _headers(librdkafka.message(messages[at]), context=context)
        headers = pa.array(listed, HEADERS)
    return count, _told(
        one,
        pa.array(offsets),
        _array(count, *keys, int(found[scan_messages.NULL_KEYS])),
        _array(count, *values, int(found[scan_messages.NULL_VALUES])),
        headers,
    )


def _listed(pointer: int, one: OffsetRange, *, context: bool) -> pa.RecordBatch:
    """A record as Python has it."""
    found = librdkafka.message(pointer)
    return _told(
        one,
        pa.array([found.offset], pa.int64()),
        pa.array([librdkafka.key_of(found)], pa.binary()),
        pa.array([librdkafka.value_of(found)], pa.binary()),
        pa.array([_headers(found, context=context)], HEADERS),
    )


def _headers(one: librdkafka.KafkaMessage, *, context: bool) -> list[dict[str, Any]] | None:
    """The headers of a message that count; None for none."""
    found = [
        {"key": name, "value": value}
        for name, value in librdkafka.headers_of(one) or ()
        if context or not name.startswith(CONTEXT_HEADERS)
    ]
    return found or None


def _told(
    one: OffsetRange, offsets: pa.Array, keys: pa.Array, values: pa.Array, headers: pa.Array
) -> pa.RecordBatch:
    topics = pa.repeat(pa.scalar(one.topic, pa.string()), len(offsets))
    partitions = pa.repeat(pa.scalar(one.partition, pa.int32()), len(offsets))
    return pa.RecordBatch.from_arrays(
        [topics, partitions, offsets, keys, values, headers], schema=SCHEMA
    )


def _release(messages: _Messages) -> None:
    if compiler.usable():
        scan_messages.release(messages, librdkafka.RELEASE)
        return
    for pointer in messages:
        librdkafka.release(pointer)


_Buffers = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.uint8]]


def _buffers(count: int, size: int) -> _Buffers:
    ends, there = np.zeros(count + 1, np.int32), np.zeros((count + 7) // 8, np.uint8)
    return np.empty(size, np.uint8), ends, there


def _array(
    count: int,
    data: npt.NDArray[np.uint8],
    ends: npt.NDArray[np.int32],
    there: npt.NDArray[np.uint8],
    nulls: int,
) -> pa.Array:
    buffers = [pa.py_buffer(there) if nulls else None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers, nulls)


def _unread(what: str) -> DependencyError:
    return DependencyError(
        f"Kafka could not be read, {foreign(what)}",
        code="kafka-unavailable",
        hint="see what the brokers say; it is tried again",
    )


def _silent(one: OffsetRange) -> DependencyError:
    return DependencyError(
        f"the brokers gave nothing of {one.topic}-{one.partition} for {PATIENCE_S:g} s; "
        f"records from offset {one.start} to {one.end} were asked for",
        code="kafka-unavailable",
        hint="start the brokers, or correct kafka.bootstrap_servers; it is tried again",
    )


class _Kept(NamedTuple):
    """The reader that a process keeps for its next task."""

    client: dict[str, Any]
    reader: librdkafka.Reader
    admission: Admission


def _reader(client: Mapping[str, Any]) -> _Kept:
    """This process's reader; another one where the settings are others, as a password's."""
    global _kept  # noqa: PLW0603 - it outlives the task
    if _kept is not None and _kept.client == client:
        return _kept
    _forget(_kept)
    admission = Admission()
    with refused_settings():
        reader = librdkafka.Reader({**_CLIENT, **here(client), **_OURS}, admission)
    _kept = _Kept(dict(client), reader, admission)
    return _kept


def _forget(kept: _Kept | None) -> None:
    """End the process's reader, if it still is this one."""
    global _kept  # noqa: PLW0603
    if kept is not None and kept is _kept:
        _kept = None
        kept.reader.close()


_kept: _Kept | None = None
