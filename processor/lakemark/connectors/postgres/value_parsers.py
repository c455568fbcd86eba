"""Values of PostgreSQL's less usual types, one by one, as the event path has them.

From the text that PostgreSQL writes to what `pyarrow.array(..., type)` takes. These are the types
that are not read a column at a time: geometry, hstore, bit strings, intervals and vectors.
"""

import re
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa

Value = Callable[[str], Any]

_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|Infinity|NaN)")
_PAIR: Final = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|"((?:[^"\\]|\\.)*)")', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_JSON_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-f]{4}|.)")
_ISO: Final = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?"
    r"(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+)S)?)?"
)
_LEAST_PLACES: Final = 16  # of a HashMap
_DAYS_PER_MONTH: Final = 365.25 / 12  # as Debezium counts them
_SRID_FLAG: Final = 0x2000_0000  # of PostGIS's extended WKB


def value_of(type_name: str, kind: pa.DataType) -> Value | None:
    """Return the reader of one value of a type; None for a type that is read a column at a time.

    Args:
        type_name: typname of the base type, such as ``hstore``.
        kind: canonical Arrow type of the column, or of the array's element.

    Returns:
        a function of PostgreSQL's text (intervals in the style iso_8601) that raises ValueError
        for a text that is none of the type's.
    """
    if type_name == "hstore":
        return _hstore_json if kind == pa.string() else _hstore_pairs
    if type_name == "interval":
        return _iso_interval if kind == pa.string() else _interval_micros
    return _VALUES.get(type_name)


def bits(text: str) -> bytes:
    """Return a bit string as Debezium has it: lowest byte first, up to the highest set bit."""
    value = int(text or "0", 2)
    return value.to_bytes((value.bit_length() + 7) // 8, "little")


def _interval_parts(text: str) -> tuple[list[int], Decimal]:
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError("interval")
    return [int(part or 0) for part in match.groups()[:5]], Decimal(match[6] or 0)


def _interval_micros(text: str) -> int:
    (years, months, days, hours, minutes), seconds = _interval_parts(text)
    whole_days = (years * 12 + months) * _DAYS_PER_MONTH + days
    return int((((whole_days * 24 + hours) * 60 + minutes) * 60 + float(seconds)) * 1e6)


def _iso_interval(text: str) -> str:
    (years, months, days, hours, minutes), seconds = _interval_parts(text)
    plain = format(seconds, "f")
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    plain = "0" if plain in ("-0", "") else plain
    return f"P{years}Y{months}M{days}DT{hours}H{minutes}M{plain}S"


def _hstore_pairs(text: str) -> list[tuple[str, str | None]]:
    pairs = [(_plain(m[1]), None if m[2] is None else _plain(m[2])) for m in _PAIR.finditer(text)]
    return pairs if len(pairs) < 2 else _as_hashed(pairs)  # noqa: PLR2004


def _as_hashed(pairs: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """Sort as the connector does, in the order of Java's HashMap: by the hash's low bits."""
    places = _LEAST_PLACES
    while len(pairs) > places * 3 // 4:
        places *= 2
    return sorted(pairs, key=lambda pair: _java_hash(pair[0]) & (places - 1))


def _java_hash(text: str) -> int:
    """Return HashMap's hash of a String."""
    value = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8) + units[at + 1]) & 0xFFFF_FFFF
    return value ^ value >> 16


def _hstore_json(text: str) -> str:
    """Write hstore as Jackson does: hexadecimal digits of control characters in upper case."""
    written = msgspec.json.encode(dict(_hstore_pairs(text))).decode()
    return _JSON_ESCAPE.sub(lambda m: m[0][:2] + m[0][2:].upper(), written)


def _plain(text: str) -> str:
    return _ESCAPED.sub(r"\1", text) if "\\" in text else text


def _numbers(text: str, least: int) -> list[float]:
    found = [float(n) for n in _NUMBER.findall(text)]
    if len(found) < least:
        raise ValueError("geometry")
    return found


def _point(text: str) -> dict[str, Any]:
    x, y = _numbers(text, 2)
    return {"x": x, "y": y, "wkb": struct.pack("<BIdd", 1, 1, x, y), "srid": None}


def _circle(text: str) -> dict[str, Any]:
    x, y, radius = _numbers(text, 3)
    return {"center": _point(f"({x!r},{y!r})"), "radius": radius}


def _line(text: str) -> dict[str, float]:
    return dict(zip("abc", _numbers(text, 3), strict=True))


def _geometry(wkb: bytes, **extensions: str) -> dict[str, Any]:
    return {"wkb": wkb, "srid": None, "extensions": list(extensions.items())}


def _line_string(text: str) -> bytes:
    numbers = _numbers(text, 2)
    return struct.pack(f"<BII{len(numbers)}d", 1, 2, len(numbers) // 2, *numbers)


def _ring(numbers: list[float]) -> bytes:
    return struct.pack(f"<BIII{len(numbers)}d", 1, 3, 1, len(numbers) // 2, *numbers)


def _box(text: str) -> dict[str, Any]:
    a, b, c, d = _numbers(text, 4)
    return _geometry(_ring([a, b, a, d, c, d, c, b, a, b]), type="box")


def _lseg(text: str) -> dict[str, Any]:
    return _geometry(_line_string(text), type="lseg")


def _path(text: str) -> dict[str, Any]:
    closed = "false" if text.startswith("[") else "true"
    return _geometry(_line_string(text), type="path", closed=closed)


def _polygon(text: str) -> dict[str, Any]:
    numbers = _numbers(text, 2)
    return _geometry(_ring(numbers + numbers[:2]), type="polygon")


def _postgis(text: str) -> dict[str, Any]:
    wkb = bytes.fromhex(text)
    order = "<" if wkb[:1] == b"\1" else ">"
    (kind,) = struct.unpack_from(order + "I", wkb, 1)
    srid = struct.unpack_from(order + "i", wkb, 5)[0] if kind & _SRID_FLAG else None
    return {"wkb": wkb, "srid": srid, "extensions": None}


def _vector(text: str) -> list[float]:
    return [float(n) for n in text.strip("[]").split(",") if n]


def _sparse(text: str) -> dict[str, Any]:
    inner, _, dimensions = text.partition("}/")
    pairs = [p.split(":") for p in inner.strip("{").split(",") if p]
    return {"dimensions": int(dimensions), "vector": [(int(at), float(v)) for at, v in pairs]}


_VALUES: Final[Mapping[str, Value]] = {
    "bit": bits,
    "varbit": bits,
    "point": _point,
    "circle": _circle,
    "line": _line,
    "box": _box,
    "lseg": _lseg,
    "path": _path,
    "polygon": _polygon,
    "geometry": _postgis,
    "geography": _postgis,
    "vector": _vector,
    "halfvec": _vector,
    "sparsevec": _sparse,
}
