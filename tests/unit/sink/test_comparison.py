"""Rows of the source against a table's rows: what is missing, too much, or not the same."""

import unicodedata
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from lakemark.errors import TableError
from lakemark.model.change_batch import KeyColumns
from lakemark.model.columns import TIMESTAMP_UTC
from lakemark.model.row_digest import digests
from lakemark.sink.comparison import DIFFERING, EXTRA, MISSING, ComparedRows, as_kept, compare
from lakemark.sink.row_images import cdc_type

KEY = KeyColumns(("id",))
NOW = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
AT = b"\x05" * 20


def kept(rows: dict[int, object], kind: pa.DataType, *, position=b"\x01" * 20, deleted=()):
    """A table with the columns id and v."""
    told = [{"position": position, "op": "r", "deleted": number in deleted} for number in rows]
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "v": pa.array(rows.values(), kind),
            "_cdc": pa.array(told, cdc_type(deletes="soft")),
        }
    )


def compared(source: dict[int, object], lake: pa.Table, *, absent=(), kind=None) -> ComparedRows:
    numbers = [*source, *absent]
    rows = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "v": pa.array([*source.values(), *[None] * len(absent)], kind or lake.schema[1].type),
        }
    )
    actions = pa.chunked_array([["upsert"] * len(source) + ["delete"] * len(absent)])
    keys = [b"[%d]" % number for number in numbers]
    return compare(rows, actions, keys, lake, key=KEY, position=AT)


def told(found: ComparedRows) -> list[tuple[str, bytes, tuple[str, ...]]]:
    return [(one.kind, one.key, one.columns) for one in found.differences]


PAIRS = {
    "int": (pa.int32(), 7, 8),
    "bool": (pa.bool_(), True, False),
    "last digit": (pa.decimal128(38, 4), Decimal("1.0001"), Decimal("1.0002")),
    "digits beyond a double": (pa.int64(), 2**53, 2**53 + 1),
    "trailing blanks": (pa.string(), "a", "a "),
    "case": (pa.string(), "a", "A"),
    "unicode": (pa.string(), unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")),
    "empty and null": (pa.string(), "", None),
    "bytes": (pa.binary(), b"\0", b"\0\0"),
    "minus zero": (pa.float64(), 0.0, -0.0),
    "nan": (pa.float64(), float("nan"), 1.0),
    "nan and null": (pa.float32(), float("nan"), None),
    "float32": (pa.float32(), 1.0, 1.0000001),
    "day": (pa.date32(), date(2026, 1, 1), date(2026, 1, 2)),
    "microsecond": (TIMESTAMP_UTC, NOW, NOW.replace(microsecond=7)),
    "list": (pa.list_(pa.float64()), [0.0], [-0.0]),
    "empty list": (pa.list_(pa.string()), [], [None]),
    "struct": (
        pa.struct([("a", pa.int8()), ("b", pa.int8())]),
        {"a": 1, "b": None},
        {"a": 1, "b": 0},
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_value_is_the_same_or_it_is_not(name):
    kind, one, other = PAIRS[name]
    for mine, theirs in ((one, other), (other, one)):
        assert told(compared({1: mine}, kept({1: mine}, kind))) == []
        assert told(compared({1: mine}, kept({1: theirs}, kind))) == [(DIFFERING, b"[1]", ("v",))]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_nan_is_nan_whatever_its_bits(kind):
    usual = np.array([np.nan], kind)
    other = -usual  # the sign is one of its bits
    assert usual.tobytes() != other.tobytes()
    lake = kept({1: 1.0}, pa.from_numpy_dtype(kind)).set_column(1, "v", pa.array(usual))
    rows = pa.table({"id": pa.array([1], pa.int64()), "v": pa.array(other)})
    found = compare(rows, pa.chunked_array([["upsert"]]), [b"[1]"], lake, key=KEY, position=AT)
    assert told(found) == []
    assert digests(rows, ["id"]).rows == digests(lake.drop_columns(["_cdc"]), ["id"]).rows


def test_rows_that_only_one_side_has():
    found = compared({1: 1, 2: 2}, kept({1: 1, 3: 3}, pa.int32()), absent=[3, 4])
    assert told(found) == [(MISSING, b"[2]", ()), (EXTRA, b"[3]", ())]
    assert [one.kept for one in found.differences] == [-1, 1]
    assert found.newer == 0


def test_a_row_that_is_marked_deleted_is_none():
    lake = kept({1: 1, 2: 2}, pa.int32(), deleted=[1, 2])
    assert told(compared({1: 1}, lake, absent=[2])) == [(MISSING, b"[1]", ())]


@pytest.mark.parametrize("position", [b"\x05" * 19 + b"\x06", b"\x09" * 20])
def test_what_a_newer_event_decides_is_counted_alone(position):
    lake = kept({1: 1, 2: 2, 3: 3}, pa.int32(), position=position, deleted=[3])
    found = compared({1: 9, 3: 3}, lake, absent=[2])
    assert (told(found), found.newer) == ([], 3)


def test_a_key_that_the_table_has_more_than_once():
    twice = pa.concat_tables([kept({1: 1, 2: 2, 3: 3}, pa.int32()), kept({1: 1, 2: 9}, pa.int32())])
    found = compared({1: 1, 3: 3}, twice, absent=[2])
    assert told(found) == [("duplicate", b"[1]", ()), ("duplicate", b"[2]", ())]
    once = pa.concat_tables([kept({1: 1}, pa.int32()), kept({1: 1}, pa.int32(), deleted=[1])])
    assert told(compared({1: 1}, once)) == [], "one of the two is marked deleted"


def test_a_row_of_the_very_position_is_compared():
    assert len(compared({1: 2}, kept({1: 1}, pa.int32(), position=AT)).differences) == 1


def test_a_row_from_before_lakemark_has_no_position():
    assert len(compared({1: 2}, kept({1: 1}, pa.int32(), position=None)).differences) == 1


def test_columns_that_differ_are_named_in_order():
    lake = kept({1: 1}, pa.int32()).append_column("w", pa.array(["a"]))
    rows = pa.table({"id": pa.array([1], pa.int64()), "v": pa.array([2], pa.int32()), "w": ["b"]})
    found = compare(rows, pa.chunked_array([["upsert"]]), [b"[1]"], lake, key=KEY, position=AT)
    assert told(found) == [(DIFFERING, b"[1]", ("v", "w"))]


def test_an_infinite_moment_is_the_last_one_of_the_table():
    moments = pa.array([datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)], TIMESTAMP_UTC)
    lake = pa.table(
        {"id": moments, "_cdc": pa.array([{"position": b"\x01" * 20}], cdc_type(deletes="hard"))}
    )
    found = compare(
        pa.table({"id": moments}), pa.chunked_array([["upsert"]]), [b'["infinity"]'], lake,
        key=KEY, position=AT,
    )  # fmt: skip
    assert told(found) == []


def test_a_padded_key_is_found():
    lake = kept({1: 1}, pa.int32()).set_column(0, "id", pa.array(["ab  "]))
    found = compare(
        pa.table({"id": ["ab  "], "v": pa.array([1], pa.int32())}), pa.chunked_array([["upsert"]]),
        [b'["ab"]'], lake, key=KeyColumns(("id",), frozenset(["id"])), position=AT,
    )  # fmt: skip
    assert told(found) == []


def test_rows_are_taken_in_the_tables_columns_and_types():
    rows = pa.table({"w": ["x"], "v": pa.array([1], pa.int16()), "id": pa.array([-0.0])})
    schema = pa.schema([("id", pa.float64()), ("v", pa.int64()), ("old", pa.string())])
    typed = as_kept(rows, schema, key=["id"])
    assert typed.schema == pa.schema([("id", pa.float64()), ("v", pa.int64())])
    assert str(typed.column("id")[0].as_py()) == "0.0", "keys have no -0.0"


def test_what_the_tables_type_cannot_hold_is_said():
    rows = pa.table({"id": ["x"]})
    with pytest.raises(
        TableError, match="'id' is int32 in the table, and string in the source"
    ) as e:
        as_kept(rows, pa.schema([("id", pa.int32())]), key=[])
    assert e.value.code == "not-comparable"
