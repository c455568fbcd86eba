"""An error in a stage leaves Spark's worker with its code: Spark hands on no more than a trace."""

import traceback
from types import SimpleNamespace

import pytest
from pyspark import cloudpickle

from lakemark import causes, tasks
from lakemark.errors import DependencyError
from lakemark.reconcile import operator
from lakemark.source.offset_ranges import OffsetRange
from lakemark.spark import plan_broadcast, query, spark_runner, topics

SAID = {"message": "the topic takes nothing", "code": "output-unavailable", "hint": "start it"}


class Frame:
    """Runs a stage on one batch as soon as it gets it, as a worker would: from its pickle."""

    def repartitionById(self, *_):  # noqa: N802 - as Spark has it
        return self

    coalesce = range = repartitionById

    def mapInArrow(self, stage, _):  # noqa: N802 - likewise
        batch = SimpleNamespace(column=lambda _: SimpleNamespace(to_pylist=lambda: [0]))
        list(cloudpickle.loads(cloudpickle.dumps(stage))(iter([batch])))


def failing(*_):
    raise DependencyError(**SAID)
    yield


def decoded_in_the_query(patch):
    for name in ("change_stream", "internal_stream"):
        patch.setattr(topics, name, lambda *_, **__: Frame())
    patch.setattr(plan_broadcast, "receive", lambda _: None)
    names = SimpleNamespace(chunks="chunks", control="control")
    stream = SimpleNamespace(starting="earliest", max_events_per_batch=1, shards=1)
    config = SimpleNamespace(stream=stream, topics=names)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    query.query(spark, config, query.ChangeLog("a", {}, {}), None, armed=True)


def decoded_beside_it(_):
    spark = Frame()
    spark.sparkContext = SimpleNamespace(defaultParallelism=1)
    query.decoded(spark, query.ChangeLog("a", {}, {}), [OffsetRange("a", 0, 0, 1)], lambda: None)


def merged(_):
    plan = SimpleNamespace(publishing=None, lake=None, decode=SimpleNamespace(slots=1))
    spark_runner._merge(Frame(), plan)


@pytest.mark.parametrize("stage", [decoded_in_the_query, decoded_beside_it, merged])
def test_an_error_in_a_stage_carries_its_code(monkeypatch, stage):
    for name in ("decode", "decode_ranges", "merge"):
        monkeypatch.setattr(tasks, name, failing)
    monkeypatch.setattr(operator, "reconciled", lambda *_, **__: None)
    with pytest.raises(DependencyError) as caught:
        stage(monkeypatch)
    told = "".join(traceback.format_exception(caught.value))
    found = causes.carried(told)
    assert type(found) is DependencyError
    assert {name: getattr(found, name) for name in SAID} == SAID
