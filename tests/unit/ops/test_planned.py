"""What follows from what `lakemark plan` found out, and how it looks."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator
from rich.console import Console

from lakemark.cli import plan_view
from lakemark.connectors.connector import parse
from lakemark.connectors.postgres.postgres_chunks import MAX_CHUNK_BYTES
from lakemark.converters.converter import SchemaSubject
from lakemark.kafka.own_topics import topic_plan
from lakemark.ops.effects import Takes
from lakemark.ops.lag import Ends
from lakemark.ops.plan import plan as plans
from lakemark.ops.plan import planned
from lakemark.ops.plan.facts_lake import targets
from lakemark.ops.plan.planned import Plan, PlannedTable, Problem, Standing, Target
from lakemark.ops.settings_record import Change
from lakemark.settings.layers import Mistake, SetTo
from lakemark.sink.delta import schema_evolution
from lakemark.sink.names import CDC, folder_of
from lakemark.sink.row_images import cdc_type
from lakemark.state.data_loss import Held
from lakemark.state.tables import PipelineState, TableState
from stack.processes import free_port
from tests.kit.command_line import SMALL, invoke
from tests.kit.connector_settings import config
from tests.kit.shop import schema_of
from tests.kit.table_states import table_state

SCHEMA = Path(__file__).parents[3] / "schemas" / "plan.json"
CONNECTOR = parse(
    {
        "topic.prefix": "t", "plugin.name": "pgoutput", "table.include.list": "public.*",
        "signal.data.collection": "public.signals",
    },
    config=config(),
)  # fmt: skip
KNOWN = Ends({"t.a": {0: 5, 1: 0}, "t.b": {0: 0}}, {"t.a": {0: 20, 1: 7}, "t.b": {0: 3}})


def places(state: PipelineState | None, starting="earliest") -> list[tuple]:
    found = planned.starts(KNOWN, state, starting=starting)
    return [(s.topic, s.partition, s.offset, s.basis, s.waiting) for s in found]


def test_before_the_first_run_the_setting_says_where_it_starts():
    assert places(None) == [
        ("t.a", 0, 5, "earliest", 15), ("t.a", 1, 0, "earliest", 7), ("t.b", 0, 0, "earliest", 3)
    ]  # fmt: skip
    assert {(s[2], s[3], s[4]) for s in places(None, "latest")} == {
        (20, "latest", 0), (7, "latest", 0), (3, "latest", 0)
    }  # fmt: skip


def test_a_checkpoint_says_where_it_goes_on_and_new_partitions_begin_at_their_first_offset():
    state = PipelineState(batch=3, offsets={"t.a": {0: 18}})
    assert places(state, "latest") == [
        ("t.a", 0, 18, "checkpoint", 2), ("t.a", 1, 0, "earliest", 7), ("t.b", 0, 0, "earliest", 3)
    ]  # fmt: skip


def test_records_before_the_first_offset_do_not_wait():
    state = PipelineState(batch=3, offsets={"t.a": {0: 2}})
    assert places(state)[0] == ("t.a", 0, 2, "checkpoint", 15)


def test_a_paused_table_waits_from_where_it_stopped():
    paused = table_state(state="paused", topics=["t.a"], from_offsets={"t.a": {0: 10, 1: 7}})
    state = PipelineState(batch=3, offsets={"t.a": {0: 20, 1: 7}}, tables={"a": paused})
    starts = planned.starts(KNOWN, state, starting="earliest")
    arguments = {"state": state, "kafka": KNOWN, "places": starts}
    assert planned.waiting("a", "t.a", **arguments) == 10
    assert planned.waiting("b", "t.b", **arguments) == 3
    assert planned.waiting("c", "t.c", **arguments) is None


def test_what_kafka_lost_stops_the_run():
    state = PipelineState(
        batch=3, offsets={"t.a": {0: 2}}, tables={"public.a": TableState(topics=["t.a"])}
    )
    held = Held({"t.a": "id"}, {"t.a": {0: 5}}, {"t.a": {0: 20}})
    (problem,) = planned.lost(state, {"t.a": "id"}, held)
    assert (problem.code, problem.stops) == ("source-data-expired", True)
    assert "recover --resnapshot public.a" in problem.hint
    assert list(planned.lost(None, {}, held)) == []
    (problem,) = planned.lost(state, {"t.a": "id"}, held, ("public.a",))
    assert not problem.stops
    assert "public.a is named again" in problem.hint


def test_lost_commands_stop_the_run():
    state = PipelineState(batch=3, control=4)

    def problems(now, first):
        held = Held({"t.control": "id"}, {"t.control": {0: first}}, {"t.control": {0: 9}})
        return list(planned.lost_commands(now, {"t.control": "id"}, "t.control", held))

    (problem,) = problems(state, 5)
    assert (problem.code, problem.stops) == ("control-lost", True)
    assert "recover --control" in problem.hint
    assert problems(state, 4) == problems(None, 5) == []


def test_own_topics_are_created_kept_or_refused():
    shop = config()
    counts = {shop.topics.control: 2, shop.topics.signals: 1}
    settings = {shop.topics.signals: {"cleanup.policy": "delete", "max.message.bytes": "9"}}
    found = {topic.name: topic for topic in planned.own_topics(shop, counts, settings)}
    assert found.keys() == topic_plan(shop).keys()
    assert found[shop.topics.control].action == "stop"
    assert "exactly one" in found[shop.topics.control].reason
    assert found[shop.topics.signals].action == "keep"
    assert found[shop.topics.chunks].action == "create"
    assert found[shop.topics.chunks].partitions == shop.stream.shards


def captured(name: str, topic: str) -> PlannedTable:
    return PlannedTable(
        name, topic, topic_exists=topic in KNOWN.ends, key=("id",), schema_from="database",
        target=Target(f"/lake/{name}", "keep"),
    )  # fmt: skip


OUTPUT = config(output={"topic_prefix": "clean"}, dead_letters={"max_record_bytes": "9 MiB"})
WRITING = frozenset({"describe", "write"})


def test_output_topics_are_made_with_the_partitions_of_the_change_topic():
    tables = [captured("public.a", "t.a"), captured("public.new", "t.new")]
    made, unknown = planned.output_topics(OUTPUT, tables, KNOWN, {})
    assert (made.name, made.action, made.partitions) == ("clean.public.a", "create", 2)
    assert made.table == "public.a"
    assert made.settings == {"cleanup.policy": "compact", "max.message.bytes": str(9 << 20)}
    assert (unknown.action, unknown.partitions) == ("create", None)
    assert planned.output_topics(config(), tables, KNOWN, {}) == ()


def test_output_topics_that_are_there_are_kept_with_their_own_partitions():
    tables = [captured("public.a", "t.a"), captured("public.b", "t.b")]
    there = {"clean.public.a": (WRITING, 7), "clean.public.b": (None, 3)}
    found = planned.output_topics(OUTPUT, tables, KNOWN, there)
    assert [(t.action, t.partitions) for t in found] == [("keep", 7), ("keep", 3)]


@pytest.mark.parametrize(
    ("may", "words"), [(frozenset(), "describe and write"), (frozenset({"describe"}), "write")]
)
def test_an_output_topic_that_may_not_be_written_stops_its_table(may, words):
    there = {"clean.public.a": (may, 0)}
    (found,) = planned.output_topics(OUTPUT, [captured("public.a", "t.a")], KNOWN, there)
    assert (found.action, found.partitions) == ("stop", None)
    assert f"lakemark may not {words} clean.public.a: public.a stops" == found.reason
    assert "--operation Write --topic clean.public.a" in found.hint
    assert example(topics=(found,)).stops()


def test_chunks_of_a_snapshot():
    shop = config(snapshot={"chunk_rows": 100})
    sizes = [("a", 0, 0), ("b", 250, 1000), ("wide", 10, 2 * MAX_CHUNK_BYTES), ("c", 9, 1)]
    found = planned.snapshot(shop, sizes, {"c": "it has no key"}, MAX_CHUNK_BYTES)
    assert [(s.table, s.chunks) for s in found.tables] == [
        ("a", 1),
        ("b", 3),
        ("wide", 5),
        ("c", 0),
    ]
    assert found.tables[-1].refused == "it has no key"


# --- the lake ---------------------------------------------------------------------------------


def create(shop, table: str, **columns: str) -> None:
    schema = schema_of(table, **columns)
    rows = schema.arrow().append(pa.field(CDC, cdc_type(deletes="hard")))
    schema_evolution.ensure(folder_of(shop.lake, table), rows, key=schema.key, table=table)


def test_what_becomes_of_delta_tables_is_what_the_sink_would_do(tmp_path):
    shop = config(lake={"path": str(tmp_path / "lake")}, checkpoint=str(tmp_path / "c"))
    for table in ("public.same", "public.grown", "public.broken", "public.blind"):
        create(shop, table, id="int4", v="int4")
    wanted = {
        "public.new": schema_of("public.new", id="int4"),
        "public.same": schema_of("public.same", id="int4", v="int4"),
        "public.grown": schema_of("public.grown", id="int8", v="int4", more="text"),
        "public.broken": schema_of("public.broken", id="int4", v="text"),
        "public.blind": None,
    }
    before = sorted((tmp_path / "lake").rglob("*"))
    found = targets(shop, CONNECTOR, wanted, None)
    assert {t: f.action for t, f in found.items()} == {
        "public.new": "create", "public.same": "keep", "public.grown": "alter",
        "public.broken": "rebuild", "public.blind": "follow",
    }  # fmt: skip
    assert found["public.grown"].added == ("more string",)
    assert found["public.grown"].widened == ("id int32 to int64",)
    assert found["public.broken"].code == "schema-incompatible"
    assert "'v' from int32 to string" in found["public.broken"].reason
    assert sorted((tmp_path / "lake").rglob("*")) == before


def test_of_a_table_that_is_rebuilt_the_new_one_counts(tmp_path):
    shop = config(lake={"path": str(tmp_path / "lake")}, checkpoint=str(tmp_path / "c"))
    create(shop, "public.a", id="int4", v="int4")
    wanted = {"public.a": schema_of("public.a", id="int4", v="text")}
    state = PipelineState(tables={"public.a": table_state(rebuild="rebuild-a-1")})
    assert targets(shop, CONNECTOR, wanted, PipelineState())["public.a"].action == "rebuild"
    assert targets(shop, CONNECTOR, wanted, state)["public.a"].action == "create"


@pytest.mark.parametrize(
    ("behavior", "more", "actions"),
    [
        ("lenient", {}, ("alter", "rebuild", "rebuild")),
        ("lenient", {"database": None}, ("alter", "stop", "stop")),
        ("lenient", {"snapshot": {"incomplete": "manual"}}, ("alter", "stop", "stop")),
        ("evolve", {}, ("alter", "rebuild", "rebuild")),
        ("try_evolve", {}, ("alter", "rebuild", "rebuild")),
        ("exception", {}, ("stop", "stop", "stop")),
        ("ignore", {}, ("keep", "stop", "stop")),
    ],
)
def test_what_the_policy_makes_of_it(tmp_path, behavior, more, actions):
    lake = {"path": str(tmp_path / "lake"), "schema_changes": {"behavior": behavior}}
    shop = config(lake=lake, checkpoint=str(tmp_path / "c"), **more)
    tables = ("public.grown", "public.broken", "public.rekeyed")
    for table in tables:
        create(shop, table, id="int4", v="int4")
    wanted = {
        "public.grown": schema_of("public.grown", id="int8", more="text"),
        "public.broken": schema_of("public.broken", id="int4", v="text"),
        "public.rekeyed": schema_of("public.rekeyed", id="int4", v="int4"),
    }
    state = PipelineState(tables={"public.rekeyed": table_state(key=["v"])})
    found = targets(shop, CONNECTOR, wanted, state)
    assert tuple(found[table].action for table in tables) == actions
    assert found["public.rekeyed"].code == "key-changed"
    grown = found["public.grown"]
    if behavior == "exception":
        assert grown.code == "schema-change-refused"
        assert "more" in grown.reason
        return
    assert grown.dropped == ("v",)
    left = behavior == "ignore"
    kept = ("more string", "id int64 (it stays int32)")
    assert grown.left_out == (kept if left else ())
    assert grown.added == (() if left else ("more string",))
    text = io.StringIO()
    console = Console(file=text, width=200)
    planned_tables = tuple(
        PlannedTable(t, t, topic_exists=True, key=("id",), schema_from="database", target=found[t])
        for t in tables
    )
    plan_view.show(console, example(tables=planned_tables), as_json=False, hide=str)
    said = text.getvalue()
    assert ("left out, as its policy has it: more string" in said) == left
    assert ("public.broken is made anew from a snapshot" in said) == (actions[1] == "rebuild")
    assert "columns that the source has no more: v; what is done" in said


def test_soft_deletes_add_a_member_and_a_clash_of_paths_stops(tmp_path):
    own = {"public.b": {"path": str(tmp_path / "lake/public/a")}}
    lake = {"path": str(tmp_path / "lake"), "deletes": "soft", "tables": own}
    shop = config(lake=lake, checkpoint=str(tmp_path / "c"))
    create(shop, "public.a", id="int4")
    schemas = {t: schema_of(t, id="int4") for t in ("public.a", "public.b")}
    found = targets(shop, CONNECTOR, schemas, None)
    assert found["public.a"].added == ("_cdc.deleted bool",)
    assert found["public.b"].code == "path-clash"


def test_a_table_without_a_key_stops(tmp_path):
    shop = config(lake={"path": str(tmp_path / "lake")}, checkpoint=str(tmp_path / "c"))
    schema = schema_of("public.a", id="int4")
    keyless = type(schema)("public.a", schema.columns, ())
    for broken, code in ((keyless, "no-key"), (schema_of("public.a", id="point"), "key-type")):
        found = targets(shop, CONNECTOR, {"public.a": broken}, None)["public.a"]
        assert (found.action, found.code) == ("stop", code)
        assert "message.key.columns" in found.hint


# --- what is printed --------------------------------------------------------------------------


def example(**more) -> Plan:
    tables = (
        PlannedTable("public.a", "t.a", topic_exists=True, key=("id",), schema_from="database",
                     target=Target("/lake/a", "alter", added=("more string",)), waiting=12),
        PlannedTable("public.b", "t.b", topic_exists=False, key=None, schema_from="events",
                     target=Target("/lake/b", "create")),
    )  # fmt: skip
    change = Change("stream.shards", "4", "8", Takes.NEW_CHECKPOINT, "the operator's state")
    fields = {
        "name": "shop", "version": "1", "checkpoint": Standing("/c", 7), "tables": tables,
        "topics": planned.own_topics(config(), {}, {}),
        "starts": planned.starts(KNOWN, None, starting="earliest"),
        "snapshot": planned.snapshot(config(), [("public.a", 250_000, 9)], {}, MAX_CHUNK_BYTES),
        "compared": "running", "changes": (change,),
        "problems": (Problem("x", "the password is hush-4hush", "mend [it]"),),
    }  # fmt: skip
    return Plan(**{**fields, **more})


@pytest.fixture
def shown(folder, monkeypatch):
    def run(plan: Plan, *arguments: str):
        monkeypatch.setattr(plans, "plan", lambda _: plan)
        return invoke("plan", *arguments)

    return run


def test_the_plan_names_everything_that_would_happen(shown):
    result = shown(example())
    assert result.exit_code == 0
    text = result.stdout
    assert "shop: goes on after batch 7 of the checkpoint /c" in text
    assert "public.a: columns are added: more string" in text
    assert "t.b (not yet)" in text
    assert "Records that wait in change topics: 25" in text
    assert "about 250,000 rows in 3 chunks" in text
    line = next(line for line in text.splitlines() if line.startswith("stream.shards "))
    assert line.split() == ["stream.shards", "4", "8", "new", "checkpoint"]
    assert "stream.shards: the operator's state" in text
    assert "→ mend [it]" in text


def test_output_topics_are_shown_beside_our_own(shown):
    tables = [captured("public.a", "t.a"), captured("public.new", "t.new")]
    refused = {"clean.public.new": (frozenset(), 0)}
    found = planned.output_topics(OUTPUT, tables, KNOWN, refused)
    own = planned.own_topics(config(), {}, {})
    text = shown(example(topics=own + found)).stdout
    line = next(line for line in text.splitlines() if line.startswith("Output topics"))
    assert line == "Output topics: 0 kept; created, with partitions: clean.public.a (2)"
    assert "✗ lakemark may not describe and write clean.public.new: public.new stops" in text
    assert "shop.signals (1)" in text
    assert "Output topics" not in shown(example()).stdout
    unknown = planned.output_topics(OUTPUT, tables, KNOWN, {})
    assert "clean.public.new (?)" in shown(example(topics=unknown)).stdout
    document = json.loads(shown(example(topics=unknown), "-o", "json").stdout)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    assert document["topics"][1]["partitions"] is None


def test_the_registries_and_the_subjects_of_output_topics(shown):
    reads, writes = "http://a:8081", "http://b:8081"
    known = [
        SchemaSubject("c.public.a", side, f"c.public.a-{side}", "TopicNameStrategy", exists=there)
        for side, there in (("key", True), ("value", False))
    ]
    record = SchemaSubject("c.public.a", "value", "", "RecordNameStrategy", exists=False)
    subjects = tuple(planned.subjects(writes, [*known, record]))
    found = example(registries=(reads,), subjects=subjects)
    text = shown(found).stdout.splitlines()
    assert f"Schemas of the records that are read are in the registry {reads}" in text
    begin = f"Subjects of output topics in the registry {writes}, by "
    assert f"{begin}TopicNameStrategy: 1 kept; created: c.public.a-value" in text
    assert f"{begin}RecordNameStrategy: as each record is called" in text
    document = json.loads(shown(found, "-o", "json").stdout)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    assert [s["action"] for s in document["subjects"]] == ["keep", "create", None]
    assert document["subjects"][2]["name"] is None
    assert "registry" not in shown(example()).stdout


def test_a_setting_to_change_is_shown_as_a_text(shown):
    """Also as JSON: a hint that says which setting is no plain text by itself."""
    mistake = Mistake("connector: tombstones", "is odd", SetTo("tombstones", "true"), warning=True)
    found = example(problems=(planned.of_connector(mistake),))
    assert "→ set tombstones to true" in shown(found).stdout
    (problem,) = json.loads(shown(found, "-o", "json").stdout)["problems"]
    assert problem["hint"] == "set tombstones to true"


def test_what_stops_is_exit_code_1(shown):
    broken = Target("/lake/a", "stop", code="no-key", reason="no key", hint="ADD PRIMARY KEY")
    table = PlannedTable("public.a", "t.a", topic_exists=True, key=(), schema_from="database",
                         target=broken)  # fmt: skip
    result = shown(example(tables=(table,)))
    assert result.exit_code == 1
    assert "✗ public.a: no key (no-key)\n    → ADD PRIMARY KEY" in result.stdout
    assert shown(example(problems=(Problem("x", "y", stops=True),))).exit_code == 1


def test_the_plan_as_json_fits_its_schema(shown):
    found = json.loads(shown(example(), "-o", "json").stdout)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(found)
    assert found["changes"][0]["takes"] == "new checkpoint"
    assert found["tables"][1]["key"] is None
    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(planned.schema()))


def test_brokers_that_are_away_are_the_usual_error(folder):
    text = SMALL.replace("localhost:9092", f"127.0.0.1:{free_port()}")
    text = text.replace('"}\nsource', '", timeout: 1s}\nsource')
    (folder / "lakemark.yaml").write_text(text)
    result = invoke("plan")
    assert result.exit_code == 1
    assert "kafka-unavailable" in result.output
    assert "start the brokers" in result.output
