"""One table, one batch: the order of effects.

1. Look up whether this (app id, batch) is committed already, with this very content: then nothing
   is done again. With other content it is applied like any batch: what counts is the position.
2. Create or evolve the table (idempotent).
   Rows of snapshots, and deletes of what a truncate removes, go to the output topic.
3. Truncate, as a commit of its own.
4. Resolve the packets to a write set, reading the rows that key changes need.
5. Write the halves of key changes that still wait beside the table, under this batch's number.
6. Merge: one Delta commit that records (app id, batch) and a digest of the content.
7. Join small files and vacuum, once there are many: changes no row.

A crash between any two of them is followed by the whole batch again, with the same outcome; or, if
the batch has become another one (`commits.version_of`), with the outcome of that one.

Tables of the engine with deletion vectors differ in 6 and 7 only (`vectors`, `vectors_upkeep`).
Tables of the Spark MERGE engine take the same way up to 5; then the write set is staged beside the
table, and the driver truncates and merges by SQL. A table that Spark has to create or change first
comes back with what it `needs`, and is read again.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Final
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from lakemark import crashpoints, packets
from lakemark.errors import LakemarkError, TableError
from lakemark.sink import commits, delta, evolve, pending, staging, vectors, vectors_upkeep
from lakemark.sink import resolve as resolving
from lakemark.sink.names import CDC
from lakemark.sink.pool import cdc_type
from lakemark.sink.resolve import Part, Resolution, resolve
from lakemark.sink.staging import StagedPart
from lakemark.source.evolution import way_on

DELETION_VECTORS: Final = commits.DELETION_VECTORS
TASK_MERGE: Final = commits.TASK_MERGE
STREAM: Final = "stream"

Publish = Callable[[bytes, int], None]
"""Writes a table's rows to its output topic: position of a new truncate, digest of the content."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What the driver knows of a table: see `tables.TableState`.

    Attributes:
        settled: position that every partition of the table has passed.
        horizon: highest close row of the chunks that earlier batches applied.
        partial: whether any event of the table so far lacked a column.
        stale: canonical keys whose rows miss an event; None = any row may.
    """

    path: str
    deletes: str = "hard"
    engine: str = TASK_MERGE
    floor: bytes | None = None
    pending: int = -1
    pending_step: str = STREAM
    pending_over: int = -1
    pending_over_step: str = STREAM
    settled: bytes | None = None
    horizon: bytes | None = None
    partial: bool = False
    stale: frozenset[str] | None = frozenset()


@dataclass(frozen=True, slots=True)
class LakePlan:
    """Where and how the tables of a batch are written.

    Attributes:
        query: id of the streaming query: part of the app id.
        batch: batch id: part of the version recorded with each commit.
        step: `stream` or `catchup`: part of the app id.
        tables: plans by table id.
        new_table: the plan of a table not seen before.
        stopped: tables that do not stream: chunks of theirs are not applied.
        options: storage options of delta-rs.
    """

    query: str
    batch: int
    step: str
    new_table: Callable[[str], TablePlan]
    tables: dict[str, TablePlan] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()

    def app_id(self, table: str, step: str = "") -> str:
        """The app id under which the commits of this step, or of `step`, are recorded."""
        return f"{self.query}/{table}/{step or self.step}"

    def cut_id(self, table: str) -> str:
        """The app id under which this step's truncates of the table are recorded."""
        return f"{self.app_id(table)}/truncate"


class TableOutcome(msgspec.Struct, omit_defaults=True):
    """What happened to one table; `code` is empty where all went well.

    Attributes:
        step: the step that it is of.
        version: what is recorded with its commits, see `commits.version_of`.
        partial: whether an event lacked a column.
        pending: whether halves of key changes wait beside the table now.
        lost: halves of earlier batches are not there any more.
        reread: keys whose rows only the source can make whole again.
        needs: Arrow schema (IPC) that the driver must make the table fit first.
        staged: write set that waits for the driver's MERGE.
    """

    table: str
    code: str = ""
    reason: str = ""
    hint: str = ""
    retried: bool = False
    trace: str = ""
    skipped: bool = False
    step: str = STREAM
    version: int = 0
    truncate: bytes = b""
    needs: bytes = b""
    key: list[str] = msgspec.field(default_factory=list)
    rows_before: int = -1
    rows: int = -1
    bytes: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unavailable: int = 0
    partial: bool = False
    reread: list[str] = msgspec.field(default_factory=list)
    pending: bool = False
    lost: bool = False
    seconds: float = 0.0
    changes: list[str] = msgspec.field(default_factory=list)
    engine: str = TASK_MERGE
    staged: StagedPart | None = None


def apply(  # noqa: PLR0915 - the order of effects, in one place
    table: str,
    parts: Sequence[Part],
    plan: LakePlan,
    *,
    publish: Publish | None = None,
) -> TableOutcome:
    """Brings one batch's packets of one table into the lake; exactly once per query and batch.

    What waited beside the table for a batch that is over in the durable state, is deleted.

    Args:
        table: which.
        parts: its packets.
        plan: of the batch.
        publish: called before rows are changed, when it is known that the batch is not committed
            yet.

    Raises:
        TableError: this table cannot go on; nothing of the batch was applied to it.
        DependencyError: the lake is away; the same call again later does the same.
    """
    begun = monotonic()
    own = plan.tables.get(table) or plan.new_table(table)
    options = plan.options
    key = packets.key_columns(part.packet for part in parts).names
    outcome = TableOutcome(table, key=list(key), engine=own.engine, step=plan.step)
    outcome.truncate = _truncate(parts, own.floor)
    outcome.partial = any(resolving.is_partial(part.packet) for part in parts)

    halves = pending.Halves(own.path, plan.query, options)
    if own.pending_over >= 0:
        halves.remove(own.pending_over, own.pending_over_step)
    waiting = halves.load(own.pending, own.pending_step) if own.pending >= 0 else None
    outcome.lost = own.pending >= 0 and waiting is None

    # 1. already committed?
    opened = delta.open_table(own.path, options)
    ids = dict.fromkeys([plan.app_id(table), plan.app_id(table, STREAM)])
    recorded, batch = commits.newest(opened, own.path, list(ids), batch=plan.batch)
    if batch == plan.batch:
        outcome.reread = _texts(_in_doubt(parts, waiting))
    outcome.version = _version(opened, parts, own.path, plan, outcome, recorded=recorded)
    if recorded == outcome.version:
        outcome.skipped = True
        outcome.pending = halves.load(plan.batch, plan.step) is not None
        if opened is not None:
            size = _size(opened, own, options)
            outcome.rows, outcome.bytes = size.rows, size.bytes
        return outcome

    # 2. the table as the packets need it
    schema = _schema(parts, own, table)
    if own.engine == commits.SPARK_MERGE:
        return _stage(
            parts,
            own,
            plan,
            outcome,
            schema=schema,
            opened=opened,
            publish=publish,
            waiting=waiting,
        )
    opened = _fitting(opened, schema, own, plan, outcome)
    if opened is None:  # a truncate of a table that has never had a row
        outcome.rows = outcome.rows_before = 0
        return outcome
    outcome.rows_before = max(0, _size(opened, own, options).rows)
    if publish is not None:
        publish(outcome.truncate, _content(parts))

    # 3. truncate
    crashpoints.reach(crashpoints.BEFORE_COMMIT)
    if outcome.truncate:
        gone = delta.truncate(
            own.path,
            outcome.truncate,
            deletes=own.deletes,
            app_id=plan.cut_id(table),
            version=outcome.version,
            storage_options=options,
            engine=own.engine,
        )
        outcome.deleted += gone.deleted + gone.updated
        opened = None

    # 4. the write set
    resolution = _resolve(parts, own, plan, waiting)

    # 5. halves of key changes that wait
    crashpoints.reach(crashpoints.BEFORE_PENDING)
    _note(outcome, resolution)
    if resolution.pending is not None:
        halves.save(resolution.pending, plan.batch, plan.step)

    # 6. merge
    merge = vectors.merge if own.engine == DELETION_VECTORS else delta.merge
    merged = merge(
        own.path,
        resolution.write_set,
        key=key,
        deletes=own.deletes,
        app_id=plan.app_id(table),
        version=outcome.version,
        storage_options=options,
        opened=opened,
    )
    crashpoints.reach(crashpoints.AFTER_COMMIT)
    if merged.skipped:  # another process committed meanwhile: what was it?
        return apply(table, parts, plan, publish=publish)
    outcome.inserted, outcome.updated = merged.inserted, merged.updated
    outcome.deleted += merged.deleted
    outcome.rows, outcome.bytes = merged.rows, merged.bytes

    # 7. upkeep, now and then
    with suppress(LakemarkError):  # changes no row, and is tried again after the next batch
        _keep(own, merged, key, options)
    outcome.seconds = monotonic() - begun
    return outcome


def _version(
    opened: DeltaTable | None,
    parts: Sequence[Part],
    path: str,
    plan: LakePlan,
    outcome: TableOutcome,
    *,
    recorded: int | None,
) -> int:
    """What to record with this batch's commits; `recorded`, if all is done already.

    A truncate before a merge is never left out: done twice, it removes nothing more.
    """
    version = commits.version_of(plan.batch, _content(parts), recorded)
    if version == recorded or not outcome.truncate:
        return version
    cut = commits.recorded(opened, path, plan.cut_id(outcome.table))
    return commits.version_above(version, cut)


def _content(parts: Sequence[Part]) -> int:
    """A digest of what is to be applied, whatever the order in which it came."""
    return crc32(repr(sorted((p.partition, p.order, p.digest) for p in parts)).encode())


def _keep(
    own: TablePlan, merged: commits.MergeResult, key: Sequence[str], options: commits.Options
) -> None:
    """Step 7."""
    if own.engine == DELETION_VECTORS:
        vectors_upkeep.maintain(own.path, key=key, storage_options=options)
    elif delta.wants_maintenance(merged):
        delta.maintain(own.path, storage_options=options)


def _size(opened: DeltaTable, own: TablePlan, options: commits.Options) -> commits.TableSize:
    if own.engine == DELETION_VECTORS:
        return vectors.size_of(opened, own.path, options)
    return delta.size_of(opened)


def _fitting(
    opened: DeltaTable | None,
    schema: pa.Schema | None,
    own: TablePlan,
    plan: LakePlan,
    outcome: TableOutcome,
) -> DeltaTable | None:
    """Step 2: the table made so that it can hold the rows; None if there are none, and no table."""
    if opened is not None:
        commits.existing(own.path, plan.options, opened, engine=own.engine)  # one it may write
    if schema is None or (opened is not None and fits(opened, schema, own.path, outcome.table)):
        return opened
    changed = evolve.ensure(
        own.path,
        schema,
        key=outcome.key,
        table=outcome.table,
        storage_options=plan.options,
        engine=own.engine,
    )
    outcome.changes = [f"added {f.name}" for f in changed.added]
    outcome.changes += [f"widened {n}: {a} to {b}" for n, a, b in changed.widened]
    return delta.open_table(own.path, plan.options)


def _stage(
    parts: Sequence[Part],
    own: TablePlan,
    plan: LakePlan,
    outcome: TableOutcome,
    *,
    schema: pa.Schema | None,
    opened: DeltaTable | None,
    publish: Publish | None,
    waiting: pa.Table | None,
) -> TableOutcome:
    """Steps 2 to 5 for the Spark engine, and the write set on its way to the driver."""
    options, key = plan.options, tuple(outcome.key)
    adopted = opened is not None and commits.is_adopted(opened)
    fitting = schema is None or (
        opened is not None and adopted and fits(opened, schema, own.path, outcome.table)
    )
    if schema is not None and not fitting:
        outcome.needs = schema.serialize().to_pybytes()
        return outcome
    if opened is None:
        return outcome
    if publish is not None:
        publish(outcome.truncate, _content(parts))
    resolution = _resolve(parts, own, plan, waiting)
    _note(outcome, resolution)
    if resolution.pending is not None:
        pending.Halves(own.path, plan.query, options).save(
            resolution.pending, plan.batch, plan.step
        )
    if resolution.write_set.num_rows:
        outcome.staged = staging.stage(
            own.path,
            resolution.write_set,
            key=key,
            app_id=plan.app_id(outcome.table),
            version=outcome.version,
            storage_options=options,
        )
    return outcome


def _note(outcome: TableOutcome, resolution: Resolution) -> None:
    outcome.pending = resolution.pending is not None
    outcome.unavailable = resolution.unavailable
    outcome.reread = sorted({*outcome.reread, *_texts(resolution.reread)})


def _in_doubt(parts: Sequence[Part], waiting: pa.Table | None) -> frozenset[bytes]:
    """Keys that a batch may have wanted to be read again: what it saw then is not there any more.

    More than needed, but none is left out: key changes and fills of the batch, and what waited.
    """
    kinds = pa.array([packets.LEAVE, packets.ARRIVE, packets.FILL], pa.int8())
    found = [part.packet.filter(pc.is_in(part.packet.column("record"), kinds)) for part in parts]
    if waiting is not None:
        found.append(waiting)
    return frozenset(
        key
        for packet in found
        for name in ("key", "other_key")
        for key in packet.column(name).to_pylist()
        if key
    )


def _texts(keys: frozenset[bytes]) -> list[str]:
    return sorted(key.decode("utf-8", "replace") for key in keys)


def fits(opened: DeltaTable, schema: pa.Schema, path: str, table: str) -> bool:
    """Whether rows of `schema` go into the table as it is.

    Raises:
        TableError: they never will: `schema-incompatible`, `path-clash`.
    """
    if len(set(schema.names)) < len(schema.names):
        return False
    plan = evolve.plan(opened, path, schema, table)
    return not (plan.added or plan.widened or plan.members)


def _truncate(parts: Sequence[Part], floor: bytes | None) -> bytes:
    """Position of the newest truncate among the packets, if it is a new one; else empty."""
    found = [
        position
        for part in parts
        for position in part.packet.column("position")
        .filter(pc.equal(part.packet.column("record"), packets.TRUNCATE))
        .to_pylist()
    ]
    newest = max(found, default=b"")
    return newest if floor is None or newest > floor else b""


def _schema(parts: Sequence[Part], own: TablePlan, table: str) -> pa.Schema | None:
    """Source columns of all packets in their widest types, and `_cdc`; None without row images.

    Raises:
        TableError: `schema-incompatible`: there is no type that holds all values of a column.
    """
    images = [part.packet.schema.field("row").type for part in parts]
    schemas = [pa.schema(list(image)) for image in images if len(image)]
    if not schemas:
        return None
    try:
        columns = pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TableError(
            f"changes that are to be applied together disagree about a column's type: {error}",
            code="schema-incompatible",
            hint=way_on(table, own.path),
        ) from error
    return columns.append(pa.field(CDC, cdc_type(deletes=own.deletes)))


def _resolve(
    parts: Sequence[Part], own: TablePlan, plan: LakePlan, waiting: pa.Table | None
) -> Resolution:
    sure = own.stale is not None and (own.pending < 0 or waiting is not None)
    return resolve(
        parts,
        floor=own.floor,
        pending=waiting,
        read_rows=lambda keys: delta.read_rows(own.path, keys, storage_options=plan.options),
        deletes=own.deletes,
        settled=own.settled,
        stale=frozenset(map(str.encode, own.stale or ())) if sure else None,
        horizon=own.horizon,
        partial=own.partial,
    )
