"""Signals of several connectors: the part of each, told by the signal's text alone."""

import pytest

from lakemark.settings.names import quoted
from lakemark.snapshot.fields import AdditionalCondition
from lakemark.snapshot.signal_parts import own_runs, part_of, parts_of
from lakemark.snapshot.signals import (
    ExecuteSnapshot,
    PauseSnapshot,
    Rejection,
    SetSnapshot,
    StopSnapshot,
)

EVERY = ("shop", "shop.eu", "crm")


def parts(signal):
    return {one: part for one in EVERY if (part := part_of(signal, one, EVERY)) is not None}


@pytest.mark.parametrize(
    ("pattern", "own"),
    [
        ("shop.public.orders", {"shop"}),
        (r"shop\.public\..*", {"shop"}),
        ('"shop.eu".public.orders', {"shop.eu"}),
        (r'"shop\.eu"\.public\..*', {"shop.eu"}),
        (quoted('"shop.eu".public.orders'), {"shop.eu"}),
        (r".*\.orders", set(EVERY)),
        (r"shop\.public\.(a|b)", {"shop"}),
        (r"shop\.public\.a\|b", {"shop"}),
        (r"shop\.public\.a|crm\.public\.b", set(EVERY)),
        (r"shop\.public\.(a|b)|crm\.public\.(b)", set(EVERY)),
        ("shopping.public.orders", set(EVERY)),
    ],
)
def test_a_pattern_is_for_the_connector_that_it_begins_with(pattern, own):
    assert parts(ExecuteSnapshot("s", (pattern,))).keys() == own
    assert parts(StopSnapshot("s", (pattern,))).keys() == own


def test_of_several_tables_each_connector_takes_its_own_with_their_filters():
    filters = (
        AdditionalCondition("shop.public.a", "a > 1"),
        AdditionalCondition(".*", "b > 1"),
        AdditionalCondition("crm.public.b", "c > 1"),
    )
    found = parts(ExecuteSnapshot("s", ("shop.public.a", "crm.public.b"), filters))
    assert {one: part.data_collections for one, part in found.items()} == {
        "shop": ("shop.public.a",), "crm": ("crm.public.b",),
    }  # fmt: skip
    assert {one: part.conditions for one, part in found.items()} == {
        "shop": filters[:2], "crm": filters[1:],
    }, "one with a filter for no table of its own would be rejected"  # fmt: skip
    assert [part.id for part in found.values()] == ["s@shop", "s@crm"]


def test_a_change_is_for_the_connector_of_the_run():
    assert parts(SetSnapshot("s", "r@crm")).keys() == {"crm"}
    found = parts(SetSnapshot("s", "r"))
    assert {part.run for part in found.values()} == {f"r@{one}" for one in EVERY}
    assert parts_of(PauseSnapshot("p"), EVERY) == ["p@crm", "p@shop", "p@shop.eu"]


def test_what_cannot_be_read_is_answered_by_one_of_them():
    assert parts(Rejection("s", "bad-value", "no", "")).keys() == {"crm"}


def test_runs_of_connectors_are_told_apart_by_their_ids():
    runs = {"a@shop", "a@shop.eu", "x@crm"}
    assert own_runs(runs, "shop") == {"a@shop"}
    assert own_runs(runs, "") == runs
