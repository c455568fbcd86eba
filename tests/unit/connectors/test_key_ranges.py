"""Ranges and conditions over keys, as SQL; what the database makes of them is in test_reader."""

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.postgres.key_sql import (
    KeyPart,
    Sampling,
    all_of,
    estimated_rows,
    key_texts,
    keys_condition,
    range_condition,
    sampling,
)
from lakemark.errors import TableError
from lakemark.model.columns import TIMESTAMP, TIMESTAMP_UTC, Column
from lakemark.model.key import canonical_from_columns
from lakemark.model.key_ranges import WHOLE, Condition, KeyRange, fitting_rows, halves, ranges

ID = KeyPart("id", "integer")
NAME = KeyPart("na%me", "text")


@given(st.lists(st.tuples(st.text(max_size=3)), max_size=20))
def test_ranges_are_open_at_both_ends_and_leave_no_gap(boundaries):
    found = ranges(boundaries)
    assert found[0].after is None
    assert found[-1].upto is None
    assert all(a.upto == b.after is not None for a, b in itertools.pairwise(found))
    assert [r.upto for r in found[:-1]] == list(dict.fromkeys(boundaries))
    assert [KeyRange.from_data(r.to_data()) for r in found] == found


def test_halves_meet_in_the_middle():
    assert halves(WHOLE, ("5",)) == [KeyRange(None, ("5",)), KeyRange(("5",), None)]
    span = KeyRange(("1",), ("9",))
    assert halves(span, ("5",)) == [KeyRange(("1",), ("5",)), KeyRange(("5",), ("9",))]
    for nothing in (None, ("1",), ("9",)):
        assert halves(span, nothing) == [span]


def test_a_range_is_compared_by_the_database():
    assert range_condition([ID], WHOLE) == Condition("true")
    assert range_condition([ID], KeyRange(("1",), ("x' OR 1",))) == Condition(
        '"id" > %s::text::integer AND "id" <= %s::text::integer', ("1", "x' OR 1")
    )
    both = range_condition([ID, NAME], KeyRange(("1", "a"), None))
    assert both == Condition('("id", "na%%me") > (%s::text::integer, %s::text::text)', ("1", "a"))
    maybe = range_condition([KeyPart("id", "integer", nullable=True)], KeyRange(None, ("7",)))
    assert maybe.sql == '("id" > %s::text::integer) IS NOT TRUE'


def test_a_boundary_of_another_key_is_refused():
    with pytest.raises(TableError) as caught:
        range_condition([ID, NAME], KeyRange(("1",), None))
    assert caught.value.code == "schema-changed"


def test_keys_are_bound_as_arrays():
    found = keys_condition([ID, NAME], [("1", "a"), ("2", "b")])
    assert found.parameters == (["1", "2"], ["a", "b"])
    assert found.sql == (
        '("id", "na%%me") IN (SELECT k0::integer, k1::text'
        " FROM unnest(%s::text[], %s::text[]) AS k(k0, k1))"
    )
    assert keys_condition([ID], []) == Condition("false")


def test_conditions_are_joined():
    assert all_of(None, None) == Condition("true")
    joined = all_of(Condition("a = %s", (1,)), None, Condition("b OR c"))
    assert joined == Condition("(a = %s) AND (b OR c)", (1,))


@pytest.mark.parametrize(
    ("wanted", "size", "rows"),
    [(100, 0, 100), (100, 10_000, 100), (100, 1_000_000, 50), (100, 10**12, 1), (0, 0, 1)],
)
def test_wide_rows_make_chunks_of_fewer_rows(wanted, size, rows):
    """A table of 1,000 rows, and chunks of 100,000 bytes at most."""
    assert fitting_rows(wanted, rows=1_000, size=size, most=100_000) == rows


def test_rows_are_those_of_the_last_analysis_at_the_present_size():
    assert estimated_rows(2_000, 10, 30) == 6_000
    assert estimated_rows(0, 0, 30) == 3_000  # never analysed: a guess


@given(rows=st.floats(0, 1e12), blocks=st.integers(0, 10**10), chunk=st.integers(1, 10_000_000))
def test_a_sample_is_bounded_and_its_step_is_positive(rows, blocks, chunk):
    found = sampling(rows, blocks, chunk)
    assert found.step >= 1
    if found.percent is not None:
        assert 0 < found.percent <= 30
        assert 0 < found.keep <= 1
        assert rows * found.percent / 100 * found.keep <= 2_000_001
        assert blocks * found.percent / 100 <= 1_000_001
    else:
        assert rows <= 20_000_000, "reading all keys takes longer than a statement may"
    assert sampling(200_000, blocks, chunk) == Sampling(None, 1.0, chunk)


def test_small_chunks_of_a_huge_table_are_sampled_too():
    assert sampling(20e6, 250_000, 1_000).percent is None
    found = sampling(21e6, 260_000, 1_000)
    assert (found.percent, found.step) == (30.0, round(300 * found.keep))
    assert sampling(1e9, 12_500_000, 1_000).percent == pytest.approx(8.0)


def test_a_huge_table_is_sampled_by_many_blocks_and_few_rows():
    found = sampling(1e9, 12_500_000, 20_000)
    assert found.percent == pytest.approx(8.0)
    assert found.keep == pytest.approx(0.025)
    assert found.step == 40


def column(kind: pa.DataType, encoding: str = "") -> Column:
    return Column("k", kind, encoding)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.int64(), -(1 << 63), "-9223372036854775808"),
        (pa.bool_(), True, "true"),
        (pa.string(), 'a"\n', 'a"\n'),
        (pa.decimal128(10, 2), "-1.5", "-1.5"),
        (pa.date32(), -1, "1969-12-31"),
        (TIMESTAMP, -1, "1969-12-31 23:59:59.999999"),
        (TIMESTAMP_UTC, 0, "1970-01-01 00:00:00+00:00"),
        (pa.float64(), float("-inf"), "-Infinity"),
        (pa.binary(), b"\x00\xff", "\\x00ff"),
    ],
)
def test_canonical_keys_become_texts_of_the_database(kind, value, text):
    value = pa.scalar(value).as_py() if kind != pa.decimal128(10, 2) else value
    whole = {pa.date32(): pa.int32(), TIMESTAMP: pa.int64(), TIMESTAMP_UTC: pa.int64()}
    array = pa.array([value], whole.get(kind)).cast(kind)
    keys = canonical_from_columns([array], [kind]).to_pylist()
    assert key_texts(keys, [column(kind)]) == [(text,)]


@pytest.mark.parametrize("key", [b"[1,2]", b"[null]", b"[[1]]", b"{", b"[]"])
def test_a_key_that_cannot_be_asked_for_is_refused(key):
    with pytest.raises(TableError) as caught:
        key_texts([key], [column(pa.int32())])
    assert caught.value.code == "key-unreadable"


def test_a_bit_string_and_a_broken_binary_cannot_be_asked_for():
    for key, one in ((b'["AQ=="]', column(pa.binary(), "Bits")), (b'["!"]', column(pa.binary()))):
        with pytest.raises(TableError):
            key_texts([key], [one])
