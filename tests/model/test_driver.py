"""The whole driver under random histories, cuts, pauses, crashes and a lake that comes and goes.

The real `Pipeline.batch` with the real tasks and the real delta-rs engine; in the end the Delta
table, read by delta-rs, equals the simulated source. A batch that is repeated may have become
another one: Spark's plan of it is lost, slices of catch-ups have another size.
"""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.errors import DependencyError
from lakemark.sink import apply, names, table_sink
from lakemark.state import tables
from tests.kit.log_model import TABLE, TOPIC, Database, Shape, shapes, table_schema
from tests.kit.log_records import Connector
from tests.kit.memory_pipeline import Broker, DiedError, World
from tests.kit.nightly import examples
from tests.kit.table_model import DeltaLake
from tests.model.test_table_task import differences

_SHAPES = shapes(transactions=10, keys=6)


class Fate:
    """What goes wrong, decided by the dice."""

    def __init__(self, world, dice):
        self.world, self.dice = world, dice
        self.real = apply.apply
        self.away = 0

    def apply(self, table, parts, plan, **more):
        if self.away:
            self.away -= 1
            raise DependencyError("the lake is away", code="lake-unavailable")
        return self.real(table, parts, plan, **more)

    def command(self):
        kind = self.dice.choice(["table-pause", "table-resume", "table-resume", None, None, None])
        if kind:
            self.world.records.append({"type": kind, "table": TABLE})

    def batch(self, ends, other):
        """One batch up to `ends`; where its plan is lost, up to `other`, as far as it comes then."""
        world, dice = self.world, self.dice
        self.away = dice.choice([0, 0, 0, 0, 1, 3])
        self.resize()
        world.checkpoint.dies_before_saving = dice.random() < 0.4
        try:
            world.run(ends)
        except (DiedError, DependencyError):
            if dice.random() < 0.5:
                ends = other
                world.checkpoint.planned[world.batch].update(other)
            self.again()
        world.read = {t: dict(p) for t, p in ends.items()}
        if dice.random() < 0.2:
            world.restart()
        return ends

    def resize(self):
        if self.dice.random() < 0.5:
            self.world.limit(self.dice.choice([1, 3, 100]))

    def again(self):
        """Spark repeats the batch until it is through."""
        for _ in range(20):
            self.resize()
            self.world.checkpoint.dies_before_saving = self.dice.random() < 0.2
            self.world.restart()
            try:
                self.world.again()
            except (DiedError, DependencyError):
                continue
            return
        raise AssertionError


def history(seed, shape, root, monkeypatch):
    dice = random.Random(seed)
    database = Database(shape, dice).run()
    topic = Connector(database, dice).run()
    broker = Broker()
    for partition, records in enumerate(topic):
        broker.topics.setdefault(TOPIC, []).append(
            [(r.key, r.value, [(h["key"], h["value"]) for h in r.headers]) for r in records]
        )
        assert len(broker.topics[TOPIC]) == partition + 1
    world = World(root, broker, {TABLE: table_schema()})
    fate = Fate(world, dice)
    monkeypatch.setattr(apply, "apply", fate.apply)
    at = [0] * len(topic)
    ends = {TOPIC: dict(enumerate(at))}

    def further():
        longest = dice.choice([1, 2, 4, 10, 100])
        to = [min(len(p), a + dice.randint(0, longest)) for a, p in zip(at, topic, strict=True)]
        return {TOPIC: dict(enumerate(to))}

    while any(a < len(part) for a, part in zip(at, topic, strict=True)):
        fate.command()
        ends = fate.batch(further(), further())
        at = [ends[TOPIC][partition] for partition in range(len(topic))]
    world.limit(100)
    for _ in range(30):  # what stopped goes on
        world.records.append({"type": "table-resume", "table": TABLE})
        fate.batch(ends, ends)
        entry = world.state.tables.get(TABLE)
        if entry is None or entry.state == tables.STREAMING:
            break
    assert entry is None or entry.state == tables.STREAMING, (entry.code, entry.reason)
    known = world.state.tables.get(TABLE)
    return database, DeltaLake(names.table_path(world.config.lake.path, TABLE)), known


@given(seed=st.integers(0, 2**40), shape=_SHAPES)
@settings(max_examples=examples(12, nightly=300), deadline=None, print_blob=True)
def test_the_table_equals_the_source_whatever_happens_to_the_pipeline(
    seed, shape, tmp_path_factory
):
    with pytest.MonkeyPatch.context() as monkeypatch:
        root = tmp_path_factory.mktemp("driver")
        database, lake, entry = history(seed, shape, root, monkeypatch)
        wrong, unknown = differences(database, lake)
        listed = {json.loads(key)[0] for key in entry.repair.reread_keys} if entry else set()
        assert wrong == []
        # What the first content of a batch had used up is to be read again.
        assert {key for key, _ in unknown} <= listed


@pytest.mark.slow
def test_batches_told_by_their_number_alone_would_be_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(table_sink, "version_of", lambda batch, *_: (batch + 1) << 32)
    shape = Shape(partitions=2, transactions=12, keys=4)
    for seed in range(36, 96):  # the first shows it, as long as histories are drawn as they are
        root = tmp_path / str(seed)
        root.mkdir()
        with monkeypatch.context() as patch:
            database, lake, _ = history(seed, shape, root, patch)
        if differences(database, lake)[0]:
            return
    pytest.fail("nobody noticed")
