"""The reconciler's truth tables through the real decoding, shards and write sets.

What a scenario's `ord` asks for stands in CLAIMS; what holds for all of them is in `wrong_with`:
the final table, no row of the table ever goes back, no row survives a newer event that was seen.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lakemark.connectors.postgres.visibility import Snapshot
from lakemark.model.control import ORDER_MODE, TABLE_MODE
from tests.kit.fake_world import ORDERS, FakeWorld
from tests.kit.nightly import NIGHTLY
from tests.kit.scenario_breaks import (
    BREAKS,
    events_of_running_transactions,
    ids_of_32_bits,
    newest_open_row,
)
from tests.kit.scenario_play import SERVER, Play
from tests.kit.scenarios import scenarios
from tests.kit.simulation.variants import VARIANTS

IDS = [f"S{number:02}" for number in range(1, 36)]
CUTS = 100 if NIGHTLY else 2  # ways to cut a scenario into batches, by dice


@dataclass(frozen=True)
class Claim:
    """`always`: in whatever batches all comes; otherwise item by item, in table mode."""

    text: str
    holds: Callable[[Play], bool]
    always: bool = True


def rows(key: int, *at: int) -> Claim:
    """A chunk's row of the key survives with these versions, each once; `!r1` = none ever does."""
    wanted = [f"r{key}@{position}" for position in at]
    text = " ".join(wanted) or f"!r{key}"
    return Claim(text, lambda play: shown(play, "r", key) == wanted, always=not at)


def fills(key: int, *cells: str) -> Claim:
    """Losing rows of the key give these."""
    text = f"fill{key} {cells}" if cells else f"!fill{key}"
    return Claim(
        text,
        lambda play: (
            [one.cells for one in play.said if (one.what, one.key) == ("fill", key)] == [*cells]
        ),
    )


def before(first: str, second: str) -> Claim:
    """One goes to the table in an earlier batch than the other."""
    return Claim(
        f"{first} < {second}",
        lambda play: max(batches(play, first)) < min(batches(play, second)),
        always=False,
    )


def only_as(key: int, cells: str) -> Claim:
    """Whatever survives of the key shows this."""
    return Claim(
        f"r{key}={cells}",
        lambda play: (
            {one.cells for one in play.said if (one.what, one.key) == ("r", key)} == {cells}
        ),
    )


def ends_at(key: int, at: int) -> Claim:
    """What came again did not take the row's version."""
    return Claim(f"{key} ends at {at}", lambda play: play.numbers[play.held[-1][key][0]] == at)


def stays(key: int, cells: str) -> Claim:
    """Once the table has shown this, it shows nothing else."""

    def holds(play: Play) -> bool:
        seen = [held[key][1] for held in play.held if key in held]
        return cells in seen and set(seen[seen.index(cells) :]) == {cells}

    return Claim(f"{key} stays {cells}", holds)


def settled(label: str) -> Claim:
    """Only this attempt of the chunk counts."""
    return Claim(
        f"settled {label}",
        lambda play: {one.reading.label for one in play.attempts if one.settled} == {label},
    )


def again(reason: str) -> Claim:
    """The attempt is void, and the chunk is read again."""
    return Claim(f"void: {reason}", lambda play: play.again == {"": reason})


def shown(play: Play, what: str, key: int) -> list[str]:
    return [str(one) for one in play.said if (one.what, one.key) == (what, key)]


def batches(play: Play, what: str) -> list[int]:
    return [one.batch for one in play.said if str(one) == what] or [1 << 30]


AGAIN = 220  # open row of the window in which a chunk is read for the second time
CLAIMS: dict[str, list[Claim]] = {
    "S01": [rows(1, 100), rows(2, 100)],
    "S02": [rows(1)],
    "S03": [rows(1)],
    "S04": [rows(4), fills(4)],
    "S05": [rows(5)],
    "S06": [rows(1, 100), before("u1@90", "r1@100")],
    "S07": [rows(1, 100), before("r1@100", "u1@115")],
    "S08": [rows(1)],
    "S09": [rows(1, 100), before("r1@100", "u1@105")],
    "S10": [rows(1, 100)],
    "S11": [rows(1, 100), before("r1@100", "u1@130")],
    "S12": [rows(1)],
    "S13": [rows(1), rows(2, 120)],
    "S14": [again("not-visible"), rows(1, AGAIN), only_as(1, "b")],
    "S15": [again("not-visible"), rows(1, AGAIN), only_as(1, "b")],
    "S16": [again("not-visible"), rows(1, AGAIN), only_as(1, "b")],
    "S17": [rows(1), fills(1, "a/B")],
    "S18": [rows(1), stays(1, "c/D")],
    "S19": [rows(1)],
    "S20": [rows(1), fills(1)],
    "S21": [rows(1), fills(1), before("d1@105", "c2@105")],
    "S22": [rows(1, 100), rows(9, 106), before("r1@100", "d1@105")],
    # A row fills its own key only, and not across a key change: key 2 is listed and read again.
    "S23": [rows(1), fills(1), fills(2)],
    "S24": [rows(1), fills(1)],
    "S25": [rows(1)],
    "S26": [rows(1, 100), ends_at(1, 100)],
    "S27": [rows(1, 100), ends_at(1, 100)],
    "S28": [rows(1)],
    # No shard decides without its part; the coordinator voids the attempt, and reads again.
    "S29": [again("not-decided"), rows(1, AGAIN), rows(2, AGAIN)],
    "S30": [rows(1), settled("2")],
    "S31": [rows(1, 106)],
    "S32": [rows(1, 100), rows(2, 103)],
    "S33": [rows(1), rows(2), rows(3)],
    "S34": [rows(1), rows(3)],
    "S35": [rows(1, 100), rows(9), before("r1@100", "t0@103")],
}
# A fence says only what committed batches held: the F of S10 comes too early and releases nothing.
IN_ORDER_MODE = {"S09": [rows(1)], "S10": [rows(1)]}
LISTED = {"S23": {2}}


def each(play: Play, *, strict: bool = True) -> list[Claim]:
    """The claims to be held against a play."""
    strict = strict and play.mode == TABLE_MODE and not play.loads
    found = [claim for claim in CLAIMS[play.scenario.id] if strict or claim.always]
    return found + (IN_ORDER_MODE.get(play.scenario.id, []) if play.mode == ORDER_MODE else [])


def wrong_with(play: Play, *, strict: bool = True) -> list[str]:
    """What does not hold. `strict`: all came item by item."""
    wrong = [claim.text for claim in each(play, strict=strict) if not claim.holds(play)]
    wrong += play.wrong
    if play.table() != play.scenario.final:
        wrong.append("final")
    listed = set() if play.loads else LISTED.get(play.scenario.id, set())
    if play.repaired != listed:
        wrong.append(f"listed: {play.repaired}")
    if play.again and not any("void" in claim.text for claim in CLAIMS[play.scenario.id]):
        wrong.append(f"read again: {play.again}")
    return wrong


def one_by_one() -> bool:
    return True


def at_once() -> bool:
    return False


def test_every_scenario_is_here():
    assert list(scenarios()) == IDS == list(CLAIMS)


@pytest.mark.parametrize("name", IDS)
def test_the_final_table_is_the_source(name):
    scenario = scenarios()[name]
    assert scenario.source() == scenario.final


@pytest.mark.parametrize("mode", [TABLE_MODE, ORDER_MODE])
@pytest.mark.parametrize("name", IDS)
@pytest.mark.sampled(20)
def test_item_by_item(name, mode):
    assert wrong_with(Play(scenarios()[name], mode=mode).run(one_by_one)) == []


@pytest.mark.parametrize("mode", [TABLE_MODE, ORDER_MODE])
@pytest.mark.parametrize("name", IDS)
def test_all_at_once(name, mode):
    assert wrong_with(Play(scenarios()[name], mode=mode).run(at_once), strict=False) == []


@pytest.mark.parametrize("name", IDS)
@pytest.mark.sampled(10)
def test_cut_anywhere(name):
    """In any batches that may die, over any number of shards and partitions, rows there or not."""
    for number in range(CUTS):
        dice = random.Random(f"{name}/{number}")
        play = Play(
            scenarios()[name],
            mode=dice.choice([TABLE_MODE, ORDER_MODE]),
            shards=dice.randint(1, 3),
            partitions=dice.randint(1, 3),
            loaded=dice.random() < 0.5,
            crashes=0.1,
            deletes=dice.choice(["hard", "soft"]),
            closing=dice.choice(["void", "attempts"]),
        )
        often = dice.random()
        assert wrong_with(play.run(lambda d=dice, o=often: d.random() < o), strict=False) == []


# -- S14, S15, S16: commits that are in the log and not visible ------------------------------------

HIDDEN = ["S14", "S15", "S16"]


@pytest.mark.parametrize("name", ["S14", "S16"])
def test_an_older_open_row_that_is_provably_visible_is_taken(name):
    scenario = scenarios()[name].with_older_window()
    play = Play(scenario).run(one_by_one)
    assert (play.table(), play.again) == (scenario.final, {})
    assert shown(play, "r", 1) == []
    assert shown(play, "fill", 1) == ["fill1@90"]


@pytest.mark.parametrize(
    ("name", "rule"),
    [("S14", newest_open_row), ("S15", newest_open_row), ("S16", ids_of_32_bits)],
)
def test_without_the_xmin_rule_the_stale_row_would_stay(name, rule, monkeypatch):
    rule(monkeypatch)
    play = Play(scenarios()[name]).run(one_by_one)
    assert (play.table(), shown(play, "r", 1)) == ({1: "a"}, ["r1@100"])


@pytest.mark.parametrize("name", HIDDEN)
def test_the_coordinator_reads_again_when_the_transaction_has_ended(name):
    seen = Snapshot.parse(scenarios()[name].seen, SERVER)
    world = FakeWorld()
    world.database.open, world.database.next_xid = {seen.xmin}, seen.xmax - 1
    world.execute("run", ORDERS)
    world.go(until=lambda: bool(world.records("void")))
    assert {record["reason"] for record in world.records("void")} == {"not-visible"}
    assert world.records("chunk") == []
    (first, *_) = world.stream.windows
    world.database.end(seen.xmin)
    world.finish("run")
    assert world.records("chunk")
    assert all(record["lo"] != first for record in world.records("chunk"))


# -- wrong rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", BREAKS, ids=lambda wrong: f"{wrong.id}-{wrong.name}")
@pytest.mark.sampled(8)
def test_a_wrong_rule_fails(wrong, monkeypatch):
    wrong.apply(monkeypatch)
    play = Play(scenarios()[wrong.id], mode=wrong.mode)
    play.run(at_once if wrong.at_once else one_by_one)
    assert wrong.shows in wrong_with(play, strict=not wrong.at_once)


def test_every_wrong_rule_is_tried():
    named = {(one.id, one.breaks) for one in scenarios().values() if one.breaks != "none"}
    assert {(wrong.id, wrong.name) for wrong in BREAKS} == named


def test_what_s15_breaks_holds_s14(monkeypatch):
    events_of_running_transactions(monkeypatch)
    assert Play(scenarios()["S14"]).run(one_by_one).table() == scenarios()["S14"].final


def test_what_s19_breaks_is_not_the_dropped_fill(monkeypatch):
    VARIANTS["drop instead of fold"].apply(monkeypatch)
    assert Play(scenarios()["S19"]).run(at_once).table() == scenarios()["S19"].final
