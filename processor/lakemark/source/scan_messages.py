"""librdkafka's messages, compiled: from where they lie in the client's memory into Arrow's buffers.

A message is where its pointer says, as `rd_kafka_message_t` of librdkafka's interface lays it out.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from lakemark.converters.compiler import Bytes, Offsets, Whole, compiled
from lakemark.model.events import CONTEXT_HEADERS

ERROR, TOPIC, PARTITION, VALUE, VALUE_SIZE, KEY, KEY_SIZE, OFFSET = 0, 8, 16, 24, 32, 40, 48, 56
_memcpy: Final[Any] = cgutils.raw_memcpy
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)

BYTES_OF_VALUES, BYTES_OF_KEYS, NULL_VALUES, NULL_KEYS, HEADERS = range(5)
"""Places in what `run` tells."""
FOUND = 5
"""How many it tells."""


def _intrinsic(code: Callable[..., Any]) -> Any:
    """A function for compiled ones whose code LLVM is told."""
    return extending.intrinsic(code)


@_intrinsic
def _int64(_: Any, at: Any) -> Any:  # noqa: ARG001 - numba wants it
    """The 64 bits at an address."""

    def code(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _INT64.as_pointer()))

    return types.int64(types.int64), code


@_intrinsic
def _int32(_: Any, at: Any) -> Any:  # noqa: ARG001 - numba wants it
    """The 32 bits at an address."""

    def code(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _INT32.as_pointer()))

    return types.int32(types.int64), code


@_intrinsic
def _copy(_: Any, to: Any, at: Any, size: Any) -> Any:  # noqa: ARG001 - numba wants it
    """Copies bytes from an address to another."""

    def code(ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        here, there = (
            builder.inttoptr(one, ir.IntType(8).as_pointer()) for one in (args[0], args[1])
        )
        _memcpy(builder, here, there, args[2], 1)
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code


@_intrinsic
def _called(_: Any, function: Any, one: Any, two: Any) -> Any:  # noqa: ARG001 - see `_int64`
    """Call a C function with two pointers and return its result."""

    def code(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(_INT32, [_INT64, _INT64])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1], args[2]])

    return types.int32(types.int64, types.int64, types.int64), code


@_intrinsic
def _get_all(_: Any, function: Any, headers: Any, at: Any, room: Any) -> Any:  # noqa: ARG001 - see `_int64`
    """Call `rd_kafka_header_get_all` for one header; `room` is told name, value and size."""

    def code(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(_INT32, [_INT64] * 5)
        address, given, number, where = args
        places = [builder.add(where, _INT64(8 * place)) for place in range(3)]
        return builder.call(builder.inttoptr(address, kind.as_pointer()), [given, number, *places])

    return types.int32(types.int64, types.int64, types.int64, types.int64), code


def _words(text: bytes) -> tuple[int, int, int]:
    """The 64 bits at three places of a text, which have all of it between them."""
    return tuple(int.from_bytes(text[at : at + 8], "little") for at in _WORDS_AT)  # type: ignore[return-value]


_WORDS_AT: Final = (0, 8, len(CONTEXT_HEADERS) - 8)
_LAST_AT: Final = _WORDS_AT[2]
_FIRST, _SECOND, _LAST = _words(CONTEXT_HEADERS.encode())


@compiled
def _has_other(headers: int, get_all: int, room: Whole) -> bool:
    """Say whether a message has a header that is none of its task's."""
    at = 0
    while _get_all(get_all, headers, at, room.ctypes.data + 8) == 0:
        # No byte is looked at behind a name's end: each part is read where the one before is right.
        name = room[1]
        if (
            _int64(name) != _FIRST
            or _int64(name + 8) != _SECOND
            or _int64(name + _LAST_AT) != _LAST
        ):
            return True
        at += 1
    return False


@compiled
def run(
    messages: Whole,
    end: int,
    most: int,
    headers_of: int,
    get_all: int,
    told: Bytes,
    found: Whole,
) -> int:
    """Count the messages from the first on that are records of its partition before an offset.

    Args:
        messages: pointers.
        end: the offset.
        most: bytes of values, and of keys, at most; one message may have more.
        headers_of: address of `rd_kafka_message_headers`.
        get_all: address of `rd_kafka_header_get_all`; 0 where headers of the task count, too.
        told: zeros; is told which messages have headers that count.
        found: is told their bytes, how many are null, and how many have headers that count.
    """
    found[:] = 0
    if not messages.size:
        return 0
    room = np.zeros(4, np.int64)
    topic, partition = _int64(messages[0] + TOPIC), _int32(messages[0] + PARTITION)
    count = 0
    for i in range(messages.size):
        here = messages[i]
        if (
            _int32(here + ERROR) != 0
            or _int64(here + TOPIC) != topic
            or _int32(here + PARTITION) != partition
            or _int64(here + OFFSET) >= end
        ):
            break
        value, key = _int64(here + VALUE_SIZE), _int64(here + KEY_SIZE)
        if count and (found[BYTES_OF_VALUES] + value > most or found[BYTES_OF_KEYS] + key > most):
            break
        if _called(headers_of, here, room.ctypes.data) == 0 and (
            get_all == 0 or _has_other(room[0], get_all, room)
        ):
            told[count] = 1
            found[HEADERS] += 1
        count += 1
        if _int64(here + VALUE) == 0:
            found[NULL_VALUES] += 1
        else:
            found[BYTES_OF_VALUES] += value
        if _int64(here + KEY) == 0:
            found[NULL_KEYS] += 1
        else:
            found[BYTES_OF_KEYS] += key
    return count


@compiled
def _part(here: int, part: int, i: int, data: Bytes, ends: Offsets, there: Bytes) -> None:
    size = 0
    if _int64(here + part) != 0:
        size = _int64(here + part + 8)
        _copy(data.ctypes.data + ends[i], _int64(here + part), size)
        there[i >> 3] |= np.uint8(1 << (i & 7))
    ends[i + 1] = ends[i] + size


@compiled
def take(
    messages: Whole,
    values: Bytes,
    value_ends: Offsets,
    has_value: Bytes,
    keys: Bytes,
    key_ends: Offsets,
    has_key: Bytes,
    offsets: Whole,
) -> None:
    """Copies a run of messages into Arrow's buffers; bitmaps and first ends are zeros before."""
    for i in range(messages.size):
        here = messages[i]
        _part(here, VALUE, i, values, value_ends, has_value)
        _part(here, KEY, i, keys, key_ends, has_key)
        offsets[i] = _int64(here + OFFSET)


@compiled
def release(messages: Whole, destroy: int) -> None:
    """Gives the messages back to the client; `destroy` is `rd_kafka_message_destroy`."""
    for i in range(messages.size):
        _called(destroy, messages[i], 0)


def example() -> None:
    """Calls everything once, with no messages."""
    none, found = np.zeros(0, np.int64), np.zeros(FOUND, np.int64)
    data, ends = np.zeros(1, np.uint8), np.zeros(1, np.int32)
    run(none, 0, 0, 0, 0, data, found)
    take(none, data, ends, data, data, ends, data, none)
    release(none, 0)
