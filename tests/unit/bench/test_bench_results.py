"""The published report says what the benchmarks' files say, and nothing else."""

import importlib
import json
import sys
from datetime import UTC, datetime, timedelta
from unittest.mock import MagicMock

import pytest

from bench import report, results
from bench.stream import beyond
from stack.processes import StackError
from tests.kit.bench_figures import (
    FAR,
    FRESH,
    HOT,
    LATENCY,
    RANDOM,
    RATE,
    SERIES,
    SMALL,
    SNAPSHOT,
    WHOLE,
    all_of,
    contestant,
    figures,
    numbers,
    section,
    tables,
    written,
    wrong,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A repository without figures, in which nothing is run or drawn."""
    (tmp_path / "bench").mkdir()
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "bench" / "results")
    monkeypatch.setattr(results, "REPORT", tmp_path / "bench" / "RESULTS.md")
    monkeypatch.setattr(results, "draw", lambda found: {n for n in found if picture_of(n)})
    return tmp_path


def picture_of(name):
    return next(one.picture for one in results.PUBLISHED if one.name == name)


@pytest.fixture
def children(folder, monkeypatch):
    """Commands instead of processes: what each writes and how it ends, by its file."""
    run, ends = [], {}

    def child(command):
        run.append(tuple(command))
        name = command[-1].split("/")[-1].removesuffix(".json")
        code, text = ends.get(name, (0, json.dumps(all_of()[name])))
        if text:
            (folder / command[-1]).write_text(text)
        return code

    monkeypatch.setattr(results, "run_child", child)
    return run, ends


# --- the report ------------------------------------------------------------------------------


def test_each_rival_has_its_ratios():
    rows = [
        contestant("lakemark-x", 30_000, cpu_seconds=20.0, read_seconds=0.5),
        contestant("usual", 6_000, cpu_seconds=90.0, read_seconds=0.25),
        contestant("paimon", 24_000, cpu_seconds=10.0, read_seconds=None),
    ]
    shown, ratios = tables(section(written({"small": figures(SMALL, rows)}), SMALL))
    assert [row[""] for row in shown] == ["lakemark-x", "usual", "paimon"]
    assert [tuple(row.values()) for row in ratios] == [
        ("yes", "lakemark-x", "usual", "yes", "5.0", "5.0", "4.5", "0.5"),
        ("yes", "lakemark-x", "paimon", "yes", "1.25", "1.25", "0.5", "-"),
    ]


def test_a_table_of_another_size_is_not_compared():
    ratios = tables(section(written(all_of()), SERIES))[1]
    assert [(row["rows before"], row["steady events/s"]) for row in ratios] == [
        ("1,000", str(round(10_000 / 700, 2))),
        ("2,000", str(round(11_000 / 700, 2))),
    ]


def test_a_snapshot_beside_a_workload_is_compared_with_such_a_one():
    shown, ratios = tables(section(written(all_of()), SNAPSHOT))
    assert [(row[""], row["times better than"], row["rows/s"]) for row in ratios] == [
        ("lakemark 2", "copy", "0.28"),
        ("lakemark 2", "debezium 1024", "12.5"),
        ("lakemark 2 busy", "debezium 1024 busy", "10.0"),
    ]
    alone = next(row for row in shown if row[""] == "log alone")
    assert alone["lag of the log, s"] == "0.55"
    assert alone["rows"] == alone["rows/s"] == alone["s"] == "-"


def test_rows_that_are_less_late_are_better():
    _, ratios = tables(section(written(all_of()), RATE))
    assert [(row[""], row["times better than"], row["p50, s late"]) for row in ratios] == [
        ("lakemark-x", "usual", str(round(120.5 / 4.25, 2)))
    ]


def test_fewer_requests_are_better():
    _, ratios = tables(section(written(all_of()), FAR))
    assert [(row["times better than"], row["s/batch"], row["requests for a table"]) for row in ratios] == [("delta-rs", "9.0", "2.0")]  # fmt: skip


def test_the_first_column_says_what_is_right():
    for one in results.PUBLISHED:
        for table in tables(section(written(all_of()), one)):
            assert next(iter(table[0])) in {"correct", "all seen", "stage"}


def test_what_a_snapshot_takes_stands_below_how_long_it_takes():
    *_, ratios, stages = tables(section(written(all_of()), WHOLE))
    assert ratios[0]["times better than"] == "copy"
    assert [tuple(row.values()) for row in stages] == [
        ("database", "21.5", "71.7"),
        ("read", "8.5", "28.3"),
    ]


def test_a_wrong_table_is_no_and_its_difference_is_told():
    rows = [contestant("lakemark-x", 30_000), contestant("paimon", 10_000, correct=False)]
    found = figures(SMALL, rows, wrong=[
        wrong("paimon", "column note differs in 9 of 90 rows"),
        wrong("paimon", "column note differs in 9 of 90 rows"),
        wrong("usual", "bench.usual ended with 1; its log ends:\n  at some.Class\nout of memory\n"),
    ])  # fmt: skip
    text = section(written({"small": found}), SMALL)
    shown, ratios = tables(text)
    assert [row["correct"] for row in shown] == ["yes", "NO"]
    assert text.count("- paimon: column note differs in 9 of 90 rows\n") == 1
    assert "- usual: out of memory\n" in text
    assert "some.Class" not in text
    assert [row["that is correct"] for row in ratios] == ["NO"]


def test_rows_that_never_came_are_no():
    rows = [
        {"who": "a", "what": "table", "count": 5, "p50": 1.5, "p99": 2.5, "lost": 3},
        {"who": "b", "what": "table", "count": 0, "p50": None, "p99": None, "lost": 4},
        {"who": "c", "what": "start", "count": 1, "p50": 20.5, "p99": 20.5, "lost": 0},
    ]
    (shown,) = tables(section(written({"latency": figures(LATENCY, rows)}), LATENCY))
    assert [list(row.values()) for row in shown] == [
        ["NO", "a", "table", "5", "1.5", "2.5", "3"],
        ["NO", "b", "table", "0", "-", "-", "4"],
        ["-", "c", "start", "-", "20.5", "-", "-"],
    ]


def test_what_is_missing_is_named_and_nothing_stands_in_for_it():
    text = written({"small": all_of()["small"]}, pictures={"small", "series"})
    for one in results.PUBLISHED:
        missing = f"Not measured. `./dev bench results --only {one.name}`"
        assert (missing in section(text, one)) == (one is not SMALL)
    assert tables(section(text, SERIES)) == []
    assert "series.svg" not in text
    assert "](results/small.svg)" in text
    assert "](results/small.png)" in text


def test_without_any_file_the_report_has_no_table():
    text = written({})
    assert text.count("Not measured.") == len(results.PUBLISHED)
    assert "|" not in text
    assert "Versions" not in text


def test_no_figure_is_shown_that_is_not_in_the_files():
    found = all_of()
    shown = numbers(written(found)) - numbers(written({}))
    ratios = {
        row[heading]
        for one in results.PUBLISHED
        for table in tables(section(written(found), one))
        if "times better than" in table[0]
        for row in table
        for heading in list(row)[list(row).index("that is correct") + 1 :]
    }
    assert shown - numbers(json.dumps(found)) <= ratios
    for name, one in found.items():  # and each file is shown
        text = section(written(found), next(p for p in results.PUBLISHED if p.name == name))
        for row in one["rows"]:
            for key in ("events_per_s", "seconds", "peak_rss_mb", "read_seconds", "p50"):
                if row.get(key) and row.get("rows") != 0:
                    assert f"{row[key]:,}" in text


def test_the_machine_and_the_versions_are_those_of_each_file():
    found = all_of()
    found["series"]["machine"] |= {"begun": "2032-01-01T00:00:00+00:00", "cores": 8}
    del found["tables"]["machine"]["begun"]
    found["series"]["versions"] = {"pyspark": "4.3.0", "flink": "1.20.5"}
    machines, versions = tables(written(found))[:2]
    begun = {row[""]: (row["begun (UTC)"], row["cores"]) for row in machines}
    assert begun["small"] == ("2031-05-06T07:08:09+00:00", "6")
    assert begun["series"] == ("2032-01-01T00:00:00+00:00", "8")
    assert begun["tables"] == ("-", "6")
    assert machines[0]["load before"] == "0.74 0.25 0.09"
    of = {row[""]: row["version"] for row in versions}
    assert of["flink"] == "1.20.5"
    assert "4.3.0 (series)" in of["pyspark"]
    assert "4.2.0 (small, " in of["pyspark"]


def test_the_command_is_the_one_that_was_run():
    found = all_of()
    found["small"]["command"] = ["./dev", "bench", "stream", "--events", "77"]
    del found["large-hot"]["command"]
    text = written(found)
    assert "    ./dev bench stream --events 77\n" in section(text, SMALL)
    assert "These figures are older than" in section(text, SMALL)
    assert "The command was not recorded" in section(text, HOT)
    assert f"    {' '.join(SERIES.command)}\n" in section(text, SERIES)
    assert "older" not in section(text, SERIES)


# --- the command -----------------------------------------------------------------------------


def test_all_benchmarks_run_in_order_and_their_commands_are_kept(folder, children):
    run, _ = children
    assert results.main([]) == 0
    assert run == [one.command for one in results.PUBLISHED]
    for one in results.PUBLISHED:
        assert json.loads((folder / one.file).read_text())["command"] == list(one.command)
    assert "Not measured" not in (folder / "bench" / "RESULTS.md").read_text()


def test_only_some_run_again(folder, children):
    run, _ = children
    assert results.main(["--only", "series", "--only", "latency"]) == 0
    assert run == [SERIES.command, LATENCY.command]
    assert section((folder / "bench/RESULTS.md").read_text(), SMALL).startswith("\nNot measured")


def test_writing_runs_nothing_and_changes_no_file(folder, children):
    run, _ = children
    results.RESULTS.mkdir()
    text = json.dumps(all_of()["small"])
    (folder / SMALL.file).write_text(text)
    assert results.main(["--write"]) == 0
    assert run == []
    assert (folder / SMALL.file).read_text() == text
    assert "30,000" in (folder / "bench" / "RESULTS.md").read_text()


def test_a_benchmark_that_fails_leaves_its_old_figures_and_the_others_go_on(folder, children):
    run, ends = children
    results.RESULTS.mkdir()
    old = json.dumps({**all_of()["small"], "command": ["old"]})
    (folder / SMALL.file).write_text(old)
    ends["small"] = (1, "")
    assert results.main([]) == 1
    assert len(run) == len(results.PUBLISHED)
    assert (folder / SMALL.file).read_text() == old


def test_a_rival_that_is_wrong_is_no_failure_but_lakemark_is(folder, children):
    _, ends = children
    for who, code in (("paimon", 0), ("lakemark-x", 1)):
        rows = [contestant("usual", 600), contestant(who, 500, correct=False)]
        ends["small"] = (1, json.dumps(figures(SMALL, rows)))
        assert results.main(["--only", "small"]) == code
        assert f"| NO | {who} |" in (folder / "bench" / "RESULTS.md").read_text()


def test_ctrl_c_ends_all_of_it(folder, children):
    run, ends = children
    ends["large-random"] = (130, "")
    assert results.main([]) == 130
    assert run == [SMALL.command, FRESH.command, RANDOM.command]
    assert not (folder / "bench" / "RESULTS.md").exists()


def test_a_latency_of_nothing_is_no_figure(folder, children):
    row = {"who": "a", "what": "table", "count": 0, "p50": float("nan"), "p99": float("nan"),
           "lost": 4}  # fmt: skip
    children[1]["latency"] = (1, json.dumps(figures(LATENCY, [row])))
    assert results.main(["--only", "latency"]) == 1
    assert "nan" not in (folder / "bench" / "RESULTS.md").read_text().lower()


def test_half_a_file_is_named(folder):
    results.RESULTS.mkdir()
    (folder / SERIES.file).write_text('{"rows": [')
    with pytest.raises(StackError, match=r"series\.json is no JSON .* --only series"):
        results.main(["--write"])


def test_every_command_can_be_parsed_by_its_benchmark():
    for one in results.PUBLISHED:
        options = importlib.import_module(f"bench.{one.bench}").parse(list(one.command[3:]))
        assert options.json.name == f"{one.name}.json"


def test_pictures_that_cannot_be_drawn_are_left_out_with_the_old_ones(tmp_path, monkeypatch):
    def unreachable(_):
        raise StackError("no registry")

    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "ensure_packages", unreachable)
    old = [tmp_path / f"{name}.{kind}" for name in ("small", "series") for kind in ("png", "svg")]
    for file in old:
        file.write_text("old")
    assert results.draw(all_of()) == set()
    assert not any(file.exists() for file in old)


def test_a_benchmark_writes_what_is_wrong_and_when_without_the_path_of_the_machine(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(report, "versions", lambda: {"pyspark": "4.2.0"})
    file = tmp_path / "small.json"
    assert (
        report.show(
            "stream",
            [contestant("usual", 600, correct=False)],
            settings={},
            before=report.machine(),
            wrong=[("lakemark-x", {}), ("usual", {"orders": f"{report.ROOT}/x.log ends: no"})],
            measures=(),
            json_file=file,
        )
        == 1
    )
    written = json.loads(file.read_text())
    assert written["wrong"] == [wrong("usual", "./x.log ends: no")]
    begun = datetime.fromisoformat(written["machine"]["begun"])
    assert abs(datetime.now(UTC) - begun) < timedelta(minutes=10)


# --- the pictures ----------------------------------------------------------------------------


@pytest.fixture
def plots(monkeypatch):
    """The script as it is without matplotlib, which the tests' environment has not."""
    for name in ("matplotlib", "matplotlib.axes", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.delitem(sys.modules, "bench.plots", raising=False)
    yield importlib.import_module("bench.plots")
    sys.modules.pop("bench.plots", None)


def test_every_picture_of_the_report_can_be_drawn_and_no_other(plots):
    assert plots.DRAWN.keys() == {one.name for one in results.PUBLISHED if one.picture}


def test_the_series_is_a_line_for_each_contestant_by_size(plots):
    rows = [
        contestant("usual", 700, start=2000, seconds_for_batch=9.5),
        contestant("usual", 700, start=1000, seconds_for_batch=8.5),
        contestant("paimon", 70, start=1000, seconds_for_batch=1.5, correct=False),
        contestant("paimon", 70, start=2000, seconds_for_batch=None, correct=False),
        contestant("delta-rs", 1, start=1000, seconds_for_batch=None),
    ]
    axes = MagicMock()
    plots.series(axes, rows)
    drawn = {call.kwargs["label"]: call.args for call in axes.plot.call_args_list}
    assert drawn == {
        "usual": ((1000, 2000), (8.5, 9.5)),
        "paimon (table wrong)": ((1000,), (1.5,)),
    }
    assert axes.set.call_args.kwargs["xscale"] == axes.set.call_args.kwargs["yscale"] == "log"


def test_what_is_calculated_goes_on_as_dots(plots):
    rows = [
        contestant("usual", 700, start=1000, seconds_for_batch=8.5),
        contestant("usual", 700, start=2000, seconds_for_batch=9.5),
    ]
    further = beyond(rows)
    assert [(row["start_rows"], row["seconds_for_batch"]) for row in further] == [
        (20_000, 27.5),
        (200_000, 207.5),
    ]
    axes = MagicMock()
    plots.series(axes, [*rows, *({**row, "calculated": True} for row in further)])
    line, dots = axes.plot.call_args_list
    assert line.args == ((1000, 2000), (8.5, 9.5))
    assert dots.args == ((2000, 20_000, 200_000), (9.5, 27.5, 207.5))
    assert dots.kwargs["linestyle"] == ":"


def test_a_cost_that_falls_is_not_carried_on():
    rows = [
        contestant("usual", 700, start=1000, seconds_for_batch=9.5),
        contestant("usual", 700, start=2000, seconds_for_batch=8.5),
        contestant("delta-rs", 700, start=2000, seconds_for_batch=8.5),
    ]
    assert [(row["who"], row["seconds_for_batch"]) for row in beyond(rows)] == [
        ("usual", 8.5),
        ("usual", 8.5),
    ]


def test_with_deletion_vectors_keys_are_looked_for_in_every_index():
    """Two runs that differ the other way round must not hide it."""
    rows = [
        contestant("lakemark-deletion-vectors", 700, start=start, seconds_for_batch=seconds)
        for start, seconds in ((1_000_000, 2.7), (10_000_000, 2.5))
    ]
    assert [row["seconds_for_batch"] for row in beyond(rows)] == [2.91, 7.05]


def test_what_is_calculated_is_said_to_be():
    found = all_of()
    found["series"]["calculated"] = beyond(found["series"]["rows"])
    shown = tables(section(written(found), SERIES))
    assert [row["rows before"] for row in shown[1]] == ["20,000", "200,000"] * 2
    assert "Not measured but calculated" in section(written(found), SERIES)
    assert "calculated" not in section(written(all_of()), SERIES)


def test_the_bars_are_the_steady_events_and_say_whose_table_is_wrong(plots):
    axes = MagicMock()
    plots.small(axes, [contestant("usual", 700), contestant("paimon", 90, correct=False),
                       contestant("delta-rs", 0, steady_events_per_s=None)])  # fmt: skip
    assert axes.barh.call_args.args == (["usual", "paimon (table wrong)"], [700, 90])


def test_a_snapshot_has_its_idle_bar_above_the_busy_one(plots):
    axes = MagicMock()
    plots.snapshot(axes, all_of()["snapshot"]["rows"])
    idle, busy = (call.args for call in axes.barh.call_args_list)
    assert idle == ([-0.2, 0.8, 1.8], [4545, 100, 1250])
    assert busy == ([1.2, 2.2], [80, 800])
    assert axes.set_yticks.call_args.args[1] == [
        "COPY",
        "Debezium, chunks of 1,024",
        "lakemark, parallelism 2",
    ]
