"""The import rule holds, and its check would notice if it did not."""

from stack.import_rule import violations
from tests.kit.sources import package


def test_the_rule_holds():
    assert violations() == []


def test_a_cycle_is_found(tmp_path):
    made = package(
        tmp_path,
        a="from lakemark.b import thing",
        b="def f():\n    from lakemark import c",
        c="import lakemark.a",
    )
    assert "a imports itself through b, c" in violations(made)


def test_an_import_for_the_type_checker_alone_is_no_cycle(tmp_path):
    made = package(
        tmp_path,
        a="from lakemark.b import thing",
        b="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lakemark.a import other",
    )
    assert violations(made) == []


def test_words_import_nothing_of_ours(tmp_path):
    made = package(tmp_path, errors="", events="from lakemark.errors import X")
    assert violations(made) == ["events imports errors: the words import nothing of ours"]


def test_a_pure_module_that_reaches_the_outside_through_another_is_found(tmp_path):
    made = package(tmp_path, keys="from lakemark.lookup import f", lookup="import httpx")
    assert violations(made) == ["keys is no longer pure: it reaches the outside in lookup"]


def test_folders_do_not_use_each_others_edges_but_their_pure_parts(tmp_path):
    made = package(
        tmp_path,
        sink__apply="from lakemark.source import gate, catalog",
        source__gate="",
        source__catalog="import psycopg",
    )
    assert violations(made) == [
        "sink.apply imports source.catalog: sink does not use the edges of source"
    ]


def test_spark_is_kept_to_its_modules(tmp_path):
    made = package(
        tmp_path, tables="from pyspark.sql import Row", sink__spark_merge="import pyspark"
    )
    (found,) = violations(made)
    assert found.startswith("tables imports PySpark: only ")


def test_only_what_runs_the_pipeline_imports_it(tmp_path):
    made = package(tmp_path, pipeline="", tables="import lakemark.pipeline", cli="")
    assert violations(made) == ["tables imports pipeline: only cli, supervisor may"]
