"""The canonical text of a JSON value of MySQL. Pure.

The server keeps no text. A SELECT, and with it the connector's snapshot, prints it with spaces. The
connector prints what stands in the log in Java's way, without spaces (newer ones with them).
Members have the same order in both. Canonical is the text without spaces, and

- numbers with an exponent are plain from 1e-7 to 1e21, else ``1.5e300``: the server and Java choose
  the exponent for different numbers
- texts have the fewest escapes

Numbers that both print plainly stay as they are, digit by digit. What the connector prints
otherwise than the server inside of a text stays different: dates and times, and bytes.
"""

import re
from decimal import Decimal
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_TOKEN: Final = re.compile(
    rf"(?P<text>{_STRING})|(?P<space>\s+)|(?P<number>-?\d+(?:\.\d+)?[eE][+-]?\d+)", re.DOTALL
)
# What a text must have that is not canonical; it may have it inside of a text.
_SPACED: Final = r"[:,]\s"
_ODD: Final = r"\\|[0-9][eE]"
_SPACES: Final = rf"(?s)({_STRING})|\s+"
_PLAIN: Final = range(-7, 21)  # powers of ten that are written without exponent


def canonical(text: str) -> str:
    """Return the canonical text of a JSON value."""
    return _TOKEN.sub(_written, text)


def canonical_texts(texts: pa.Array) -> pa.Array:
    """Return the canonical texts of a column.

    Spaces are taken out of all at once; only those with escapes or exponents are read one by one.
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
    value = Decimal(token)
    sign, digits, _ = value.as_tuple()
    power = value.adjusted()
    if not value or power in _PLAIN:
        text = format(value, "f")
        whole, _, fraction = text.partition(".")
        return f"{whole}.{fraction.rstrip('0') or '0'}"
    fraction = "".join(map(str, digits[1:])).rstrip("0")
    return f"{'-' * sign}{digits[0]}{'.' * bool(fraction)}{fraction}e{power}"
