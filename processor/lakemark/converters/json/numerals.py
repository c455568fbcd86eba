"""Exact decimals: from the bytes and texts of JSON to Arrow and to plain text."""

from collections.abc import Sequence
from decimal import Context, Decimal, Inexact, Rounded
from typing import Final

import numpy as np
import pyarrow as pa

from lakemark.model.key import MAX_DIGITS

_WIDTH: Final = 16  # bytes of a decimal128
# Arithmetic that never rounds.
EXACT: Final = Context(prec=MAX_DIGITS * 2, traps=[Inexact, Rounded])


def plain(unscaled: int, scale: int) -> str:
    """``unscaled * 10**-scale`` without exponent and without trailing zeros, exact.

    Raises:
        OverflowError: more digits than any database has.
    """
    if not -MAX_DIGITS <= scale <= MAX_DIGITS or unscaled.bit_length() > MAX_DIGITS * 4:
        raise OverflowError("decimal")
    sign, digits = ("-", _digits(-unscaled)) if unscaled < 0 else ("", _digits(unscaled))
    if scale <= 0:
        return "0" if unscaled == 0 else sign + digits + "0" * -scale
    digits = digits.rjust(scale + 1, "0")
    whole, fraction = digits[:-scale], digits[-scale:].rstrip("0")
    text = f"{whole}.{fraction}" if fraction else whole
    return "0" if unscaled == 0 else sign + text


def _digits(value: int) -> str:
    # int -> str is quadratic and limited to 4,300 digits; Decimal's is neither.
    return str(value) if value.bit_length() < 10_000 else format(Decimal(value), "f")  # noqa: PLR2004


def decimals_from_bytes(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Decimal128 array of big-endian two's complement unscaled values, without a Python loop.

    Raises:
        ValueError, OverflowError, pyarrow.ArrowException: a value is empty, wider than 16 bytes or
            has more digits than `kind`; take the values one by one then.
    """
    packed = pa.array(values, pa.binary())
    _, offset_buffer, data_buffer = packed.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(values) + 1)
    lengths = np.diff(offsets)
    valid = None
    if packed.null_count:
        valid = packed.is_valid()
        lengths = lengths[valid.to_numpy(zero_copy_only=False)]
    if len(lengths) and (lengths.min() < 1 or lengths.max() > _WIDTH):
        raise OverflowError("decimal")
    little = _widen(offsets, data_buffer, int(lengths.max()) if len(lengths) else 0)
    bitmap = packed.buffers()[0]
    result = pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(little)])
    result.validate(full=True)
    return result


def _widen(offsets: np.ndarray, data_buffer: pa.Buffer | None, longest: int) -> np.ndarray:
    """Little-endian, sign-extended rows of 16 bytes; rows of nulls are zero."""
    count = len(offsets) - 1
    out = np.zeros((count, _WIDTH), np.uint8)
    if not longest or data_buffer is None:
        return out
    data = np.frombuffer(data_buffer, np.uint8)
    starts, ends = offsets[:-1], offsets[1:]
    filled = ends > starts
    first = data[np.minimum(starts, len(data) - 1)]
    fill = np.where(filled & (first >= 0x80), 0xFF, 0).astype(np.uint8)  # noqa: PLR2004
    out[:] = fill[:, None]
    for place in range(longest):
        at = ends - 1 - place
        out[:, place] = np.where(at >= starts, data[np.maximum(at, 0)], fill)
    return out


def fitting(value: Decimal, kind: pa.DataType) -> Decimal:
    """The value as a decimal of `kind`, exact.

    Raises:
        OverflowError: it has more digits, before or after the point.
        ValueError: NaN or infinity.
    """
    if not value.is_finite():
        raise ValueError("decimal")
    if value and value.adjusted() >= kind.precision - kind.scale:
        raise OverflowError("decimal")
    if value and int(value.as_tuple().exponent) < -kind.scale:
        shortest = value.normalize(EXACT)
        if int(shortest.as_tuple().exponent) < -kind.scale:
            raise OverflowError("decimal")
        return shortest
    return value or Decimal(0)
