"""Two source tables that have one text for a name: both are refused by name, neither is written."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import msgspec
import pytest
from deltalake import DeltaTable

from lakemark.connectors.connector import TableChoice
from lakemark.connectors.postgres import postgres, postgres_chunks
from lakemark.errors import DependencyError, TableError
from lakemark.model import namesakes
from lakemark.model.handling_modes import HandlingModes
from lakemark.ops.doctor import checks_place, checks_tables, facts_database
from lakemark.ops.doctor.checks_tables import Relation
from lakemark.ops.lag import Ends
from lakemark.ops.plan import plan as plans
from lakemark.ops.plan.planned import Target
from lakemark.reconcile import outputs
from lakemark.reconcile.chunks import Settled
from lakemark.sink import names
from lakemark.sink.output import transaction
from lakemark.snapshot import adapters
from lakemark.snapshot.runs import FAILED
from lakemark.snapshot.signal_validation import SignalContext, accept
from lakemark.snapshot.signals import ExecuteSnapshot
from lakemark.source import decoder, fast_path
from lakemark.source.decoder import Records
from lakemark.state import advance, tables
from lakemark.state.tables import PipelineState, TableState
from tests.kit.connector_settings import config, parse
from tests.kit.fake_world import FakeWorld
from tests.kit.memory_pipeline import Broker
from tests.kit.memory_topics import MemoryTopics
from tests.kit.shop import ORDERS, Shop, compact, event, schema_of
from tests.kit.verdicts import bad, of, one

TEXT = "a.b.c"
FIRST, SECOND = ("a", "b.c"), ("a.b", "c")
TOPIC = "shop.a.b.c"
BOTH = '"a"."b.c" and "a.b"."c"'

pytestmark = pytest.mark.usefixtures("letters")


@pytest.fixture
def shop(tmp_path):
    return made(tmp_path)


def made(root, **sections):
    schemas = {t: schema_of(t, id="int8", v="text") for t in (TEXT, ORDERS)}
    return Shop(root, Broker({TOPIC: [[], []]}), schemas, sections=sections)


def put(shop, name, at, key, *, v="a", partition=0, topic=TOPIC, op="c", headers=None):
    """An event of the very table of this schema and name."""
    value = json.loads(event(op, at, {"id": key, "v": v}))
    value["source"] |= {"schema": name[0], "table": name[1]}
    shop.broker.put(topic, partition, compact({"id": key}), compact(value), headers)


def entry(shop):
    return shop.state.tables[TEXT]


def is_written(shop):
    return DeltaTable.is_deltatable(names.table_path(shop.config.lake.path, TEXT))


def assert_refused(shop):
    assert (entry(shop).state, entry(shop).code) == (tables.ERRORED, "name-ambiguous")
    assert BOTH in entry(shop).reason
    assert not entry(shop).retried
    assert "rename one of them" in entry(shop).hint
    assert "schema.exclude.list" in entry(shop).hint
    assert "lakemark table skip a.b.c" in entry(shop).hint


# -- events alone say it ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_one_table_of_a_name_with_dots_is_written_as_any_in_its_first_batch(shop, name):
    put(shop, name, 10, 1)
    put(shop, name, 11, 2, partition=1)
    shop.run()
    assert shop.values(TEXT) == {1: "a", 2: "a"}
    assert (entry(shop).state, entry(shop).source_name) == (tables.STREAMING, name)
    assert entry(shop).events == 2
    put(shop, name, 12, 1, v="b")
    shop.run()
    assert shop.values(TEXT) == {1: "b", 2: "a"}


def test_a_name_with_the_joining_dot_only_is_not_kept(shop):
    shop.put("c", 10, 1, v="a")
    shop.run()
    assert shop.state.tables[ORDERS].source_name is None
    assert shop.state.tables[ORDERS].since_batch == 0
    assert shop.values() == {1: "a"}


@pytest.mark.parametrize("order", [(FIRST, SECOND), (SECOND, FIRST)])
@pytest.mark.parametrize("places", [(0, 0), (0, 1), (1, 0)], ids=["same", "other", "before"])
def test_both_in_one_batch(shop, order, places):
    for at, (name, partition) in enumerate(zip(order, places, strict=True)):
        put(shop, name, 10 + at, 1 + at, partition=partition)
    shop.put("c", 20, 1, v="x")
    shop.run()
    assert_refused(shop)
    assert not is_written(shop)
    assert shop.values() == {1: "x"}


def test_both_in_topics_of_their_own(shop):
    put(shop, FIRST, 10, 1, topic="shop.one")
    put(shop, SECOND, 11, 2, topic="shop.two")
    shop.run()
    assert_refused(shop)
    assert not is_written(shop)
    assert entry(shop).topics == ["shop.one", "shop.two"]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize(("first", "second"), [(FIRST, SECOND), (SECOND, FIRST)])
def test_the_second_in_a_later_batch(shop, first, second, partition, restart):
    """What stood before stays; nothing of that batch or later is written."""
    put(shop, first, 10, 1)
    shop.run()
    if restart:
        shop.restart()
    put(shop, first, 11, 1, v="later")
    put(shop, second, 12, 2, partition=partition)
    put(shop, first, 13, 3)
    shop.run()
    assert_refused(shop)
    put(shop, first, 14, 4)
    put(shop, second, 15, 5)
    shop.put("c", 20, 1, v="x")
    shop.run()
    assert_refused(shop)
    assert shop.values(TEXT) == {1: "a"}
    assert shop.values() == {1: "x"}
    assert entry(shop).from_offsets == {TOPIC: {0: 1, 1: 0}}


def test_the_second_in_a_topic_of_its_own(shop):
    put(shop, FIRST, 10, 1)
    shop.run()
    put(shop, SECOND, 12, 2, topic="shop.two")
    shop.run()
    assert_refused(shop)
    assert shop.values(TEXT) == {1: "a"}


def test_a_checkpoint_of_an_older_version_learns_the_name_from_the_next_event(shop):
    put(shop, FIRST, 10, 1)
    shop.run()
    older = json.loads(shop.checkpoint.states[shop.batch])
    del older["tables"][TEXT]["source_name"]
    shop.checkpoint.states[shop.batch] = json.dumps(older).encode()
    assert entry(shop).source_name is None
    shop.restart()
    put(shop, FIRST, 11, 1, v="b")
    shop.run()
    assert (entry(shop).source_name, shop.values(TEXT)) == (FIRST, {1: "b"})
    put(shop, SECOND, 12, 2)
    shop.run()
    assert_refused(shop)


def test_a_resume_finds_both_again(shop):
    put(shop, FIRST, 10, 1)
    put(shop, SECOND, 11, 2)
    shop.run()
    shop.records.append({"type": "table-resume", "table": TEXT})
    shop.run()
    assert_refused(shop)
    assert not is_written(shop)


def test_the_second_in_a_later_slice_of_a_catch_up(shop):
    put(shop, FIRST, 10, 1)
    shop.run()
    shop.records.append({"type": "table-pause", "table": TEXT})
    shop.run()
    shop.limit(1)
    put(shop, FIRST, 11, 2)
    put(shop, SECOND, 12, 3)
    shop.run()
    shop.records.append({"type": "table-resume", "table": TEXT})
    for _ in range(3):
        shop.run()
    assert_refused(shop)
    assert shop.values(TEXT) == {1: "a", 2: "a"}


@pytest.mark.parametrize("left", [FIRST, SECOND])
def test_after_one_was_left_out_a_skip_lets_the_other_stream(shop, left):
    put(shop, FIRST, 10, 1)
    shop.run()
    put(shop, SECOND, 11, 2)
    shop.run()
    assert_refused(shop)
    skip(shop)
    put(shop, left, 12, 3)
    shop.run()
    assert (entry(shop).state, entry(shop).source_name) == (tables.STREAMING, left)
    assert entry(shop).resnapshot
    assert shop.values(TEXT) == {1: "a", 3: "a"}


def skip(shop):
    shop.records.append({"type": "table-skip", "table": TEXT, "offsets": shop.broker.ends()})
    shop.run()


def test_a_paused_table_stays_paused(shop):
    """The events of the batch in which it is paused say nothing of it."""
    state = PipelineState(batch=1, tables={TEXT: TableState(state=tables.PAUSED, code="paused")})
    report = advance.Report(
        TOPIC, 0, 0, 1, b"", 0, {TEXT: decoder.TableReport(names={FIRST, SECOND})}, {}, 0
    )
    advance.settle(state, state, {}, [report], [], catalog=False)
    assert state.tables[TEXT].code == "paused"


def test_a_catalog_that_is_asked_for_one_of_them_does_not_let_both_go_on():
    """One stretch asks for the schema, another one brings the second table."""
    state = PipelineState(batch=1, tables={TEXT: TableState(source_name=FIRST)})
    unknown = decoder.TableReport(stop=("schema-unknown", "why"))
    reports = [
        advance.Report(TOPIC, partition, 0, 1, b"", 0, {TEXT: found}, {}, 0)
        for partition, found in enumerate([unknown, decoder.TableReport(names={SECOND})])
    ]
    for order in (reports, reports[::-1]):
        left = advance.settle(state, state, {}, order, [], catalog=True)
        assert left.refresh == {}
        assert state.tables[TEXT].code == "name-ambiguous"


def test_records_that_are_not_bad_are_no_dead_letters(shop, letters):
    put(shop, FIRST, 10, 1)
    put(shop, SECOND, 11, 2, v=7)  # of a type that the other table has not
    shop.run()
    assert_refused(shop)
    assert letters == []
    assert entry(shop).dead_letters == 0


def test_a_record_of_another_connector_says_nothing(shop):
    put(shop, FIRST, 10, 1)
    value = json.loads(event("c", 11, {"id": 2, "v": "a"}, name="other"))
    value["source"] |= {"schema": SECOND[0], "table": SECOND[1]}
    shop.broker.put(TOPIC, 0, compact({"id": 2}), compact(value))
    shop.run()
    assert shop.values(TEXT) == {1: "a"}


@pytest.mark.parametrize("later", [False, True])
def test_nothing_goes_to_the_output_topic(tmp_path, monkeypatch, later):
    out = MemoryTopics()
    monkeypatch.setattr(transaction, "write", out.write)
    shop = made(tmp_path, output={"topic_prefix": "clean"})
    put(shop, FIRST, 10, 1)
    if later:
        shop.run()
    before = len(out.records.get("clean.a.b.c", []))
    assert before == int(later)
    put(shop, FIRST, 11, 1, v="b")
    put(shop, SECOND, 12, 2)
    shop.run()
    shop.run()
    assert_refused(shop)
    assert len(out.records.get("clean.a.b.c", [])) == before


def records_of(shop, name):
    put(shop, name, 10, 1)
    return shop.broker.read({}, {TOPIC: {0: 1}})[0]


@pytest.mark.parametrize(("known", "quick"), [(FIRST, True), (SECOND, False), (None, False)])
def test_the_quick_way_is_for_a_table_that_is_known(shop, known, quick):
    known_names = {TEXT: known} if known else {}
    plan = decoder.StretchPlan(
        shop.pipeline.identity, HandlingModes(), schemas=shop.schemas, names=known_names
    )
    found = fast_path.decode_range(TOPIC, 0, [records_of(shop, FIRST)], plan)
    assert (found is not None) == quick


def test_a_stretch_says_which_tables_came_where_they_are_not_known(shop):
    batch = records_of(shop, SECOND).to_pydict()
    plan = decoder.StretchPlan(
        shop.pipeline.identity, HandlingModes(), schemas=shop.schemas, names={TEXT: FIRST}
    )
    found = decoder.decode_range(
        Records(TOPIC, 0, batch["offset"], batch["key"], batch["value"], [None]), plan
    )
    assert found.tables[TEXT].names == {SECOND}
    assert (found.packets, found.applied, found.stopped()) == ([], {}, {TEXT})


# -- the catalog says it ---------------------------------------------------------------------------


def test_what_the_catalog_has_twice_is_refused_before_any_event(shop):
    shop.catalog.captured = {TEXT: (FIRST, SECOND)}
    shop.restart()
    shop.put("c", 20, 1, v="x")
    shop.run()
    assert_refused(shop)
    put(shop, FIRST, 10, 1)
    shop.run()
    assert_refused(shop)
    assert not is_written(shop)
    assert shop.values() == {1: "x"}


def test_events_of_a_table_refused_before_any_wait_for_a_resume(shop):
    shop.catalog.captured = {TEXT: (FIRST, SECOND)}
    shop.restart()
    shop.broker.put(TOPIC, 0, compact({"id": 1}), event("c", 9, {"id": 1, "v": "x"}))  # of orders
    shop.run()
    put(shop, FIRST, 10, 1)
    shop.run()
    put(shop, FIRST, 11, 2, partition=1)
    shop.run()
    assert entry(shop).topics == [TOPIC]
    assert entry(shop).from_offsets == {TOPIC: {0: 1, 1: 0}}
    assert entry(shop).high_waters[TOPIC].keys() == {0}
    shop.catalog.captured = {TEXT: (FIRST,)}  # the other one was dropped, and never had an event
    shop.records.append({"type": "table-resume", "table": TEXT})
    shop.run()
    shop.run()
    assert entry(shop).state == tables.STREAMING
    assert shop.values(TEXT) == {1: "a", 2: "a"}


def test_a_catalog_that_has_only_another_table_than_the_rows_are_of(shop):
    put(shop, FIRST, 10, 1)
    shop.run()
    shop.catalog.captured = {TEXT: (SECOND,)}
    shop.restart()
    shop.run()
    assert_refused(shop)
    skip(shop)
    put(shop, SECOND, 12, 2)
    shop.run()
    assert (entry(shop).state, entry(shop).source_name) == (tables.STREAMING, SECOND)


def test_a_table_that_is_paused_stays_so_while_the_catalog_has_both(shop):
    put(shop, FIRST, 10, 1)
    shop.run()
    shop.records.append({"type": "table-pause", "table": TEXT})
    shop.run()
    shop.catalog.captured = {TEXT: (FIRST, SECOND)}
    shop.restart()
    shop.run()
    assert (entry(shop).state, entry(shop).code) == (tables.PAUSED, "paused")
    shop.records.append({"type": "table-resume", "table": TEXT})
    shop.run()
    assert_refused(shop)


def test_a_skip_while_the_catalog_has_both_stops_again(shop):
    shop.catalog.captured = {TEXT: (FIRST, SECOND)}
    shop.restart()
    put(shop, FIRST, 10, 1)
    shop.run()
    skip(shop)
    shop.run()
    shop.run()
    assert_refused(shop)


def test_a_catalog_that_cannot_be_asked_leaves_it_refused(shop):
    shop.catalog.captured = {TEXT: (FIRST, SECOND)}
    shop.restart()
    put(shop, FIRST, 10, 1)
    shop.run()
    shop.catalog.away = DependencyError("away")
    shop.records.append({"type": "table-resume", "table": TEXT})
    shop.run()
    assert_refused(shop)


def test_tables_that_are_not_chosen_are_nobodys_concern(tmp_path):
    source = {"connector_file": str(tmp_path / "connector.json"), "tables": [r"public\..*"]}
    shop = made(tmp_path, source=source)
    shop.catalog.captured = {TEXT: (FIRST, SECOND)}
    shop.restart()
    shop.put("c", 20, 1, v="x")
    shop.run()
    assert TEXT not in shop.state.tables


def test_rows_of_a_chunk_are_of_the_first_table_that_a_text_may_be():
    state = PipelineState(batch=1, tables={TEXT: TableState(), ORDERS: TableState()})
    said = [
        (outputs.SETTLED, msgspec.json.encode(Settled("r", t, 0, 1, 0, survivors=1, hi="bb")))
        for t in (TEXT, ORDERS)
    ]
    advance.chunks(state, frozenset(), said)
    assert state.tables[TEXT].source_name == FIRST
    assert state.tables[ORDERS].source_name is None


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
def test_the_connectors_lists_tell_schemas_apart_and_not_tables(settings, captured):
    choice = TableChoice(settings, [])
    assert {name for name in (FIRST, SECOND) if choice.takes(name)} == captured
    assert choice.captured(TEXT) == bool(captured)


class Session:
    """A database's catalog: names of tables, each with a key and a value."""

    info = SimpleNamespace(server_version=160000)

    def __init__(self, *names):
        self.names, self.wanted, self.said = names, [], []

    def execute(self, sql, parameters=None):
        self.said.append(sql)
        found = sorted(self.names)
        if parameters:
            self.wanted = list(zip(parameters["schemas"], parameters["tables"], strict=True))
            columns = [("id", "int8", 1), ("v", "text", None)]
            found = [
                (*name, column, kind, -1, True, False, None, False, False, False, key)
                for name in sorted(self.names)
                if name in self.wanted
                for column, kind, key in columns
            ]
        return SimpleNamespace(fetchall=lambda: found)


@pytest.mark.parametrize(
    ("there", "settings", "read"),
    [
        ((FIRST,), {}, {FIRST}),
        ((FIRST, SECOND), {}, set()),
        ((SECOND,), {}, set()),
        ((FIRST, SECOND), {"schema.exclude.list": r"a\.b"}, {FIRST}),
        ((FIRST, SECOND), {"schema.exclude.list": "a"}, set()),
    ],
)
def test_of_the_catalog_only_that_is_read_whose_text_is_its_own(there, settings, read):
    """Nothing of a run of snapshots, of a chunk or of a filter can meet another table's rows."""
    session = Session(*there, ("public", "orders"))
    found = postgres.schemas_of(session, [TEXT, ORDERS], HandlingModes(), settings=settings)
    assert set(session.wanted) == read | {("public", "orders")}
    assert set(found) == {TEXT, ORDERS} if read else {ORDERS}
    if read:
        assert [column.name for column in found[TEXT][0].columns] == ["id", "v"]
        postgres.refuse_namesakes(session, TEXT, settings)
        return
    with pytest.raises(TableError) as caught:
        postgres.refuse_namesakes(session, TEXT, settings)
    assert caught.value.code == "name-ambiguous"


def test_the_catalog_is_not_asked_for_names_with_the_joining_dot_only():
    asked = []
    session = SimpleNamespace(execute=lambda *told: asked.append(told))
    postgres.refuse_namesakes(session, ORDERS, {})
    assert asked == []


def test_captured_tables_by_text_are_those_with_dots():
    names = postgres.names_of(Session(FIRST, SECOND, ("public", "orders")), TableChoice({}, []))
    assert names == {TEXT: (FIRST, SECOND)}


# -- people ask ------------------------------------------------------------------------------------


def test_a_reason_quotes_as_sql_does():
    assert namesakes.reason([('a"x', "b"), ('a"x', "b")]).startswith('"a""x"."b" are')
    assert BOTH in namesakes.reason({SECOND, FIRST})


def known(*schemas):
    found = {t: schema_of(t, id="int8", v="text") for t in schemas}
    return SignalContext(
        found, lambda *_: None, lambda _: None, {TEXT: namesakes.reason([FIRST, SECOND])}
    )


@pytest.mark.parametrize("pattern", [TEXT, r"a\.b\.c", "a.*"])
def test_a_signal_for_it_alone_is_rejected(pattern):
    found = accept(ExecuteSnapshot("s1", (pattern,)), known(ORDERS))
    assert (found.id, found.code) == ("s1", "name-ambiguous")
    assert BOTH in found.message
    assert "rename" in found.hint


def test_a_signal_for_it_among_others_reads_the_others():
    found = accept(ExecuteSnapshot("s1", (TEXT, ORDERS)), known(ORDERS))
    by_table = {table.table: table for table in found.tables}
    assert by_table.keys() == {TEXT, ORDERS}
    assert (by_table[TEXT].state, by_table[TEXT].code) == (FAILED, "name-ambiguous")
    assert BOTH in by_table[TEXT].reason
    assert not by_table[ORDERS].code
    assert found.unmatched == []


def test_the_answer_to_a_signal_names_both():
    world = FakeWorld()
    world.ambiguous = lambda: {TEXT: namesakes.reason([FIRST, SECOND])}
    world.start()
    world.execute("r1", TEXT)
    world.go(10)
    assert world.said("r1") == ["REJECTED"]
    (note,) = [note for note in world.notes if note.id == "r1"]
    assert note.additional_data["code"] == "name-ambiguous"


def test_a_chunk_of_it_is_not_read():
    """Before the table is locked: the lock would be of the one, and the rows of the other."""
    session = Session(FIRST, SECOND)
    session.transaction = nullcontext
    with (
        pytest.raises(TableError) as caught,
        postgres_chunks.open_table(session, TEXT, HandlingModes(), settings={}),
    ):
        pass
    assert caught.value.code == "name-ambiguous"
    assert not any("LOCK" in str(said) for said in session.said)


def test_the_coordinator_hears_of_both_from_the_database(shop, monkeypatch):
    found = {TEXT: (FIRST, SECOND), "x.y.z": (("x", "y.z"),)}
    monkeypatch.setattr(adapters, "read_names", lambda *_: found)
    ours = adapters.Adapters(
        None, shop.config, shop.pipeline.connector, SimpleNamespace(database="db"),
        lambda *_: [], lambda: None, lambda _: False,
    )  # fmt: skip
    assert ours.ambiguous() == {TEXT: namesakes.reason([FIRST, SECOND])}
    ours.close()


AMBIGUOUS = Relation(TEXT, names=(FIRST, SECOND))


def test_the_doctor_names_both_and_what_to_do():
    fine = Relation(ORDERS, key=("id",), primary="p")
    found = checks_tables.findings([AMBIGUOUS, fine], user="u", publication="p", chosen=True)
    (finding,) = bad(found)
    assert (finding.check, finding.subject) == ("tables", TEXT)
    assert BOTH in finding.reason
    assert "rename" in finding.mend
    assert of(found, "key", ORDERS)
    assert not of(found, "key", TEXT)


def test_the_doctor_reads_of_the_catalog_which_tables_have_one_text(monkeypatch):
    rest = ("p", False, "", False, "")
    rows = [
        (*name, "r", True, True, False, identity, *rest)
        for name, identity in ((FIRST, "f"), (SECOND, "n"), (("public", "orders"), "d"))
    ]
    asked = SimpleNamespace(execute=lambda *_: SimpleNamespace(fetchall=lambda: rows))
    for name in ("schemas_of", "columns_of"):
        monkeypatch.setattr(facts_database, name, lambda *_, **__: {})
    monkeypatch.setattr(
        facts_database,
        "names_of",
        lambda _, captured: {TEXT: tuple(n for n in (FIRST, SECOND) if captured.takes(n))},
    )
    found = relations(asked)
    assert [(r.table, r.ambiguous) for r in found] == [(TEXT, True), (ORDERS, False)]
    found = relations(asked, {"schema.exclude.list": r"a\.b"})
    assert [(r.table, r.ambiguous) for r in found] == [(TEXT, False), (ORDERS, False)]
    assert found[0].identity == "f"


def relations(session, settings=None):
    asking = object.__new__(facts_database._Asking)
    asking._session, asking.publication = session, None
    asking._connector, asking._modes = parse(settings or {}), HandlingModes()
    return asking.relations()


def test_without_a_database_the_doctor_says_what_the_checkpoint_knows(shop):
    put(shop, FIRST, 10, 1)
    put(shop, SECOND, 11, 2)
    shop.run()
    found = checks_place.findings(checks_place.PlaceFacts(state=shop.state), shop.config)
    finding = one(found, "tables", TEXT)
    assert BOTH in finding.reason
    assert "rename" in finding.mend


def planned_target(source, state):
    log = SimpleNamespace(
        stored=SimpleNamespace(state=state), known=Ends({}, {}), missing=None, running=None
    )
    about = plans._Known(config(), parse({}), log, source)
    (name, schema) = next(iter(about.names().items()))
    return about.table(name, schema, Target("/lake/a/b.c", "create")).target


@pytest.mark.parametrize(
    ("captured", "entry", "stops"),
    [
        ((FIRST, SECOND), None, True),
        ((SECOND,), TableState(source_name=FIRST), True),
        ((FIRST,), TableState(source_name=FIRST), False),
        ((FIRST,), None, False),
        (
            (),
            TableState(
                state=tables.ERRORED,
                code=namesakes.CODE,
                reason=namesakes.reason([FIRST, SECOND]),
            ),
            True,
        ),
    ],
)
def test_the_plan_names_both_and_what_to_do(captured, entry, stops):
    state = PipelineState(batch=1, tables={TEXT: entry} if entry else {})
    source = plans._Source({}, names={TEXT: captured} if captured else {})
    target = planned_target(source, state)
    if not stops:
        assert target.action == "create"
        return
    assert (target.action, target.code) == ("stop", "name-ambiguous")
    assert BOTH in target.reason
    assert "rename" in target.hint


def test_the_plan_asks_the_database_which_tables_have_one_text(monkeypatch):
    fine = Relation(ORDERS, key=("id",), primary="p")
    answers = SimpleNamespace(relations=(AMBIGUOUS, fine))
    monkeypatch.setattr(plans, "database_facts", lambda *_, **__: answers)
    monkeypatch.setattr(plans, "from_catalog", lambda table, *_: schema_of(table, id="int8"))
    monkeypatch.setattr(plans, "table_sizes", lambda _, names: [(t, 1, 1) for t in names])
    source = plans._source(SimpleNamespace(database="db"), parse({}))
    assert source.names == {TEXT: (FIRST, SECOND)}
    assert list(source.schemas) == [ORDERS]
    assert source.sizes == [(ORDERS, 1, 1)]
