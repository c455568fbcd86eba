"""The reconcile lane in a real query: packing, state, restart, and a state that is too new."""

import json

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemark.errors import StateVersionError
from lakemark.reconcile import operator, window
from lakemark.reconcile.state import decode_state
from lakemark.source.envelope import SourceIdentity
from lakemark.source.schema import HandlingModes
from lakemark.source.stretch import Plan
from tests.kit.golden import samples
from tests.unit.test_key_schema import schemas_of_samples

pytestmark = pytest.mark.spark

SHOP = SourceIdentity("postgresql", "shop", "public.dbz_signal")
SHARDS = 3
RAW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
RAW_DDL = (
    "topic string, partition int, offset long, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


class Lane:
    """The operator over three folders of files, one per source."""

    def __init__(self, spark, folder, *, shards=SHARDS):
        self.spark, self.folder, self.shards, self.files = spark, folder, shards, 0
        self.schemas: dict = {}
        for name in ("changes", "chunks", "control"):
            (folder / name).mkdir()

    def put(self, source: str, *records: dict) -> None:
        rows = [{"topic": "t", "partition": 0, "headers": None, "key": None, **r} for r in records]
        self.files += 1
        pq.write_table(
            pa.Table.from_pylist(rows, RAW), self.folder / source / f"{self.files:04}.parquet"
        )

    def control(self, *records: dict) -> None:
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

    def run(self, *, armed: bool = True) -> list:
        """Everything there is, as one or more micro-batches; restarts from the checkpoint.

        Returns what comes out of the operator.
        """
        from lakemark import handover, tasks
        from lakemark.reconcile import operator

        known = handover.Known({}, {})
        plan = tasks.DecodePlan(
            Plan(SHOP, HandlingModes(), schemas=self.schemas), shards=self.shards, armed=armed
        )

        def decode(batches):
            return tasks.decode(batches, handover.told(known))

        def take(frame, _):
            handover.tell(self.spark, plan, known)
            rows.extend(frame.collect())

        changes, chunks, control = (
            self.spark.readStream.schema(RAW_DDL).parquet(str(self.folder / name))
            for name in ("changes", "chunks", "control")
        )
        decoded = changes.mapInArrow(decode, tasks.DECODED_DDL)
        out = operator.reconciled(
            decoded, chunks, control, shards=self.shards, slot_of=lambda table: 7
        )
        rows: list = []
        partitions = self.spark.conf.get("spark.sql.shuffle.partitions")
        self.spark.conf.set("spark.sql.shuffle.partitions", str(self.shards))
        query = (
            out.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        self.spark.conf.set("spark.sql.shuffle.partitions", partitions)
        query.awaitTermination()
        return rows

    def states(self) -> dict[int, bytes]:
        frame = (
            self.spark.read.format("statestore")
            .load(str(self.folder / "checkpoint"))
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
                assert touches_shard(row, self.shards) == shard
                found.add(f"{row['table']} {row['key'].decode()}")
        return found


def touches_shard(row: dict, shards: int) -> int:
    from lakemark.source.touches import shard_of

    return shard_of(row["table"], row["key"], shards)


def says(rows: list) -> list:
    """What the operator says itself."""
    return [row for row in rows if row["kind"] not in {"packet", "report", "size"}]


CHANGES = ["c_orders_default_identity", "u_orders_default_identity", "pk_change_1_d", "pk_change_2_c",
           "heartbeat", "tombstone", "u_composite_default_identity"]  # fmt: skip


def test_the_state_survives_a_restart_and_grows_only_under_a_run(spark, tmp_path):
    lane = Lane(spark, tmp_path)
    lane.samples(*CHANGES)
    assert says(lane.run()) == []
    assert lane.states() == {}  # no run: nothing is written

    lane.control(
        {"type": "run-start", "run": "r1", "tables": ["public.orders", "public.customers"]}
    )
    lane.run()
    assert set(lane.states()) == set(range(SHARDS))  # armed in every shard, also empty ones
    assert lane.touches() == set()

    lane.samples(*CHANGES)  # a connector restart repeats them
    lane.run()
    assert lane.touches() == {
        "public.orders [3]",
        "public.customers [3]",
        "public.customers [30]",
    }

    lane.samples("r_initial_snapshot_first", "t_truncate")
    restarts = says(lane.run())
    assert {(r["kind"], r["table"]) for r in restarts} == {("restart", "public.customers")}
    assert len(restarts) == SHARDS

    before = lane.touches()
    lane.samples("d_orders_default_identity")
    lane.run()
    assert lane.touches() == before | {"public.orders [2]"}

    lane.control({"type": "run-end", "run": "r1"})
    lane.run()
    assert lane.touches() == set()
    assert all(not decode_state(blob).runs for blob in lane.states().values())


def test_the_driver_tells_the_tasks_of_a_batch_whether_touches_are_needed(spark, tmp_path):
    lane = Lane(spark, tmp_path)
    lane.control({"type": "run-start", "run": "r1", "tables": ["public.orders"]})
    lane.samples("c_orders_default_identity")
    lane.run(armed=False)
    assert lane.touches() == set()

    lane.samples("u_orders_default_identity")
    lane.run(armed=True)
    assert lane.touches() == {"public.orders [3]"}


def test_packets_pass_through_whatever_the_state(spark, tmp_path):
    """With a schema that was not known when the query started: it is handed over with the plan."""
    from lakemark import packets
    from lakemark.tasks import Report

    lane = Lane(spark, tmp_path)
    lane.schemas = schemas_of_samples()
    for armed in (False, True):
        lane.control({"type": "run-start", "run": "r1", "tables": ["public.orders"]})
        lane.samples("c_orders_default_identity", "u_orders_default_identity")
        rows = lane.run(armed=armed)
        (packet,) = (row for row in rows if row["kind"] == "packet")
        reports = [row["blob"] for row in rows if row["kind"] == "report"]
        (report,) = (msgspec.msgpack.decode(blob, type=Report) for blob in reports)
        assert packets.decode(bytes(packet["blob"])).column("key").to_pylist() == [b"[3]"]
        assert (packet["table"], packet["source"]) == ("public.orders", f"{report.topic}/0")
        assert report.tables["public.orders"].events == 2


def older_fold():
    """`fold_group` of a lakemark that knows no version yet; a local function travels by value."""

    def older(shard, frames, state, *, slot_of):
        from lakemark.reconcile import operator
        from lakemark.reconcile import state as states

        known = states.VERSION
        states.VERSION = 0
        try:
            yield from operator.fold_group(shard, frames, state, slot_of=slot_of)
        finally:
            states.VERSION = known

    return older


def test_a_state_of_a_newer_version_stops_the_query_by_name(spark, tmp_path, monkeypatch):
    from pyspark.errors import StreamingQueryException

    lane = Lane(spark, tmp_path)
    lane.control({"type": "run-start", "run": "r1", "tables": ["public.orders"]})
    lane.run()
    before = lane.states()
    lane.samples("c_orders_default_identity")
    with monkeypatch.context() as patch:
        patch.setattr(operator, "fold_group", older_fold())
        with pytest.raises(StreamingQueryException) as caught:
            lane.run()
    assert StateVersionError.__name__ in str(caught.value)
    assert "reads up to 0" in str(caught.value)
    assert lane.states() == before
    lane.run()  # the newer one goes on where it was
    assert lane.touches() == {"public.orders [3]"}


def test_chunk_records_go_to_the_shard_in_their_header(spark, tmp_path):

    def chunk(offset: int, header: dict, value: bytes | None = b"arrow") -> dict:
        return {"offset": offset, "key": json.dumps(header).encode(), "value": value}

    lane = Lane(spark, tmp_path)
    lane.put("chunks", chunk(1, {"shard": 2}), chunk(2, {"shard": 7}), chunk(3, {"run": "x"}),
             chunk(4, {"shard": 0}, None))  # fmt: skip
    frame = spark.read.parquet(str(tmp_path / "chunks"))
    rows = operator._chunk_parts(frame, SHARDS).collect()
    assert [(r["shard"], r["kind"], r["first"]) for r in rows] == [(2, window.CHUNK, 1)]
    blob = bytes(rows[0]["blob"])
    size = int.from_bytes(blob[:4])
    assert msgspec.json.decode(blob[4 : 4 + size]) == {"shard": 2}
    assert blob[4 + size :] == b"arrow"
