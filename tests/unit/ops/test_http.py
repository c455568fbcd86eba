"""What is answered over HTTP."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families

from lakemark.ops import lag, status
from lakemark.ops.status import SourceProblem
from lakemark.snapshot.signals import ExecuteSnapshot, read
from lakemark.state.tables import PipelineState, TableState
from tests.kit.site import A, B, C, Site

ROOT = Path(__file__).parents[3]
HOSTS = ["127.0.0.1:8780", "localhost:8780", "[::1]:8780", "localhost"]


@pytest.fixture
def site():
    made = Site()
    made.stream()
    return made


# --- probes -----------------------------------------------------------------------------------


def test_healthz_follows_the_query():
    site = Site()
    assert site.get("/healthz").status_code == 503
    assert site.get("/healthz").json()["code"] == "starting"
    site.board.pipeline("streaming")
    assert site.get("/healthz").status_code == 200
    site.board.pipeline("degraded", code="kafka-unavailable", reason="away", hint="start it")
    found = site.get("/healthz")
    assert (found.status_code, found.json()["code"]) == (503, "kafka-unavailable")


def test_readyz_lists_the_reasons(site):
    found = site.get("/readyz")
    assert found.status_code == 503
    assert [(r["code"], r["table"]) for r in found.json()["reasons"]] == [("no-key", B)]
    state = PipelineState(batch=5, offsets={"t.a": {0: 9}}, tables={A: TableState(topics=["t.a"])})
    site.board.tables(state)
    site.board.ends(lag.Ends({}, {"t.a": {0: 9}}))
    assert (site.get("/readyz").status_code, site.get("/readyz").json()["reasons"]) == (200, [])


# --- state ------------------------------------------------------------------------------------


def test_the_published_schema_is_current_and_fits_a_real_answer(site):
    published = json.loads((ROOT / "schemas" / "status.json").read_text())
    assert published == json.loads(json.dumps(status.schema())), (
        "run: python -m lakemark.ops.status > schemas/status.json"
    )
    found = site.get("/v1/status").json()
    checked = Draft202012Validator(published)
    checked.validate(found)
    checked.validate(Site().get("/v1/status").json())
    assert not checked.is_valid(found | {"more": 1})
    assert not checked.is_valid({k: v for k, v in found.items() if k != "lag"})
    assert {t["name"]: t["state"] for t in found["tables"]} == {
        A: "snapshotting",
        B: "errored",
        C: "waiting",
    }
    assert found["signals"][0]["answer"]["type"] == "IN_PROGRESS"
    assert found["slowest_step"]["step"] == "tasks"
    assert found["lag"] == {"seconds": 0.0, "records": 0}
    assert found["source"]["connector"] == "RUNNING"


def test_no_secret_is_answered(site):
    for path in ("/v1/status", "/readyz"):
        assert "hush-4hush" not in site.get(path).text
        assert "••• in it" in site.get(path).text


def test_history(site):
    found = site.get("/v1/history").json()
    assert found["stretch_s"] == 10
    assert found["stretches"][-1]["events"] == 10


def test_metrics_parse_and_say_what_the_board_says(site):
    answer = site.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    samples = {
        (s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples
    }
    assert all(f.documentation for f in families)
    assert samples["lakemark_pipeline_state", (("state", "streaming"),)] == 1
    assert samples["lakemark_table_state", (("state", "errored"), ("table", B))] == 1
    assert samples["lakemark_table_state", (("state", "streaming"), ("table", B))] == 0
    assert samples["lakemark_table_rows", (("table", A),)] == 7
    assert samples["lakemark_table_dead_letters_total", (("table", B),)] == 2
    assert samples["lakemark_table_newest_source_timestamp_seconds", (("table", A),)] == 5
    assert 60 <= samples["lakemark_proved_age_seconds", (("table", A),)] < 600
    assert samples["lakemark_verify_unlike_rows", (("table", A),)] == 2
    assert samples["lakemark_verify_failed", (("table", A),)] == 0
    assert samples["lakemark_verify_every_seconds", ()] == 7 * 86_400
    assert ("lakemark_proved_age_seconds", (("table", B),)) not in samples  # it never was
    assert samples["lakemark_cut_behind_seconds", (("connector", ""),)] == 2.5
    assert samples["lakemark_cut_tables_left_out", (("connector", ""),)] == 1
    assert samples["lakemark_batches_total", ()] == 1
    assert samples["lakemark_batch_step_seconds_total", (("step", "tasks"),)] == 2
    assert samples["lakemark_batch_duration_seconds_bucket", (("le", "2.5"),)] == 1
    assert samples["lakemark_snapshot_progress_ratio", (("run", "r1"), ("table", A))] == 0.5
    assert samples["lakemark_snapshot_touches", ()] == 3
    assert samples["lakemark_snapshot_buffered_parts", ()] == 2
    assert samples["lakemark_snapshot_largest_state_bytes", ()] == 0
    assert ("lakemark_table_lag_seconds", (("table", C),)) not in samples  # unknown is no number
    assert samples["lakemark_source_up", ()] == 1
    assert samples["lakemark_connector_state", (("state", "RUNNING"),)] == 1
    assert samples["lakemark_connector_state", (("state", "FAILED"),)] == 0
    assert samples["lakemark_slot_distance_bytes", ()] == 17
    assert 5 <= samples["lakemark_heartbeat_age_seconds", ()] < 60


def test_a_source_in_trouble_makes_it_not_ready_and_stays_alive(site):
    problem = SourceProblem("connector-failed", "hush-4hush has FAILED", "restart it", 1)
    now = site.board.status().source
    failed = msgspec.structs.replace(now, connector="FAILED", problems=(problem,), proven_ms=None)
    site.board.source(failed)
    answer = site.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["reasons"][0] == {
        "code": "connector-failed", "reason": "••• has FAILED", "hint": "restart it",
    }  # fmt: skip
    assert site.get("/healthz").status_code == 200, "to start lakemark again mends nothing"
    text = site.get("/metrics").text
    assert "lakemark_source_up 0.0" in text
    assert 'lakemark_connector_state{state="FAILED"} 1.0' in text
    assert "\nlakemark_lag_seconds 0.0" not in text


# --- signals ----------------------------------------------------------------------------------

ASKED = {"type": "execute-snapshot", "data": {"data-collections": [A]}}


def test_a_signal_is_written_under_an_id_of_its_own(site):
    answer = site.post("/v1/signals", ASKED)
    assert answer.status_code == 202
    ((_, value),) = site.written
    found = read(b"shop", value.encode(), pipeline="shop", unnamed="u")
    assert isinstance(found, ExecuteSnapshot)
    assert found.id == answer.json()["id"] != "u"
    assert found.data_collections == (A,)


def test_a_signal_with_an_id_is_written_as_it_came(site):
    body = b'{"id": "mine", "type":"execute-snapshot","data":{"data-collections":["public.a"],'
    body += b'"keys":[123456789012345678901234567890.10]}}'
    headers = {"content-type": "application/json; charset=utf-8"}
    answer = site.client.post("/v1/signals", content=body, headers=headers)
    assert answer.json() == {"id": "mine"}
    assert site.written == [("signal", body.decode())]
    without = body.replace(b'"id": "mine", ', b"")
    assert site.client.post("/v1/signals", content=without, headers=headers).status_code == 202
    assert "123456789012345678901234567890.10" in site.written[1][1]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "missing-field"),
        ([], "wrong-type"),
        ({"type": "explode"}, "unknown-type"),
        ({"type": "execute-snapshot", "data": {}}, "missing-field"),
        ({"type": "execute-snapshot", "data": {"data-collections": ["("]}}, "bad-regex"),
        ({**ASKED, "data": {**ASKED["data"], "chunk-rows": 0}}, "bad-value"),
        ({**ASKED, "data": {**ASKED["data"], "additional-condition": "now() > x"}}, None),
        ({**ASKED, "id": "x" * 1_100_000}, "too-large"),
    ],
)
def test_what_would_be_rejected_is_not_written(site, body, code):
    answer = site.post("/v1/signals", body)
    assert answer.status_code == 400
    found = answer.json()
    assert code is None or found["code"] == code
    assert found["reason"]
    assert found["hint"]
    assert site.written == []


def test_text_that_is_no_json_is_refused(site):
    headers = {"content-type": "application/json"}
    answer = site.client.post("/v1/signals", content=b"{", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "not-json")


def test_kafka_away_is_said_and_not_retried(site):
    site.away = True
    for path, body in (("/v1/signals", ASKED), (f"/v1/tables/{A}/pause", {})):
        answer = site.post(path, body)
        assert answer.status_code == 503
        assert answer.json() == {
            "code": "kafka-unavailable",
            "reason": "Kafka is away",
            "hint": "start it",
            "retried": False,
        }


# --- tables -----------------------------------------------------------------------------------


def test_pause_and_resume_are_control_records(site):
    assert site.post(f"/v1/tables/{A}/pause").json() == {"id": "c1", "table": A}
    assert site.post(f"/v1/tables/{B}/resume").status_code == 202
    assert site.written == [("table-pause", A), ("table-resume", B)]


@pytest.mark.parametrize(
    ("path", "code", "number"),
    [
        ("public.nope/pause", "unknown-table", 404),
        (f"{C}/pause", "table-waiting", 400),
        (f"{A}/resume", "not-stopped", 400),
    ],
)
def test_a_pause_that_would_do_nothing_says_so(site, path, code, number):
    answer = site.post(f"/v1/tables/{path}")
    assert (answer.status_code, answer.json()["code"]) == (number, code)
    assert site.written == []


# --- who may ask ------------------------------------------------------------------------------


def test_a_form_of_another_site_is_refused(site):
    as_form = site.client.post("/v1/signals", data={"type": "stop-snapshot"})
    assert (as_form.status_code, as_form.json()["code"]) == (415, "not-json")
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999"):
        answer = site.post("/v1/signals", ASKED, headers={"origin": origin})
        assert (answer.status_code, answer.json()["code"]) == (403, "cross-site")
    assert site.written == []
    own = {"origin": "http://127.0.0.1:8780"}
    assert site.post("/v1/signals", ASKED, headers=own).status_code == 202


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8780", "10.0.0.1:8780", "a@b:1", ""]
)
def test_without_a_token_another_name_is_refused(site, host):
    for path in ("/v1/status", "/", "/healthz"):
        assert site.get(path, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", HOSTS)
def test_this_machine_is_served_under_its_own_names(site, host):
    assert site.get("/v1/status", headers={"host": host}).status_code == 200


def test_with_a_token_all_but_probes_and_page_need_it():
    site = Site(token="letmein")
    closed = ["/v1/status", "/v1/history", "/metrics"]
    for path in closed:
        answer = site.get(path)
        assert (answer.status_code, answer.json()["code"]) == (401, "no-token")
        wrong = site.get(path, headers={"authorization": "Bearer letmeout"})
        assert (wrong.status_code, wrong.headers["www-authenticate"]) == (401, "Bearer")
        right = {"authorization": "Bearer letmein", "host": "lakemark.example"}
        assert site.get(path, headers=right).status_code == 200
    assert site.post("/v1/signals", ASKED).status_code == 401
    assert site.post(f"/v1/tables/{A}/pause").status_code == 401
    assert site.written == []
    for path in ("/", "/page.css", "/page.js", "/icon.svg"):
        assert site.get(path).status_code == 200
    assert site.get("/healthz").status_code == 503


def test_a_token_may_have_any_letters():
    site = Site(token="geheimnüs")
    for name, code in (("geheimnüs", 200), ("geheimnus", 401)):
        headers = {"authorization": f"Bearer {name}".encode(), "host": "lakemark.example"}
        assert site.get("/v1/status", headers=headers).status_code == code


# --- the page ---------------------------------------------------------------------------------


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(site):
    kinds = {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"}
    assert site.get("/icon.svg").headers["content-type"] == "image/svg+xml"
    texts = {}
    for path, kind in kinds.items():
        answer = site.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        texts[path] = answer.text
    for text in texts.values():
        assert set(re.findall(r"https?://[^\s\"'`]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", texts["/"])
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", texts["/page.js"]
    )
    asked = set(re.findall(r'\$\("([\w-]+)"\)', texts["/page.js"]))
    assert asked
    assert asked <= set(re.findall(r'\bid="([\w-]+)"', texts["/"]))


def test_unknown_paths_and_methods_say_where_to_look(site):
    answer = site.get("/nope")
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    assert "/v1/status" in answer.json()["hint"]
    assert site.get("/v1/signals").status_code == 405
    assert "default-src" in answer.headers["content-security-policy"]


def test_a_defect_is_answered_and_logged(site, monkeypatch):
    monkeypatch.setattr(site.board, "status", lambda: 1 / 0)
    answer = site.get("/v1/status")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal-error")
    assert "report" in answer.json()["hint"]
