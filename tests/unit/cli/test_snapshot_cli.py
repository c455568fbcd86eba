"""The snapshot commands: the signals they write, the answers they wait for, the exit codes."""

import io
import json
import subprocess
import sys

import pytest
import yaml
from rich.console import Console

from lakemark.cli import snapshot_view
from lakemark.snapshot import notifications
from lakemark.snapshot.listed_connectors import KEY
from lakemark.snapshot.notifications import Progress, ScanStatus, Subject
from lakemark.snapshot.run_tracker import FollowedRun, then
from lakemark.snapshot.signals import ExecuteSnapshot, Rejection, read
from tests.kit.command_line import invoke
from tests.kit.connector_settings import POSTGRES

A, B = "public.orders", "public.customers"
HALF = Progress(chunks=1, total_chunks=2, rows=1000, seconds=2, total_rows=2000)
FULL = Progress(chunks=2, total_chunks=2, rows=2000, seconds=4)
OTHER = Subject("other", "shop", (A,))
NOISE = [
    None,
    b"{",
    b'{"id": "r1", "type": "STARTED", "aggregate_type": "Initial Snapshot"}',
    b'{"id": "r1", "type": "NEW", "aggregate_type": "Incremental Snapshot", "more": 1}',
    notifications.started(OTHER, ts_ms=1).value(),
]


def run(*tables: str) -> Subject:
    return Subject("r1", "shop", tables or (A,))


def started(*tables: str) -> bytes:
    return notifications.started(run(*tables), ts_ms=1).value()


def scanned(table: str, status=ScanStatus.SUCCEEDED) -> bytes:
    return notifications.table_scan_completed(
        run(), table=table, status=status, progress=FULL, ts_ms=1
    ).value()


IN_PROGRESS = notifications.in_progress(run(), table=A, progress=HALF, ts_ms=1).value()
COMPLETED = notifications.completed(run(), progress=FULL, ts_ms=1).value()
ABORTED = notifications.aborted(
    run(), stopped=[A], ts_ms=1, code="table-gone", reason="it is gone", hint="create it"
).value()
REJECTED = notifications.rejected(
    Rejection("r1", "no-key", "it has no key", "give it one"), pipeline="shop", ts_ms=1
).value()


def start(*arguments: str, **options):
    return invoke("snapshot", "start", A, "--id", "r1", *arguments, **options)


def sent(kafka):
    ((topic, key, value),) = kafka.published
    assert (topic, key) == ("shop.signals", b"shop")
    return json.loads(value)


def test_start_writes_a_signal_and_says_what_was_answered(folder, kafka):
    kafka.answers = [*NOISE, started()]
    result = start()
    assert result.exit_code == 0
    assert sent(kafka) == {
        "id": "r1",
        "type": "execute-snapshot",
        "data": {"data-collections": [A]},
    }
    assert "r1: running" in result.stdout
    assert "lakemark snapshot status r1" in result.stdout


def test_start_of_what_differs_is_a_verify_run_that_mends(folder, kafka):
    kafka.answers = [started()]
    assert start("--differences").exit_code == 0
    assert sent(kafka)["type"] == "verify-snapshot"
    assert sent(kafka)["data"] == {"data-collections": [A], "repair": True}


def test_every_field_of_the_signal(folder, kafka):
    (folder / "keys").write_text('42\n\n[1, "x"]\n')
    kafka.answers = [started()]
    arguments = ["--filter", f"{A}=status = 'open'", "--surrogate-key", "uid", "--chunk-rows", "5"]
    more = ["--parallelism", "2", "--delay", "1s", "--priority", "-3", B]
    assert start(*arguments, *more, "--filter", "id > 1").exit_code == 0
    assert sent(kafka)["data"] == {
        "data-collections": [A, B],
        "additional-conditions": [
            {"data-collection": A, "filter": "status = 'open'"},
            {"data-collection": ".*", "filter": "id > 1"},
        ],
        "surrogate-key": "uid",
        "chunk-rows": 5,
        "parallelism": 2,
        "delay": "1s",
        "priority": -3,
    }
    (_, key, value) = kafka.published[0]
    assert isinstance(read(key, value, pipeline="shop", unnamed="u"), ExecuteSnapshot)


def test_keys_are_json_as_written_or_text(folder, kafka):
    kafka.answers = [started()]
    (folder / "keys").write_text("123456789012345678.123456789\n\n007\n")
    assert start("--key", "42", "--key", "a=b", "--keys-file", "keys").exit_code == 0
    assert b'"keys":[42,"a=b",123456789012345678.123456789,"007"]' in kafka.published[0][2]


def test_keys_from_standard_input(folder, kafka):
    kafka.answers = [started()]
    assert start("--keys-file", "-", input='{"id": 1}\n{"id": 2}\n').exit_code == 0
    assert sent(kafka)["data"]["keys"] == [{"id": 1}, {"id": 2}]


def test_a_run_without_a_name_gets_one(folder, kafka):
    kafka.answers = [
        lambda published: notifications.started(
            Subject(json.loads(published[0][2])["id"], "shop", (A,)), ts_ms=1
        ).value()
    ]
    assert invoke("snapshot", "start", A).exit_code == 0
    assert len(sent(kafka)["id"]) == 36


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--chunk-rows", "0"], "bad-value", "between 1 and"),
        (["--delay", "5 parsecs"], "bad-value", "PT5S"),
        (["--answer-within", "soon"], "bad-value", "PT5S"),
        (["--key", "null"], "wrong-type", "keys[0] is null"),
        (["--key", "1", "--key", "[1, 2]"], "bad-value", "keys[1]"),
        (["--key", "x" * 1_100_000], "too-large", "fewer keys"),
        (["--keys-file", "nope"], "bad-value", "cannot be read"),
        (["--keys-file", "empty"], "bad-value", "no keys"),
        (["--filter", "id = 1", "--filter", "id = 2"], "bad-value", "AND"),
        (["--filter", "id = now()"], "condition-not-allowed", "function now"),
        (["--filter", "select * from x"], "condition-not-allowed", "after WHERE"),
        (["--filter", f"{A}="], "bad-condition", "empty"),
        (["--filter", "public.order=status = 'x'"], "bad-condition", "parentheses"),
        (["public.(x"], "bad-regex", "regular expression"),
    ],
)
def test_what_would_be_refused_is_not_sent(folder, kafka, arguments, code, word):
    (folder / "empty").write_text("\n")
    result = start(*arguments)
    assert result.exit_code == 1
    assert f"{code}:" in result.stderr
    assert word in result.stderr
    assert kafka.published == []


def test_a_pipeline_that_never_ran_gets_no_topic_by_accident(folder, kafka):
    kafka.partitions = {"shop.signals": 1}
    result = start()
    assert result.exit_code == 1
    assert "there is no topic shop.notifications" in result.stderr
    assert kafka.published == []


def test_no_answer_says_what_to_look_at(folder, kafka):
    result = start("--answer-within", "50ms")
    assert result.exit_code == 1
    assert "no-answer" in result.stderr
    assert "lakemark run" in result.stderr
    assert "lakemark snapshot status" in result.stderr
    assert len(kafka.published) == 1


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_rejected_signal_is_exit_code_1(folder, kafka, output):
    kafka.answers = [*NOISE, REJECTED]
    result = start("-o", output)
    assert result.exit_code == 1
    if output == "json":
        assert json.loads(result.stdout)["additional_data"]["code"] == "no-key"
    else:
        assert "it has no key (no-key)" in result.stdout
        assert "→ give it one" in result.stdout


def test_a_run_is_followed_to_its_end(folder, kafka):
    kafka.answers = [started(A, B), *NOISE, IN_PROGRESS, scanned(A), None, scanned(B), COMPLETED]
    result = start("--wait")
    assert result.exit_code == 0
    assert f"{A}: 2/2 chunks  100 %  2,000 rows  500 rows/s  SUCCEEDED" in result.stderr
    assert result.stdout == "r1: completed\n"


def test_json_of_a_followed_run_is_its_last_notification(folder, kafka):
    kafka.answers = [started(), COMPLETED]
    shown = json.loads(start("--wait", "-o", "json").stdout)
    assert (shown["id"], shown["type"]) == ("r1", "COMPLETED")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ([ABORTED], ["r1: aborted", "it is gone (table-gone)", "→ create it"]),
        (
            [scanned(A, ScanStatus.SQL_EXCEPTION), COMPLETED],
            ["r1: completed", f"{A} was not read: SQL_EXCEPTION"],
        ),
    ],
)
def test_a_run_that_does_not_end_well_is_exit_code_1(folder, kafka, end, words):
    kafka.answers = [started(), *end]
    result = start("--wait")
    assert result.exit_code == 1
    for word in words:
        assert word in result.stdout


def test_ctrl_c_leaves_the_run_going_and_says_so(folder, kafka):
    kafka.answers = [started(), IN_PROGRESS, KeyboardInterrupt()]
    result = start("--wait")
    assert result.exit_code == 130
    assert "The run goes on" in result.stderr
    assert "lakemark snapshot status r1" in result.stderr
    assert "lakemark snapshot stop" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "data", "answer"),
    [
        (["stop"], {}, ABORTED),
        (["stop", A], {"data-collections": [A]}, ABORTED),
        (["pause"], {}, notifications.paused(run(), ts_ms=1).value()),
        (["resume"], {}, notifications.resumed(run(), ts_ms=1).value()),
    ],
)
def test_a_command_is_answered_by_what_it_does(folder, kafka, arguments, data, answer):
    kafka.answers = [*NOISE, COMPLETED, IN_PROGRESS, answer]
    result = invoke("snapshot", *arguments)
    assert result.exit_code == 0
    assert sent(kafka)["type"] == f"{arguments[0]}-snapshot"
    assert sent(kafka)["data"] == data
    assert result.stdout.startswith(f"r1: aborted for {A}" if "stop" in arguments else "r1: ")


def answering(make):
    """The answer under the id of the signal that was sent."""
    return lambda published: make(json.loads(published[0][2])["id"]).value()


def test_set_is_answered_under_its_own_id(folder, kafka):
    def make(id_):
        return notifications.in_progress(
            Subject(id_, "shop", (A,)), table=A, progress=HALF, ts_ms=1
        )

    kafka.answers = [IN_PROGRESS, answering(make)]
    result = invoke("snapshot", "set", "r1", "--chunk-rows", "7", "--delay", "2s")
    assert result.exit_code == 0
    assert sent(kafka)["data"] == {"id": "r1", "chunk-rows": 7, "delay": "2s"}


def test_a_rejected_command(folder, kafka):
    def make(id_):
        refusal = Rejection(id_, "no-run", "there is no run", "see status")
        return notifications.rejected(refusal, pipeline="shop", ts_ms=1)

    kafka.answers = [REJECTED, answering(make)]
    result = invoke("snapshot", "pause")
    assert result.exit_code == 1
    assert "there is no run (no-run)" in result.stdout


def test_set_needs_something_to_set(folder, kafka):
    result = invoke("snapshot", "set", "r1")
    assert (result.exit_code, kafka.published) == (1, [])
    assert "missing-field" in result.stderr


def test_status_shows_every_run(folder, kafka):
    kafka.notifications = [
        IN_PROGRESS.replace(b"r1", b"r2").replace(b'"timestamp":1', b'"timestamp":1795266782085'),
        ABORTED,
        b"{",
        b'{"id": "r3", "type": "NEW", "aggregate_type": "Incremental Snapshot", "timestamp": 9e99}',
    ]
    result = invoke("snapshot", "status")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["run", "state", "table", "progress", "at"]
    assert any(line.startswith("r1") and "aborted" in line for line in lines)
    assert "1/2 chunks  50 %  1,000 of about 2,000 rows" in result.stdout
    assert "2026-11-21" in result.stdout
    assert "NEW" in result.stdout
    assert "r1: it is gone (table-gone)" in result.stdout


def test_status_of_one_run(folder, kafka):
    other = IN_PROGRESS.replace(b"r1", b"r2")
    kafka.notifications = [started().replace(b"r1", b"r2"), ABORTED, other]
    (shown,) = json.loads(invoke("snapshot", "status", "r2", "-o", "json").stdout)
    assert (shown["id"], shown["type"]) == ("r2", "IN_PROGRESS")
    result = invoke("snapshot", "status", "r9")
    assert result.exit_code == 1
    assert "unknown-run" in result.stderr


def test_status_shows_no_signal_that_only_told_runs_what_to_do(folder, kafka):
    mine, told = run(), Subject("told", "shop", (A,))
    kafka.notifications = [started()]
    for say in (notifications.paused, notifications.resumed):
        kafka.notifications += [say(subject, ts_ms=2).value() for subject in (mine, told)]
    kafka.notifications += [
        notifications.changed(Subject("set", "shop", (A,)), run="r1", ts_ms=3).value(),
        notifications.aborted(mine, stopped=[A], ts_ms=4).value(),
        notifications.aborted(Subject("stop", "shop", (A,)), stopped=[A], ts_ms=4).value(),
        REJECTED.replace(b"r1", b"refused"),
        ABORTED.replace(b"r1", b"failed"),
    ]
    shown = json.loads(invoke("snapshot", "status", "-o", "json").stdout)
    assert {(one["id"], one["type"]) for one in shown} == {
        ("r1", "ABORTED"), ("refused", "REJECTED"), ("failed", "ABORTED"),
    }  # fmt: skip
    (asked,) = json.loads(invoke("snapshot", "status", "told", "-o", "json").stdout)
    assert asked["type"] == "RESUMED"


def test_a_stop_of_some_tables_is_no_end_of_the_run(folder, kafka):
    both = Subject("r1", "shop", (A, B))
    kafka.notifications = [
        notifications.started(both, ts_ms=1).value(),
        notifications.aborted(both, stopped=[A], ts_ms=2).value(),
    ]
    (shown,) = json.loads(invoke("snapshot", "status", "-o", "json").stdout)
    assert shown["type"] == "STARTED"
    kafka.notifications.append(notifications.aborted(both, stopped=[B], ts_ms=3).value())
    (shown,) = json.loads(invoke("snapshot", "status", "-o", "json").stdout)
    assert shown["type"] == "ABORTED"


def test_status_without_runs(folder, kafka):
    assert "no snapshots yet" in invoke("snapshot", "status").stdout
    assert json.loads(invoke("snapshot", "status", "-o", "json").stdout) == []


def test_bars_on_a_terminal():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=160)
    seen = FollowedRun("r1")
    with snapshot_view.Bars(console) as bars:
        paused = notifications.paused(run(), ts_ms=1).value()
        for value in (started(A, "public.[b]"), IN_PROGRESS, paused, scanned(A), COMPLETED):
            seen = then(seen, notifications.read(value))
            bars.update(seen)
    text = screen.getvalue()
    assert "public.[b]" in text
    assert "2/2 chunks" in text
    assert "SUCCEEDED" in text


@pytest.mark.parametrize("arguments", [["snapshot", "start"], ["snapshot", "set"], ["snapshot"]])
def test_usage_is_exit_code_2(folder, arguments):
    assert invoke(*arguments).exit_code == 2


@pytest.mark.slow
def test_the_command_line_does_not_load_the_parser(folder):
    code = "import sys; from lakemark.cli import cli; assert 'sqlglot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=60)


# --- several connectors -----------------------------------------------------------------------


@pytest.fixture
def several(folder):
    """A configuration of two connectors that are known from their files."""
    names = ("shop", "crm")
    for name in names:
        (folder / f"{name}.json").write_text(json.dumps({**POSTGRES, "topic.prefix": name}))
    config = yaml.safe_load((folder / "lakemark.yaml").read_text())
    config.pop("database", None)
    config["source"] = {"connectors": [{"connector_file": f"{name}.json"} for name in names]}
    (folder / "lakemark.yaml").write_text(yaml.safe_dump(config))


def of(connector: str) -> Subject:
    return Subject(f"r1@{connector}", "shop", (f"{connector}.{A}",))


def test_the_part_of_each_connector_is_waited_for(several, kafka):
    done = [
        notifications.completed(of(one), progress=FULL, ts_ms=1).value() for one in ("crm", "shop")
    ]
    kafka.answers = [notifications.started(of("shop"), ts_ms=1).value(), *done]
    result = invoke("snapshot", "start", ".*", "--id", "r1", "--wait", "--output", "json")
    assert result.exit_code == 0
    assert {one["id"] for one in json.loads(result.stdout)} == {"r1@shop", "r1@crm"}


@pytest.mark.parametrize("wait", [[], ["--wait"]])
def test_a_part_that_nobody_answers_is_a_failure_and_the_others_are_shown(several, kafka, wait):
    kafka.answers = [
        notifications.started(of("shop"), ts_ms=1).value(),
        *[None] * 5,
        notifications.completed(of("shop"), progress=FULL, ts_ms=1).value(),
    ]
    arguments = ["--id", "r1", "--answer-within", "0.01s", *wait]
    result = invoke("snapshot", "start", ".*", *arguments)
    assert result.exit_code == 1
    assert "r1@shop: " in result.output
    assert "no pipeline has answered the signal r1@crm in time" in result.output


def test_of_one_that_is_away_the_pipeline_remembers_which_tables_are_its_own(
    several, folder, kafka
):
    """Connect is not asked for it: else its part would be awaited of those that are there."""
    (folder / "crm.json").write_text("{")
    kafka.records = {KEY: b'{"crm.json": {"qualifier": "crm"}}'}
    kafka.answers = [notifications.started(of("crm"), ts_ms=1).value()]
    result = invoke("snapshot", "start", f"crm.{A}", "--id", "r1", "--output", "json")
    assert result.exit_code == 0, result.output
    assert {one["id"] for one in json.loads(result.stdout)} == {"r1@crm"}
