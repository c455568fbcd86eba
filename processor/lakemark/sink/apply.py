"""One table, one batch: the order of effects.

1. Look up whether this (app id, batch) is committed already, with this very content: then nothing
   is done again. With other content it is applied like any batch: what counts is the position.
2. Create or evolve the table (idempotent).
   Rows of snapshots, and deletes of what a truncate removes, go to the output topic.
3. Truncate, as a commit of its own.
4. Resolve the packets to a write set, reading the rows that key changes need. Images that are
   older than a column have got what such rows have in it (`fills`).
5. Write the halves of key changes that still wait beside the table, under this batch's number.
6. Merge: one Delta commit that records (app id, batch) and a digest of the content.
7. Join small files and vacuum, once there are many: changes no row.

A crash between any two of them is followed by the whole batch again, with the same outcome; or, if
the batch has become another one (`table_sink.version_of`), with the outcome of that one.

What a format and an engine do at each step is their `TableSink`'s. One that does not merge in the
task takes the same way up to 5; then the write set is staged beside the table, and the driver
truncates and merges. A table that the driver has to create or change first comes back with what it
`needs`, and is read again.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any, Protocol
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from lakemark import failpoints
from lakemark.errors import LakemarkError, TableError
from lakemark.model import change_batch, fills
from lakemark.model.evolution import TypesError, joined, way_on
from lakemark.model.fills import Fill
from lakemark.model.key import check_ends, key_ends
from lakemark.sink import formats, schema_changes, table_sink
from lakemark.sink import resolve as resolving
from lakemark.sink.lake_plan import STREAM, LakePlan, TableOutcome, TablePlan
from lakemark.sink.names import CDC, OWN
from lakemark.sink.resolve import Part, Resolution, resolve
from lakemark.sink.row_images import cdc_type
from lakemark.sink.table_sink import MergeResult, TableSink

log = structlog.get_logger(__name__)


class Publish(Protocol):
    """Writes a table's rows to its output topic, each exactly once for a batch and its content."""

    def __call__(self, truncate: bytes, content: int) -> None:
        """Writes rows of snapshots, and the deletes of a truncate.

        Args:
            truncate: position of a new truncate; empty = there is none.
            content: digest of what is to be applied.
        """

    def completed(self, rows: pa.Table, content: int) -> None:
        """Writes rows that events have left incomplete (`Resolution.completed`)."""


def apply(
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
    work = _Work.begin(table, parts, plan, publish)
    if work.is_done():  # 1
        return work.outcome
    work.check_key()
    if not work.sink.merges:
        work.stage()
        return work.outcome
    if not work.fit():  # 2
        return work.outcome
    work.publish_rows()
    work.place()
    failpoints.reach(failpoints.BEFORE_COMMIT)
    work.truncate()  # 3
    resolution = work.resolve()  # 4
    work.publish_completed(resolution)
    failpoints.reach(failpoints.BEFORE_PENDING)
    work.leave_halves(resolution)  # 5
    write_set = resolution.write_set
    merged = work.merge(write_set)  # 6
    failpoints.reach(failpoints.AFTER_COMMIT)
    if merged.skipped:  # another process committed meanwhile: what was it?
        return apply(table, parts, plan, publish=publish)
    work.outcome.merged(merged, recorded=bool(write_set.num_rows or work.files))
    try:
        work.maintain(merged)  # 7
    except LakemarkError:
        pass  # it changes no row, and is tried again after the next batch
    except Exception:  # no reason to stop a table whose rows are right
        log.exception("table.upkeep_failed", table=table)
    work.outcome.seconds = monotonic() - begun
    return work.outcome


def require_key(table: str, path: str, was: Sequence[str], now: Sequence[str]) -> None:
    """Refuses another key than that by which the rows of a table are told apart.

    Args:
        table: which.
        path: its folder.
        was: the columns by which they are; none = nobody knows.
        now: columns of the source's key.

    Raises:
        TableError: `key-changed`.
    """
    if not was or set(was) == set(now):
        return
    raise TableError(
        f"{table} has another key: {', '.join(now)} instead of {', '.join(was)}; "
        "the rows that are there were told apart by the old one",
        code="key-changed",
        hint=f"`lakemark table rebuild {table}` makes the table anew, with its "
        f"new key; or, where no database is configured, move the folder {path} away, "
        f"then `lakemark table skip {table}`: it leaves out the changes that were "
        "not applied, and snapshots the table again",
    )


@dataclass(slots=True)
class _Work:
    """The steps of `apply`, and what they hand on to each other.

    Attributes:
        parts, plan, publish: as `apply` has them.
        own: the table's plan.
        outcome: what has happened to it so far.
        sink: the table itself.
        waiting: the halves that earlier batches have left; None if there are none.
        files: rows of chunks that stay in their data files.
        schema: what the table is to have for the rows, `_cdc` included; None without row images.
        is_fit: whether it has all of that.
        is_narrowed: whether rows have columns or types that the table leaves out.
        left: those columns.
    """

    parts: Sequence[Part]
    plan: LakePlan
    publish: Publish | None
    own: TablePlan
    outcome: TableOutcome
    sink: TableSink
    waiting: pa.Table | None
    files: Sequence[Any] = ()
    schema: pa.Schema | None = None
    is_fit: bool = False
    is_narrowed: bool = False
    left: Collection[str] = ()

    @classmethod
    def begin(
        cls, table: str, parts: Sequence[Part], plan: LakePlan, publish: Publish | None
    ) -> "_Work":
        """Begin with the packets and the halves of key changes that wait for them."""
        own = plan.tables.get(table) or plan.new_table(table)
        truncates = _truncates(parts)
        if truncates:
            parts = schema_changes.without_truncates(parts, own.policy)
            truncates = _truncates(parts)
        key = change_batch.key_columns(part.packet for part in parts).names
        made_by = formats.format_named(plan.format)
        note = plan.note(part.partition for part in parts)
        sink = made_by.sink_of(own.path, own.engine, plan.options, query=plan.query, note=note)
        outcome = TableOutcome(table, key=list(key), engine=sink.engine, step=plan.step)
        outcome.truncate = _newer(truncates, own.truncated_at)
        outcome.key_ends = key_ends(_keys(parts), _key_types(parts, key))
        outcome.partial = any(resolving.is_partial(part.packet) for part in parts)
        if own.pending_over >= 0:
            sink.pending.remove(own.pending_over, own.pending_over_step)
        waiting = sink.pending.load(own.pending, own.pending_step) if own.pending >= 0 else None
        outcome.lost = own.pending >= 0 and waiting is None
        outcome.reread = _texts(_doubted(parts, own.fills))
        return cls(parts, plan, publish, own, outcome, sink, waiting)

    def is_done(self) -> bool:
        """Step 1: whether the table has this very content of the batch already."""
        plan, own, outcome, sink = self.plan, self.own, self.outcome, self.sink
        sink.open()
        ids = list(dict.fromkeys([plan.app_id(outcome.table), plan.app_id(outcome.table, STREAM)]))
        found = [sink.recorded(app_id) for app_id in ids]
        recorded, batch = table_sink.newest_recorded(found, own.path, batch=plan.batch)
        earlier = sink.opened
        if batch == plan.batch or not own.written:
            earlier = sink.before(ids, plan.batch if own.written else 0)
        outcome.made = earlier is None or not earlier.version() or self._is_made_anew(recorded)
        if earlier is not None and not own.written:
            outcome.rows_before = max(0, earlier.size().rows)
        if batch == plan.batch:
            again = _texts(_in_doubt(self.parts, self.waiting))
            outcome.reread = sorted({*outcome.reread, *again})
        outcome.version = self._version(recorded)
        if recorded != outcome.version:
            return False
        outcome.skipped, outcome.recorded_as = True, plan.step
        outcome.committed()
        outcome.pending = sink.pending.load(plan.batch, plan.step) is not None
        if sink.opened is not None:
            sink.keep(sink.opened.version())
            size = sink.opened.size()
            outcome.rows, outcome.bytes = size.rows, size.bytes
        return True

    def _is_made_anew(self, recorded: int | None) -> bool:
        """Return whether the table has nothing at all, though it should have a batch.

        Args:
            recorded: the version that it has for this step.

        Raises:
            TableError: `table-older`.
        """
        own, plan, sink = self.own, self.plan, self.sink
        if own.recorded < 0 or sink.opened is None or not sink.opened.version():
            return False
        if sink.forgets():
            return False
        if own.recorded_as != plan.step:
            recorded = sink.recorded(plan.app_id(self.outcome.table, own.recorded_as))
        if recorded is None and not sink.opened.size().files:
            return True
        table_sink.require_recorded(recorded, own.recorded, path=own.path, table=self.outcome.table)
        return False

    def check_key(self) -> None:
        """Rows that are there must be told apart by the columns that the packets' are.

        Raises:
            TableError: `key-changed`, `key-ambiguous`.
        """
        was, now, outcome = self.own.key, self.outcome.key, self.outcome
        known = () if outcome.made else self.own.key_ends
        kinds = _key_types(self.parts, now)
        check_ends(outcome.table, self.own.path, {*known, *outcome.key_ends}, kinds)
        if self.sink.opened is not None and now:
            require_key(outcome.table, self.own.path, was, now)

    def _version(self, recorded: int | None) -> int:
        """Return the version to record with this batch's commits; `recorded` if all is done.

        A truncate before a merge is never left out: done twice, it removes nothing more.
        """
        plan, outcome = self.plan, self.outcome
        version = table_sink.version_of(plan.batch, _content(self.parts), recorded)
        if version == recorded or not outcome.truncate:
            return version
        cut = self.sink.recorded(plan.cut_id(outcome.table))
        return table_sink.version_above(version, cut)

    def fit(self) -> bool:
        """Step 2: the table can hold the rows now; False if there are none, and no table."""
        outcome, sink = self.outcome, self.sink
        if sink.opened is not None:
            sink.require_writable()
        self._follow()
        if self.schema is not None and not self.is_fit:
            changed = sink.ensure(self.schema, key=outcome.key, table=outcome.table)
            outcome.evolved(changed)
        if sink.opened is None:  # a truncate of a table that has never had a row
            outcome.rows = 0
            return False
        return True

    def _follow(self) -> None:
        """Decide which parts of the rows' schema the table gets; it may stop here.

        Raises:
            TableError: `schema-incompatible`, `path-clash`, `schema-change-refused`,
                `columns-unseen`.
        """
        own, table = self.own, self.outcome.table
        by_source = [part for part in self.parts if not part.is_sweep]
        if self.outcome.truncate and _newer(_truncates(by_source), own.truncated_at):
            schema_changes.require_truncate(table, own.policy)
        schema = self.schema = _schema(self.parts, own, table)
        if schema is None or self.sink.opened is None:
            return
        if len(set(schema.names)) < len(schema.names) or {*schema.names} & OWN - {CDC}:
            return  # `ensure` says why not
        needed = self.sink.plan(schema, table)
        if needed.added or needed.widened:
            followed = schema_changes.followed(schema, needed, own.policy, table)
            if not followed.equals(schema):
                self.schema, self.is_narrowed = followed, True
                self.left = {*schema.names} - {*followed.names}
                needed = self.sink.plan(followed, table)
            added = [needed.sources[f.name] for f in needed.added]
            schema_changes.require_seen(table, added, own.seen)
        self.is_fit = not (needed.added or needed.widened or needed.members)

    def publish_rows(self) -> None:
        """Step 2, for tables with an output topic."""
        if self.publish is not None:
            self.publish(self.outcome.truncate, _content(self.parts))

    def publish_completed(self, resolution: Resolution) -> None:
        """Step 4, for tables with an output topic; not without the columns that are left out."""
        if self.publish is None or self.is_narrowed:
            return
        if resolution.completed is not None:
            self.publish.completed(resolution.completed, _content(self.parts))

    def stage(self) -> None:
        """Steps 2 to 5 where the driver merges, and the write set on its way there."""
        outcome, sink = self.outcome, self.sink
        outcome.unfinished = True
        self._follow()
        if self.schema is not None and not (self.is_fit and sink.fits()):
            outcome.needs = self.schema.serialize().to_pybytes()
            return
        if sink.opened is None:
            return
        self.publish_rows()
        self.place()
        resolution = self.resolve()
        self.publish_completed(resolution)
        self.leave_halves(resolution)
        if resolution.write_set.num_rows:
            outcome.staged = sink.stage(
                resolution.write_set,
                key=tuple(outcome.key),
                app_id=self.plan.app_id(outcome.table),
                version=outcome.version,
            )

    def place(self) -> None:
        """Rows of chunks that are in data files: which stay there, and the images of the others."""
        own, outcome = self.own, self.outcome
        self.parts, self.files = self.sink.place(
            self.parts,
            deletes=own.deletes,
            pending=self.waiting,
            truncated_at=max(own.truncated_at or b"", outcome.truncate) or None,
            fills=own.partial or outcome.partial,
        )
        self._fill()
        self._narrow()

    def _fill(self) -> None:
        """Images that are older than a column get what such rows have in it.

        Where the table has it: one that was made anew may have begun without.
        """
        there = set() if self.schema is None else {*self.schema.names}
        if self.own.fills and self.sink.opened is not None:
            there |= {*self.sink.columns()}
        given = [one for one in self.own.fills if one.column in there]
        if not given:
            return
        self.parts = [replace(part, packet=fills.filled(part.packet, given)) for part in self.parts]
        self.waiting = None if self.waiting is None else fills.filled(self.waiting, given)

    def _narrow(self) -> None:
        """Take the columns that the table leaves out from all rows, for all that comes after.

        Raises:
            TableError: `schema-change-refused`.
        """
        if self.schema is None or not self.is_narrowed:
            return
        narrow = partial(
            schema_changes.narrowed, left=self.left, schema=self.schema, table=self.outcome.table
        )
        self.parts = [replace(part, packet=narrow(part.packet)) for part in self.parts]
        self.waiting = None if self.waiting is None else narrow(self.waiting)

    def truncate(self) -> None:
        """Step 3."""
        own, outcome = self.own, self.outcome
        if not outcome.truncate:
            return
        gone = self.sink.truncate(
            outcome.truncate,
            deletes=own.deletes,
            app_id=self.plan.cut_id(outcome.table),
            version=outcome.version,
        )
        outcome.truncated(gone)

    def resolve(self) -> Resolution:
        """Step 4."""
        own = self.own
        sure = own.stale is not None and (own.pending < 0 or self.waiting is not None)

        return resolve(
            self.parts,
            truncated_at=own.truncated_at,
            pending=self.waiting,
            read_rows=self.sink.read_rows,
            deletes=own.deletes,
            settled=own.settled,
            stale=frozenset(map(str.encode, own.stale or ())) if sure else None,
            applied_close=own.applied_close,
            partial=own.partial,
        )

    def leave_halves(self, resolution: Resolution) -> None:
        """Step 5, and what else is left of the key changes."""
        outcome = self.outcome
        outcome.pending = resolution.pending is not None
        outcome.unavailable = resolution.unavailable
        outcome.reread = sorted({*outcome.reread, *_texts(resolution.reread)})
        if resolution.pending is not None:
            self.sink.pending.save(resolution.pending, self.plan.batch, self.plan.step)

    def merge(self, write_set: pa.Table) -> MergeResult:
        """Step 6."""
        outcome = self.outcome
        return self.sink.merge(
            write_set,
            key=outcome.key,
            deletes=self.own.deletes,
            app_id=self.plan.app_id(outcome.table),
            version=outcome.version,
            files=self.files,
        )

    def maintain(self, merged: MergeResult) -> None:
        """Step 7."""
        if key := self.outcome.key or self.own.key:  # a truncate alone does not tell it
            self.sink.maintain(merged, key=key)


def _content(parts: Sequence[Part]) -> int:
    """A digest of what is to be applied, whatever the order in which it came."""
    return crc32(repr(sorted((p.partition, p.order, p.digest) for p in parts)).encode())


def _in_doubt(parts: Sequence[Part], waiting: pa.Table | None) -> frozenset[bytes]:
    """Keys that a batch may have wanted to be read again: what it saw then is not there any more.

    More than needed, but none is left out: key changes and fills of the batch, and what waited.
    """
    kinds = pa.array([change_batch.LEAVE, change_batch.ARRIVE, change_batch.FILL], pa.int8())
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


def _doubted(parts: Sequence[Part], given: Sequence[Fill]) -> frozenset[bytes]:
    """Keys of rows of which nobody knows what they have in a new column."""
    found: set[bytes] = set()
    for part in parts if given else ():
        names = [field.name for field in change_batch.image_type(part.packet)]
        found |= fills.doubted(part.packet, names, given)
        if part.filed is not None:
            found |= fills.doubted(part.filed.packet(), part.filed.file.columns.names, given)
    return frozenset(found)


def _texts(keys: frozenset[bytes]) -> list[str]:
    return sorted(key.decode("utf-8", "replace") for key in keys)


def _truncates(parts: Sequence[Part]) -> list[bytes]:
    """Positions of the truncates among the packets."""
    return [
        position
        for part in parts
        for position in part.packet.column("position")
        .filter(pc.equal(part.packet.column("record"), change_batch.TRUNCATE))
        .to_pylist()
    ]


def _newer(truncates: Sequence[bytes], truncated_at: bytes | None) -> bytes:
    """Position of the newest truncate, if it is a new one; else empty."""
    newest = max(truncates, default=b"")
    return newest if truncated_at is None or newest > truncated_at else b""


def _keys(parts: Sequence[Part]) -> Iterator[pa.ChunkedArray]:
    """The canonical keys of all that the packets say."""
    for part in parts:
        yield part.packet.column("key")
        if part.filed is not None:
            yield part.filed.keys()


def _key_types(parts: Sequence[Part], key: Sequence[str]) -> dict[str, pa.DataType]:
    """Types of the key columns in the packets' rows; none where no packet has rows."""
    images = [change_batch.image_type(part.packet) for part in parts]
    found = {field.name: field.type for image in images for field in image}
    return {name: found[name] for name in key} if found.keys() >= set(key) else {}


def _schema(parts: Sequence[Part], own: TablePlan, table: str) -> pa.Schema | None:
    """Source columns of all packets in their widest types, and `_cdc`; None without row images.

    Raises:
        TableError: `schema-incompatible`: there is no type that holds all values of a column.
    """
    images = [change_batch.image_type(part.packet) for part in parts]
    schemas = [pa.schema(list(image)) for image in images if len(image)]
    if not schemas:
        return None
    try:
        columns = joined(schemas)
    except TypesError as error:
        raise TableError(
            f"changes that are to be applied together disagree about a column's type: {error}",
            code="schema-incompatible",
            hint=way_on(table, own.path),
        ) from error
    kind = cdc_type(deletes=own.deletes, metadata=own.metadata)
    return columns.append(pa.field(CDC, kind))
