"""Rows for an output topic: each once, in whatever order a shuffle brings them when they come again."""

import random
from collections import Counter, defaultdict
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark import tasks
from lakemark.connectors.postgres import positions as lsns
from lakemark.converters.json.envelopes import sample
from lakemark.model import change_batch
from lakemark.model.events import Learnt
from lakemark.model.handling_modes import HandlingModes
from lakemark.reconcile import chunks as deciding
from lakemark.reconcile import key_log
from lakemark.reconcile.outputs import SURVIVORS
from lakemark.sink.lake_plan import LakePlan, TableOutcome, TablePlan
from lakemark.sink.output import publisher, transaction
from lakemark.sink.output.publisher import OutputPlan
from lakemark.snapshot import chunks
from lakemark.snapshot.chunks import ChunkSpec, KeyedRows
from lakemark.tasks import Publishing
from tests.kit.log_model import STEP
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.memory_topics import MemoryTopics
from tests.kit.nightly import examples
from tests.kit.shop import ORDERS, Shop, event, schema_of

SCHEMA = schema_of(ORDERS, id="int8", v="text")
CLEAN = f"clean.{ORDERS}"
SHARDS = 3
ROWS = pa.schema([field for field in tasks.DECODED if field.name != "shard"])
LO = lsns.pack(0, 70 * STEP, 70 * STEP)
SWEPT = lsns.pack(0, 60 * STEP, 60 * STEP)
OLD, NEW = range(100, 112), range(12)  # keys that a sweep removes; keys that are read


def of_chunk(attempt: int, ids: list[int]) -> list[tuple[str, int, bytes]]:
    """What the shards let pass of a chunk with these keys; the last one is there no more."""
    spec = ChunkSpec(run="r1", table=ORDERS, chunk=attempt, attempt=attempt, shards=SHARDS)
    made = chunks.parts(
        spec, SCHEMA, rows_of(ids[:-1]), absent=KeyedRows(keys_of(ids[-1:]), rows_of(ids[-1:]).rows.select(["id"])),
        source_ts=1_000_000, max_record_bytes=1 << 20, told=True,
    )  # fmt: skip
    by_shard: dict[int, dict[int, bytes]] = defaultdict(dict)
    for part in made:
        (shard,) = part.shards
        by_shard[shard][len(by_shard[shard])] = part.value or b""
    decided = {
        shard: deciding.decide(parts, LO, key_log.newest([]), truncated_at=b"").blob
        for shard, parts in by_shard.items()
    }
    return [(f"chunk/{attempt}", shard, blob) for shard, blob in decided.items() if blob]


def rows_of(ids: list[int]) -> KeyedRows:
    texts = pa.array([f"v{number}" for number in ids], pa.string())
    return KeyedRows(keys_of(ids), pa.table({"id": pa.array(ids, pa.int64()), "v": texts}))


def keys_of(ids: list[int]) -> pa.ChunkedArray:
    return pa.chunked_array([[f"[{number}]".encode() for number in ids]], pa.binary())


def shuffled(found: list[tuple[str, int, bytes]], dice: random.Random) -> pa.RecordBatch:
    rows = [
        {"kind": SURVIVORS, "table": ORDERS, "source": source, "first": first, "slot": 0, "blob": b}
        for source, first, b in dice.sample(found, len(found))
    ]
    return pa.RecordBatch.from_pylist(rows, ROWS)


@settings(max_examples=examples(10, nightly=200))
@given(
    dies=st.lists(st.integers(0, 12), max_size=4),
    seed=st.integers(0, 1 << 16),
    at_once=st.integers(1, 20),
)
def test_rows_that_come_again_in_another_order_are_written_once(dies, seed, at_once):
    """Chunks and a sweep; the task dies around some of its transactions, and is tried again."""
    dice, out = random.Random(seed), MemoryTopics()
    found = [one for n in range(3) for one in of_chunk(n, list(NEW[4 * n : 4 * n + 4]))]
    found.append(
        ("sweep/r1", 0, change_batch.encode(change_batch.truncates([SWEPT], table=ORDERS)))
    )
    with TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction, "write", out.write)
        patch.setattr(publisher, "AT_ONCE", at_once)
        shop = Shop(Path(root), Broker(), {ORDERS: SCHEMA})
        for key in OLD:
            shop.put("c", 10, key, v="old")
        shop.run()
        place = TablePlan(f"{shop.config.lake.path}/public/orders")
        plan = LakePlan("q", 1, "stream", lambda _: place, {ORDERS: place})
        publish = Publishing(
            OutputPlan(
                "shop", "clean", "control", "q", 1,
                learnt=Learnt(sample(event("u", 9, {"id": 1, "v": "a"}))),
                key_schemas={ORDERS: schema_of(ORDERS, id="int8")},
                rows={ORDERS: publisher.Row(place.path)},
            ),
            HandlingModes(),
            {},
        )  # fmt: skip
        for left in [*dies, -1]:
            out.dies = map((left).__eq__, count()).__next__
            try:
                (result,) = tasks.merge([shuffled(found, dice)], plan, publish)
                break
            except DiedError:
                continue
        (outcome,) = [
            msgspec.msgpack.decode(b, type=TableOutcome) for b in result["blob"].to_pylist()
        ]
        assert not outcome.code, outcome
        assert shop.values() == {n: f"v{n}" for n in NEW if n % 4 != 3}
    seen = Counter((key, value and value["op"]) for key, _, value in out.events(CLEAN))
    gone = {*OLD, *NEW[3::4]}
    wanted = [(n, "r") for n in NEW if n not in gone] + [
        (n, op) for n in gone for op in ("d", None)
    ]
    assert seen == Counter(wanted)
