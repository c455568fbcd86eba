"""Digests of rows: alike where the rows are alike, whatever stands beside them, and only there."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.model import row_digest
from lakemark.model.key_ranges import KeyRange
from lakemark.model.row_digest import RowDigests, digests
from lakemark.snapshot.verify_scans import unlike

INT = st.integers(-(2**63), 2**63 - 1)
VALUES = {
    pa.int64(): INT,
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.string(): st.text(max_size=4),
    pa.binary(): st.binary(max_size=4),
    pa.decimal128(38, 2): st.decimals(-9, 9, places=2),
    pa.timestamp("us"): st.integers(-9, 9),
    pa.date32(): st.integers(-9, 9),
    pa.list_(pa.float64()): st.lists(st.none() | st.sampled_from([0.0, -0.0, 1.5]), max_size=2),
}
KINDS = st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=3)


@st.composite
def tables(draw):
    kinds = draw(KINDS)
    cells = st.tuples(*(st.none() | VALUES[kind] for kind in kinds))
    rows = draw(st.lists(cells, min_size=1, max_size=8))
    rows += draw(st.lists(st.sampled_from(rows), max_size=3))
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
    return pa.table(columns, names=[f"c{at}" for at in range(len(kinds))])


def shown(rows: pa.Table) -> list[str]:
    return [repr([*row.values()]) for row in rows.to_pylist()]


@given(tables(), st.data())
def test_rows_have_the_same_digest_where_they_are_the_same(rows, data):
    found = digests(rows, ["c0"])
    whole, keys = shown(rows), shown(rows.select(["c0"]))
    same = found.rows[:, None] == found.rows
    assert same.tolist() == [[one == other for other in whole] for one in whole]
    same = found.keys[:, None] == found.keys
    assert same.tolist() == [[one == other for other in keys] for one in keys]
    # Whatever stands beside them, and in whatever order columns and rows come.
    at = data.draw(st.permutations(range(rows.num_rows)))[: data.draw(st.integers(1, 3))]
    names = data.draw(st.permutations(rows.column_names))
    part = digests(rows.take(pa.array(at)).select(names), ["c0"])
    assert part.rows.tolist() == found.rows[at].tolist()
    assert part.keys.tolist() == found.keys[at].tolist()
    rest = rows.num_rows // 2  # of the same buffers
    assert digests(rows.slice(rest), ["c0"]).rows.tolist() == found.rows[rest:].tolist()


def test_the_order_of_values_counts():
    rows = pa.table({"a": ["x", "y"], "b": ["y", "x"], "c": [None, None]})
    one, other = digests(rows, ["a", "b"]).rows
    assert one != other
    assert digests(rows, ["a", "b"]).keys[0] == digests(rows.slice(0, 1), ["a", "b"]).keys[0]


def test_pieces_are_as_the_whole():
    rows = pa.table({"a": [1, 2, 3], "d": [Decimal("1.5"), None, Decimal("2.5")]})
    parts = RowDigests.joined([digests(rows.slice(at, 1), ["a"]) for at in range(3)])
    assert parts.rows.tolist() == digests(rows, ["a"]).rows.tolist()
    assert len(RowDigests.joined([])) == 0


ROWS = st.dictionaries(st.integers(0, 12), st.integers(0, 2), max_size=12)


def digested(rows: dict[int, int]) -> RowDigests:
    columns = {"id": pa.array([*rows], pa.int64()), "v": pa.array([*rows.values()], pa.int64())}
    return digests(pa.table(columns), ["id"])


def digest_of(*keys: int) -> set[int]:
    return set(digested(dict.fromkeys(keys, 0)).keys.tolist())


@given(ROWS, st.lists(ROWS, min_size=1, max_size=2), st.integers(0, 12), st.booleans())
def test_what_one_side_has_alone(source, lake, middle, whole):
    """Every row that is not the same throughout is suspected; none that was the same once."""
    spans = KeyRange(None, ("m",)), KeyRange(("m",), None)
    ranges = {
        spans[0]: digested({k: v for k, v in source.items() if k <= middle}),
        spans[1]: digested({k: v for k, v in source.items() if k > middle}),
    }
    found = unlike(ranges, [digested(rows) for rows in lake], whole=whole)
    alone = {k for k, v in source.items() if all(rows.get(k) != v for rows in lake)}
    missing, named = alone - {*lake[-1]}, alone & {*lake[-1]}
    for span, belongs in ((spans[0], lambda k: k <= middle), (spans[1], lambda k: k > middle)):
        mine = {k for k in missing if belongs(k)}
        assert set(found.ranges.get(span, np.empty(0, np.uint64)).tolist()) == digest_of(*mine)
        assert (span in found.ranges) == bool(mine), "a range is not read for nothing"
    extra = {
        k
        for k, v in lake[0].items()
        if all(rows.get(k) == v for rows in lake) and source.get(k) != v
    }
    assert set(found.kept.tolist()) == digest_of(*named, *(extra if whole else ()))
    assert found.count == len(alone | (extra if whole else set()))
    assert list(found.kept) == sorted(found.kept), "as `among` wants it"


def test_keys_that_the_lake_has_twice_are_suspected():
    source = {KeyRange(): digested({1: 1, 2: 2})}
    lake = RowDigests.joined([digested({1: 1, 2: 2}), digested({2: 2})])
    for whole in (True, False):
        found = unlike(source, [lake], whole=whole)
        assert (found.ranges, set(found.kept.tolist()), found.count) == ({}, digest_of(2), 1)


@given(st.lists(st.integers(0, 9)), st.sets(st.integers(0, 9)), st.integers(1, 5))
def test_among(some, others, stretch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_digest, "_STRETCH", stretch)
        found = row_digest.among(np.array(some, np.uint64), np.array(sorted(others), np.uint64))
    assert found.tolist() == [one in others for one in some]
