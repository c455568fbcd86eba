"""The place in the log that windows are told: of the newest event, in the newest epoch."""

from dataclasses import replace

from lakemark.connectors.database import Watermark
from lakemark.connectors.mysql.binlog_place import BinlogPlace, Server
from lakemark.connectors.mysql.positions import pack
from lakemark.connectors.reached_place import NOWHERE, ReachedPlace
from lakemark.model.positions import epoch_number
from lakemark.snapshot.snapshots import Snapshots
from lakemark.state.table_parts import StoredPosition
from lakemark.state.tables import PipelineState
from tests.kit.fake_world import ORDERS, FakeWorld

SERVER = "33cc7b62-eb8a-11f1-9a9d-02fc00000001"
OLD, NEW = (epoch_number("mysql", number) for number in (0, 1))


def reached(state: PipelineState) -> ReachedPlace:
    settings = replace(FakeWorld().settings, connector="mysql")
    return Snapshots(FakeWorld(), settings, query=lambda: "q1").stream_of(state).reached


def applied(epoch: int, pos: int, **seen: tuple[int, int]) -> StoredPosition:
    return StoredPosition(pack(epoch, 7, pos, 2).hex(), source_ts=pos, seen=seen)


def test_it_is_that_of_the_partition_which_is_ahead_with_its_transactions():
    here = {0: applied(OLD, 500, s=(11, 2)), 1: applied(OLD, 400, s=(9, 1), t=(3, 1))}
    state = PipelineState(applied={"shop.orders": here}, begun=3, begun_at=77)
    assert reached(state) == ReachedPlace(pack(OLD, 7, 500, 2), {"s": 11})


def test_a_position_of_an_epoch_that_is_over_tells_nothing_of_the_log_that_is_read():
    state = PipelineState(applied={"shop.orders": {0: applied(OLD, 500, s=(11, 2))}}, epochs=[{}])
    assert reached(state) == NOWHERE
    state.applied["shop.items"] = {0: applied(NEW, 300, s=(12, 1))}
    assert reached(state) == ReachedPlace(pack(NEW, 7, 300, 2), {"s": 12})


def test_before_anything_came_there_is_none():
    assert reached(PipelineState()) == NOWHERE


def test_a_connector_that_began_anew_reads_on_from_there_until_an_event_comes():
    state = PipelineState(applied={}, begun=450, begun_at=77)
    assert reached(state) == ReachedPlace(begun_at=77)
    state.applied["shop.orders"] = {0: applied(OLD, 400, s=(9, 1))}
    assert reached(state) == ReachedPlace(begun_at=77)
    state.applied["shop.orders"][1] = applied(OLD, 500, s=(11, 1))
    assert reached(state).transactions == {"s": 11}


def test_a_window_is_asked_for_with_the_place_that_was_reached():
    world, asked = FakeWorld(), []
    here = BinlogPlace(Server(1, 2), 7, 600)

    def tick(*, closes, opens, reached):
        asked.append(reached)
        return Watermark(str(opens.uuid), here, here.place) if opens else here

    world.tick, world.hold = tick, True
    world.stream.epoch, world.stream.newest = OLD, pack(OLD, 7, 500)
    world.execute("r1", ORDERS)
    world.go(10.0, until=lambda: asked)
    assert asked[0].position == pack(OLD, 7, 500)
