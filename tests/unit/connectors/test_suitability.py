"""What cannot work with a connector's settings, and what should not be done."""

import subprocess
import sys

import pytest

from lakemark.connectors import connector
from lakemark.settings.layers import InvalidConfig
from stack.avro import avro_settings
from tests.kit.connector_settings import JSON, POSTGRES, config, parse
from tests.kit.toy_database import CLASS, ToyServer, registered


def errors(found) -> dict[str, str]:
    return {p.path: p.hint for p in found.problems if not p.warning}


def warnings(found) -> dict[str, str]:
    return {p.path: p.message for p in found.problems if p.warning}


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("decimal.handling.mode", "double", "rounds numeric"),
        ("decimal.handling.mode", "DOUBLE", "rounds numeric"),
        ("time.precision.mode", "connect", "milliseconds"),
        ("time.precision.mode", "isostring", "24:00"),
        ("time.precision.mode", "structured", "24:00"),
        ("time.precision.mode", "nanoseconds", "2261"),
    ],
)
def test_modes_that_lose_something_are_warned_of(setting, value, words):
    found = parse({setting: value})
    assert words in warnings(found)[f"connector: {setting}"]
    assert errors(found) == {}


def test_a_mode_that_debezium_does_not_know_is_an_error():
    (message,) = (p.message for p in parse({"time.precision.mode": "x"}).problems if not p.warning)
    assert "expected one of adaptive" in message


def test_a_good_connector_has_no_problems():
    assert parse({"plugin.name": "decoderbufs", "exactly.once.support": "required"}).problems == ()


@pytest.mark.parametrize(
    ("settings", "path", "words"),
    [
        (
            {"connector.class": "io.debezium.connector.sqlserver.SqlServerConnector"},
            "connector.class",
            "supported:",
        ),
        ({"topic.prefix": ""}, "topic.prefix", "set topic.prefix"),
        ({"topic.prefix": "${file:/x:prefix}"}, "topic.prefix", "write topic.prefix"),
        (
            {
                "transforms": "route, unwrap",
                "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
                "transforms.route.type": "x.InsertHeader",
                "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
            },
            "transforms.unwrap.add.fields",
            "remove unwrap from transforms",
        ),
        ({"after.state.only": "true"}, "after.state.only", "set after.state.only to false"),
        (
            {
                "transforms": "r",
                "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
            },
            "transforms.r",
            "source.topics",
        ),
        (
            {"transforms": "o", "transforms.o.type": "io.debezium.transforms.outbox.EventRouter"},
            "transforms.o",
            "remove o",
        ),
        (
            {
                "transforms": "k",
                "transforms.k.type": "org.apache.kafka.connect.transforms.InsertField$Key",
            },
            "transforms.k",
            "remove k",
        ),
        (
            {"value.converter": "io.confluent.connect.protobuf.ProtobufConverter"},
            "value.converter",
            JSON,
        ),
        (
            {"value.converter": "org.apache.kafka.connect.storage.StringConverter"},
            "value.converter",
            JSON,
        ),
        ({"skipped.operations": "u,t"}, "skipped.operations", "none"),
        ({"topic.naming.strategy": "com.acme.Naming"}, "topic.naming.strategy", "source.topics"),
        (
            {"topic.naming.strategy": "io.debezium.schema.DefaultTopicNamingStrategy"},
            "topic.naming.strategy",
            "source.topics",
        ),
        ({"sourceinfo.struct.maker": "com.acme.Maker"}, "sourceinfo.struct.maker", "remove"),
    ],
)
def test_errors_name_the_setting_and_the_way_out(settings, path, words):
    found = parse(settings)
    assert words in errors(found)[f"connector: {path}"]
    with pytest.raises(InvalidConfig) as caught:
        found.require()
    assert [p.path for p in caught.value.problems] == [f"connector: {path}"]


@pytest.mark.parametrize(
    "setting",
    [
        *("schema.include.list", "table.include.list", "table.exclude.list"),
        *("column.include.list", "column.exclude.list", "message.key.columns"),
        *("column.mask.with.12.chars", "column.mask.hash.SHA-256.with.salt.x"),
        *("column.truncate.to.20.chars", "signal.data.collection", "publication.name"),
    ],
)
def test_names_that_only_connect_resolves_are_errors(setting):
    found = parse({setting: "public.people.name,${file:/secrets/names:them}"})
    assert "write the names" in errors(found)[f"connector: {setting}"]


def test_another_database_than_the_connector_reads_is_an_error():
    found = parse(database={"url": "toy://u:hush@h/d"})
    (problem,) = [p for p in found.problems if not p.warning]
    assert problem.path == "database.url"
    assert "postgresql://" in problem.message
    assert "hush" not in problem.message
    assert parse(database={"url": "postgres://u@h/d"}).problems == ()


def test_what_only_one_kind_of_connector_has_is_for_its_database_to_judge():
    toy = {"connector.class": CLASS, "slot.drop.on.stop": "true", "publication.name": "${file:x}"}
    with registered(ToyServer()) as address:
        asked = {"toy.forgets": "true", "toy.box": "${file:x}", "box.exclude.list": "old"}
        found = parse({**toy, **asked, "signal.data.collection": ""}, database=address)
        assert found.has_windows
        unnamed = parse(
            {**toy, "box.include.list": "${file:x}", "schema.include.list": "${file:x}"}
        )
    assert errors(found).keys() >= {"connector: toy.forgets", "connector: toy.box"}
    assert not {"connector: slot.drop.on.stop", "connector: publication.name"} & {
        *errors(found),
        *warnings(found),
    }
    assert "connector: signal.data.collection" not in warnings(found), "its reads know their place"
    assert ("old.t" in found.tables, "new.t" in found.tables) == (False, True)
    assert "connector: box.include.list" in errors(unnamed)
    assert "connector: schema.include.list" not in errors(unnamed), "it has no such list"
    assert "connector: toy.forgets" not in errors(parse({"toy.forgets": "true"}))


def test_secrets_that_only_connect_resolves_are_fine():
    assert parse({"database.password": "${file:/secrets/db:password}"}).problems == ()


@pytest.mark.parametrize(
    ("settings", "path", "words"),
    [
        ({"skipped.operations": "t"}, "skipped.operations", "truncates"),
        ({"errors.tolerance": "all"}, "errors.tolerance", "lost"),
        (
            {"event.processing.failure.handling.mode": "skip"},
            "event.processing.failure.handling.mode",
            "lost",
        ),
        ({"slot.drop.on.stop": "true"}, "slot.drop.on.stop", "lost"),
        (
            {"transforms": "f", "transforms.f.type": "io.debezium.transforms.Filter"},
            "transforms.f",
            "drops",
        ),
        ({"transforms": "x", "transforms.x.type": "com.acme.Odd"}, "transforms.x", "com.acme.Odd"),
        ({"column.mask.hash.SHA-256": "x"}, "column.mask.hash.SHA-256", "rewrites"),
        ({"signal.data.collection": ""}, "signal.data.collection", "rejected"),
        ({"field.name.adjustment.mode": "avro"}, "field.name.adjustment.mode", "renames"),
    ],
)
def test_warnings_do_not_stop_the_start(settings, path, words):
    found = parse(settings)
    assert words in warnings(found)[f"connector: {path}"]
    found.require()


def test_names_that_avro_restores_need_no_warning():
    path = "connector: field.name.adjustment.mode"
    avro = {**POSTGRES, **avro_settings("http://registry/apis/registry/v2")}
    found = connector.parse(avro, config=config())
    (hint,) = [m.hint for m in found.problems if m.path == path]
    assert "column.propagate.source.type" in hint
    restored = {**avro, "column.propagate.source.type": ".*"}
    assert path not in warnings(connector.parse(restored, config=config()))


def test_truncates_are_skipped_by_debezium_s_default():
    settings = {k: v for k, v in POSTGRES.items() if k != "skipped.operations"}
    found = connector.parse(settings, config=config())
    assert "connector: skipped.operations" in warnings(found)


def test_a_null_that_arrives_as_a_default_is_named():
    setting = "value.converter.replace.null.with.default"
    unset = {name: value for name, value in POSTGRES.items() if name != setting}
    for settings in (unset, {**POSTGRES, setting: "true"}):
        found = connector.parse(settings, config=config())
        assert f"connector: {setting}" in warnings(found)
    assert f"connector: {setting}" not in warnings(parse())


def test_the_worker_s_converter_cannot_be_known():
    settings = {k: v for k, v in POSTGRES.items() if k != "value.converter"}
    found = connector.parse(settings, config=config())
    assert "replace.null.with.default" in warnings(found)["connector: value.converter"]
    assert found.schemas_enabled is None


def test_options_without_their_converter_count_for_nothing():
    settings = {k: v for k, v in POSTGRES.items() if k != "value.converter"}
    options = ["value.converter.replace.null.with.default", "value.converter.schemas.enable"]
    settings["value.converter.schemas.enable"] = "false"
    found = connector.parse(settings, config=config(database=None))
    assert warnings(found)[f"connector: {', '.join(options)}"].endswith("without value.converter")
    assert not errors(found)
    assert found.schemas_enabled is None
    assert not found.settings.keys() & set(options)


def test_plain_json_needs_a_database_or_a_schema_file(tmp_path):
    plain = {"value.converter.schemas.enable": "false"}
    assert errors(parse(plain, database=None))
    assert not errors(parse(plain))
    assert parse(plain).schemas_enabled is False
    assert parse().schemas_enabled is True


def test_a_transform_with_a_predicate_may_leave_tables_alone():
    unwrap = {
        "transforms": "u",
        "transforms.u.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.u.predicate": "outbox",
    }
    assert not errors(parse(unwrap))
    assert "connector: transforms.u" in warnings(parse(unwrap))


def test_a_router_is_fine_when_the_topics_are_given():
    router = {
        "transforms": "r",
        "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
    }
    assert parse(router, source__topics="orders.*").problems == ()


def test_the_strategy_that_names_topics_as_usual_may_be_named():
    assert (
        parse({"topic.naming.strategy": "io.debezium.schema.SchemaTopicNamingStrategy"}).problems
        == ()
    )


def test_a_router_must_leave_the_keys_as_they_are():
    router = {"transforms": "r", "transforms.r.type": "io.debezium.transforms.ByLogicalTableRouter"}
    unique = "transforms.r.key.enforce.uniqueness"
    for given in ({}, {unique: "true"}):
        found = parse({**router, **given}, source__topics="orders.*")
        assert errors(found) == {f"connector: {unique}": f"set {unique} to false"}
    assert parse({**router, unique: "false"}, source__topics="orders.*").problems == ()
    assert "connector: transforms.r" in errors(parse({**router, unique: "false"}))


@pytest.mark.parametrize(
    ("setting", "written", "construct"),
    [
        ("table.include.list", r"public.a,public.(\w)\1", r"public.(\w)\1: the back-reference \1"),
        ("schema.exclude.list", "(?<=a)b", "the look-behind (?<="),
        ("column.exclude.list", "public.a.(?>b|c)", "the atomic group (?>"),
        ("message.key.columns", "public.a:x;public.b++:id,y", "the possessive quantifier ++"),
        ("table.include.list", "public.(a", "a ( without its )"),
    ],
)
def test_an_expression_that_cannot_be_evaluated_is_an_error_by_name(setting, written, construct):
    found = [p for p in parse({setting: written}).problems if not p.warning]
    assert {p.path for p in found} == {f"connector: {setting}"}
    assert construct in found[0].message
    assert found[0].hint


def test_what_lists_usually_have_is_understood():
    lists = {
        "table.include.list": r"public\.(?!tmp_).*,sales[.]orders_\d{4},(?i)crm\.\p{Alpha}+",
        "column.exclude.list": r".*\.(password|secret)_?.*,public\.[a-z&&[^q]]+\.x",
        "message.key.columns": r"public\.orders:no,tenant;(.*).items:id",
    }
    found = parse(lists)
    assert found.problems == parse().problems
    assert "public.orders" in found.tables
    assert "public.tmp_orders" not in found.tables
    assert "CRM.people" in found.tables


def test_commands_that_read_no_records_do_not_wait_for_what_reads_them():
    """The compiler alone takes a quarter of a second."""
    script = "import sys, lakemark.connectors.suitability; print('numba' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
