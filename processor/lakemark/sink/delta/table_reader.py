"""A Delta table as a `TableReader`: each question opens the newest version, by delta-rs."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from lakemark.errors import LakemarkError
from lakemark.model import commit_note
from lakemark.model.columns import Column
from lakemark.model.key import canonical_from_columns
from lakemark.sink.delta import delta_rs
from lakemark.sink.delta.commits import open_table
from lakemark.sink.delta.engines import USER_METADATA
from lakemark.sink.delta.failures import told
from lakemark.sink.names import CDC, source_schema, sources_of
from lakemark.sink.table_format import TableCommit

MOST: Final = 100_000  # keys; more than that is a table that needs a snapshot


@dataclass(frozen=True, slots=True)
class DeltaReader:
    """See `TableReader`.

    Attributes:
        path: folder of the table.
        options: of delta-rs.
    """

    path: str
    options: dict[str, str]

    def columns(self) -> Collection[str] | None:
        """Return the source names of its columns."""
        table = open_table(self.path, self.options)
        if table is None:
            return None
        return sources_of(pa.schema(table.schema().to_arrow())).values()

    def schema(self) -> pa.Schema | None:
        """Return its columns under the source's names, without `_cdc`."""
        table = open_table(self.path, self.options)
        if table is None:
            return None
        return source_schema(pa.schema(table.schema().to_arrow()))

    def version(self) -> int | None:
        """Return the number of its newest version; reads no list of files."""
        table = open_table(self.path, self.options, with_files=False)
        return None if table is None else table.version()

    def rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows that are not marked deleted."""
        table = open_table(self.path, self.options)
        if table is None:
            return
        schema = pa.schema(table.schema().to_arrow())
        by_source = {source: name for name, source in sources_of(schema).items()}
        names = [by_source[column] for column in columns]
        typed = pa.schema([schema.field(name).remove_metadata() for name in names])
        own = CDC not in schema.names
        marks = not own and "deleted" in {field.name for field in schema.field(CDC).type}
        alive = f"{CDC}['deleted'] is not true" if marks else None
        with told(self.path):
            for batch in pa.RecordBatchReader.from_stream(
                table.scan(columns=names, predicate=alive)
            ):
                # Texts are scanned as views.
                piece = pa.Table.from_batches([batch]).cast(typed)
                yield piece.rename_columns(list(columns))

    def read_rows(self, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys."""
        return delta_rs.read_rows(self.path, keys, storage_options=self.options)

    def rows_at(self, version: int, keys: pa.Table) -> pa.Table | None:
        """Return the rows with these keys in an earlier version, if its log and files are there."""
        try:
            with told(self.path):
                table = DeltaTable(self.path, version, storage_options=self.options or None)
            return delta_rs.rows_of(table, keys, self.path)
        except LakemarkError:
            return None

    def history(self) -> list[TableCommit]:
        """Return the commits in the log."""
        table = open_table(self.path, self.options)
        if table is None:
            return []
        with told(self.path):
            found = table.history()
        return [
            TableCommit(
                int(one["version"]),
                int(one.get("timestamp") or 0),
                str(one.get("operation") or ""),
                commit_note.decode(one.get(USER_METADATA)),
            )
            for one in found
        ]

    def keys_below(self, position: bytes, *, key: Sequence[str]) -> pa.Table:
        """Return the keys of the rows that a truncate at a position removes."""
        return delta_rs.keys_below(self.path, position, key=key, storage_options=self.options)

    def incomplete_keys(self, key: Sequence[Column]) -> list[bytes]:
        """Return canonical keys of rows with unavailable columns; reads that column and the key."""
        table = open_table(self.path, self.options)
        if table is None:
            return []
        schema = pa.schema(table.schema().to_arrow())
        by_source = {source: name for name, source in sources_of(schema).items()}
        names = [by_source[column.name] for column in key]
        with told(self.path):
            rows = pa.table(
                table.scan(columns=[*names, CDC], predicate=f"{CDC}['unavailable'] is not null")
            )
        # Texts are scanned as views, which Arrow does not filter.
        rows = rows.cast(pa.schema([schema.field(name) for name in (*names, CDC)]))
        if "deleted" in {field.name for field in schema.field(CDC).type}:
            alive = [not row["deleted"] for row in rows.column(CDC).to_pylist()]
            rows = rows.filter(pa.array(alive, pa.bool_()))
        rows = rows.slice(0, MOST)
        columns = [rows.column(name).combine_chunks() for name in names]
        found = canonical_from_columns(columns, list(key)).to_pylist()
        return [name for name in found if name is not None]
