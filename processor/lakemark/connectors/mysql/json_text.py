"""The canonical text of a JSON value of MySQL. Pure.

The server keeps no text. A SELECT, and with it the connector's snapshot, prints it with spaces, and
doubles with their shortest digits. The connector prints what stands in the log without spaces
(newer ones with them), and doubles below 0.001 or from 10,000,000 on with all digits that their
binary value has: ``1e20`` as ``100000000000000000000``, ``1e-5`` as ``0.00001000000000000000081…``.
Members have the same order in both. Canonical is the text without spaces, and

- such doubles as whole numbers below 1e21, else by their shortest digits: plain from 1e-7 on, or as
  ``1.5e300``. Whether a whole number is a double does not show from 10,000,000 on: ``.0`` is gone
- texts have the fewest escapes

All other numbers, decimals among them, are printed alike, and stay as they are digit by digit. What
the connector prints otherwise than the server inside of a text stays different: dates and times,
and bytes.
"""

import re
from decimal import Decimal
from math import isfinite
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_NUMBER: Final = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_TOKEN: Final = re.compile(rf"(?P<text>{_STRING})|(?P<space>\s+)|(?P<number>{_NUMBER})", re.DOTALL)
# What a text must have that is not canonical; it may have it inside of a text.
_SPACED: Final = r"[:,]\s"
_ODD: Final = r"\\|[0-9][eE]|[0-9]{8}\.|[0-9]{21}|0\.000"
_SPACES: Final = rf"(?s)({_STRING})|\s+"

_LEAST: Final = Decimal("0.001")  # from here on, and below the next, all print doubles alike
_ALIKE_BELOW: Final = 10**7
_WHOLE_BELOW: Final = 10**21
_LEAST_PLAIN: Final = -7  # power of ten
_DIGITS: Final = 20  # of the greatest integer


def canonical(text: str) -> str:
    """Return the canonical text of a JSON value."""
    return _TOKEN.sub(_written, text)


def canonical_texts(texts: pa.Array) -> pa.Array:
    """Return the canonical texts of a column.

    Spaces are taken out of all at once; only those with escapes or odd numbers are read one by one.
    """
    if pc.any(pc.match_substring_regex(texts, _SPACED)).as_py():
        texts = pc.replace_substring_regex(texts, _SPACES, r"\1")
    odd = pc.match_substring_regex(texts, _ODD).fill_null(fill_value=False)
    if not pc.any(odd).as_py():
        return texts
    written = [canonical(text) for text in texts.filter(odd).to_pylist()]
    return pc.replace_with_mask(texts, odd, pa.array(written, pa.string()))


def _written(match: re.Match[str]) -> str:
    token = match[0]
    if match.lastgroup == "text":
        return _text(token) if "\\" in token else token
    return _number(token) if match.lastgroup == "number" else ""


def _text(token: str) -> str:
    try:
        return msgspec.json.encode(msgspec.json.decode(token)).decode()
    except (ValueError, UnicodeError):  # half of a surrogate pair
        return token


def _number(token: str) -> str:
    value, exponent = Decimal(token), "e" in token or "E" in token
    whole = not exponent and "." not in token
    if whole and len(token.lstrip("-")) <= _DIGITS:
        return token
    if not exponent and (not value or _LEAST <= value.copy_abs() < _ALIKE_BELOW):
        return token
    double = float(token)
    if isfinite(double) and (exponent or value == Decimal(double)):
        return _double(double)
    # Of a decimal, or a double that the server has printed plainly.
    return token if value.adjusted() >= _LEAST_PLAIN else _with_exponent(value)


def _double(value: float) -> str:
    if value.is_integer() and _ALIKE_BELOW <= abs(value) < _WHOLE_BELOW:
        return str(int(value))
    shortest = Decimal(repr(value))
    if abs(value) >= _WHOLE_BELOW or (value and shortest.adjusted() < _LEAST_PLAIN):
        return _with_exponent(shortest)
    return format(shortest, "f")


def _with_exponent(value: Decimal) -> str:
    sign, digits, _ = value.as_tuple()
    fraction = "".join(map(str, digits[1:])).rstrip("0")
    return f"{'-' * sign}{digits[0]}{'.' * bool(fraction)}{fraction}e{value.adjusted()}"
