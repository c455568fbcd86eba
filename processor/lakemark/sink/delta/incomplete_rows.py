"""Rows of a Delta table that still have unavailable columns, by key."""

from collections.abc import Sequence

import pyarrow as pa

from lakemark.model.columns import Column
from lakemark.model.key import canonical_from_columns
from lakemark.sink.delta.commits import Options, open_table
from lakemark.sink.delta.failures import told
from lakemark.sink.names import CDC, sources_of

MOST = 100_000  # keys; more than that is a table that needs a snapshot


def partial_keys(
    path: str, key: Sequence[Column], *, storage_options: Options = None
) -> list[bytes]:
    """Canonical keys of the rows with unavailable columns, at most `MOST`; in no order.

    Reads one small column and the key.

    Args:
        path: folder of the table; without a table there are none.
        key: columns of its key under the source's names, in key order.
        storage_options: of delta-rs.

    Raises:
        DependencyError: the lake does not answer or refuses.
    """
    table = open_table(path, storage_options)
    if table is None:
        return []
    schema = pa.schema(table.schema().to_arrow())
    by_source = {source: name for name, source in sources_of(schema).items()}
    names = [by_source[column.name] for column in key]
    with told(path):
        rows = pa.table(
            table.scan(columns=[*names, CDC], predicate=f"{CDC}['unavailable'] is not null")
        )
    if "deleted" in {field.name for field in schema.field(CDC).type}:
        alive = [not row["deleted"] for row in rows.column(CDC).to_pylist()]
        rows = rows.filter(pa.array(alive, pa.bool_()))
    rows = rows.slice(0, MOST).cast(pa.schema([schema.field(n) for n in (*names, CDC)]))
    columns = [rows.column(name).combine_chunks() for name in names]
    found = canonical_from_columns(columns, list(key)).to_pylist()
    return [name for name in found if name is not None]
