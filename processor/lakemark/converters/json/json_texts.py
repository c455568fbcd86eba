"""JSON texts exactly as Jackson writes them for Kafka Connect's JSON converter.

Jackson escapes the quote, the backslash and control characters (those without a short form with
upper-case hex digits), and writes a character outside the basic plane as two escaped surrogates.
All other characters are UTF-8, DEL, ``/`` and U+2028 among them. There is no space anywhere.

A *fragment* is the JSON text of one value. Functions over arrays take and give string arrays of
fragments; null stays null until `or_null` writes it down.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NULL: Final = "null"
# What Jackson escapes otherwise than msgspec does.
_RARE: Final = re.compile("[\x00-\x07\x0b\x0e-\x1f\U00010000-\U0010ffff]")
_FIRST_OF_FOUR: Final = 0xF0  # leads the UTF-8 of a character outside the basic plane

Texts = Callable[[pa.Array], pa.Array]
Rows = Callable[[pa.Array], np.ndarray]


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer of one column's values.

    Attributes:
        texts: canonical array to fragments, null for null.
        inexact: rows of an array whose bytes may differ from the connector's; None if none can.
        loss: why they may; "" if they cannot.
        by_digits: whether the text depends on how many digits the source's type gives the
            fraction of a second.
    """

    texts: Texts
    inexact: Rows | None = None
    loss: str = ""
    by_digits: bool = False


def quoted(text: str) -> str:
    """One JSON string."""
    if _RARE.search(text) is None:
        return msgspec.json.encode(text).decode()
    parts = []
    at = 0
    for found in _RARE.finditer(text):
        parts += [msgspec.json.encode(text[at : found.start()]).decode()[1:-1], _escaped(found[0])]
        at = found.end()
    parts.append(msgspec.json.encode(text[at:]).decode()[1:-1])
    return f'"{"".join(parts)}"'


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(
        f"\\u{int.from_bytes(units[i : i + 2], 'big'):04X}" for i in range(0, len(units), 2)
    )


def strings(texts: pa.Array) -> pa.Array:
    """JSON strings of texts; only those with a character to escape are looked at one by one."""
    rows = _rows_to_escape(texts)
    if not len(rows):
        return joined('"', texts, '"')
    inner = pa.array([quoted(t)[1:-1] for t in texts.take(pa.array(rows)).to_pylist()], pa.string())
    mask = np.zeros(len(texts), bool)
    mask[rows] = True
    return joined('"', pc.replace_with_mask(texts, pa.array(mask), inner), '"')


def _rows_to_escape(texts: pa.Array) -> np.ndarray:
    _, offset_buffer, data_buffer = texts.buffers()
    if data_buffer is None or not len(texts):
        return np.empty(0, np.int64)
    offsets = np.frombuffer(offset_buffer, np.int32, len(texts) + 1, texts.offset * 4)
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    odd = (data < ord(" ")) | (data >= _FIRST_OF_FOUR) | (data == ord('"')) | (data == ord("\\"))
    if not odd.any():
        return np.empty(0, np.int64)
    places = np.flatnonzero(odd) + offsets[0]
    rows: np.ndarray = np.unique(np.searchsorted(offsets, places, side="right") - 1)
    valid: np.ndarray = texts.is_valid().to_numpy(zero_copy_only=False)
    return np.compress(valid[rows], rows)


def binaries(values: pa.Array) -> pa.Array:
    """Base64 strings, with padding and without line breaks."""
    texts = [None if v is None else f'"{b64encode(v).decode()}"' for v in values.to_pylist()]
    return pa.array(texts, pa.string())


def booleans(values: pa.Array) -> pa.Array:
    """``true`` and ``false``."""
    return pc.if_else(values, "true", "false")


def joined(*parts: pa.Array | str) -> pa.Array:
    """The parts of each row one after the other; null where one of them is."""
    return pc.binary_join_element_wise(*parts, "")


def or_null(fragments: pa.Array, null: str = NULL) -> pa.Array:
    """The fragments with nulls written down."""
    return pc.fill_null(fragments, null) if fragments.null_count else fragments


def objects(names: Sequence[str], fragments: Sequence[pa.Array], count: int) -> pa.Array:
    """JSON objects with these members, in this order; no fragment is null.

    Args:
        names: of the members, not escaped.
        fragments: one array for each name.
        count: how many objects.
    """
    if not names:
        return pa.array(["{}"] * count, pa.string())
    parts: list[pa.Array | str] = []
    for name, fragment in zip(names, fragments, strict=True):
        parts += [f"{',' if parts else '{'}{quoted(name)}:", fragment]
    return joined(*parts, "}")


def lists(sizes: pa.Array, fragments: pa.Array, brackets: str = "[]") -> pa.Array:
    """JSON arrays (or what else stands in brackets) of consecutive fragments.

    Args:
        sizes: how many fragments each row takes; null for a row that is null and takes none.
        fragments: of all rows, none of them null.
        brackets: the first and the last character.
    """
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes.fill_null(0).to_numpy(zero_copy_only=False), out=offsets[1:])
    rows = pa.ListArray.from_arrays(pa.array(offsets), fragments, mask=sizes.is_null())
    return joined(brackets[0], pc.binary_join(rows, ","), brackets[1])
