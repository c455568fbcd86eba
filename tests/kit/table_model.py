"""One table the way the driver and a merge task run it, without Spark: state kept per batch.

`DictLake` is the contract of the write engines in its plainest form; `TableTask` keeps what the
driver keeps (offsets, applied positions, newest truncate, pending halves), dies where it is told to, and
repeats the batch then.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable

from lakemark.model import change_batch, positions
from lakemark.model.decoding import AppliedPosition, DecodedRange, Records, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink import resolve as resolving
from lakemark.sink.delta import deletion_vectors, deletion_vectors_rows, delta_rs
from lakemark.sink.delta.engines import TASK_MERGE
from lakemark.sink.resolve import Part
from lakemark.source import decoder
from tests.kit.log_model import TABLE, TOPIC, Record, table_schema

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Lake(Protocol):
    """A table and its write engine."""

    def committed(self) -> int: ...
    def truncate(self, position: bytes, *, version: int) -> None: ...
    def merge(self, write_set: pa.Table, *, version: int) -> None: ...
    def read_rows(self, keys: pa.Table) -> pa.Table: ...
    def rows(self) -> dict[int, dict[str, Any]]: ...


@dataclass
class DictLake:
    """The engines' contract on a dict: key → row with `_cdc`."""

    deletes: str = "hard"
    key: tuple[str, ...] = ("id",)
    table: dict[Any, dict[str, Any]] = field(default_factory=dict)
    version: int = -1
    added: dict[str, pa.DataType] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)
    filled: int = -1

    def key_of(self, row: dict[str, Any]) -> Any:
        values = tuple(row[name] for name in self.key)
        assert None not in values, "no key is null"
        return values if len(values) > 1 else values[0]

    def committed(self) -> int:
        return self.version

    def truncate(self, position: bytes, *, version: int) -> None:
        gone = {"position": position, "op": "t", "deleted": True}
        for key, row in list(self.table.items()):
            if not positions.below_truncate(row["_cdc"]["position"], position):
                continue
            if self.deletes == "hard":
                del self.table[key]
            elif not row["_cdc"]["deleted"]:
                row["_cdc"] = {**row["_cdc"], **gone}

    def merge(self, write_set: pa.Table, *, version: int) -> None:
        assert version > self.version, "a batch is committed once"
        self.version = version
        names = [name for name in write_set.column_names if not name.startswith("_")]
        self.columns |= dict.fromkeys([*names, *self.added])
        rows = write_set.to_pylist()
        ids = [self.key_of(row) for row in rows]
        assert len(set(ids)) == len(ids), "one row per key"
        for row in rows:
            self._merge(row)

    def _merge(self, given: dict[str, Any]) -> None:
        row = {name: v for name, v in given.items() if not name.startswith("__")}
        row = {**dict.fromkeys(self.columns), **row}
        cdc, key = row["_cdc"], self.key_of(row)
        old = self.table.get(key)
        assert cdc["op"] is not None
        assert cdc["position"] is not None
        dead = old is not None and bool(old["_cdc"].get("deleted"))
        applies = old is None or given["__force"] or old["_cdc"]["position"] <= cdc["position"]
        if given["__action"] == "insert":
            if old is None or (dead and old["_cdc"]["position"] < cdc["position"]):
                self.table[key] = row
        elif given["__action"] == "delete":
            if old is not None and applies:
                if self.deletes == "hard":
                    del self.table[key]
                else:
                    self.table[key] = {
                        **old,
                        "_cdc": {**old["_cdc"], **_moved(cdc), "deleted": True},
                    }
        elif applies:
            patch = given["__patch"]
            if patch is not None and old is not None and not dead:
                left = [c for c in old["_cdc"]["unavailable"] or () if c in patch]
                kept = {name: old[name] for name in patch}
                barrier = old["_cdc"]["barrier"]
                row = {
                    **row,
                    **kept,
                    "_cdc": {**cdc, "unavailable": left or None, "barrier": barrier},
                }
            self.table[key] = row

    def read_rows(self, keys: pa.Table) -> pa.Table:
        found = [self.table[k] for k in keys.column("id").to_pylist() if k in self.table]
        schema = lake_schema(self.deletes)
        for name, kind in self.added.items():
            schema = schema.append(pa.field(name, kind))
        return pa.Table.from_pylist(found, schema=schema)

    def fill(self, column: str, kind: pa.DataType, value: Callable[[dict[str, Any]], Any]) -> None:
        """A new column, with values in all rows."""
        self.added[column] = kind
        for row in self.table.values():
            row[column] = value(row)

    def rows(self) -> dict[Any, dict[str, Any]]:
        return {k: row for k, row in self.table.items() if not row["_cdc"].get("deleted")}


@dataclass
class DeltaLake:
    """A real engine on a real Delta table."""

    path: str
    deletes: str = "hard"
    engine: str = TASK_MERGE

    def __post_init__(self) -> None:
        schema = lake_schema(self.deletes)
        delta_rs.ensure(self.path, schema, key=["id"], table=TABLE, engine=self.engine)

    def committed(self) -> int:
        found = delta_rs.committed(self.path, "q/things/stream")
        return -1 if found is None else found

    def truncate(self, position: bytes, *, version: int) -> None:
        app_id = "q/things/truncate"
        more = {"deletes": self.deletes, "engine": self.engine}
        delta_rs.truncate(self.path, position, app_id=app_id, version=version, **more)

    def merge(self, write_set: pa.Table, *, version: int) -> None:
        app_id, deletes = "q/things/stream", self.deletes
        merge = delta_rs.merge if self.engine == TASK_MERGE else deletion_vectors.merge
        merge(self.path, write_set, key=["id"], deletes=deletes, app_id=app_id, version=version)

    def read_rows(self, keys: pa.Table) -> pa.Table:
        read = delta_rs.read_rows if self.engine == TASK_MERGE else deletion_vectors_rows.read_rows
        return read(self.path, keys)

    def rows(self) -> dict[int, dict[str, Any]]:
        table = pa.table(DeltaTable(self.path).scan()).to_pylist()
        alive = {row["id"]: row for row in table if not row["_cdc"].get("deleted")}
        assert len(alive) == sum(1 for row in table if not row["_cdc"].get("deleted"))
        return alive


def _moved(cdc: dict[str, Any]) -> dict[str, Any]:
    return {name: cdc[name] for name in ("position", "op", "source_ts")}


def lake_schema(deletes: str) -> pa.Schema:
    cdc = pa.field("_cdc", resolving.cdc_type(deletes=deletes))
    return pa.schema([*table_schema().arrow(), cdc])


@dataclass(frozen=True)
class Saved:
    """What the driver keeps per batch."""

    batch: int
    offsets: tuple[int, ...]
    applied: dict[tuple[str, int], AppliedPosition]
    truncated_at: bytes | None = None
    pending: pa.Table | None = None


class CrashedError(Exception):
    """The process dies here."""


@dataclass
class TableTask:
    """A pipeline of one table."""

    topic: list[list[Record]]
    lake: Lake
    dice: random.Random
    deletes: str = "hard"
    crashes: float = 0.2
    state: Saved = field(init=False)
    files: dict[int, pa.Table | None] = field(default_factory=dict)
    stretches: list[DecodedRange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = Saved(0, tuple(0 for _ in self.topic), {})

    def run(self, *, check: Callable[[], None] = lambda: None) -> None:
        """Batches until everything is read."""
        while any(at < len(part) for at, part in zip(self.state.offsets, self.topic, strict=True)):
            ends = self._ends()
            if self.dice.random() < 0.15:
                ends = self._stand_still(ends)
            while True:
                try:
                    self._batch(ends)
                    break
                except CrashedError:
                    continue
            check()

    def _ends(self) -> tuple[int, ...]:
        """A random prefix of what is left of every partition."""
        longest = self.dice.choice([1, 3, 10, 100])
        return tuple(
            min(len(part), at + self.dice.randint(0, longest))
            for at, part in zip(self.state.offsets, self.topic, strict=True)
        )

    def _stand_still(self, ends: tuple[int, ...]) -> tuple[int, ...]:
        """The table is stopped for some batches: only applied positions move, then it catches up."""
        live, begins = self.state.applied, self.state.offsets
        for _ in range(self.dice.randint(1, 3)):
            live = self._decode(begins, ends, live, stopped=True)[1]
            begins = ends
            ends = tuple(
                min(len(part), at + self.dice.randint(0, 5))
                for at, part in zip(ends, self.topic, strict=True)
            )
        caught_up = self._decode(self.state.offsets, begins, self.state.applied)[1]
        assert caught_up == live
        return begins

    def _batch(self, ends: tuple[int, ...]) -> None:
        state, batch = self.state, self.state.batch + 1
        parts, applied = self._decode(state.offsets, ends, state.applied)
        truncate = None
        if not parts:
            self.files[batch] = state.pending  # no packets, no task for the table
        elif self.lake.committed() < batch:
            truncate = self._write(parts, batch)
        else:  # its commit got through before the crash
            found = [p for part in parts for p in _truncates(part.packet)]
            truncate = max(found, default=None)
        truncated_at = max(
            (f for f in (truncate, state.truncated_at) if f is not None), default=None
        )
        self.state = Saved(batch, ends, applied, truncated_at, self.files[batch])

    def _write(self, parts: list[Part], batch: int) -> bytes | None:
        state = self.state
        early = self.dice.random() < 0.5
        if early and (found := [p for part in parts for p in _truncates(part.packet)]):
            self.lake.truncate(max(found), version=batch)
        self._maybe_die()
        result = resolving.resolve(
            parts,
            truncated_at=state.truncated_at,
            pending=state.pending,
            read_rows=self.lake.read_rows,
            deletes=self.deletes,
            settled=self._settled(),
        )
        if not early and result.truncate is not None:
            self.lake.truncate(result.truncate, version=batch)
        self._maybe_die()
        pending = result.pending
        self.files[batch] = change_batch.decode(change_batch.encode(pending)) if pending else None
        self._maybe_die()
        self.lake.merge(result.write_set, version=batch)
        self._maybe_die()
        return result.truncate

    def _settled(self) -> bytes | None:
        """The position that every partition has passed; None while one has seen nothing."""
        found = [
            self.state.applied.get((TOPIC, p), AppliedPosition()).position
            for p in range(len(self.topic))
        ]
        return min(found)

    def _maybe_die(self) -> None:
        if self.dice.random() < self.crashes / 4:
            raise CrashedError

    def _decode(
        self,
        begins: tuple[int, ...],
        ends: tuple[int, ...],
        applied: dict[tuple[str, int], AppliedPosition],
        *,
        stopped: bool = False,
    ) -> tuple[list[Part], dict[tuple[str, int], AppliedPosition]]:
        """Packets of one batch and the applied positions after it; a partition may come in pieces."""
        after, parts = dict(applied), []
        for partition, records in enumerate(self.topic):
            begin, end = begins[partition], ends[partition]
            middle = self.dice.choice([begin, self.dice.randint(begin, end)])
            for first, last in ((begin, middle), (middle, end)):
                if first == last:
                    continue
                plan = StretchPlan(
                    SourceIdentity("postgresql", "shop"),
                    HandlingModes(),
                    schemas={TABLE: table_schema()},
                    verified=frozenset({TABLE}),
                    applied=after,
                    stopped=frozenset({TABLE}) if stopped else frozenset(),
                )
                done = decoder.decode_range(kafka(records[first:last], partition, first), plan)
                report = done.tables.get(TABLE)
                assert not done.dead, done.dead
                assert report is None or report.stop is None, report.stop
                self.stretches.append(done)
                after[TOPIC, partition] = done.applied_position
                for number, (table, packet) in enumerate(done.packets):
                    assert table == TABLE
                    shuffled = change_batch.decode(change_batch.encode(packet))
                    parts.append(Part(str(partition), (first << 8) + number, shuffled))
        self.dice.shuffle(parts)
        return parts, after


def _truncates(packet: pa.Table) -> list[bytes]:
    rows = packet.select(["record", "position"]).to_pylist()
    return [r["position"] for r in rows if r["record"] == change_batch.TRUNCATE]


def kafka(records: list[Record], partition: int, first: int) -> Records:
    """Records as the Kafka source hands them over."""
    return Records(
        TOPIC,
        partition,
        list(range(first, first + len(records))),
        [r.key for r in records],
        [r.value for r in records],
        [r.headers for r in records],
    )
