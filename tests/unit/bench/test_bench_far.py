"""The benchmark of tables in an object store: all contestants end with the rows that are left."""

import json

import pytest

from bench import far

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.slow
def test_all_are_right_and_ours_asks_less(tmp_path):
    file = tmp_path / "far.json"
    assert (
        far.main(["--tables", "3", "--delay-ms", "0", "--batches", "2", "--json", str(file)]) == 0
    )
    rows = {row["who"]: row for row in json.loads(file.read_text())["rows"]}
    others = {"delta-rs", "delta-rs, eight at a time"}
    assert set(rows) == {"lakemark-task-merge", "lakemark-deletion-vectors"} | others
    assert all(row["correct"] for row in rows.values())
    assert rows["lakemark-deletion-vectors"]["requests"] <= 5


@pytest.mark.slow
def test_a_table_that_lacks_a_batch_is_wrong(tmp_path, monkeypatch):
    real = far.delta_rs.merge
    calls = []

    def forgetful(table, rows):
        calls.append(table)
        if len(calls) % 5:
            real(table, rows)

    monkeypatch.setattr(far.delta_rs, "merge", forgetful)
    file = tmp_path / "far.json"
    assert (
        far.main(["--tables", "2", "--delay-ms", "0", "--batches", "1", "--json", str(file)]) == 1
    )
    found = json.loads(file.read_text())
    wrong = {row["who"] for row in found["rows"] if not row["correct"]}
    assert wrong == {one["who"] for one in found["wrong"]}
    assert "delta-rs" in wrong
    assert not any(who.startswith("lakemark") for who in wrong)
