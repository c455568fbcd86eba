"""Columns of the source whose names lakemark needs itself: the table says so, and loses nothing."""

import pytest

from lakemark.sink.names import CDC, OWN
from lakemark.state import tables
from tests.kit.shop import ITEMS, ORDERS, schema_of


@pytest.mark.parametrize("name", sorted(OWN))
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.sampled(4)
def test_a_column_of_such_a_name_stops_its_table(shop, name, later):
    if later:
        shop.put("c", 9, 1, v="a")
        shop.run()
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="text", **{name: "text"})
    shop.put("c", 10, 2, v="b", **{name: "mine"})
    shop.put("c", 10, 7, v="x", table=ITEMS)
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.code) == (tables.ERRORED, "column-name-taken")
    assert repr(name) in entry.reason
    assert "column.exclude.list" in entry.hint
    assert shop.values(ITEMS) == {7: "x"}


def test_names_that_are_only_like_those_are_columns_as_any(shop):
    others = {name.upper(): "text" for name in OWN if name != CDC}
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int8", **others)
    shop.put("c", 10, 1, **{name: name for name in others})
    shop.run()
    for name in others:
        assert shop.values(column=name) == {1: name}
