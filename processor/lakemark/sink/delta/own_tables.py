"""Tables of lakemark's own in the lake: rows are only ever added to them."""

from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from lakemark.sink.delta.commits import Options, conditional, open_table, retried
from lakemark.sink.delta.failures import told

_RECORDED: Final = 1


def append(path: str, rows: pa.Table, *, app_id: str, storage_options: Options = None) -> None:
    """Add rows in one commit, and make the table if there is none.

    Args:
        path: folder of the table.
        rows: in its columns; one that it lacks is added to it.
        app_id: what the rows are of: where it is recorded already, nothing is done.
        storage_options: of delta-rs.

    Raises:
        TableError: the folder holds something else.
        DependencyError: the lake does not answer or refuses.
    """
    options = dict(storage_options or {}) or None

    def attempt() -> None:
        with told(path):
            table = open_table(path, options)
            if table is None:
                table = DeltaTable.create(path, rows.schema, mode="ignore", storage_options=options)
            if table.transaction_version(app_id):
                return
            write_deltalake(
                table, rows, mode="append", schema_mode="merge",
                commit_properties=conditional(app_id, _RECORDED),
            )  # fmt: skip

    retried(path, attempt)
