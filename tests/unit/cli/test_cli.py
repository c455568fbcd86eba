"""The command line: exit codes, one screen per error, no traceback, no secret."""

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

import lakemark
from lakemark.errors import DependencyError, PipelineError, TableError
from tests.kit.command_line import CONNECTOR, SMALL, invoke


@pytest.fixture
def supervisor(monkeypatch):
    """Stands in for the module that loads Spark."""
    calls = []

    def run(config, *, once):
        calls.append((config.name, once))
        if isinstance(stub.outcome, Exception):
            raise stub.outcome
        return stub.outcome

    stub = types.ModuleType("lakemark.supervisor")
    stub.run, stub.outcome, stub.calls = run, 0, calls
    monkeypatch.setitem(sys.modules, "lakemark.supervisor", stub)
    monkeypatch.setattr(lakemark, "supervisor", stub, raising=False)
    return stub


# --- validate ---------------------------------------------------------------------------------


def test_validate_says_what_would_happen(folder):
    result = invoke("validate")
    assert result.exit_code == 0
    assert "ok: shop can be started" in result.output
    assert f"writes  {folder / 'lake'} (hard deletes)" in result.output


def test_validate_lists_mistakes_of_all_files_with_exit_code_3(folder):
    (folder / "shop.json").write_text(json.dumps(CONNECTOR | {"key.converter": "x.Avro"}))
    (folder / "tables.yaml").write_text("public.orders: {columns: {id: bigintt}}")
    (folder / "lakemark.yaml").write_text(
        SMALL.replace("shop.json", "shop.json, schema_file: tables.yaml")
    )
    result = invoke("validate")
    assert result.exit_code == 3
    assert "connector: key.converter: no converter here reads what x.Avro writes" in result.output
    assert "public.orders.columns.id: 'bigintt' is not a known type" in result.output
    assert "did you mean bigint?" in result.output
    assert "2 mistakes" in result.output


def test_validate_warns_and_goes_on(folder):
    (folder / "shop.json").write_text(json.dumps(CONNECTOR | {"skipped.operations": "t"}))
    result = invoke("validate")
    assert result.exit_code == 0
    assert "warning: connector: skipped.operations" in result.output
    assert "set skipped.operations to none" in result.output


def test_validate_a_given_file(folder):
    (folder / "other.yaml").write_text("nme: x")
    result = invoke("validate", "-c", "other.yaml")
    assert result.exit_code == 3
    assert "other.yaml:1: nme: is not a setting" in result.output
    assert "did you mean name?" in result.output


def test_validate_without_any_file(folder):
    (folder / "lakemark.yaml").unlink()
    result = invoke("validate")
    assert result.exit_code == 3
    assert "looked for -c FILE, then LAKEMARK_CONFIG, then" in result.output


@pytest.mark.slow
def test_validate_and_config_load_neither_spark_nor_a_kafka_client(folder):
    code = (
        "import sys; from lakemark.cli import cli\n"
        "try: cli.app(['validate'])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "heavy = {'pyspark', 'py4j', 'confluent_kafka', 'deltalake', 'psycopg'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# --- config, version --------------------------------------------------------------------------


def test_config_show_masks_secrets_and_names_origins(folder, monkeypatch):
    monkeypatch.setenv("LAKEMARK_STREAM__SHARDS", "7")
    shown = {
        row["setting"]: row for row in json.loads(invoke("config", "show", "-o", "json").stdout)
    }
    assert shown["database.password"]["value"] == "•••"
    assert shown["stream.shards"] == {
        "setting": "stream.shards",
        "value": "7",
        "from": "LAKEMARK_STREAM__SHARDS",
    }
    assert shown["name"]["from"] == "lakemark.yaml:1"
    assert shown["stream.trigger"] == {
        "setting": "stream.trigger",
        "value": "1s",
        "from": "default",
    }
    assert "database.password" in invoke("config", "show").output


def test_the_password_in_an_address_is_masked_too(folder):
    (folder / "lakemark.yaml").write_text(SMALL.replace("u@h", "u:hush-4hush@h"))
    assert "postgresql://u:•••@h/d" in invoke("config", "show").output


def test_version_names_what_a_bug_report_needs(folder):
    result = invoke("version", "-o", "json")
    assert result.exit_code == 0
    assert set(json.loads(result.stdout)) >= {
        "lakemark",
        "pyspark",
        "delta-spark",
        "deltalake",
        "python",
        "java",
    }


# --- run and its errors -----------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "once"), [((), False), (("--once",), True)])
def test_run_hands_over_to_the_supervisor(folder, supervisor, arguments, once):
    supervisor.outcome = 1 if once else 0
    result = invoke("run", *arguments)
    assert supervisor.calls == [("shop", once)]
    assert result.exit_code == supervisor.outcome


class SpeechlessError(RuntimeError):
    """As one of a Java gateway that has ended: its text would be asked for there."""

    def __str__(self) -> str:
        raise ConnectionError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            DependencyError("broker hush-4hush is away", hint="start it"),
            ["dependency-down", "→ start it", "tries again by itself"],
        ),
        (
            PipelineError("a gap", code="source-data-expired", hint="take a snapshot"),
            ["source-data-expired", "→ take a snapshot"],
        ),
        (TableError("odd"), ["table-error", "odd"]),
        (
            RuntimeError("who knows hush-4hush"),
            ["unexpected error", "RuntimeError: who knows •••", "--debug"],
        ),
        (SpeechlessError(), ["unexpected error", "Speechless", "--debug"]),
    ],
)
def test_an_error_is_one_screen_and_exit_code_1(folder, supervisor, error, words):
    supervisor.outcome = error
    result = invoke("run")
    assert result.exit_code == 1
    for word in words:
        assert word in result.output
    assert result.stdout == ""
    assert len(result.output.splitlines()) < 12


def test_debug_shows_the_traceback_without_secrets(folder, supervisor):
    supervisor.outcome = RuntimeError("hush-4hush")
    result = invoke("--debug", "run")
    assert "Traceback" in result.output
    assert "RuntimeError: •••" in result.output


def test_a_mistake_in_the_configuration_starts_nothing(folder, supervisor):
    (folder / "lakemark.yaml").write_text("name: shop")
    assert invoke("run").exit_code == 3
    assert supervisor.calls == []


@pytest.mark.parametrize(
    "arguments", [["nope"], ["run", "--nope"], ["table", "pause"], ["status", "-o", "xml"]]
)
def test_usage_is_exit_code_2(folder, arguments):
    assert invoke(*arguments).exit_code == 2


# --- tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_pause_and_resume_write_one_control_record(folder, kafka, command):
    state = "paused" if command == "resume" else "streaming"
    kafka.records = {b"public.orders": json.dumps({"state": state}).encode()}
    result = invoke("table", command, "public.orders")
    assert result.exit_code == 0
    ((topic, key, value),) = kafka.published
    record = json.loads(value)
    assert (topic, key) == ("shop.control", b"public.orders")
    assert (record["type"], record["table"]) == (f"table-{command}", "public.orders")
    assert record["id"]
    assert record["ts_ms"] > 1_700_000_000_000
    assert "next batch" in result.output


@pytest.mark.parametrize(
    ("command", "state", "already"),
    [
        ("pause", "paused", True),
        ("pause", "streaming", False),
        ("pause", "errored", False),
        ("resume", "streaming", True),
        ("resume", "catching-up", True),
        ("resume", "errored", False),
        ("resume", "paused", False),
    ],
)
def test_a_table_that_is_as_it_is_wanted_is_said_to_be_so(folder, kafka, command, state, already):
    """The record is written all the same: a pause that is on its way is taken back by a resume."""
    kafka.records = {b"public.orders": json.dumps({"state": state}).encode()}
    result = invoke("table", command, "public.orders")
    assert result.exit_code == 0
    assert (f"public.orders is {state} already" in result.output) == already
    assert (f"will {command}" in result.output) != already
    assert len(kafka.published) == 1


def test_a_table_that_waits_for_a_skip_is_paused_when_it_is_asked_for(folder, kafka):
    kafka.records = {b"public.orders": b'{"state":"paused","code":"skipping"}'}
    assert "already" not in invoke("table", "pause", "public.orders").output


@pytest.mark.parametrize("command", [["table", "pause"], ["table", "resume"], ["recover", "--resnapshot"]])  # fmt: skip
def test_a_command_for_a_table_that_was_never_seen_is_refused(folder, kafka, command):
    kafka.records = {b"public.order": b"{}", b"_pipeline": b"{}", b"_run:x": b"{}"}
    result = invoke(*command, "public.orders")
    assert result.exit_code == 1
    assert "has not seen public.orders" in result.output
    assert "did you mean public.order?" in result.output
    assert kafka.published == []


@pytest.mark.parametrize(
    ("record", "lost"),
    [(b'{"state":"stopped","code":"control-lost"}', True), (b'{"state":"streaming","code":""}', False),
     (b"[]", False), (b"{", False), (None, False)],
)  # fmt: skip
def test_commands_that_are_not_lost_are_said_not_to_be(folder, kafka, record, lost):
    """The record is written all the same: that the next start finds them gone cannot be excluded."""
    kafka.records = {} if record is None else {b"_pipeline": record}
    result = invoke("recover", "--control")
    assert result.exit_code == 0
    assert ("Nothing is known to be lost" in result.output) != lost
    assert [json.loads(value)["type"] for _, _, value in kafka.published] == ["control-lost"]


def test_a_pipeline_that_never_ran_gets_no_control_topic_by_accident(folder, kafka):
    kafka.partitions = {}
    result = invoke("table", "pause", "public.orders")
    assert result.exit_code == 1
    assert "has never run" in result.output
    assert kafka.published == []


@pytest.mark.parametrize("table", ["orders", "public.nope", "public."])
def test_a_table_that_cannot_be_ours_is_refused(folder, kafka, table):
    result = invoke("table", "pause", table)
    assert result.exit_code == 3
    assert kafka.published == []
    assert "source.tables" in result.output or "expected schema.table" in result.output


# --- what the package offers ------------------------------------------------------------------


def test_the_package_exports_what_it_says():
    assert set(lakemark.__all__) <= set(dir(lakemark))
    assert lakemark.__version__[0].isdigit()
    source = Path(lakemark.__file__).read_text()
    assert "def " not in source
    assert "class " not in source


def test_jars_are_printed_as_spark_submit_takes_them(monkeypatch):
    from lakemark.spark import jars

    def found(*, msk_iam, progress):
        progress("fetched 1 of 1 files")
        more = [Path("/cache/iam.jar")] if msk_iam else []
        return [Path("/cache/a.jar"), Path("/cache/b.jar"), *more]

    monkeypatch.setattr(jars, "runtime_jars", found)
    result = invoke("jars")
    assert result.exit_code == 0
    assert result.stdout == "/cache/a.jar,/cache/b.jar\n"
    assert "fetched" in result.stderr
    assert invoke("jars", "--msk-iam").stdout == "/cache/a.jar,/cache/b.jar,/cache/iam.jar\n"
