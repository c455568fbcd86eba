"""The index of a data file by key: sorted arrays, made once since files never change.

Keys are compared as one or two 64-bit numbers. A key of one column of at most 64 bits is such a
number, one of two such columns is two; every other key is hashed to 128 bits (text by SipHash with
two secrets): two keys of a table that are mistaken for each other are less likely than a disk that
reads wrong.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Arbitrary, and never to change: indexes are kept on disk.
_SECRETS: Final = ("lakemark key one", "lakemark key two")
_MAGIC: Final = b"lmkeys01"
_FRAME: Final = struct.Struct("<8sIIII")
_ALIGNED: Final = 8
_EXACT_BYTES: Final = 8 + 4  # of a key and its row
_HASHED_BYTES: Final = 8 + 8 + 4
# So many numbers fit into the two of a key; more of them are hashed, by two functions.
_CERTAIN: Final = 2
_SECOND: Final = 0x6C616B656D61726B
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class KeyWords:
    """Keys as numbers, one for each row.

    Attributes:
        first: all there is to an exact key.
        second: the other half of a hash; None where the key is exact.
        valid: which rows have a key; None if all.
    """

    first: Words
    second: Words | None
    valid: Flags | None = None


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """The rows of one file by key.

    Attributes:
        first, second: as `KeyWords`, in the order of `first`.
        row: number of the row in the file.
        records: rows in the file, those without a key included.
        newest: the highest position among them; empty if none has one.
    """

    first: Words
    second: Words | None
    row: npt.NDArray[np.uint32]
    records: int
    newest: bytes

    @property
    def bytes(self) -> int:
        """Bytes of its arrays."""
        return sum(a.nbytes for a in (self.first, self.second, self.row) if a is not None)


def words(columns: Sequence[pa.Array]) -> KeyWords:
    """Key columns as numbers; equal keys in equal types give equal numbers."""
    nulls = [pc.is_null(column).to_numpy(zero_copy_only=False) for column in columns]
    missing = np.logical_or.reduce(nulls)
    valid = None if not missing.any() else ~missing
    if len(columns) == 1 and (exact := _exact(columns[0])) is not None:
        return KeyWords(exact, None, valid)
    parts = [part for column in columns for part in _parts(column)]
    # Each step of the mixing is one to one: two parts are told apart for certain.
    other = parts[:1] if len(parts) == _CERTAIN else parts
    return KeyWords(_folded(parts, 0), _folded(other, _SECOND), valid)


@cache
def fingerprint() -> str:
    """Return a digest of how keys are hashed: indexes on disk outlive the library that hashes."""
    text = words([pa.array(["", "a", "ä€😀" * 9])])
    octets = words([pa.array([b"", b"\0\xff"])])
    both = words([pa.array([1, 2]), pa.array([True, None])])
    found = [
        a.tobytes() for w in (text, octets, both) for a in (w.first, w.second) if a is not None
    ]
    return hashlib.sha256(b"".join(found)).hexdigest()


def _exact(column: pa.Array) -> Words | None:
    """A column of at most 64 bits as numbers; None if it is wider."""
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_floating(kind):
        cells = pc.fill_null(column, 0.0).cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
        cells[np.isnan(cells)] = np.nan  # NaN has many forms
        found: Words = cells.view(np.uint64)
        return found
    elif not pa.types.is_integer(kind):
        return None
    filled: Any = pc.fill_null(column, 0)
    numbers: Words = filled.cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)
    return numbers


def _parts(column: pa.Array) -> tuple[Words, ...]:
    """A column as one number or two, for each row."""
    exact = _exact(column)
    if exact is not None:
        return (exact,)
    if pa.types.is_decimal128(column.type):
        halves = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)
        halves = halves[column.offset : column.offset + len(column)]
        return halves[:, 0], halves[:, 1]
    from pandas.util import hash_array  # noqa: PLC0415 - slow, and most processes hash nothing

    cells = column.to_numpy(zero_copy_only=False)
    cells = np.where(pc.is_null(column).to_numpy(zero_copy_only=False), "", cells)
    one, two = (hash_array(cells, hash_key=secret, categorize=False) for secret in _SECRETS)
    return one, two


def _folded(parts: Sequence[Words], seed: int) -> Words:
    so_far = np.full(len(parts[0]), seed, np.uint64)
    for part in parts:
        so_far = _mixed(so_far, part)
    return so_far


def _mixed(so_far: Words, more: Words) -> Words:
    """Both in one number, by the finalizer of SplitMix64."""
    mixed = (so_far * np.uint64(31) + _MIX) ^ more
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Words = mixed ^ (mixed >> np.uint64(31))
    return found


def build(keys: KeyWords, newest: bytes) -> KeyIndex:
    """The index of a file from the keys of its rows, in their order."""
    rows = np.arange(len(keys.first)) if keys.valid is None else np.flatnonzero(keys.valid)
    first = keys.first[rows]
    order = np.argsort(first)
    second = None if keys.second is None else keys.second[rows][order]
    return KeyIndex(first[order], second, rows[order].astype(np.uint32), len(keys.first), newest)


def is_unique(index: KeyIndex) -> bool:
    """Say whether no two rows have the same key."""
    same = index.first[1:] == index.first[:-1]
    if index.second is not None and same.any():  # equal halves may stand in any order
        pairs = np.stack([index.first, index.second])
        return int(np.unique(pairs, axis=1).shape[1]) == len(index.first)
    return not same.any()


def lookup(index: KeyIndex, keys: KeyWords, order: Places) -> tuple[Places, Places]:
    """Find the keys that have rows in the file.

    Args:
        index: of the file.
        keys: none without a key.
        order: what sorts them by `first`: lookups in order are several times faster.

    Returns:
        Numbers of keys and of their rows, pair by pair; a key may have several.
    """
    wanted = keys.first[order]
    begin = np.searchsorted(index.first, wanted, side="left")
    at = np.minimum(begin, max(len(index.first) - 1, 0))
    hit = np.flatnonzero(index.first[at] == wanted) if len(index.first) else np.empty(0, np.int64)
    begin = begin[hit]
    count = np.searchsorted(index.first, wanted[hit], side="right") - begin
    which = np.repeat(hit, count)
    steps = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    places = np.repeat(begin, count) + steps
    source = order[which]
    if index.second is not None and keys.second is not None:
        same = index.second[places] == keys.second[source]
        source, places = source[same], places[same]
    return source, index.row[places].astype(np.int64)


def dump(index: KeyIndex) -> bytes:
    """The index as a file's bytes."""
    head = json.dumps(
        {
            "rows": len(index.row),
            "exact": index.second is None,
            "records": index.records,
            "newest": index.newest.hex(),
        }
    ).encode()
    head += b" " * (-(len(head) + _FRAME.size) % _ALIGNED)
    arrays = [a for a in (index.first, index.second, index.row) if a is not None]
    body = head + b"".join(a.tobytes() for a in arrays)
    return _FRAME.pack(_MAGIC, zlib.crc32(body), len(head), 0, 0) + body


def load(data: Any) -> KeyIndex | None:
    """The index in a file's bytes, without copying them; None if they are damaged.

    Args:
        data: a buffer: bytes, or a mapped file.
    """
    view = memoryview(data)
    if len(view) < _FRAME.size:
        return None
    magic, check, size, _, _ = _FRAME.unpack_from(view)
    if magic != _MAGIC or zlib.crc32(view[_FRAME.size :]) != check:
        return None
    at = _FRAME.size + size
    try:
        head = json.loads(bytes(view[_FRAME.size : at]))
    except ValueError:
        return None
    count = int(head["rows"])
    if len(view) != at + count * (_EXACT_BYTES if head["exact"] else _HASHED_BYTES):
        return None  # the check does not cover where the arrays begin
    first = np.frombuffer(view, np.uint64, count, at)
    at += first.nbytes
    second = None
    if not head["exact"]:
        second = np.frombuffer(view, np.uint64, count, at)
        at += second.nbytes
    row = np.frombuffer(view, np.uint32, count, at)
    return KeyIndex(first, second, row, int(head["records"]), bytes.fromhex(head["newest"]))
