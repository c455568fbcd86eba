"""A batch's plan on its way to the tasks."""

import base64
import zlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lakemark.model.decoding import AppliedPosition, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.spark import plan_broadcast
from lakemark.spark.plan_broadcast import QueryContext
from lakemark.tasks import DecodePlan
from tests.kit.shop import ITEMS, ORDERS, schema_of

SECRET = {"sasl.password": "hunter2"}


@pytest.fixture
def told(monkeypatch):
    """Hands a plan over and returns what the task gets, and the text that Spark carries."""
    properties = {}
    context = SimpleNamespace(getLocalProperty=properties.get)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=properties.__setitem__))
    monkeypatch.setattr(plan_broadcast, "TaskContext", SimpleNamespace(get=lambda: context))

    def hand_over(plan, known):
        plan_broadcast.send(spark, plan, known)
        return plan_broadcast.receive(known), properties[plan_broadcast.PROPERTY]

    return hand_over


def plan(**schemas):
    stretch = StretchPlan(
        SourceIdentity("postgresql", "shop"),
        HandlingModes(),
        schemas=schemas,
        applied={("shop.public.orders", 0): AppliedPosition(b"\1" * 20, 7)},
        stopped=frozenset([ITEMS]),
    )
    return DecodePlan(stretch, shards=4, slots=3, slot_of={ORDERS: 2}, kafka=SECRET, armed=True)


def test_the_task_gets_what_the_driver_made(told):
    made = plan(**{ORDERS: schema_of(ORDERS), ITEMS: schema_of(ITEMS)})
    known = QueryContext({ORDERS: made.stretch.schemas[ORDERS]}, SECRET)
    assert told(made, known)[0] == made
    assert told(replace(made, armed=False), known)[0] == replace(made, armed=False)


def test_a_schema_read_again_replaces_the_one_the_query_started_with(told):
    old, new = schema_of(ORDERS), replace(schema_of(ORDERS), key=())
    got, _ = told(plan(**{ORDERS: new}), QueryContext({ORDERS: old, ITEMS: schema_of(ITEMS)}, {}))
    assert got.stretch.schemas == {ORDERS: new}


def test_neither_secrets_nor_known_schemas_travel(told):
    made = plan(**{ORDERS: schema_of(ORDERS)})
    _, text = told(made, QueryContext(made.stretch.schemas, SECRET))
    carried = zlib.decompress(base64.b64decode(text))
    assert b"hunter2" not in carried
    assert b"TableSchema" not in carried


def test_a_job_outside_a_batch_says_so(monkeypatch):
    monkeypatch.setattr(plan_broadcast, "TaskContext", SimpleNamespace(get=lambda: None))
    with pytest.raises(RuntimeError, match="not told"):
        plan_broadcast.receive(QueryContext({}, {}))
