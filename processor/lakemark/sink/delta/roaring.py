"""Sets of row numbers in the format of Delta's deletion vectors, and back.

A deletion vector is a 64-bit roaring bitmap in the portable format behind a magic number, kept in a
file of its own with length and checksum, or inline in the log as Z85 text (Delta's PROTOCOL.md,
"Deletion Vector Format"; https://github.com/RoaringBitmap/RoaringFormatSpec). Sets are sorted
NumPy arrays of `int64` without repetition. Written are array and bitmap containers; run containers
are read as well.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]

MAGIC: Final = 1681511377
# First byte of a file of deletion vectors.
FILE_VERSION: Final = b"\x01"
_NO_RUNS: Final = 12346
_RUNS: Final = 12347
# A block of 65,536 row numbers with more than this many is smaller as a bitmap.
_ARRAY_MOST: Final = 4096
_BITMAP_BYTES: Final = 8192
# From so many blocks on a bitmap with runs has a table of offsets.
_OFFSETS_FROM: Final = 4
_ALPHABET: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_DIGITS: Final = {digit: value for value, digit in enumerate(_ALPHABET)}
_BASE: Final = 85
_WORD: Final = 4


class BadVectorError(ValueError):
    """Bytes that are no deletion vector, or a damaged one."""


def encode(rows: Rows) -> bytes:
    """The set as the bytes of a deletion vector.

    Args:
        rows: sorted, each once, none negative.
    """
    buckets = list(_parts(rows >> 32, rows & 0xFFFFFFFF))
    found = [struct.pack("<IQ", MAGIC, len(buckets))]
    for high, low in buckets:
        found += [struct.pack("<I", high), _bitmap(low)]
    return b"".join(found)


def decode(data: bytes) -> Rows:
    """The set of a deletion vector's bytes.

    Raises:
        BadVectorError: they are none.
    """
    try:
        magic, count = struct.unpack_from("<IQ", data)
        if magic != MAGIC:
            raise BadVectorError(f"a deletion vector of unknown format {magic}")
        at, found = 12, []
        for _ in range(count):
            (high,) = struct.unpack_from("<I", data, at)
            low, at = _read_bitmap(data, at + 4)
            found.append((np.int64(high) << 32) | low)
    except (struct.error, IndexError, ValueError) as error:
        raise BadVectorError(f"a deletion vector cannot be read: {error}") from error
    return np.concatenate(found) if found else np.empty(0, np.int64)


def framed(data: bytes) -> bytes:
    """A vector's bytes as they stand in a file: length, bytes, checksum."""
    return struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def unframed(file: bytes, offset: int, size: int) -> bytes:
    """A vector's bytes out of its file.

    Args:
        file: the whole file.
        offset: where the vector begins, as the descriptor says.
        size: its bytes, as the descriptor says.

    Raises:
        BadVectorError: length or checksum differ.
    """
    begin, end = offset + _WORD, offset + _WORD + size
    data = file[begin:end]
    ends = file[offset:begin] + file[end : end + _WORD]
    if ends != struct.pack(">II", size, zlib.crc32(data)):
        raise BadVectorError("a deletion vector's length or checksum is not as it was written")
    return data


def z85(data: bytes) -> str:
    """Bytes as Z85 text; padded with zeros to words of four."""
    padded = data + bytes(-len(data) % _WORD)
    found = []
    for (word,) in struct.iter_unpack(">I", padded):
        found += [_ALPHABET[word // _BASE**power % _BASE] for power in (4, 3, 2, 1, 0)]
    return "".join(found)


def unz85(text: str) -> bytes:
    """The bytes of Z85 text, padding included.

    Raises:
        BadVectorError: it is none.
    """
    words = []
    try:
        for at in range(0, len(text), _WORD + 1):
            word = 0
            for digit in text[at : at + _WORD + 1]:
                word = word * _BASE + _DIGITS[digit]
            words.append(struct.pack(">I", word))
    except (KeyError, struct.error) as error:
        raise BadVectorError("not Z85 text") from error
    return b"".join(words)


def _parts(high: Rows, low: Rows) -> Iterator[tuple[int, Rows]]:
    """`low` cut where `high` changes."""
    starts = np.flatnonzero(np.diff(high, prepend=-1))
    ends = [*starts[1:], len(high)][: len(starts)]
    for begin, end in zip(starts, ends, strict=True):
        yield int(high[begin]), low[begin:end]


def _bitmap(rows: Rows) -> bytes:
    blocks = list(_parts(rows >> 16, rows & 0xFFFF))
    heads, offsets, bodies = [], [], []
    at = 8 + 8 * len(blocks)
    for key, low in blocks:
        body = low.astype("<u2").tobytes() if len(low) <= _ARRAY_MOST else _bits(low)
        heads.append(struct.pack("<HH", key, len(low) - 1))
        offsets.append(struct.pack("<I", at))
        bodies.append(body)
        at += len(body)
    return b"".join([struct.pack("<II", _NO_RUNS, len(blocks)), *heads, *offsets, *bodies])


def _bits(low: Rows) -> bytes:
    flags = np.zeros(1 << 16, np.uint8)
    flags[low] = 1
    return np.packbits(flags, bitorder="little").tobytes()


def _read_bitmap(data: bytes, at: int) -> tuple[Rows, int]:
    """The set of a 32-bit bitmap, and where it ends."""
    (cookie,) = struct.unpack_from("<I", data, at)
    runs = np.empty(0, np.uint8)
    if cookie == _NO_RUNS:
        (count,) = struct.unpack_from("<I", data, at + 4)
        at += 8
    elif cookie & 0xFFFF == _RUNS:
        count, at = (cookie >> 16) + 1, at + 4
        width = (count + 7) // 8
        runs = np.unpackbits(np.frombuffer(data, np.uint8, width, at), bitorder="little")
        at += width
    else:
        raise BadVectorError(f"a bitmap of unknown kind {cookie}")
    heads = np.frombuffer(data, "<u2", 2 * count, at).astype(np.int64)
    at += 4 * count
    if not len(runs) or count >= _OFFSETS_FROM:
        at += 4 * count
    found = []
    for number in range(count):
        size = int(heads[2 * number + 1]) + 1
        is_run = len(runs) > 0 and bool(runs[number])
        low, at = _read_runs(data, at) if is_run else _read_block(data, at, size)
        found.append((heads[2 * number] << 16) | low)
    return (np.concatenate(found) if found else np.empty(0, np.int64)), at


def _read_block(data: bytes, at: int, size: int) -> tuple[Rows, int]:
    if size <= _ARRAY_MOST:
        return np.frombuffer(data, "<u2", size, at).astype(np.int64), at + 2 * size
    flags = np.unpackbits(np.frombuffer(data, np.uint8, _BITMAP_BYTES, at), bitorder="little")
    return np.flatnonzero(flags), at + _BITMAP_BYTES


def _read_runs(data: bytes, at: int) -> tuple[Rows, int]:
    (count,) = struct.unpack_from("<H", data, at)
    pairs = np.frombuffer(data, "<u2", 2 * count, at + 2).astype(np.int64)
    found = [np.arange(start, start + more + 1) for start, more in pairs.reshape(-1, 2)]
    return (np.concatenate(found) if found else np.empty(0, np.int64)), at + 2 + 4 * count


# Of a UUID in Z85; what stands before it is a folder.
_UUID_DIGITS: Final = 20


def named(folder: str, number: UUID) -> str:
    """Return a descriptor's text for a file `file_of` in this folder of the table."""
    return folder + z85(number.bytes)


def file_of(text: str) -> str:
    """The file, relative to the table's folder, that a descriptor's text means.

    Raises:
        BadVectorError: it means none.
    """
    folder, digits = text[:-_UUID_DIGITS], text[-_UUID_DIGITS:]
    if len(digits) != _UUID_DIGITS:
        raise BadVectorError("not the name of a file of deletion vectors")
    name = f"deletion_vector_{UUID(bytes=unz85(digits))}.bin"
    return f"{folder}/{name}" if folder else name
