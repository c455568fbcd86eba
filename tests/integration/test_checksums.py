"""Sums of rows that PostgreSQL computes, against those of the same rows in the lake's types."""

from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from lakemark.connectors.postgres.postgres_checksums import checksum_plan, read_sums
from lakemark.connectors.postgres.postgres_chunks import OpenTable, open_table
from lakemark.connectors.postgres.postgres_session import connect
from lakemark.errors import TableError
from lakemark.model.checksums import GREATEST, NumberRanges, RefusedSums, even_ranges
from lakemark.model.civil import FIRST_DAY, FIRST_MICRO, LAST_DAY, LAST_MICRO
from lakemark.model.handling_modes import HandlingModes
from lakemark.snapshot import kept_checksums
from stack import every_type
from stack.local import Database
from tests.kit.handling_modes import MODES
from tests.kit.reader import DEFAULTS, config, whole

pytestmark = pytest.mark.integration

TABLE = "public.all_types"
READ = {"money", '"char"', "bit1", "bit8", "bit20", "varbit", "varbit12", "hstore", "ltree", "isbn",
        "tsvector", "timetz", "interval", "int4range", "int8range", "numrange", "tsrange",
        "tstzrange", "daterange", "point", "box", "lseg", "path", "polygon", "circle", "line"}  # fmt: skip
"""Columns whose rows are read; so are those of arrays."""
BY_MODE = {"bytea", "time", "timestamp", "numeric", "domain numeric"}
"""Columns that the connector's settings may round."""
CLAMPED = {FIRST_DAY, LAST_DAY, FIRST_MICRO, LAST_MICRO}


def summed_alike(opened: OpenTable, rows: pa.Table, modes: HandlingModes) -> list[int] | None:
    """Return the keys of rows whose sums are not alike; None if they are not summed."""
    ids = sorted(rows.column("id").to_pylist())
    ranges = NumberRanges(np.array([*ids, GREATEST], np.int64))
    planned = checksum_plan(opened, rows.schema, modes)
    if isinstance(planned, RefusedSums):
        return None
    plan, sums = planned[0], read_sums(opened, rows.schema, ranges, modes)
    assert sums.counts.tolist() == [1] * len(ids) + [0]
    kept = kept_checksums.summed([rows[:3], rows[3:]], plan, ranges)
    return [ids[at] for at in sums.unlike(kept)]


@pytest.mark.parametrize("handling", MODES.values(), ids=MODES.keys())
def test_the_database_hashes_every_type_as_the_lake_does_or_its_rows_are_read(
    source: Database, handling
):
    modes = HandlingModes.from_connector(handling)
    with source.connect() as connection:
        every_type.create(connection, every_type.Limits.of(handling))
    rows = whole(source, TABLE, modes).rows
    read = set()
    with connect(config(source)) as session, open_table(session, TABLE, modes, settings={}) as all_:
        for name in [one for one in rows.column_names if one != "id"]:
            unlike = summed_alike(all_, rows.select(["id", name]), modes)
            if unlike is None:
                read.add(name)
                continue
            found = rows.filter(pa.compute.is_in(rows.column("id"), pa.array(unlike, pa.int32())))
            column = found.column(name)
            assert not unlike or {*column.cast(_whole(column.type)).to_pylist()} <= CLAMPED, name
    arrays = {name for name in rows.column_names if name.endswith("[]")}
    sometimes = {one for one in read - READ - arrays if one.partition("(")[0] in BY_MODE}
    assert read - sometimes == READ | arrays


def _whole(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()


def test_any_other_value_of_a_row_is_another_sum(source: Database):
    wide = ", ".join(f"c{n} int" for n in range(40))
    source.execute(f"CREATE TABLE t (id bigint PRIMARY KEY, v text, w char(4), d numeric, {wide})")
    source.execute("INSERT INTO t SELECT n, 'v' || n, 'w', n FROM generate_series(-50, 50) n")
    before = whole(source, "public.t").rows
    changes = {
        "v = v || ' '": -3, "v = NULL": 4, "w = ''": 5, "d = d + 0.1": 50, "c0 = 0": -50,
        "c39 = 0": 7, "c29 = 0, c30 = NULL": 8, "id = 1000": 9,
    }  # fmt: skip
    for change, key in changes.items():
        source.execute(f"UPDATE t SET {change} WHERE id = {key}")
    with (
        connect(config(source)) as session,
        open_table(session, "public.t", DEFAULTS, settings={}) as opened,
    ):
        ranges = even_ranges([before.column("id").to_numpy()], rows=1)
        planned = checksum_plan(opened, before.schema, DEFAULTS)
        assert isinstance(planned, tuple)
        plan, sums = planned[0], read_sums(opened, before.schema, ranges, DEFAULTS)
        kept = kept_checksums.summed([before], plan, ranges)
    assert {*ranges.ends[sums.unlike(kept)].tolist()} == {*changes.values(), GREATEST}


def test_a_table_that_is_summed_otherwise_than_its_ranges_were_made_for(source: Database):
    source.execute("CREATE TABLE t (id text PRIMARY KEY, v text)")
    read = partial(read_sums, kept=pa.schema([("id", pa.string()), ("v", pa.string())]))
    with (
        connect(config(source)) as session,
        open_table(session, "public.t", DEFAULTS, settings={}) as opened,
        pytest.raises(TableError, match="does not begin with a whole number") as error,
    ):
        read(opened, ranges=even_ranges([]), modes=DEFAULTS)
    assert (error.value.code, error.value.retried) == ("not-summed", True)
