"""What Spark has committed is what the state says the table must have."""

from types import SimpleNamespace

import pytest

from lakemark.sink.delta import spark_merge, spark_merge_driver
from lakemark.sink.lake_plan import TableOutcome
from lakemark.sink.table_sink import MergeResult

PLAN = SimpleNamespace(options=None, cut_id=lambda table: f"{table}/stream/truncate")


@pytest.mark.parametrize(
    ("gone", "recorded_as"),
    [
        (MergeResult(deleted=2), "stream/truncate"),
        (MergeResult(updated=2), "stream/truncate"),
        (MergeResult(skipped=True), "stream/truncate"),
        (MergeResult(), ""),  # Spark commits no DELETE that finds no row
    ],
)
def test_a_truncate_that_removes_nothing_is_not_asked_for_later(monkeypatch, gone, recorded_as):
    monkeypatch.setattr(spark_merge, "truncate", lambda *_, **__: gone)
    outcome = TableOutcome("shop.orders", step="stream", truncate=b"\1", version=1)
    own = SimpleNamespace(path="lake/orders", deletes="hard")
    spark_merge_driver.finish(None, own, outcome, PLAN)
    assert outcome.recorded_as == recorded_as
