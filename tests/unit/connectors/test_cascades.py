"""Tables that change with others without an event: which of them, over any number of steps."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.catalog_changes import children_of
from lakemark.connectors.mysql.catalog_facts import Cascade, SourceFacts, TableFacts

NAMES = st.sampled_from([f"shop.t{number}" for number in range(5)])
CASCADES = st.lists(st.tuples(NAMES, NAMES, st.booleans()), max_size=8)


def looked(keys: list[tuple[str, str, bool]]) -> SourceFacts:
    """A look at tables with foreign keys: (child, parent, whether its updates count)."""
    found: dict[str, list[Cascade]] = {}
    for child, parent, updates in keys:
        found.setdefault(child, []).append(Cascade("fk", parent, updates))
    return SourceFacts(
        tables={name: TableFacts(name, cascades=tuple(ones)) for name, ones in found.items()}
    )


def test_a_grandchild_follows_though_nothing_tells_of_its_parent():
    keys = [("s.item", "s.order", False), ("s.order", "s.customer", True)]
    assert children_of(looked(keys)) == {
        "s.customer": {"s.item": True, "s.order": True},
        "s.order": {"s.item": False},
    }


@given(CASCADES)
def test_all_that_follow_are_found_however_they_are_chained(keys):
    found = children_of(looked(keys))
    steps = {(parent, child) for child, parent, _ in keys}
    reached = set(steps)
    while more := {(a, d) for a, b in reached for c, d in steps if b == c} - reached:
        reached |= more
    assert {(parent, child) for parent, below in found.items() for child in below} == reached
    first = {(parent, child) for child, parent, updates in keys if updates}
    by_update = {(a, d) for a, b in first for c, d in reached if b == c} | first
    told = {(parent, child) for parent, below in found.items() for child in below if below[child]}
    assert told == by_update


def test_a_tree_of_one_table_ends():
    keys = [(name, other, False) for name, other in pairwise(["t.a", "t.b", "t.c", "t.a"])]
    assert children_of(looked(keys))["t.a"].keys() == {"t.a", "t.b", "t.c"}
    assert children_of(looked([("t.tree", "t.tree", False)])) == {"t.tree": {"t.tree": False}}


def test_tables_of_one_of_several_connectors_are_told_by_their_full_names():
    own = looked([("s.item", "s.order", False), ("s.order", "s.order", False)])
    found = children_of(own.having({f"eu.{name}": table for name, table in own.tables.items()}))
    assert found == {"eu.s.order": {"eu.s.item": False, "eu.s.order": False}}
