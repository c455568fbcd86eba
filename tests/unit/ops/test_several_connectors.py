"""Doctor, plan and prepare of a pipeline with several connectors; who is asked is away."""

import json

import pytest
from rich.console import Console

from lakemark.cli import doctor_view
from lakemark.connectors.database import PlannedTables
from lakemark.errors import DependencyError
from lakemark.model.findings import fine, gathered, wrong
from lakemark.ops.doctor import doctor
from lakemark.ops.doctor.checks_topics import ChangeTopics, KafkaFacts, findings
from lakemark.ops.lag import Ends
from lakemark.ops.plan import plan as plans
from lakemark.ops.plan.facts_log import LogFacts
from lakemark.ops.prepare.prepare import CONNECTOR, SCRIPT, chosen, config_of, prepare
from lakemark.ops.stored_state import Stored
from lakemark.settings.layers import InvalidConfig
from lakemark.state.tables import PipelineState, TableState
from stack.processes import free_port
from tests.kit.command_line import invoke
from tests.kit.connector_settings import POSTGRES, config
from tests.kit.shop import schema_of
from tests.kit.verdicts import ERROR, bad, of

MARIADB = {
    **POSTGRES,
    "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
    "topic.prefix": "crm",
    "provide.transaction.metadata": "true",
    "table.include.list": "crm.people",
    "heartbeat.interval.ms": "1000",
}
SHOP = {**POSTGRES, "table.include.list": "public.orders", "heartbeat.interval.ms": "1000"}


@pytest.fixture
def listed(tmp_path):
    """A configuration of two connectors that are known from their files."""

    def _listed(shop=(), crm=(), **changes):
        for name, settings in (("shop", {**SHOP, **dict(shop)}), ("crm", {**MARIADB, **dict(crm)})):
            document = {"name": name, "config": settings}
            (tmp_path / f"{name}.json").write_text(json.dumps(document))
        urls = {"shop": f"postgresql://u@127.0.0.1:{free_port()}/d",
                "crm": f"mariadb://u@127.0.0.1:{free_port()}"}  # fmt: skip
        entries = [
            {"connector_file": str(tmp_path / f"{name}.json"),
             "database": {"url": url, "connect_timeout": "2s"}}
            for name, url in urls.items()
        ]  # fmt: skip
        given = {
            "kafka": {"bootstrap_servers": f"127.0.0.1:{free_port()}", "timeout": "1s"},
            "source": {"connectors": entries},
            "database": None,
            "lake": {"path": str(tmp_path / "lake")},
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        return config(**given | changes)

    return _listed


# --- doctor -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_connector_and_its_database_are_examined_and_kafka_once(listed):
    found = doctor.examine(listed(crm={"skipped.operations": "t"}))
    assert [f.connector for f in of(found, "connector")] == ["shop.json", "crm.json"]
    away = [f for f in of(found, "database") if f.verdict is ERROR]
    assert [f.connector for f in away] == ["shop.json", "crm.json"]
    assert [f.connector for f in of(found, "replica identity")] == ["shop.json"]
    assert [(f.connector, f.verdict) for f in of(found, "connector setting", "skipped.operations")] == [("crm.json", "warning")]  # fmt: skip
    (brokers,) = of(found, "brokers")
    assert (brokers.connector, "is away" in brokers.reason) == ("", True)
    assert {f.connector for f in of(found, "folder")} == {""}


@pytest.mark.slow
def test_a_connector_that_is_away_hides_nothing_of_the_other(listed, tmp_path):
    whole = listed()
    entries = [e.model_dump(exclude_none=True) for e in whole.source.connectors]
    del entries[0]["connector_file"]
    url = f"http://127.0.0.1:{free_port()}"
    entries[0]["connect"] = {"url": url, "connector": "gone", "timeout": "1s"}
    found = doctor.examine(listed(source={"connectors": entries}))
    by_name = {f.connector: f for f in of(found, "connector")}
    assert by_name["gone"].verdict is ERROR
    assert by_name["crm.json"].verdict is not ERROR
    assert [f.connector for f in of(found, "connector setting") if f.reason.startswith("not checked")] == ["gone"]  # fmt: skip


@pytest.mark.slow
def test_a_topic_prefix_of_two_connectors_is_an_error(listed):
    found = doctor.examine(listed(crm={"topic.prefix": "shop"}))
    (shared,) = [f for f in of(found, "connector setting", "topic.prefix") if f.verdict is ERROR]
    assert shared.connector == "crm.json"


def test_topics_are_missed_of_their_own_connector_only():
    facts = KafkaFacts(
        cluster_id="c", brokers=1, version="", operations=None, group=None, topics={},
        captured=[
            ChangeTopics({"shop.public.a": "shop.public.a"}, streams=True, connector="shop"),
            ChangeTopics({"crm.db.a": "crm.db.a"}, streams=False, connector="crm"),
        ],
    )  # fmt: skip
    (missed,) = [f for f in bad(findings(facts, config())) if f.check == "change topic"]
    assert missed.connector == "shop"
    assert [f.connector for f in of(findings(facts, config()), "change topic")] == ["shop", "crm"]
    assert facts.tables == {"shop.public.a": "shop.public.a", "crm.db.a": "crm.db.a"}


@pytest.mark.slow
def test_what_mends_a_topic_is_a_setting_of_its_connector(listed, monkeypatch):
    facts = KafkaFacts(
        cluster_id="c", brokers=1, version="", operations=None, group=None, topics={},
        captured=[ChangeTopics({"crm.crm.a": "crm.crm.a"}, streams=True, connector="crm.json")],
    )  # fmt: skip
    monkeypatch.setattr(doctor, "kafka_facts", lambda *_: facts)
    (missed,) = [f for f in bad(doctor.examine(listed())) if f.check == "change topic"]
    assert "set source.connectors[1].topics where they rename" in missed.mend


def test_findings_of_several_connectors_say_of_which(capsys):
    shop, crm = (wrong("key", "public.a", "has none") for _ in range(2))
    shop = type(shop)(shop.check, shop.subject, shop.verdict, shop.reason, connector="shop")
    crm = type(crm)(crm.check, "public.b", crm.verdict, crm.reason, connector="crm")
    found = [fine("brokers", "b:1", "up"), shop, crm]
    assert gathered(found) == found, "what is said of two connectors shares no line"
    doctor_view.show(Console(width=200), found, as_json=False, hide=str)
    assert capsys.readouterr().out.splitlines()[:3] == [
        "✓       brokers  b:1       up",
        "✗ shop  key      public.a  has none",
        "✗ crm   key      public.b  has none",
    ]
    doctor_view.show(Console(), found, as_json=True, hide=str)
    rows = json.loads(capsys.readouterr().out)
    assert [row.get("connector") for row in rows] == [None, "shop", "crm"]


# --- plan -------------------------------------------------------------------------------------


def log_of(topics, state):
    """Brokers that have these topics with so many records, and a checkpoint with this state."""
    ends = {topic: {0: records} for topic, records in topics.items()}
    known = Ends({topic: {0: 0} for topic in topics}, ends)
    return LogFacts({}, {}, known, {}, Stored(state, {}, None), None, None)


@pytest.fixture
def planning(listed, monkeypatch):
    """Plans of both connectors, whose databases and brokers answer what they are given."""

    def _planning(topics, sizes=(), state=None, **crm):
        def of_connector(_, connector):
            own = [size for size in sizes if size[0] in connector.tables]
            schemas = {name: schema_of(name, id="bigint") for name, _, _ in own}
            return PlannedTables(schemas, own, {}, 1 << 25)

        log = log_of(topics, state or PipelineState(batch=3))
        monkeypatch.setattr(plans, "log_facts", lambda *_: log)
        monkeypatch.setattr(plans, "_tables", of_connector)
        wide = {"table.include.list": ""}
        return plans.plan(listed(wide, {**wide, **crm}))

    return _planning


def test_the_plan_has_the_tables_of_all_connectors_by_their_names(planning):
    planned = planning(
        {"shop.public.orders": 5, "crm.crm.old": 2, "shop.public.new": 1},
        [("shop.public.orders", 10_000_000, 1 << 30), ("crm.crm.people", 500, 1 << 20)],
        PipelineState(batch=3, tables={"crm.crm.old": TableState(topics=["crm.crm.old"])}),
    )
    assert {table.name: table.topic for table in planned.tables} == {
        "crm.crm.old": "crm.crm.old",
        "crm.crm.people": "crm.crm.people",
        "shop.public.new": "shop.public.new",
        "shop.public.orders": "shop.public.orders",
    }
    waiting = {table.name: table.waiting for table in planned.tables}
    assert waiting["shop.public.orders"] == 5
    assert planned.snapshot is not None
    assert [scan.table for scan in planned.snapshot.tables] == [
        "shop.public.orders",
        "crm.crm.people",
    ]
    assert [scan.chunks for scan in planned.snapshot.tables] == [100, 1]


def test_a_topic_is_planned_for_the_connector_with_the_longest_prefix_of_it(planning):
    planned = planning({"shop.public.a": 1, "shop.eu.crm.b": 1}, **{"topic.prefix": "shop.eu"})
    assert {table.name: table.topic for table in planned.tables} == {
        "shop.public.a": "shop.public.a",
        '"shop.eu".crm.b': "shop.eu.crm.b",
    }


def test_a_plan_names_the_connector_that_cannot_be_used(listed):
    with pytest.raises(InvalidConfig) as caught:
        plans.plan(listed(crm={"connector.class": "x.OracleConnector"}))
    (problem,) = caught.value.problems
    assert problem.path == "connector crm.json: connector.class"
    with pytest.raises(InvalidConfig) as caught:
        plans.plan(listed(crm={"topic.prefix": "shop"}))
    (problem,) = caught.value.problems
    assert problem.path == "connector crm.json: topic.prefix"


@pytest.mark.slow
def test_a_plan_names_the_connector_that_is_away(listed, tmp_path):
    entry = listed().source.connectors[0].model_dump(exclude_none=True)
    url = f"http://127.0.0.1:{free_port()}"
    gone = {"connect": {"url": url, "connector": "gone", "timeout": "1s"}}
    with pytest.raises(DependencyError) as caught:
        plans.plan(listed(source={"connectors": [entry, gone]}))
    assert caught.value.message.startswith("connector gone: Kafka Connect at ")
    assert "source.connectors[1].connector_file" in caught.value.hint


# --- prepare ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shop", "crm"])
def test_one_of_the_connectors_is_prepared_as_if_it_were_the_only_one(listed, tmp_path, name):
    part = chosen(listed(), f"{name}.json")
    source = {"connector_file": str(tmp_path / f"{name}.json")}
    only = config(source=source, database={"url": part.database.url}, kafka=part.kafka.model_dump())
    files = prepare(part, asks=False).files
    assert files == prepare(only, asks=False).files
    assert json.loads(files[CONNECTOR])["topic.prefix"] == name
    assert ("orders" if name == "shop" else "people") in files[SCRIPT], "it may be read"


@pytest.mark.parametrize("name", [None, "nonsense"])
def test_which_one_has_to_be_said(listed, name):
    with pytest.raises(InvalidConfig) as caught:
        chosen(listed(), name)
    assert caught.value.hint == "choose one of them with --connector: shop.json, crm.json"


def test_of_a_list_of_one_nothing_need_be_said(listed):
    entry = listed().source.connectors[1].model_dump(exclude_none=True)
    one = listed(source={"connectors": [entry]})
    assert chosen(one, None) is one.parts[0]


def test_the_file_of_an_entry_is_that_entry(listed, tmp_path):
    assert chosen(listed(), None, tmp_path / "crm.json").source.connector_file == (
        tmp_path / "crm.json"
    )


def test_a_file_says_of_which_entry_it_is(listed, tmp_path):
    entries = [
        {"connect": {"url": "http://h", "connector": name}, "database": {"url": url}}
        for name, url in (("shop", "postgresql://us@h/d"), ("crm", "mariadb://them@h"))
    ]
    whole = listed(source={"connectors": entries})
    file = tmp_path / "crm.json"
    one = chosen(whole, None, file)
    assert one.database.url == "mariadb://them@h"
    assert config_of(file, one).source.connector_file == file
    file.write_text(json.dumps({"name": "other", "config": MARIADB}))
    with pytest.raises(InvalidConfig, match="'other' is none of the connectors"):
        chosen(whole, None, file)
    assert chosen(whole, "crm", file).database.url == "mariadb://them@h"


def test_the_form_with_one_connector_takes_its_own_name_only(tmp_path):
    assert chosen(config(), None) == config()
    assert chosen(config(), "shop") == config()
    with pytest.raises(InvalidConfig, match="'crm' is none of the connectors"):
        chosen(config(), "crm")
    (tmp_path / "shop.json").write_text(json.dumps(SHOP))
    of_file = config(source={"connector_file": str(tmp_path / "shop.json")})
    assert chosen(of_file, "shop.json") is of_file
    with pytest.raises(InvalidConfig, match="'crm' is none of the connectors"):
        chosen(of_file, "crm")


def test_a_name_needs_a_configuration_that_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "crm.json").write_text(json.dumps(MARIADB))
    assert invoke("prepare", "crm.json").exit_code == 0
    done = invoke("prepare", "crm.json", "--connector", "crm.json")
    assert (done.exit_code, done.stdout) == (3, "")


def test_the_command_chooses(listed, tmp_path, monkeypatch):
    listed()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lakemark.yaml").write_text(
        "name: both\nkafka: {bootstrap_servers: b:1}\nlake: {path: ./lake}\ncheckpoint: ./c\n"
        "source: {connectors: [{connector_file: shop.json}, {connector_file: crm.json}]}\n"
    )
    done = invoke("prepare", "--connector", "crm.json", "--to", "out")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "out" / CONNECTOR).read_text())["topic.prefix"] == "crm"
    assert invoke("prepare").exit_code == 3
