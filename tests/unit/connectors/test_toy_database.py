"""A database unlike PostgreSQL goes the same way: nobody outside of its folder knows which it is.

Its reads know their place in the log, so no window rows are written. The coordinator, the task that
reads a chunk, the shards and the tables are the real ones.
"""

from dataclasses import dataclass
from random import Random

import pytest

from lakemark.connectors.database import DatabaseAccess, OpenWindow, Proof, Watermark
from lakemark.connectors.postgres.visibility import bound_of
from lakemark.connectors.qualified_database import QualifiedDatabase
from lakemark.connectors.reached_place import ReachedPlace
from lakemark.connectors.registry import database_kind, database_of
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import Condition, KeyRange
from lakemark.snapshot.chunk_task import OpenClients, ReadSettings, run_chunk
from lakemark.snapshot.chunks import ChunkResult, ChunkSpec
from lakemark.snapshot.ports import Cut
from lakemark.snapshot.snapshot_state import Settings
from tests.kit.database_contract import MOST, TABLE, DatabaseContract
from tests.kit.log_model import STEP
from tests.kit.toy_database import SETTINGS, ToyDatabase, ToyServer, registered
from tests.kit.whole_pipeline import ORDERS, PIPELINE, Change, World


@dataclass
class Toy:
    server: ToyServer
    database: ToyDatabase
    only_three: str = "v3"
    no_filter: str = "v = 3"
    end: int = 0

    def put(self, key: int, v: str) -> None:
        self.server.tables[TABLE][key] = v
        self.end += 1

    def drop(self) -> None:
        del self.server.tables[TABLE]

    def create(self) -> None:
        self.server.tables[TABLE] = {}


class TestToyDatabase(DatabaseContract):
    @pytest.fixture
    def served(self):
        server = ToyServer({TABLE: {key: f"v{key}" for key in range(MOST)}})
        with registered(server) as config:
            access = DatabaseAccess(config, HandlingModes(), SETTINGS, qualifier=self.qualifier)
            found = database_of(access)
            assert isinstance(found, QualifiedDatabase if self.qualifier else ToyDatabase)
            toy = Toy(server, found)
            server.place = lambda: bound_of(STEP * toy.end)
            yield toy


class TestOneOfSeveral(TestToyDatabase):
    """The same contract, with a qualifier before the names of its tables."""

    qualifier = "eu.shop"


def test_the_registry_knows_a_database_by_its_connector_or_its_address():
    with registered(ToyServer()) as config:
        assert database_kind(SETTINGS).checks == ("database",)
        assert database_kind(None, config).checks == ("database",)
        assert database_kind().checks != ("database",)
    assert database_kind(SETTINGS).checks != ("database",)


class Producer:
    """Kafka's client, as far as a chunk's task needs it: records go to the shards."""

    def __init__(self, world: "ToyWorld") -> None:
        self.world = world

    def produce(self, _topic, value, key, *, headers, on_delivery) -> None:
        assert not headers
        shard = int(key.rpartition(b'"shard":')[2].partition(b",")[0])
        blob = len(key).to_bytes(4) + key + value
        self.world.lake.shards.parts.append((shard, blob))

    def poll(self, _: float) -> None: ...

    def flush(self, _: float) -> int:
        return 0

    def purge(self) -> None: ...


class ToyWorld(World):
    """`World` with another database: what is asked of it is asked as the adapters do it."""

    def __init__(self, root, rows, config, server: ToyServer, settings: Settings) -> None:
        super().__init__(root, rows, settings)
        server.tables = self.rows
        server.place = lambda: bound_of(STEP * self.log_end)
        ours = self.lake.config.model_copy(update={"database": config})
        self.ours = ReadSettings(ours, HandlingModes(), SETTINGS)
        self.clients = OpenClients(config=ours, producer=Producer(self))
        self.windows = self.ours.source.window_writer("", name="windows")
        self.questions = self.ours.source.questions(name="questions")

    def tick(
        self, *, closes: OpenWindow | None, opens: OpenWindow | None, reached: ReachedPlace
    ) -> Watermark | Proof:
        return self.windows.write(closes=closes, opens=opens, reached=reached)

    def read_chunk(self, spec: ChunkSpec) -> ChunkResult:
        return run_chunk(spec, self.ours, clients=self.clients)

    def condition(self, table: str, text: str) -> Condition:
        return self.questions.condition(table, text)

    def blocker(self, proof: Proof) -> str:
        return self.questions.blocker(proof)

    def fingerprint(self, table: str) -> str:
        return self.ours.source.schemas([table])[table].fingerprint()

    def cut(
        self,
        table: str,
        chunk_rows: int,
        *,
        condition: Condition | None,
        surrogate: str | None,
        within: KeyRange,
    ) -> Cut:
        found = self.ours.source.cut(
            table, chunk_rows, condition=condition, surrogate=surrogate, within=within
        )
        return Cut(found.spans, found.fingerprint, found.rows)


def change(world: World, dice: Random) -> None:
    rows, key = world.rows[ORDERS], dice.randrange(30)
    if key not in rows:
        world.commit(Change("c", ORDERS, key, f"made {world.log_end}"))
    elif dice.random() < 0.3:
        world.commit(Change("d", ORDERS, key))
    else:
        world.commit(Change("u", ORDERS, key, f"changed {world.log_end}"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.sampled(1)
def test_a_snapshot_of_it_beside_its_changes_makes_an_equal_table(tmp_path, seed, waits):
    """A read's place is where its rows are taken, or where it began to wait, changes before that."""
    dice, server = Random(seed), ToyServer()
    settings = Settings(PIPELINE, shards=2, chunk_rows=3, parallelism=2, interval=1.0)
    with registered(server) as config:
        rows = {ORDERS: {key: f"o{key}" for key in range(0, 30, 2)}}
        world = ToyWorld(tmp_path, rows, config, server, settings)
        if waits:
            server.asked = lambda: bound_of(STEP * max(0, world.log_end - dice.randrange(4)))
        world.execute("r1", ORDERS)
        world.hold = True  # reads end when the dice say so, changes before and behind them
        for _ in range(400):
            change(world, dice) if dice.random() < 0.5 else world.relay()
            if dice.random() < 0.4:
                world.step()
            if dice.random() < 0.3:
                change(world, dice)
            if world.ended("r1"):
                break
        world.hold = False
        world.release()
        world.go(300.0, until=lambda: world.ended("r1"))
        world.go(2.0)

        assert not world.wrong
        assert world.run_state("r1") == "completed"
        assert world.lake.values(ORDERS) == world.rows[ORDERS]
        manifests = world.records("chunk")
        assert len(manifests) >= 3
        assert all(record["position"] > "0" * 40 for record in manifests)
        assert world.records("window"), "they are said, and not written"
        assert not any(topic.endswith("debezium_signal") for topic in world.lake.broker.topics)


def test_what_it_read_in_another_life_is_read_again(tmp_path):
    server = ToyServer()
    settings = Settings(PIPELINE, shards=2, chunk_rows=100, parallelism=1, interval=1.0)
    with registered(server) as config:
        world = ToyWorld(tmp_path, {ORDERS: {1: "kept", 2: "lost"}}, config, server, settings)
        world.execute("r1", ORDERS)
        world.go(until=lambda: bool(world.reads))
        del world.rows[ORDERS][2]  # what was seen has not outlived the server, and no event says so
        server.life = "the second"
        world.go(300.0, until=lambda: world.ended("r1"))
        assert world.lake.values(ORDERS) == {1: "kept"}
        assert len(world.reads) > 1
