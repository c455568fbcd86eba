"""The tables and the filters that a signal means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.settings.names import quoted
from lakemark.settings.table_id import text_of
from lakemark.snapshot.signals import matching
from tests.kit.signals import TABLES, execute


@pytest.mark.parametrize(
    ("patterns", "expected", "unmatched"),
    [
        (["public.orders"], ["public.orders"], []),
        (["public\\.orders.*"], ["public.orders", "public.orders_2024"], []),
        (["orders"], [], ["orders"]),
        (["shop.public.orders"], [], ["shop.public.orders"]),
        (["ublic.order"], [], ["ublic.order"]),
        (
            [".*orders", "public.*"],
            ["public.orders", "sales.orders", "public.orders_2024", "public.Orders", "public.a$b"],
            [],
        ),
        (["public.a$b"], ["public.a$b"], []),
        ([r"public\.a\$b"], ["public.a$b"], []),
        (['"public"."orders"'], ["public.orders"], []),
        (["x.y", "sales.orders", "x.y"], ["sales.orders"], ["x.y"]),
        (["public.orders|sales.orders"], ["public.orders", "sales.orders"], []),
        ([], [], []),
    ],
)
def test_tables_that_patterns_match(patterns, expected, unmatched):
    found = matching(patterns, TABLES)
    assert list(found.tables) == expected
    assert list(found.unmatched) == unmatched


def test_case_counts_for_tables_but_not_for_conditions():
    assert matching(["PUBLIC.ORDERS"], TABLES).unmatched == ("PUBLIC.ORDERS",)
    assert matching(["PUBLIC.ORDERS"], TABLES, ignore_case=True).tables == (
        "public.orders",
        "public.Orders",
    )


def test_the_first_condition_that_matches_a_table_counts():
    found = execute(
        **{
            "additional-conditions": [
                {"data-collection": "PUBLIC.o.*", "filter": "a = 1"},
                {"data-collection": ".*", "filter": "b = 2"},
                {"data-collection": "sales.x", "filter": "c = 3"},
            ]
        }
    )
    assert found.filters_of(["public.orders", "sales.x"]) == {
        "public.orders": "a = 1",
        "sales.x": "b = 2",
    }
    assert execute().filters_of(["public.orders"]) == {}
    assert execute(**{"additional-condition": "x = 1"}).filters_of(["any.thing"]) == {
        "any.thing": "x = 1"
    }


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.lists(st.builds(text_of, NAMES, NAMES), unique=True))
def test_a_quoted_name_matches_only_itself(tables):
    for table in tables:
        assert matching([quoted(table)], tables).tables == (table,)
