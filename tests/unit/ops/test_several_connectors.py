"""Doctor of a pipeline with several connectors; who is asked is away."""

import json

import pytest
from rich.console import Console

from lakemark.cli import doctor_view
from lakemark.model.findings import fine, gathered, wrong
from lakemark.ops.doctor import doctor
from lakemark.ops.doctor.checks_topics import ChangeTopics, KafkaFacts, findings
from stack.processes import free_port
from tests.kit.connector_settings import POSTGRES, config
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
