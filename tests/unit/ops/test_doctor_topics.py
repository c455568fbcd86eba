"""Brokers and topics: facts in, findings out."""

from dataclasses import replace

import pytest

from lakemark.kafka.own_topics import topic_plan
from lakemark.ops import stored_state
from lakemark.ops.doctor.checks_place import PlaceFacts
from lakemark.ops.doctor.checks_topics import ChangeTopics, KafkaFacts, Topic, findings
from lakemark.state.data_loss import Held
from lakemark.state.tables import PipelineState, TableState
from tests.kit.connector_settings import config
from tests.kit.verdicts import ERROR, OK, WARNING, bad, of, one

CONFIG = config()
EVERYTHING = frozenset({"read", "write", "describe", "describe_configs", "create"})
DAY = 86_400_000
KEPT = {"cleanup.policy": "delete", "retention.ms": str(7 * DAY), "retention.bytes": "-1"}
ORDERS, ITEMS = "shop.public.orders", "shop.public.items"
OURS = {name: Topic(EVERYTHING, n, dict(s)) for name, (n, s) in topic_plan(CONFIG).items()}
FACTS = KafkaFacts(
    cluster_id="c1",
    brokers=3,
    version="",
    operations=EVERYTHING,
    group=frozenset({"read", "describe"}),
    topics=OURS | {ORDERS: Topic(EVERYTHING, 2, KEPT), ITEMS: Topic(EVERYTHING, 1, KEPT)},
    captured=(ChangeTopics({"public.orders": ORDERS, "public.items": ITEMS}, streams=True),),
)


def with_topic(name, facts=FACTS, **changes):
    return replace(facts, topics={**facts.topics, name: replace(facts.topics[name], **changes)})


def without(*names, **changes):
    kept = {name: topic for name, topic in FACTS.topics.items() if name not in names}
    return replace(capturing(**changes), topics=kept)


def capturing(**changes):
    (captured,) = FACTS.captured
    return replace(FACTS, captured=(replace(captured, **changes),))


def test_all_in_order():
    found = findings(FACTS, CONFIG)
    assert bad(found) == []
    assert "3 brokers of cluster c1" in one(found, "brokers").reason
    assert "kept for 7d" in one(found, "change topic", ORDERS).reason
    assert len(of(found, "own topic")) == 6
    assert "protocol 3.9" in one(findings(replace(FACTS, version="3.9"), CONFIG), "brokers").reason


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_change_topic(policy):
    found = findings(with_topic(ORDERS, settings={**KEPT, "cleanup.policy": policy}), CONFIG)
    (finding,) = bad(found)
    assert (finding.check, finding.subject, finding.verdict) == ("change topic", ORDERS, WARNING)
    assert "truncates" in finding.reason
    assert finding.mend == (
        "kafka-configs.sh --bootstrap-server b:1 --alter --entity-type topics"
        f" --entity-name {ORDERS} --add-config cleanup.policy=delete"
    )


def test_retention_in_words():
    limits = {"retention.ms": "-1", "retention.bytes": "1000000"}
    found = findings(with_topic(ORDERS, settings={**KEPT, **limits}), CONFIG)
    assert "for ever, 1,000,000 bytes a partition" in one(found, "change topic", ORDERS).reason


def test_topics_that_are_not_there_yet():
    found = findings(without(ITEMS), CONFIG)
    assert bad(found) == []
    assert "first event creates it" in one(found, "change topic", ITEMS).reason

    finding = one(findings(without(ORDERS, ITEMS), CONFIG), "change topic")
    assert finding.verdict is WARNING
    assert "source.topics" in finding.mend
    assert bad(findings(without(ORDERS, ITEMS, streams=False), CONFIG)) == []


# --- rights ---------------------------------------------------------------------------------


def test_a_change_topic_that_may_not_be_read():
    found = findings(with_topic(ORDERS, operations=frozenset({"describe"})), CONFIG)
    (finding,) = bad(found)
    assert (finding.check, finding.subject, finding.verdict) == ("rights", ORDERS, ERROR)
    assert finding.mend == (
        "kafka-acls.sh --bootstrap-server b:1 --add --allow-principal"
        f" 'User:<lakemark's principal>' --operation Read --topic {ORDERS}"
    )
    assert of(found, "change topic", ORDERS) == []


def test_a_topic_that_is_kept_from_us_and_the_principal_by_name():
    security = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "mark",
        "sasl_password": "secret",
    }
    safe = config(kafka__security=security)
    hidden = Topic(frozenset(), 0, None)
    facts = replace(FACTS, topics={**FACTS.topics, ORDERS: hidden})
    (finding,) = bad(findings(facts, safe))
    assert "may not exist either" in finding.reason
    assert "'User:mark' --operation Describe --operation Read" in finding.mend


def test_rights_that_the_broker_does_not_tell_are_not_missed():
    assert bad(findings(with_topic(ORDERS, operations=None), CONFIG)) == []


def test_own_topics_need_writing_too():
    operations = frozenset({"describe", "read", "describe_configs"})
    facts = with_topic(CONFIG.topics.control, operations=operations)
    (finding,) = bad(findings(facts, CONFIG))
    assert (finding.check, finding.verdict) == ("rights", ERROR)
    assert "--operation Write --topic shop.control" in finding.mend


@pytest.mark.parametrize(
    ("name", "check"), [(ORDERS, "change topic"), ("shop.chunks", "own topic")]
)
def test_settings_that_may_not_be_seen(name, check):
    (finding,) = bad(findings(with_topic(name, settings=None), CONFIG))
    assert (finding.check, finding.subject, finding.verdict) == (check, name, WARNING)
    assert "--operation DescribeConfigs" in finding.mend


def test_the_group_of_the_process_that_runs_the_pipeline():
    (finding,) = bad(findings(replace(FACTS, group=frozenset()), CONFIG))
    assert (finding.subject, finding.verdict) == ("group shop.owner", ERROR)
    assert finding.mend.endswith("--operation Read --group shop.owner")
    assert bad(findings(replace(FACTS, group=None), CONFIG)) == []


def test_the_topic_that_says_that_the_connector_begins():
    facts = capturing(schema_topic="shop")
    (finding,) = bad(findings(facts, CONFIG))
    assert (finding.subject, finding.verdict) == ("shop", WARNING)
    assert "include.schema.changes" in finding.mend
    assert bad(findings(capturing(schema_topic="shop", streams=False), CONFIG)) == []
    seen = {**FACTS.topics, "shop": Topic(EVERYTHING, 1, KEPT)}
    assert bad(findings(replace(facts, topics=seen), CONFIG)) == []
    (finding,) = bad(
        findings(replace(facts, topics={**seen, "shop": Topic(frozenset(), 0, None)}), CONFIG)
    )
    assert (finding.check, finding.verdict) == ("rights", ERROR)


# --- our own topics -------------------------------------------------------------------------


def test_own_topics_that_are_not_there():
    facts = without(*OURS)
    found = findings(facts, CONFIG)
    assert bad(found) == []
    assert {f.reason for f in of(found, "own topic")} == {
        "not there yet: `lakemark run` creates it"
    }
    refused = findings(replace(facts, operations=frozenset({"describe"})), CONFIG)
    assert {f.verdict for f in of(refused, "own topic")} == {WARNING}
    control = one(refused, "own topic", "shop.control")
    assert control.mend == (
        "kafka-topics.sh --bootstrap-server b:1 --create --topic shop.control --partitions 1"
        " --config retention.ms=2592000000"
    )


@pytest.mark.parametrize(
    ("name", "changes", "verdict", "words"),
    [
        ("shop.control", {"partitions": 3}, ERROR, "exactly one"),
        ("shop.signals", {"partitions": 2}, WARNING, "no order"),
        ("shop.progress", {"settings": KEPT}, ERROR, "cleanup.policy must be compact"),
        ("shop.chunks", {"settings": KEPT | {"max.message.bytes": "1"}}, ERROR, "max.message"),
        ("shop.control", {"settings": {"retention.ms": str(DAY)}}, WARNING, "for 1d only"),
    ],
)
def test_own_topics_that_differ(name, changes, verdict, words):
    finding = one(bad(findings(with_topic(name, **changes), CONFIG)), "own topic", name)
    assert finding.verdict is verdict
    assert words in finding.reason
    if "settings" in changes:
        assert "kafka-configs.sh" in finding.mend


def test_more_partitions_than_planned_do_no_harm_to_chunks():
    assert bad(findings(with_topic("shop.chunks", partitions=12), CONFIG)) == []


# --- retention against what was not read ----------------------------------------------------


def at(offsets, *, first=10, young=50, **changes):
    place = PlaceFacts(
        state=PipelineState(
            batch=3,
            offsets={ORDERS: offsets},
            tables={"public.orders": TableState(topics=[ORDERS])},
        ),
        known={ORDERS: "id1"},
        held=Held({ORDERS: "id1"}, {ORDERS: {0: first, 1: 10}}, {ORDERS: {0: 100, 1: 100}}),
        aged={ORDERS: {0: young, 1: young}},
        retention={ORDERS: 7 * DAY},
    )
    return replace(FACTS, place=replace(place, **changes))


def place(facts):
    return one(findings(facts, CONFIG), "place in the log", ORDERS)


LONGER = f"--entity-name {ORDERS} --add-config retention.ms={14 * DAY};"


def test_a_pipeline_that_is_where_it_should_be():
    assert place(at({0: 100, 1: 60})).verdict is OK


def test_events_that_were_never_read_are_gone():
    finding = place(at({0: 7, 1: 100}))
    assert finding.verdict is ERROR
    assert "begins at offset 10; those from 7 on" in finding.reason
    assert LONGER in finding.mend
    assert finding.mend.endswith("; lakemark recover --resnapshot public.orders; lakemark run")


def test_a_topic_that_was_made_again():
    finding = place(at({0: 100, 1: 100}, known={ORDERS: "id0"}))
    assert finding.verdict is ERROR
    assert finding.mend == "lakemark recover --resnapshot public.orders; lakemark run"


def test_a_topic_that_is_gone_and_one_that_is_only_hidden():
    gone = at({0: 100, 1: 100}, held=Held({}, {}, {}))
    assert "does not exist any more" in place(gone).reason
    hidden = replace(gone, place=replace(gone.place, hidden=frozenset({ORDERS})))
    assert of(findings(hidden, CONFIG), "place in the log") == []


def test_events_that_soon_will_be_gone():
    finding = place(at({0: 20, 1: 100}))
    assert finding.verdict is WARNING
    assert finding.reason == "30 of 80 events to be read have passed half of their retention"
    assert LONGER in finding.mend


def test_all_events_past_half_of_their_retention():
    assert place(at({0: 20, 1: 100}, young=-1)).reason.startswith("80 of 80")


def test_a_paused_table_counts_with_its_own_place():
    facts = at({0: 100, 1: 100})
    facts.place.state.tables["public.orders"].progress.from_offsets = {ORDERS: {0: 20, 1: -2}}
    assert place(facts).reason.startswith("30 of 80")
    facts.place.state.tables["public.orders"].progress.from_offsets = {ORDERS: {0: 4}}
    assert place(facts).verdict is ERROR


def test_no_state_yet_or_none_that_can_be_read():
    assert one(findings(FACTS, CONFIG), "place in the log").verdict is OK
    missing = replace(FACTS, place=PlaceFacts(missing="no credentials"))
    finding = one(findings(missing, CONFIG), "place in the log")
    assert finding.verdict is WARNING
    assert "no credentials" in finding.reason


@pytest.mark.parametrize(("ahead", "count"), [(None, 0), (-3600.0, 0), (2.0, 0), (60.0, 1)])
def test_records_from_the_future(ahead, count):
    found = of(findings(replace(FACTS, ahead_s=ahead), CONFIG), "clock")
    assert len(bad(found)) == count
    assert not count or "60 s ahead of ours" in found[0].reason


def test_without_the_checkpoint_paused_tables_say_where_they_stand(monkeypatch):
    paused = b'{"state": "paused", "topics": ["%s"], "from_offsets": {"%s": {"0": 5}}}'
    kept = {
        b"public.orders": paused.replace(b"%s", ORDERS.encode()),
        b"public.items": b'{"batch": 1}',
        b"_realtime.tenants": paused.replace(b"%s", b"shop._realtime.tenants"),
        b"_pipeline": b'{"state": "streaming"}',
        b"_run/shop.1": paused.replace(b"%s", b"shop.public.odd"),
        b"public.odd": b"{",
    }
    monkeypatch.setattr(stored_state, "read_compacted", lambda *_: kept)
    state = stored_state.paused_tables(CONFIG)
    assert state.tables.keys() == {"public.orders", "_realtime.tenants"}
    assert state.offsets == {ORDERS: {0: 5}, "shop._realtime.tenants": {0: 5}}
