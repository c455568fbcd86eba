"""Both engines leave the same table after the same write sets; deletion vectors are sets."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from lakemark.sink.delta import (
    commits,
    deletion_vectors,
    delta_rs,
    key_index,
    maintenance,
    roaring,
)
from lakemark.sink.delta.engines import DELETION_VECTORS, TASK_MERGE
from tests.kit.nightly import examples
from tests.kit.write_sets import content, table_schema, write_set
from tests.model.test_merge_properties import COLUMNS, KEY, batches, news, places

NARROW = {name: kind for name, kind in COLUMNS.items() if name != "b"}
# A batch, whether it knows column b (the source may have dropped it), and what comes between.
steps = st.lists(
    st.tuples(
        st.one_of(batches, batches, news, places),
        st.integers(0, 3).map(bool),
        st.sampled_from(["", "", "", "optimize", "upkeep", "checkpoint", "another process"]),
    ),
    min_size=1,
    max_size=7,
)


def read(path: str) -> pa.Table:
    table = DeltaTable(path)
    schema = pa.schema(table.schema().to_arrow())
    found = pa.table(table.scan()).select(schema.names).cast(schema)
    return found.rename_columns([*COLUMNS, "_cdc"])


def between(path: str, what: str) -> None:
    """What may happen to a table and its writer between two batches."""
    event(what)
    if what == "optimize":
        DeltaTable(path).optimize.compact()
    if what == "upkeep":
        maintenance.maintain(path, key=KEY, engine=DELETION_VECTORS, policy=EAGER)
    if what == "checkpoint":
        DeltaTable(path).create_checkpoint()
    if what == "another process":
        maintenance.forget()


EAGER = maintenance.Policy(spare_files=1, dirty_share=0.0, dirty_bytes=0)


@settings(
    max_examples=examples(8, nightly=400),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(steps=steps, deletes=st.sampled_from(["hard", "soft"]))
def test_both_engines_leave_the_same_table(steps, deletes):
    with tempfile.TemporaryDirectory() as folder:
        ours, oracle = str(Path(folder) / "ours"), str(Path(folder) / "oracle")
        for path in (ours, oracle):
            delta_rs.ensure(path, table_schema(COLUMNS, deletes), key=KEY)
        for version, (step, wide, after) in enumerate(steps):
            found = []
            for path, merge, truncate, engine in (
                (oracle, delta_rs.merge, delta_rs.truncate, TASK_MERGE),
                (ours, deletion_vectors.merge, partial(delta_rs.truncate, engine=DELETION_VECTORS),
                 DELETION_VECTORS),
            ):  # fmt: skip
                more = {"deletes": deletes, "version": version}
                if isinstance(step, bytes):
                    done = truncate(path, step, app_id="q/t/cut", **more)
                else:
                    rows = write_set(step, COLUMNS if wide else NARROW, deletes)
                    opened = commits.reopened(path, None, engine=engine)
                    done = merge(path, rows, key=KEY, app_id="q/t/s", opened=opened, **more)
                found.append((done.inserted, done.updated, done.deleted))
            assert found[0] == found[1]
            assert content(read(ours), KEY) == content(read(oracle), KEY)
            between(ours, after)
            assert content(read(ours), KEY) == content(read(oracle), KEY)
            opened = DeltaTable(ours)
            assert deletion_vectors.size_of(opened, ours).rows == read(ours).num_rows


row_sets = st.one_of(
    st.sets(st.integers(0, 200_000), max_size=50),
    st.sets(st.integers(0, 2**40), max_size=10),
    st.tuples(st.integers(0, 70_000), st.integers(0, 90_000), st.integers(1, 9)).map(
        lambda parts: set(range(parts[0], parts[0] + parts[1], parts[2]))
    ),
)


@example(rows=set(range(0, 8192, 2)))  # as many as an array holds, and one more
@example(rows=set(range(0, 8194, 2)))
@given(rows=row_sets)
def test_a_vector_gives_back_its_rows(rows):
    sorted_rows = np.array(sorted(rows), np.int64)
    data = roaring.encode(sorted_rows)
    assert roaring.decode(data).tolist() == sorted_rows.tolist()
    assert roaring.unz85(roaring.z85(data))[: len(data)] == data
    file = roaring.FILE_VERSION + roaring.framed(b"other") + roaring.framed(data)
    offset = len(file) - len(roaring.framed(data))
    assert roaring.unframed(file, offset, len(data)) == data
    damaged = file[:-5] + bytes([file[-5] ^ 1]) + file[-4:]
    with pytest.raises(roaring.BadVectorError):
        roaring.unframed(damaged, offset, len(data))


cells = st.one_of(st.none(), st.text(max_size=3))
numbers = st.one_of(st.none(), st.integers(-3, 3))


@given(
    rows=st.lists(st.tuples(cells, numbers), max_size=30),
    wanted=st.lists(st.tuples(st.text(max_size=3), st.integers(-3, 3)), max_size=30, unique=True),
    width=st.sampled_from([1, 2]),
)
def test_an_index_finds_every_row_of_a_key_and_no_other(rows, wanted, width):
    kinds = [pa.int64(), pa.string()][:width]

    def words(pairs):
        columns = [pa.array([p[1] for p in pairs], kinds[0])]
        columns += [pa.array([p[0] for p in pairs], kinds[1])] if width == 2 else []
        return key_index.words(columns)

    def key(pair):
        return pair[1] if width == 1 else pair

    index = key_index.load(key_index.dump(key_index.build(words(rows), b"newest")))
    assert (index.records, index.newest) == (len(rows), b"newest")
    asked = words(wanted)
    source, places = key_index.lookup(index, asked, np.argsort(asked.first, kind="stable"))
    expected = [
        (s, r) for s, w in enumerate(wanted) for r, have in enumerate(rows) if key(w) == key(have)
    ]
    complete = [(s, r) for s, r in expected if None not in rows[r][2 - width :]]
    assert sorted(zip(source.tolist(), places.tolist(), strict=True)) == sorted(complete)


def test_an_index_that_was_damaged_is_none():
    data = bytearray(key_index.dump(key_index.build(key_index.words([pa.array([3, 1])]), b"")))
    data[-3] ^= 1
    assert key_index.load(bytes(data)) is None
    assert key_index.load(b"") is None
