"""Damage while a run reads: what the stream cannot tell is read after it, whatever was read before.

The windows of a run reach back as far as the oldest writing transaction: while one is open, a chunk
that is read later may still be compared with the log from before the damage.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, islice

import pytest

from lakemark.snapshot.coordinator import PAUSED_S
from tests.kit.whole_pipeline import ITEMS, ORDERS, Change, World

UNAVAILABLE = "__debezium_unavailable_value"
ONE_BY_ONE = {key: f"v{key}" for key in range(10, 16)}
ENDS_S = 300.0
A_TICK, CHANGES = 3, 10  # transactions in the time of a slow tick; changes in each


@dataclass(frozen=True)
class Damage:
    """What happens to items while a run reads `tables`, orders first if they are among them."""

    strikes: Callable[[World], None]
    tables: tuple[str, ...] = (ITEMS,)
    before: Callable[[World], None] = lambda _: None


def an_event(world: World) -> None:
    world.commit(Change("u", ITEMS, 1, "one"))


def a_key_changes(world: World) -> None:
    """Of a row whose value was not changed, and is not in the lake yet."""
    old, new = [("__debezium.oldkey", b'{"id":1}')], [("__debezium.newkey", b'{"id":2}')]
    world.commit(
        Change("d", ITEMS, 1, headers=new),
        Change("c", ITEMS, 2, "one", told={"v": UNAVAILABLE}, headers=old),
    )


def an_insert_is_a_dead_letter(world: World) -> None:
    world.commit(Change("c", ITEMS, 5, "five", told={"v": {"of": "another type"}}))


def the_connector_begins_anew(world: World) -> None:
    world.commit(Change("u", ITEMS, 1, "uno"))
    world.step()
    world.commit(Change("u", ITEMS, 1, "eins"), lost=True)
    world.commit(Change("u", ITEMS, 7, "sette"))


DAMAGES = {
    "key-changed-before-its-table-is-cut": Damage(a_key_changes, (ORDERS, ITEMS)),
    "dead-letter-before-its-table-is-cut": Damage(an_insert_is_a_dead_letter, (ORDERS, ITEMS)),
    "dead-letter-while-its-table-is-read": Damage(an_insert_is_a_dead_letter),
    "connector-began-anew": Damage(the_connector_begins_anew, before=an_event),
}


@pytest.mark.slow
@pytest.mark.parametrize("held", [False, True], ids=["nobody-writes", "somebody-writes"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_the_run_reads_after_the_damage(tmp_path, damage, held):
    items = {1: "one", 7: "seven"} | (ONE_BY_ONE if damage.tables == (ITEMS,) else {})
    world = World(tmp_path, {ORDERS: {key: f"o{key}" for key in range(6)}, ITEMS: items})
    damage.before(world)
    world.execute("r1", *damage.tables, delay="1s")
    world.go(until=lambda: len(world.reads) >= 2)
    writer = world.database.begin() if held else None
    world.go(3.0)

    damage.strikes(world)
    world.go()
    if writer is not None:
        world.database.end(writer)
    world.go(ENDS_S, until=lambda: world.ended("r1"))
    world.go(2.0)  # a batch takes note of what was read again

    assert not world.wrong
    assert world.run_state("r1") == "completed"
    assert len(world.cuts) <= 2, "once more at most: it waits for windows, it does not try them"
    for table in damage.tables:
        assert world.lake.values(table) == world.rows[table]
        assert not world.lacking(table)
        now = world.table(table)
        assert (now.repair.reread_keys, now.repair.reread_missed, now.repair.resnapshot) == (
            {},
            -1,
            "",
        )


@pytest.mark.slow
def test_what_shards_remember_of_a_paused_run_is_bounded(tmp_path):
    """Its windows are turned, if slowly: what was changed before the last ones is forgotten."""
    world = World(tmp_path, {ORDERS: {key: f"o{key}" for key in range(4)}})
    world.execute("r1", ORDERS, delay="1s")
    world.go(until=lambda: len(world.reads) >= 2)
    world.send("pause", "p1")
    world.go(5.0)
    assert world.run("r1").paused
    keys, most = count(100), 0
    for _ in range(8 * A_TICK):
        world.commit(*(Change("c", ORDERS, key, "new") for key in islice(keys, CHANGES)))
        world.clock += PAUSED_S / A_TICK
        world.step()
        most = max(most, world.lake.shards.touches())
    assert CHANGES <= most <= 3 * A_TICK * CHANGES

    world.send("resume", "p2")
    world.go(ENDS_S, until=lambda: world.ended("r1"))
    assert not world.wrong
    assert world.run_state("r1") == "completed"
    assert world.lake.values(ORDERS) == world.rows[ORDERS]
