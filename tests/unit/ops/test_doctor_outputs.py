"""Output topics: facts in, findings out."""

from dataclasses import replace

import pytest

from lakemark.kafka.output_names import TRANSACTION_MS, group_of, topic_settings
from lakemark.ops.doctor.checks_outputs import findings, needed_bytes, tables_of
from lakemark.ops.doctor.checks_topics import ChangeTopics, KafkaFacts, OutputFacts, Topic
from lakemark.sink.output.publisher import OutputPlan
from lakemark.state.tables import PipelineState, TableState
from tests.kit.connector_settings import config, parse
from tests.kit.verdicts import ERROR, OK, WARNING, bad, of, one

CONFIG = config(output={"topic_prefix": "clean"})
EVERYTHING = frozenset({"read", "write", "describe", "describe_configs", "create"})
DAY = 86_400_000
MADE = topic_settings(CONFIG.dead_letters.max_record_bytes)
ORDERS, ITEMS = "public.orders", "public.items"
CHANGES = {ORDERS: "shop.public.orders", ITEMS: "shop.public.items"}
CONNECT = {"url": "http://c:8083", "connector": "shop"}
CLEAN = "clean.public.orders"
FACTS = KafkaFacts(
    cluster_id="c1",
    brokers=3,
    version="",
    operations=EVERYTHING,
    group=None,
    topics={
        "shop.public.orders": Topic(EVERYTHING, 3, {}),
        "shop.public.items": Topic(EVERYTHING, 1, {}),
        CLEAN: Topic(EVERYTHING, 3, MADE),
        "clean.public.items": Topic(EVERYTHING, 1, MADE),
    },
    captured=(ChangeTopics(CHANGES, streams=True),),
    outputs=OutputFacts(
        tables=CHANGES,
        groups={group_of("shop", table): frozenset({"read", "describe"}) for table in CHANGES},
        transaction_ms=900_000,
    ),
)


def with_topic(**changes):
    return replace(FACTS, topics={**FACTS.topics, CLEAN: replace(FACTS.topics[CLEAN], **changes)})


def without(**changes):
    kept = {name: topic for name, topic in FACTS.topics.items() if name != CLEAN}
    return replace(FACTS, topics=kept, **changes)


def with_outputs(facts=FACTS, **changes):
    return replace(facts, outputs=replace(facts.outputs, **changes))


def test_all_in_order():
    found = findings(FACTS, CONFIG)
    assert bad(found) == []
    assert {f.subject for f in found} == {CLEAN, "clean.public.items"}
    assert "newest record of each key" in one(found, "output topic", CLEAN).reason


def test_without_output_topics_nothing_is_said():
    assert findings(FACTS, config()) == []


def test_names_are_those_that_tasks_write_to():
    plan = OutputPlan("shop", "clean", "shop.control", "q", 0)
    target = plan.target("public.odd table")
    assert (target.topic, target.group) == (
        "clean.public.odd_table", group_of("shop", "public.odd table"),
    )  # fmt: skip


def test_a_group_is_printable_and_of_one_table_only():
    """librdkafka takes no other names for groups whose offsets are part of a transaction."""
    odd = {
        "public.orders",
        "public.Bestell Übersicht",
        "public.Bestell %C3%9Cbersicht",
        "public.\t",
    }
    names = {group_of("shop", table) for table in odd}
    assert len(names) == len(odd)
    assert all(name.isascii() and name.isprintable() for name in names)
    assert {"shop.output.public.orders", "shop.output.public.Bestell %C3%9Cbersicht"} <= names


def test_the_tables_that_have_output_topics():
    connector = parse(source={"connect": CONNECT, "tables": ["public.*"]})
    signal = {"public.debezium_signal": "shop.public.debezium_signal"}
    state = PipelineState(
        batch=1, tables={ITEMS: TableState(topics=["renamed"]), "audit.x": TableState(topics=["y"])}
    )
    named = tables_of(CONFIG, connector, CHANGES | signal, None)
    assert named == CHANGES
    assert tables_of(CONFIG, connector, CHANGES, state) == CHANGES | {ITEMS: "renamed"}
    routed = config(output={"topic_prefix": "clean"}, source={"connect": CONNECT, "topics": "x.*"})
    assert tables_of(routed, connector, {"public.x1": "x1"}, state) == {ITEMS: "renamed"}
    assert tables_of(config(), connector, CHANGES, state) == {}
    assert tables_of(CONFIG, None, CHANGES, state) == {}


# --- a topic that is not there ----------------------------------------------------------------


def test_a_topic_that_is_not_there_yet():
    finding = one(findings(without(), CONFIG), "output topic", CLEAN)
    assert finding.verdict is OK
    assert "with the partitions of the change topic" in finding.reason


def test_a_topic_that_lakemark_may_not_make():
    refused = without(operations=frozenset({"describe"}))
    (finding,) = bad(findings(refused, CONFIG))
    assert (finding.subject, finding.verdict) == (CLEAN, WARNING)
    assert finding.mend == (
        f"kafka-topics.sh --bootstrap-server b:1 --create --topic {CLEAN} --partitions 3"
        f" --config cleanup.policy=compact --config max.message.bytes={11 << 20}"
    )
    unknown = replace(refused, topics={})
    (finding, _) = bad(findings(unknown, CONFIG))
    assert "--partitions" not in finding.mend
    assert bad(findings(without(operations=None), CONFIG)) == []


def test_a_topic_that_would_be_made_too_small():
    small = config(output={"topic_prefix": "clean"}, stream={"max_event_bytes": "20 MiB"})
    finding = one(findings(without(), small), "output topic", CLEAN)
    assert finding.verdict is WARNING
    assert "dead_letters.max_record_bytes" in finding.reason
    assert finding.mend.endswith(f"--config max.message.bytes={needed_bytes(small)}")
    assert needed_bytes(small) > 20 << 20


def test_a_prefix_that_hides_the_change_topics_from_the_pipeline():
    found = findings(FACTS, config(output={"topic_prefix": "shop.public"}))
    (finding,) = found
    assert (finding.subject, finding.verdict) == ("output.topic_prefix", ERROR)
    assert "2 change topics begin with" in finding.reason
    assert bad(findings(FACTS, config(output={"topic_prefix": "shop.pub"}))) == []


# --- partitions -------------------------------------------------------------------------------


def test_an_empty_topic_with_too_few_partitions_gets_more():
    facts = with_outputs(with_topic(partitions=1), empty=frozenset({CLEAN}))
    (finding,) = bad(findings(facts, CONFIG))
    assert (finding.subject, finding.verdict) == (CLEAN, WARNING)
    assert "has 1 partition, its change topic 3" in finding.reason
    assert finding.mend == (
        f"kafka-topics.sh --bootstrap-server b:1 --alter --topic {CLEAN} --partitions 3"
    )


@pytest.mark.parametrize("partitions", [1, 5])
def test_a_topic_with_records_and_other_partitions_is_made_anew(partitions):
    (finding,) = bad(findings(with_topic(partitions=partitions), CONFIG))
    assert "made anew while lakemark is stopped" in finding.reason
    delete, create, run, snapshot = finding.mend.split("; ")
    assert delete == f"kafka-topics.sh --bootstrap-server b:1 --delete --topic {CLEAN}"
    assert f"--create --topic {CLEAN} --partitions 3 --config cleanup.policy=compact" in create
    assert (run, snapshot) == ("lakemark run", "lakemark snapshot start public.orders")
    (finding,) = bad(
        findings(with_topic(partitions=partitions), CONFIG.model_copy(update={"database": None}))
    )
    assert finding.mend.endswith("; lakemark run")
    entry = {"connect": CONNECT, "database": {"url": "postgresql://u@h/d"}}
    several = config(
        output={"topic_prefix": "clean"}, source={"connectors": [entry]}, database=None
    )
    (finding,) = bad(findings(with_topic(partitions=partitions), several))
    assert finding.mend.endswith("; lakemark snapshot start public.orders"), "it has a database"


def test_partitions_of_a_change_topic_that_is_not_there_or_not_known():
    assert bad(findings(with_outputs(tables={ORDERS: "shop.other"}), CONFIG)) == []
    assert bad(findings(with_topic(partitions=0), CONFIG)) == []


# --- settings ---------------------------------------------------------------------------------


def test_a_topic_that_does_not_take_the_largest_event():
    most = needed_bytes(CONFIG) - 1
    facts = with_topic(settings={**MADE, "max.message.bytes": str(most)})
    (finding,) = bad(findings(facts, CONFIG))
    assert (finding.subject, finding.verdict) == (CLEAN, WARNING)
    assert finding.mend.endswith(f"--entity-name {CLEAN} --add-config max.message.bytes={11 << 20}")
    enough = with_topic(settings={**MADE, "max.message.bytes": str(most + 1)})
    assert bad(findings(enough, CONFIG)) == []


def test_a_topic_that_keeps_every_record_for_a_while():
    kept = {**MADE, "cleanup.policy": "delete", "retention.ms": str(7 * DAY)}
    finding = one(findings(with_topic(settings=kept), CONFIG), "output topic", CLEAN)
    assert finding.verdict is OK
    assert "kept for 7d: who reads from its beginning gets what is left" in finding.reason
    for_ever = with_topic(settings={**kept, "retention.ms": "-1"})
    assert "for ever" in one(findings(for_ever, CONFIG), "output topic", CLEAN).reason
    small = with_topic(settings={**kept, "retention.ms": "-1", "retention.bytes": "9"})
    assert "what is left" in one(findings(small, CONFIG), "output topic", CLEAN).reason


def test_a_compacted_topic_that_forgets_rows():
    both = {**MADE, "cleanup.policy": "compact,delete", "retention.ms": str(7 * DAY)}
    (finding,) = bad(findings(with_topic(settings=both), CONFIG))
    assert finding.verdict is WARNING
    assert "kept for 7d: a row that does not change for longer leaves it" in finding.reason
    assert finding.mend.endswith(f"--entity-name {CLEAN} --add-config cleanup.policy=compact")


def test_settings_that_may_not_be_seen():
    (finding,) = bad(findings(with_topic(settings=None), CONFIG))
    assert (finding.check, finding.verdict) == ("output topic", WARNING)
    assert "--operation DescribeConfigs" in finding.mend


# --- rights -----------------------------------------------------------------------------------


def test_a_topic_that_may_not_be_written():
    found = findings(with_topic(operations=frozenset({"describe"})), CONFIG)
    (finding,) = bad(found)
    assert (finding.check, finding.subject, finding.verdict) == ("rights", CLEAN, ERROR)
    assert finding.mend.endswith(f"--operation Write --topic {CLEAN}")
    assert of(found, "output topic", CLEAN) == []
    hidden = replace(FACTS, topics={**FACTS.topics, CLEAN: Topic(frozenset(), 0, None)})
    (finding,) = bad(findings(hidden, CONFIG))
    assert "may not exist either" in finding.reason
    assert "--operation Describe --operation Write" in finding.mend
    assert bad(findings(with_topic(operations=None), CONFIG)) == []


def test_groups_that_may_not_be_read_are_one_finding():
    refused = {group_of("shop", table): frozenset({"describe"}) for table in CHANGES}
    (finding,) = bad(findings(with_outputs(groups=refused), CONFIG))
    assert (finding.check, finding.subject, finding.verdict) == (
        "rights", "groups shop.output.*", ERROR,
    )  # fmt: skip
    assert "2 of 2, that of public.orders" in finding.reason
    assert finding.mend == (
        "kafka-acls.sh --bootstrap-server b:1 --add --allow-principal"
        " 'User:<lakemark's principal>' --operation Read --group shop.output."
        " --resource-pattern-type prefixed"
    )
    unknown = dict.fromkeys(refused)
    assert bad(findings(with_outputs(groups=unknown), CONFIG)) == []


def test_brokers_that_end_transactions_too_early():
    (finding,) = bad(findings(with_outputs(transaction_ms=60_000), CONFIG))
    assert (finding.check, finding.verdict) == ("brokers", ERROR)
    assert finding.mend.startswith("set transaction.max.timeout.ms=300000")
    assert bad(findings(with_outputs(transaction_ms=TRANSACTION_MS), CONFIG)) == []
    assert bad(findings(with_outputs(transaction_ms=None), CONFIG)) == []
