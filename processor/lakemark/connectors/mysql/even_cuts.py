"""Cuts of a range of whole numbers into parts of about equally many rows, by estimates. Pure.

An index tells about how many of its entries are in a range without reading them. Keys that were
counted up are even, and one estimate a part is enough; where they are not, a part that has too many
is cut again. InnoDB says the truth of a whole table and of a few pages, and of a longer range twice
as many as there are: where all parts of a range are about equal, their share of it counts.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

# A part with up to so many times the rows that are wanted is not cut again: estimates are no
# better than that.
_TOO_MANY: Final = 1.5
# Parts that may be asked about for each one that is wanted: of keys in a few dense places.
_ASKED_EACH: Final = 16
_ASKED_LEAST: Final = 256

Part = tuple[int, int, float]
"""The first number, the last one, about how many rows."""


def even_cuts(
    first: int, last: int, wanted: float, estimate: Callable[[int, int], float]
) -> list[int]:
    """Return the last numbers of all parts but the last, in order.

    Args:
        first: the first number of the range.
        last: the last one.
        wanted: rows that a part should have.
        estimate: about how many rows there are from one number to another, both in it.
    """
    cuts: list[int] = []
    rows = 0.0
    for begin, _, more in _parts(first, last, wanted, estimate):
        if rows and rows + more > wanted * _TOO_MANY:
            cuts.append(begin - 1)
            rows = 0.0
        rows += more
    return cuts


def _parts(
    first: int, last: int, wanted: float, estimate: Callable[[int, int], float]
) -> Iterator[Part]:
    """Yield parts in order, none of them with far too many rows, if it could be cut again."""
    total = estimate(first, last)
    left = _ASKED_LEAST + round(_ASKED_EACH * total / wanted)
    waiting: list[Part] = [(first, last, total)]
    while waiting:
        begin, end, rows = waiting.pop()
        pieces = min(round(rows / wanted + 0.5), end - begin + 1)
        if rows <= wanted * _TOO_MANY or pieces < 2 or left < pieces:  # noqa: PLR2004
            yield begin, end, rows
            continue
        left -= pieces
        edges = [begin + (end - begin + 1) * at // pieces for at in range(pieces + 1)]
        inner = [(a, b - 1, estimate(a, b - 1)) for a, b in pairwise(edges)]
        told = [more for _, _, more in inner]
        share = rows / sum(told) if 0 < max(told) <= _TOO_MANY * min(told) else 1.0
        waiting += [(a, b, more * share) for a, b, more in reversed(inner)]
