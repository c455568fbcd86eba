"""MySQL and MariaDB: where to cut a table, without reading its rows.

Neither can sample a table by its blocks. A table of moderate size is walked along its key: the
server steps over as many entries of the index as a chunk has and shows the key there. Of a larger
one whose key begins with a whole number the index is asked how many entries a range of them has.
"""

from collections.abc import Iterator
from typing import Final

import pymysql

from lakemark.connectors.mysql.even_cuts import even_cuts
from lakemark.connectors.mysql.key_sql import KeyPart, all_of, range_condition
from lakemark.connectors.mysql.mysql_catalog import sizes
from lakemark.connectors.mysql.mysql_chunks import (
    MAX_CHUNK_BYTES,
    OpenTable,
    key_at,
    no_nulls,
    source_of,
)
from lakemark.connectors.mysql.mysql_errors import INTERRUPTED, number_of
from lakemark.errors import DependencyError
from lakemark.model.key_ranges import CUT_TIMEOUT, Boundary, Condition, KeyRange, fitting_rows

# A walk passes a few million entries a second where they are in memory; where they are not, the
# whole table is read, as the key and the rows are in one index.
_WALKED_ROWS: Final = 1_000_000
_ROWS_PLACE: Final = {True: 8, False: 9}  # of EXPLAIN's columns, in MariaDB and MySQL


def boundaries(
    table: OpenTable, chunk_rows: int, *, condition: Condition | None = None
) -> list[Boundary]:
    """Keys that cut a table into chunks of about so many rows, in the database's order.

    Args:
        table: an open table.
        chunk_rows: rows of a chunk; fewer if the table's rows are so wide that a chunk would have
            more than half of `MAX_CHUNK_BYTES`.
        condition: only rows for which it holds count.

    Returns:
        for `ranges`; none for a table of one chunk.

    Raises:
        DependencyError: ``cut-timeout``.
    """
    rows, size = sizes(table.session, table.schema.table)
    step = fitting_rows(chunk_rows, rows=rows, size=size, most=MAX_CHUNK_BYTES)
    first = table.parts[0]
    try:
        if condition is None and first.kind == "whole" and rows > _WALKED_ROWS:
            return list(_estimated(table, first, step))
        return list(_walked(table, step, condition))
    except pymysql.MySQLError as error:
        if number_of(error) not in INTERRUPTED:
            raise
        raise DependencyError(
            f"cutting {table.schema.table} into chunks took longer than the statement timeout",
            code=CUT_TIMEOUT,
            hint="make chunks larger; index the columns of a filter and the surrogate-key",
        ) from error


def _walked(table: OpenTable, step: int, condition: Condition | None) -> Iterator[Boundary]:
    """Yield each step-th key that another row follows."""
    after: Boundary | None = None
    while True:
        beyond = range_condition(table.parts, KeyRange(after))
        wanted = all_of(no_nulls(table.parts), beyond, condition)
        found = key_at(table, wanted, step - 1, count=2)
        if len(found) < 2 or found[0] == after:  # noqa: PLR2004 - nothing follows
            return
        after = found[0]
        yield after


def _estimated(table: OpenTable, part: KeyPart, step: int) -> Iterator[Boundary]:
    """Yield the last keys of ranges of whole numbers, by estimates of the index."""
    source = source_of(table)
    query = f"SELECT MIN({part.sql}), MAX({part.sql}) FROM {source}"  # noqa: S608 (quoted)
    ((first, last),) = table.session.execute(query)
    if first is None:
        return
    place = _ROWS_PLACE[table.session.is_mariadb]
    # MySQL has trees by default, and MariaDB does not know the word.
    form = "" if table.session.is_mariadb else "FORMAT=TRADITIONAL"

    def estimate(begin: int, end: int) -> float:
        where = f"{part.sql} BETWEEN %s AND %s"
        query = f"EXPLAIN {form} SELECT 1 FROM {source} WHERE {where}"  # noqa: S608 (bound)
        (plan, *_) = table.session.execute(query, (begin, end))
        return float(plan[place] or 0)

    for number in even_cuts(int(first), int(last), step, estimate):
        if len(table.parts) == 1:
            yield (str(number),)
        else:
            upto = Condition(f"{part.sql} <= %s", (number,))
            yield from key_at(table, upto, 0, descending=True)
