"""Sums of rows by ranges, as a database computes them; `tests/integration` asks one."""

from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.model.checksums import (
    DAY,
    DIGITS,
    DOUBLE,
    GREATEST,
    HEX,
    LEAST,
    LONG,
    LOOKUP3,
    MOMENT,
    TEXT,
    WORD,
    ChecksumPlan,
    NumberRanges,
    RangeSums,
    SummedColumn,
    even_ranges,
    joined,
)
from lakemark.model.key_ranges import KeyRange
from lakemark.snapshot import kept_checksums
from lakemark.snapshot.kept_checksums import LOOKUP3_FORMS, hashes, summed

NUMBERS = st.integers(LEAST, GREATEST)


def ranges_of(*ends: int) -> NumberRanges:
    return NumberRanges(np.array([*ends, GREATEST], np.int64))


def of_form(form: str, *values: object, seed: int = 7) -> list[int]:
    found = np.full(len(values), seed, np.uint64)
    LOOKUP3_FORMS[form](pa.array(values), found)
    return found.tolist()


def test_hashes_are_those_of_postgresql():
    """What PostgreSQL 18 says to `hashtextextended('lakemark', 7)` and the like."""
    assert kept_checksums.ready()
    assert of_form(TEXT, "lakemark") == [2220460647771487440]
    assert of_form(WORD, 0, 1, -1, seed=0) == [
        4154612158245552303, 14776145195350300486, 16558486303981570378,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (TEXT, ["", "a", "a ", "\u00e9", "e\u0301", "x" * 12, "x" * 13, "x" * 24, "\0"]),
        (LONG, [0, 1, -1, 1 << 32, (1 << 32) + 1, -(1 << 32), LEAST, GREATEST]),
        (WORD, [0, 1, -1, (1 << 31) - 1]),
        (DOUBLE, [0.0, -0.0, 1.0, float("nan"), float("inf"), 5e-324, 0.1, 0.1 + 2**-56]),
        (DIGITS, [Decimal("0E-10"), Decimal("1E-10"), Decimal("1.5000000000")]),
        (DAY, [date(1, 1, 1), date(2026, 1, 1), date(9999, 12, 31)]),
        (HEX, [b"", b"\0", b"\0\0", b"a"]),
        (MOMENT, [0, 1, 946_684_800_000_000, 253_402_300_799_999_999, 253_402_300_799_999_998]),
    ],
)  # fmt: skip
def test_each_value_has_a_hash_of_its_own_which_the_seed_changes(form, values):
    found = of_form(form, *values)
    assert len(set(found)) == len(values)
    assert not {*found} & {*of_form(form, *values, seed=8)}
    sliced = np.full(len(values) - 1, 7, np.uint64)
    LOOKUP3_FORMS[form](pa.array(values)[1:], sliced)
    assert sliced.tolist() == found[1:]


def test_decimals_are_written_with_all_their_digits():
    cells = pa.array([Decimal("0E-10"), Decimal("-1E-10"), None])
    assert kept_checksums._plain(cells.cast(pa.string())).to_pylist() == [
        "0.0000000000", "-0.0000000001", None,
    ]  # fmt: skip


CELLS = st.one_of(st.none(), st.text(max_size=3))
PAIRS = st.tuples(CELLS, CELLS)
PLAN = ChecksumPlan(
    LOOKUP3, (SummedColumn("id", LONG), SummedColumn("a", TEXT), SummedColumn("b", TEXT)), "id"
)


def table(rows: dict[int, tuple[str | None, str | None]]) -> pa.Table:
    columns = [[*rows], [a for a, _ in rows.values()], [b for _, b in rows.values()]]
    return pa.table(
        columns, pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string())])
    )


@given(st.dictionaries(NUMBERS, PAIRS, max_size=8), NUMBERS, PAIRS, st.lists(NUMBERS, max_size=3))
def test_sums_differ_in_exactly_the_ranges_in_which_rows_do(rows, key, pair, ends):
    ranges = ranges_of(*sorted({end for end in ends if end < GREATEST}))
    other = {**dict(reversed(rows.items())), key: pair}
    stretches = [table(dict([one])) for one in other.items()]
    unlike = summed([table(rows)], PLAN, ranges).unlike(summed(stretches, PLAN, ranges)).tolist()
    at = ranges.of(np.array([key])).tolist()
    assert unlike == ([] if rows.get(key) == pair and key in rows else at)
    assert KeyRange() == ranges.span(0, len(ranges) - 1)
    assert ranges.begins[at[0]] <= key <= ranges.ends[at[0]]
    part = ranges.part(at[0], len(ranges) - 1)
    assert (part.begins[0], part.ends.tolist()) == (
        ranges.begins[at[0]],
        ranges.ends[at[0] :].tolist(),
    )


def test_a_null_where_the_database_allows_none_is_no_row_of_its():
    plan = ChecksumPlan(LOOKUP3, (SummedColumn("id", LONG, nullable=False), SummedColumn("a", TEXT, nullable=False)), "id")  # fmt: skip
    found = hashes(table({1: ("", ""), 2: (None, "")}).set_column(0, "id", pa.array([1, 1])), plan)
    assert found[0] != found[1]


@given(st.integers(1, 70), st.data())
def test_which_columns_are_null_is_hashed_whatever_their_number(count, data):
    names = [f"c{n}" for n in range(count)]
    plan = ChecksumPlan(LOOKUP3, tuple(SummedColumn(name, TEXT) for name in names), "c0")
    one = data.draw(st.integers(0, count - 1))
    rows = pa.table(
        {name: pa.array(["", None if at == one else ""]) for at, name in enumerate(names)}
    )
    assert len({*hashes(rows, plan).tolist()}) == 2


@given(st.lists(NUMBERS, max_size=60), st.integers(1, 9))
def test_even_ranges_cover_all_numbers(numbers, rows):
    ranges = even_ranges([np.array(numbers[:20], np.int64), np.array(numbers[20:], np.int64)], rows)
    assert ranges.ends[-1] == GREATEST
    assert ranges.begins[0] == LEAST
    assert (ranges.ends[1:] > ranges.ends[:-1]).all()
    counts = np.bincount(ranges.of(np.array([*{*numbers}], np.int64)), minlength=len(ranges))
    assert counts.max(initial=0) <= rows


def test_of_very_many_numbers_only_some_count():
    numbers = [np.arange(at, at + 1_000_000) for at in range(0, 9_000_000, 1_000_000)]
    ranges = even_ranges(numbers)
    assert 8_000 < len(ranges) < 10_000
    assert np.diff(ranges.ends[:-1]).max() < 1_100


def test_neighbours_are_joined_up_to_a_chunk():
    counts = np.array([5, 5, 5, 0, 50, 5, 5])
    assert joined([0, 1, 2, 4, 5, 6], counts, 10) == [(0, 1), (2, 2), (4, 4), (5, 6)]
    assert joined([], counts, 10) == []


def test_a_range_is_alike_if_both_its_rows_number_and_its_sum_are():
    one = RangeSums(np.array([1, 1, 1]), np.array([7, 7, 7], np.uint64))
    other = RangeSums(np.array([1, 2, 1]), np.array([7, 7, 8], np.uint64))
    assert one.unlike(other).tolist() == [1, 2]


def test_sums_of_parts_are_put_together():
    found, part = RangeSums.of(3), RangeSums(np.array([2, 3]), np.array([7, 8], np.uint64))
    found.put(1, part)
    assert (found.counts.tolist(), found.sums.tolist()) == ([0, 2, 3], [0, 7, 8])
    assert found.nbytes == 48
