"""What simulated histories may hold, by dice."""

import random
from dataclasses import dataclass, replace

from tests.kit.log_model import Shape
from tests.kit.simulation.alters import ADD, RENAME


@dataclass(frozen=True)
class World:
    """What a history may hold; every field is a choice of the seed.

    Attributes:
        shape: of the table's statements.
        slow: commits become visible late.
        loses: the server crashes, and forgets what was committed asynchronously.
        order: rows of snapshots wait for fences.
        shared: runs share one chain of windows.
        shards: of the operator.
        steps: before the writes stop.
        before: rows from before the connector.
        loaded: the connector began with a snapshot of them, so the table has them from the start.
        lags: one partition is stored late.
        gaps: the connector loses its slot.
        bad: share of events that cannot be read.
        stops: the table stops and catches up.
        reads: Debezium's own incremental reads.
        crashes: chance that a batch dies, per place where it may.
        soft: deletes leave their row in the table.
        plot: what is played among the dice's steps, a name of `plots.PLOTS`; empty = nothing.
        restarts: of the connector, at most.
        resizes: the topic gets partitions.
        alters: what ALTER TABLE does to the table, see `alters`; empty = nothing.
    """

    shape: Shape
    slow: bool = False
    loses: bool = False
    order: bool = False
    shared: bool = True
    shards: int = 2
    steps: int = 120
    before: int = 0
    loaded: bool = True
    lags: bool = False
    gaps: bool = False
    bad: float = 0.0
    stops: bool = False
    reads: bool = False
    crashes: float = 0.0
    soft: bool = False
    plot: str = ""
    restarts: int = 2
    resizes: bool = False
    alters: str = ""


def any_world(dice: random.Random) -> World:
    """A world by dice: most are simple in most respects, so that what fails is easily read."""

    def some(chance: float) -> bool:
        return dice.random() < chance

    full = some(0.2)
    shape = Shape(
        partitions=dice.choice([1, 2, 2, 3]), full=full, deferrable=full and some(0.6),
        truncates=some(0.25), keys=dice.randint(2, 5), reads=False, snapshots=False,
    )  # fmt: skip
    return World(
        shape, slow=some(0.4), loses=some(0.15), order=some(0.3), shared=some(0.6),
        shards=dice.choice([1, 2, 2, 3]), steps=dice.choice([30, 60, 100]),
        before=dice.choice([0, 1, 2, 9, 9]), loaded=some(0.7), lags=some(0.5), gaps=some(0.06),
        bad=dice.choice([0, 0, 0, 0, 0.1]), stops=some(0.15), reads=some(0.15),
        crashes=dice.choice([0, 0, 0.05]), soft=some(0.2),
        resizes=some(0.12),
    )  # fmt: skip


def draw(seed: int) -> World:
    """The world that a seed draws."""
    return altering(any_world(random.Random(seed)), seed)


def altering(world: World, seed: int) -> World:
    """The world with what its seed draws of ALTER TABLE, by dice of its own."""
    kinds = [ADD, RENAME, *[""] * 8]
    return replace(world, alters=random.Random(~seed).choice(kinds))
