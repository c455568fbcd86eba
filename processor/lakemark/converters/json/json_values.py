"""From a column's canonical Arrow array to the JSON text of each value, for every kind of column.

The inverse of `json.values`: `writer` chooses by the same two words, Connect type and
semantic name. Everything is written a column at a time but long decimals, binary, the rarer
temporal forms and the members of nested values' rare types.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters.json import json_numbers as n
from lakemark.converters.json import json_texts as j
from lakemark.converters.json.json_moments import moment_writer
from lakemark.converters.json.json_texts import Rows, Texts, Writer
from lakemark.model import columns as c
from lakemark.model.columns import USUAL_DIGITS, Column
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.value_rules import Mend, mend_of


def writer(column: Column, modes: HandlingModes, digits: int = USUAL_DIGITS) -> Writer:
    """Return the writer of a column's values, given the connector's settings.

    Args:
        column: the column, or the element or member of one.
        modes: the connector's settings.
        digits: how many digits of a second's fraction the source's type has.
    """
    mend = mend_of(column)
    return _plain(column, modes, digits) if mend is None else _mended(column, mend, modes, digits)


def _mended(column: Column, mend: Mend, modes: HandlingModes, digits: int) -> Writer:
    form, write = _plain(mend.form_of(column), modes, digits), mend.write or _unchanged

    def texts(array: pa.Array) -> pa.Array:
        return form.texts(write(array))

    def inexact(array: pa.Array) -> np.ndarray:
        if form.inexact is not None and not mend.loss:
            return form.inexact(write(array))
        return np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))

    loss = "; ".join(filter(None, (form.loss, mend.loss)))
    return Writer(texts, inexact if loss else None, loss, form.by_digits)


def _unchanged(array: pa.Array) -> pa.Array:
    return array


def _plain(column: Column, modes: HandlingModes, digits: int) -> Writer:
    moment = moment_writer(column, digits)
    if moment is not None:
        return moment
    if (column.wire, column.encoding) == ("struct", c.VARIABLE_DECIMAL):
        return Writer(_each(n.variable_text))
    if (column.wire, column.encoding) == ("bytes", c.DECIMAL):
        return Writer(_decimal(column, modes))
    if column.is_numeric_text:
        return Writer(_numeric_text)
    nested = _NESTED.get(column.wire)
    return nested(column, modes, digits) if nested else Writer(_BY_WIRE[column.wire])


def _each(text: Callable[[Any], str]) -> Texts:
    def texts(array: pa.Array) -> pa.Array:
        written = [None if v is None else text(v) for v in array.to_pylist()]
        return pa.array(written, pa.string())

    return texts


def _numeric_text(array: pa.Array) -> pa.Array:
    for word, text in c.SPECIAL_NUMBERS.items():
        found = pc.equal(array, text)
        if pc.any(found).as_py():
            array = pc.if_else(found, word, array)
    return j.strings(array)


def _decimal(column: Column, modes: HandlingModes) -> Texts:
    scale = int(column.parameter("scale") or 0)
    exact = pa.types.is_decimal128(column.type)
    if modes.decimal_format == "NUMERIC":
        if exact:
            return _each(n.numeric_text)
        return _each(lambda text: n.numeric_text(n.scaled(text, scale)))
    return n.decimals if exact else _each(lambda text: n.coded_text(text, scale))


def _list(column: Column, modes: HandlingModes, digits: int) -> Writer:
    element = writer(_part(column), modes, digits)

    def texts(array: pa.Array) -> pa.Array:
        fragments = j.or_null(element.texts(array.flatten()))
        return j.lists(pc.list_value_length(array), fragments)

    def inexact(array: pa.Array) -> np.ndarray:
        return _owners(pc.list_value_length(array), element, array.flatten())

    return _nested(texts, inexact, [element])


def _map(column: Column, modes: HandlingModes, digits: int) -> Writer:
    item = writer(_part(column), modes, digits)
    by_name = column.type.key_type == pa.string()

    def texts(array: pa.Array) -> pa.Array:
        sizes, keys, items = _entries(array)
        fragments = j.or_null(item.texts(items))
        if by_name:
            return j.lists(sizes, j.joined(j.strings(keys), ":", fragments), "{}")
        # The JSON converter writes a map whose keys are no strings as a list of pairs.
        return j.lists(sizes, j.joined("[", n.integers(keys), ",", fragments, "]"))

    def inexact(array: pa.Array) -> np.ndarray:
        sizes, _, items = _entries(array)
        return _owners(sizes, item, items)

    return _nested(texts, inexact, [item])


def _struct(column: Column, modes: HandlingModes, digits: int) -> Writer:
    members = [writer(member, modes, digits) for member in column.members]
    names = [member.name for member in column.members]

    def texts(array: pa.Array) -> pa.Array:
        parts = zip(members, array.flatten(), strict=True)
        fragments = [j.or_null(member.texts(part)) for member, part in parts]
        whole = j.objects(names, fragments, len(array))
        return pc.if_else(array.is_valid(), whole, pa.scalar(None, pa.string()))

    def inexact(array: pa.Array) -> np.ndarray:
        parts = zip(members, array.flatten(), strict=True)
        found = [member.inexact(part) for member, part in parts if member.inexact]
        return np.unique(np.concatenate(found))

    return _nested(texts, inexact, members)


def _nested(texts: Texts, inexact: Rows, parts: Sequence[Writer]) -> Writer:
    lossy = [part for part in parts if part.inexact]
    return Writer(
        texts,
        inexact if lossy else None,
        "; ".join(dict.fromkeys(part.loss for part in lossy)),
        any(part.by_digits for part in parts),
    )


def _part(column: Column) -> Column:
    if column.element is None:
        raise TypeError(f"a {column.wire} column needs its element")
    return column.element


def _owners(sizes: pa.Array, part: Writer, values: pa.Array) -> np.ndarray:
    """Rows that own an inexact value."""
    if part.inexact is None:
        return np.empty(0, np.int64)
    ends = np.cumsum(sizes.fill_null(0).to_numpy(zero_copy_only=False))
    return np.unique(np.searchsorted(ends, part.inexact(values), side="right"))


def _entries(array: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Sizes of maps (null for null), their keys and their items."""
    pairs = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    keys, items = pairs.flatten().flatten()
    return pc.list_value_length(pairs), keys, items


_NESTED: Final[dict[str, Callable[[Column, HandlingModes, int], Writer]]] = {
    "array": _list,
    "map": _map,
    "struct": _struct,
}
_BY_WIRE: Final[dict[str, Texts]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), n.integers),
    **dict.fromkeys(("float", "float32", "double", "float64"), n.floats),
    "boolean": j.booleans,
    "string": j.strings,
    "bytes": j.binaries,
    "json": lambda array: array,  # kept as the JSON text that it came as
}
