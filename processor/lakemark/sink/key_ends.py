"""Infinities in keys: which moment at the end of what a Delta table can hold is one.

A Delta table has infinity as its last moment (of a date 9999-12-31), and -infinity as its first.
A finite key may be that very moment. So a table has either the one or the other in a column; which
one, its first such row decides, and is remembered with the table. Where both come, the table stops
before one of them becomes the other's row.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemark.errors import TableError
from lakemark.model.civil import bounds
from lakemark.model.key import INFINITIES, elements, is_moment

_SIDES: Final = ("first", "last")
_INFINITE: Final = "infinite"
_FINITE: Final = "finite"
_SHOWN: Final = {
    ("first", True): "0001-01-01",
    ("last", True): "9999-12-31",
    ("first", False): "0001-01-01 00:00:00",
    ("last", False): "9999-12-31 23:59:59.999999",
}


def key_ends(named: Iterable[pa.ChunkedArray], columns: Mapping[str, pa.DataType]) -> list[str]:
    """Return what the ends of the range of a table's key columns stand for, as some keys have it.

    Args:
        named: canonical keys.
        columns: types of the key columns, in key order.

    Returns:
        in order, words such as ``last infinite valid_to``, for `check`.
    """
    moments = {n: at for at, (n, kind) in enumerate(columns.items()) if is_moment(kind)}
    if not moments:
        return []
    found: set[str] = set()
    for chunk in named:
        for side, meaning, text, kind in _texts({columns[name] for name in moments}):
            wanted = {n: at for n, at in moments.items() if columns[n] == kind}
            hits = chunk.filter(pc.match_substring(chunk, text))
            found |= {f"{side} {meaning} {name}" for name in _having(hits, text, wanted)}
    return sorted(found)


def _texts(kinds: Iterable[pa.DataType]) -> Iterator[tuple[str, str, bytes, pa.DataType]]:
    """Side, meaning and how a canonical key has it, for each type."""
    for kind in kinds:
        for side, word, end in zip(_SIDES, INFINITIES, bounds(kind), strict=True):
            yield side, _INFINITE, f'"{word}"'.encode(), kind
            yield side, _FINITE, str(end).encode(), kind


def _having(named: pa.ChunkedArray, text: bytes, places: Mapping[str, int]) -> set[str]:
    """Which of the columns have this very text in any of the keys."""
    found: set[str] = set()
    for batch in named.chunks:
        for key in batch:
            values = elements(key.as_py())
            found |= {name for name, at in places.items() if values[at] == text}
            if len(found) == len(places):
                return found
    return found


def check(table: str, path: str, ends: Iterable[str], columns: Mapping[str, pa.DataType]) -> None:
    """Require that no end of a column's range stands for two keys.

    Args:
        table: id of the table.
        path: its folder.
        ends: all that `key_ends` has ever found in it.
        columns: types of the key columns.

    Raises:
        TableError: ``key-ambiguous``.
    """
    told = set(ends)
    for name, kind in columns.items():
        for side, word in zip(_SIDES, INFINITIES, strict=True):
            if {f"{side} {meaning} {name}" for meaning in (_INFINITE, _FINITE)} <= told:
                shown = _SHOWN[side, pa.types.is_date32(kind)]
                raise TableError(
                    f"the key's column {name!r} has {word} and also {shown}, which a Delta table "
                    "cannot tell apart",
                    code="key-ambiguous",
                    hint=f"let {table} have only one of the two; then move the folder {path} away, "
                    f"so that the table begins anew, and `lakemark table skip {table}`",
                )
