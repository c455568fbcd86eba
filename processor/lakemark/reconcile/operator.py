"""The reconcile lane as a stateful Spark operator; the algorithm is in `window`.

    changes ─ pack (mapInArrow): touches per shard, marks to every shard ─┐
    chunks  ─ header (record key) says the shard ─────────────────────────┼─ groupBy(shard) ─ fold
    control ─ every record to every shard ────────────────────────────────┘

While no run is armed nobody needs touches: the driver, which reads the same control records, says
so to the tasks of each batch (`arm`), and they let the events pass unread. A repeated batch has the
same control records, so it is told the same.

Fixed with the first checkpoint, because a checkpoint cannot be used without them: the three
sources and their order, the number of shards, the operator and its state schema (one binary
column, versioned by `window`). No timeouts: only Kafka records decide.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupStateTimeout

from lakemark.reconcile import window
from lakemark.source import envelope, key_schema, touches
from lakemark.source.envelope import SourceIdentity
from lakemark.source.schema import TableSchema

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

ARMED: Final = "lakemark.armed"
STATE_DDL: Final = "blob binary"
OUTPUT_DDL: Final = "kind string, table string, blob binary"
# `source` and `first` give the blobs of a kind a fixed order, whatever way the shuffle takes.
PACKED_DDL: Final = "shard int, kind string, source string, first long, blob binary"
_PACKED: Final = pa.schema(
    [
        ("shard", pa.int32()),
        ("kind", pa.string()),
        ("source", pa.string()),
        ("first", pa.int64()),
        ("blob", pa.binary()),
    ]
)


def arm(spark: SparkSession, *, armed: bool) -> None:
    """Says whether the touches of the batches that this thread runs from now on are needed."""
    spark.sparkContext.setLocalProperty(ARMED, str(armed).lower())


def _armed() -> bool:
    context = TaskContext.get()
    return context is None or context.getLocalProperty(ARMED) != "false"


def survivors(
    changes: DataFrame,
    chunks: DataFrame,
    control: DataFrame,
    *,
    identity: SourceIdentity,
    shards: int,
    schemas: Mapping[str, TableSchema],
    max_event_bytes: int = envelope.MAX_BYTES,
) -> DataFrame:
    """What the shards say: rows (kind string, table string, blob binary), see `window.Output`.

    Args:
        changes: raw records of the change topics (topic, partition, offset, key, value, headers).
        chunks: raw records of the chunks topic: key = chunk header (JSON), value = Arrow IPC.
        control: raw records of the control topic.
        identity: the connector whose records they are.
        shards: number of shards; fixed with the checkpoint.
        schemas: tables known from catalog or file, for keys of plain records. Frozen when the
            query starts: a run over a table that is not in it needs a restart first.
        max_event_bytes: larger values are not read.

    Raises (in the query):
        StateVersionError: the checkpoint was written by a newer lakemark.
    """
    known = dict(schemas)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        armed = _armed()
        for batch in batches:
            if armed:
                yield pack_batch(
                    batch,
                    identity=identity,
                    shards=shards,
                    schemas=known,
                    max_bytes=max_event_bytes,
                )

    packed = (
        changes.select("topic", "partition", "offset", "key", "value", "headers")
        .mapInArrow(pack, PACKED_DDL)
        .unionByName(_chunk_parts(chunks, shards))
        .unionByName(_to_every_shard(control, shards))
    )
    return packed.groupBy("shard").applyInPandasWithState(
        fold_group,
        outputStructType=OUTPUT_DDL,
        stateStructType=STATE_DDL,
        outputMode="append",
        timeoutConf=GroupStateTimeout.NoTimeout,
    )


def _chunk_parts(chunks: DataFrame, shards: int) -> DataFrame:
    """Chunk records to the shard in their header; one that names none is nobody's."""
    shard = f.get_json_object(f.col("key").cast("string"), "$.shard").cast("int")
    length = f.unhex(f.lpad(f.hex(f.length("key")), 8, "0"))
    return chunks.select(
        shard.alias("shard"),
        f.lit(window.CHUNK).alias("kind"),
        _source(),
        f.col("offset").alias("first"),
        f.concat(length, f.col("key"), f.col("value")).alias("blob"),
    ).where((f.col("shard") >= 0) & (f.col("shard") < shards) & f.col("blob").isNotNull())


def _to_every_shard(control: DataFrame, shards: int) -> DataFrame:
    return control.select(
        f.explode(f.sequence(f.lit(0), f.lit(shards - 1))).alias("shard"),
        f.lit(window.CONTROL).alias("kind"),
        _source(),
        f.col("offset").alias("first"),
        f.col("value").alias("blob"),
    ).where(f.col("blob").isNotNull())


def _source() -> Any:
    return f.concat_ws("/", "topic", "partition").alias("source")


def pack_batch(
    batch: pa.RecordBatch,
    *,
    identity: SourceIdentity,
    shards: int,
    schemas: Mapping[str, TableSchema],
    max_bytes: int = envelope.MAX_BYTES,
) -> pa.RecordBatch:
    """One Arrow batch of raw change records, packed: at most one row per partition and shard more
    than there are marks. Never raises on any bytes: a bad record is the row lane's to report.
    """
    rows: list[tuple[int, str, str, int, bytes]] = []
    for part in _by_partition(batch):
        source = f"{part.column('topic')[0].as_py()}/{part.column('partition')[0].as_py()}"
        first = int(part.column("offset")[0].as_py())
        packed = _pack_part(part, identity, shards, schemas, max_bytes)
        rows += [
            (shard, window.TOUCHES, source, first, blob) for shard, blob in packed.touches.items()
        ]
        if packed.marks is not None:
            rows += [(n, window.MARKS, source, first, packed.marks) for n in range(shards)]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_PACKED)
    return pa.RecordBatch.from_arrays(
        [pa.array(c, field.type) for c, field in zip(columns, _PACKED, strict=True)],
        schema=_PACKED,
    )


def _by_partition(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch cut where topic or partition change: nearly always a single piece."""
    if not batch.num_rows:
        return
    topics = batch.column("topic").dictionary_encode().indices.to_numpy()
    partitions = batch.column("partition").to_numpy()
    cuts = np.flatnonzero((np.diff(topics) != 0) | (np.diff(partitions) != 0)) + 1
    for begin, end in pairwise([0, *cuts.tolist(), batch.num_rows]):
        yield batch.slice(begin, end - begin)


def _pack_part(
    part: pa.RecordBatch,
    identity: SourceIdentity,
    shards: int,
    schemas: Mapping[str, TableSchema],
    max_bytes: int,
) -> touches.Packed:
    raw_keys = part.column("key").to_pylist()
    heads = envelope.decode(
        part.column("value").to_pylist(),
        raw_keys,
        identity=identity,
        # The epoch is a function of where a record stands; there is only the first one so far.
        epoch=0,
        offsets=part.column("offset").to_pylist(),
        max_bytes=max_bytes,
    )
    changed = {
        at: new for at, (new, _) in envelope.key_changes(part.column("headers")).items() if new
    }
    keys, new_keys = key_schema.canonical(heads, raw_keys, schemas=schemas, changed=changed)
    return touches.pack_touches(heads, keys, shards=shards, new_keys=new_keys)


def fold_group(
    _key: tuple[int], frames: Iterable["pd.DataFrame"], state: "GroupState"
) -> Iterator["pd.DataFrame"]:
    """One shard's share of a micro-batch: `window.fold` with Spark's state around it."""
    import pandas as pd  # noqa: PLC0415 - in the worker only

    rows: list[tuple[str, str, int, bytes]] = []
    for frame in frames:
        rows += zip(frame["kind"], frame["source"], frame["first"], frame["blob"], strict=True)
    rows.sort(key=lambda row: row[:3])
    records: dict[str, list[bytes]] = {}
    for kind, _, _, blob in rows:
        records.setdefault(kind, []).append(bytes(blob))
    before = state.get[0] if state.exists else None
    folded = window.fold(None if before is None else bytes(before), records)
    if folded.state is not None:
        state.update((folded.state,))
    if folded.outputs:
        yield pd.DataFrame(
            {
                "kind": [out.kind for out in folded.outputs],
                "table": [out.table for out in folded.outputs],
                "blob": [out.blob for out in folded.outputs],
            }
        )
