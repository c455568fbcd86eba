"""From the values of one column, as JSON gives them, to its canonical Arrow array.

A `Codec` has two ways that agree: `vector` takes a whole column at once and may refuse it for any
odd value; `scalar` takes one value and says by its exception what is wrong with it
(OverflowError: number-out-of-range, ValueError: wrong-type). `array` joins them, so that one odd
value costs its column a slower pass and nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import inf, isinf, nan
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters.converter import OUT_OF_RANGE, WRONG_TYPE
from lakemark.converters.json import moments
from lakemark.converters.json.numerals import EXACT, decimals_from_bytes, fitting, plain
from lakemark.model import columns as c
from lakemark.model.civil import Tally
from lakemark.model.columns import Column
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import plain_decimal
from lakemark.model.value_rules import Mend, mend_of

_SPECIAL: Final = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}
_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_BLOCK: Final = 512  # rows that one odd value makes slow
# Half a step above the greatest float32: what Debezium prints of it rounds down to it.
_FLOAT_MAX: Final = 3.4028235677973362e38

Vector = Callable[[Sequence[Any], Tally], pa.Array]
Scalar = Callable[[Any, Tally], Any]


@dataclass(frozen=True, slots=True)
class Codec:
    """The reader of one column's values.

    Attributes:
        type: canonical Arrow type.
        wire: msgspec type of the JSON value.
        vector: many values (None for null) to an array; any exception means: take `scalar`.
        scalar: one value to what `pa.array(..., type)` takes.
        other: a second msgspec type that is understood, for senders with another setting.
        raw: the wire type is the JSON text itself, so null arrives as a value.
    """

    type: pa.DataType
    wire: Any
    vector: Vector
    scalar: Scalar
    other: Any = None
    raw: bool = False

    def array(self, values: Sequence[Any], tally: Tally) -> tuple[pa.Array, dict[int, str]]:
        """The column's array, and for each value that cannot be read (null there) its reason."""
        whole = self.whole(values, tally)
        if whole is not None:
            return whole, {}
        bad: dict[int, str] = {}
        parts: list[pa.Array] = []
        for start in range(0, len(values), _BLOCK):
            block = values[start : start + _BLOCK]
            part = self.whole(block, tally) if len(values) > _BLOCK else None
            parts.append(self._single(block, start, bad, tally) if part is None else part)
        return pa.concat_arrays(parts) if parts else pa.array([], self.type), bad

    def whole(self, values: Sequence[Any], tally: Tally) -> pa.Array | None:
        """The column's array, of a sequence or an Arrow array; None if any value is odd."""
        count = tally.clamped
        try:
            array = self.vector(values, tally)
        except Exception:  # noqa: BLE001  # whatever it was, the single values will tell
            tally.clamped = count
            return None
        return array if array.type == self.type and len(array) == len(values) else None

    def _single(
        self, values: Sequence[Any], start: int, bad: dict[int, str], tally: Tally
    ) -> pa.Array:
        out: list[Any] = []
        for at, value in enumerate(values, start):
            try:
                out.append(None if value is None else self.scalar(value, tally))
            except OverflowError:
                out.append(None)
                bad[at] = OUT_OF_RANGE
            except (ValueError, TypeError, ArithmeticError, AttributeError):
                out.append(None)
                bad[at] = WRONG_TYPE
        return pa.array(out, self.type)


def codec(column: Column, modes: HandlingModes) -> Codec:
    """Return the reader of a column's values, given the connector's settings."""
    mend = mend_of(column)
    return _plain(column, modes) if mend is None else _mended(column, mend, modes)


def _mended(column: Column, mend: Mend, modes: HandlingModes) -> Codec:
    form = _plain(mend.form_of(column), modes)

    def vector(values: Sequence[Any], tally: Tally) -> pa.Array:
        return mend.read(form.vector(values, tally))

    def scalar(value: Any, tally: Tally) -> Any:
        return mend.read(pa.array([form.scalar(value, tally)], form.type))[0].as_py()

    return Codec(column.type, form.wire, vector, scalar, form.other, form.raw)


def _plain(column: Column, modes: HandlingModes) -> Codec:
    temporal = moments.reader(column)
    if temporal is not None:
        return Codec(column.type, temporal.wire, temporal.vector, temporal.scalar)
    make = _BY_ENCODING.get((column.wire, column.encoding)) or _BY_WIRE[column.wire]
    return make(column, modes)


def nullable(one: Codec) -> Any:
    """The msgspec type of the codec's JSON value or null."""
    return one.wire if one.raw else one.wire | None


def _direct(column: Column, wire: Any) -> Codec:
    kind = column.type

    def vector(values: Sequence[Any], _: Tally) -> pa.Array:
        return pa.array(values, kind)

    return Codec(kind, wire, vector, lambda value, _: value)


def _boolean(column: Column, _: HandlingModes) -> Codec:
    return _direct(column, bool)


def _string(column: Column, _: HandlingModes) -> Codec:
    return _numeric_text(column) if column.is_numeric_text else _direct(column, str)


def _numeric_text(column: Column) -> Codec:
    def vector(values: Sequence[Any], _: Tally) -> pa.Array:
        texts = pa.array(values, pa.string())
        for word, text in c.SPECIAL_NUMBERS.items():
            found = pc.equal(texts, word)
            if pc.any(found).as_py():
                texts = pc.if_else(found, text, texts)
        return texts

    return Codec(column.type, str, vector, lambda value, _: c.SPECIAL_NUMBERS.get(value, value))


def _bytes(column: Column, _: HandlingModes) -> Codec:
    return _direct(column, bytes)


def _uuid(column: Column, _: HandlingModes) -> Codec:
    def vector(values: Sequence[Any], _: Tally) -> pa.Array:
        return pc.ascii_lower(pa.array(values, pa.string()))

    return Codec(column.type, str, vector, lambda value, _: value.lower())


def _integer(column: Column, _modes: HandlingModes) -> Codec:
    limit = 1 << (_BITS[column.wire] - 1)
    return _direct(column, Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)])


def _float(column: Column, _modes: HandlingModes) -> Codec:
    kind = column.type
    narrow = kind == pa.float32()

    def vector(values: Sequence[Any], _: Tally) -> pa.Array:
        wide = pa.array(values, pa.float64())
        if not narrow:
            return wide
        if not _fits_float(wide):
            raise OverflowError("float")
        return wide.cast(kind)

    def scalar(value: Any, _: Tally) -> float:
        if isinstance(value, str):
            if value not in _SPECIAL:
                raise ValueError("float")
            return _SPECIAL[value]
        if narrow and abs(value) > _FLOAT_MAX and not isinf(value):
            raise OverflowError("float")
        return float(value)

    return Codec(kind, float | str, vector, scalar)


def _fits_float(wide: pa.Array) -> bool:
    numbers = wide.fill_null(0.0).to_numpy()
    return bool((np.abs(numbers) <= _FLOAT_MAX).all())


def _decimal(column: Column, modes: HandlingModes) -> Codec:
    kind = column.type
    scale = int(column.parameter("scale") or 0)
    exact = pa.types.is_decimal128(kind)

    def vector(values: Sequence[Any], _: Tally) -> pa.Array:
        if not exact:
            raise NotImplementedError
        if modes.decimal_format == "NUMERIC":
            return pa.array(values, kind)
        return decimals_from_bytes(values, kind)

    def scalar(value: Any, _: Tally) -> Any:
        if isinstance(value, bytes):
            if not value:
                raise ValueError("decimal")
            unscaled = int.from_bytes(value, "big", signed=True)
            if not exact:
                return plain(unscaled, scale)
            if abs(unscaled) >= 10**kind.precision:
                raise OverflowError("decimal")
            return Decimal(unscaled).scaleb(-scale, EXACT)
        return fitting(value, kind) if exact else plain_decimal(value)

    wires = (Decimal, bytes) if modes.decimal_format == "NUMERIC" else (bytes, Decimal)
    return Codec(kind, wires[0], vector, scalar, other=wires[1])


class _VariableScale(msgspec.Struct, gc=False):
    scale: int
    value: bytes


def _variable_decimal(column: Column, _modes: HandlingModes) -> Codec:
    def scalar(value: Any, _: Tally) -> str:
        if not value.value:
            raise ValueError("decimal")
        return plain(int.from_bytes(value.value, "big", signed=True), value.scale)

    def vector(values: Sequence[Any], tally: Tally) -> pa.Array:
        return pa.array([None if v is None else scalar(v, tally) for v in values], pa.string())

    return Codec(column.type, _VariableScale, vector, scalar)


def _list(column: Column, modes: HandlingModes) -> Codec:
    if column.element is None:
        raise TypeError("a list column needs its element")
    element = codec(column.element, modes)

    def vector(values: Sequence[Any], tally: Tally) -> pa.Array:
        flat = [item for value in values if value is not None for item in _items(element, value)]
        sizes = [0 if value is None else len(value) for value in values]
        offsets = np.zeros(len(values) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        mask = pa.array([value is None for value in values], pa.bool_())
        inner = element.vector(flat, tally)
        return pa.ListArray.from_arrays(pa.array(offsets), inner, mask=mask).cast(column.type)

    def scalar(value: Any, tally: Tally) -> Any:
        items = _items(element, value)
        return [None if item is None else element.scalar(item, tally) for item in items]

    # Types made at run time, hence by call and not by annotation.
    wire = list.__class_getitem__(nullable(element))
    other = None if element.other is None else list.__class_getitem__(element.other | None)
    return Codec(column.type, wire, vector, scalar, other=other)


def _items(element: Codec, value: list[Any]) -> list[Any]:
    return [None if v == _NULL else v for v in value] if element.raw else value


def _map(column: Column, modes: HandlingModes) -> Codec:
    if column.element is None:
        raise TypeError("a map column needs its value")
    item = codec(column.element, modes)
    keys = column.type.key_type
    if keys == pa.string():
        wire = dict.__class_getitem__((str, nullable(item)))
    else:  # the JSON converter writes a map whose keys are no strings as a list of pairs
        limit = 1 << (keys.bit_width - 1)
        bounded = Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
        wire = list.__class_getitem__(tuple.__class_getitem__((bounded, nullable(item))))

    def scalar(value: Any, tally: Tally) -> Any:
        pairs = value.items() if isinstance(value, dict) else value
        read = ((k, None if item.raw and v == _NULL else v) for k, v in pairs)
        return [(k, None if v is None else item.scalar(v, tally)) for k, v in read]

    return Codec(column.type, wire, _each(column.type, scalar), scalar)


def _struct(column: Column, modes: HandlingModes) -> Codec:
    members = [(f"m{i}", m.name, codec(m, modes)) for i, m in enumerate(column.members)]
    wire = msgspec.defstruct(
        "Members",
        [(attribute, nullable(inner), None) for attribute, _, inner in members],
        rename={attribute: name for attribute, name, _ in members},
        gc=False,
    )

    def scalar(value: Any, tally: Tally) -> Any:
        out: dict[str, Any] = {}
        for attribute, name, inner in members:
            found = getattr(value, attribute)
            null = found is None or (inner.raw and found == _NULL)
            out[name] = None if null else inner.scalar(found, tally)
        return out

    return Codec(column.type, wire, _each(column.type, scalar), scalar)


def _each(kind: pa.DataType, scalar: Scalar) -> Vector:
    def vector(values: Sequence[Any], tally: Tally) -> pa.Array:
        return pa.array([None if v is None else scalar(v, tally) for v in values], kind)

    return vector


_NULL: Final = msgspec.Raw(b"null")


def _json(column: Column, _modes: HandlingModes) -> Codec:
    def scalar(value: Any, _: Tally) -> str | None:
        text = bytes(value)
        return None if text == b"null" else text.decode()

    return Codec(column.type, msgspec.Raw, _each(column.type, scalar), scalar, raw=True)


_BY_ENCODING: Final[dict[tuple[str, str], Callable[[Column, HandlingModes], Codec]]] = {
    ("struct", c.VARIABLE_DECIMAL): _variable_decimal,
    ("bytes", c.DECIMAL): _decimal,
    ("string", c.UUID): _uuid,
}
_BY_WIRE: Final[dict[str, Callable[[Column, HandlingModes], Codec]]] = {
    **dict.fromkeys(_BITS, _integer),
    **dict.fromkeys(("float", "float32", "double", "float64"), _float),
    "boolean": _boolean,
    "string": _string,
    "bytes": _bytes,
    "array": _list,
    "map": _map,
    "struct": _struct,
    "json": _json,
}
