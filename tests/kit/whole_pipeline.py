"""Stream and snapshots joined as in a real process, in memory: no JVM, no broker, no server.

The coordinator, the driver, its tasks, the shards and the Delta tables are the real ones. `World`
stands for what they talk with: a toy database with its connector and its chunk reader, over the
topics of `memory_pipeline`, and a clock to move. One `step` is one of the coordinator and a batch.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from lakemark.connectors.database import OpenWindow, Watermark
from lakemark.connectors.postgres import positions as lsns
from lakemark.connectors.postgres.visibility import Snapshot, bound_of
from lakemark.connectors.reached_place import ReachedPlace
from lakemark.model.control import ControlRecord, encode
from lakemark.model.decoding import ANY_CONVERTER, ConverterChoice
from lakemark.model.row_digest import RowDigests, Words, among, digests
from lakemark.sink import formats, found_rows, names
from lakemark.sink.comparison import as_kept
from lakemark.sink.table_format import TableReader
from lakemark.snapshot import chunks
from lakemark.snapshot.chunks import ChunkResult, ChunkSpec, Digest, KeyedRows
from lakemark.snapshot.coordinator import Coordinator
from lakemark.snapshot.ports import Committed, KeptDigests, RowsWithin
from lakemark.snapshot.snapshot_state import Settings
from lakemark.snapshot.snapshots import Snapshots
from lakemark.state.tables import TableState
from tests.kit.fake_world import ITEMS, ORDERS, PIPELINE, FakeWorld
from tests.kit.log_model import STEP
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import SIGNALS, Shop, schema_of

# Chunks of one row, one after the other: there is time for damage between any two of them.
SETTINGS = Settings(PIPELINE, shards=2, chunk_rows=1, parallelism=1, interval=1.0)


@dataclass(frozen=True)
class Change:
    """A change of one row, and how the connector tells it.

    Attributes:
        op: as Debezium has it.
        v: of the row from now on.
        told: the event's columns besides the key, where they are not the row's.
        headers: of the event: those of a key change.
    """

    op: str
    table: str
    key: Any
    v: str = ""
    told: Mapping[str, Any] | None = None
    headers: list[tuple[str, bytes]] | None = None


class World(FakeWorld):
    """The coordinator's `Ports`, whose stream is the real pipeline.

    Attributes:
        rows: what the database has: `v` by table and key.
        log_end: where its log ends.
        lake: the stream, its topics and its tables; a `shop`.
    """

    shop: ClassVar[type[Shop]] = Shop

    def __init__(
        self,
        root: Path,
        rows: dict[str, dict[int, str]],
        settings: Settings = SETTINGS,
        *,
        broker: Broker | None = None,
        converter: ConverterChoice = ANY_CONVERTER,
    ) -> None:
        super().__init__(settings)
        self.rows = {ORDERS: {}, ITEMS: {}, **rows}
        self.database.keys = {table: set(found) for table, found in self.rows.items()}
        schemas = {table: schema_of(table, id="int8", v="text") for table in self.rows}
        schemas[SIGNALS] = schema_of(SIGNALS, id="text", type="text", data="text")
        shards = {"stream": {"shards": settings.shards}}
        self.lake = self.shop(
            root,
            broker or Broker(),
            schemas,
            sections=shards,
            signal_table=SIGNALS,
            converter=converter,
        )
        self.log_end = self._last = 1000
        self._anew = False

    # -- the stream -----------------------------------------------------------------------------

    def start(self) -> Coordinator:
        pipeline = self.lake.pipeline
        query = self.lake.checkpoint.query_id
        snapshots = Snapshots(self, self.settings, query=query)  # type: ignore[arg-type]
        pipeline.snapshots, pipeline.planned = snapshots.committed, snapshots.planned
        self.coordinator = snapshots.coordinator
        self.coordinator.start(snapshots.stream_of(self.lake.state))
        return self.coordinator

    def batch(self) -> None:
        self.lake.run()

    def ended(self, id_: str) -> bool:
        return super().ended(id_) and id_ not in self.lake.state.runs

    def table(self, table: str) -> TableState:
        return self.lake.state.tables[table]

    def lacking(self, table: str) -> list[int]:
        """Keys of rows whose `v` the stream could not know."""
        lake = self.lake.config.lake
        path = names.folder_of(lake, table)
        if formats.format_of(lake).reader_of(path, lake.options()).columns() is None:
            return []
        return [k for k, row in self.lake.rows(table).items() if row["_cdc"]["unavailable"]]

    # -- the database and its connector ---------------------------------------------------------

    def commit(self, *changes: Change, lost: bool = False) -> None:
        """One transaction; one that is lost was not told when the connector began anew."""
        for one in changes:
            if one.op == "d":
                del self.rows[one.table][one.key]
            else:
                self.rows[one.table][one.key] = one.v
            self.database.keys[one.table] = set(self.rows[one.table])
        self._log(*changes, lost=lost)

    def _log(self, *events: Change, lost: bool = False) -> None:
        """Of a transaction's events; the first after lost ones names no commit before it."""
        xid, begin = self.database.begin(), self.log_end
        self.log_end += len(events) + 1
        if not lost:
            for at, one in enumerate(events, begin + 1):
                self.lake.put(
                    one.op, at, one.key, table=one.table, headers=one.headers, ts=begin,
                    tx=self._last, anew=self._anew, **(one.told or {"v": one.v}),
                )  # fmt: skip
            self._last = self.log_end
        self._anew = lost
        self.database.end(xid)

    def tick(
        self, *, closes: OpenWindow | None, opens: OpenWindow | None, reached: ReachedPlace
    ) -> Watermark | Snapshot:
        """As `postgres_windows.write_window`."""
        self._pass("tick")
        bound, server, rows = bound_of(STEP * self.log_end), self.database.server, []
        for kind, one in (("close", closes), ("open", opens)):
            if one is not None:
                data = {
                    "run": one.run,
                    "oldest": str(one.oldest),
                    "server": str(server),
                    "bound": bound.hex(),
                }
                told = {"type": f"snapshot-window-{kind}", "data": json.dumps(data)}
                rows.append(Change("c", SIGNALS, f"{one.uuid}-{kind}", told=told))
        self._log(*rows)
        self.database.end(self.database.begin())
        seen = self.database.snapshot()
        return seen if opens is None else Watermark(str(opens.uuid), seen, bound)

    # -- topics, lake and reader ----------------------------------------------------------------

    def control(self, records: Sequence[ControlRecord]) -> None:
        for record in records:
            self._pass("control")
            self.controls.append(said := json.loads(encode(record)))
            self.lake.records.append(said)
        self._pass("control")

    def committed(self, epoch: int) -> Committed:
        """The connector has sent all that there is."""
        self._pass("committed")
        end = STEP * self.log_end
        return Committed(lsns.pack(epoch, end, end), self.lake.broker.ends())

    def reader(self, table: str) -> TableReader:
        lake = self.lake.config.lake
        return formats.format_of(lake).reader_of(names.folder_of(lake, table), lake.options())

    def kept(self, table: str) -> pa.Schema | None:
        return self.reader(table).schema()

    def kept_digests(
        self, table: str, kept: pa.Schema, within: RowsWithin | None = None
    ) -> KeptDigests:
        assert within is None
        rows = self.reader(table).rows(kept.names)
        return KeptDigests(RowDigests.joined([digests(one, ["id"]) for one in rows]))

    def kept_keys(self, table: str, suspects: Words) -> list[bytes]:
        whole = pa.concat_tables(
            [pa.table({"id": pa.array([], pa.int64())}), *self.reader(table).rows(["id"])]
        )
        hits = among(digests(whole, ["id"]).keys, suspects)
        return [b"[%d]" % key for key in whole.column("id").filter(pa.array(hits)).to_pylist()]

    def found(self, run: str, table: str) -> Mapping[str, int]:
        return found_rows.counts(self.lake.config.lake, run, table)

    def partial_keys(self, table: str) -> tuple[str, ...]:
        self._pass("partial_keys")
        return tuple(f"[{key}]" for key in self.lacking(table))

    def read_chunk(self, spec: ChunkSpec) -> ChunkResult:
        """The chunk's rows, and keys of its list that there are not, as parts to the shards."""
        rows = self.rows[spec.table]
        keys, gone = self.database.within(spec.table, spec.span), None
        if spec.digest is not None:
            return self._digested(spec, spec.digest, _rows({key: rows[key] for key in keys}))
        if spec.keys is not None:
            wanted = [int(key) for (key,) in spec.keys]
            keys = [key for key in wanted if key in rows]
            gone = _rows({key: None for key in wanted if key not in rows})
        found = chunks.parts(
            spec, self.lake.schemas[spec.table], _rows({key: rows[key] for key in keys}),
            absent=gone, source_ts=0, max_record_bytes=1 << 20,
        )  # fmt: skip
        counts = Counter[int]()
        for part in found:
            (shard,) = part.shards
            assert part.value is not None
            blob = len(part.key).to_bytes(4) + part.key + part.value
            self.lake.shards.parts.append((shard, blob))
            counts[shard] += 1
        return ChunkResult(
            attempt=spec.attempt, rows=len(keys), absent=gone.rows.num_rows if gone else 0,
            parts=counts, proof=self.database.snapshot(),
            fingerprint=self.database.fingerprints[spec.table], bytes=self.bytes,
        )  # fmt: skip

    def _digested(self, spec: ChunkSpec, how: Digest, rows: KeyedRows) -> ChunkResult:
        made = digests(as_kept(rows.rows, how.schema, key=["id"]), ["id"])
        schema = self.database.fingerprints[spec.table]
        told = ChunkResult(attempt=spec.attempt, rows=len(made), fingerprint=schema)
        if how.suspects is None:
            return replace(told, digests=made)
        hits = rows.keys.filter(pa.array(among(made.keys, how.suspects)))
        return replace(told, keys=tuple(hits.to_pylist()))


def _rows(found: Mapping[int, str | None]) -> KeyedRows:
    columns = {"id": pa.array(found, pa.int64()), "v": pa.array(found.values(), pa.string())}
    keys = pa.array([f"[{key}]".encode() for key in found], pa.binary())
    return KeyedRows(pa.chunked_array([keys]), pa.table(columns))
