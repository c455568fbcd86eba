"""The connector's configuration: topics to read, tables to keep, and what cannot work."""

import json
import pickle
import re

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark import connector
from lakemark.config import Config, ConnectConfig
from lakemark.connect_rest import ConnectRest
from lakemark.errors import ConfigError, DependencyError
from lakemark.settings.layers import InvalidConfig
from lakemark.settings.names import compile_java, quoted, split_list, topic_regex, topic_safe

JSON = "org.apache.kafka.connect.json.JsonConverter"
POSTGRES = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "topic.prefix": "shop",
    "signal.data.collection": "public.debezium_signal",
    "skipped.operations": "none",
    "key.converter": JSON,
    "value.converter": JSON,
}


def config(**changes) -> Config:
    settings = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "b:1"},
        "source": {"connect": {"url": "http://c:8083", "connector": "shop"}},
        "database": {"url": "postgresql://u@h/d"},
        "lake": {"path": "/lake"},
        "checkpoint": "/checkpoint",
    }
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if key:
            settings[section] = {**settings[section], key: value}
        else:
            settings[section] = value
    return Config.model_validate(settings)


def parse(settings=(), **changes):
    return connector.parse({**POSTGRES, **dict(settings)}, config=config(**changes))


def reads(found, topic: str) -> bool:
    return re.fullmatch(found.topic_pattern, topic) is not None


# --- topics -----------------------------------------------------------------------------------


def test_all_tables_also_future_ones_but_nothing_of_our_own():
    found = parse()
    for topic in ("shop.public.orders", "shop.other.new_table", "shop.public.a.b"):
        assert reads(found, topic)
    assert reads(found, "shop.public.debezium_signal")
    for topic in (
        *config().topics.all(),
        "shop",
        "shop.transaction",
        "shop.message",
        "__debezium-heartbeat.shop",
        "shop-signal",
        "shopping.public.orders",
        "xshop.public.orders",
    ):
        assert not reads(found, topic), topic


def test_our_own_topics_are_left_out_even_where_they_look_like_tables():
    found = parse(name="shop.public", output={"topic_prefix": "shop.clean"})
    for topic in config(name="shop.public").topics.all():
        assert not reads(found, topic), topic
    assert not reads(found, "shop.clean.public.orders")
    assert reads(found, "shop.public.orders")
    assert reads(found, "shop.public.signals_of_life")
    assert reads(found, "shop.public.control.x")


def test_topics_of_the_connector_that_carry_no_rows_are_left_out():
    found = parse(
        {
            "notification.sink.topic.name": "shop.debezium.notification",
            "signal.kafka.topic": "shop.debezium.signal",
            "topic.heartbeat.name": "shop.debezium.heartbeat",
        }
    )
    for topic in ("notification", "signal", "heartbeat"):
        assert not reads(found, f"shop.debezium.{topic}")
    assert reads(found, "shop.debezium.notifications")
    assert found.other_topics["heartbeat"] == "shop.debezium.heartbeat"
    assert parse().other_topics["heartbeat"] == "__debezium-heartbeat.shop"


def test_chosen_tables_restrict_the_topics_and_keep_the_signal_table():
    found = parse(source__tables=["public.orders", r"sales\.(a|b)\d*"])
    assert reads(found, "shop.public.orders")
    assert reads(found, "shop.sales.b12")
    assert reads(found, "shop.public.debezium_signal")
    assert not reads(found, "shop.public.customers")
    assert not reads(found, "shop.sales.c")


def test_a_chosen_table_with_odd_characters_is_read_by_its_sanitised_name():
    found = parse(source__tables=[r"public\.Äpfel \$1"])
    assert found.topic_of("public.Äpfel $1") == "shop.public._pfel__1"
    assert reads(found, "shop.public._pfel__1")
    assert found.captures("public.Äpfel $1")
    assert not found.captures("public.Bpfel $1")


def test_expressions_that_cannot_be_said_in_topic_names_read_more_not_less():
    found = parse(source__tables=["public.[^_]+"])
    assert reads(found, "shop.public.a_b")  # the topic of public.a$b, which is wanted
    assert found.captures("public.a$b")
    assert not found.captures("public.a_b")
    assert any(p.path == "source.tables" and p.warning for p in found.problems)


def test_another_delimiter():
    found = parse({"topic.delimiter": "_"})
    assert found.topic_of("public.orders") == "shop_public_orders"
    assert reads(found, "shop_public_orders")
    assert not reads(found, "shop_transaction")


def test_a_given_topic_pattern_is_taken_but_not_for_our_own_topics():
    found = parse(source__topics=r"shop\..*|routed-.*")
    assert reads(found, "routed-orders")
    assert not reads(found, "shop.control")
    assert not reads(found, "shop.dead-letters")


@given(
    st.lists(st.text("abzAZ019_$ é.-😀", min_size=1, max_size=6), min_size=1, max_size=3),
    st.text("abzAZ019_$ é-😀", min_size=1, max_size=6),
)
def test_every_chosen_table_s_topic_is_read(names, schema):
    tables = [f"{schema}.{name}" for name in names]
    escaped = [re.sub(r"[^A-Za-z0-9_]", lambda m: "\\" + m[0], table) for table in tables]
    found = parse(source__tables=escaped)
    for table in tables:
        assert found.captures(table)
        assert reads(found, found.topic_of(table))


# --- tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "inside", "outside"),
    [
        (
            {"table.include.list": r"public\.a.*,s.b"},
            ["public.abc", "s.b", "PUBLIC.A"],
            ["public.b", "s.bb"],
        ),
        ({"table.exclude.list": "public.a"}, ["public.ab", "s.a"], ["public.a"]),
        ({"schema.include.list": "public"}, ["public.a"], ["public2.a"]),
        ({"schema.exclude.list": "pub.*"}, ["s.a"], ["public.a"]),
        ({"schema.include.list": "s", "table.exclude.list": "s.x"}, ["s.y"], ["s.x", "t.y"]),
        ({"table.include.list": r"public.a{1\,2}"}, ["public.aa"], ["public.aaa", "2}"]),
        ({"table.include.list": r"\Qpublic.a$\E"}, ["public.a$"], ["public.a"]),
        ({"table.include.list": "a.b", "table.exclude.list": "a.b"}, ["a.b"], ["a.c"]),
    ],
)
def test_the_connector_s_lists(settings, inside, outside):
    tables = parse(settings).tables
    assert [t for t in inside if t not in tables] == []
    assert [t for t in outside if t in tables] == []


def test_ours_choose_among_the_connector_s_in_full_and_by_case():
    found = parse({"table.include.list": "public.*"}, source__tables=["public.Orders", "s.a"])
    assert found.captures("public.Orders")
    assert not found.captures("public.orders")
    assert not found.captures("public.Orders2")
    assert not found.captures("s.a")
    assert found.captures("public.debezium_signal")


def test_a_list_that_only_java_understands_excludes_nothing_by_mistake():
    assert parse({"table.include.list": "public.[a-z&&[^q]]+"}).captures("public.abc")
    assert parse({"table.include.list": "public.b,public.[a-z&&[^q]]+"}).captures("public.abc")
    assert parse({"table.exclude.list": "public.[a-z&&[^q]]+"}).captures("public.abc")


@pytest.mark.parametrize(
    ("java", "yes", "no"),
    [
        (r"\p{Lower}+", "abc", "aBc"),
        (r"[\p{Alpha}_]+", "aB_", "a1"),
        (r"(?<x>a)\k<x>", "aa", "a"),
        (r"\d", "5", "\u0665"),
        (r"(?i)public", "PUBLIC", "publi"),
        (r"a\z", "a", "b"),
    ],
)
def test_java_expressions(java, yes, no):
    assert compile_java(java).fullmatch(yes)
    assert not compile_java(java).fullmatch(no)


@pytest.mark.parametrize("java", ["(", "[a&&b]", r"\p{IsGreek}", r"\h", "*"])
def test_java_expressions_that_cannot_be_evaluated(java):
    with pytest.raises(ValueError, match=r".+"):
        compile_java(java)


@pytest.mark.parametrize(
    "java", ["(?i)a", "(?!a)b", "[^a]", "a$", "^a", r"\Qa\E", r"\p{Alpha}", "[a&&b]", r"a\s"]
)
def test_expressions_that_are_not_rewritten_for_topics(java):
    assert topic_regex(java) is None


def test_the_choice_of_tables_travels_to_other_processes():
    chosen = pickle.loads(pickle.dumps(parse(source__tables=["public.a"]).tables))
    assert "public.a" in chosen
    assert "public.b" not in chosen


@given(st.text(max_size=12))
def test_quoted_text_matches_only_itself(text):
    assert re.fullmatch(quoted(text), text, re.DOTALL)
    assert not re.fullmatch(quoted(text), text + "x", re.DOTALL)


@given(
    st.from_regex(r"[a-c_.$é]{1,3}(\.\*|\(a\|b\$\)|[ab]\+|\[a-c\]){0,2}", fullmatch=True), st.data()
)
def test_topic_expressions_match_at_least_the_sanitised_names(java, data):
    rewritten = topic_regex(java)
    try:
        wanted = compile_java(java)
    except ValueError:
        return
    name = data.draw(st.from_regex(wanted, fullmatch=True, alphabet="abc_.$é "))
    if rewritten is not None:
        assert re.fullmatch(rewritten, topic_safe(name)), (java, rewritten, name)


def test_lists_split_at_commas_that_are_not_escaped():
    assert split_list(r" a.b , c\,d,, e") == ["a.b", "c,d", "e"]
    assert split_list("") == []


# --- what cannot work -------------------------------------------------------------------------


def errors(found) -> dict[str, str]:
    return {p.path: p.hint for p in found.problems if not p.warning}


def warnings(found) -> dict[str, str]:
    return {p.path: p.message for p in found.problems if p.warning}


def test_a_good_connector_has_no_problems():
    assert parse({"plugin.name": "decoderbufs", "exactly.once.support": "required"}).problems == ()


@pytest.mark.parametrize(
    ("settings", "path", "words"),
    [
        (
            {"connector.class": "io.debezium.connector.mysql.MySqlConnector"},
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
            },
            "transforms.unwrap",
            "remove unwrap from transforms",
        ),
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
        ({"value.converter": "io.confluent.connect.avro.AvroConverter"}, "value.converter", JSON),
        (
            {"key.converter": "org.apache.kafka.connect.storage.StringConverter"},
            "key.converter",
            JSON,
        ),
        ({"skipped.operations": "u,t"}, "skipped.operations", "none"),
        ({"topic.naming.strategy": "com.acme.Naming"}, "topic.naming.strategy", "source.topics"),
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


def test_truncates_are_skipped_by_debezium_s_default():
    settings = {k: v for k, v in POSTGRES.items() if k != "skipped.operations"}
    found = connector.parse(settings, config=config())
    assert "connector: skipped.operations" in warnings(found)


def test_the_worker_s_converter_cannot_be_known():
    settings = {k: v for k, v in POSTGRES.items() if k != "value.converter"}
    found = connector.parse(settings, config=config())
    assert "connector: value.converter" in warnings(found)
    assert found.schemas_enabled is None


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


# --- file and REST ----------------------------------------------------------------------------


@pytest.mark.parametrize("wrapped", [True, False])
def test_the_connector_s_file_in_both_forms(tmp_path, wrapped):
    settings = {**POSTGRES, "tasks.max": 1, "tombstones.on.delete": True, "gone": None}
    settings["database.password"] = "${file:/secrets:pw}"
    file = tmp_path / "shop.json"
    file.write_text(json.dumps({"name": "named", "config": settings} if wrapped else settings))
    found = connector.read(config(source={"connector_file": str(file)}))
    assert found.name == ("named" if wrapped else "shop")
    assert found.settings["tasks.max"] == "1"
    assert found.settings["tombstones.on.delete"] == "true"
    assert found.settings["database.password"] == "${file:/secrets:pw}"
    assert "gone" not in found.settings
    assert connector.offsets(config(source={"connector_file": str(file)})) == []


@pytest.mark.parametrize("text", ["{", "[]", '"x"', '{"config": []}'])
def test_a_file_that_is_no_connector(tmp_path, text):
    file = tmp_path / "shop.json"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match=r"shop\.json"):
        connector.read(config(source={"connector_file": str(file)}))


def rest(answer) -> ConnectRest:
    connect = ConnectConfig(
        url="http://c:8083", connector="my shop/eu", username="u", password="pw-word"
    )
    client = ConnectRest(connect, transport=httpx.MockTransport(answer))
    client.backoff = 0
    return client


def test_rest_reads_settings_and_offsets():
    asked = []

    def answer(request):
        asked.append((request.url.raw_path, request.headers["authorization"]))
        if request.url.path.endswith("/offsets"):
            return httpx.Response(200, json={"offsets": [{"partition": {}, "offset": {"lsn": 1}}]})
        return httpx.Response(200, json=POSTGRES)

    with rest(answer) as client:
        assert client.settings() == POSTGRES
        assert client.offsets()[0]["offset"] == {"lsn": 1}
    assert [path for path, _ in asked] == [
        b"/connectors/my%20shop%2Feu/config",
        b"/connectors/my%20shop%2Feu/offsets",
    ]
    assert all(auth.startswith("Basic ") for _, auth in asked)


def test_rest_waits_out_a_rebalance():
    answers = iter([httpx.Response(409), httpx.Response(503), httpx.Response(200, json=POSTGRES)])
    assert rest(lambda _: next(answers)).settings() == POSTGRES


def test_rest_gives_up_after_four_attempts():
    asked = []

    def answer(request):
        asked.append(request)
        raise httpx.ConnectError("refused")

    with pytest.raises(DependencyError, match="is away: refused") as caught:
        rest(answer).settings()
    assert len(asked) == 4
    assert caught.value.retried
    assert "connector_file" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "json_body", "words"),
    [
        (401, {}, "refuses us"),
        (404, {}, "has no connector 'my shop/eu'"),
        (200, [], "does not answer like"),
    ],
)
def test_rest_mistakes_are_configuration_and_not_tried_again(status, json_body, words):
    asked = []

    def answer(request):
        asked.append(request)
        if request.url.path == "/connectors":
            return httpx.Response(200, json=["my-shop/eu", "other"])
        return httpx.Response(status, json=json_body)

    with pytest.raises(ConfigError, match=words) as caught:
        rest(answer).settings()
    assert len(asked) == (2 if status == 404 else 1)
    if status == 404:
        assert "did you mean my-shop/eu?" in caught.value.hint
