"""The benchmarks' events are what a connector writes, and leave the rows that are expected."""

import itertools
import json
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from bench import delta_rs, events, idle_lane, memory, paimon, report, snapshot, stream
from bench.checks import compare, differences
from bench.events import ARROW, COLUMNS, CONNECTOR, ZONED, Orders, as_table, zoned_batches
from bench.ours import stamped
from bench.runs import Batch, Run, Used, Watch, median
from lakemark.converters.json.envelope import decode
from lakemark.model.events import Kind, SourceIdentity
from lakemark.sink.names import CDC

SOURCE = SourceIdentity(connector="postgresql", logical_name=CONNECTOR)


@pytest.fixture(params=[False, True], ids=["short", "full"])
def orders(request):
    return Orders("orders", events=600, keys=120, full=request.param)


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


@pytest.mark.parametrize("full", [False, True])
def test_events_of_mariadb_are_the_same_changes_with_rising_positions(full):
    orders = Orders("orders", events=300, keys=60, full=full)
    keys, values = zip(*orders.in_form(events.MARIADB).records(), strict=True)
    source = SourceIdentity("mariadb", events.MARIADB_NAME)
    heads = decode(values, keys, identity=source, epoch=0)
    assert set(heads.kind) == {int(Kind.CHANGE)}
    assert set(heads.table) == {"shop.orders"}
    assert heads.op == orders.op
    assert all(a < b for a, b in itertools.pairwise(heads.position))
    for (key, value), ours, theirs in zip(orders.records(), keys, values, strict=True):
        before, after = json.loads(value), json.loads(theirs)
        assert key == ours
        assert [before[part] for part in ("before", "after", "op")] == [
            after[part] for part in ("before", "after", "op")
        ]
        assert after["transaction"]["id"] == after["source"]["gtid"]


def test_the_figures_of_two_products_are_set_beside_each_other():
    rows = [
        {"who": "lakemark-a", "steady_events_per_s": 200},
        {"who": "lakemark-a, mariadb", "steady_events_per_s": 190},
        {"who": "usual", "steady_events_per_s": 1},
        {"who": "lakemark-b, mariadb", "steady_events_per_s": None},
    ]
    assert stream.beside(rows) == ["lakemark-a, mariadb: 0.95 times the events/s of lakemark-a"]


@pytest.mark.parametrize("name", ["postgres", "mysql", "oracle"])
def test_only_mariadbs_events_are_there_beside_postgresqls(name):
    assert stream.parse(["--database", "mariadb"]).database == "mariadb-11.4"
    with pytest.raises(SystemExit):
        stream.parse(["--database", name])


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
    write_deltalake(tmp_path / "good", rows.cast(ZONED))
    write_deltalake(tmp_path / "short", rows.slice(1))
    other = list(orders.row(orders.expected[rows["id"][0].as_py()]))
    other[4] += 1
    changed = pa.concat_tables([as_table([tuple(other)]), rows.slice(1)])
    write_deltalake(tmp_path / "changed", changed)
    assert compare(str(tmp_path / "good"), rows) == ""
    assert "rows" in compare(str(tmp_path / "short"), rows)
    said = compare(str(tmp_path / "changed"), rows)
    assert said == f"column amount differs in 1 of {rows.num_rows} rows"
    assert compare(str(tmp_path / "absent"), rows)


@pytest.mark.parametrize("hot", [0.0, 0.8])
def test_events_go_on_from_the_rows_of_the_start(hot):
    orders = Orders("a", events=3000, keys=13_000, start=10_000, hot=hot)
    rows = {row["id"]: row for row in orders.base().read_all().to_pylist()}
    assert rows.keys() == set(range(1, 10_001))
    for (key, value), op in zip(orders.records(), orders.op, strict=True):
        number = json.loads(key)["id"]
        assert (number in rows) == (op != "c")
        if op == "d":
            del rows[number]
        else:
            after = json.loads(value)["after"]
            rows[number] = {**after, "amount": f"{after['amount']:.2f}"}
    expected = orders.rows()
    assert expected["id"].to_pylist() == sorted(rows)
    for row in expected.to_pylist():
        assert str(row["amount"]) == str(rows[row["id"]]["amount"])
        assert row["note"] == rows[row["id"]]["note"]
    changed = [key for op, key in zip(orders.op, orders.id, strict=True) if op == "u"]
    assert (len(set(changed)) < len(changed) / 2) == bool(hot)


def test_events_have_the_row_before_if_asked():
    orders = Orders("a", events=600, keys=400, start=200, before=True)
    rows = {row["id"]: row for row in orders.base().read_all().to_pylist()}
    images = {key: json.loads(events._image(events._base_row(key))) for key in rows}
    for key, row in rows.items():
        micros = pa.scalar(row["updated_at"], pa.timestamp("us")).cast(pa.int64()).as_py()
        image = {**row, "amount": float(row["amount"]), "updated_at": micros}
        assert images[key] == image
    for _, value in orders.records():
        event = json.loads(value)
        key = (event["after"] or event["before"])["id"]
        assert event["before"] == images.get(key)
        images[key] = event["after"]


def test_hot_rows_are_spread_over_the_table():
    orders = Orders("a", events=2000, keys=12_000, start=10_000, hot=1.0, mix={"u": 1.0})
    assert len(set(orders.id)) <= 100
    assert max(orders.id) - min(orders.id) > 5000


def test_all_contestants_start_with_the_same_rows():
    orders = Orders("a", events=10, keys=20, start=50)
    whole = orders.base().read_all()
    assert zoned_batches(orders.base()).read_all().cast(ARROW).equals(whole)
    (batch,) = orders.base()
    assert stamped(batch).drop_columns([CDC]).equals(batch)
    assert differences(pa.Table.from_batches([paimon.as_texts(batch)]), whole) == ""


def test_values_count_and_not_types():
    orders = Orders("a", events=100, keys=30)
    rows = orders.rows()
    (batch,) = rows.combine_chunks().to_batches()
    texts = pa.Table.from_batches([paimon.as_texts(batch)])
    assert differences(texts.take(list(range(texts.num_rows))[::-1]), rows) == ""
    wrong = texts.set_column(2, "status", pa.repeat(pa.scalar("lost"), texts.num_rows))
    assert differences(wrong, rows).startswith("column status differs in")


def test_delta_rs_leaves_the_expected_rows(tmp_path):
    orders = Orders("a", events=900, keys=120)
    schemas = tmp_path / "tables.yaml"
    schemas.write_text(json.dumps({"public.a": {"key": ["id"], "columns": COLUMNS}}))
    (schema,) = delta_rs.schemas_from_file(schemas, delta_rs.MODES).values()
    table = DeltaTable.create(tmp_path / "lake", ARROW)
    records = list(orders.records())
    for at in range(0, len(records), 300):
        delta_rs.merge(table, delta_rs.newest(records[at : at + 300], schema))
    assert compare(str(tmp_path / "lake"), orders.rows()) == ""
    delta_rs.merge(table, delta_rs.newest(records[:300], schema))
    assert compare(str(tmp_path / "lake"), orders.rows()) != ""


def test_the_figures_of_rounds_are_medians_and_one_wrong_round_is_wrong():
    rounds = [
        Run(
            "usual",
            Used(seconds, written=3000),
            [Batch(100, 300)],
            correct=correct,
            input_bytes=1000,
        )
        for seconds, correct in ((10.0, True), (30.0, False), (20.0, True))
    ]
    row = median(rounds)
    assert (row["seconds"], row["events_per_s"], row["written_per_byte"]) == (20.0, 15, 3.0)
    assert row["correct"] is False
    assert row["read_seconds"] is None


def test_each_engine_is_compared_with_each_other_contestant():
    def row(who, rate, seconds, start=0):
        return {"start_rows": start, "who": who, "events_per_s": rate, "cpu_seconds": seconds}

    rows = [row("lakemark-a", 400, 10), row("usual", 100, 30), row("paimon", 200, None)]
    found = report.ratios([*rows, row("usual", 1, 1, start=5)], ("events_per_s", "cpu_seconds"))
    assert [(one["other"], one["events_per_s"], one["cpu_seconds"]) for one in found] == [
        ("usual", 4.0, 3.0),
        ("paimon", 2.0, None),
    ]


def test_contestants_are_chosen_by_name():
    options = stream.parse(["--only", "lakemark", "--only", "paimon", "--start-rows", "10,20"])
    chosen = [one.who for one in stream.CONTESTANTS if stream.is_chosen(one.who, options.only)]
    assert chosen == ["lakemark-task-merge", "lakemark-deletion-vectors", "paimon"]
    assert options.start_rows == [10, 20]
    assert all(stream.is_chosen(one.who, None) for one in stream.CONTESTANTS)


def test_the_first_batch_is_left_out_of_the_steady_figures():
    run = Run("usual", Used(20.0), [Batch(100, 50), Batch(104, 200), Batch(108, 200)])
    assert run.row()["events_per_s"] == 22
    assert run.row()["steady_events_per_s"] == 50
    assert run.row()["seconds_per_batch"] == 4
    assert Run("usual", Used(20.0), [Batch(100, 50)]).row()["steady_events_per_s"] is None


@pytest.mark.slow
def test_a_process_is_watched_with_its_children():
    inner = "import time; sum(range(10**6)); time.sleep(1.5)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        watch = Watch(child.pid)
        watch.start()
        child.wait()
        used = watch.stop()
    assert len(watch.cpu) >= 2
    assert 5 < used.peak_rss_mb < 500
    assert used.cpu_seconds > 0


@pytest.mark.parametrize(
    ("found", "said"), [("yy", True), ("yn", False), ("y-", None), ("-n", False), ("-", None)]
)
def test_what_was_not_looked_at_is_not_called_right(found, said):
    words = {"y": True, "n": False, "-": None}
    assert snapshot.worst([snapshot.Row("w", 1, 1.0, correct=words[c]) for c in found]) is said


def test_a_snapshot_is_seen_beside_debezium_and_beside_the_log_alone():
    rows = [
        snapshot.Row("debezium 1024", 100, 10.0),
        snapshot.Row("debezium 10240", 100, 5.0),
        snapshot.Row("debezium 1024 busy", 100, 20.0),
        snapshot.Row("log alone", 0, 1, [0.5, 0.4, 9.0]),
        snapshot.Row("lakemark 2", 100, 1.0, [0.6]),
        snapshot.Row("lakemark 2 busy", 100, 2.0, [0.7]),
    ]
    assert snapshot.against(rows) == {
        "lakemark 2": (5.0, pytest.approx(1.2)),
        "lakemark 2 busy": (10.0, None),
    }


@pytest.mark.parametrize(
    ("states", "grown"),
    [
        ([0, 100, 200, 200, 210, 190, 200], 1.0),
        ([0, 100, 200, 210, 400, 400, 390], 2.0),
        ([0, 0, 0, 0, 0, 0], None),
        ([100, 900], None),
    ],
)
def test_the_state_of_a_snapshot_is_seen_to_grow(states, grown):
    found = memory.growth([{"largest_state_kb": state} for state in states])
    assert found == (None if grown is None else pytest.approx(grown, rel=0.06))


@pytest.mark.parametrize(("share", "code"), [(0.95, 0), (0.85, 1)])
def test_the_operator_may_cost_a_tenth_at_most(share, code):
    used = SimpleNamespace(seconds=1.0, cpu_seconds=1.0)

    def ran(speed):
        return SimpleNamespace(steady_events_per_s=speed, used=used, correct=True)

    options = SimpleNamespace(json=None)
    runs = {"lakemark": [ran(1000 * share)], "without": [ran(1000.0)]}
    assert idle_lane.show(runs, options, {}) == code
