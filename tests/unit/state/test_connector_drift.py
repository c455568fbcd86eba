"""A connector whose configuration changes: while lakemark runs, and between its runs."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from lakemark.connectors.connector import parse, read
from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.errors import DependencyError, PipelineError
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import DatabaseConfig
from lakemark.state import connector_drift, control, encoding
from lakemark.state.connector_drift import ChangedError, Watch, agree, agree_on_columns
from lakemark.state.encoding import Forms
from lakemark.state.tables import PipelineState, TableState
from lakemark.supervisor import Supervisor
from stack.processes import wait_for
from tests.kit.connector_settings import POSTGRES
from tests.kit.memory_pipeline import reconnected
from tests.kit.shop import ITEMS, ORDERS, schema_of

pytestmark = pytest.mark.usefixtures("letters")


def connector(shop, **settings):
    return parse(
        {**POSTGRES, **{k.replace("_", "."): v for k, v in settings.items()}}, config=shop.config
    )


# -- the stream --------------------------------------------------------------------------------


def test_events_of_a_table_that_the_connector_has_begun_to_capture_are_applied(shop):
    shop.pipeline.sources = reconnected(
        shop.pipeline.sources, **vars(connector(shop, table_include_list=ORDERS))
    )
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.put("c", 20, 1, v="first", table=ITEMS)
    shop.run()
    assert shop.values(ITEMS) == {1: "first"}
    assert shop.values() == {1: "a"}


def test_what_a_connector_has_sent_counts_though_it_captures_the_table_no_more(shop):
    shop.pipeline.sources = reconnected(
        shop.pipeline.sources, **vars(connector(shop, table_exclude_list=ORDERS))
    )
    shop.put("c", 10, 1, v="a")
    shop.run()
    assert shop.values() == {1: "a"}


def test_our_own_choice_holds_whatever_the_connector_captures(shop):
    shop.config.source.tables.append(ITEMS)
    shop.pipeline.sources = reconnected(
        shop.pipeline.sources, **vars(connector(shop, table_include_list=f"{ORDERS},{ITEMS}"))
    )
    shop.put("c", 10, 1, v="a")
    shop.put("c", 20, 1, v="b", table=ITEMS)
    shop.run()
    assert shop.state.tables.keys() == {ITEMS}


# -- while it runs -----------------------------------------------------------------------------


@pytest.fixture
def file(shop):
    """The connector's file, and what writes it."""
    path = shop.config.source.connector_file

    def written(**settings):
        path.write_text(
            json.dumps({**POSTGRES, **{k.replace("_", "."): v for k, v in settings.items()}})
        )

    written()
    return written


def test_a_connector_that_stays_the_same_is_not_noticed_nor_one_that_cannot_be_asked(shop, file):
    watch = Watch(shop.config, read(shop.config), Forms())
    watch.look()
    shop.config.source.connector_file.write_text("{")
    watch.look()
    watch.require_same()
    file(table_include_list=ITEMS, slot_name="other")
    watch.look()
    assert watch.changed == ("slot.name", "table.include.list")
    with pytest.raises(ChangedError):
        watch.require_same()


def test_it_is_asked_at_once_and_an_answer_holds_for_a_while(shop, file, monkeypatch):
    watch = Watch(shop.config, read(shop.config), Forms())
    reading = shop.config.source.connector_file
    text = reading.read_text()
    reading.write_text("{")
    assert not watch.is_same(), "it cannot be asked"
    reading.write_text(text)
    assert watch.is_same()
    file(slot_name="other")
    assert watch.is_same(), "it has been asked just now"
    monkeypatch.setattr(connector_drift, "ASKED_S", 0.0)
    assert not watch.is_same()
    with pytest.raises(ChangedError):
        watch.require_same()


def test_it_is_looked_at_again_and_again_until_it_has_changed(shop, file):
    with Watch(shop.config, read(shop.config), Forms(), every_s=0.01).running() as watch:
        file(table_include_list=ITEMS)
        wait_for(lambda: watch.changed, 10, "the change to be seen")
    assert watch.changed == ("table.include.list",)


def test_it_is_looked_at_as_often_as_the_catalog_if_that_is_more_often(shop, file):
    source = shop.config.source.model_copy(update={"watch_interval": timedelta(seconds=0.01)})
    config = shop.config.model_copy(update={"source": source})
    with Watch(config, read(config), Forms()).running() as watch:
        file(table_include_list=ITEMS)
        wait_for(lambda: watch.changed, 10, "the change to be seen")


def test_the_query_is_started_again_with_the_connector_as_it_is(shop, monkeypatch):
    supervisor, starts = Supervisor(shop.config, once=False), []

    def stream(spark):
        starts.append(spark)
        if len(starts) < 3:
            raise ChangedError

    monkeypatch.setattr(supervisor, "_stream", stream)
    assert supervisor._supervise(None) == 0
    assert len(starts) == 3


# -- between its runs --------------------------------------------------------------------------


class Kept:
    """What a checkpoint remembers."""

    def __init__(self, decoding=None):
        self.kept, self.columns, self.superseded = decoding, {}, False
        self.state = PipelineState(tables={ORDERS: TableState(), ITEMS: TableState()})

    def decoding(self, connector=""):
        return self.kept

    def note_decoding(self, settings, connector=""):
        self.kept = dict(settings)

    def written(self):
        return self.columns

    def note_written(self, columns):
        self.columns = dict(columns)

    def newest(self):
        return self.state

    def check_owner(self):
        if self.superseded:
            raise DependencyError("another process runs it", code="superseded")


def agreed(config, kept, connector, schemas):
    """The forms of columns, once a start has made what is kept agree with a connector."""
    agree(config, kept, connector)
    return agree_on_columns(config, kept, schemas)


@pytest.fixture
def said(monkeypatch):
    """Tables that were marked."""
    found = []
    monkeypatch.setattr(control, "resnapshot", lambda config, tables, why: found.extend(tables))
    return found


CATALOG = {
    ORDERS: {"id": "int8", "v": "text"},
    ITEMS: {"id": "int8", "price": "numeric", "at": "timestamp"},
}


@pytest.fixture
def catalog(monkeypatch):
    """A database of orders and items."""

    class Catalog:
        def __init__(self, modes):
            self.modes = modes

        def read(self, names):
            return {t: schema_of(t, modes=self.modes, **types) for t, types in CATALOG.items()}

    monkeypatch.setattr(connector_drift, "catalog_of", lambda config, modes, _: Catalog(modes))


@pytest.mark.parametrize(
    ("change", "tables"),
    [
        ({}, []),
        ({"table_include_list": ITEMS}, []),
        ({"binary_handling_mode": "bytes", "decimal_handling_mode": "PRECISE"}, []),
        ({"decimal_handling_mode": "string"}, [ITEMS]),
        ({"time_precision_mode": "connect"}, [ITEMS]),
        ({"interval_handling_mode": "string"}, []),
        ({"binary_handling_mode": "hex"}, [ITEMS, ORDERS]),
        ({"unavailable_value_placeholder": "x"}, [ITEMS, ORDERS]),
        ({"value_converter_decimal_format": "NUMERIC"}, [ITEMS, ORDERS]),
    ],
)
def test_tables_whose_values_may_have_been_read_the_wrong_way_are_read_again(
    shop, said, catalog, change, tables
):
    kept = Kept()
    agreed(shop.config, kept, connector(shop), {})
    assert said == []
    for _ in range(2):  # said once
        agreed(shop.config, kept, connector(shop, **change), {})
        assert said == tables
    assert kept.kept == encoding.of(connector(shop, **change).settings)


def test_where_no_catalog_tells_any_table_may_be_concerned(shop, said):
    kept = Kept()
    agreed(shop.config, kept, connector(shop), {})
    agreed(shop.config, kept, connector(shop, interval_handling_mode="string"), {})
    assert said == [ITEMS, ORDERS]


def test_a_table_whose_former_types_nobody_knows_is_read_again(shop, said, catalog, monkeypatch):
    monkeypatch.setitem(CATALOG, ORDERS, {"id": "int8"})
    old, new = HandlingModes(), HandlingModes(interval="string")
    of = {t: schema_of(t, **types) for t, types in CATALOG.items()}
    assert encoding.concerned([ORDERS, ITEMS], (old, new), {ITEMS: of[ITEMS]}, of) == [ORDERS]


def test_what_could_not_be_marked_is_marked_at_the_next_start(shop, said, catalog, monkeypatch):
    kept, change = Kept(), {"binary_handling_mode": "hex"}
    agreed(shop.config, kept, connector(shop), {})

    def away(*_):
        raise DependencyError("the brokers are away", code="kafka-unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(control, "resnapshot", away)
        with pytest.raises(DependencyError):
            agreed(shop.config, kept, connector(shop, **change), {})
    agreed(shop.config, kept, connector(shop, **change), {})
    assert said == [ITEMS, ORDERS]


@pytest.mark.parametrize("change", [{"topic_prefix": "other"}, {"connector_class": "X"}])
def test_another_source_takes_another_checkpoint(shop, said, change):
    kept = Kept()
    agreed(shop.config, kept, connector(shop), {})
    before = dict(kept.kept)
    with pytest.raises(PipelineError, match="another connector") as caught:
        agreed(shop.config, kept, connector(shop, **change), {})
    assert caught.value.code == "connector-changed"
    assert (kept.kept, said) == (before, [])


@pytest.mark.parametrize("first", [True, False])
def test_another_order_takes_another_pipeline(shop, said, first):
    """Positions of the two orders compare as bytes, and say nothing of each other."""
    kept, orders = Kept(), [replace(connector(shop), by_arrival=one) for one in (first, not first)]
    agreed(shop.config, kept, orders[0], {})
    agreed(shop.config, kept, orders[0], {})
    before = dict(kept.kept)
    with pytest.raises(PipelineError, match=r"source\.order") as caught:
        agreed(shop.config, kept, orders[1], {})
    assert (caught.value.code, kept.kept) == ("connector-changed", before)
    assert "lake.path" in caught.value.hint
    assert said == []


# -- columns ------------------------------------------------------------------------------------

MODIFIERS = {
    "": -1, "(10,2)": ((10 << 16) | 2) + 4, "(12,2)": ((12 << 16) | 2) + 4,
    "(12,4)": ((12 << 16) | 4) + 4, "(3)": 3, "(6)": 6, "(char 4)": 8, "(char 8)": 12,
}  # fmt: skip


def items(kind, modifier="", *, table=ITEMS):
    """A table with one column of this type."""
    element = kind.removesuffix("[]")
    name = f"_{element}" if element != kind else kind
    column = CatalogColumn(
        "v", name, MODIFIERS[modifier], element_type_name=element if element != kind else None
    )
    key = CatalogColumn("id", "int8", key_position=1)
    return {table: from_catalog(table, [key, column], ["id"], HandlingModes())}


@pytest.mark.parametrize(
    ("before", "after", "otherwise"),
    [
        (("numeric", "(10,2)"), ("numeric", "(12,4)"), True),
        (("numeric", "(10,2)"), ("numeric", "(12,2)"), False),
        (("timestamp", "(3)"), ("timestamp", "(6)"), True),
        (("time", "(3)"), ("time", "(6)"), True),
        (("text",), ("numeric", "(10,2)"), True),
        (("text",), ("bytea",), True),
        (("timestamp",), ("date",), True),
        (("int4",), ("date",), True),
        (("int4",), ("int8",), False),
        (("varchar", "(char 4)"), ("text",), False),
        (("bpchar", "(char 4)"), ("text",), True),
        (("bpchar", "(char 4)"), ("bpchar", "(char 8)"), True),
        (("timestamptz", "(6)"), ("timestamptz", "(3)"), True),
        (("timestamp[]", "(3)"), ("timestamp[]", "(6)"), True),
        (("int4[]",), ("int8[]",), False),
    ],
)
def test_a_type_by_which_values_are_written_otherwise(before, after, otherwise):
    old, now = encoding.written(items(*before)), encoding.written(items(*after))
    assert encoding.rewritten(old, now) == ([ITEMS] if otherwise else [])
    assert encoding.rewritten(now, now) == []


def test_columns_that_come_and_go_change_nothing_of_others():
    old = encoding.written({ITEMS: schema_of(ITEMS, id="int8", v="text", w="date")})
    now = encoding.written({ITEMS: schema_of(ITEMS, id="int8", v="text", x="date")})
    assert encoding.rewritten(old, now) == []


def test_tables_whose_columns_are_written_otherwise_are_read_again(shop, said):
    kept, ours = Kept(), connector(shop)
    both = items("numeric", "(10,2)") | items("numeric", "(10,2)", table=ORDERS)
    agreed(shop.config, kept, ours, both)
    assert said == []
    second = items("numeric", "(12,4)") | items("numeric", "(12,4)", table="public.new")
    for _ in range(2):  # said once
        agreed(shop.config, kept, ours, second)
        assert said == [ITEMS]
    agreed(shop.config, kept, ours, items("text", table=ORDERS))
    assert said == [ITEMS, ORDERS]  # it was away meanwhile


def test_a_type_that_is_changed_while_lakemark_runs_starts_the_query_again(shop, file, monkeypatch):
    class Catalog:
        modifier = "(3)"

        def read(self, names):
            return {t: items("timestamp", self.modifier, table=t)[t] for t in names}

    catalog = Catalog()
    monkeypatch.setattr(connector_drift, "catalog_of", lambda *_: catalog)
    database = DatabaseConfig(url="postgresql://u@h/d")
    config = shop.config.model_copy(update={"database": database})
    forms = agreed(config, Kept(), read(config), catalog.read([ORDERS, ITEMS]))
    watch = Watch(config, read(config), forms)
    watch.look()
    watch.require_same()
    catalog.modifier = "(6)"
    watch.look()
    assert watch.changed == (ITEMS, ORDERS)
    with pytest.raises(ChangedError):
        watch.require_same()


def test_a_column_of_another_form_is_noticed_where_the_catalog_was_asked_for_another_one(
    shop, said
):
    """Whoever asks it first decodes by its answer: nothing differs from that any more."""
    kept, ours = Kept(), connector(shop)
    forms = agreed(shop.config, kept, ours, {ITEMS: schema_of(ITEMS, id="int8")})
    forms.seen({ITEMS: schema_of(ITEMS, id="int8", v="date")})
    assert (forms.differ, forms.tables) == ((), [ITEMS])
    forms.seen({ITEMS: schema_of(ITEMS, id="int8", v="text", w="int8")})
    assert (forms.differ, said) == ((ITEMS,), [])
    agreed(shop.config, kept, ours, {ITEMS: schema_of(ITEMS, id="int8", v="text", w="int8")})
    assert said == [ITEMS], "and between the runs"


@pytest.mark.parametrize("state_kept", [True, False])
def test_a_column_that_was_gone_and_is_there_again_is_read_again(shop, said, state_kept):
    kept, ours = Kept(), connector(shop)
    with_it = {ITEMS: schema_of(ITEMS, id="int8", v="text")}
    without = {ITEMS: schema_of(ITEMS, id="int8")}
    forms = agreed(shop.config, kept, ours, with_it)
    forms.seen(without, {ITEMS: {"v"}})
    if state_kept:  # by a version that told nobody else
        kept.state.ignorable[ITEMS], kept.columns = ["v"], {}
    forms = agreed(shop.config, kept, ours, without)
    assert (forms.differ, said) == ((), [])
    forms.seen(with_it)
    assert forms.differ == (ITEMS,)
    agreed(shop.config, kept, ours, with_it)
    assert said == [ITEMS]


def test_all_that_handling_modes_are_made_of_is_remembered():
    class Asked(dict):
        names = set()

        def get(self, name, default=None):
            self.names.add(name)
            return default

    HandlingModes.from_connector(Asked())
    remembered = set(encoding.of(dict.fromkeys(Asked.names, "x")))
    assert remembered == Asked.names > {"decimal.handling.mode", "connector.class"}
