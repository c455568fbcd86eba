"""The coordinator of a simulated history with the rules of MySQL and MariaDB.

Nothing is written into the database: a window is a place in the log, told by a record of the control
topic, and so is what a read has seen at least.

* MySQL: the place is where the log ends; then all ids of transactions that are held are waited for,
  then the rows are read.
* MariaDB: the place is that of a consistent snapshot. It may be behind events that were sent long
  ago; a window's must not be, so all that is in the log is waited for.
* Both: prepared transactions of XA are waited for before the rows are read.
"""

from dataclasses import dataclass, field
from typing import Any

from lakemark.connectors.database import Proof, Watermark, visible
from lakemark.connectors.mysql.binlog_place import BinlogPlace
from lakemark.model import positions
from lakemark.model.positions import epoch_number
from tests.kit.simulation.binlog_connector import KIND
from tests.kit.simulation.binlog_source import BinlogSource
from tests.kit.simulation.coordinator import Coordinator
from tests.kit.simulation.runs import Attempt, Chain, Chunk, Tick, Window
from tests.kit.simulation.source import Transaction


@dataclass
class BinlogCoordinator(Coordinator):
    """As any, of places in the log."""

    source: BinlogSource
    is_mariadb: bool = True
    epochs: dict[int, int] = field(default_factory=dict)  # by attempt, as it read

    @property
    def epoch(self) -> int:
        """The pipeline's newest epoch, with its kind."""
        return epoch_number(KIND, len(self.pipeline.state.epochs))

    # -- windows --------------------------------------------------------------------------------

    def begin_tick(self, chain: Chain) -> None:
        window = Window(f"w{len(self.windows)}", len(self.windows), chain.name, self._tick())
        self.windows.append(window)
        nothing = Transaction(self.source)  # it is never begun
        chain.tick = Tick(nothing, chain.current, window)

    def can_acknowledge(self, chain: Chain) -> bool:
        return chain.tick is not None

    def acknowledge(self, chain: Chain) -> None:
        if chain.tick is None:
            return
        place, window, closes = self.place_of_window(), chain.tick.opens, chain.tick.closes
        at = positions.of_epoch(self.epoch, place.place).hex()
        oldest = self._oldest()
        for end, one in (("close", closes), ("open", window)):
            if one is not None:
                self.say(
                    type="window", window=f"{one.uuid}-{end}", run=chain.name, oldest=oldest,
                    position=at, server=place.life,
                )  # fmt: skip
        window.acknowledged = self._tick()
        window.watermark = Watermark(window.uuid, place, place.place)
        chain.current, chain.tick = window, None

    def place_of_window(self) -> BinlogPlace:
        """Behind all that the connector may have sent."""
        if self.is_mariadb:
            self.source.wait(self.source.held())
        return self.place_of_log()

    # -- what a read has seen -------------------------------------------------------------------

    def place_of_log(self) -> BinlogPlace:
        """Where MySQL's log ends; where a snapshot of MariaDB does."""
        source = self.source
        return source.place_after(source.visible() if self.is_mariadb else len(source.history))

    def wait_for_commits(self) -> None:
        """MySQL: `gtid_owned` shows what is in the log, or may be, and not committed."""
        if not self.is_mariadb:
            self.source.wait(self.source.held())

    def wait_for_prepared(self) -> bool:
        """`XA RECOVER`, until none of those is left; False if that takes too long."""
        prepared = self.source.prepared()
        if prepared and self.dice.random() < 0.5:
            self.source.wait(prepared)
            return True
        return not prepared

    def begin_epoch(self) -> None:
        """Windows of the new log, in the old epoch, are nobody's: chunks take later ones."""
        for attempt in list(self.live):
            self.give_back(attempt, void=True)
        for run in self.runs:
            run.since = len(self.windows)

    def read(self, chunk: Chunk) -> Attempt:
        place: BinlogPlace | None = self.place_of_log()
        self.wait_for_commits()
        if not self.wait_for_prepared():
            place = None
        attempt = super().read(chunk)
        attempt.snapshot = place  # type: ignore[assignment]
        self.epochs[attempt.number] = self.epoch
        return attempt

    def choose(self, snapshot: Any, usable: list[Watermark]) -> Watermark | None:
        proof: Proof | None = snapshot
        return visible(proof, usable) if proof is not None else None

    def place_of(self, attempt: Attempt) -> bytes:
        place: Any = attempt.snapshot
        return positions.of_epoch(self.epochs[attempt.number], place.place)

    def place_told(self, attempt: Attempt) -> dict[str, str]:
        return {"position": self.place_of(attempt).hex()}
