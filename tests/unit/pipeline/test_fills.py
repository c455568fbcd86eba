"""Values that older rows have in a column, without a word in the log: the table gets them."""

from decimal import Decimal
from functools import partial
from shutil import rmtree
from unittest.mock import Mock

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark import plans
from lakemark.connectors.postgres import positions as lsns
from lakemark.errors import DependencyError
from lakemark.model import change_batch, fills
from lakemark.model.fills import UNSEEN, Fill, packed
from lakemark.pipeline import FillBudget, Pipeline
from lakemark.sink.delta import deletion_vectors, delta_rs, schema_evolution
from lakemark.sink.lake_plan import TableOutcome
from lakemark.sink.names import CDC, table_path
from lakemark.state import control_records, tables
from lakemark.state.table_parts import BY_SNAPSHOT
from lakemark.state.tables import (
    CATCHING_UP,
    ERRORED,
    FILL_BYTES,
    PAUSED,
    STREAMING,
    PipelineState,
    TableState,
)
from tests.kit.delta_table import content
from tests.kit.log_model import STEP
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.shop import ORDERS, Shop, schema_of
from tests.kit.table_states import table_state
from tests.kit.write_sets import at, delete, table_schema, upsert, write_set

pytestmark = [pytest.mark.usefixtures("cache", "letters"), pytest.mark.sampled(3)]

GUARDED = control_records.guarded
ENGINES = {"task-merge": delta_rs, "deletion-vectors": deletion_vectors}
TOPIC = f"shop.{ORDERS}"
WIDE = {"id": "int8", "v": "text", "w": "int4"}
RENAMED = {"id": "int8", "w": "text"}


def fill(column="w", upto=100, value=11, source="", kind=None, known=("id", "v")):
    given = "" if source else packed(pa.array([value], kind or pa.int32()))
    return Fill(column, lsns.pack(0, STEP * upto, 0).hex(), known, given, source)


# -- the table ------------------------------------------------------------------------------------

COLUMNS = {"id": pa.string(), "v": pa.string()}


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


@pytest.fixture
def path(engine, tmp_path):
    """A table of three rows, one of which came in a commit of its own, and of one that is gone."""
    path = str(tmp_path / "t")
    delta_rs.ensure(path, table_schema(COLUMNS), key=["id"], table="public.t", engine=engine)
    merge(engine, path, 1, *(upsert({"id": k, "v": f"v{k}"}, at(1)) for k in "abcd"))
    merge(engine, path, 2, upsert({"id": "c", "v": None}, at(2)), delete({"id": "d"}, at(2)))
    return path


def merge(engine, path, version, *changes, columns=COLUMNS):
    return ENGINES[engine].merge(
        path, write_set(changes, columns), key=["id"], deletes="hard", app_id="q/t/s",
        version=version,
    )  # fmt: skip


def rows(path):
    found = content(path).drop_columns([CDC]).to_pylist()
    return {row.pop("id"): row for row in found}


def test_rows_get_the_value_in_one_commit_and_only_once(engine, path):
    before = DeltaTable(path).version()
    for _ in range(2):
        assert schema_evolution.fill(path, [fill(), fill("x", value="y", kind=pa.string())],
                           app_id="q/fill/7", table="public.t", engine=engine)  # fmt: skip
    assert DeltaTable(path).version() == before + 1
    more = {"w": 11, "x": "y"}
    assert rows(path) == {"a": {"v": "va", **more}, "b": {"v": "vb", **more}, "c": {"v": None, **more}}  # fmt: skip


def test_what_comes_afterwards_goes_on_from_there(engine, path):
    schema_evolution.fill(path, [fill()], app_id="q/fill/7", engine=engine)
    wide = {**COLUMNS, "w": pa.int32()}
    changes = [upsert({"id": "a", "v": "x", "w": None}, at(3)), upsert({"id": "e", "v": "y", "w": 2}, at(3))]  # fmt: skip
    merge(engine, path, 3, *changes, columns=wide)
    assert {key: row["w"] for key, row in rows(path).items()} == {"a": None, "b": 11, "c": 11, "e": 2}  # fmt: skip


@pytest.mark.parametrize(
    "asked",
    [
        [fill("v")],  # it is there: which rows are older?
        [fill(), fill("v")],
        [fill(source="gone")],
        [fill("a"), fill("b", source="a")],  # nor one of the same time
    ],
)
def test_a_table_of_which_nobody_knows_the_older_rows_stays_as_it_is(engine, path, asked):
    before = DeltaTable(path).version()
    assert not schema_evolution.fill(path, asked, app_id="q/fill/7", engine=engine)
    assert DeltaTable(path).version() == before


def test_a_table_that_is_not_there_is_not_made(engine, tmp_path):
    path = str(tmp_path / "none")
    assert not schema_evolution.fill(path, [fill()], app_id="q/fill/7", engine=engine)
    assert not DeltaTable.is_deltatable(path)


def test_a_column_takes_its_values_along_and_what_is_not_known_of_it(engine, path):
    merge(engine, path, 3, upsert({"id": "b", "v": None}, at(4), unavailable=("v",)))
    assert schema_evolution.fill(path, [fill(source="v")], app_id="q/fill/7", engine=engine)
    assert {key: row["w"] for key, row in rows(path).items()} == {"a": "va", "b": None, "c": None}
    found = {row["id"]: row[CDC]["unavailable"] for row in content(path).to_pylist()}
    assert found == {"a": None, "b": ["v", "w"], "c": None}


# -- images ---------------------------------------------------------------------------------------


def packet(*images, op="u"):
    count = len(images)
    return change_batch.build_simple(
        keys=pa.array([b"[%d]" % n for n in range(count)], pa.binary()),
        ops=pa.array([op] * count),
        position=pa.array([lsns.pack(0, STEP * p, 0) for p, _ in images], pa.binary()),
        source_ts=pa.array([0] * count, pa.int64()),
        force=pa.array([False] * count),
        rows=pa.array([row for _, row in images]),
        table=ORDERS,
        key_columns=change_batch.KeyColumns(("id",)),
    )


def test_only_images_that_are_older_get_it():
    given = packet((99, {"id": 0}), (100, {"id": 1}), (101, {"id": 2}))
    whole = fills.filled(given, [fill(upto=100)])
    assert whole.column("row").to_pylist() == [{"id": 0, "w": 11}, {"id": 1, "w": None}, {"id": 2, "w": None}]  # fmt: skip


def test_an_image_that_has_the_column_keeps_what_it_has():
    given = packet((1, {"id": 0, "w": None}), (1, {"id": 1, "w": 3}))
    assert fills.filled(given, [fill()]) is given


@pytest.mark.parametrize(
    ("one", "image", "doubts"),
    [
        (fill(), {"id": 1}, False),
        (fill(), {"id": 1, "v": "a"}, False),
        (fill(), {"id": 1, "v": "a", "w": 2}, False),
        (fill(), {"id": 1, "v": "a", "x": 2}, True),  # is it what is w now?
        (fill(source="v"), {"id": 1, "v": "a"}, False),
        (fill(source="v"), {"id": 1, "w": "a"}, False),
        (fill(source="v"), {"id": 1, "x": "a"}, True),
        (fill(source="v"), {"id": 1}, True),
    ],
)
def test_a_column_that_had_a_third_name_between_two_looks_is_read_again(one, image, doubts):
    given = packet((1, image), (200, image))
    if doubts:
        assert fills.filled(given, [one]) is given
    assert fills.doubted(given, image, [one]) == ({b"[0]"} if doubts else set())


def test_a_delete_with_a_key_alone_says_nothing_of_a_column():
    given = packet((1, {"id": 0, "v": None}), (1, {"id": 1, "v": "old"}), op="d")
    whole = fills.filled(given, [fill()])
    assert whole.column("row").to_pylist() == [{"id": 0, "v": None, "w": None}, {"id": 1, "v": "old", "w": 11}]  # fmt: skip
    assert not fills.doubted(packet((1, {"id": 0, "x": 1}), op="d"), ["id", "x"], [fill()])


def test_a_column_that_was_added_and_renamed_later():
    later = fill("x", source="w", known=("id", "v", "w"))
    whole = fills.filled(packet((1, {"id": 0})), [fill("w"), later])
    assert whole.column("row").to_pylist() == [{"id": 0, "w": 11, "x": 11}]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("1.50", pa.decimal128(10, 2)),
        ([1, None], pa.list_(pa.int64())),
        ([("a", None)], pa.map_(pa.string(), pa.string())),
        ({"x": 1.0}, pa.struct([pa.field("x", pa.float64())])),
        (b"\0", pa.binary()),
        (0, pa.timestamp("us", "UTC")),
        (None, pa.list_(pa.bool_())),
    ],
)
def test_a_value_of_any_type_travels_as_text(value, kind):
    cell = pa.array([Decimal(value) if pa.types.is_decimal(kind) else value], kind)
    one = msgspec.json.decode(
        msgspec.json.encode(Fill("w", "00", ("id",), packed(cell))), type=Fill
    )
    assert one.is_sound()
    assert one.cell().equals(cell)
    whole = fills.filled(packet((1, {"id": 0})), [msgspec.structs.replace(one, upto="ff")])
    assert whole.column("row").combine_chunks().field("w").equals(cell)


@pytest.mark.parametrize(
    "one",
    [
        Fill("", "00", ("id",), packed(pa.array([1]))),
        Fill("w", "no hex", ("id",), packed(pa.array([1]))),
        Fill("w", "00", (), packed(pa.array([1]))),
        Fill("w", "00", ("id",)),
        Fill("w", "00", ("id",), packed(pa.array([1])), "v"),
        Fill("w", "00", ("id",), "no base64!"),
        Fill("w", "00", ("id",), "AAAA"),
        Fill("w", "00", ("id",), packed(pa.array([1, 2]))),
    ],
)
def test_a_record_that_says_nothing_sound_is_known_as_such(one):
    assert not one.is_sound()


# -- batches --------------------------------------------------------------------------------------


class Filled(Shop):
    """A table that is whole, of a database that is looked at."""

    seen = frozenset({"id", "v"})

    def begin(self):
        self.put("c", 10, 1, v="a")
        self.put("c", 11, 2, v="b")
        self.run()
        self.records.append({"type": "table-read", "table": ORDERS, "until": self.batch})
        self.run()
        assert self.entry.repair.complete == BY_SNAPSHOT

    @property
    def entry(self):
        return self.state.tables[ORDERS]

    def alter(self, **columns):
        self.catalog.schemas[ORDERS] = schema_of(ORDERS, **columns)
        self.pipeline.seen_columns = lambda _: {ORDERS: self.seen}

    def look(self, *given, columns=("id", "v", "w"), goes_on=True):
        self.seen = frozenset(columns)
        sent = [msgspec.to_builtins(one) for one in given]
        self.records.append({"type": "table-fill", "table": ORDERS, "fills": sent})
        if goes_on:
            self.records.append({"type": "table-resume", "table": ORDERS, "code": UNSEEN})


@pytest.fixture
def shop(engine, tmp_path):
    broker = Broker({TOPIC: [[], []]})
    shop = Filled(tmp_path, broker, {ORDERS: schema_of(ORDERS, id="int8", v="text")},
                  {"engine": engine})  # fmt: skip
    shop.begin()
    return shop


def test_a_table_waits_with_a_new_column_until_it_is_known_what_older_rows_have(shop):
    shop.alter(**WIDE)
    shop.put("u", 20, 1, v="a", w=None)
    shop.put("c", 21, 3, v="c", w=5)
    shop.run()
    shop.run()
    assert (shop.entry.state, shop.entry.code, shop.entry.retried) == (ERRORED, UNSEEN, True)
    shop.look(fill())
    shop.run()
    assert shop.entry.state == STREAMING
    assert shop.values(column="w") == {1: None, 2: 11, 3: 5}
    assert not shop.entry.repair.resnapshot


def test_a_look_that_comes_first_keeps_nobody_waiting(shop):
    shop.alter(**WIDE)
    shop.look(fill(), goes_on=False)
    shop.run()
    assert shop.values(column="w") == {1: 11, 2: 11}
    shop.put("u", 20, 1, v="a", w=6)
    shop.run()
    shop.run()
    assert (shop.entry.state, shop.values(column="w")) == (STREAMING, {1: 6, 2: 11})


def test_older_images_that_come_later_get_the_value_until_none_can_come(shop):
    shop.alter(**WIDE)
    shop.put("u", 200, 1, v="a", w=None)
    shop.look(fill())
    shop.run()
    shop.run()
    shop.put("u", 30, 2, v="late", partition=1)
    shop.run()
    assert shop.values(column="w") == {1: None, 2: 11}
    assert shop.entry.repair.fills
    shop.put("u", 201, 2, v="newer", partition=1, w=7)
    shop.run()
    shop.run()
    assert not shop.entry.repair.fills
    assert shop.values(column="w") == {1: None, 2: 7}


def test_a_renamed_column_has_its_values(shop):
    shop.alter(**RENAMED)
    shop.put("c", 20, 3, v="c")  # of before, and not applied yet
    shop.put("u", 120, 1, w="x")
    shop.look(fill(source="v"), columns=("id", "w"))
    shop.run()
    shop.run()
    assert shop.values(column="w") == {1: "x", 2: "b", 3: "c"}
    assert shop.values() == {1: None, 2: "b", 3: "c"}


def test_a_batch_that_died_behind_the_commit_does_it_once(shop):
    shop.alter(**WIDE)
    shop.look(fill())
    shop.put("u", 20, 1, v="a", w=6)
    shop.checkpoint.dies_before_saving = True
    with pytest.raises(DiedError):
        shop.run()
    shop.restart()
    shop.pipeline.seen_columns = lambda _: {ORDERS: shop.seen}
    shop.again()
    shop.read = shop.broker.ends()
    shop.run()
    assert shop.values(column="w") == {1: 6, 2: 11}
    assert not shop.entry.repair.resnapshot


def test_a_table_that_has_the_column_already_is_read_again(shop):
    """It did not wait: the database had not answered."""
    shop.alter(**WIDE)
    shop.pipeline.seen_columns = lambda _: {}
    shop.put("u", 20, 1, v="a", w=None)
    shop.run()
    shop.run()
    assert shop.entry.state == STREAMING
    shop.look(fill())
    shop.run()
    assert shop.values(column="w") == {1: None, 2: None}
    assert shop.entry.repair.resnapshot == "older rows lack columns: w"
    assert not shop.entry.repair.fills


def test_a_table_waits_once_and_goes_on_by_itself(shop, monkeypatch):
    shop.alter(**WIDE)
    shop.put("u", 20, 1, v="a", w=6)
    shop.run()
    shop.run()
    assert shop.entry.code == UNSEEN
    shop.run()
    assert shop.entry.code == UNSEEN  # a look takes a moment
    clock = shop.pipeline.refresh.clock
    monkeypatch.setattr(shop.pipeline.refresh, "clock", lambda: clock() + 60)
    shop.run()
    assert (shop.entry.state, shop.entry.asked) == (STREAMING, False)
    assert shop.values(column="w") == {1: 6, 2: None}


def test_a_lake_that_is_away_is_no_reason_to_stop(shop, monkeypatch):
    def away(*_, **__):
        raise DependencyError("the lake is away", code="lake-unavailable")

    shop.alter(**WIDE)
    shop.look(fill())
    monkeypatch.setattr(schema_evolution, "fill", away)
    shop.run()
    assert shop.entry.repair.resnapshot
    assert not shop.entry.repair.fills


@pytest.mark.parametrize("given", [fill(), fill(source="v")])
def test_a_name_of_in_between_has_its_rows_read_again_also_after_a_crash(shop, given):
    """A batch's tasks run twice here, as they do where one is speculated: its commit is there."""
    shop.alter(**(RENAMED if given.source else WIDE))
    shop.pipeline.seen_columns = lambda _: {}
    shop.look(given)
    shop.run()
    between = {"id": "int8", "x": "text"} if given.source else {**WIDE, "x": "int4"}
    for columns in (between, RENAMED if given.source else WIDE):  # as a catalog was read last
        shop.catalog.schemas[ORDERS] = schema_of(ORDERS, **columns)
        shop.pipeline.schemas[ORDERS] = schema_of(ORDERS, **columns)
        key = 1 if columns is between else 2
        row = {"x": "b"} if given.source else {"v": "a", "x": 6}
        shop.state.ignorable[ORDERS] = ["x"]
        shop.put("u", 30 + key, key, **row)
        shop.run()
        shop.run()
        assert f"[{key}]" in shop.entry.repair.reread_keys, columns


def test_a_rebuild_has_nothing_to_fill(shop):
    shop.alter(**WIDE)
    shop.look(fill())
    shop.run()
    shop.records.append({"type": "table-rebuild", "table": ORDERS, "id": "x"})
    shop.put("u", 30, 2, v="late", partition=1)
    shop.run()
    shop.run()
    assert shop.entry.state == STREAMING
    assert not shop.entry.repair.fills


def test_a_table_that_waits_is_rebuilt_where_its_policy_says_so_and_loses_nothing(shop):
    shop.alter(**RENAMED)
    shop.put("u", 120, 1, w="x")
    shop.run()
    shop.run()
    assert shop.entry.code == UNSEEN
    rebuild = {"type": "table-rebuild", "table": ORDERS, "id": "x", "code": "", "automatic": True}
    resume = {"type": "table-resume", "table": ORDERS, "code": UNSEEN}
    shop.records += [{**rebuild, "offsets": shop.broker.ends()}, resume]
    shop.run()
    shop.run()
    assert shop.entry.files.rebuild
    assert shop.entry.state == STREAMING
    assert shop.entry.size.events == 3, "the one that it waited with is applied, and not left out"


def test_a_table_that_is_made_anew_begins_with_what_comes(shop, engine):
    shop.alter(**WIDE)
    shop.look(fill())
    shop.run()
    rmtree(table_path(shop.config.lake.path, ORDERS))
    shop.put("u", 30, 2, v="late", partition=1)
    shop.run()
    assert (shop.entry.state, shop.values()) == (STREAMING, {2: "late"})
    assert shop.entry.repair.resnapshot


def test_a_lake_that_is_away_for_another_table_repeats_no_batch_while_one_waits_for_a_look():
    """What lets it go on stands behind the batch."""
    waits = TableState(state=ERRORED, code=UNSEEN, retried=True)
    away = TableState(state=ERRORED, code="lake-unavailable", retried=True)
    failed = [TableOutcome("a", code=UNSEEN), TableOutcome("b", code="lake-unavailable")]
    Pipeline._degraded(Mock(), PipelineState(tables={"a": waits, "b": away}), failed)
    with pytest.raises(DependencyError):
        Pipeline._degraded(Mock(), PipelineState(tables={"b": away}), failed[1:])


def test_a_table_that_catches_up_is_looked_at_soon(shop):
    told = []
    shop.pipeline.forms_change = lambda: told.append(shop.batch)
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.run()
    shop.alter(**WIDE)
    shop.pipeline.schemas[ORDERS] = schema_of(ORDERS, **WIDE)
    shop.put("u", 20, 1, v="a", w=6)
    shop.run()
    assert not told
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.run()
    assert shop.entry.code == UNSEEN
    assert told == [shop.batch]


def test_few_tables_are_written_anew_in_a_batch(shop, monkeypatch):
    monkeypatch.setattr(tables, "FILL_BYTES", shop.entry.size.bytes)
    budget = FillBudget()
    assert budget.takes("public.a", shop.entry)
    assert not budget.takes("public.b", shop.entry)
    shop.alter(**WIDE)
    shop.look(fill())
    monkeypatch.setattr(FillBudget, "takes", lambda *_: False)
    shop.run()
    assert shop.entry.repair.resnapshot == "older rows lack columns: w"


def test_a_process_that_ends_over_it_twice_has_the_table_read_again(shop, monkeypatch):
    shop.alter(**WIDE)
    shop.look(fill(), goes_on=False)
    told = []
    monkeypatch.setattr(schema_evolution, "fill", Mock(side_effect=DiedError))
    with pytest.raises(DiedError):
        shop.run()
    for _ in range(3):
        shop.restart()
        monkeypatch.setattr(control_records.handling, "PROCESS", f"process {len(told)}")
        monkeypatch.setattr(control_records, "guarded", partial(GUARDED, process=f"p{len(told)}"))
        told.append(1)
        try:
            shop.again()
        except DiedError:
            continue
        break
    assert shop.entry.repair.resnapshot == "older rows lack columns"
    assert not shop.entry.repair.fills
    shop.read = shop.broker.ends()
    shop.run()
    assert shop.entry.state == STREAMING


# -- records --------------------------------------------------------------------------------------

WHOLE = {"complete": BY_SNAPSHOT, "engine": "task-merge"}


@pytest.mark.parametrize(
    ("entry", "can"),
    [
        ({}, True),
        ({"state": CATCHING_UP}, True),
        ({"state": ERRORED, "code": UNSEEN}, True),
        ({"engine": "deletion-vectors"}, True),
        ({"bytes": FILL_BYTES}, True),
        ({"bytes": FILL_BYTES + 1}, False),
        ({"engine": "spark-merge"}, False),
        ({"engine": ""}, False),
        ({"complete": ""}, False),
        ({"resnapshot": "it misses rows"}, False),
        ({"rebuild": "rebuild-1"}, False),
        ({"state": PAUSED}, False),
        ({"state": ERRORED, "code": "schema-incompatible"}, False),
    ],
)
def test_which_tables_get_values_and_which_are_read_again(shop, entry, can):
    state = PipelineState(batch=4, tables={ORDERS: table_state(**{**WHOLE, **entry})})
    record = {"type": "table-fill", "table": ORDERS, "fills": [msgspec.to_builtins(fill())]}
    can_fill = partial(plans.can_fill, shop.config)
    control_records.carry_out(
        [record], state, before=state, start={}, refresh=None, can_fill=can_fill
    )
    after = state.tables[ORDERS]
    assert [one.batch for one in after.repair.fills] == [4] * can
    assert bool(after.repair.resnapshot) == (not can or "resnapshot" in entry)


@pytest.mark.parametrize("given", [[], [{"column": "w", "upto": "zz", "value": "?"}], "nonsense"])
def test_a_record_that_cannot_be_carried_out_never_fills(given):
    state = PipelineState(tables={ORDERS: table_state(**WHOLE)})
    record = {"type": "table-fill", "table": ORDERS, "fills": given}
    control_records.carry_out([record], state, before=state, start={}, refresh=None)
    assert not state.tables[ORDERS].repair.fills


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ({}, False),
        ({"state": CATCHING_UP}, True),
        ({"pending": 3}, True),
    ],
)
def test_a_fill_is_forgotten_where_no_older_image_can_come(more, left):
    entry = table_state(fills=[fill(upto=100)], **more)
    state = PipelineState(tables={ORDERS: entry})
    for passed, stays in ((None, True), (99, True), (100, left)):
        bound = None if passed is None else lsns.pack(0, STEP * passed, 0)
        tables.end_fills(state, lambda _, bound=bound: bound)
        assert bool(entry.repair.fills) == stays


def test_a_chunk_that_was_read_before_may_still_come_while_a_run_is_under_way():
    entry = table_state(fills=[fill(upto=100)])
    tables.end_fills(PipelineState(tables={ORDERS: entry}, runs={"r"}), lambda _: b"\xff" * 20)
    assert entry.repair.fills
