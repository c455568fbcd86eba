"""Tables whose schema or name has a dot in it: each is itself, whatever their plain names are."""

import json
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable

from lakemark.connectors.postgres import postgres
from lakemark.connectors.table_choice import TableChoice
from lakemark.converters.registry import CONVERTERS, JSON
from lakemark.model.decoding import Records, StretchPlan
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.table_id import plain_of, text_of
from lakemark.sink import names
from lakemark.sink.lake_plan import LakePlan
from lakemark.sink.output import transaction
from lakemark.snapshot.signals import matching
from lakemark.source import decoder
from lakemark.state import tables
from tests.kit.connector_settings import parse
from tests.kit.memory_pipeline import Broker
from tests.kit.memory_topics import MemoryTopics
from tests.kit.shop import ORDERS, Shop, compact, event, schema_of
from tests.kit.table_states import flat_form

PLAIN = "a.b.c"
FIRST, SECOND = ("a", "b.c"), ("a.b", "c")
TEXTS = {FIRST: 'a."b.c"', SECOND: '"a.b".c'}
TOPIC = "shop.a.b.c"

pytestmark = pytest.mark.usefixtures("letters")


@pytest.fixture
def shop(tmp_path):
    return made(tmp_path)


def made(root, **sections):
    schemas = {t: schema_of(t, id="int8", v="text") for t in (*TEXTS.values(), ORDERS)}
    return Shop(root, Broker({TOPIC: [[], []]}), schemas, sections=sections)


def put(shop, name, at, key, *, v="a", partition=0, op="c"):
    """An event of the very table of this schema and name; both come in one topic."""
    value = json.loads(event(op, at, {"id": key, "v": v}))
    value["source"] |= {"schema": name[0], "table": name[1]}
    shop.broker.put(TOPIC, partition, compact({"id": key}), compact(value))


def test_each_has_its_own_text_state_and_folder(shop):
    for at, name in enumerate((FIRST, SECOND)):
        put(shop, name, 10 + at, 1, v=name[0])
    shop.run()
    put(shop, SECOND, 12, 2, v="later", partition=1)
    shop.run()
    assert shop.values(TEXTS[FIRST]) == {1: "a"}
    assert shop.values(TEXTS[SECOND]) == {1: "a.b", 2: "later"}
    assert {t: e.state for t, e in shop.state.tables.items()} == dict.fromkeys(
        TEXTS.values(), tables.STREAMING
    )
    lake = shop.config.lake.path
    assert DeltaTable.is_deltatable(f"{lake}/a/b.c")
    assert DeltaTable.is_deltatable(f"{lake}/a.b/c")


def test_each_stands_still_and_goes_on_alone(shop):
    for at, name in enumerate((FIRST, SECOND)):
        put(shop, name, 10 + at, 1)
    shop.run()
    shop.records.append({"type": "table-pause", "table": TEXTS[SECOND]})
    shop.run()
    for at, name in enumerate((FIRST, SECOND)):
        put(shop, name, 20 + at, 1, v="b", op="u")
    shop.run()
    assert (shop.values(TEXTS[FIRST]), shop.values(TEXTS[SECOND])) == ({1: "b"}, {1: "a"})
    shop.restart()
    shop.records.append({"type": "table-resume", "table": TEXTS[SECOND]})
    shop.run()
    shop.run()
    assert shop.values(TEXTS[SECOND]) == {1: "b"}


def test_their_events_go_to_the_topic_that_their_plain_names_share(tmp_path, monkeypatch):
    """As Debezium has it: the source block says whose they are."""
    out = MemoryTopics()
    monkeypatch.setattr(transaction, "write", out.write)
    shop = made(tmp_path, output={"topic_prefix": "clean"})
    for at, name in enumerate((FIRST, SECOND)):
        put(shop, name, 10 + at, 1 + at)
    shop.run()
    came = [json.loads(record.value)["source"] for record in out.records[f"clean.{PLAIN}"]]
    assert {(source["schema"], source["table"]) for source in came} == {FIRST, SECOND}


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_the_fast_path_and_the_general_one_name_it_alike(shop, name):
    put(shop, name, 10, 1)
    (batch,) = shop.broker.read({}, {TOPIC: {0: 1}})
    plan = StretchPlan(
        shop.pipeline.sources.of[0].connector.identity, HandlingModes(), schemas=shop.schemas
    )
    quick = CONVERTERS[JSON].plain_range(TOPIC, 0, [batch], plan)
    found = batch.to_pydict()
    records = Records(TOPIC, 0, found["offset"], found["key"], found["value"], [None])
    general = decoder.decode_range(records, plan)
    assert quick is not None
    assert set(quick.tables) == set(general.tables) == {TEXTS[name]}


@pytest.mark.parametrize(
    ("settings", "captured"),
    [
        ({}, {FIRST, SECOND}),
        ({"schema.exclude.list": r"a\.b"}, {FIRST}),
        ({"schema.exclude.list": "a"}, {SECOND}),
        ({"schema.include.list": r"a\.b"}, {SECOND}),
        ({"table.include.list": r"a\.b\.c"}, {FIRST, SECOND}),
        ({"table.exclude.list": r"a\.b\.c"}, set()),
    ],
)
def test_the_connectors_lists_see_the_schema_and_the_plain_name(settings, captured):
    choice = TableChoice(settings, [])
    assert {name for name, text in TEXTS.items() if text in choice} == captured


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        (r"a\.b\.c", {FIRST, SECOND}),
        (TEXTS[SECOND], {SECOND}),
        ('"a.b"."c"', {SECOND}),
        ('"a"."b.c"', {FIRST}),
    ],
)
def test_a_signal_names_both_by_their_plain_name_or_one_by_its_text(pattern, chosen):
    found = matching([pattern], [*TEXTS.values(), ORDERS])
    assert set(found.tables) == {TEXTS[name] for name in chosen}


def test_topics_signal_tables_and_columns_go_by_parts():
    connector = parse({"signal.data.collection": '"a.b"."c"', "column.exclude.list": r"a\.b\.c\.v"})
    assert connector.signal_table == TEXTS[SECOND]
    assert connector.topic_of(TEXTS[FIRST]) == connector.topic_of(TEXTS[SECOND])
    assert connector.topic_of(TEXTS[FIRST]).endswith("a.b.c")


class Session:
    """A catalog with both tables; it says what it was asked for."""

    info = SimpleNamespace(server_version=160000)

    def __init__(self):
        self.asked = []

    def execute(self, _sql, parameters=None):
        self.asked = list(zip(parameters["schemas"], parameters["tables"], strict=True))
        columns = [("id", "int8", 1), ("v", "text", None)]
        found = [
            (*name, column, kind, -1, True, False, None, False, False, False, key)
            for name in sorted(self.asked)
            for column, kind, key in columns
        ]
        return SimpleNamespace(fetchall=lambda: found)


def test_the_catalog_is_asked_by_parts():
    session = Session()
    texts = [*TEXTS.values(), ORDERS]
    found = postgres.schemas_of(session, texts, HandlingModes(), settings={})
    assert set(session.asked) == {FIRST, SECOND, ("public", "orders")}
    assert set(found) == set(texts)


# -- states of older versions: a table's name was schema, dot, name --------------------------------


def older(shop, **entries):
    """The state as a version before texts had it: format 3, by name."""
    state = flat_form(shop.checkpoint.states[shop.batch], 3)
    for name, more in entries.items():
        (text,) = [text for text in state["tables"] if text.replace('"', "") == name]
        state["tables"][name] = state["tables"].pop(text) | more
    shop.checkpoint.states[shop.batch] = json.dumps(state).encode()
    shop.restart()


def test_a_table_whose_name_has_the_dot_goes_on_in_its_folder(shop, monkeypatch):
    """Its commits were recorded by name, too."""
    real = LakePlan.app_id
    with monkeypatch.context() as patch:
        patch.setattr(LakePlan, "app_id", lambda of, t, step="": real(of, plain_of(t), step))
        put(shop, FIRST, 10, 1)
        shop.run()
    older(shop, **{PLAIN: {"source_name": FIRST}})
    put(shop, FIRST, 11, 2)
    shop.run()
    entry = shop.state.tables[TEXTS[FIRST]]
    assert list(shop.state.tables) == [TEXTS[FIRST]]
    assert (entry.state, entry.repair.resnapshot) == (tables.STREAMING, "")
    assert shop.values(TEXTS[FIRST]) == {1: "a", 2: "a"}


def test_a_table_whose_schema_has_the_dot_begins_in_a_folder_of_its_own(shop):
    put(shop, FIRST, 10, 1)  # its folder is where the other one's rows were
    shop.run()
    older(shop, **{PLAIN: {"source_name": SECOND}})
    put(shop, SECOND, 11, 2)
    shop.run()
    entry = shop.state.tables[TEXTS[SECOND]]
    assert list(shop.state.tables) == [TEXTS[SECOND]]
    assert entry.state == tables.STREAMING
    assert "folder of its own" in entry.repair.resnapshot
    assert shop.values(TEXTS[SECOND]) == {2: "a"}


def test_what_stood_still_because_two_had_one_name_goes_on_as_two(shop):
    put(shop, FIRST, 10, 1)
    shop.run()
    stopped = {
        "source_name": FIRST,
        "state": "errored",
        "code": "name-ambiguous",
        "reason": '"a"."b.c" and "a.b"."c" are different tables and have one name, a.b.c: none is',
        "from_offsets": {TOPIC: {"0": 1, "1": 0}},
    }
    put(shop, FIRST, 11, 2)
    put(shop, SECOND, 12, 3)
    shop.run()
    state = json.loads(shop.checkpoint.states[shop.batch])
    del state["tables"][TEXTS[SECOND]]
    shop.checkpoint.states[shop.batch] = json.dumps(state).encode()
    older(shop, **{PLAIN: stopped})
    for _ in range(3):
        shop.run()
    assert shop.values(TEXTS[FIRST]) == {1: "a", 2: "a"}
    assert shop.values(TEXTS[SECOND]) == {3: "a"}
    first, second = (shop.state.tables[TEXTS[name]] for name in (FIRST, SECOND))
    assert (first.state, first.repair.resnapshot) == (tables.STREAMING, "")
    assert second.state == tables.STREAMING
    assert "folder of its own" in second.repair.resnapshot


def test_other_names_are_what_they_were(shop):
    shop.put("c", 10, 1, v="a")
    shop.run()
    before = shop.state
    older(shop)
    assert shop.state.tables == before.tables
    assert shop.state.format == tables.FORMAT


@pytest.mark.parametrize("name", [("s", "t"), ("", "t"), ('"q', "t.t"), ("~", "_delta_log")])
def test_no_two_names_share_a_folder(name):
    others = [("s", "t"), ("", "t"), ('"q', "t.t"), ("~", "_delta_log"), *TEXTS]
    path = names.table_path("/lake", text_of(*name))
    same = [other for other in others if names.table_path("/lake", text_of(*other)) == path]
    assert same == [name]
