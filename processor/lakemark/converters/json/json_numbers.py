"""Numbers as Java prints them and decimals as Kafka Connect's JSON converter codes them.

Doubles and floats have the form of `Double.toString` and `Float.toString` of Java 19 and newer,
the shortest digits that are read back as the same number: ``1.0E10``, ``0.001``, ``"NaN"``.
(Java 17 writes more digits for about one double in fifty.) Decimals are the big-endian two's
complement of the unscaled value in base64, or with decimal.format=NUMERIC what
`BigDecimal.toString` gives.
"""

from base64 import b64encode
from decimal import Decimal
from math import isfinite, isnan
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters.json.json_texts import joined
from lakemark.converters.json.numerals import EXACT

# Java writes numbers below and from these with an exponent.
_LEAST_PLAIN: Final = 1e-3
_LEAST_POWER: Final = 1e7
_ALPHABET: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
_CODED: Final = 12  # characters of the base64 of eight bytes
_WORD_DIGITS: Final = 18  # decimal digits that always fit into eight bytes


def integers(values: pa.Array) -> pa.Array:
    """Decimal digits."""
    return values.cast(pa.string())


def floats(values: pa.Array) -> pa.Array:
    """Doubles or, by the array's type, floats."""
    texts = values.cast(pa.string())
    numbers = np.abs(values.to_numpy(zero_copy_only=False))
    plain = ((numbers >= _LEAST_PLAIN) & (numbers < _LEAST_POWER)) | (numbers == 0)
    dotted = pc.if_else(pc.match_substring(texts, "."), texts, joined(texts, ".0"))
    odd = np.flatnonzero(~plain & values.is_valid().to_numpy(zero_copy_only=False))
    if not len(odd):
        return dotted
    chosen = pa.array(odd)
    pairs = zip(texts.take(chosen).to_pylist(), values.take(chosen).to_pylist(), strict=True)
    mask = np.zeros(len(values), bool)
    mask[odd] = True
    written = pa.array([_java(text, value) for text, value in pairs], pa.string())
    return pc.replace_with_mask(dotted, pa.array(mask), written)


def _java(shortest: str, value: float) -> str:
    """A number that is not written plainly, from its shortest digits in any notation."""
    if not isfinite(value):
        return '"NaN"' if isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    if len(digits) == 1:  # Java takes the nearest of all numbers with two digits
        sign, digits, exponent = Decimal(f"{value:.1e}").as_tuple()
    power = len(digits) - 1 + int(exponent)
    fraction = "".join(map(str, digits[1:])).rstrip("0") or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{power}"


def decimals(values: pa.Array) -> pa.Array:
    """Base64 strings of decimal128 values; a column that fits into eight bytes without a loop."""
    whole = values if values.offset == 0 else pa.concat_arrays([values])
    words = np.frombuffer(whole.buffers()[1], np.int64, len(whole) * 2).reshape(-1, 2)
    valid = whole.is_valid().to_numpy(zero_copy_only=False)
    low = np.where(valid, words[:, 0], 0)
    if whole.type.precision > _WORD_DIGITS and (np.where(valid, words[:, 1], 0) != low >> 63).any():
        texts = [None if v is None else _coded(unscaled(v)) for v in whole.to_pylist()]
        return pa.array(texts, pa.string())
    return joined('"', _coded_words(low, whole), '"')


def _coded_words(words: np.ndarray, like: pa.Array) -> pa.Array:
    """Base64 of each word's least bytes; null where `like` is."""
    magnitude = words ^ (words >> 63)
    size = np.ones(len(words), np.int64)
    for bits in range(7, 63, 8):
        size += magnitude >> bits > 0
    left = (words << (64 - 8 * size)).view(np.uint64)
    longest = int(size.max()) if len(size) else 1
    width = 4 * ((longest + 2) // 3)
    out = np.empty((len(words), width), np.uint8)
    filled = (8 * size + 5) // 6
    for place in range(width):
        shift = 58 - 6 * place
        sextet = left >> np.uint64(shift) if shift >= 0 else left << np.uint64(-shift)
        coded = _ALPHABET[sextet & np.uint64(63)] if place < _CODED - 1 else ord("=")
        out[:, place] = np.where(filled > place, coded, ord("="))
    return _texts(out, 4 * ((size + 2) // 3), like)


def _texts(out: np.ndarray, sizes: np.ndarray, like: pa.Array) -> pa.Array:
    """The first characters of each line."""
    if len(sizes) and sizes.min() != out.shape[1]:
        out = out[np.arange(out.shape[1]) < sizes[:, None]]
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = pa.py_buffer(np.ascontiguousarray(out))
    texts = pa.StringArray.from_buffers(len(sizes), pa.py_buffer(offsets), data)
    if not like.null_count:
        return texts
    return pc.if_else(like.is_valid(), texts, pa.scalar(None, pa.string()))


def unscaled(value: Decimal) -> int:
    """The digits of a decimal, signed, without its exponent."""
    return int(value.scaleb(-int(value.as_tuple().exponent), EXACT))


def scaled(text: str, scale: int) -> Decimal:
    """The decimal of a plain text with exactly `scale` digits after the point.

    Raises:
        ValueError: it has more of them, or is no plain decimal.
    """
    value = EXACT.create_decimal(text)
    if not value.is_finite() or -int(value.as_tuple().exponent) > scale:
        raise ValueError("decimal")
    whole = value.scaleb(scale, EXACT)
    return Decimal(int(whole)).scaleb(-scale, EXACT)


def coded_text(text: str, scale: int) -> str:
    """The base64 string of a plain text's unscaled value."""
    return _coded(unscaled(scaled(text, scale)))


def variable_text(text: str) -> str:
    """The struct of io.debezium.data.VariableScaleDecimal; the scale is the text's own."""
    scale = len(text.partition(".")[2])
    return f'{{"scale":{scale},"value":{coded_text(text, scale)}}}'


def numeric_text(value: Decimal) -> str:
    """A JSON number as `BigDecimal.toString` writes it, which Python's `str` does likewise."""
    return str(value)


def _coded(value: int) -> str:
    magnitude = ~value if value < 0 else value
    raw = value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)
    return f'"{b64encode(raw).decode()}"'
