"""Keys that differ in the database are two rows in the lake, or the table says why it stops."""

import datetime as dt
import shutil

import pytest

from lakemark.model.handling_modes import PLACEHOLDER
from lakemark.sink import names
from lakemark.state import tables
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ORDERS, Shop, compact, schema_of

UTC = dt.UTC
FIRST, LAST = (end.replace(tzinfo=UTC) for end in (dt.datetime.min, dt.datetime.max))  # noqa: DTZ901
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
# type -> infinity, -infinity, a usual value, the first and the last that the lake can hold, and
# values before and after these; each as the connector writes it.
MOMENTS = {
    "date": ("date", 2146033979, -2147472691, 0, -719162, 2932896, [-719163, 2932897, 2145042905]),
    "timestamp": (
        "timestamp", 2**63 - 1, -(2**63), 0, -62135596800000000, 253402300799999999,
        [-62135596800000001, 253402300800000000, -9223372036853775810],
    ),
    "timestamptz": (
        "timestamptz", "infinity", "-infinity", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        ["0000-12-31T23:59:59.999999Z", "+10000-01-01T00:00:00Z", "+294276-12-31T23:59:59.999999Z"],
    ),
}  # fmt: skip
USUAL = {
    "date": dt.date(1970, 1, 1),
    "timestamp": EPOCH.replace(tzinfo=None),
    "timestamptz": EPOCH,
}
ENDS = {
    "date": (dt.date.min, dt.date.max),
    "timestamp": (FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None)),
    "timestamptz": (FIRST, LAST),
}


ENGINES = ["task-merge", "deletion-vectors"]


@pytest.fixture(params=MOMENTS)
def kind(request):
    """A type of keys."""
    return request.param


@pytest.fixture
def make(kind, tmp_path):
    """Makes pipelines whose orders have such a key."""

    def made(engine=ENGINES[0]):
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        root.mkdir()
        schemas = {ORDERS: schema_of(ORDERS, id=MOMENTS[kind][0], v="text")}
        return Shop(root, Broker(), schemas, settings={"engine": engine})

    return made


def stopped(shop):
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.retried) == (tables.ERRORED, False)
    assert "'id'" in entry.reason
    assert "lakemark table skip" in entry.hint
    return entry.code


@pytest.mark.parametrize("engine", ENGINES)
def test_infinities_are_rows_of_their_own(make, kind, engine):
    shop, (late, early, usual) = make(engine), MOMENTS[kind][1:4]
    first, last = ENDS[kind]
    for at, key in enumerate((late, early, usual), 1):
        shop.put("c", at, key, v=f"c{at}")
    shop.run()
    assert shop.values() == {last: "c1", first: "c2", USUAL[kind]: "c3"}
    shop.put("u", 4, late, v="u4")
    shop.put("d", 5, early)
    shop.run()
    assert shop.values() == {last: "u4", USUAL[kind]: "c3"}


def test_the_ends_of_what_the_lake_holds_are_keys_like_others(make, kind):
    shop, (first, last) = make(), MOMENTS[kind][4:6]
    shop.put("c", 1, first, v="a")
    shop.put("c", 2, last, v="b")
    shop.run()
    assert shop.values() == dict(zip(ENDS[kind], "ab", strict=True))


def test_what_the_lake_cannot_hold_stops_the_table_before_it_takes_anothers_row(
    make, kind, letters
):
    _, late, _, usual, *_, beyond = MOMENTS[kind]
    for op, key in zip("cdc", beyond, strict=True):
        shop = make()
        shop.put("c", 1, late, v="a")
        shop.put("c", 2, usual, v="b")
        shop.run()
        kept = shop.values()
        shop.put(op, 3, key, v="lost")
        shop.put("u", 4, usual, v="too late")
        shop.run()
        assert stopped(shop) == "key-out-of-range"
        assert "9999-12-31" in shop.state.tables[ORDERS].reason
        assert shop.values() == kept
    assert letters == []


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.sampled(6)
def test_one_row_never_stands_for_infinity_and_for_the_end(make, kind, batches, order, side):
    infinite, finite = MOMENTS[kind][2 - side], MOMENTS[kind][4 + side]
    shop, (one, other) = make(), (infinite, finite)[::order]
    shop.put("c", 1, one, v="a")
    if batches > 1:
        shop.run()
        shop.restart()
    shop.put("d", 2, other)
    shop.run()
    assert stopped(shop) == "key-ambiguous"
    if batches > 1:
        assert shop.values() == {ENDS[kind][side]: "a"}

    shutil.rmtree(names.folder_of(shop.config.lake, ORDERS), ignore_errors=True)
    shop.records.append({"type": "table-skip", "table": ORDERS, "offsets": shop.broker.ends()})
    shop.run()
    shop.put("c", 3, other, v="b")
    shop.run()
    shop.run()
    assert shop.values() == {ENDS[kind][side]: "b"}, "the table has begun anew"


def test_a_row_that_moves_to_infinity_or_back_keeps_what_the_log_leaves_out(make, kind):
    """The table's row is found by what the lake has of its key."""
    late, early, usual = MOMENTS[kind][1:4]
    first, last = ENDS[kind]
    for old, new, there in (
        (usual, late, last),
        (late, early, first),
        (early, usual, USUAL[kind]),
    ):
        shop = make()
        shop.put("c", 1, old, v="large")
        shop.run()
        headers = [
            ("__debezium.newkey", compact({"id": new})),
            ("__debezium.oldkey", compact({"id": old})),
        ]
        shop.put("d", 2, old, headers=headers[:1])
        shop.put("c", 2, new, v=PLACEHOLDER.decode(), headers=headers[1:])
        shop.run()
        assert shop.values() == {there: "large"}
