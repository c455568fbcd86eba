"""The connector: facts in, findings out."""

import json
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from lakemark.connectors import connector
from lakemark.connectors.postgres import positions as lsns
from lakemark.connectors.postgres.connector_settings import TRAITS
from lakemark.ops.doctor import facts_connector
from lakemark.ops.doctor.checks_connector import (
    CommittedOffsets,
    ConnectorFacts,
    Task,
    findings,
    other_cluster,
)
from tests.kit.connector_settings import POSTGRES, config
from tests.kit.verdicts import ERROR, OK, WARNING, bad, of, one

CONFIG = config()
SOUND = POSTGRES | {
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "filtered",
    "heartbeat.interval.ms": "10000",
    "value.converter.schemas.enable": "false",
}
RUNNING = (Task(0, "RUNNING"),)


def facts(settings=(), **changes):
    all_settings = {**SOUND, **dict(settings)}
    all_settings = {name: value for name, value in all_settings.items() if value is not None}
    made = ConnectorFacts(
        name="shop",
        settings=all_settings,
        problems=connector.parse(all_settings, config=CONFIG).problems,
        traits=TRAITS,
        state="RUNNING",
        tasks=RUNNING,
        version="4.1.0",
        cluster_id="c1",
        skew_s=0.2,
    )
    return replace(made, **changes)


def setting(name, value):
    return one(findings(facts({name: value}), CONFIG), "connector setting", name)


def test_all_in_order():
    found = findings(facts(), CONFIG)
    assert bad(found) == []
    assert one(found, "connector").reason == "RUNNING with one task, Connect 4.1.0"
    assert one(found, "clock", "Kafka Connect").verdict is OK


@pytest.mark.parametrize("state", ["PAUSED", "STOPPED"])
def test_a_connector_that_is_paused(state):
    found = findings(facts(state=state, tasks=(Task(0, "PAUSED"),)), CONFIG)
    (finding,) = bad(found)
    assert finding.verdict is ERROR
    assert finding.mend == "curl -X PUT http://c:8083/connectors/shop/resume"


def test_a_task_that_failed_is_shown_without_values():
    trace = (
        "org.apache.kafka.connect.errors.ConnectException: value 'private' is bad\n"
        "\tat io.debezium.Something.run(Something.java:1)\n"
        "Caused by: org.postgresql.util.PSQLException: ERROR: 4711\n"
        "\tat org.postgresql.Core.go(Core.java)\n"
    )
    found = findings(facts(tasks=(Task(0, "FAILED", trace),)), CONFIG)
    (finding,) = bad(found)
    assert finding.verdict is ERROR
    assert "task 0 is FAILED (PSQLException: ERROR: …)" in finding.reason
    assert "private" not in finding.reason
    assert "4711" not in finding.reason
    assert "restart?includeTasks=true&onlyFailed=true" in finding.mend
    assert of(found, "connector", "shop") == [finding]


@pytest.mark.parametrize("changes", [{"state": "FAILED"}, {"state": "UNASSIGNED"}, {"tasks": ()}])
def test_a_connector_that_does_not_run(changes):
    (finding,) = bad(findings(facts(**changes), CONFIG))
    assert finding.verdict is ERROR
    assert "restart" in finding.mend


def test_a_connector_known_from_its_file(tmp_path):
    file = tmp_path / "shop.json"
    file.write_text("{}")
    found = findings(
        facts(state="", tasks=(), version=""), config(source={"connector_file": str(file)})
    )
    assert "cannot be seen" in one(found, "connector").reason
    assert of(found, "clock") == []


@pytest.mark.parametrize(
    ("name", "value", "verdict", "mend"),
    [
        ("decimal.handling.mode", "double", WARNING, "precise"),
        ("decimal.handling.mode", "string", OK, ""),
        ("time.precision.mode", "connect", WARNING, "adaptive"),
        ("time.precision.mode", "isostring", WARNING, "adaptive"),
        ("time.precision.mode", "nanoseconds", WARNING, "adaptive"),
        ("publication.autocreate.mode", None, OK, ""),
        ("publication.autocreate.mode", "disabled", OK, ""),
        ("publication.autocreate.mode", "no_tables", WARNING, "filtered"),
        ("plugin.name", None, WARNING, "pgoutput"),
        ("snapshot.mode", "initial_only", ERROR, "initial"),
        ("snapshot.mode", "always", WARNING, "no_data"),
        ("snapshot.mode", "no_data", OK, ""),
        ("snapshot.mode", "custom", WARNING, ""),
        ("snapshot.select.statement.overrides", "public.a", WARNING, "lakemark snapshot start"),
        ("snapshot.include.collection.list", r"public\.a", WARNING, "lakemark snapshot start"),
        ("event.converting.failure.handling.mode", None, OK, ""),
        ("event.converting.failure.handling.mode", "skip", OK, ""),
        ("event.converting.failure.handling.mode", "fail", OK, ""),
        ("heartbeat.interval.ms", None, WARNING, "10000"),
        ("heartbeat.interval.ms", "0", WARNING, "10000"),
        ("tombstones.on.delete", "false", OK, ""),
        ("offset.flush.interval.ms", None, OK, ""),
        # what `suitability` says
        ("skipped.operations", "t", WARNING, "none"),
        ("skipped.operations", "d", ERROR, "none"),
        ("key.converter", "io.confluent.Avro", ERROR, "JsonConverter"),
        ("signal.data.collection", None, WARNING, "signal table"),
    ],
)
def test_settings(name, value, verdict, mend):
    finding = setting(name, value)
    assert finding.verdict is verdict
    assert mend in finding.mend
    assert bool(finding.mend) == bool(mend)


def test_what_a_snapshot_leaves_out_is_nothing_to_one_that_reads_no_rows():
    parts = {
        "snapshot.mode": "no_data",
        "snapshot.select.statement.overrides.public.a": "SELECT 1",
        "snapshot.include.collection.list": "public.b",
    }
    assert bad(findings(facts(parts), CONFIG)) == []
    assert len(bad(findings(facts(parts | {"snapshot.mode": "initial"}), CONFIG))) == 2


def test_an_unwrap_transform():
    unwrap = {
        "transforms": "flat",
        "transforms.flat.type": "io.debezium.transforms.ExtractNewRecordState",
    }
    setting = "transforms.flat.add.fields"
    finding = one(findings(facts(unwrap), CONFIG), "connector setting", setting)
    assert finding.verdict is ERROR
    assert "remove flat" in finding.mend


def test_a_mode_that_debezium_does_not_know():
    finding = one(
        findings(facts({"decimal.handling.mode": "x"}), CONFIG),
        "connector setting",
        "handling modes",
    )
    assert finding.verdict is ERROR
    assert "expected one of precise" in finding.reason


@pytest.mark.parametrize(("skew", "words"), [(7.0, "7 s ahead of"), (-60.4, "60 s behind")])
def test_clocks_apart(skew, words):
    finding = one(findings(facts(skew_s=skew), CONFIG), "clock")
    assert finding.verdict is WARNING
    assert words in finding.reason


def test_a_connector_of_another_kafka():
    assert other_cluster(facts(), "c1") == []
    assert other_cluster(facts(cluster_id=""), "c2") == []
    (finding,) = other_cluster(facts(), "c2")
    assert finding.verdict is WARNING
    assert "cluster c1, we read c2" in finding.reason


def test_whether_it_runs():
    assert facts().runs
    assert not facts(tasks=(Task(0, "RUNNING"), Task(1, "FAILED"))).runs
    assert not facts(state="").runs


# --- the committed offset, which the fence of output topics asks for ------------------------------

OUTPUT = config(output={"topic_prefix": "clean"})
OFFSET = {"partition": {"server": "shop"}, "offset": {"lsn": 200, "lsn_commit": 100}}


def committed(found):
    return one(findings(facts(committed=found), OUTPUT), "committed offset", "shop")


def test_the_committed_offset_is_of_interest_to_output_topics_only():
    assert of(findings(facts(), CONFIG), "committed offset") == []
    finding = committed(CommittedOffsets(b"p"))
    assert finding.verdict is OK
    assert "how far" in finding.reason


@pytest.mark.parametrize(
    "offsets",
    [
        [],
        [{**OFFSET, "offset": {"snapshot": True, "lsn": 9}}],
        [{**OFFSET, "partition": {"server": "of an earlier topic.prefix"}}],
    ],
)
def test_a_connector_that_has_not_committed_yet(worker, offsets):
    worker.offsets = 200, {"offsets": offsets}
    told = asked(worker, output={"topic_prefix": "clean"}).committed
    assert told == CommittedOffsets(b"")
    finding = committed(told)
    assert finding.verdict is OK
    assert "tells none yet" in finding.reason


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "without source.connect"),
        (CommittedOffsets(b"", "Connect 3.4.0 does not tell it"), "3.4.0"),
    ],
)
def test_committed_offsets_that_cannot_be_seen(found, why):
    finding = committed(found)
    assert finding.verdict is WARNING
    assert why in finding.reason
    assert "every partition" in finding.reason
    assert "Connect 3.6 or newer" in finding.mend
    assert "offset.flush.interval.ms=5000" in finding.mend


@pytest.fixture
def worker():
    """A worker of Connect that knows the connector; `offsets` is its answer about these."""

    class Worker(BaseHTTPRequestHandler):
        offsets = 200, {"offsets": [OFFSET]}

        def do_GET(self):
            status = {"state": "RUNNING", "worker_id": "w"}
            known = {
                "/": {"version": "3.5.1", "kafka_cluster_id": "c1"},
                "/connectors": ["shop"],
                "/connectors/shop/config": SOUND,
                "/connectors/shop/status": {"connector": status, "tasks": [{"id": 0, **status}]},
            }
            code, found = 200, known.get(self.path)
            if found is None:
                code, found = Worker.offsets
            body = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Worker)
    Thread(target=server.serve_forever, daemon=True).start()
    Worker.url = f"http://127.0.0.1:{server.server_port}"
    yield Worker
    server.shutdown()
    server.server_close()


def asked(worker, **changes):
    connect = {"url": worker.url, "connector": "shop"}
    return facts_connector.connector_facts(config(source={"connect": connect}, **changes)).facts


def test_connect_is_asked_for_offsets_where_there_are_output_topics(worker):
    output = {"topic_prefix": "clean"}
    assert asked(worker, output=output).committed == CommittedOffsets(lsns.pack(0, 100, 200))
    assert asked(worker).committed is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [((404, {}), "Connect 3.5.1 at"), ((403, {}), "refuses us with status 403")],
)
def test_offsets_that_do_not_come_leave_everything_else_known(worker, answer, words):
    worker.offsets = answer
    found = asked(worker, output={"topic_prefix": "clean"})
    assert found.runs
    assert found.version == "3.5.1"
    assert words in found.committed.missing
