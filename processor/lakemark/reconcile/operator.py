"""Reconciliation as a stateful Spark operator; the algorithm is in `window`.

    changes ─ decode (`tasks`): packets, reports; touches per shard, marks to every shard ─┐
    chunks  ─ key or header says the shard ────────────────────────────────────────────────┼─ fold
    control ─ every record to every shard ─────────────────────────────────────────────────┘

That is the query while runs are armed; else no changes come here (`spark.query`).

Packets and reports pass through as they are. So the log is read from Kafka and decoded once, and
one batch has equal offsets for tables and shards because there is nothing else that it could have.

Fixed with the first checkpoint, because a checkpoint cannot be used without them: the three
sources and their order, the number of shards, the operator and its state schema (one binary
column, versioned by `window`). No timeouts: only Kafka records decide.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupStateTimeout

from lakemark import causes
from lakemark.reconcile import window
from lakemark.reconcile.outputs import OF_TABLES

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

STATE_DDL: Final = "blob binary"
OUTPUT_DDL: Final = "kind string, table string, source string, first long, slot int, blob binary"
COLUMNS: Final = ("shard", "kind", "table", "source", "first", "slot", "blob")


def reconciled(
    decoded: DataFrame,
    chunks: DataFrame,
    control: DataFrame,
    *,
    shards: int,
    slot_of: Callable[[str], int],
) -> DataFrame:
    """Return the rows that the shards let pass and their outputs (`outputs.Output`): `OUTPUT_DDL`.

    Args:
        decoded: what leaves `tasks.decode` (`COLUMNS`).
        chunks: raw records of the chunks topic: key = chunk header (JSON), value = Arrow IPC.
        control: raw records of the control topic.
        shards: number of shards; fixed with the checkpoint.
        slot_of: the merge task of a table; asked in the tasks.

    Raises (in the query):
        StateVersionError: the checkpoint was written by another version of lakemark.
    """
    rows = (
        decoded.select(*COLUMNS)
        .unionByName(_chunk_parts(chunks, shards))
        .unionByName(_to_every_shard(control, shards))
    )
    place_of = places(shards)
    shard_at = {place: shard for shard, place in enumerate(place_of)}
    place = f.element_at(f.array(*map(f.lit, place_of)), f.col("shard") + 1)

    def fold(
        key: tuple[int], frames: Iterable["pd.DataFrame"], state: "GroupState"
    ) -> Iterator["pd.DataFrame"]:
        return fold_group(shard_at[key[0]], frames, state, slot_of=slot_of)

    placed = rows.select(place.alias("place"), *COLUMNS[1:])
    return placed.groupBy("place").applyInPandasWithState(
        fold,
        outputStructType=OUTPUT_DDL,
        stateStructType=STATE_DDL,
        outputMode="append",
        timeoutConf=GroupStateTimeout.NoTimeout,
    )


def places(shards: int) -> list[int]:
    """Return for each shard a number whose hash leads Spark to a partition of that number.

    The shards' own numbers would meet in the same partitions, and wait there for each other, while
    other partitions have none: 0 to 3 need two of four.
    """
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < shards:
        found.setdefault(_spark_hash(candidate) % shards, candidate)
        candidate += 1
    return [found[shard] for shard in range(shards)]


def _spark_hash(value: int) -> int:
    """Spark's hash of an int: Murmur3, 32 bits, seed 42."""

    def turned(bits: int, by: int) -> int:
        return (bits << by | bits >> (32 - by)) & 0xFFFFFFFF

    mixed = turned(value * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    mixed = (turned(42 ^ mixed, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    mixed ^= 4  # bytes
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _chunk_parts(chunks: DataFrame, shards: int) -> DataFrame:
    """Lead parts of chunks to their shards; a record that names none goes to nobody.

    A record has one part, for the shard that its key names, or parts of several as its headers.
    """
    shard = f.get_json_object(f.col("key").cast("string"), "$.shard").cast("int")
    length = f.unhex(f.lpad(f.hex(f.length("key")), 8, "0"))
    alone = f.struct(
        shard.alias("shard"), f.concat(length, f.col("key"), f.col("value")).alias("blob")
    )
    several = f.transform(
        "headers", lambda h: f.struct(h["key"].cast("int").alias("shard"), h["value"].alias("blob"))
    )
    parts = f.when(f.col("value").isNotNull(), f.array(alone)).otherwise(several)
    return (
        chunks.select(f.explode(parts).alias("part"), *_place())
        .select(
            "part.shard",
            f.lit(window.CHUNK).alias("kind"),
            "table",
            "source",
            "first",
            "slot",
            "part.blob",
        )
        .where((f.col("shard") >= 0) & (f.col("shard") < shards) & f.col("blob").isNotNull())
    )


def _to_every_shard(control: DataFrame, shards: int) -> DataFrame:
    return control.select(
        f.explode(f.sequence(f.lit(0), f.lit(shards - 1))).alias("shard"),
        f.lit(window.CONTROL).alias("kind"),
        *_place(),
        f.col("value").alias("blob"),
    ).where(f.col("blob").isNotNull())


def _place() -> list[Any]:
    return [
        f.lit("").alias("table"),
        f.concat_ws("/", "topic", "partition").alias("source"),
        f.col("offset").alias("first"),
        f.lit(0).alias("slot"),
    ]


@causes.carrying
def fold_group(
    shard: int,
    frames: Iterable["pd.DataFrame"],
    state: "GroupState",
    *,
    slot_of: Callable[[str], int],
) -> Iterator["pd.DataFrame"]:
    """Fold one shard's share of a micro-batch: `window.fold` with Spark's state around it."""
    import pandas as pd  # noqa: PLC0415 - in the worker only

    rows: list[window.Row] = []
    for frame in frames:
        ours = frame["kind"].isin(window.FOLDED)
        if not ours.all():
            yield frame.loc[~ours, ["kind", "table", "source", "first", "slot", "blob"]]
        mine = frame[ours]
        rows += zip(mine["kind"], mine["source"], mine["first"], mine["blob"], strict=True)
    before = bytes(state.get[0]) if rows and state.exists else None
    folded = window.fold_rows(shard, rows, before)
    if folded is None:
        return
    if folded.state is not None:
        state.update((folded.state,))
    if folded.outputs:
        yield pd.DataFrame(
            {
                "kind": [out.kind for out in folded.outputs],
                "table": [out.table for out in folded.outputs],
                "source": [out.source for out in folded.outputs],
                "first": shard,
                "slot": [
                    slot_of(out.table) if out.kind in OF_TABLES else 0 for out in folded.outputs
                ],
                "blob": [out.blob for out in folded.outputs],
            }
        )
