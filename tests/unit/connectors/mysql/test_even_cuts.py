"""Cuts of a range of numbers by estimates of how many rows are in it."""

from bisect import bisect_left, bisect_right
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.mysql.even_cuts import even_cuts

KEYS = st.lists(st.integers(-(1 << 63), 1 << 64), min_size=1, max_size=300, unique=True)
DENSE = st.integers(0, 1000).map(lambda n: [*range(n), *range(10**12, 10**12 + 300)])


def counted(keys, *, times=1.0):
    """What is asked, and rows by range: as there are of all, of a part so many times as many."""
    asked = []

    def estimate(first, last):
        asked.append((first, last))
        rows = bisect_right(keys, last) - bisect_left(keys, first)
        return float(rows if rows == len(keys) else rows * times)

    return asked, estimate


@given(st.one_of(KEYS, DENSE), st.integers(1, 100))
def test_cuts_are_inside_in_order_and_parts_have_about_what_is_wanted(keys, wanted):
    keys = sorted(keys)
    asked, estimate = counted(keys)
    cuts = even_cuts(keys[0], keys[-1], wanted, estimate)
    assert cuts == sorted(set(cuts))
    assert all(keys[0] <= cut < keys[-1] for cut in cuts)
    parts = [estimate(a + 1, b) for a, b in pairwise([keys[0] - 1, *cuts, keys[-1]])]
    assert sum(parts) == len(keys)
    assert max(parts) <= 1.5 * wanted
    pairs = [a + b for a, b in pairwise(parts)]
    assert all(pair > wanted for pair in pairs), "two parts that are one would do"
    assert len(asked) < 300 + 30 * len(keys) / wanted


def test_keys_that_were_counted_up_take_one_estimate_a_part():
    asked, estimate = counted(range(1, 1_000_001))
    cuts = even_cuts(1, 1_000_000, 10_000, estimate)
    assert 95 <= len(cuts) <= 105
    assert len(asked) <= 110


def test_a_share_counts_where_every_part_is_said_to_have_twice_its_rows():
    asked, estimate = counted(range(1, 3_000_001), times=2.1)
    assert len(even_cuts(1, 3_000_000, 100_000, estimate)) == 29
    assert len(asked) == 31


def test_far_keys_do_not_take_all_questions():
    keys = [*range(100_000), 1 << 62]
    asked, estimate = counted(keys)
    cuts = even_cuts(0, 1 << 62, 1_000, estimate)
    parts = [estimate(a + 1, b) for a, b in pairwise([-1, *cuts, 1 << 62])]
    assert max(parts) <= 1_500
    assert len(asked) < 2_500
