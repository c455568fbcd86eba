"""Signals of a pipeline with several connectors: who takes which part, and answers as whom."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.settings.names import quoted
from lakemark.snapshot.fields import AdditionalCondition
from lakemark.snapshot.signal_parts import own_id, own_runs, part_of, parts_of
from lakemark.snapshot.signals import (
    ExecuteSnapshot,
    PauseSnapshot,
    Rejection,
    SetSnapshot,
    StopSnapshot,
    read,
)
from tests.kit.fake_world import SETTINGS, FakeWorld

EVERY = ["shop", "shop.eu", "crm"]


def execute(*patterns):
    return ExecuteSnapshot("s", patterns)


@pytest.mark.parametrize(
    ("patterns", "answers"),
    [
        (["shop.public.orders"], ["s@shop"]),
        ([r"shop\.public\..*"], ["s@shop"]),
        (["shop.eu.public.orders"], ["s@shop.eu"]),
        ([r"shop\.eu\.public\.orders"], ["s@shop.eu"]),
        (['"shop.eu".public.orders'], ["s@shop.eu"]),
        (["shopping.orders"], ["s@crm", "s@shop", "s@shop.eu"]),
        ([".*"], ["s@crm", "s@shop", "s@shop.eu"]),
        ([r'"shop\.eu"\.public\..*'], ["s@shop.eu"]),
        ([quoted('"shop.eu".public.orders')], ["s@shop.eu"]),
        ([r"shop\.public\.(a|b)"], ["s@shop"]),
        ([r"shop\.public\.a\|b"], ["s@shop"]),
        ([r"shop\.public\.a|crm\.public\.b"], ["s@crm", "s@shop", "s@shop.eu"]),
        ([r"shop\.public\.(a|b)|crm\.public\.(b)"], ["s@crm", "s@shop", "s@shop.eu"]),
        (["shop.public.a", "crm.sales.b"], ["s@crm", "s@shop"]),
    ],
)
def test_a_pattern_is_for_whose_prefix_it_begins_with_else_for_all(patterns, answers):
    assert parts_of(execute(*patterns), EVERY) == answers
    stop = StopSnapshot("s", tuple(patterns))
    assert parts_of(stop, EVERY) == answers


def test_each_gets_its_own_patterns_and_those_of_all():
    signal = execute("shop.public.a", "crm.sales.b", ".*c")
    parts = {one: part_of(signal, one, EVERY).data_collections for one in EVERY}
    assert parts == {
        "shop": ("shop.public.a", ".*c"),
        "shop.eu": (".*c",),
        "crm": ("crm.sales.b", ".*c"),
    }


def test_of_several_tables_each_connector_takes_its_own_with_their_filters():
    filters = (
        AdditionalCondition("shop.public.a", "a > 1"),
        AdditionalCondition(".*", "b > 1"),
        AdditionalCondition("crm.public.b", "c > 1"),
    )
    signal = ExecuteSnapshot("s", ("shop.public.a", "crm.public.b"), filters)
    found = {one: part for one in EVERY if (part := part_of(signal, one, EVERY)) is not None}
    assert {one: part.data_collections for one, part in found.items()} == {
        "shop": ("shop.public.a",), "crm": ("crm.public.b",),
    }  # fmt: skip
    assert {one: part.conditions for one, part in found.items()} == {
        "shop": filters[:2], "crm": filters[1:],
    }, "one with a filter for no table of its own would be rejected"  # fmt: skip
    assert [part.id for part in found.values()] == ["s@shop", "s@crm"]


def test_a_signal_about_all_runs_is_for_everybody():
    everybody = ["s@crm", "s@shop", "s@shop.eu"]
    assert parts_of(PauseSnapshot("s"), EVERY) == everybody
    assert parts_of(StopSnapshot("s"), EVERY) == everybody


@pytest.mark.parametrize(
    ("run", "runs"),
    [
        ("r@crm", {"crm": "r@crm"}),
        ("r@shop.eu", {"shop.eu": "r@shop.eu"}),
        ("r", {one: f"r@{one}" for one in EVERY}),
        ("me@home", {one: f"me@home@{one}" for one in EVERY}),
    ],
)
def test_a_run_is_changed_where_it_is(run, runs):
    signal = SetSnapshot("s", run, parallelism=1)
    parts = {one: part_of(signal, one, EVERY) for one in EVERY}
    assert {one: part.run for one, part in parts.items() if part is not None} == runs


@pytest.mark.parametrize("pattern", ["crm.public.orders", r"crm\.public\..*"])
def test_a_signal_for_one_that_is_away_is_not_rejected_by_the_others(pattern):
    shop = FakeWorld(replace(SETTINGS, qualifier="shop", every=("crm", "shop")))
    shop.execute("s", pattern)
    shop.send("set", "t", id="r@crm", parallelism=1)
    shop.go(2.0)
    assert shop.said() == []
    alone = FakeWorld(replace(SETTINGS, qualifier="shop", every=("shop",)))
    alone.execute("s", pattern)
    alone.go(2.0)
    assert alone.said("s@shop") == ["REJECTED"], (
        "of one that was taken out nobody else would say it"
    )


def test_what_nobody_can_read_is_said_once_under_its_own_id():
    for speaks in (True, False):
        one = FakeWorld(replace(SETTINGS, qualifier="shop", every=("crm", "shop"), speaks=speaks))
        one.send("execute", "s", data_collections=7)
        one.go(2.0)
        assert one.said() == ["REJECTED"] * speaks
        assert [note.id for note in one.notes] == ["s"] * speaks


@given(st.text(), st.sampled_from(["execute-snapshot", "stop-snapshot", "set-snapshot", "x"]))
def test_the_only_connector_takes_every_signal_as_it_came(name, kind):
    data = {"id": name} if kind == "set-snapshot" else {"data-collections": [name]}
    value = json.dumps({"id": name, "type": kind, "data": data}).encode()
    signal = read(b"p", value, pipeline="p", unnamed="u")
    if not isinstance(signal, Rejection):
        assert part_of(signal, "", [""]) is signal
        assert parts_of(signal, [""]) == [signal.id]


@given(st.lists(st.tuples(st.text(), st.sampled_from(EVERY))))
def test_runs_are_told_apart_by_their_ids(made):
    runs = {own_id(name, one): one for name, one in made}
    for connector in EVERY:
        own = own_runs(runs, connector)
        assert own == {run for run, one in runs.items() if one == connector}
    assert own_runs(runs, "") == set(runs)
