"""Keys as numbers: equal keys are equal, different ones different, also where somebody tries."""

from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.sink.delta import key_index

MASK = 2**64 - 1
LONG = st.integers(-(2**63), 2**63 - 1)
KINDS: list[tuple[pa.DataType, Any]] = [
    (pa.int64(), LONG),
    (pa.string(), st.text(max_size=3)),
    (pa.binary(), st.binary(max_size=3)),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(38, 0), st.integers(-(10**37), 10**37).map(Decimal)),
    (pa.decimal128(10, 2), st.integers(-999, 999).map(lambda n: Decimal(n).scaleb(-2))),
]


def numbers(columns: list[pa.Array]) -> list[tuple[int, int]]:
    found = key_index.words(columns)
    second = found.first if found.second is None else found.second
    return list(zip(found.first.tolist(), second.tolist(), strict=True))


def mixed(so_far: int, more: int) -> int:
    """The finalizer of SplitMix64, as in the index."""
    value = ((so_far * 31 + 0x9E3779B97F4A7C15) & MASK) ^ more
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


@pytest.mark.parametrize("more", [[], ["x"], ["x", "y"]])
def test_keys_made_to_have_the_same_first_number_are_told_apart(more):
    """Whoever may choose two big integers of a key must not hit another's row."""
    step = [(mixed(0, a) * 31) + 0x9E3779B97F4A7C15 & MASK for a in (1, 2)]
    b = 7
    columns = [pa.array([1, 2]), pa.array([b, signed(b ^ step[0] ^ step[1])])]
    columns += [pa.array([text, text]) for text in more]
    one, two = numbers(columns)
    assert one[0] == two[0], "the attack works no more: make it anew"
    assert one != two


@given(st.data())
def test_keys_are_equal_if_and_only_if_their_numbers_are(data):
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    rows = data.draw(st.lists(st.tuples(*(values for _, values in kinds)), min_size=1, max_size=8))
    columns = [pa.array([r[at] for r in rows], kind) for at, (kind, _) in enumerate(kinds)]
    found = numbers(columns)
    for i, row in enumerate(rows):
        for j, other in enumerate(rows):
            assert (found[i] == found[j]) == (row == other)


def test_numbers_that_databases_hold_equal_are_one_key():
    found = numbers([pa.array([0.0, -0.0, float("nan"), -float("nan")])])
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert len(set(found)) == 2


@given(st.lists(st.integers(0, 5), max_size=20), st.sets(st.integers(0, 8), min_size=1))
def test_every_row_of_a_key_is_found(rows, wanted):
    index = key_index.build(key_index.words([pa.array(rows, pa.int64())]), b"")
    index = key_index.load(key_index.dump(index))
    assert index is not None
    keys = sorted(wanted, reverse=True)
    words = key_index.words([pa.array(keys, pa.int64())])
    source, places = key_index.lookup(index, words, np.argsort(words.first))
    found = sorted((keys[s], int(p)) for s, p in zip(source, places, strict=True))
    assert found == sorted((key, at) for at, key in enumerate(rows) if key in wanted)


def halves(keys):
    first, second = zip(*keys, strict=True) if keys else ((), ())
    return key_index.KeyWords(np.array(first, np.uint64), np.array(second, np.uint64))


HASH = st.tuples(st.integers(0, 2), st.integers(0, 2))


@given(rows=st.lists(HASH, max_size=12), wanted=st.lists(HASH, min_size=1, max_size=9, unique=True))
def test_both_halves_of_a_hash_must_be_equal(rows, wanted):
    """Also of keys, and of rows, whose first halves are the same."""
    index = key_index.load(key_index.dump(key_index.build(halves(rows), b"")))
    assert index is not None
    words = halves(wanted)
    source, places = key_index.lookup(index, words, np.argsort(words.first))
    found = sorted((wanted[s], int(p)) for s, p in zip(source, places, strict=True))
    assert found == sorted((key, at) for at, key in enumerate(rows) if key in wanted)
    assert key_index.is_unique(index) == (len(set(rows)) == len(rows))


@pytest.mark.parametrize("newest", [b"", b"\7", b"\7" * 2, b"\7" * 3], ids=len)
@pytest.mark.parametrize("exact", [True, False])
def test_an_index_that_was_damaged_is_none_wherever_it_was(exact, newest):
    """Its header has an end that may be mistaken, by the spaces behind it: more or less of them."""
    keys = key_index.words([pa.array([3, 1, 2])]) if exact else halves([(1, 2), (0, 3), (1, 1)])
    index = key_index.build(keys, newest)
    data = key_index.dump(index)
    assert key_index.load(data[: len(data) // 2]) is None
    assert key_index.load(data[:10]) is None
    for at, bit in product(range(len(data)), range(8)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        found = key_index.load(bytes(damaged))
        assert found is None or key_index.dump(found) == data, at


def test_rows_without_a_key_are_counted_and_never_found():
    keys = key_index.words([pa.array([5, None, 5, 0])])
    index = key_index.build(keys, b"")
    assert (index.records, len(index.row), key_index.is_unique(index)) == (4, 3, False)
    assert index.bytes == 3 * (8 + 4)
    wanted = key_index.words([pa.array([0, 5])])
    source, places = key_index.lookup(index, wanted, np.argsort(wanted.first))
    assert sorted(zip(source.tolist(), places.tolist(), strict=True)) == [(0, 3), (1, 0), (1, 2)]
