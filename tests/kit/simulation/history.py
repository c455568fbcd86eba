"""One simulated history: dice choose one of the enabled steps at a time, then all comes to rest.

The seed is the test case. Writes stop at a random moment: later ones would wash every error out.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from lakemark.connectors.postgres import positions as lsns
from lakemark.model.fills import UNSEEN, Fill, packed
from tests.kit.log_model import COLUMNS
from tests.kit.simulation.alters import ADD, DEFAULT, NEW, OLD, Alter
from tests.kit.simulation.connector import TOPIC, Connector, Place
from tests.kit.simulation.coordinator import Coordinator
from tests.kit.simulation.oracle import Oracle, WrongError
from tests.kit.simulation.pipeline import Ends, Pipeline
from tests.kit.simulation.plots import PLOTS, Script
from tests.kit.simulation.reads import Reads
from tests.kit.simulation.source import Source, cells_of
from tests.kit.simulation.world import World, altering, any_world
from tests.kit.simulation.writes import Step, Writes

ROUNDS = 60  # of coming to rest; more than 12 were never needed


@dataclass
class History(Writes, Reads):
    """Everything there is, and the steps that it can take."""

    seed: int
    world: World | None = None
    journal: list[tuple[Any, ...]] = field(default_factory=list)
    resting: bool = False
    restarts: int = 0
    script: Script | None = None
    held: set[Place] = field(default_factory=set)
    planned: Ends | None = None  # of a batch that has begun
    looked: bool = False
    incremental: dict[int, Any] | None = None
    incremental_since: int = 0

    make_connector = Connector
    make_pipeline = Pipeline
    make_coordinator = Coordinator
    make_oracle = Oracle
    plots: ClassVar[Mapping[str, Callable[[Any], Script]]] = PLOTS

    def __post_init__(self) -> None:
        self.dice = dice = random.Random(self.seed)
        world = self.drawn(dice)
        self.world = world = self.world or world
        self.restarts = world.restarts
        self.source = self.new_source(world)
        self.source.fill(min(world.before, world.shape.keys))
        self.connector = type(self).make_connector(self.source, dice, world.shape.partitions)
        deletes = "soft" if world.soft else "hard"
        self.pipeline = type(self).make_pipeline(
            self.connector, dice, world.shards, world.crashes, deletes
        )
        self.coordinator = type(self).make_coordinator(
            self.source, self.pipeline, dice, order=world.order, shared=world.shared,
            note=self.note,
        )  # fmt: skip
        self.pipeline.stale, self.pipeline.order = self.coordinator.stale, self.world.order
        self.late = (TOPIC, dice.randrange(world.shape.partitions)) if world.lags else None
        if world.before and not world.loaded:
            self.coordinator.ghosts_since = 0
        self.oracle = type(self).make_oracle(self)

    def drawn(self, dice: random.Random) -> World:
        """The world that the seed draws."""
        return altering(any_world(dice), self.seed)

    def new_source(self, world: World) -> Source:
        return Source(world.shape, self.dice, slow=world.slow, loses=world.loses)

    def are_comparable(self, one: bytes, other: bytes) -> bool:
        """Whether two positions say which is newer: those of two logs do not."""
        return True

    def note(self, what: str, *rest: Any) -> None:
        self.journal.append((what, *rest))

    # -- the whole ------------------------------------------------------------------------------

    def run(self) -> "History":
        """All of it.

        Raises:
            WrongError: an invariant does not hold; the message ends with the trace of the key.
        """
        try:
            self._steps()
            self._come_to_rest()
            self.oracle.end()
            if self.seed % 4 == 0:
                self._again()
        except WrongError as error:
            raise WrongError(self.report(str(error), error.key)) from error
        except AssertionError as error:
            raise WrongError(self.report(f"{type(error).__name__}: {error}", None)) from error
        return self

    def report(self, what: str, key: int | None) -> str:
        return f"{what}\nseed {self.seed}: {self.world}\n{self.oracle.trace(key)}"

    def _steps(self) -> None:
        if self.source.seen and self.world.loaded:
            self.connector.lose_slot()
            self.connector.snapshots = 0
            late, self.late = self.late, None
            self._deliver_all()
            self.late = late
            self.batch(everything=True)
        if self.world.plot:
            self._play(self.plots[self.world.plot](self))
            return
        if self.dice.random() < 0.7:
            self._start()
            if self.dice.random() < 0.6:
                self.batch(everything=True)
        for _ in range(self.world.steps):
            self._step()
        if self.dice.random() < 0.85:
            self._last_act()

    def _step(self) -> None:
        choices = self._choices()
        weights = [weight for weight, _ in choices]
        self.dice.choices([step for _, step in choices], weights)[0]()

    def _play(self, script: Script) -> None:
        """A plot, with steps of the dice before it and between its own."""
        for _ in range(self.dice.choice([0, 0, 0, 4])):
            self._step()
        for _ in script:
            if self.dice.random() < 0.15:
                self._step()
        self.held.clear()
        if self.dice.random() < 0.3:
            self._step()

    def _last_act(self) -> None:
        """Chunks read among writes at the very end: nothing comes later that could hide an error."""
        coordinator = self.coordinator
        if not coordinator.chains():
            self._start()
            self.batch(everything=True)
        if self.dice.random() < 0.7:
            for writer in self._writers():
                self._commit(writer)
        for chain in coordinator.chains():
            if chain.tick is None:
                self._tick(chain)
        self._write_some(self.dice.randint(1, 5))
        for chunk in coordinator.unread():
            if self.source.can_read():
                self._read_at_once(chunk)
        if self.world.loses and not self.connector.in_snapshot():
            self._crash_server()
        self._write_some(self.dice.randint(0, 3))

    def _come_to_rest(self) -> None:
        """Everybody goes on, nobody writes: everything must end (I15)."""
        self.resting = True
        self.coordinator.wind_up()
        if self.source.altered is not None and not self.looked:
            self.look()
        held = self.dice.randint(0, 2)  # rounds in which one partition is still late
        if self.late is None and held:
            self.late = (TOPIC, self.dice.randrange(self.world.shape.partitions))
        self._work_off(held)

    def _work_off(self, held: int = 0) -> None:
        """All that is under way is done; one partition is late for some rounds."""
        for round_ in range(ROUNDS):
            if round_ == held:
                self.late = None
            self._finish_transactions()
            self._keep_coordinating()
            self._deliver_all()
            self.batch(everything=round_ > 1 or self.dice.random() < 0.7)
            if self._is_quiet():
                return
        raise WrongError("I15: it does not end")

    def _finish_transactions(self) -> None:
        source = self.source
        for transaction in list(source.open):
            if self.dice.random() < 0.8:
                source.commit(transaction)
            else:
                source.rollback(transaction)
                self.coordinator.server_died()  # if it was a tick, it failed
        while source.hidden:
            source.show(self.dice.choice(source.hidden))
        source.flush()

    def _keep_coordinating(self) -> None:
        coordinator = self.coordinator
        self._start_what_is_needed()
        for chain in coordinator.chains():
            if coordinator.can_acknowledge(chain):
                coordinator.acknowledge(chain)
            if chain.tick is None:
                self._tick(chain)
        for chunk in coordinator.unread():
            coordinator.read(chunk)
        for attempt in list(coordinator.live):
            if attempt.lo is None and self._has_window(attempt.chunk):
                coordinator.finish(attempt)
            self._write(attempt)
        for chain in coordinator.chains():
            self._tick(chain)
        if coordinator.waits():
            self.fence()
        for run in coordinator.finishing():
            coordinator.finish_run(run)

    def _start_what_is_needed(self) -> None:
        coordinator = self.coordinator
        if coordinator.ghosts_since >= 0 and not any(
            run.whole and run.until >= coordinator.ghosts_since for run in coordinator.runs
        ):
            coordinator.start(whole=True)
        known = {
            key
            for run in coordinator.runs
            if not run.verify
            for chunk in run.chunks
            for key in chunk.keys
            if coordinator.listed.get(key, 0) <= run.until and (chunk.explicit or run.whole)
        }
        missing = set(coordinator.listed) - known
        if missing and (self.resting or self.dice.random() < 0.5):
            coordinator.start(missing)

    def _deliver_all(self) -> None:
        connector = self.connector
        while connector.can_emit():
            connector.emit()
        while places := self._places():
            connector.deliver(self.dice.choice(places), self.dice.randint(1, 8))

    def _places(self) -> list[Place]:
        """Partitions with records to be stored; the late one only now and then."""
        places = [place for place in self.connector.waiting() if place not in self.held]
        if self.late in places and (self.resting or self.dice.random() < 0.95):
            places.remove(self.late)
        return places

    def _is_quiet(self) -> bool:
        coordinator, pipeline = self.coordinator, self.pipeline
        return not (
            coordinator.runs
            or coordinator.listed
            or coordinator.ghosts_since >= 0
            or pipeline.behind()
            or self.connector.can_emit()
            or self.connector.waiting()
        )

    def _again(self) -> None:
        """I8: what comes again changes nothing."""
        before = dict(self.pipeline.lake.rows())
        self.connector.restart(self.dice.randint(1, 40))
        self._deliver_all()
        self.batch(everything=True)
        after = self.pipeline.lake.rows()
        for key in before.keys() | after.keys():
            if before.get(key) != after.get(key):
                raise WrongError("I8: a replay changed the row", key)

    # -- steps ----------------------------------------------------------------------------------

    def _choices(self) -> list[tuple[float, Step]]:
        return [*self._of_source(), *self._of_connector(), *self._of_pipeline(),
                *self._of_coordinator(), *self._of_catalog()]  # fmt: skip

    def _of_connector(self) -> list[tuple[float, Step]]:
        connector, dice, found = self.connector, self.dice, []
        if connector.can_emit():
            found.append((14.0, self._emit))
        places = self._places()
        if places:
            place = dice.choice(places)
            found.append((12.0, lambda: connector.deliver(place, dice.choice([1, 2, 9]))))
        if self.restarts and not connector.in_snapshot():
            found.append((0.8, self._restart_connector))
        if self.world.resizes and connector.resized is None and connector.stream:
            found.append((1.0, self._resize))
        source = self.source  # of an empty table the snapshot would say nothing, nor of ghosts
        quiet = not (source.open or source.hidden)
        if self.world.gaps and source.seen and quiet and not connector.snapshots:
            found.append((3.0, self._lose_slot))
        if places or connector.can_emit():
            found.append((2.0, self._deliver_all))
        if self.world.reads and (self.incremental is not None or self.source.can_read()):
            found.append((1.5, self._incremental))
        return found

    def _emit(self) -> None:
        for _ in range(self.dice.choice([1, 2, 6])):
            if self.connector.can_emit():
                self.connector.emit()

    def _restart_connector(self) -> None:
        self.restarts -= 1
        self.connector.restart(self.dice.choice([0, 1, 4, 30]))
        self.note("restart", "of the connector")

    def _resize(self) -> None:
        """What is on its way gets lost with a restart, or is stored before."""
        if self.restarts and not self.connector.in_snapshot():
            self._restart_connector()
        self.connector.resize()
        self.note("resize", "the topic has twice its partitions")

    def _lose_slot(self) -> None:
        self.connector.lose_slot()
        self.incremental = None
        self.note("gap", "the connector reads the table anew")

    # -- the catalog -----------------------------------------------------------------------------

    def _of_catalog(self) -> list[tuple[float, Step]]:
        source = self.source
        if self.world.alters and source.altered is None and source.can_alter():
            return [(1.5, self.alter)]
        return [(1.5, self.look)] if source.altered is not None and not self.looked else []

    def alter(self) -> None:
        self.source.alter(Alter(self.world.alters))
        self.incremental = None
        self.note("alter", self.world.alters)

    def look(self) -> None:
        """The watch sees what has become of the table, and says it."""
        how, self.looked = self.source.altered, True
        assert how is not None
        upto = lsns.pack(0, self.source.end_of_log(), 0).hex()
        value = packed(pa.array([DEFAULT], how.type)) if how.kind == ADD else ""
        fill = Fill(NEW, upto, COLUMNS, value, "" if how.kind == ADD else OLD)
        self.coordinator.say(type="table-fill", fills=[msgspec.to_builtins(fill)])
        self.pipeline.seen = True

    # -- the pipeline's -------------------------------------------------------------------------

    def _of_pipeline(self) -> list[tuple[float, Step]]:
        return [(2.5, self.batch), *([(0.4, self._plan)] if self.planned is None else [])]

    def _plan(self) -> None:
        """A batch begins, and the world goes on meanwhile."""
        if self.pipeline.behind():
            self.planned = self.pipeline.ends()
            self._stand_still(self.planned)
            self.coordinator.begin(self.planned.control)

    def _restart(self) -> None:
        """The process dies, and its machine may have lost what Spark had planned."""
        self.coordinator.restart()
        if self.dice.random() < 0.5:
            self.planned = None

    def batch(self, *, everything: bool = False, control: bool = True, stop: bool = False) -> None:
        """A batch; without `control` it is before the newest control records."""
        pipeline, before = self.pipeline, self.pipeline.state
        if not pipeline.behind():
            return
        ends, self.planned = self.planned, None
        again = ends is not None and (everything or stop or not control)
        if ends is None:
            ends = pipeline.ends(everything=everything)
            if not control:
                ends.control = before.control
            self._stand_still(ends)
            if stop and before.stopped is None:
                ends.stop = True
        self.coordinator.begin(ends.control)
        done = pipeline.run(ends)
        lake = {k: cells_of(row) for k, row in pipeline.lake.rows().items()}
        self.note("batch", done, lake)
        self.oracle.batch(done, before.control)
        self._note_ghosts(done)
        self.coordinator.hear(done)
        if again:  # that was the one that had begun
            self.batch(everything=everything, control=control, stop=stop)

    def _stand_still(self, ends: Ends) -> None:
        stopped = self.pipeline.state.stopped
        if stopped is not None and stopped.code == UNSEEN:  # a look, or enough of waiting
            ends.resume = self.looked or self.dice.random() < 0.2
        elif stopped is not None:
            ends.resume = self.resting or self.dice.random() < 0.4
        elif self.world.stops and not self.resting:
            ends.stop = self.dice.random() < 0.15

    def _note_ghosts(self, done: Any) -> None:
        """What only a complete run makes good: rows missed in a gap, events without a key."""
        stream, gaps = self.connector.stream, self.connector.snapshots
        unread = any(stream[i].change.get("bad") == "key" for i in done.taken)
        if unread:
            self.coordinator.unread_since = done.state.batch
        if done.doubt:
            self.coordinator.unread_since = done.state.batch
        if unread or done.doubt or any(stream[i].commit < 0 and gaps for i in done.taken):
            self.coordinator.ghosts_since = done.state.batch


def failure(seed: int, world: World | None = None) -> str | None:
    """What is wrong with a history; None = nothing."""
    try:
        History(seed, world).run()
    except WrongError as error:
        return str(error)
    return None
