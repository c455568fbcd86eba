"""PostgreSQL: the sums of a table's rows by ranges of its key, as one transaction sees them."""

from typing import Final

import numpy as np
import pyarrow as pa

from lakemark.connectors.database import not_summed
from lakemark.connectors.postgres.checksum_sql import EXPECTED, PROBE, plan, sums_query
from lakemark.connectors.postgres.postgres_chunks import OpenTable
from lakemark.model.checksums import ChecksumPlan, NumberRanges, RangeSums, RefusedSums
from lakemark.model.handling_modes import HandlingModes

_VERSION: Final = 14_00_00


def checksum_plan(
    table: OpenTable, kept: pa.Schema, modes: HandlingModes
) -> tuple[ChecksumPlan, str] | RefusedSums:
    """Return how a table's rows are hashed, and the SQL of a row's hash; or why they cannot be."""
    if table.session.info.server_version < _VERSION:
        return RefusedSums("the server is older than PostgreSQL 14")
    if table.session.execute(PROBE).fetchone() != EXPECTED:
        return RefusedSums("the server is no UTF-8 one whose machine has little-endian words")
    return plan(table.columns, table.schema, kept, modes)


def read_sums(
    table: OpenTable, kept: pa.Schema, ranges: NumberRanges, modes: HandlingModes
) -> RangeSums:
    """Return the sums of ranges.

    Raises:
        TableError: `not-summed`: the table is not as it was when its ranges were made.
    """
    found = checksum_plan(table, kept, modes)
    if isinstance(found, RefusedSums):
        raise not_summed(table.schema.table, found)
    how, hashed = found
    query = sums_query(table.source, how.order, hashed, ranges)
    rows = table.session.execute(query.sql.encode(), query.parameters).fetchall()
    sums = [int(total or 0) % (1 << 64) for _, total in rows]
    return RangeSums(np.array([count for count, _ in rows], np.int64), np.array(sums, np.uint64))
