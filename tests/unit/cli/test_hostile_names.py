"""Names and ids that nobody meant well, through every command and every endpoint."""

import json
import re
import urllib.error
import urllib.request
from urllib.parse import quote

import pytest

from lakemark.cli.plan_view import Plan
from lakemark.connectors import catalogs
from lakemark.model.findings import fine, warning, wrong
from lakemark.ops.doctor import doctor
from lakemark.ops.plan import plan, planned
from lakemark.ops.plan.planned import (
    PlannedTable,
    PlannedTopic,
    Problem,
    Standing,
    Start,
    Target,
)
from lakemark.snapshot import notifications
from lakemark.snapshot.notifications import Progress, ScanStatus, Subject
from lakemark.snapshot.signals import Rejection
from lakemark.state.progress import record_of
from lakemark.state.tables import PipelineState
from stack.processes import free_port
from tests.kit.command_line import SMALL, invoke
from tests.kit.connector_settings import config
from tests.kit.hostile_names import HALF, HOSTILE, is_harmless
from tests.kit.shop import schema_of
from tests.kit.site import Site, serve
from tests.kit.table_states import table_state
from tests.unit.cli.test_dlq_cli import id_of, record

STYLE = re.compile(r"\x1b\[[0-9;?]*[mlhKA]|\r(?=\x1b)")  # of rich itself: colours, bars
HEARD = Progress(chunks=1, total_chunks=2, rows=3, seconds=1)


@pytest.fixture(autouse=True)
def anywhere(folder, monkeypatch):
    """A configuration that takes all tables; no process answers on this machine."""
    text = SMALL.replace(", tables: [public.orders, public.customers]", "")
    (folder / "lakemark.yaml").write_text(text)
    monkeypatch.setenv("LAKEMARK_HTTP__BIND", f"127.0.0.1:{free_port()}")


@pytest.fixture(params=["file", "terminal"])
def place(request, monkeypatch):
    """Where the output goes."""
    if request.param == "terminal":
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "200")
    return request.param


def why(name: str) -> dict[str, str]:
    return {"code": "x", "reason": f"of {name}", "hint": f"for {name}"}


class Everything:
    """What the commands come by, with a name in every place."""

    def __init__(self, kafka, monkeypatch, name: str) -> None:
        run = Subject(f"id {name}", "shop", (name,))
        said = [
            notifications.started(run, ts_ms=1),
            notifications.in_progress(run, table=name, progress=HEARD, ts_ms=2),
            notifications.table_scan_completed(
                run, table=name, status=ScanStatus.SQL_EXCEPTION, progress=HEARD, ts_ms=3
            ),
            notifications.aborted(run, stopped=[name], ts_ms=4, **why(name)),
            notifications.rejected(
                Rejection(f"r {name}", "x", f"of {name}", f"for {name}"), pipeline="shop", ts_ms=5
            ),
        ]
        kafka.notifications = [one.value() for one in said]
        kafka.answers = [one.value() for one in said[:4]]
        kafka.letters = [record(1, table=name, reason=name), record(2, table=name, key=b"")]
        state = table_state(
            topics=[f"shop.{name}"], state="errored", from_offsets={f"shop.{name}": {0: 1}},
            resnapshot=f"as {name}", **why(name),
        )  # fmt: skip
        kafka.records = {
            name.encode(): record_of(name, PipelineState(batch=7, tables={name: state})),
            f"public.odd{name}".encode(): b"{",
            b"_pipeline": json.dumps({"state": "degraded", "ts_ms": 1, **why(name)}).encode(),
        }  # fmt: skip
        kafka.ends = {(f"shop.{name}", 0): 9}
        kafka.partitions |= {f"shop.{name}": 1}
        schemas = {name: schema_of(name, id="int8")}
        found = catalogs.FixedCatalog(schemas)
        monkeypatch.setattr(catalogs, "catalog_of", lambda *_: found)
        findings = [
            fine("key", name, name),
            warning("key", name, name, name),
            wrong("k", name, name),
        ]
        monkeypatch.setattr(doctor, "examine", lambda _: findings)
        target = Target(f"/lake/{name}", "stop", added=(name,), widened=(name,), **why(name))
        table = PlannedTable(name, f"shop.{name}", topic_exists=False, key=(name,),
                             schema_from="database", target=target)  # fmt: skip
        problem = Problem("x", f"of {name}", f"for {name}", stops=True)
        topic = PlannedTopic(f"shop.{name}", "stop", 1, {}, reason=name, hint=name, table=name)
        whole = Plan(
            name="shop", version="1", checkpoint=Standing(f"/c{name}", 7), tables=(table,),
            topics=(topic,), starts=(Start(f"shop.{name}", 0, 1, "earliest", 9, 8),), compared="running",
            snapshot=planned.snapshot(config(), [(name, 9, 9)], {}, 1), changes=(),
            problems=(problem,),
        )  # fmt: skip
        monkeypatch.setattr(plan, "plan", lambda _: whole)


SOON = ("--answer-within", "50ms")
COMMANDS = {
    "validate": (),
    "config show": (),
    "status": (),
    "doctor": (),
    "plan": (),
    "table pause": ("{name}",),
    "table resume": ("{name}",),
    "table skip": ("{name}", "--yes"),
    "recover --resnapshot": ("{name}",),
    "snapshot status": (),
    "snapshot start": ("{name}", "--id", "id {name}", "--wait", *SOON),
    "snapshot stop": ("{name}", *SOON),
    "snapshot set": ("id {name}", "--parallelism", "2", *SOON),
    "dlq ls": (),
    "dlq show": ("{id}",),
    "dlq replay": ("--table", "{name}", "--dry-run"),
}
JSON = {"config show", "status", "doctor", "plan", "snapshot status", "snapshot start", "dlq ls",
        "dlq show", "dlq replay"}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.sampled(8)
def test_no_command_shows_a_name_that_a_terminal_obeys(command, place, kafka, monkeypatch):
    named = 0
    for name in HOSTILE:
        kafka.published.clear()
        Everything(kafka, monkeypatch, name)
        given = (one.format(name=name, id=id_of(1, name)) for one in COMMANDS[command])
        result = invoke(*command.split(), *given)
        text = STYLE.sub("", result.output)
        assert is_harmless(text), name
        named += "public." in text
        for markup in ("[red]", "[/]", "[link=", ":smile:"):
            assert markup in text or markup not in name or "public." not in text
    assert named == (0 if command in {"validate", "config show", "snapshot set"} else len(HOSTILE))


@pytest.mark.parametrize("command", sorted(JSON))
@pytest.mark.sampled(3)
def test_json_is_json_with_the_very_name(command, kafka, monkeypatch):
    for name in HOSTILE:
        kafka.published.clear()
        Everything(kafka, monkeypatch, name)
        given = [one.format(name=name, id=id_of(1, name)) for one in COMMANDS[command]]
        result = invoke(*command.split(), *given, "--output", "json")
        assert is_harmless(result.stdout)
        found = json.loads(result.stdout)
        if command != "config show":
            assert json.dumps(name)[1:-1] in json.dumps(found)


@pytest.mark.parametrize("name", [*HOSTILE, HALF, "nothing"])
@pytest.mark.sampled(4)
def test_an_argument_that_is_refused_is_shown_as_text(name, kafka, place):
    for arguments in (
        ("table", "pause", name),
        ("snapshot", "start", f"{name}(", "--filter", name, *SOON),
        ("dlq", "show", name),
        ("snapshot", "status", name),
        ("-c", name, "validate"),
        ("validate", "-c", f"/nowhere/{name}"),
    ):
        result = invoke(*arguments)
        assert result.exit_code != 0
        assert is_harmless(STYLE.sub("", result.output))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    yield from serve(tmp_path_factory.mktemp("served"))


SLASHED = ("public.a/pause", "public.a/b/resume", "public.../..", "public.a%2Fb", "public./")


@pytest.mark.parametrize("name", [*HOSTILE, *SLASHED])
def test_every_endpoint_answers_with_the_very_name(name, served):
    state = PipelineState(
        batch=1, offsets={"t": {0: 1}},
        tables={name: table_state(topics=["t"], state="errored", events=1, **why(name))},
    )  # fmt: skip
    served.board.captured([name])
    served.board.pipeline("degraded", **why(name))
    served.board.tables(state)
    signal = {"id": f"id {name}", "type": "execute-snapshot"}
    served.board.signal(json.dumps(signal).encode(), sent_ms=1, unnamed="u")

    def ask(path: str, body: object = None):
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(served.address + path, data, kind), timeout=20
            ) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    for path in ("/healthz", "/readyz", "/v1/status"):
        assert json.dumps(f"of {name}") in json.dumps(json.loads(ask(path)[1]))
    found = json.loads(ask("/v1/status")[1])
    assert name in {table["name"] for table in found["tables"]}
    assert f"id {name}" in {signal["id"] for signal in found["signals"]}
    assert ask("/metrics")[0] == 200
    path = quote(name, safe="")  # as the page does it
    served.written.clear()
    for verb in ("resume", "pause"):
        code, answer = ask(f"/v1/tables/{path}/{verb}", {})
        assert (code, json.loads(answer)) == (202, {"id": "c1", "table": name})
    assert served.written == [("table-resume", name), ("table-pause", name)]
    code, answer = ask(f"/v1/tables/{path}x/pause", {})
    assert (code, json.loads(answer)["code"]) == (404, "unknown-table")


# --- what is asked is no way to find out a password ---------------------------------------------


@pytest.mark.parametrize("guess", ["hush-4hush", "tables", "lakemark", "hush"])
def test_an_answer_does_not_tell_whether_a_guess_is_the_password(guess):
    site = Site()  # its password is the first of these
    bodies = (
        {guess: 1},
        {"type": guess},
        {"id": guess, "type": guess},
        {"type": "execute-snapshot", "data": {"data-collections": [guess + "("]}},
        {"type": "execute-snapshot", "data": {guess: 1}},
        {"type": "execute-snapshot", "data": {"data-collections": ["a.b"], "keys": guess}},
    )
    for body in bodies:
        answer = site.post("/v1/signals", body)
        assert "•••" not in answer.text
    site.board.signal(json.dumps({"id": guess, "type": guess}).encode(), sent_ms=1, unnamed="u")
    assert "•••" not in site.get("/v1/status").text
    assert guess in site.get("/v1/status").text
    assert "•••" not in site.post(f"/v1/tables/{guess}/pause").text


def test_a_password_that_is_a_word_spoils_nothing(folder, kafka, monkeypatch):
    text = (folder / "lakemark.yaml").read_text()
    plain = {}
    for password in ("xK9-vQ2!z", "lakemark", "tables"):
        (folder / "lakemark.yaml").write_text(text.replace("hush-4hush", password))
        for command in ("status", "doctor", "plan", "snapshot status", "config show"):
            Everything(kafka, monkeypatch, "public.orders")
            for form in ("table", "json"):
                found = invoke(*command.split(), "--output", form).output
                found = re.sub(r"\d+\w+ ago|\d{10,}|127.0.0.1:\d+", "", found)
                assert plain.setdefault((command, form), found) == found
