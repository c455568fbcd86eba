"""What reads in a simulated history: windows, chunks, runs and fences, a step at a time."""

import random
from collections.abc import Callable

from tests.kit.simulation.connector import Connector
from tests.kit.simulation.coordinator import Attempt, Chain, Chunk, Coordinator
from tests.kit.simulation.pipeline import Pipeline
from tests.kit.simulation.source import Source
from tests.kit.simulation.world import World
from tests.kit.simulation.writes import Step


class Reads:
    """The steps of `History` that read tables."""

    dice: random.Random
    world: World
    source: Source
    connector: Connector
    coordinator: Coordinator
    pipeline: Pipeline
    resting: bool
    _statement: Callable[..., None]
    _commit: Callable[..., None]
    _restart: Callable[[], None]

    def _has_window(self, chunk: Chunk) -> bool:
        chain = chunk.run.chain
        return chain.tick is not None or chain.current is not None

    def _tick(self, chain: Chain) -> None:
        """A whole tick; it is acknowledged as soon as its commit is visible."""
        coordinator, source = self.coordinator, self.source
        coordinator.begin_tick(chain)
        if not self.resting and len(source.open) < 4 and self.dice.random() < 0.4:
            other = source.begin()
            self._statement(other)
            self._commit(other)
        self.turn(chain)
        unread = coordinator.unread()
        if unread and not self.resting and source.can_read() and self.dice.random() < 0.4:
            self._read_at_once(self.dice.choice(unread))

    def turn(self, chain: Chain) -> None:
        """Closes the chain's window and opens the next; ends a tick that has begun."""
        if chain.tick is None:
            self.coordinator.begin_tick(chain)
        self.coordinator.commit_tick(chain)
        tick = chain.tick
        if tick is not None and tick.transaction in self.source.hidden:
            self.source.show(tick.transaction)
        self.coordinator.acknowledge(chain)

    def _read_at_once(self, chunk: Chunk) -> None:
        attempt = self.coordinator.read(chunk)
        if not self._has_window(chunk):
            return
        self.coordinator.finish(attempt)
        if self.dice.random() < 0.6:
            self._write(attempt)

    def _write(self, attempt: Attempt) -> None:
        coordinator = self.coordinator
        if coordinator.can_finish(attempt) and self.dice.random() < 0.5:
            coordinator.write_manifest(attempt)
        keep = self.dice.choice([0, 0, 1])
        while len(attempt.parts) > keep and attempt in coordinator.live:
            coordinator.write_part(attempt)
        if attempt in coordinator.live and coordinator.can_finish(attempt):
            coordinator.write_manifest(attempt)

    def _of_coordinator(self) -> list[tuple[float, Step]]:
        coordinator, dice, found = self.coordinator, self.dice, []
        if len(coordinator.runs) < 3:
            found.append((2.5 if coordinator.runs else 9.0, self._start))
        for chain in coordinator.chains():
            if chain.tick is None:
                found.append((1.5, lambda c=chain: coordinator.begin_tick(c)))
                found.append((2.5, lambda c=chain: self._tick(c)))
            elif chain.tick.transaction in self.source.open:
                found.append((5.0, lambda c=chain: coordinator.commit_tick(c)))
            elif coordinator.can_acknowledge(chain):
                found.append((6.0, lambda c=chain: coordinator.acknowledge(c)))
        unread = coordinator.unread()
        if unread and self.source.can_read():
            chunk = dice.choice(unread)
            found.append((3.0, lambda: coordinator.read(chunk)))
            if self._has_window(chunk):
                found.append((9.0, lambda: self._read_at_once(chunk)))
        found += self._of_attempts()
        if coordinator.waits():
            found.append((2.0, self.fence))
        for run in coordinator.finishing():
            found.append((4.0, lambda r=run: coordinator.finish_run(r)))
        if coordinator.runs:
            found.append((0.1, lambda: coordinator.stop(dice.choice(coordinator.runs))))
            found.append((0.12, self._restart))
        return found

    def _of_attempts(self) -> list[tuple[float, Step]]:
        coordinator, dice, found = self.coordinator, self.dice, []
        if coordinator.live:
            one = dice.choice(coordinator.live)
            if one.lo is None:
                if self._has_window(one.chunk):
                    found.append((6.0, lambda: coordinator.finish(one)))
            elif one.parts:
                found.append((9.0, lambda: coordinator.write_part(one)))
            if coordinator.can_finish(one):
                found.append((9.0, lambda: coordinator.write_manifest(one)))
            found.append((0.25, lambda: coordinator.give_back(one, void=True)))
        if coordinator.zombies:
            zombie = dice.choice(coordinator.zombies)
            if zombie.parts:
                found.append((2.0, lambda: coordinator.write_part(zombie)))
        return found

    def _start(self) -> None:
        kind = self.dice.choice(["whole", "ranges", "keys", "needed", "needed"])
        if kind == "whole" or self.coordinator.ghosts_since == 0:
            self.coordinator.start(whole=True)
        elif kind == "ranges":
            self.coordinator.start()
        elif kind == "keys":
            every = range(1, self.world.shape.keys + 2)
            self.coordinator.start(self.dice.sample(every, self.dice.randint(1, 3)))
        else:
            self._start_what_is_needed()

    def fence(self) -> None:
        """Every event up to here has gone through a committed batch."""
        if self.oracle.upto:
            position = self.connector.stream[self.oracle.upto - 1].position
            self.coordinator.say(type="fence", position=position.hex())
