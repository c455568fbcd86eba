"""Wrong reconcilers: each has one rule switched off, and the oracle must find it.

A variant replaces functions of the product or of the simulated parties for the length of a test;
the product itself has no such switch. `world` narrows the histories to those in which the rule can
matter, with a plot (`plots`) where chance would seldom make the situation: so few are needed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from lakemark import tasks
from lakemark.connectors.database import Watermark
from lakemark.connectors.postgres import positions as lsns
from lakemark.connectors.postgres.visibility import Snapshot
from lakemark.model import change_batch, fills, net_change, positions
from lakemark.model.decoding import AppliedPosition
from lakemark.model.events import Kind
from lakemark.model.fills import Fill
from lakemark.reconcile import chunks, key_log, window
from lakemark.reconcile.chunks import Settled
from lakemark.sink import key_changes
from lakemark.sink import resolve as resolving
from lakemark.sink.delta import chunk_files
from lakemark.source import decoder, fold
from lakemark.source.replay_filter import Gated
from tests.kit.simulation.alters import ADD, DEFAULT, NEW, OLD, RENAME
from tests.kit.simulation.connector import TOPIC
from tests.kit.simulation.coordinator import Coordinator
from tests.kit.simulation.history import History, failure
from tests.kit.simulation.pipeline import Done, Ends, Pipeline, State
from tests.kit.simulation.world import draw

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Variant:
    """What is wrong (`apply`), and the histories in which it shows: fields of `World`, `Shape`."""

    apply: Callable[[Patch], None]
    world: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)

    def history(self, seed: int) -> str | None:
        """What is wrong with the seed's history in the variant's world; None = nothing."""
        drawn = draw(seed)
        world = replace(drawn, **self.world, shape=replace(drawn.shape, **self.shape))
        return failure(seed, world)

    def find(self, start: int, *, limit: int) -> int:
        """How many histories it takes to be found; 0 = it was not, within `limit`."""
        for number in range(limit):
            if self.history(start + number) is not None:
                return number + 1
        return 0


def _coordinator(patch: Patch, **methods: Any) -> None:
    for name, method in methods.items():
        patch.setattr(Coordinator, name, method)


# -- positions ---------------------------------------------------------------------------------


def _by_lsn(patch: Patch) -> None:
    """Order by the change's own LSN."""

    def one(sequence: str | None, lsn: int | None) -> tuple[int, int] | None:
        parts = real(sequence, lsn)
        return parts and (parts[1], parts[1])

    def many(sequences: Any, epoch: int) -> list[bytes] | None:
        return None

    real = lsns.of_stream
    patch.setattr(lsns, "all_of_stream", many)
    patch.setattr(lsns, "of_stream", one)


def _version_hi(patch: Patch) -> None:
    """Rows of a chunk have the close row's position."""
    real = window.fold

    def at_hi(state: bytes | None, records: Any, *, shard: int) -> window.ShardOutcome:
        folded = real(state, records, shard=shard)
        outputs = []
        for output, after in zip_longest(folded.outputs, folded.outputs[1:]):
            if output.kind == window.SURVIVORS and after and after.kind == window.SETTLED:
                hi = bytes.fromhex(msgspec.json.decode(after.blob, type=Settled).hi)
                packet = change_batch.decode(output.blob)
                nets = packet.filter(pa.compute.equal(packet.column("record"), change_batch.NET))
                blob = change_batch.encode(change_batch.as_of(nets, hi))
                outputs.append(msgspec.structs.replace(output, blob=blob))
            else:
                outputs.append(output)
        return window.ShardOutcome(folded.state, outputs)

    patch.setattr(Coordinator, "files", False)
    patch.setattr(window, "fold", at_hi)


# -- the coordinator -----------------------------------------------------------------------------


def _no_handshake(patch: Patch) -> None:
    """The first open row does not wait for the run's start to be committed."""
    _coordinator(patch, may_open=lambda self, run: True)


def _no_manifest(patch: Patch) -> None:
    """A chunk is decided with the parts that are there."""
    _coordinator(patch, complete=lambda self, attempt: True)
    patch.setattr(chunks.Attempt, "whole", lambda self, shard: self.manifest is not None)


def _no_xmin_rule(patch: Patch) -> None:
    """The newest open row that was acknowledged before the SELECT, as DBLog has it."""

    def choose(self: Coordinator, snapshot: Snapshot, usable: list[Watermark]) -> Any:
        before = [
            w for w in usable if w.after.server == snapshot.server and w.after.xmax <= snapshot.xmax
        ]
        return before[-1] if before else None

    _coordinator(patch, choose=choose)


def _weak_proof(patch: Patch) -> None:
    """S0 is taken without a transaction in between: a higher id may run and have committed."""
    _coordinator(patch, proof=lambda self: self.source.snapshot())


def _end_fence(patch: Patch) -> None:
    """Rows are released when the close row is seen."""

    def span(now: Any, attempt: Any) -> Any:
        return real(msgspec.structs.replace(now, fence=b"\xff" * 20), attempt)

    real = window._span
    patch.setattr(window, "_span", span)


def _zombies(patch: Patch) -> None:
    """Attempts that are over are decided all the same."""
    patch.setattr(chunks.Closed, "__contains__", lambda self, attempt: False)
    patch.setattr(window, "_close_below", lambda now, below: None)
    patch.setattr(window, "_close", lambda now, attempt: now.attempts.pop(attempt, None))
    _coordinator(patch, say=_no_voids(Coordinator.say))


def _no_voids(real: Any) -> Any:
    def say(self: Coordinator, **record: Any) -> int:
        if record["type"] == "void":
            record = {"type": "nothing"}
        number: int = real(self, **record)
        return number

    return say


# -- the shards ----------------------------------------------------------------------------------


def _forgets(patch: Patch) -> None:
    """Touches are forgotten below the newest window, not the oldest in use."""

    def mark(now: Any, marks: Any, outputs: Any) -> bytes | None:
        real(now, marks, outputs)
        below = max((w.open for w in now.windows.values()), default=b"")
        if below:
            batches = [key_log.read(segment) for segment in now.segments]
            above = [b.filter(key_log.is_above(b.column("position"), below)) for b in batches]
            window._set_segments(now, [b for b in above if b.num_rows])
        return None

    real = window._mark
    patch.setattr(window, "_mark", mark)


def _no_barrier(patch: Patch) -> None:
    """A losing row fills whatever incarnation it meets."""

    def decide(parts: Any, lo: bytes, touched: pa.RecordBatch, *, truncated_at: bytes) -> Any:
        none = np.frombuffer(bytes(lsns.WIDTH) * touched.num_rows, "V20")
        barrier = pa.array(none.tolist(), pa.binary(lsns.WIDTH))
        at = touched.schema.get_field_index("barrier")
        return real(
            parts, lo, touched.set_column(at, "barrier", barrier), truncated_at=truncated_at
        )

    real = chunks.decide
    patch.setattr(chunks, "decide", decide)
    patch.setattr(key_changes, "_fill", _fills_anything)


def _fills_anything(row: Any, fill: Any) -> Any:
    if row is None or row.action == net_change.DELETE or not row.unavailable:
        return row
    given = dict.fromkeys(row.unavailable, fill.row)
    return replace(
        row, cells={**row.cells, **given}, unavailable=frozenset(), missing=frozenset(),
        barrier=None,
    )  # fmt: skip


def _fills_moved(patch: Patch) -> None:
    """A losing row fills the key that its row has moved to."""
    real_init, real_decide = History.__post_init__, chunks.decide
    now: list[History] = []

    def init(self: History) -> None:
        real_init(self)
        now[:] = [self]

    def decide(parts: Any, lo: bytes, touched: Any, *, truncated_at: bytes) -> Any:
        decision = real_decide(parts, lo, touched, truncated_at=truncated_at)
        moved = {}
        for key, barrier in zip(
            touched.column("key").to_pylist(), touched.column("barrier").to_pylist(), strict=True
        ):
            for event in now[0].connector.stream:
                new = event.change.get("new_key")
                if event.position == barrier > lo and new and b"[%d]" % event.change["key"] == key:
                    moved[key] = (new, barrier)
        fills = [
            _for_key(change_batch.decode(part).slice(at, 1), *moved[key])
            for part in parts.values()
            for at, key in enumerate(change_batch.decode(part).column("key").to_pylist())
            if key in moved and change_batch.decode(part).column("action")[at].as_py() == "upsert"
        ]
        if not fills or decision.blob is None:
            return decision
        found = pa.concat_tables([change_batch.decode(decision.blob), *fills])
        return replace(decision, blob=change_batch.encode(found))

    patch.setattr(History, "__post_init__", init)
    patch.setattr(Coordinator, "files", False)
    patch.setattr(chunks, "decide", decide)


def _for_key(packet: pa.Table, key: int, position: bytes) -> pa.Table:
    """A chunk's row as a fill of another key."""
    packet = change_batch.as_of(packet, position, record=change_batch.FILL)
    (row,) = packet.column("row").to_pylist()
    names = pa.array([b"[%d]" % key], pa.binary())
    packet = packet.set_column(packet.schema.get_field_index("key"), "key", names)
    at = packet.schema.get_field_index("row")
    rows = pa.array([{**row, "id": key}], packet.schema.field("row").type)
    return packet.set_column(at, "row", rows)


def _server_not_compared(patch: Patch) -> None:
    """A chunk counts although the server has died before its close row."""

    def doubt(now: Any, attempt: Any, low: Any, high: Any) -> str:
        manifest = msgspec.structs.replace(attempt.manifest, server=high.server)
        return real(now, msgspec.structs.replace(attempt, manifest=manifest), low, high)

    real = window._doubt
    patch.setattr(window, "_doubt", doubt)


def _reads_are_touches(patch: Patch) -> None:
    """Debezium's incremental reads beat rows of chunks."""

    def touches(records: Any, heads: Any, plan: Any, made: Any) -> Any:
        kinds = [int(Kind.CHANGE) if kind == Kind.INCREMENTAL else kind for kind in heads.kind]
        return real(records, replace(heads, kind=kinds), plan, made)

    real = tasks._touches
    patch.setattr(tasks, "_touches", touches)


# -- the table -----------------------------------------------------------------------------------


def _reads_are_newer(patch: Patch) -> None:
    """Debezium's incremental reads are events at their close row's position."""

    def event(self: Any, log: Any, index: int, row: int, unavailable: Any) -> None:
        if self.heads.kind[index] != Kind.INCREMENTAL:
            real(self, log, index, row, unavailable)
            return
        at, source_ts = self.heads.position[index], self.heads.source_ts[index]
        log.net(net_change.upsert(op="u", position=at, source_ts=source_ts, row=row))

    real = fold._Fold._event
    patch.setattr(fold._Fold, "_event", event)


def _reads_by_lsn(patch: Patch) -> None:
    """Truncates remove Debezium's incremental reads with a lower LSN, as the own snapshot's rows."""

    def outside_stream(position: bytes) -> bytes:
        return position[:4] + bytes(8) + position[12:]

    patch.setattr(positions, "outside_stream", outside_stream)


def _drops(patch: Patch) -> None:
    """Losing rows give nothing, and nobody lists what is missing."""

    def resolve(parts: Any, **more: Any) -> Any:
        return replace(real(parts, **more), reread=frozenset())

    real = resolving.resolve
    patch.setattr(resolving, "resolve", resolve)
    patch.setattr(key_changes, "_fill", lambda row, fill: row)


def _no_applied_close(patch: Patch) -> None:
    """A key change carries columns over from a row that may be ahead of it."""
    patch.setattr(Pipeline, "applied_close", lambda self, state: None)


def _carries_early(patch: Patch) -> None:
    """A key change takes columns from the old key's row as it is when the new key's event comes."""
    real_read, real_settle = resolving._read, key_changes.PendingKeyChanges.settle
    found: dict[bytes, net_change.NetChange] = {}

    def read(special: Any, pool: Any, read_rows: Any, truncated_at: Any) -> Any:
        base = real_read(special, pool, read_rows, truncated_at)
        steps = [step for one in special.values() for step in one.steps]
        old = {step.old_key for step in steps if isinstance(step, net_change.KeyArrived)} - {
            *special
        }
        numbers = [int(key.strip(b"[]")) for key in old]
        found.clear()
        if numbers:
            keys = pool.key_table([next(iter(special.values())).row])
            rows = read_rows(pa.table({"id": pa.array(numbers, keys.schema.types[0])}))
            found.update(pool.add_lake_rows(rows) if rows.num_rows else {})
        return base

    def settle(self: Any, special: Any, base: Any) -> Any:
        for key, one in special.items():
            for step in one.steps:
                if isinstance(step, net_change.KeyArrived) and step.old_key in found:
                    moved = key_changes._Moved(step.old_key, found[step.old_key])
                    self.moved.setdefault((key, step.net.position), moved)
        return real_settle(self, special, base)

    patch.setattr(resolving, "_read", read)
    patch.setattr(key_changes.PendingKeyChanges, "settle", settle)


def _nothing_concerns(patch: Patch) -> None:
    """Rows of a chunk stay in their file, whatever else the batch has of their keys."""
    patch.setattr(chunk_files, "_concerned", lambda parts, pending: None)


def _kept_unasked(patch: Patch) -> None:
    """A row that may miss an event keeps what a chunk's losing row has otherwise."""
    patch.setattr(key_changes.PendingKeyChanges, "_checked", lambda self, key, row, fill: row)


def _new_partitions_are_past(patch: Patch) -> None:
    """A new partition begins with the highest applied position of the old ones."""
    real = Pipeline._decode

    def decode(
        self: Pipeline, begins: Any, ends: Any, applied: Any, *rest: Any, **more: Any
    ) -> Any:
        old = [reached for place, reached in applied.items() if place[0] == TOPIC]
        new = {place: max(old, key=lambda w: w.position) for place in ends if old}
        return real(self, begins, ends, {**new, **applied}, *rest, **more)

    patch.setattr(Pipeline, "_decode", decode)


def _no_gate(patch: Patch) -> None:
    """What a connector sends again is applied again."""

    def gate(
        kinds: Any, position: Any, source_ts: Any, start: AppliedPosition, logged: Any
    ) -> Gated:
        keep = [i for i, kind in enumerate(kinds) if kind in {0, 1, 2, 3}]
        return Gated(
            keep, 0, None, AppliedPosition(max([start.position, *position]), start.source_ts)
        )

    patch.setattr(decoder, "drop_replays", gate)


def _no_truncate_kept(patch: Patch) -> None:
    """A truncate removes what is there, not what comes later from below it."""

    def truncated_at(self: Pipeline, state: State) -> None:
        return None

    patch.setattr(Pipeline, "truncated_at", truncated_at)
    patch.setattr(key_changes, "below", lambda position, truncated_at: False)
    patch.setattr(resolving, "below", lambda position, truncated_at: False)


def _stopped_counts(patch: Patch) -> None:
    """A chunk counts although its table was stopped when it was decided."""

    def counts(self: Pipeline, done: Done) -> bool:
        return True

    patch.setattr(Pipeline, "counts", counts)


def _no_back(patch: Patch) -> None:
    """A row that was displaced for a while keeps its position, and a sweep takes it for a ghost."""
    patch.setattr(key_changes, "_is_back", lambda row, step: False)


# -- ALTER TABLE -------------------------------------------------------------------------------


def _fills_nulls(patch: Patch) -> None:
    """Whatever is null gets the value, also where the table has the column already."""
    real = Pipeline.fill_lake

    def fill_lake(self: Pipeline, due: list[Fill], ends: Ends) -> bool:
        if real(self, due, ends):
            return True
        for row in self.lake.table.values():
            if row[NEW] is None:
                row[NEW] = row[OLD] if due[0].source else DEFAULT
        return True

    patch.setattr(Pipeline, "fill_lake", fill_lake)


def _fills_by_the_look(patch: Patch) -> None:
    """What is older than the look counts as older than the column."""
    real = fills.filled

    def filled(packet: pa.Table, given: Any) -> pa.Table:
        packet = real(packet, given)
        rows = packet.column("row").to_pylist()
        for one in given:
            for row, position in zip(rows, packet.column("position").to_pylist(), strict=True):
                if row is not None and NEW in row and row[NEW] is None:
                    row[NEW] = DEFAULT if position < bytes.fromhex(one.upto) else None
        kind = packet.schema.field("row").type
        return change_batch.with_column(packet, "row", pa.array(rows, kind))

    patch.setattr(fills, "filled", filled)


def _only_files(patch: Patch) -> None:
    """The catalog is asked for the table's file alone, which is the same one."""

    def look(self: History) -> None:
        self.looked = self.pipeline.seen = True

    patch.setattr(History, "look", look)


def _late_images(patch: Patch) -> None:
    """Only rows that are there get the value, not those that come later in older images."""
    patch.setattr(fills, "filled", lambda packet, _: packet)


def _no_shapes(patch: Patch) -> None:
    """Images have all columns of the catalog."""
    patch.setattr(fills, "shapes", lambda images, schema, _: [(list(images), schema, [])])


def _known_by_one_name(patch: Patch) -> None:
    """What is unknown in a column is known in the one that it is called now."""
    patch.setattr(fills, "by_both_names", lambda lists, _: lists)


def _rows_known_by_one_name(patch: Patch) -> None:
    """As above, of the rows that are there."""
    real = Pipeline._fill_column

    def fill_column(self: Pipeline, one: Fill, ends: Ends) -> None:
        before = {key: row["_cdc"] for key, row in self.lake.table.items()}
        real(self, one, ends)
        for key, row in self.lake.table.items():
            row["_cdc"] = before[key]

    patch.setattr(Pipeline, "_fill_column", fill_column)


_PLAIN: Any = {
    "alters": "",
    "gaps": False,
    "bad": 0.0,
    "stops": False,
    "reads": False,
    "crashes": 0.0,
    "resizes": False,
}
_CALM: Any = {**_PLAIN, "slow": False, "loses": False, "lags": False}
_TABLE: Any = {**_CALM, "order": False}
_UNKNOWN: Any = {"before": 2, "loaded": False}
_SIMPLE: Any = {"truncates": False, "full": False, "deferrable": False}
_MOVES: Any = {**_SIMPLE, "keys": 3}
_ADD: Any = {**_TABLE, "lags": True, "before": 9, "loaded": True, "alters": ADD}
_LATE: Any = {**_ADD, "plot": "altered_beside_late_events"}
_RENAME: Any = {**_ADD, "alters": RENAME}
VARIANTS = {
    "compared by lsn": Variant(_by_lsn, _PLAIN, _SIMPLE),
    "version hi": Variant(_version_hi, {**_TABLE, "plot": "late_events", "before": 2}, _SIMPLE),
    "no arm handshake": Variant(_no_handshake, {**_CALM, "plot": "unarmed"}, _SIMPLE),
    "drop instead of fold": Variant(_drops, {**_TABLE, **_UNKNOWN}, _SIMPLE),
    "no manifest": Variant(_no_manifest, {**_PLAIN, **_UNKNOWN}, _SIMPLE),
    "no xmin rule": Variant(_no_xmin_rule, {**_PLAIN, "slow": True}, _SIMPLE),
    "proof without an id of its own": Variant(
        _weak_proof, {**_CALM, "slow": True, "plot": "overtaking"}, _SIMPLE
    ),
    "touches forgotten too early": Variant(_forgets, _PLAIN, _SIMPLE),
    "fill across a delete": Variant(
        _no_barrier, {**_TABLE, **_UNKNOWN, "plot": "across_a_delete"}, _MOVES
    ),
    "fill for a moved key": Variant(
        _fills_moved, {**_TABLE, **_UNKNOWN, "plot": "moved_and_replaced"}, _MOVES
    ),
    "applied close ignored": Variant(
        _no_applied_close, {**_TABLE, "before": 2, "plot": "moved_and_replaced"}, _MOVES
    ),
    "columns carried over too early": Variant(
        _carries_early, {**_TABLE, "plot": "moved_behind_its_changes"}, {**_MOVES, "partitions": 2}
    ),
    "losing rows are not compared": Variant(
        _kept_unasked, {**_TABLE, "before": 9, "plot": "unread_before_a_chunk"}, _SIMPLE
    ),
    "new partitions are past": Variant(
        _new_partitions_are_past, {**_TABLE, "plot": "lost_and_elsewhere"},
        {**_SIMPLE, "partitions": 3},
    ),
    "no replay gate": Variant(_no_gate, {**_CALM, "order": True, "plot": "replays"}, _SIMPLE),
    "truncate forgotten": Variant(
        _no_truncate_kept, {**_CALM, "plot": "below_a_truncate"},
        {**_SIMPLE, "truncates": True, "partitions": 3},
    ),
    "incremental reads are touches": Variant(
        _reads_are_touches, {**_CALM, "before": 9, "plot": "reads_in_the_window"}, _SIMPLE
    ),
    "incremental reads are newer": Variant(
        _reads_are_newer, {**_CALM, "slow": True, "before": 2, "plot": "stale_reads"}, _SIMPLE
    ),
    "incremental reads are truncated by lsn": Variant(
        _reads_by_lsn, {**_CALM, "before": 9, "loaded": False, "plot": "truncated_reads"},
        {**_SIMPLE, "truncates": True},
    ),
    "rows stay in files beside changes": Variant(_nothing_concerns, _TABLE, _SIMPLE),
    "chunks of a stopped table count": Variant(
        _stopped_counts, {**_CALM, **_UNKNOWN, "plot": "stopped"}, _SIMPLE
    ),
    "server not compared": Variant(
        _server_not_compared, {**_CALM, "loses": True, "plot": "lost_commits"}, _SIMPLE
    ),
    "released at the close row": Variant(_end_fence, {**_PLAIN, "order": True}, _SIMPLE),
    "attempts are never over": Variant(_zombies, {**_CALM, "plot": "void_and_complete"}, _SIMPLE),
    "everything that is null is filled": Variant(_fills_nulls, _LATE, _SIMPLE),
    "filled by the position of the look": Variant(_fills_by_the_look, _LATE, _SIMPLE),
    "only the table's file is compared": Variant(_only_files, _ADD, _SIMPLE),
    "a renamed column is a new one": Variant(_only_files, _RENAME, _SIMPLE),
    "late images are not filled": Variant(_late_images, _LATE, _SIMPLE),
    "late images keep the old name": Variant(_late_images, _RENAME, _SIMPLE),
    "older images have what the catalog has": Variant(_no_shapes, _LATE, _SIMPLE),
    "unknown values are known by their new name": Variant(
        _known_by_one_name, {**_RENAME, "plot": "altered_beside_late_events"},
        {**_SIMPLE, "partitions": 2},
    ),
    "rows with unknown values are whole by their new name": Variant(
        _rows_known_by_one_name,
        {**_RENAME, **_UNKNOWN, "plot": "renamed_before_it_is_known"}, _SIMPLE,
    ),
    "displaced rows are swept": Variant(
        _no_back, {**_CALM, "before": 9, "plot": "shared_key"},
        {"full": True, "deferrable": True, "truncates": False},
    ),
}  # fmt: skip
