"""The delta-rs engine: merges one batch into one Delta table, in any Python process.

Exactly once per (app id, version): see `commits`. Which row wins: see `merge_sql`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from lakemark.sink.delta import merge_sql
from lakemark.sink.delta.commits import Options, committed, existing, once, open_table, size_of
from lakemark.sink.delta.engines import TASK_MERGE
from lakemark.sink.delta.failures import told
from lakemark.sink.delta.schema_evolution import ensure
from lakemark.sink.names import CDC, ROW, quoted, sources_of
from lakemark.sink.table_sink import MergeResult, TableSize
from lakemark.sink.write_set import Staged, TargetColumn, key_cells, prepare

__all__ = [
    "MergeResult",
    "TableSize",
    "committed",
    "ensure",
    "keys_below",
    "merge",
    "open_table",
    "read_rows",
    "size_of",
    "truncate",
]

# A list of keys this long still prunes by value; longer ones only by range.
_LISTED_KEYS: Final = 1000
_OPS_OF_NEW_ROWS: Final = frozenset({"c", "r"})
# Where the rows are there already, as in a second snapshot, the first of its keys say so.
_FIRST_KEYS: Final = 10_000
_KEYS_AT_ONCE: Final = 1_000_000


def merge(
    path: str,
    write_set: pa.Table,
    *,
    key: Sequence[str],
    deletes: str,
    app_id: str,
    version: int,
    storage_options: Options = None,
    opened: DeltaTable | None = None,
    note: str = "",
) -> MergeResult:
    """Applies a write set in one commit, exactly once per (app_id, version).

    Args:
        path: folder of the table, made by `schema_evolution.ensure`.
        write_set: see `write_set`; columns under the source's names, one row per key. Without
            rows nothing is committed, and so nothing recorded.
        key: source names of the primary key's columns.
        deletes: `hard` or `soft`.
        app_id: ``<query id>/<table>/<step>``.
        version: batch id.
        storage_options: of delta-rs.
        opened: the table, if the caller has it open: see `commits.once`.
        note: what the commit says of itself, see `commit_note`.

    Raises:
        TableError: `table-missing`, `schema-behind`, `engine-mismatch`,
            `unsupported-table-feature`, `null-key`, `duplicate-key`, `write-set-invalid` …
        DependencyError: `lake-unavailable`, `lake-forbidden`, `lake-full`, `lake-busy`.
    """

    def work(table: DeltaTable, commit: CommitProperties) -> tuple[int, int, int]:
        schema = pa.schema(table.schema().to_arrow())
        staged = prepare(write_set, schema, key=key)
        if staged.shape.only_adds and _are_new(table, staged, schema):
            return _append(table, staged, schema, commit)
        counts, changed = _merge(table, staged, deletes, commit)
        if not changed:
            _record(table, schema, commit)
        return counts

    if not write_set.num_rows:
        with told(path):
            table = existing(path, storage_options, opened)
            size = size_of(table)
        return MergeResult(rows=size.rows, files=size.files, bytes=size.bytes, at=table.version())
    return once(
        path,
        work,
        app_id=app_id,
        version=version,
        storage_options=storage_options,
        opened=opened,
        note=note,
    )


def truncate(
    path: str,
    position: bytes,
    *,
    deletes: str,
    app_id: str,
    version: int,
    storage_options: Options = None,
    engine: str = TASK_MERGE,
    note: str = "",
) -> MergeResult:
    """Removes, or marks deleted, the rows below a truncate, exactly once per (app_id, version).

    Which rows lie below is `positions.below_truncate`. Marked rows get the truncate's position
    and op `t`; rows that are marked already stay as they are. A step of its own: the app id must
    not be that of `merge`.

    Raises:
        TableError, DependencyError: as `merge`.
    """
    below = f"({merge_sql.below_truncate(position)})"

    def work(table: DeltaTable, commit: CommitProperties) -> tuple[int, int, int]:
        schema = pa.schema(table.schema().to_arrow())
        if deletes == "soft":
            fields = [f.name for f in schema.field(CDC).type]
            found = table.update(
                updates={quoted(CDC): merge_sql.truncated(fields, position)},
                predicate=f"{below} and not coalesce(_cdc['deleted'], false)",
                commit_properties=commit,
            )
            counts = (0, int(found["num_updated_rows"]), 0)
        else:
            found = table.delete(below, commit_properties=commit)
            counts = (0, 0, int(found["num_deleted_rows"] or 0))
        if not sum(counts):
            _record(table, schema, commit)
        return counts

    return once(
        path,
        work,
        app_id=app_id,
        version=version,
        storage_options=storage_options,
        engine=engine,
        note=note,
    )


def keys_below(
    path: str, position: bytes, *, key: Sequence[str], storage_options: Options = None
) -> pa.Table:
    """The keys of the rows that `truncate` at this position removes, or marks deleted.

    Args:
        path: folder of the table; without a table there are none.
        position: of the truncate.
        key: source names of the key's columns: those of the result.
        storage_options: of delta-rs.

    Raises:
        DependencyError: the lake does not answer or refuses.
    """
    table = open_table(path, storage_options)
    if table is None:
        return pa.table({name: pa.nulls(0) for name in key})
    schema = pa.schema(table.schema().to_arrow())
    by_source = {source: name for name, source in sources_of(schema).items()}
    names = [by_source[name] for name in key]
    predicate = f"({merge_sql.below_truncate(position)})"
    if "deleted" in {field.name for field in schema.field(CDC).type}:
        predicate += f" and not coalesce({CDC}['deleted'], false)"
    with told(path):
        rows = pa.table(table.scan(columns=names, predicate=predicate))
    return rows.cast(pa.schema([schema.field(n) for n in names])).rename_columns(list(key))


def read_rows(
    path: str,
    keys: pa.Table,
    columns: Sequence[str] | None = None,
    storage_options: Options = None,
) -> pa.Table:
    """The table's rows with the given keys.

    Args:
        path: folder of the table.
        keys: the key columns under the source's names, any number of rows.
        columns: source names of the columns wanted, `_cdc` may be among them; None = all.
        storage_options: of delta-rs.

    Returns:
        The wanted columns under the source's names in the table's types, one row per key found,
        in no order. Without a table: no rows, and `_cdc` is missing.

    Raises:
        DependencyError: the lake does not answer or refuses.
    """
    table = open_table(path, storage_options)
    if table is None:
        wanted = (
            keys.column_names if columns is None else [c for c in columns if c in keys.schema.names]
        )
        return keys.slice(0, 0).select(wanted)
    return rows_of(table, keys, path, columns)


def rows_of(
    table: DeltaTable, keys: pa.Table, path: str, columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows with the given keys in the version that is open; as `read_rows`."""
    schema = pa.schema(table.schema().to_arrow())
    sources = {**sources_of(schema), CDC: CDC}
    by_source = {source: name for name, source in sources.items()}
    wanted = [by_source[c] for c in (columns or sources.values())]
    found = _read_keys(table, keys, by_source, wanted, path)
    return found.rename_columns([sources[n] for n in found.column_names])


def _read_keys(
    table: DeltaTable, keys: pa.Table, by_source: Mapping[str, str], wanted: list[str], path: str
) -> pa.Table:
    schema = pa.schema(table.schema().to_arrow())
    names = [by_source[k] for k in keys.column_names]
    plain = pa.table([key_cells(column) for column in keys.columns], names=names)
    typed = plain.cast(pa.schema([schema.field(n) for n in names]))
    columns = list(dict.fromkeys([*names, *wanted]))
    with told(path):
        reader = table.scan(columns=columns, predicate=_key_filter(typed) or None)
        rows = pa.table(reader).cast(pa.schema([schema.field(n) for n in columns]))
    # The hash join takes no nested columns: join row numbers, then take.
    places = _places(typed)
    numbered = rows.select(names).rename_columns(places)
    numbered = numbered.append_column(ROW, pa.array(range(rows.num_rows), pa.int64()))
    hit = numbered.join(typed.rename_columns(places), keys=places, join_type="left semi")
    return rows.take(hit.column(ROW)).select(wanted)


def _places(keys: pa.Table) -> list[str]:
    """Names of the columns for a join, which takes a name such as ``.a`` for a path."""
    return [str(at) for at in range(keys.num_columns)]


def _key_filter(keys: pa.Table) -> str:
    if not keys.num_rows:
        return "false"
    pairs = [(TargetColumn(n, n, n), keys.column(n)) for n in keys.column_names]
    ranges = merge_sql.key_ranges(pairs, dialect=merge_sql.DATAFUSION, alias="")
    first = keys.column(0)
    if keys.num_rows > _LISTED_KEYS or not (
        pa.types.is_integer(first.type) or pa.types.is_string(first.type)
    ):
        return ranges
    text = merge_sql.DATAFUSION.text
    values = ", ".join(
        text(v) if isinstance(v, str) else str(v) for v in pc.unique(first).drop_null().to_pylist()
    )
    listed = f"{quoted(keys.column_names[0])} in ({values})" if values else "false"
    return f"{listed} and {ranges}" if ranges else listed


def _are_new(table: DeltaTable, staged: Staged, schema: pa.Schema) -> bool:
    """Say whether the table has no row with any of the keys; only rows of c and r may be new.

    Reading keys alone costs a fraction of the join that a merge is.
    """
    size = size_of(table)
    if size.rows == 0 and not size.files:
        return True
    ops = pc.unique(pc.struct_field(staged.table.column(CDC), "op")).to_pylist()
    if not _OPS_OF_NEW_ROWS.issuperset(ops):
        return False
    given = staged.keys()
    names = [column.name for column, _ in given]
    keys = pa.table([cells for _, cells in given], names=names)
    typed = pa.schema([schema.field(name) for name in names])
    ranges = merge_sql.key_ranges(given, dialect=merge_sql.DATAFUSION, alias="")
    found: list[pa.RecordBatch] = []
    count, limit = 0, _FIRST_KEYS
    for batch in pa.RecordBatchReader.from_stream(
        table.scan(columns=names, predicate=ranges or None)
    ):
        found.append(batch.cast(typed))
        count += batch.num_rows
        if count >= limit:
            if _any_in(found, keys):
                return False
            found.clear()
            count, limit = 0, min(_KEYS_AT_ONCE, limit * 4)
    return not (found and _any_in(found, keys))


def _any_in(found: Sequence[pa.RecordBatch], keys: pa.Table) -> bool:
    table = pa.Table.from_batches(found)
    if table.num_columns == 1:
        return bool(pc.any(pc.is_in(table.column(0), value_set=keys.column(0))).as_py())
    places = _places(keys)
    found_keys: pa.Table = table.rename_columns(places).join(
        keys.rename_columns(places), keys=places, join_type="left semi"
    )
    return bool(found_keys.num_rows)


def _append(
    table: DeltaTable, staged: Staged, schema: pa.Schema, commit: CommitProperties
) -> tuple[int, int, int]:
    """All rows of the write set as new rows, without a join."""
    given = {c.name: staged.table.column(c.staged) for c in staged.shape.columns}
    given[CDC] = staged.table.column(CDC)
    count = staged.table.num_rows
    rows = [given.get(f.name, pa.nulls(count, f.type)) for f in schema]
    write_deltalake(table, pa.table(rows, schema=schema), mode="append", commit_properties=commit)
    return count, 0, 0


def _record(table: DeltaTable, schema: pa.Schema, commit: CommitProperties) -> None:
    """A commit that changes no row: delta-rs makes none for a merge without effect."""
    write_deltalake(table, schema.empty_table(), mode="append", commit_properties=commit)


def _merge(
    table: DeltaTable, staged: Staged, deletes: str, commit: CommitProperties
) -> tuple[tuple[int, int, int], bool]:
    ranges = merge_sql.key_ranges(staged.keys(), dialect=merge_sql.DATAFUSION)
    merger = table.merge(
        staged.table,
        predicate=" and ".join(filter(None, [merge_sql.on(staged.shape), ranges])),
        source_alias="s",
        target_alias="t",
        commit_properties=commit,
    )
    for clause in merge_sql.clauses(staged.shape, deletes=deletes, dialect=merge_sql.DATAFUSION):
        if clause.kind == "delete":
            merger = merger.when_matched_delete(predicate=clause.predicate)
        elif clause.kind == "insert":
            merger = merger.when_not_matched_insert(
                predicate=clause.predicate, updates=clause.updates
            )
        else:
            merger = merger.when_matched_update(predicate=clause.predicate, updates=clause.updates)
    before = table.version()
    found: dict[str, Any] = merger.execute()
    counts = (
        int(found["num_target_rows_inserted"]),
        int(found["num_target_rows_updated"]),
        int(found["num_target_rows_deleted"]),
    )
    return counts, table.version() != before
