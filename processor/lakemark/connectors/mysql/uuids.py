"""MariaDB's UUIDs, which lose their last bytes in the log if these are zero. Pure.

The server cuts the zero bytes at the end of the value off, and the connector puts as many in front:
``123e4567-e89b-12d3-a456-426614174000`` comes as ``00123e45-67e8-9b12-d3a4-564266141740``. Rows of
snapshots are right. So a text that begins with zero bytes may stand for several values: for itself,
and for itself moved left by one byte, by two, up to all of its zero bytes. A text that ends in a
zero byte has lost none.

RFC 9562 has marks in a UUID, its version and its variant. If exactly one of the values has them it
is the one. Else nothing is certain, and the row must be read from the database.
"""

from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

_VERSIONS: Final = range(1, 9)
_BYTES: Final = 16
_SUSPECT: Final = "^00"


def candidates(text: str) -> tuple[str, ...]:
    """Return the values that a text of an event may stand for, itself first.

    Args:
        text: a UUID in its usual form, in lower case.

    Raises:
        ValueError: it is none.
    """
    raw = UUID(text).bytes
    zeros = _BYTES - len(raw.lstrip(b"\0"))
    if raw[-1] == 0:  # all zero as well
        return (text,)
    return tuple(str(UUID(bytes=raw[cut:] + bytes(cut))) for cut in range(zeros + 1))


def mended(text: str) -> str | None:
    """Return the value that a text of an event stands for; None where that is not certain.

    Args:
        text: as for `candidates`.

    Raises:
        ValueError: as `candidates`.
    """
    found = candidates(text)
    if len(found) == 1:
        return text
    marked = [value for value in found if _is_marked(UUID(value))]
    return marked[0] if len(marked) == 1 else None


def mended_texts(texts: pa.Array) -> pa.Array:
    """Return the values that a column's texts stand for.

    Raises:
        ValueError: one is not certain, or is none.
    """
    suspect = pc.match_substring_regex(texts, _SUSPECT).fill_null(fill_value=False)
    if not pc.any(suspect).as_py():
        return texts
    found = [mended(text) for text in texts.filter(suspect).to_pylist()]
    if None in found:
        raise ValueError("uuid")
    return pc.replace_with_mask(texts, suspect, pa.array(found, pa.string()))


def _is_marked(value: UUID) -> bool:
    return value.version in _VERSIONS
