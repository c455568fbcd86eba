"""The broadcast of a batch's plan to tasks of a query that was planned before the batch existed.

The first stage is part of the streaming query, its plan is made when the batch begins: the driver
sets it as a local property of the thread that runs the batch's jobs, and Spark sends it along with
every task. Large or secret parts, the schemas that were known when the query started and Kafka's
settings, are part of the query instead.
"""

import base64
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql import SparkSession

from lakemark.model.schema import TableSchema
from lakemark.tasks import DecodePlan

PROPERTY: Final = "lakemark.plan"


@dataclass(frozen=True, slots=True)
class QueryContext:
    """The values that the tasks have from the start of the query."""

    schemas: Mapping[str, TableSchema]
    kafka: Mapping[str, Any]


def send(spark: SparkSession, plan: DecodePlan, context: QueryContext) -> None:
    """Give the plan to the tasks of all jobs that this thread runs from now on."""
    news = {t: s for t, s in plan.stretch.schemas.items() if context.schemas.get(t) is not s}
    gone = context.schemas.keys() - plan.stretch.schemas.keys()
    small = replace(plan, kafka={}, stretch=replace(plan.stretch, schemas=news))
    text = base64.b64encode(zlib.compress(pickle.dumps((small, gone)))).decode()
    spark.sparkContext.setLocalProperty(PROPERTY, text)


def receive(query_context: QueryContext) -> DecodePlan:
    """Return the plan, in a task.

    Raises:
        RuntimeError: the job does not run under `send`: a defect.
    """
    context = TaskContext.get()
    text = context.getLocalProperty(PROPERTY) if context is not None else None
    if text is None:
        raise RuntimeError("this task was not told what to do: please report this defect")
    small, gone = _read(text)
    schemas = {t: s for t, s in query_context.schemas.items() if t not in gone}
    stretch = replace(small.stretch, schemas={**schemas, **small.stretch.schemas})
    return replace(small, kafka=query_context.kafka, stretch=stretch)


@lru_cache(maxsize=2)
def _read(text: str) -> tuple[DecodePlan, frozenset[str]]:
    small, gone = pickle.loads(zlib.decompress(base64.b64decode(text)))  # noqa: S301 - our own
    return small, frozenset(gone)
