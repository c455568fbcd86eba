"""The connector's configuration: topics to read, tables to keep."""

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.table_choice import key_columns
from lakemark.settings.layers import InvalidConfig
from lakemark.settings.names import quoted, split_list, topic_regex, topic_safe
from lakemark.settings.table_id import text_of
from tests.kit.connector_settings import config, parse, reads

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


@pytest.mark.parametrize(
    ("java_class", "read"),
    [("mariadb.MariaDbConnector", True), ("postgresql.PostgresConnector", False)],
)
def test_the_schema_topic_is_read_where_it_tells_that_the_connector_begins(java_class, read):
    found = parse({"connector.class": f"io.debezium.connector.{java_class}"})
    assert reads(found, "shop") == read
    assert reads(found, "shop.public.orders")
    assert not reads(found, "shop.transaction")


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
    tables = [text_of(schema, name) for name in names]
    plain = [f"{schema}.{name}" for name in names]
    escaped = [re.sub(r"[^A-Za-z0-9_]", lambda m: "\\" + m[0], name) for name in plain]
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
    assert parse({"table.include.list": "public.([a-z])\\1"}).captures("public.abc")
    assert parse({"table.include.list": "public.b,public.([a-z])\\1"}).captures("public.abc")
    assert parse({"table.exclude.list": "public.([a-z])\\1"}).captures("public.abc")


@pytest.mark.parametrize(
    "java", ["(?i)a", "(?!a)b", "[^a]", "a$", "^a", r"\Qa\E", r"\p{Alpha}", "[a&&b]", r"a\s"]
)
def test_expressions_that_are_not_rewritten_for_topics(java):
    assert topic_regex(java) is None


@pytest.mark.parametrize(
    "java",
    [r"((\w|.)+)+X", r"(\w|.)+X", "(a|)*", "(a?){30}", "a?" * 27 + "b", ".*.*.*.*", "(a.*|b){2}"],
)
def test_what_java_may_match_for_ever_is_not_given_to_kafka(java):
    found = parse(source__tables=[java, "s.a"])
    assert found.topic_pattern.endswith(r"[^.]+\..+")  # more is read; RE2 chooses among it
    with pytest.raises((InvalidConfig, ValueError), match="Java may match this for ever"):
        parse(source__topics=java)


@pytest.mark.parametrize("java", [r"s\..*_a_.*", "(orders|items|log_.*)", "(?:ab)+", "a{3}b?c*"])
def test_usual_expressions_are_given_to_kafka(java):
    assert topic_regex(java) == java
    assert parse(source__topics=java).topic_pattern == java


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
        wanted = re.compile(java)
    except re.error:
        return
    name = data.draw(st.from_regex(wanted, fullmatch=True, alphabet="abc_.$é "))
    if rewritten is not None:
        assert re.fullmatch(rewritten, topic_safe(name)), (java, rewritten, name)


def test_lists_split_at_commas_that_are_not_escaped():
    assert split_list(r" a.b , c\,d,, e") == ["a.b", "c,d", "e"]
    assert split_list("") == []


@pytest.mark.parametrize(
    ("written", "table"),
    [
        ("public.debezium_signal", "public.debezium_signal"),
        ('public."debezium_signal"', "public.debezium_signal"),
        (' "My Schema"."de""bezium" ', 'My Schema.de"bezium'),
        ('public."my.signals"', 'public."my.signals"'),
        ("", None),
    ],
)
def test_the_signal_table_may_be_quoted(written, table):
    found = parse({"signal.data.collection": written})
    assert found.signal_table == table
    if table:
        assert found.captures(table)


@pytest.mark.parametrize(
    ("prefix", "tables", "hidden"),
    [
        ("shop", [], "shop."),
        ("shop.public", ["public.orders"], "shop.public.orders"),
        ("shop.clean", ["public.orders"], None),
        ("shop.public", ["other.orders"], None),
    ],
)
def test_an_output_prefix_that_hides_change_topics_is_refused(prefix, tables, hidden):
    for found in (parse(output={"topic_prefix": prefix}), parse().having_written([prefix])):
        if hidden is None:
            found.require_visible(tables)
            continue
        with pytest.raises(InvalidConfig, match=re.escape(f"({hidden})")):
            found.require_visible(tables)


def test_output_topics_of_an_earlier_configuration_are_no_change_topics():
    found = parse(output={"topic_prefix": "shop.new"}).having_written(["shop.clean", "shop.other"])
    assert reads(found, "shop.public.orders")
    assert reads(found, "shop.cleaner.orders")
    for prefix in ("shop.new", "shop.clean", "shop.other"):
        assert not reads(found, f"{prefix}.public.orders")


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("", []),
        ("public.orders:order_no", ["order_no"]),
        ("public.orders:tenant,order_no", ["tenant", "order_no"]),
        (r"public.orders:order_no;public\..*:id", ["order_no", "id"]),
        ("public.orders:tenant;public.orders:id", ["tenant", "id"]),
        ("public.orders:ORDER_NO", ["order_no"]),
        (r"public\..*:tenant_id,id", ["id"]),
        (r"public\..*:nothing", []),
        ("public.orders:.*_no", ["order_no"]),
        ("db.public.orders:tenant", ["tenant"]),
        ("public.other:id", []),
        ("public.(orders:id", []),
    ],
)
def test_key_columns_are_those_that_debezium_takes(setting, key):
    """What `Key.CustomKeyMapper` of Debezium 3.7 answers for a table of these columns."""
    settings = {"message.key.columns": setting, "database.dbname": "db"}
    assert key_columns(settings, "public.orders", ["id", "order_no", "tenant"]) == key
