"""Row images that stand in one buffer, to typed Arrow columns: `rows.decode_rows` by columns.

The cells of the images are found first (`scan_cells`). A column of whole numbers, texts, bytes,
truth values or decimals is read where it stands; any other one becomes a JSON list, read by one
typed msgspec call. Either way the column's own codec has the last word, so that both ways give the
same. Images with anything to tell about (a value that cannot be read or is unavailable, a member
that is no column) are left to `decode_rows`.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Final, get_origin

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemark.converters.compiler import Bytes, Whole
from lakemark.converters.json.compiled import scan_cells
from lakemark.converters.json.compiled.scan_json import DIGITS
from lakemark.converters.json.rows import Layout, layout
from lakemark.converters.json.values import Codec, nullable
from lakemark.model.civil import Tally
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema

_Read = Callable[[Bytes, Whole, Codec], "pa.Array | list[Any]"]
_WORDS: Final = 2  # of 64 bits, of a decimal


class _OddError(Exception):
    """A cell has another form than its column's usual one."""


def typed(
    data: Bytes, spans: Whole, schema: TableSchema, modes: HandlingModes
) -> tuple[pa.StructArray, int] | None:
    """Typed columns of images, and how many values were clamped.

    Args:
        data: bytes that hold the images.
        spans: begin and end of each; JSON objects in UTF-8 without white space, for certain.
        schema: the table's schema; its columns are the result's children.
        modes: the connector's settings.

    Returns:
        What `rows.decode_rows` says of them; None where it would say more than that.
    """
    plan = layout(schema, modes)
    if not plan.plain or not len(spans):
        return None
    found = np.empty((len(plan.names), len(spans), 2), np.int64)
    if not scan_cells.cells(data, spans, *_joined(tuple(plan.names)), found):
        return None
    tally = Tally()
    try:
        columns = [_column(plan, number, data, cells, tally) for number, cells in enumerate(found)]
    except (_OddError, msgspec.MsgspecError, pa.ArrowInvalid):
        return None
    return pa.StructArray.from_arrays(columns, fields=plan.fields), tally.clamped


@lru_cache(maxsize=512)
def _joined(names: tuple[str, ...]) -> tuple[Bytes, Whole]:
    """Names one behind the other, and where they begin."""
    texts = [name.encode() for name in names]
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)])


def _column(plan: Layout, number: int, data: Bytes, cells: Whole, tally: Tally) -> pa.Array:
    """One column.

    Raises:
        _OddError: a value cannot be read, or is unavailable.
        msgspec.MsgspecError: likewise.
        pyarrow.ArrowInvalid: a whole number is out of its column's range.
    """
    codec, name = plan.codecs[number], plan.names[number]
    values = _reader(codec)(data, cells, codec)
    if isinstance(values, list) and plan.placeholders.nested(name, values):
        raise _OddError
    array = None if isinstance(values, list) else codec.whole(values, tally)
    if array is None:  # some codecs take no arrays, and some values one by one only
        array, bad = codec.array(values if isinstance(values, list) else values.to_pylist(), tally)
        _require(not bad)
    _require(not plan.placeholders.flat(name, array))
    return array


def _reader(codec: Codec) -> _Read:
    if codec.wire is str:
        return _texts
    if codec.wire is bytes:
        return _bytes
    if codec.wire is bool:
        return _booleans
    if codec.wire is Decimal and pa.types.is_decimal128(codec.type):
        return _decimals if 0 <= codec.type.scale <= DIGITS else _listed
    return _integers if get_origin(codec.wire) is Annotated else _listed


def _integers(data: Bytes, cells: Whole, _: Codec) -> pa.Array:
    out, valid = np.empty(len(cells), np.int64), np.empty(len(cells), np.bool_)
    _require(scan_cells.integers(data, cells, out, valid))
    return _array(pa.int64(), valid, [out])


def _booleans(data: Bytes, cells: Whole, _: Codec) -> pa.Array:
    out, valid = np.empty(len(cells), np.bool_), np.empty(len(cells), np.bool_)
    _require(scan_cells.booleans(data, cells, out, valid))
    return pa.array(out, mask=~valid)


def _decimals(data: Bytes, cells: Whole, codec: Codec) -> "pa.Array | list[Any]":
    out, valid = np.empty(len(cells) * _WORDS, np.int64), np.empty(len(cells), np.bool_)
    kind = codec.type
    if not scan_cells.decimals(data, cells, kind.scale, kind.precision, out, valid):
        return _listed(data, cells, codec)  # long ones
    return _array(kind, valid, [out])


def _texts(data: Bytes, cells: Whole, _: Codec) -> pa.Array:
    return _various(pa.string(), scan_cells.strings, data, cells)


def _bytes(data: Bytes, cells: Whole, _: Codec) -> pa.Array:
    return _various(pa.binary(), scan_cells.binaries, data, cells)


def _various(kind: pa.DataType, read: Any, data: Bytes, cells: Whole) -> pa.Array:
    """A column whose values have various sizes."""
    out = np.empty(_size(cells), np.uint8)
    offsets, valid = np.empty(len(cells) + 1, np.int32), np.empty(len(cells), np.bool_)
    _require(read(data, cells, out, offsets, valid))
    return _array(kind, valid, [offsets, out])


def _listed(data: Bytes, cells: Whole, codec: Codec) -> list[Any]:
    out = np.empty(_size(cells) + 5 * len(cells) + 2, np.uint8)
    size = scan_cells.listed(data, cells, out)
    values: list[Any] = msgspec.json.decode(out[:size].data, type=_lists(nullable(codec)))
    return values


def _lists(kind: Any) -> Any:
    return list.__class_getitem__(kind)  # made at run time, hence by call and not by annotation


def _size(cells: Whole) -> int:
    """Bytes of all cells."""
    return int(np.where(cells[:, 0] >= 0, cells[:, 1] - cells[:, 0], 0).sum())


def _require(read: bool) -> None:  # noqa: FBT001 - what a function has said
    if not read:
        raise _OddError


def _array(
    kind: pa.DataType, valid: npt.NDArray[np.bool_], buffers: Sequence[npt.NDArray[Any]]
) -> pa.Array:
    bitmap = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(kind, len(valid), [bitmap, *map(pa.py_buffer, buffers)])
