"""A second `TableFormat`, small and slow: plain Parquet, a file for each version of a table.

Nothing outside of `sink/delta` may know that tables are Delta's: `tests/unit/pipeline/test_parquet_sink.py`
runs the contract of all formats on this one, and whole batches of the pipeline. It has one engine,
no files of chunks, no rebuilds and no fills: a format may leave them out.

A version is ``v<number>.json``, put in place when its rows are written: its file of rows, what is
recorded, and the source table. The rules of a merge are those of `write_sets.Model`, row by row.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from lakemark.converters.json import keys
from lakemark.errors import TableError
from lakemark.model import change_batch, positions
from lakemark.model.columns import Column
from lakemark.model.evolution import Evolution
from lakemark.settings.config import Config
from lakemark.sink import schema_changes
from lakemark.sink.names import (
    ACTION,
    BARRIER,
    CDC,
    FORCE,
    PATCH,
    column_names,
    field_named,
    source_schema,
    sources_of,
)
from lakemark.sink.resolve import Part
from lakemark.sink.table_format import TableCommit
from lakemark.sink.table_sink import MergeResult, SchemaPlan, TableSize, batch_of, schema_plan
from lakemark.sink.write_set import prepare
from tests.kit.write_sets import Change, Model, Row

PARQUET: Final = "parquet"


@dataclass(frozen=True)
class ParquetVersion:
    """A version of a table."""

    path: Path
    number: int
    said: dict[str, Any]

    def version(self) -> int:
        return self.number

    def rows(self) -> pa.Table:
        """Under the table's own column names."""
        return pq.read_table(self.path / self.said["file"])

    def schema(self) -> pa.Schema:
        return pq.read_schema(self.path / self.said["file"])

    def columns_of(self) -> pa.Schema:
        return source_schema(self.schema())

    def rows_of(self, keys: pa.Table) -> pa.Table:
        return _having(_by_source(self.rows()), keys)

    def size(self) -> TableSize:
        rows = pq.read_metadata(self.path / self.said["file"]).num_rows
        return TableSize(rows, (self.path / self.said["file"]).stat().st_size, int(rows > 0))


@dataclass(frozen=True)
class Beside:
    """Halves of key changes, as files beside the table."""

    folder: Path
    query: str

    def _file(self, batch: int, step: str) -> Path:
        return self.folder / f"{self.query}-{batch}-{step}.arrow"

    def save(self, packet: pa.Table, batch: int, step: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file(batch, step).write_bytes(change_batch.encode(packet))

    def load(self, batch: int, step: str) -> pa.Table | None:
        file = self._file(batch, step)
        return change_batch.decode(file.read_bytes()) if file.exists() else None

    def remove(self, batch: int, step: str) -> None:
        self._file(batch, step).unlink(missing_ok=True)


def newest(path: str | Path) -> ParquetVersion | None:
    """The newest version of a table."""
    numbers = [int(file.stem[1:]) for file in Path(path).glob("v*.json")]
    return version(path, max(numbers)) if numbers else None


def version(path: str | Path, number: int) -> ParquetVersion:
    return ParquetVersion(
        Path(path), number, json.loads((Path(path) / f"v{number}.json").read_text())
    )


@dataclass
class ParquetSink:
    """See `TableSink`."""

    path: str
    query: str = "q"
    pending: Beside = field(init=False)
    opened: ParquetVersion | None = None
    engine = PARQUET
    merges = True

    def __post_init__(self) -> None:
        self.pending = Beside(Path(self.path) / "pending", self.query)

    def open(self) -> None:
        self.opened = newest(self.path)

    def keep(self, *versions: int) -> None:
        """They are durable enough for a test."""

    def before(self, app_ids: Sequence[str], batch: int) -> ParquetVersion | None:
        found = self.opened
        while found is not None and found.number:
            recorded = [found.said["recorded"].get(name) for name in app_ids]
            if all(one is None or batch_of(one) < batch for one in recorded):
                break
            found = version(self.path, found.number - 1)
        return found

    def recorded(self, app_id: str) -> int | None:
        return None if self.opened is None else self.opened.said["recorded"].get(app_id)

    def forgets(self) -> bool:
        return False

    def columns(self) -> Collection[str]:
        return set() if self.opened is None else set(sources_of(self.opened.schema()).values())

    def plan(self, schema: pa.Schema, table: str) -> SchemaPlan:
        assert self.opened is not None
        owner = self.opened.said["table"] or None
        return schema_plan(self.opened.schema(), owner, schema, path=self.path, table=table)

    def fits(self) -> bool:
        return True

    def require_writable(self) -> None:
        """Nobody else writes it."""

    def ensure(self, schema: pa.Schema, *, key: Sequence[str], table: str) -> Evolution:
        schema_changes.require_free([name for name in schema.names if name != CDC], table)
        applied = Evolution()
        if self.opened is None:
            names = column_names(name for name in schema.names if name != CDC)
            fields = [f if f.name == CDC else field_named(f, names[f.name]) for f in schema]
            self._commit(pa.schema(fields).empty_table(), {"table": table, "recorded": {}})
            return applied
        needed = self.plan(schema, table)
        if needed.added or needed.widened or needed.members:
            kinds = {name: kind for name, _, kind in needed.widened}
            old = self.opened.schema()
            kinds |= {CDC: schema.field(CDC).type} if needed.members else {}
            fields = [f.with_type(kinds.get(f.name, f.type)) for f in old] + needed.added
            rows = pa.Table.from_pylist(self.opened.rows().to_pylist(), pa.schema(fields))
            self._commit(rows, self.opened.said)
        needed.note(applied)
        return applied

    def place(self, parts: Sequence[Part], **_: Any) -> tuple[Sequence[Part], Sequence[Any]]:
        assert not any(part.filed for part in parts), "rows in files are for deletion vectors"
        return parts, ()

    def truncate(self, position: bytes, *, deletes: str, app_id: str, version: int) -> MergeResult:
        return self._changed(
            lambda model: model.truncate(position),
            (),
            deletes=deletes,
            app_id=app_id,
            version=version,
        )

    def read_rows(self, keys: pa.Table) -> pa.Table:
        found = newest(self.path)
        assert found is not None
        return _having(_by_source(found.rows()), keys)

    def merge(
        self,
        write_set: pa.Table,
        *,
        key: Sequence[str],
        deletes: str,
        app_id: str,
        version: int,
        files: Sequence[Any] = (),
    ) -> MergeResult:
        assert not files
        found = newest(self.path)
        assert found is not None
        if not write_set.num_rows:
            size = found.size()
            return MergeResult(rows=size.rows, files=size.files, bytes=size.bytes)
        prepare(write_set, found.schema(), key=key)  # refuses what every sink refuses
        changes = [_change(row) for row in write_set.to_pylist()]
        return self._changed(
            lambda model: model.apply(changes), key, deletes=deletes, app_id=app_id, version=version
        )

    def _changed(
        self, change: Any, key: Sequence[str], *, deletes: str, app_id: str, version: int
    ) -> MergeResult:
        found = self.opened = newest(self.path)
        assert found is not None
        size = found.size()
        if (self.recorded(app_id) or -1) >= version:
            return MergeResult(skipped=True, rows=size.rows, files=size.files, bytes=size.bytes)
        schema = found.schema()
        own = {source: name for name, source in sources_of(schema).items()}
        rows = [_row(row) for row in _by_source(found.rows()).to_pylist()]
        columns = {source: schema.field(name).type for source, name in own.items()}
        keyed = key or list(columns)  # a truncate does not ask for it
        named = "schema_id" in {member.name for member in schema.field(CDC).type}
        model = Model(columns, keyed, deletes, names_schemas=named)
        model.rows = {tuple(row.values[name] for name in keyed): row for row in rows}
        before = dict(model.rows)
        change(model)
        new = pa.Table.from_pylist(
            [{own.get(name, name): cell for name, cell in row.items()} for row in model.content()],
            schema,
        )
        said = {**found.said, "recorded": {**found.said["recorded"], app_id: version}}
        self._commit(new, said)
        after, size = model.rows, self.opened.size()
        return MergeResult(
            inserted=len(after.keys() - before.keys()),
            updated=sum(before[k] != after[k] for k in after.keys() & before.keys()),
            deleted=len(before.keys() - after.keys()),
            rows=size.rows,
            files=size.files,
            bytes=size.bytes,
            at=self.opened.number,
        )

    def stage(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("it merges in the task")

    def maintain(self, merged: MergeResult, *, key: Sequence[str]) -> None:
        """Old files harm no test."""

    def append(self, rows: pa.Table, app_id: str) -> None:
        """Add rows of our own, once."""
        self.open()
        said = {"table": "", "recorded": {}} if self.opened is None else self.opened.said
        if app_id not in said["recorded"]:
            old = [] if self.opened is None else [self.opened.rows()]
            said = {**said, "recorded": {**said["recorded"], app_id: 1}}
            self._commit(pa.concat_tables([*old, rows]), said)

    def _commit(self, rows: pa.Table, said: dict[str, Any]) -> None:
        number = 0 if self.opened is None else self.opened.number + 1
        folder = Path(self.path)
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, folder / f"rows-{number}.parquet")
        half = folder / f"half-{number}"
        half.write_text(json.dumps({**said, "file": f"rows-{number}.parquet"}))
        half.replace(folder / f"v{number}.json")
        self.open()


@dataclass(frozen=True)
class ParquetReader:
    """See `TableReader`."""

    path: str

    def alive(self) -> pa.Table | None:
        """All rows that are not marked deleted."""
        found = newest(self.path)
        if found is None:
            return None
        rows = _by_source(found.rows())
        if CDC not in rows.column_names:  # one of our own
            return rows
        dead = [bool(cdc.get("deleted")) for cdc in rows.column(CDC).to_pylist()]
        return rows.filter(pa.array([not one for one in dead], pa.bool_()))

    def columns(self) -> Collection[str] | None:
        rows = self.alive()
        return None if rows is None else {*rows.column_names} - {CDC}

    def schema(self) -> pa.Schema | None:
        found = newest(self.path)
        return None if found is None else found.columns_of()

    def rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        rows = self.alive()
        if rows is not None:
            yield rows.select(list(columns))

    def read_rows(self, keys: pa.Table) -> pa.Table:
        there = newest(self.path) is not None
        return ParquetSink(self.path).read_rows(keys) if there else keys.slice(0, 0)

    def rows_at(self, version_of: int, keys: pa.Table) -> pa.Table | None:
        file = Path(self.path) / f"v{version_of}.json"
        return version(self.path, version_of).rows_of(keys) if file.exists() else None

    def history(self) -> list[TableCommit]:
        numbers = sorted(
            (int(file.stem[1:]) for file in Path(self.path).glob("v*.json")), reverse=True
        )
        return [TableCommit(number, 0, "WRITE") for number in numbers]

    def keys_below(self, position: bytes, *, key: Sequence[str]) -> pa.Table:
        rows = self.alive()
        if rows is None:
            return pa.table({name: pa.nulls(0) for name in key})
        of = [cdc["position"] for cdc in rows.column(CDC).to_pylist()]
        below = [positions.below_truncate(one, position) for one in of]
        return rows.filter(pa.array(below, pa.bool_())).select(list(key))

    def incomplete_keys(self, key: Sequence[Column]) -> list[bytes]:
        rows = self.alive()
        if rows is None:
            return []
        lacking = [bool(cdc["unavailable"]) for cdc in rows.column(CDC).to_pylist()]
        rows = rows.filter(pa.array(lacking, pa.bool_()))
        columns = [rows.column(column.name).combine_chunks() for column in key]
        return [one for one in keys.canonical_from_columns(columns, list(key)).to_pylist() if one]


class ParquetFormat:
    """See `TableFormat`."""

    def engine_for(self, chosen: str, now: str | None, size: int) -> str:
        return PARQUET

    def merges_in_tasks(self, engine: str) -> bool:
        return engine == PARQUET

    def sink_of(
        self,
        path: str,
        engine: str,
        options: dict[str, str],
        *,
        query: str,
        note: str = "",
    ) -> ParquetSink:
        assert engine in {PARQUET, ""}
        return ParquetSink(path, query)

    def reader_of(self, path: str, options: dict[str, str]) -> ParquetReader:
        return ParquetReader(path)

    def finish(self, *_: Any) -> NoReturn:
        raise AssertionError("it merges in the task")

    def settle(self) -> None:
        """All is durable enough for a test."""

    def append(self, path: str, rows: pa.Table, *, app_id: str, options: dict[str, str]) -> None:
        ParquetSink(path).append(rows, app_id)

    def chunk_files(self, config: Config) -> None:
        """Rows of chunks come as all others do."""

    def can_replace(self, path: str, options: dict[str, str]) -> bool:
        return False

    def replace(self, path: str, *_: Any, **__: Any) -> NoReturn:
        raise TableError(f"{path} cannot be replaced", code="lake-refused")

    empty = replace

    def discard(self, path: str, name: str, *, options: dict[str, str]) -> None:
        """There is nothing of a rebuild."""

    def note(self, *_: Any, **__: Any) -> bool:
        return False

    def fill(self, *_: Any, **__: Any) -> bool:
        return False


def _having(rows: pa.Table, keys: pa.Table) -> pa.Table:
    wanted = {tuple(row.values()) for row in keys.to_pylist()}
    have = zip(*(rows.column(name).to_pylist() for name in keys.column_names), strict=True)
    return rows.filter(pa.array([key in wanted for key in have], pa.bool_()))


def _by_source(rows: pa.Table) -> pa.Table:
    sources = {**sources_of(rows.schema), CDC: CDC}
    return rows.rename_columns([sources[name] for name in rows.column_names])


def _row(row: dict[str, Any]) -> Row:
    cdc = row.pop(CDC)
    return Row(
        row,
        cdc["position"],
        cdc["op"],
        cdc["source_ts"],
        frozenset(cdc["unavailable"] or ()),
        cdc["barrier"],
        bool(cdc.get("deleted")),
        cdc.get("schema_id"),
    )


def _change(row: dict[str, Any]) -> Change:
    cdc = row.pop(CDC)
    action, patch, force, barrier = (row.pop(name) for name in (ACTION, PATCH, FORCE, BARRIER))
    return Change(
        action,
        row,
        cdc["position"],
        patch=None if patch is None else tuple(patch),
        unavailable=None if cdc["unavailable"] is None else tuple(cdc["unavailable"]),
        row_barrier=cdc["barrier"],
        force=bool(force),
        barrier=barrier,
        op=cdc["op"],
        source_ts=cdc["source_ts"],
        schema_id=cdc.get("schema_id"),
    )
