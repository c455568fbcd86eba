"""Datums as JSON, many at a time: what `compiled.scan_datums` writes, in arrays that fit."""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters.avro.compiled import scan_datums
from lakemark.converters.avro.instructions import Instructions
from lakemark.converters.compiler import Bytes, Whole

_FIRST_ROOM: Final = 1 << 16
MOST_ROOM: Final = 1 << 30
"""Bytes of JSON at a time, at most: a datum that needs more is none that anybody wrote."""
_SPECIAL: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_WHOLE: Final = "^-?[0-9]+$"


class Transcript(NamedTuple):
    """The JSON of datums, one behind the other.

    Attributes:
        text: the bytes.
        offsets: where each begins, and the end of the last.
        bad: True for those that are none.
    """

    text: Bytes
    offsets: Whole
    bad: npt.NDArray[np.bool_]

    def at(self, index: int) -> bytes | None:
        """Return the JSON of one; None for what is no datum."""
        if self.bad[index]:
            return None
        return self.text[self.offsets[index] : self.offsets[index + 1]].tobytes()


class Room:
    """The arrays that the compiled loops write to, larger each time that they were full.

    Attributes:
        out: JSON.
        fractions, holes, state: see `scan_datums.datum`.
        offsets: where the JSON of each record begins, and the end of the last.
    """

    def __init__(self, records: int, size: int) -> None:
        self.out = np.empty(_FIRST_ROOM + 4 * size, np.uint8)
        self.fractions = np.empty(64 + size // 16, np.uint64)
        self.holes = np.empty(len(self.fractions), np.int64)
        self.state = np.zeros(1, np.int64)
        self.offsets = np.zeros(records + 1, np.int64)

    def widen(self) -> bool:
        """Make room for twice as much; False if that would be too much."""
        if len(self.out) >= MOST_ROOM:
            return False
        self.out = _twice(self.out)
        self.fractions, self.holes = _twice(self.fractions), _twice(self.holes)
        return True

    def whole(self) -> Bytes:
        """Return the JSON, with its numbers that have a fraction; `offsets` are those of it."""
        count = int(self.state[scan_datums.FRACTIONS])
        if not count:
            return self.out[: self.offsets[-1]]
        pieces = _texts(self.fractions[:count], (self.holes[:count] & 1).astype(bool))
        _, ends, data = pieces.buffers()
        ends = np.frombuffer(ends, np.int32)[1 : count + 1].astype(np.int64)
        text = np.empty(int(self.offsets[-1]) + int(ends[-1]) - count, np.uint8)
        holes, numbers = self.holes[:count] >> 1, np.frombuffer(data, np.uint8)
        scan_datums.filled(self.out, self.offsets, holes, numbers, ends, text)
        return text


def _twice(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    wider = np.empty(2 * len(array), array.dtype)
    wider[: len(array)] = array
    return wider


def _texts(bits: npt.NDArray[np.uint64], short: npt.NDArray[np.bool_]) -> pa.StringArray:
    """The JSON of numbers: the fewest digits that give the same number of their size again."""
    texts = pa.array(bits.view(np.float64)).cast(pa.string())
    if short.any():
        narrow = pa.array(bits.astype(np.uint32).view(np.float32)).cast(pa.string())
        texts = pc.if_else(pa.array(short), narrow, texts)
    whole = pc.match_substring_regex(texts, _WHOLE)
    if pc.any(whole).as_py():
        texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    for odd, text in _SPECIAL.items():
        texts = pc.if_else(pc.equal(texts, odd), text, texts)
    return texts


def transcript(
    steps: Instructions, data: Bytes, begins: Whole, ends: Whole, entries: Whole | None = None
) -> Transcript:
    """Return the JSON of datums of one schema. Never raises, whatever the bytes are.

    Args:
        steps: for the schema.
        data: bytes with all of them.
        begins: where each begins.
        ends: where each ends.
        entries: the first instruction of each; else the first one's entry.
    """
    room = Room(len(begins), int((ends - begins).sum()))
    bad = np.zeros(len(begins), np.bool_)
    if entries is None:
        entries = np.full(len(begins), steps.entries[0], np.int64)
    read = 0
    while True:
        read = scan_datums.datums(
            data, begins, ends, entries, steps.code, steps.links, steps.texts, read, room.out,
            room.offsets, room.fractions, room.holes, room.state, bad,
        )  # fmt: skip
        if read == len(begins):
            return Transcript(room.whole(), room.offsets, bad)
        if not room.widen():
            bad[read] = True
            room.offsets[read + 1] = room.offsets[read]
            read += 1
