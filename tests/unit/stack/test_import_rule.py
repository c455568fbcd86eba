"""The import rule holds, and its check would notice if it did not."""

import pytest

from stack.import_rule import ORDER, PACKAGE, violations
from tests.kit.sources import package

TYPED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lakemark.{} import x\n"


@pytest.mark.slow  # the checks beside the quick suite have it
def test_the_rule_holds():
    assert violations() == []


def test_every_place_of_the_order_is_there():
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert there - {"__pycache__", "py"} == set(ORDER)


def test_a_cycle_is_found(tmp_path):
    made = package(
        tmp_path,
        model__a="from lakemark.model.b import thing",
        model__b="def f():\n    from lakemark.model import c",
        model__c="import lakemark.model.a",
    )
    assert "model.a imports itself through model.b, model.c" in violations(made)


def test_an_import_for_the_type_checker_alone_is_no_cycle(tmp_path):
    made = package(
        tmp_path, model__a="from lakemark.model.b import thing", model__b=TYPED.format("model.a")
    )
    assert violations(made) == []


@pytest.mark.parametrize("how", ["from lakemark.sink.apply import x", TYPED.format("sink.apply")])
def test_a_folder_imports_only_what_stands_before_it(tmp_path, how):
    made = package(tmp_path, source__fold=how, sink__apply="from lakemark.model import x")
    assert violations(made)[0] == "source.fold imports sink.apply: sink stands behind source"


def test_a_new_file_at_the_top_has_no_place(tmp_path):
    made = package(tmp_path, lately="")
    (found,) = violations(made)
    assert found.startswith("lately has no place: ")


def test_one_connector_does_not_know_another_but_what_they_share(tmp_path):
    made = package(
        tmp_path,
        connectors__mysql__types="from lakemark.connectors.postgres import cells",
        connectors__postgres__cells="from lakemark.connectors import refusals",
        connectors__refusals="",
    )
    (found,) = violations(made)
    assert found.startswith("connectors.mysql.types imports connectors.postgres.cells: one of ")


@pytest.mark.parametrize("name", ["source__fold", "converters__record_schema"])
def test_only_the_registry_knows_a_converter(tmp_path, name):
    known = "from lakemark.converters.json.keys import x"
    made = package(
        tmp_path,
        converters__json__converter=known,
        converters__json__keys="",
        converters__registry=known,
        **{name: known},
    )
    (found,) = violations(made)
    where = name.replace("__", ".")
    only = "only converters.registry may import what is in converters.json"
    assert found == f"{where} imports converters.json.keys: {only}"


@pytest.mark.parametrize("how", ["def f():\n    {}", "{}", TYPED.format("sink.delta.commits")])
def test_what_is_behind_a_seam_is_imported_by_its_registry_alone(tmp_path, how):
    made = package(
        tmp_path,
        sink__delta__commits="",
        sink__delta__rebuild="from lakemark.sink.delta import commits",
        sink__formats="from lakemark.sink.delta.rebuild import x",
        state__policies=how.format("from lakemark.sink.delta.commits import x"),
    )
    (found,) = [one for one in violations(made) if "EDGES" not in one]
    only = "only sink.formats may import what is in sink.delta"
    assert found == f"state.policies imports sink.delta.commits: {only}"


@pytest.mark.parametrize("how", ["from lakemark.{} import x", TYPED])
def test_only_connectors_know_which_databases_there_are(tmp_path, how):
    made = package(
        tmp_path,
        connectors__postgres__cells="",
        snapshot__chunks=how.format("connectors.postgres.cells"),
        ops__board="from lakemark.connectors import registry",
        connectors__registry="from lakemark.connectors.postgres import cells",
    )
    (found,) = [line for line in violations(made) if "EDGES" not in line]
    only = "only connectors may import what is in connectors.postgres"
    assert found == f"snapshot.chunks imports connectors.postgres.cells: {only}"


def test_a_pure_module_that_reaches_the_outside_through_another_is_found(tmp_path):
    made = package(
        tmp_path,
        connectors__refusals="from lakemark.connectors.connect_rest import f",
        connectors__connect_rest="import httpx",
    )
    assert violations(made) == [
        "connectors.refusals is no longer pure: it reaches the outside in connectors.connect_rest"
    ]


def test_an_edge_that_is_none_any_more_is_found(tmp_path):
    made = package(tmp_path, state__recovery="")
    assert violations(made) == ["state.recovery is pure: take it out of EDGES"]


def test_a_library_is_kept_to_its_place(tmp_path):
    made = package(
        tmp_path,
        spark__query="from pyspark.sql import DataFrame",
        state__control="import psycopg",
    )
    (found,) = violations(made)
    assert found == "state.control imports psycopg: only connectors.postgres may"
