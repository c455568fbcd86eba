"""Tables whose records do not fit the catalog as last read, while nobody can be asked."""

import pytest

from lakemark.errors import ConfigError, DependencyError
from lakemark.state import schema_refresh, tables
from lakemark.state.schema_refresh import AGAIN_S
from tests.kit.shop import ITEMS, ORDERS, schema_of

pytestmark = pytest.mark.usefixtures("letters")

AWAY = DependencyError("the database does not answer", code="database-unavailable", hint="start it")


class Clock:
    """Seconds that pass when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(shop):
    """The shop's pipeline lives by it."""
    shop.pipeline.refresh.clock = clock = Clock()
    return clock


def wider(shop):
    """The source's table has got a column."""
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="text", w="int4")


@pytest.mark.parametrize("failure", [AWAY, ConfigError("it refuses the password")])
def test_a_new_column_while_the_database_is_away_holds_up_its_table_alone(shop, clock, failure):
    shop.put("c", 10, 1, v="a")
    shop.put("c", 10, 7, v="x", table=ITEMS)
    shop.run()
    wider(shop)
    shop.catalog.away = failure
    shop.put("c", 11, 2, v="b", w=5)
    shop.put("u", 11, 7, v="y", table=ITEMS)
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.code, entry.retried) == (tables.ERRORED, failure.code, True)
    assert "w" in entry.reason
    assert failure.message in entry.reason
    assert entry.hint == failure.hint
    assert shop.values(ITEMS) == {7: "y"}
    assert shop.values() == {1: "a"}

    shop.put("u", 12, 1, v="aa", w=6)
    shop.put("u", 12, 7, v="z", table=ITEMS)
    clock.now += AGAIN_S
    shop.run()
    assert shop.state.tables[ORDERS].code == failure.code, "still away"
    assert shop.values(ITEMS) == {7: "z"}

    shop.catalog.away = None
    clock.now += AGAIN_S
    shop.run()
    shop.run()
    assert shop.state.tables[ORDERS].state == tables.STREAMING
    assert shop.values(column="w") == {1: 6, 2: 5}


def test_nobody_is_asked_again_before_some_time_has_passed(shop, clock):
    shop.catalog.away = AWAY
    for number in range(4):
        shop.put("c", 10 + number, number, v="a", w=5)
        shop.run()
    assert shop.catalog.asked == 1
    clock.now += AGAIN_S
    shop.run()
    assert shop.catalog.asked == 2


def test_values_are_no_dead_letters_before_the_catalog_has_been_asked(shop, clock, letters):
    shop.catalog.schemas[ORDERS] = shop.pipeline.schemas[ORDERS] = schema_of(
        ORDERS, id="int8", v="int4"
    )
    shop.put("c", 10, 1, v=1)
    shop.run()
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="int8")  # widened at the source
    shop.catalog.away = AWAY
    shop.put("c", 11, 2, v=1 << 40)
    shop.put("c", 12, 3, v="poison")
    for _ in range(3):
        shop.run()
        clock.now += AGAIN_S
    assert letters == []
    assert shop.state.tables[ORDERS].code == AWAY.code
    shop.catalog.away = None
    shop.run()
    shop.run()
    assert shop.values() == {1: 1, 2: 1 << 40}
    assert [letter.offset for letter in letters] == [2] * len(letters)
    assert letters
    assert shop.state.tables[ORDERS].state == tables.STREAMING


def test_a_column_that_came_while_a_table_was_paused_is_looked_up_when_it_goes_on(shop):
    """The partition whose records fit has been written by then: the others are not left out."""
    shop.put("c", 10, 1, v="a", partition=0)
    shop.put("c", 10, 2, v="a", partition=1)
    shop.run()
    shop.records.append({"type": "table-pause", "table": ORDERS})
    wider(shop)
    shop.put("u", 11, 1, v="b", partition=0)
    shop.put("u", 12, 2, v="b", w=5, partition=1)
    shop.run()
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.run()
    shop.run()
    assert shop.state.tables[ORDERS].state == tables.STREAMING
    assert shop.values(column="w") == {1: None, 2: 5}
    assert shop.values() == {1: "b", 2: "b"}


def test_a_table_that_the_catalog_does_not_know_goes_on_when_it_does(shop, clock):
    """It was dropped before anybody read its schema; the one of its name is another one."""
    name = "public.nobody"
    shop.put("c", 10, 1, v="a", table=name)
    for _ in range(3):
        shop.run()
        entry = shop.state.tables[name]
        assert (entry.state, entry.code, entry.retried) == (tables.ERRORED, "schema-unknown", False)
        assert entry.repair.resnapshot == ""
        shop.run()
        asked = shop.catalog.asked
        shop.run()
        assert shop.catalog.asked == asked, "it is not asked with every batch"
        clock.now += schema_refresh.LONGEST_S
    assert entry.hint.endswith(f"lakemark table resume {name}")
    shop.catalog.schemas[name] = schema_of(name, id="int8", v="text")
    for _ in range(2):
        shop.run()
    entry = shop.state.tables[name]
    assert (entry.state, entry.repair.resnapshot) == (tables.STREAMING, schema_refresh.MADE_ANEW)


def test_the_hints_of_a_schema_file_lead_on(shop, letters):
    """Without a database nothing is asked again: the file is mended, and the table resumed."""
    shop.catalog.live = False
    shop.pipeline.schemas.update({ORDERS: schema_of(ORDERS, id="int8", v="int4")})
    shop.put("c", 10, 1, v=1, w=5)
    shop.put("c", 10, 7, v=1, table=ITEMS)
    shop.run()
    assert {name: entry.code for name, entry in shop.state.tables.items()} == {
        ORDERS: "schema-stale",
        ITEMS: "schema-check",
    }
    for name, entry in shop.state.tables.items():
        assert "source.schema_file" in entry.hint
        assert entry.hint.endswith(f"lakemark table resume {name}")
        shop.records.append({"type": "table-resume", "table": name})
    shop.catalog.schemas.update(
        {table: schema_of(table, id="int8", v="int4", w="int4") for table in (ORDERS, ITEMS)}
    )
    shop.restart()
    shop.run()
    assert shop.values(column="w") == {1: 5}
    assert shop.values(ITEMS) == {7: 1}
    assert letters == []
