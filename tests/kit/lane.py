"""The reconcile lane in a real query, over folders of files instead of topics."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakemark import tasks
from lakemark.model.decoding import StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.reconcile import operator, window
from lakemark.source.changed_keys import shard_of
from lakemark.source.fetch import SCHEMA
from lakemark.spark import plan_broadcast
from tests.kit.golden import samples

if TYPE_CHECKING:
    from lakemark.model.schema import TableSchema

SHOP = SourceIdentity("postgresql", "shop", "public.dbz_signal")
SHARDS = 3
RAW_DDL = (
    "topic string, partition int, offset long, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


class Lane:
    """The operator over three folders of files, one per source."""

    def __init__(
        self, spark: Any, folder: Path, *, shards: int = SHARDS, source: SourceIdentity = SHOP
    ) -> None:
        self.spark, self.folder, self.shards, self.files = spark, folder, shards, 0
        self.source = source
        self.schemas: dict[str, TableSchema] = {}
        for name in ("changes", "chunks", "control"):
            (folder / name).mkdir()

    def put(self, source: str, *records: dict[str, Any]) -> None:
        rows = [{"topic": "t", "partition": 0, "headers": None, "key": None, **r} for r in records]
        self.files += 1
        pq.write_table(
            pa.Table.from_pylist(rows, SCHEMA), self.folder / source / f"{self.files:04}.parquet"
        )

    def control(self, *records: dict[str, Any]) -> None:
        self.put(
            "control",
            *(
                {"offset": self.files * 100 + n, "value": json.dumps(r).encode()}
                for n, r in enumerate(records)
            ),
        )

    def samples(self, *labels: str) -> None:
        table = samples(wrapped=False)
        self.put("changes", *(
            {
                "topic": table[n].topic,
                "offset": table[n].offset,
                "key": table[n].key,
                "value": table[n].value,
                "headers": table[n].headers,
            }
            for n in labels
        ))  # fmt: skip

    def run(self, *, armed: bool = True, checkpoint: str = "checkpoint") -> list[Any]:
        """Everything there is, as one or more micro-batches; restarts from the checkpoint.

        Returns what comes out of the operator.
        """
        known = plan_broadcast.QueryContext({}, {})
        plan = tasks.DecodePlan(
            StretchPlan(self.source, HandlingModes(), schemas=self.schemas),
            shards=self.shards,
            armed=armed,
        )

        def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return tasks.decode(batches, plan_broadcast.receive(known))

        def take(frame: Any, _: int) -> None:
            plan_broadcast.send(self.spark, plan, known)
            rows.extend(frame.collect())

        changes, chunks, control = (
            self.spark.readStream.schema(RAW_DDL).parquet(str(self.folder / name))
            for name in ("changes", "chunks", "control")
        )
        decoded = changes.mapInArrow(decode, tasks.DECODED_DDL)
        out = operator.reconciled(
            decoded, chunks, control, shards=self.shards, slot_of=lambda table: 7
        )
        rows: list[Any] = []
        partitions = self.spark.conf.get("spark.sql.shuffle.partitions")
        self.spark.conf.set("spark.sql.shuffle.partitions", str(self.shards))
        query = (
            out.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        self.spark.conf.set("spark.sql.shuffle.partitions", partitions)
        query.awaitTermination()
        return rows

    def again(self) -> tuple[list[Any], dict[int, bytes]]:
        """The last batch once more, from a copy of the checkpoint as a crash in it would leave it.

        The batch is planned; no state after it is written. Returns outputs and states.
        """
        commits = (self.folder / "checkpoint" / "commits").iterdir()
        last = max(int(path.name) for path in commits if path.name.isdigit())
        copy = f"again-{last}"
        shutil.copytree(self.folder / "checkpoint", self.folder / copy)
        written = [*(self.folder / copy / "state").rglob(f"{last + 1}.*")]
        assert written
        for path in [*written, self.folder / copy / "commits" / str(last)]:
            path.unlink()
            (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
        return self.run(checkpoint=copy), self.states(copy)

    def states(self, checkpoint: str = "checkpoint") -> dict[int, bytes]:
        frame = (
            self.spark.read.format("statestore")
            .load(str(self.folder / checkpoint))
            .selectExpr(
                "partition_id as partition", "key.place as place", "value.groupState.blob as blob"
            )
        )
        rows = frame.collect()
        shards = {row["place"]: operator.places(self.shards).index(row["place"]) for row in rows}
        # each shard has a partition of its own
        assert all(shards[row["place"]] == row["partition"] for row in rows)
        return {shards[row["place"]]: bytes(row["blob"]) for row in rows}

    def touches(self) -> set[str]:
        found = set()
        for shard, blob in self.states().items():
            for row in window.touched(blob).to_pylist():
                assert shard_of(row["table"], row["key"], self.shards) == shard
                found.add(f"{row['table']} {row['key'].decode()}")
        return found
