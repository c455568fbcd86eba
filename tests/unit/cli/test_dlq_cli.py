"""The dead-letter commands: what they show, what they send, the exit codes."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import yaml

from lakemark.connectors import catalogs
from lakemark.errors import DependencyError
from lakemark.model.decoding import DeadLetter
from lakemark.sink.output import dead_letter
from lakemark.snapshot import notifications
from lakemark.snapshot.listed_connectors import KEY
from lakemark.snapshot.notifications import Progress, Subject
from lakemark.snapshot.signal_parts import own_id
from tests.kit.command_line import SMALL, invoke
from tests.kit.connector_settings import POSTGRES
from tests.kit.memory_pipeline import MemoryCatalog
from tests.kit.shop import ITEMS, ORDERS, schema_of

SECRET = "cell-value-4711"


def ago(minutes):
    return int((time.time() - minutes * 60) * 1000)


def record(
    offset, *, key=None, value=None, table=ORDERS, reason="invalid-json", minutes=60, topic=""
):
    key = json.dumps({"id": offset}).encode() if key is None else key
    value = f'{{"v": "{SECRET}", '.encode() if value is None else value
    named = table if topic else ""
    topic = topic or f"shop.{table}"
    written = DeadLetter(topic, 0, offset, reason, "byte 3", key or None, value, named)
    headers = dead_letter.headers(written)
    return SimpleNamespace(key=written.key, value=value, headers=headers, timestamp_ms=ago(minutes))


def id_of(offset, table=ORDERS):
    return f"shop.{table}-0-{offset}"


@pytest.fixture
def letters(kafka):
    kafka.letters = [
        record(1, minutes=90),
        record(2, reason="null-key", key=b"", minutes=80),
        record(1, minutes=70),  # written again by a repeated batch
        record(3, table=ITEMS, minutes=60),
        SimpleNamespace(key=b"k", value=SECRET.encode(), headers=[], timestamp_ms=ago(0)),
    ]
    return kafka


@pytest.fixture
def catalog(monkeypatch):
    """The database's tables."""
    schemas = {t: schema_of(t, id="int8", v="text") for t in (ORDERS, ITEMS)}
    found = catalogs.FixedCatalog(schemas)
    monkeypatch.setattr(catalogs, "catalog_of", lambda *_: found)
    return found


@pytest.fixture
def any_table(folder):
    """A configuration that takes all tables."""
    text = SMALL.replace(", tables: [public.orders, public.customers]", "")
    (folder / "lakemark.yaml").write_text(text)


# --- ls -----------------------------------------------------------------------------------------


def test_ls_lists_each_letter_once_and_counts_them_without_a_cell_value(folder, letters):
    result = invoke("dlq", "ls")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [id_of(1), id_of(2), id_of(3, ITEMS)]
    assert "invalid-json" in lines[1]
    assert "25 bytes" in lines[1]
    assert "public.orders  invalid-json: 1" in result.stdout
    assert "public.orders  null-key: 1" in result.stdout
    assert "public.items  invalid-json: 1" in result.stdout
    assert "lakemark dlq replay" in result.stdout
    assert SECRET not in result.output


def test_ls_as_json(folder, letters):
    shown = json.loads(invoke("dlq", "ls", "-o", "json").stdout)
    assert [one["id"] for one in shown["letters"]] == [id_of(1), id_of(2), id_of(3, ITEMS)]
    assert shown["letters"][0] | {"written": "", "id": ""} == {
        "id": "", "written": "", "table": ORDERS, "reason": "invalid-json", "detail": "byte 3",
        "topic": f"shop.{ORDERS}", "partition": 0, "offset": 1, "size": 25,
    }  # fmt: skip
    assert {"table": ORDERS, "reason": "null-key", "letters": 1} in shown["summary"]
    assert SECRET not in json.dumps(shown)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--table", ITEMS], [id_of(3, ITEMS)]),
        (["--reason", "null-key"], [id_of(2)]),
        (["--table", ITEMS, "--reason", "null-key"], []),
        (["--since", "75m"], [id_of(1), id_of(3, ITEMS)]),
        (["--limit", "2"], [id_of(2), id_of(3, ITEMS)]),
        (["--limit", "0"], []),
    ],
)
def test_ls_of_some(folder, letters, arguments, found):
    shown = json.loads(invoke("dlq", "ls", "-o", "json", *arguments).stdout)
    assert [one["id"] for one in shown["letters"]] == found
    if "--limit" in arguments:
        assert sum(count["letters"] for count in shown["summary"]) == 3
        assert "older ones: --limit" in invoke("dlq", "ls", *arguments).stdout


def test_ls_reads_no_further_back_than_it_is_asked_to(folder, letters):
    invoke("dlq", "ls", "--since", "1h")
    assert abs(letters.since_ms - (time.time() - 3600) * 1000) < 60_000
    result = invoke("dlq", "ls", "--since", "yesterday")
    assert result.exit_code == 1
    assert "--since is not a duration" in result.stderr


def test_ls_of_nothing(folder, kafka):
    assert invoke("dlq", "ls").stdout == "no dead letters\n"
    kafka.partitions = {}
    result = invoke("dlq", "ls")
    assert result.exit_code == 1
    assert "has never run" in result.stderr


# --- show ---------------------------------------------------------------------------------------


def test_show_says_why_from_where_and_the_record(folder, kafka):
    kafka.letters = [record(1, value=b'{"b":1.10000000000000000000001,"a":[1,2]}')]
    result = invoke("dlq", "show", id_of(1))
    assert result.exit_code == 0
    for line in (
        "reason     invalid-json",
        "detail     byte 3",
        f"table      {ORDERS}",
        "offset     1",
    ):
        assert line in result.stdout
    assert '{\n  "id": 1\n}' in result.stdout
    assert '"b": 1.10000000000000000000001,\n  "a": [\n    1,\n    2\n  ]' in result.stdout


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"v": "\xc3\xa9\x1b[31m', '{"v": "é\\u001b[31m'),
        (b'{"v": "text that goes on \xff\xfe"}', '{"v": "text that goes on \\xff\\xfe"}'),
        (b"\x00\x01\x02AB", "00000000  00 01 02 41 42"),
        ('{"v":"\x9b31m"}'.encode(), '"v": "\\u009b31m"'),
        (b"[" * 100_000, "more characters: --raw"),
        (bytes(range(256)) * 64, "more bytes: --raw"),
        (b"", "value (0 bytes):"),
    ],
)
def test_show_never_lets_a_record_speak_to_the_terminal(folder, kafka, value, shown):
    kafka.letters = [record(1, value=value)]
    result = invoke("dlq", "show", id_of(1))
    assert result.exit_code == 0, result.output
    assert shown in result.stdout
    assert all(c.isprintable() or c == "\n" for c in result.stdout)


def test_raw_is_the_bytes_and_nothing_else(folder, kafka):
    value = b"\x00\xff\x1b[31m{\r\n"
    kafka.letters = [record(1, value=value)]
    result = invoke("dlq", "show", id_of(1), "--raw")
    assert (result.exit_code, result.stdout_bytes) == (0, value)


def test_show_as_json(folder, kafka):
    kafka.letters = [record(1, value=b"\xff\x00")]
    shown = json.loads(invoke("dlq", "show", id_of(1), "-o", "json").stdout)
    assert shown["value"] == {"encoding": "base64", "data": "/wA="}
    assert shown["key"] == {"encoding": "utf-8", "data": '{"id": 1}'}
    assert shown["reason"] == "invalid-json"


def test_show_of_what_is_not_there(folder, letters):
    result = invoke("dlq", "show", "shop.public.orders-0-99")
    assert result.exit_code == 1
    assert "unknown-letter:" in result.stderr
    assert "lakemark dlq ls" in result.stderr


# --- replay -------------------------------------------------------------------------------------


def answered(last, *, at=-1, connector=""):
    """A notification for the signal that was sent last."""

    def answer(published):
        run = Subject(own_id(json.loads(published[at][2])["id"], connector), "shop", (ORDERS,))
        full = Progress(chunks=1, total_chunks=1, rows=1, seconds=1)
        if last == "STARTED":
            return notifications.started(run, ts_ms=1).value()
        if last == "ABORTED":
            why = {"code": "table-gone", "reason": "it is gone", "hint": "create it"}
            return notifications.aborted(run, stopped=[ORDERS], ts_ms=1, **why).value()
        return notifications.completed(run, progress=full, ts_ms=1).value()

    return answer


def sent(kafka):
    assert {(topic, key) for topic, key, _ in kafka.published} <= {("shop.signals", b"shop")}
    return [json.loads(value)["data"] for _, _, value in kafka.published]


@pytest.mark.usefixtures("any_table", "catalog")
def test_replay_asks_for_the_rows_of_the_keys_by_one_signal_a_table(folder, letters):
    letters.answers = [answered("STARTED"), answered("STARTED")]
    result = invoke("dlq", "replay", id_of(1), id_of(3, ITEMS))
    assert result.exit_code == 0, result.output
    assert sent(letters) == [
        {"data-collections": [r"public\.items"], "keys": [["3"]]},
        {"data-collections": [r"public\.orders"], "keys": [["1"]]},
    ]
    assert f"{ORDERS}: 1 row is to be read again" in result.stdout
    assert "lakemark snapshot status" in result.stdout


@pytest.mark.usefixtures("any_table", "catalog")
def test_replay_of_all_names_what_cannot_be_and_does_the_rest(folder, letters):
    letters.answers = [answered(kind) for kind in ("STARTED", "COMPLETED", "STARTED", "COMPLETED")]
    result = invoke("dlq", "replay", "--all", "--wait")
    assert result.exit_code == 1
    assert len(sent(letters)) == 2
    assert f"{id_of(2)}: cannot be replayed: the record has no key (no-key)" in result.stderr
    assert f"→ lakemark snapshot start {ORDERS}" in result.stderr
    assert result.stdout.count(": completed") == 2


@pytest.mark.usefixtures("catalog")
def test_a_table_that_is_not_read_is_named(folder, letters):
    result = invoke("dlq", "replay", "--table", ITEMS)
    assert result.exit_code == 1
    assert "public.items is not among the tables that the connector captures" in result.stderr
    assert letters.published == []


@pytest.mark.usefixtures("catalog")
def test_a_run_that_is_aborted_is_exit_code_1(folder, letters):
    letters.answers = [answered("STARTED"), answered("ABORTED")]
    result = invoke("dlq", "replay", id_of(1), "--wait", "-o", "json")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert shown["tables"] == [{"table": ORDERS, "rows": 1, "letters": [id_of(1)]}]
    assert [(run["table"], run["state"]) for run in shown["runs"]] == [(ORDERS, "aborted")]


@pytest.mark.usefixtures("any_table", "catalog")
@pytest.mark.parametrize("output", ["table", "json"])
def test_a_dry_run_sends_nothing(folder, letters, output):
    result = invoke("dlq", "replay", "--all", "--dry-run", "-o", output)
    assert result.exit_code == 1, "one of them cannot be replayed"
    assert letters.published == []
    if output == "json":
        shown = json.loads(result.stdout)
        assert [one["rows"] for one in shown["tables"]] == [1, 1]
        assert [one["code"] for one in shown["refused"]] == ["no-key"]
    else:
        assert f"{ORDERS}: 1 row would be read again for 1 dead letter," in result.stdout
        assert "cannot be replayed" in result.stdout


class OfTheirOwn(SimpleNamespace):
    """The databases of two connectors, each with its orders, of which some do not answer."""

    def catalog_of(self, config, modes, connector):
        table = f"{connector.qualifier}.{ORDERS}"
        found = MemoryCatalog({table: schema_of(table, id="int8", v="text")})
        found.away = self.away.get(connector.qualifier)
        return found


@pytest.fixture
def several(folder, letters, monkeypatch):
    entries = []
    for name in ("shop", "crm"):
        (folder / f"{name}.json").write_text(json.dumps({**POSTGRES, "topic.prefix": name}))
        database = {"url": "postgresql://u@h/d"}
        entries.append({"connector_file": f"{name}.json", "database": database})
    config = yaml.safe_load((folder / "lakemark.yaml").read_text())
    config.pop("database")
    config["source"] = {"connectors": entries}
    (folder / "lakemark.yaml").write_text(yaml.safe_dump(config))
    letters.letters = [
        record(7, table=f"{name}.{ORDERS}", topic=f"{name}.{ORDERS}") for name in ("shop", "crm")
    ]
    letters.answers = [answered("STARTED", connector="shop")]
    databases = OfTheirOwn(away={})
    monkeypatch.setattr(catalogs, "catalog_of", databases.catalog_of)
    return databases


AWAY = DependencyError("it does not answer", code="database-unavailable", hint="start it")


@pytest.mark.parametrize("where", ["database", "Connect"])
def test_letters_of_one_that_is_away_are_named_and_the_others_are_replayed(
    several, folder, letters, where
):
    if where == "database":
        several.away["crm"] = AWAY
    else:
        (folder / "crm.json").write_text("{")
        letters.records = {KEY: b'{"crm.json": {"qualifier": "crm"}}'}
    result = invoke("dlq", "replay", "--all", "-o", "json")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert [one["table"] for one in shown["tables"]] == [f"shop.{ORDERS}"]
    ((refused, table, code),) = ((o["id"], o["table"], o["code"]) for o in shown["refused"])
    assert (refused, table) == (f"crm.{ORDERS}-0-7", f"crm.{ORDERS}")
    assert code == ("database-unavailable" if where == "database" else "configuration")
    assert "connector crm.json" in shown["refused"][0]["reason"]
    assert len(sent(letters)) == 1


def test_a_letter_is_its_tables_connectors_whatever_its_topic_is_called(several, letters):
    several.away["crm"] = AWAY
    letters.records = {KEY: b'{"crm.json": {"qualifier": "crm"}}'}
    letters.letters = [record(7, table=f"crm.{ORDERS}", topic="routed")]
    result = invoke("dlq", "replay", "--all", "-o", "json")
    (refused,) = json.loads(result.stdout)["refused"]
    assert refused["code"] == "database-unavailable"


def test_without_any_connector_there_is_no_replay(several, letters):
    several.away |= {"shop": AWAY, "crm": AWAY}
    result = invoke("dlq", "replay", "--all")
    assert result.exit_code != 0
    assert "database-unavailable" in result.stderr
    assert letters.published == []


def test_letters_whose_record_named_no_table_are_found_by_the_name_of_its_topic(several, letters):
    letters.letters = [record(7, table="", topic=f"crm.{ORDERS}")]
    letters.answers = [answered("STARTED", connector="crm")]
    result = invoke("dlq", "replay", "--table", f"crm.{ORDERS}")
    assert result.exit_code == 0, result.output
    assert sent(letters) == [{"data-collections": [r"crm\.public\.orders"], "keys": [["7"]]}]


def test_without_a_database_there_is_no_replay(folder, letters):
    plain = "\n".join(line for line in SMALL.splitlines() if not line.startswith("database"))
    (folder / "lakemark.yaml").write_text(plain)
    result = invoke("dlq", "replay", "--all")
    assert result.exit_code == 1
    assert "no-database:" in result.stderr
    assert "set database.url" in result.stderr
    assert letters.published == []


@pytest.mark.parametrize("arguments", [[], [id_of(1), "--all"], ["--table", ORDERS, "--all"]])
def test_replay_wants_to_be_told_which(folder, letters, arguments):
    result = invoke("dlq", "replay", *arguments)
    assert result.exit_code == 2
    assert letters.published == []


def test_replay_of_an_unknown_id_does_nothing(folder, letters):
    result = invoke("dlq", "replay", id_of(1), "nope-0-1")
    assert result.exit_code == 1
    assert "no dead letter nope-0-1" in result.stderr
    assert letters.published == []


def test_replay_of_nothing(folder, kafka):
    result = invoke("dlq", "replay", "--all")
    assert (result.exit_code, result.stdout) == (0, "no dead letters: nothing to replay\n")
    assert json.loads(invoke("dlq", "replay", "--all", "-o", "json").stdout)["runs"] == []


@pytest.mark.slow
def test_the_command_line_starts_without_what_only_a_replay_needs():
    code = "import sys, lakemark.cli; print([m for m in ('pyarrow', 'psycopg', 'confluent_kafka') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
