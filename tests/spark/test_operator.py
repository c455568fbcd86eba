"""The reconcile lane in a real query: packing, state, restart, and a state that is too new."""

import json
import random
from collections import Counter

import msgspec
import pytest

from lakemark.causes import cause
from lakemark.errors import StateVersionError
from lakemark.model import change_batch
from lakemark.reconcile import operator, outputs, window
from lakemark.reconcile.state import decode_state
from lakemark.snapshot.chunks import parts_of
from tests.kit.lane import SHARDS, Lane
from tests.kit.log_model import Shape
from tests.kit.simulation.history import History
from tests.kit.simulation.pipeline import IDENTITY, SCHEMAS, Ends, Pipeline
from tests.kit.simulation.world import World
from tests.unit.converters.test_key_schema import schemas_of_samples

pytestmark = pytest.mark.spark


def says(rows: list) -> list:
    """What the operator says itself."""
    return [row for row in rows if row["kind"] not in {"packet", "report", "size", "stop"}]


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
    from lakemark.model import change_batch
    from lakemark.model.decoding import Report

    lane = Lane(spark, tmp_path)
    lane.schemas = schemas_of_samples()
    for armed in (False, True):
        lane.control({"type": "run-start", "run": "r1", "tables": ["public.orders"]})
        lane.samples("c_orders_default_identity", "u_orders_default_identity")
        rows = lane.run(armed=armed)
        (packet,) = (row for row in rows if row["kind"] == "packet")
        reports = [row["blob"] for row in rows if row["kind"] == "report"]
        (report,) = (msgspec.msgpack.decode(blob, type=Report) for blob in reports)
        assert change_batch.decode(bytes(packet["blob"])).column("key").to_pylist() == [b"[3]"]
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
    known = cause(None, caught.value)
    assert isinstance(known, StateVersionError), "the supervisor ends, it does not try again"
    assert known.message.endswith("reads version 0: it was written by a newer one")
    assert "run the version of lakemark that wrote the checkpoint" in known.hint
    assert not known.retried
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
    found = [
        (shard, blob)
        for row in frame.collect()
        for shard, blob in parts_of(row.asDict(recursive=True))
        if shard in range(SHARDS)
    ]
    assert found == [(2, blob)], "without Spark they go to the same"


def test_a_batch_that_runs_again_gives_the_same_bytes_and_those_of_the_pure_fold(spark, tmp_path):
    """A simulated history through the real query, in five batches, and each once more."""
    seed = 12
    made = History(seed, World(Shape(partitions=2), shards=2, steps=150, before=5))
    history = made.run().pipeline
    pure = Pipeline(history.connector, random.Random(seed), history.shards, 0.0)
    pure.control, pure.chunks, pure.files = history.control, history.chunks, history.files
    lane = Lane(spark, tmp_path, shards=history.shards, source=IDENTITY)
    lane.schemas = dict(SCHEMAS)
    held: Counter[str] = Counter()  # batches, by what they hold
    for share in (0.2, 0.4, 0.6, 0.8, 1.0):
        begin, end = pure.state, ends_at(pure, share)
        put(lane, pure, begin, end)
        rows = lane.run()
        expected = pure.run(end).outputs
        assert spoken(rows) == sorted((shard, *of) for shard, of in map(told, expected))
        assert lane.states() == stored(pure.state)
        repeated, states = lane.again()
        assert ordered(repeated) == ordered(rows)
        assert states == stored(pure.state)
        held.update({record["type"] for record in pure.control[begin.control : end.control]})
        held.update({output.kind for _, output in expected})
        held.update({"touches" for blob in states.values() if window.touched(blob).num_rows})
        held.update({"in files" for _, output in expected if in_file(output)})
    assert held["chunk"] >= 4
    assert held[outputs.SURVIVORS] >= 4
    assert held["touches"] >= 2
    assert {"run-start", "void", "run-end", outputs.SETTLED, "in files"} <= {*held}


def in_file(output: outputs.Output) -> bool:
    """Whether rows that survived are in a data file."""
    return output.kind == outputs.SURVIVORS and change_batch.parted(output.blob)[1] is not None


def ends_at(pure: Pipeline, share: float) -> Ends:
    kafka = pure.connector.kafka
    offsets = {place: int(len(records) * share) for place, records in kafka.items()}
    return Ends(
        offsets, int(len(pure.control) * share), tuple(int(len(c) * share) for c in pure.chunks),
        {place: pure.state.offsets[place] for place in offsets},
    )  # fmt: skip


def put(lane: Lane, pure: Pipeline, begin, end: Ends) -> None:
    """The records of a batch into the lane's folders."""
    changes = [
        {"topic": topic, "partition": number, "offset": at, "key": records[at].key,
         "value": records[at].value, "headers": records[at].headers or None}
        for (topic, number), records in pure.connector.kafka.items()
        for at in range(begin.offsets[topic, number], end.offsets[topic, number])
    ]  # fmt: skip
    control = [
        {"topic": "control", "offset": at, "value": msgspec.json.encode(pure.control[at])}
        for at in range(begin.control, end.control)
    ]
    chunks = [
        {"topic": "chunks", "partition": number, "offset": at, "key": topic[at][0],
         "value": topic[at][1]}
        for number, topic in enumerate(pure.chunks)
        for at in range(begin.chunks[number], end.chunks[number])
    ]  # fmt: skip
    for name, records in (("changes", changes), ("control", control), ("chunks", chunks)):
        lane.put(name, *records)


def told(said: tuple[int, outputs.Output]) -> tuple[int, tuple[str, str, str, bytes]]:
    shard, output = said
    return shard, (output.kind, output.table, output.source, output.blob)


def spoken(rows: list) -> list:
    """What the shards said, but for their sizes."""
    passed = {"packet", "report", "size"}
    return sorted(
        (row["first"], row["kind"], row["table"], row["source"], bytes(row["blob"]))
        for row in rows
        if row["kind"] not in passed
    )


def ordered(rows: list) -> list:
    return sorted((tuple(row) for row in rows), key=lambda row: (*row[:4], row[5]))


def stored(state) -> dict[int, bytes]:
    return {shard: blob for shard, blob in enumerate(state.shards) if blob is not None}
