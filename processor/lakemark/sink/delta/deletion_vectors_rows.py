"""Finds rows of tables with deletion vectors by key, and reads them, without reading the table.

Where a file's rows are by key says its index (`index_cache`). So what a batch costs depends on its
own rows, and not on how many the table has.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakemark.sink.delta import data_files, delta_rs, table_log
from lakemark.sink.delta.commits import Options, open_table
from lakemark.sink.delta.data_files import LakeKey, Places, index_of, key_ranges
from lakemark.sink.delta.failures import told
from lakemark.sink.delta.key_index import KeyWords, lookup
from lakemark.sink.delta.table_log import DataFile, LogTable, Opened, TableFiles
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.names import CDC, sources_of
from lakemark.sink.row_rules import Flags
from lakemark.sink.write_set import key_cells


def files_of(table: Opened, store: TableStore) -> TableFiles:
    """The files of the version that is open."""
    if isinstance(table, LogTable):
        return table.files
    return table_log.load(store, table.version(), table_id=str(table.metadata().id))


def key_columns(key: Iterable[str], schema: pa.Schema) -> LakeKey:
    """The key under the table's column names.

    Args:
        key: source names.
        schema: of the table.
    """
    by_source = {source: name for name, source in sources_of(schema).items()}
    names = sorted(by_source[name] for name in key)
    return LakeKey(tuple(pa.field(n, schema.field(n).type) for n in names))


class VectorReader:
    """Reads deletion vectors; a file that holds several is read once."""

    def __init__(self, store: TableStore) -> None:
        self.store = store
        self._files: dict[str, bytes] = {}

    def read(self, file: DataFile) -> Places:
        """The rows of a file that are deleted.

        Raises:
            TableError, OSError: as `table_log.read_vector`.
        """
        if file.vector is None:
            return np.empty(0, np.int64)
        return table_log.read_vector(self.store, file.vector, self._files)


def among(rows: Places, ordered: Places) -> Flags:
    """Mark the rows that are in a sorted set."""
    if not len(ordered):
        return np.zeros(len(rows), bool)
    at = np.minimum(np.searchsorted(ordered, rows), len(ordered) - 1)
    found: Flags = ordered[at] == rows
    return found


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows of one file that have keys among some that are given; none of them is deleted.

    Attributes:
        source: number of the key, of each.
        rows: row of the file, of each.
        deleted: the file's deleted rows.
        newest: the highest position in the file.
        records: rows in the file.
    """

    file: DataFile
    source: Places
    rows: Places
    deleted: Places
    newest: bytes
    records: int


@dataclass(frozen=True, slots=True)
class Finder:
    """A version of a table in which rows are looked for.

    Attributes:
        store: the table's folder.
        files: of the version.
        key: the columns by which.
    """

    store: TableStore
    files: TableFiles
    key: LakeKey

    @property
    def table_id(self) -> str:
        """The table's own, from its metadata."""
        return str(self.files.metadata["id"])

    def by_key(self, keys: pa.Table) -> Iterator[Hits]:
        """Rows with the given keys, file by file.

        Args:
            keys: the key columns in the table's types; `Hits.source` is a row of these.

        Raises:
            TableError: a deletion vector cannot be read.
            FileNotFoundError, OSError: a file is gone, or the store does not answer.
        """
        ranges = key_ranges(self.key, keys)
        there = [f for f in self.files.files.values() if all(one.may_meet(f) for one in ranges)]
        words = self.key.words(keys)
        order = np.argsort(words.first)
        second = None if words.second is None else words.second[order]
        yield from self.hits(there, KeyWords(words.first[order], second), order)

    def hits(self, files: Iterable[DataFile], words: KeyWords, source: Places) -> Iterator[Hits]:
        """Rows of some files with keys that are given in order, `source` being theirs.

        Raises:
            TableError, OSError: as `by_key`.
        """
        vectors = VectorReader(self.store)
        order = np.arange(len(words.first))
        for file in files:
            index = index_of(self.store, file, self.key, self.table_id)
            which, rows = lookup(index, words, order)
            if not len(rows):
                continue
            deleted = vectors.read(file)
            alive = ~among(rows, deleted)
            if alive.any():
                yield Hits(
                    file, source[which[alive]], rows[alive], deleted,
                    index.newest, index.records,
                )  # fmt: skip


def read_rows(
    path: str,
    keys: pa.Table,
    columns: Sequence[str] | None = None,
    storage_options: Options = None,
    opened: Opened | None = None,
) -> pa.Table:
    """The table's rows with the given keys; as `delta_rs.read_rows`, at a cost that is the keys'.

    Args:
        path: folder of the table.
        keys: the key columns under the source's names, any number of rows.
        columns: source names of the columns wanted, `_cdc` may be among them; None = all.
        storage_options: of delta-rs.
        opened: the newest version of the table, if it is open already.

    Raises:
        TableError: `lake-refused`: deletion vectors that cannot be read.
        DependencyError: the lake does not answer or refuses.
    """
    table = opened or open_table(path, storage_options)
    if table is None:
        return delta_rs.read_rows(path, keys, columns, storage_options)
    schema = pa.schema(table.schema().to_arrow())
    sources = {**sources_of(schema), CDC: CDC}
    by_source = {source: name for name, source in sources.items()}
    wanted = pa.schema([schema.field(by_source[c]) for c in (columns or sources.values())])
    key = key_columns(keys.column_names, schema)
    cells = [key_cells(keys.column(sources[name])) for name in key.names]
    typed = pa.table(cells, names=key.names).cast(pa.schema(key.fields))
    store = TableStore(path, dict(storage_options or {}))
    with told(path):
        hits = Finder(store, files_of(table, store), key).by_key(typed)
        found = [data_files.read_rows(store, h.file, np.unique(h.rows), wanted) for h in hits]
    rows = pa.concat_tables([wanted.empty_table(), *found])
    return rows.rename_columns([sources[name] for name in wanted.names])
