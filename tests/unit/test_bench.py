"""The benchmarks' events are what a connector writes, and leave the rows that are expected."""

import json
import subprocess
import sys

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from bench import snapshot
from bench.events import COLUMNS, CONNECTOR, Orders, as_table, zoned
from bench.runs import Batch, Run, Watch, compare
from lakemark.source.envelope import Kind, SourceIdentity, decode

SOURCE = SourceIdentity(connector="postgresql", logical_name=CONNECTOR)


@pytest.fixture(params=[False, True], ids=["short", "full"])
def orders(request):
    return Orders("orders", events=600, keys=120, load=20, full=request.param)


def replayed(records):
    rows = {}
    for key, value in records:
        event = json.loads(value, parse_float=str)
        if event["op"] == "d":
            assert event["after"] is None
            del rows[json.loads(key)["id"]]
        else:
            assert (event["op"] == "c") == (event["after"]["id"] not in rows)
            rows[event["after"]["id"]] = event["after"]
    return rows


def test_replaying_the_events_gives_the_expected_rows(orders):
    left = replayed(orders.records())
    assert left.keys() == orders.expected.keys()
    expected = orders.rows().to_pylist()
    assert [row["id"] for row in expected] == sorted(left)
    for row in expected:
        image = left[row["id"]]
        assert image.keys() == row.keys() == COLUMNS.keys()
        assert str(row["amount"]) == image["amount"]
        micros = orders.row(orders.expected[row["id"]])[5]
        assert image["updated_at"] == micros
        for name in ("customer_id", "status", "quantity", "note"):
            assert row[name] == image[name]


def test_all_operations_occur_and_deleted_keys_come_back(orders):
    assert set(orders.op) == {"c", "u", "d"}
    assert orders.op[:20] == ["c"] * 20
    inserts = [key for op, key in zip(orders.op, orders.id, strict=True) if op == "c"]
    assert len(inserts) > len(set(inserts))


def test_lakemark_reads_every_event_with_rising_positions(orders):
    keys, values = zip(*orders.records(), strict=True)
    heads = decode(values, keys, identity=SOURCE, epoch=0)
    assert set(heads.kind) == {int(Kind.CHANGE)}
    assert set(heads.table) == {"public.orders"}
    assert heads.op == orders.op
    assert all(a < b for a, b in zip(heads.position, heads.position[1:], strict=False))
    for op, image in zip(heads.op, heads.after, strict=True):
        assert (image is None) == (op == "d")


def test_the_same_arguments_give_the_same_bytes():
    first = list(Orders("a", events=50, keys=20).records())
    assert first == list(Orders("a", events=50, keys=20).records())
    assert first != list(Orders("a", events=50, keys=20, seed=8).records())
    assert first[10:30] == list(Orders("a", events=50, keys=20).records(10, 30))


def test_rows_never_exceed_the_keys():
    orders = Orders("a", events=400, keys=10, mix={"c": 0.8, "u": 0.1, "d": 0.1})
    assert len(orders.expected) <= 10


def test_values_are_compact_json():
    for _, value in Orders("a", events=20, keys=5, full=True).records():
        assert msgspec.json.encode(msgspec.json.decode(value)).count(b" ") == value.count(b" ")
        assert b'": ' not in value


def test_compare_sees_what_is_wrong(tmp_path):
    orders = Orders("a", events=100, keys=30)
    rows = orders.rows()
    write_deltalake(tmp_path / "good", zoned(rows))
    write_deltalake(tmp_path / "short", rows.slice(1))
    other = list(orders.row(orders.expected[rows["id"][0].as_py()]))
    other[4] += 1
    changed = pa.concat_tables([as_table([tuple(other)]), rows.slice(1)])
    write_deltalake(tmp_path / "changed", changed)
    assert compare(str(tmp_path / "good"), rows) == ""
    assert "rows" in compare(str(tmp_path / "short"), rows)
    assert compare(str(tmp_path / "changed"), rows) == "column amount differs"
    assert compare(str(tmp_path / "absent"), rows)


def test_the_first_batch_is_left_out_of_the_steady_figures():
    run = Run("usual", 20.0, [Batch(100, 50), Batch(104, 200), Batch(108, 200)], 1)
    assert run.row()["events_per_s"] == 22
    assert run.row()["steady_events_per_s"] == 50
    assert run.row()["seconds_per_batch"] == 4
    assert Run("usual", 20.0, [Batch(100, 50)], 1).row()["steady_events_per_s"] is None


def test_a_process_is_watched_with_its_children():
    inner = "import time; sum(range(10**6)); time.sleep(1.5)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        watch = Watch(child.pid)
        watch.start()
        child.wait()
        peak, cpu = watch.stop()
    assert len(watch.cpu) >= 2
    assert 5 < peak < 500
    assert cpu > 0


@pytest.mark.parametrize(
    ("found", "said"), [("yy", True), ("yn", False), ("y-", None), ("-n", False), ("-", None)]
)
def test_what_was_not_looked_at_is_not_called_right(found, said):
    words = {"y": True, "n": False, "-": None}
    assert snapshot.worst([snapshot.Row("w", 1, 1.0, correct=words[c]) for c in found]) is said
