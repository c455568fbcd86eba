"""lakemark without its operator: decode, then merge. What `./dev bench idle-lane` compares with.

The query then has neither the stateful operator nor the chunks and control topics as sources, so
it cannot take snapshots; a checkpoint of it is of no use to lakemark.
"""

from collections.abc import Callable

from pyspark.sql import DataFrame

from lakemark.cli.cli import main
from lakemark.reconcile import operator


def _pass(
    decoded: DataFrame,
    chunks: DataFrame,  # noqa: ARG001 - the operator's signature
    control: DataFrame,  # noqa: ARG001
    *,
    shards: int,  # noqa: ARG001
    slot_of: Callable[[str], int],  # noqa: ARG001
) -> DataFrame:
    return decoded.drop("shard")


if __name__ == "__main__":
    operator.reconciled = _pass
    main()
