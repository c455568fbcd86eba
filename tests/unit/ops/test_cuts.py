"""Which cut, and which versions: found in checkpoint and lake, as batches have left them."""

import json
from datetime import UTC, datetime

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from lakemark.cli.cli import app
from lakemark.errors import LakemarkError
from lakemark.ops import cuts
from lakemark.sink import kept_cuts
from lakemark.sink.names import folder_of
from tests.kit.cut_site import QUERY, A, B, CutSite, cut


@pytest.fixture
def site(tmp_path):
    made = CutSite(tmp_path)
    for batch in (5, 10, 18, 20, 31):
        made.commit(A, batch)
    made.commit(A, None)  # somebody's own, which says nothing
    for batch in (9, 33):
        made.commit(B, batch)
    made.keep(in_lake=[cut(1), cut(2)], in_state=[cut(3), cut(4, without=[B])])
    return made


@pytest.mark.parametrize(
    ("at", "transaction", "batches"),
    [
        ("latest", "74:1024", {A: 31}),
        ("0/300", "73:768", {A: 20, B: 9}),
        ("0/2FF", "72:512", {A: 20, B: 9}),
        ("0/100", "71:256", {A: 10, B: 9}),
        ("2023-11-14T22:13:22", "72:512", {A: 20, B: 9}),
        ("2023-11-14T22:13:22.999+00:00", "72:512", {A: 20, B: 9}),
        ("2023-11-14T23:13:21+01:00", "71:256", {A: 10, B: 9}),
    ],
)
def test_the_newest_cut_up_to_there_and_the_versions_of_its_batch(site, at, transaction, batches):
    (found,) = cuts.find(site.config, at=at)
    assert found.transaction == transaction
    assert site.batches(found) == batches
    without = {one.table: one.reason for one in found.tables if one.version is None}
    assert set(without) == {A, B} - set(batches)
    assert all("earlier cut" in reason for reason in without.values())


def test_only_the_tables_that_are_asked_for(site):
    (found,) = cuts.find(site.config, tables=[A])
    assert [one.table for one in found.tables] == [A]
    assert found.committed_at == datetime.fromtimestamp(1_700_000_004, UTC)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"at": "0/FF"}, "no-cut"),
        ({"at": "2020-01-01"}, "no-cut"),
        ({"at": "yesterday"}, "bad-value"),
        ({"tables": ["public.c"]}, "unknown-table"),
        ({"connector": "other"}, "bad-value"),
    ],
)
def test_what_there_is_not_is_refused_by_name(site, asked, code):
    with pytest.raises(LakemarkError) as caught:
        cuts.find(site.config, **asked)
    assert caught.value.code == code
    assert caught.value.hint


def test_without_any_cut_it_says_how_there_will_be_one(tmp_path):
    made = CutSite(tmp_path)
    for keep in (False, True):
        if keep:
            made.keep()
        with pytest.raises(LakemarkError) as caught:
            cuts.find(made.config)
        assert caught.value.code == "no-cut"
        assert "stream.cuts" in caught.value.hint


def test_a_table_without_a_version_says_why(tmp_path):
    site = CutSite(tmp_path)
    site.commit(A, 5)
    site.commit(B, 9)
    site.keep(in_state=[cut(1, batch=7)])
    (found,) = cuts.find(site.config, at="0/100")
    assert {one.table: (one.version is None, one.reason) for one in found.tables} == {
        A: (False, ""),
        B: (True, "it has no rows from before"),
    }


def test_cuts_of_another_query_are_not_taken_for_its_own(site):
    kept_cuts.keep(site.config.lake, "", [cut(4, batch=500)], query="another")
    (found,) = cuts.find(site.config)
    assert found.batch == 40


def test_the_same_cuts_again_change_nothing(site):
    path = kept_cuts.path_of(site.config.lake)
    before = DeltaTable(path).version()
    kept_cuts.keep(site.config.lake, "", [cut(1), cut(2)], query=QUERY)
    assert DeltaTable(path).version() == before
    assert kept_cuts.kept(site.config.lake, QUERY) == {"": [cut(1), cut(2)]}


def run(site, *arguments):
    done = CliRunner().invoke(app, ["cut", "-c", str(site.root / "lakemark.yaml"), *arguments])
    return done.exit_code, done.output


def test_the_command_shows_versions_and_its_exit_code_says_whether_all_have_one(site):
    code, text = run(site, "--at", "0/300")
    assert code == 0
    assert "as of transaction 73:768, committed 2023-11-14 22:13:23.000+00:00" in text
    assert [line.split() for line in text.splitlines() if line.startswith("public")] == [
        [A, "3"],
        [B, "0"],
    ]
    code, text = run(site)
    assert code == 1
    assert "see an earlier cut" in " ".join(text.split())
    code, text = run(site, "--at", "0/300", "-o", "json")
    (found,) = json.loads(text)["cuts"]
    assert {one["table"]: one["version"] for one in found["tables"]} == {A: 3, B: 0}


def test_the_command_prints_views(site):
    path = folder_of(site.config.lake, A)
    code, text = run(site, "--sql", "spark", "--at", "0/300")
    assert code == 0
    view = (
        f"CREATE OR REPLACE TEMPORARY VIEW `{A}` AS SELECT * FROM delta.`{path}` VERSION AS OF 3;"
    )
    assert view in text.replace("\n", "")
    code, text = run(site, "--sql", "duckdb")
    assert code == 1
    assert f"-- {B}: it was behind" in text
    assert f"delta_scan('{path}', version => 4)" in text.replace("\n", "")
