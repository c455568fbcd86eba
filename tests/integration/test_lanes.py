"""Both lanes derive from one `load()`: they see equal offsets in every batch."""

import threading

import pytest
from pyspark.sql import functions as f

from lakemark import kafka
from lakemark.config import Config
from lakemark.session import session
from lakemark.source import topics

pytestmark = pytest.mark.integration


@pytest.mark.usefixtures("java_home")
def test_both_lanes_see_equal_offsets_in_every_batch(stack, tmp_path):
    topic = "lanes.public.things"
    stack.kafka.create_topic(topic, partitions=3)
    config = Config.model_validate(
        {
            "name": "lanes",
            "kafka": {"bootstrap_servers": stack.kafka.bootstrap},
            "source": {"connector_file": __file__},
            "lake": {"path": str(tmp_path / "lake")},
            "checkpoint": str(tmp_path / "checkpoint"),
        },
        context={"base": tmp_path},
    )
    stop = threading.Event()

    def write() -> None:
        producer = stack.kafka.producer()
        number = 0
        while not stop.is_set():
            for _ in range(50):
                producer.produce(topic, key=str(number), value=b"x" * 100)
                number += 1
            producer.flush(10)

    seen: list[tuple[set[tuple[int, int]], set[tuple[int, int]]]] = []
    enough = threading.Event()

    def batch(frame, _) -> None:
        rows = frame.select("lane", "partition", "offset").collect()
        lanes = {
            lane: {(r["partition"], r["offset"]) for r in rows if r["lane"] == lane}
            for lane in ("log", "other")
        }
        seen.append((lanes["log"], lanes["other"]))
        if len(seen) >= 4:
            enough.set()

    with session(config) as spark:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            changes = topics.change_stream(
                spark,
                kafka.java_options(config),
                pattern=r"lanes\.public\..*",
                starting="earliest",
                max_events=700,
            )
            other = (
                changes.mapInArrow(lambda batches: batches, changes.schema)
                .repartition(2)
                .select(f.lit("other").alias("lane"), *topics.COLUMNS)
            )
            query = (
                topics.log_lane(changes)
                .unionByName(other)
                .writeStream.foreachBatch(batch)
                .option("checkpointLocation", str(tmp_path / "checkpoint" / "lanes"))
                .start()
            )
            try:
                assert enough.wait(120)
                sources = query.lastProgress["sources"] if query.lastProgress else []
            finally:
                query.stop()
        finally:
            stop.set()
            writer.join()
    assert len(sources) == 1
    for log_lane, other_lane in seen:
        assert log_lane
        assert log_lane == other_lane
