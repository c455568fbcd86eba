"""One Delta table with the contract's columns: made, written, and looked at as others see it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.errors import TableError
from lakemark.sink.delta import deletion_vectors, delta_rs, maintenance
from lakemark.sink.delta.engines import TASK_MERGE
from lakemark.sink.table_sink import MergeResult
from tests.kit.sink_contract import COLUMNS, row
from tests.kit.write_sets import Change, at, table_schema, upsert, write_set


def made(folder: Path) -> str:
    """Makes it in the folder, for task merge; returns its path."""
    path = str(folder / "t")
    delta_rs.ensure(path, table_schema(COLUMNS), key=["id"], table="public.t")
    return path


def merged(
    engine: Any,
    path: str,
    changes: Iterable[Change],
    version: int,
    app_id: str = "q/t/s",
    columns: Mapping[str, pa.DataType] = COLUMNS,
    **more: Any,
) -> MergeResult:
    """Lets an engine, the module with its `merge`, apply changes in one commit."""
    return engine.merge(
        path,
        write_set(changes, columns),
        key=["id"],
        deletes="hard",
        app_id=app_id,
        version=version,
        **more,
    )


def merge_vectors(path: str, version: int, *changes: Change, app_id: str = "q/t/s") -> MergeResult:
    """As `merged`, by the engine with deletion vectors."""
    return merged(deletion_vectors, path, changes, version, app_id)


def refusals(path: str) -> list[TableError]:
    """What task merge says to a table of another engine, each time it is to do something with it."""
    found = []
    for call in (
        lambda: merged(delta_rs, path, [upsert(row("a"), at(1))], 3),
        lambda: delta_rs.truncate(path, at(1), deletes="hard", app_id="a", version=1),
        lambda: delta_rs.ensure(path, table_schema(COLUMNS)),
        lambda: maintenance.maintain(path, key=["id"], engine=TASK_MERGE),
    ):
        with pytest.raises(TableError) as caught:
            call()
        found.append(caught.value)
    return found


def numbered(numbers: Iterable[int], version: int, value: int | None = None) -> list[Change]:
    """A row for each number, `b` of which is that number or the value."""
    return [upsert(row(str(n), b=n if value is None else value), at(version)) for n in numbers]


def content(path: str) -> pa.Table:
    """The table as readers get it that know deletion vectors."""
    table = DeltaTable(path)
    schema = pa.schema(table.schema().to_arrow())
    return pa.table(table.scan()).select(schema.names).cast(schema)


def values(path: str) -> dict[str, Any]:
    """The column `b` by key, each of which is there once."""
    found = content(path).to_pylist()
    by_id = {each["id"]: each["b"] for each in found}
    assert len(by_id) == len(found), "a key is there twice"
    return by_id


def actions(path: str, version: int) -> dict[str, list[Any]]:
    """What the commit of a version says, by kind."""
    lines = Path(path, "_delta_log", f"{version:020d}.json").read_text().splitlines()
    found: dict[str, list[Any]] = {}
    for line in lines:
        for kind, action in json.loads(line).items():
            found.setdefault(kind, []).append(action)
    return found


def vector_files(path: str) -> set[str]:
    """Names of its files of deletion vectors, needed ones and others."""
    return {p.name for p in Path(path, deletion_vectors.VECTORS_FOLDER).glob("*.bin")}
