"""The driver under random pauses and skips: a batch that is repeated skips what it skipped before.

Two runs of one history, one of which dies again and again before it keeps its state. What was left
out is not in the lake, so the lake is compared with that of the other run, not with the source.
"""

import json
import random

import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.sink import names
from lakemark.state import stored_form, tables
from tests.kit.log_model import TABLE, TOPIC, Database, shapes, table_schema
from tests.kit.log_records import Connector
from tests.kit.memory_pipeline import Broker, DiedError, World
from tests.kit.nightly import examples

_SHAPES = shapes(transactions=10, keys=6)


def recorded(seed, shape):
    """The partitions of the topic, as the connector wrote them."""
    dice = random.Random(seed)
    records = Connector(Database(shape, dice).run(), dice).run()
    return [
        [(r.key, r.value, [(h["key"], h["value"]) for h in r.headers]) for r in partition]
        for partition in records
    ]


def command(dice, lengths):
    """A control record or none; a skip is as of an end that may be ahead of the stream."""
    kind = dice.choice(["table-pause", "table-pause", "table-skip", "table-resume", None, None])
    if kind is None:
        return []
    record = {"type": kind, "table": TABLE}
    if kind == "table-skip":
        ends = {str(p): dice.randint(0, length) for p, length in enumerate(lengths)}
        record["offsets"] = {TOPIC: ends}
    return [record]


def played(topic, seed, root, *, deaths):
    """The world after the whole history; deaths come before a batch's state is kept."""
    dice, death = random.Random(seed), random.Random(seed + 1)
    world = World(root, Broker({TOPIC: topic}), {TABLE: table_schema()})
    at = [0] * len(topic)
    while any(a < len(part) for a, part in zip(at, topic, strict=True)):
        world.records += command(dice, [len(part) for part in topic])
        longest = dice.choice([1, 3, 10])
        at = [min(len(p), a + dice.randint(0, longest)) for a, p in zip(at, topic, strict=True)]
        batch(world, {TOPIC: dict(enumerate(at))}, death if deaths else None)
    for _ in range(3):  # what waits for an end is there by now
        batch(world, {TOPIC: dict(enumerate(at))}, None)
    return world


def batch(world, ends, death):
    read = world.read
    world.checkpoint.dies_before_saving = death is not None and death.random() < 0.4
    try:
        world.run(ends)
    except DiedError:
        world.read = read
        world.restart()
        world.again()
        world.read = ends


def outcome(world):
    """The rows of the lake, and what is known of the table but for its files' size and time."""
    path = names.table_path(world.config.lake.path, TABLE)
    rows = []
    if DeltaTable.is_deltatable(path):
        found = pa.table(DeltaTable(path).to_pyarrow_table()).to_pylist()
        rows = sorted(json.dumps(row, default=repr, sort_keys=True) for row in found)
    state = world.state
    for entry in state.tables.values():
        entry.size.bytes = entry.size.committed_ms = 0
    return rows, stored_form.encode(state)


@given(seed=st.integers(0, 2**40), shape=_SHAPES)
@settings(max_examples=examples(6, nightly=200), deadline=None, print_blob=True)
def test_a_skip_holds_however_often_its_batch_is_repeated(seed, shape, tmp_path_factory):
    topic = recorded(seed, shape)
    calm = played(topic, seed, tmp_path_factory.mktemp("calm"), deaths=False)
    restless = played(topic, seed, tmp_path_factory.mktemp("restless"), deaths=True)
    assert outcome(restless) == outcome(calm)
    entry = calm.state.tables.get(TABLE)
    if entry is not None:
        assert entry.progress.skip_to is None, "every end has been reached"
        if entry.state == tables.STREAMING:
            assert entry.progress.from_offsets == {}
