"""Any sequence of write sets leaves the table as the contract's rules, applied to a dict, do."""

import tempfile
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from lakemark.sink.delta import delta_rs
from tests.kit.nightly import examples
from tests.kit.write_sets import (
    Change,
    Model,
    at,
    content,
    delete,
    fill,
    insert,
    own,
    read,
    table_schema,
    upsert,
    write_set,
)

COLUMNS = {"k": pa.int64(), "part two": pa.string(), "a": pa.string(), "b": pa.int64()}
KEY = ("k", "part two")
OPEN = ("a", "b")

# Few keys and few positions, so that everything meets everything.
keys = st.tuples(st.integers(0, 4), st.sampled_from(["", "x"]))
numbers = st.integers(2, 7)
places = st.one_of(
    st.builds(at, numbers, st.sampled_from([0, 4])), numbers.map(own), numbers.map(read)
)
names = st.sets(st.sampled_from(OPEN), min_size=1).map(tuple)
cells = st.fixed_dictionaries(
    {"a": st.none() | st.text(max_size=3), "b": st.none() | st.integers(-5, 5)}
)


@st.composite
def changes(draw) -> Change:
    key = draw(keys)
    values = {"k": key[0], "part two": key[1], **draw(cells)}
    place = draw(places)
    kind = draw(
        st.sampled_from(["upsert", "upsert", "partial", "patch", "delete", "insert", "fill"])
    )
    force = draw(st.integers(0, 9)) == 0
    if kind == "delete":
        return delete(values, place, force=force)
    if kind == "insert":
        return insert(values, place)
    if kind == "fill":
        return fill(values, draw(places), draw(names))
    if kind == "upsert":
        return upsert(values, place, force=force)
    unknown = draw(names)
    values |= dict.fromkeys(unknown)
    patch = unknown if kind == "patch" else None
    barrier = draw(st.none() | places)
    return upsert(values, place, patch=patch, unavailable=unknown, row_barrier=barrier, force=force)


@st.composite
def created(draw) -> Change:
    key = draw(keys)
    values = {"k": key[0], "part two": key[1], **draw(cells)}
    return upsert(values, draw(places), op=draw(st.sampled_from("cr")))


def one_per_key(rows: list[Change]) -> list[Change]:
    return list({tuple(c.values[k] for k in KEY): c for c in rows}.values())


batches = st.lists(changes(), max_size=12).map(one_per_key)
news = st.lists(created(), max_size=4).map(one_per_key)  # taken without a join where they can
steps = st.lists(st.one_of(batches, batches, news, places), min_size=1, max_size=7)


@settings(
    max_examples=examples(25, nightly=600),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(steps=steps, deletes=st.sampled_from(["hard", "soft"]), repeat=st.booleans())
def test_the_table_equals_the_dict_after_every_merge(steps, deletes, repeat):
    model = Model(COLUMNS, KEY, deletes)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "t")
        delta_rs.ensure(path, table_schema(COLUMNS, deletes), key=KEY)
        for version, step in enumerate(steps):
            for _ in range(1 + repeat):
                if isinstance(step, bytes):
                    delta_rs.truncate(
                        path, step, deletes=deletes, app_id="q/t/cut", version=version
                    )
                else:
                    rows = write_set(step, COLUMNS, deletes)
                    delta_rs.merge(
                        path, rows, key=KEY, deletes=deletes, app_id="q/t/s", version=version
                    )
            if isinstance(step, bytes):
                event("truncate")
                model.truncate(step)
            else:
                model.apply(step)
            found = DeltaTable(path).to_pyarrow_table()
            shown = found.rename_columns([*COLUMNS, "_cdc"])
            assert content(shown, KEY) == model.content()


@settings(max_examples=examples(16, nightly=400), deadline=None)
@given(rows=st.lists(changes(), max_size=15).map(one_per_key), cut=st.integers(0, 15))
def test_disjoint_halves_of_a_batch_commute(rows, cut):
    """Keys do not touch each other: a batch may be cut anywhere and applied in any order."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, parts in (("ab", [rows[:cut], rows[cut:]]), ("ba", [rows[cut:], rows[:cut]])):
            path = str(Path(folder) / name)
            delta_rs.ensure(path, table_schema(COLUMNS), key=KEY)
            for version, part in enumerate(parts):
                table = write_set(part, COLUMNS)
                delta_rs.merge(path, table, key=KEY, deletes="hard", app_id="q", version=version)
            shown = DeltaTable(path).to_pyarrow_table().rename_columns([*COLUMNS, "_cdc"])
            found.append(content(shown, KEY))
    assert found[0] == found[1]
