"""Ranges of keys and conditions: what one chunk of a table reads, whichever database has the table.

Pure. A boundary is the text of a key as the database writes it, one text a key column. It is
opaque: nothing here orders, parses or rounds it. The database compares it with the columns by their
own types and collations.

Ranges that `ranges` makes of any boundaries in the database's order cover every possible key
exactly once, also keys that are inserted later: the first and last range are open, and the end of
one is the beginning of the next. Whether the boundaries split the rows evenly is a matter of speed
alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

CUT_TIMEOUT: Final = "cut-timeout"  # of looking for boundaries

Boundary = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys after one boundary, up to and with another; None is open.

    Attributes:
        after: the greatest key that is not in the range.
        upto: the greatest key that may be in the range.
    """

    after: Boundary | None = None
    upto: Boundary | None = None

    def to_data(self) -> dict[str, Any]:
        """JSON-ready; `from_data` gives an equal range back."""
        return {
            "after": None if self.after is None else list(self.after),
            "upto": None if self.upto is None else list(self.upto),
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "KeyRange":
        """The range that `to_data` described."""
        after, upto = data["after"], data["upto"]
        return cls(None if after is None else tuple(after), None if upto is None else tuple(upto))


WHOLE: Final = KeyRange()


@dataclass(frozen=True, slots=True)
class Condition:
    """A boolean expression over a table's columns, for the connector that made it.

    Attributes:
        sql: the expression in the database's own language; in SQL ``%s`` for each parameter and
            ``%%`` for a percent sign.
        parameters: their values, in order. They are bound, never pasted.
    """

    sql: str
    parameters: tuple[Any, ...] = ()


def fitting_rows(wanted: int, *, rows: float, size: float, most: int) -> int:
    """Rows that a chunk should have, at least 1: fewer than wanted where the rows are wide.

    Args:
        wanted: as configured or asked for.
        rows: about how many the table has.
        size: bytes of the table, values that are stored apart included.
        most: bytes that a chunk may have; half of them are aimed at, since sizes are estimates.
    """
    fitting = int(rows * most / 2 / size) if size else wanted
    return max(1, min(wanted, fitting))


def ranges(boundaries: Sequence[Boundary], *, within: KeyRange = WHOLE) -> list[KeyRange]:
    """The ranges between boundaries that are in the database's order; at least one range.

    Args:
        boundaries: inside the range `within`.
        within: what the ranges cover together.
    """
    distinct = [one for one in dict.fromkeys(boundaries) if one != within.upto]
    ends: list[Boundary | None] = [within.after, *distinct, within.upto]
    return [KeyRange(after, upto) for after, upto in pairwise(ends)]


def halves(span: KeyRange, middle: Boundary | None) -> list[KeyRange]:
    """The two halves of a range, or the range itself when it has no middle.

    Args:
        span: the range.
        middle: a key in it other than its last, None if it has no two keys.
    """
    if middle is None or middle in (span.after, span.upto):
        return [span]
    return [KeyRange(span.after, middle), KeyRange(middle, span.upto)]
