"""Asks Delta tables what would become of them, with the very rules of the sink; read only."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from lakemark import plans
from lakemark.config import Config
from lakemark.errors import LakemarkError
from lakemark.ops.planned import Target
from lakemark.sink import commits, evolve
from lakemark.sink.commits import SPARK_MERGE
from lakemark.sink.names import CDC, folder_of
from lakemark.sink.pool import cdc_type
from lakemark.source.schema import TableSchema
from lakemark.tables import PipelineState

_AT_ONCE: Final = 8  # an object store answers one log in tens of milliseconds
_NO_KEY: Final = "has no key: its rows cannot be told apart"
_GIVE_KEY: Final = (
    "give it a primary key, or name unique columns in the connector's message.key.columns"
)


def targets(
    config: Config, tables: Mapping[str, TableSchema | None], state: PipelineState | None
) -> dict[str, Target]:
    """What becomes of the Delta table of each source table.

    A lake that does not answer makes a target that stops, with the reason.

    Args:
        config: ours.
        tables: schemas by table; None where only the events know it.
        state: of the newest batch; None before the first.
    """

    def one(name: str) -> Target:
        entry = state.tables.get(name) if state else None
        engine = plans.engine_of(config, name, entry)
        return target(config, name, tables[name], engine, entry.rebuild if entry else "")

    with ThreadPoolExecutor(_AT_ONCE, "lake") as pool:
        return dict(zip(tables, pool.map(one, tables), strict=True))


def target(
    config: Config, table: str, schema: TableSchema | None, engine: str, rebuild: str = ""
) -> Target:
    """What becomes of one Delta table, or of the one that a rebuild makes.

    It never raises what the sink raises: that stands in it.
    """
    path = folder_of(config.lake, table, rebuild)
    if schema is not None and not schema.key:
        return Target(path, "stop", engine, (), (), "no-key", f"{table} {_NO_KEY}", _GIVE_KEY)
    if schema is not None and (fault := schema.key_fault()):
        reason = f"{table}: {fault.reason}"
        return Target(path, "stop", engine, (), (), fault.code, reason, fault.hint)
    try:
        if schema is not None:
            evolve.require_free([column.name for column in schema.columns], table)
        opened = commits.open_table(path, config.lake.options())
        if opened is None:
            return Target(path, "create", engine)
        if engine != SPARK_MERGE:
            commits.existing(path, config.lake.options(), opened, engine=engine)
        if schema is None:
            return Target(path, "follow", engine)
        return _fitted(opened, path, schema, deletes=config.lake.deletes_of(table), engine=engine)
    except LakemarkError as error:
        return Target(path, "stop", engine, (), (), error.code, error.message, error.hint)


def _fitted(
    opened: DeltaTable, path: str, schema: TableSchema, *, deletes: str, engine: str
) -> Target:
    rows = schema.arrow().append(pa.field(CDC, cdc_type(deletes=deletes)))
    needed = evolve.plan(opened, path, rows, schema.table)
    added = tuple(f"{needed.sources[f.name]} {f.type}" for f in needed.added)
    added += tuple(f"{CDC}.{f.name} {f.type}" for f in needed.members)
    widened = tuple(f"{needed.sources[n]} {was} to {kind}" for n, was, kind in needed.widened)
    return Target(path, "alter" if added or widened else "keep", engine, added, widened)
