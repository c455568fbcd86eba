"""Questions to tables of the lake, answered by the very rules of the sink; reads only."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from lakemark import plans
from lakemark.connectors.catalog_policies import CODES
from lakemark.connectors.connector import Connector
from lakemark.errors import LakemarkError, TableError
from lakemark.model.schema import TableSchema
from lakemark.ops.plan.planned import Action, Target
from lakemark.settings.config import Config
from lakemark.settings.schema_policy import FOLLOWS, Outcome, SchemaPolicy
from lakemark.sink import formats, schema_changes
from lakemark.sink.apply import require_key
from lakemark.sink.names import CDC, folder_of
from lakemark.sink.row_images import cdc_type
from lakemark.sink.table_sink import TableSink
from lakemark.state.policies import can_rebuild
from lakemark.state.tables import PAUSED, PipelineState, TableState

_AT_ONCE: Final = 8  # an object store answers one log in tens of milliseconds
_NO_KEY: Final = "has no key: its rows cannot be told apart"
_GIVE_KEY: Final = (
    "give it a primary key, or name unique columns in the connector's message.key.columns"
)


def targets(
    config: Config,
    connector: Connector,
    tables: Mapping[str, TableSchema | None],
    state: PipelineState | None,
) -> dict[str, Target]:
    """Return the action on each source table's Delta table.

    A lake that does not answer makes a target that stops, with the reason.

    Args:
        config: ours.
        connector: as it is configured.
        tables: schemas by table; None where only the events know it.
        state: of the newest batch; None before the first.
    """

    def one(name: str) -> Target:
        entry = (state.tables.get(name) if state else None) or TableState()
        return target(config, connector, name, tables[name], entry)

    with ThreadPoolExecutor(_AT_ONCE, "lake") as pool:
        return dict(zip(tables, pool.map(one, tables), strict=True))


def target(
    config: Config,
    connector: Connector,
    table: str,
    schema: TableSchema | None,
    entry: TableState,
) -> Target:
    """Return the action on one table, or on the one that a rebuild makes.

    An error of the sink is not raised: it is the reason in the target.
    """
    engine = plans.engine_of(config, table, entry)
    path = folder_of(config.lake, table, entry.files.rebuild)
    try:
        if schema is not None:
            _require_kept(schema)
        made_by = formats.format_of(config.lake)
        sink = made_by.sink_of(path, engine, config.lake.options(), query="")
        sink.open()
        if sink.opened is None:
            return Target(path, "create", engine)
        if sink.merges:
            sink.require_writable()
        if schema is None:
            return Target(path, "follow", engine)
        require_key(table, path, entry.files.key, schema.key)
        policy = FOLLOWS if entry.files.rebuild else config.lake.policy_of(table)
        cdc = cdc_type(deletes=config.lake.deletes_of(table), metadata=config.lake.metadata)
        return _fitted(sink, path, schema, policy, cdc=cdc, engine=engine)
    except LakemarkError as error:
        if entry.state != PAUSED and _is_rebuilt(config, connector, table, error.code):
            return Target(path, "rebuild", engine, (), (), error.code, error.message)
        return Target(path, "stop", engine, (), (), error.code, error.message, error.hint)


def _require_kept(schema: TableSchema) -> None:
    """Refuse a source table whose rows the lake cannot hold.

    Raises:
        TableError: `no-key`, `key-type`, `column-name-taken` …
    """
    table = schema.table
    if not schema.key:
        raise TableError(f"{table} {_NO_KEY}", code="no-key", hint=_GIVE_KEY)
    if fault := schema.key_fault():
        raise TableError(f"{table}: {fault.reason}", code=fault.code, hint=fault.hint)
    schema_changes.require_free([column.name for column in schema.columns], table)


def _is_rebuilt(config: Config, connector: Connector, table: str, code: str) -> bool:
    kind = CODES.get(code)
    if kind is None:
        return False
    policy, can = config.lake.policy_of(table), can_rebuild(config, connector, table)
    return policy.outcome(kind, can_rebuild=can) is Outcome.REBUILD


def _fitted(
    sink: TableSink,
    path: str,
    schema: TableSchema,
    policy: SchemaPolicy,
    *,
    cdc: pa.DataType,
    engine: str,
) -> Target:
    rows = schema.arrow().append(pa.field(CDC, cdc))
    complete = sink.plan(rows, schema.table)
    rows = schema_changes.followed(rows, complete, policy, schema.table)
    needed = sink.plan(rows, schema.table)
    added = tuple(f"{needed.sources[f.name]} {f.type}" for f in needed.added)
    added += tuple(f"{CDC}.{f.name} {f.type}" for f in needed.members)
    widened = tuple(f"{needed.sources[n]} {was} to {kind}" for n, was, kind in needed.widened)
    lacks = [f for f in complete.added if complete.sources[f.name] not in rows.names]
    left_out = tuple(f"{complete.sources[f.name]} {f.type}" for f in lacks)
    kinds = {complete.sources[n]: (was, kind) for n, was, kind in complete.widened}
    kept = [(n, *kinds[n]) for n in kinds if rows.field(n).type == kinds[n][0]]
    left_out += tuple(f"{name} {kind} (it stays {was})" for name, was, kind in kept)
    dropped = tuple(sorted({*sink.columns()} - {*schema.by_name}))
    action: Action = "alter" if added or widened else "keep"
    return Target(path, action, engine, added, widened, left_out=left_out, dropped=dropped)
