"""A simulated history with the rules of MySQL and MariaDB."""

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from lakemark.model import positions
from tests.kit.log_model import Shape
from tests.kit.simulation.binlog_connector import KIND, BinlogConnector
from tests.kit.simulation.binlog_coordinator import BinlogCoordinator
from tests.kit.simulation.binlog_plots import BINLOG_PLOTS
from tests.kit.simulation.binlog_source import BinlogSource
from tests.kit.simulation.history import History
from tests.kit.simulation.oracle import WrongError
from tests.kit.simulation.pipeline import OF_ANOTHER_EPOCH, Pipeline
from tests.kit.simulation.world import World, any_world
from tests.kit.simulation.writes import Step


@dataclass(frozen=True)
class BinlogWorld(World):
    """What such a history may hold besides.

    Attributes:
        is_mariadb: the server is MariaDB; else MySQL.
        one_place: all events of a transaction have one place.
        metadata: the connector tells the order of a transaction's events.
        has_xa: there are transactions of XA.
        unordered: binlog_order_commits is OFF.
        fails_over: another server takes over, or the log is reset.
        named: transactions have names that both servers know.
    """

    is_mariadb: bool = True
    one_place: bool = True
    metadata: bool = True
    has_xa: bool = False
    unordered: bool = False
    fails_over: bool = False
    named: bool = False


def any_binlog_world(dice: random.Random) -> BinlogWorld:
    """A world by dice, as `any_world`."""

    def some(chance: float) -> bool:
        return dice.random() < chance

    plain = any_world(dice)
    is_mariadb, fails_over = some(0.5), some(0.15)
    shape = replace(plain.shape, full=True, deferrable=False)
    fields = {name: getattr(plain, name) for name in World.__dataclass_fields__}
    calm: dict[str, Any] = {"order": False, "stops": False, "gaps": False, "resizes": False,
                            "reads": False, "bad": 0.0}  # fmt: skip
    return BinlogWorld(
        **{**fields, "shape": shape, "alters": "", **(calm if fails_over else {})},
        is_mariadb=is_mariadb, one_place=some(0.6), metadata=plain.order or some(0.8), has_xa=some(0.25),
        unordered=not is_mariadb and some(0.3), fails_over=fails_over, named=fails_over and some(0.6),
    )  # fmt: skip


class BinlogPipeline(Pipeline):
    """As any, of another kind of positions."""

    kind: ClassVar[str] = KIND


@dataclass
class BinlogHistory(History):
    """Everything there is, and what only such a server does."""

    make_connector = BinlogConnector
    make_pipeline = BinlogPipeline
    make_coordinator = BinlogCoordinator
    plots = BINLOG_PLOTS

    failed_over: bool = False
    recovering: int = 0  # epochs that were asked for
    known_epochs: int = 0

    if TYPE_CHECKING:
        source: BinlogSource
        connector: BinlogConnector
        coordinator: BinlogCoordinator

    def __post_init__(self) -> None:
        super().__post_init__()
        self.connector.metadata, self.connector.named = self.binlog.metadata, self.binlog.named
        self.coordinator.is_mariadb = self.binlog.is_mariadb

    @property
    def binlog(self) -> BinlogWorld:
        """The world, as it is here."""
        assert isinstance(self.world, BinlogWorld)
        return self.world

    def drawn(self, dice: random.Random) -> World:
        return any_binlog_world(dice)

    def new_source(self, world: World) -> BinlogSource:
        assert isinstance(world, BinlogWorld)
        return BinlogSource(
            world.shape, self.dice, slow=world.slow, loses=world.loses, one_place=world.one_place,
            has_xa=world.has_xa, ordered=not world.unordered,
        )  # fmt: skip

    # -- steps ----------------------------------------------------------------------------------

    def are_comparable(self, one: bytes, other: bytes) -> bool:
        of_old_epoch = not int.from_bytes(other[1:4])  # it may be of the new log all the same
        return one[:4] == other[:4] and not (self.failed_over and of_old_epoch)

    def _again(self) -> None:
        """Without an order in transactions, keys of what comes again are read again, too."""
        if self.binlog.metadata:
            super()._again()

    def _of_source(self) -> list[tuple[float, Step]]:
        found = super()._of_source()
        quiet = not self.connector.in_snapshot()
        if self.binlog.fails_over and not self.failed_over and self.source.history and quiet:
            found.append((1.0, self.fail_over))
        return found

    def fail_over(self) -> None:
        """Another server goes on, whose log begins with a low number."""
        self.failed_over = True
        self.source.fail_over()
        self.coordinator.server_died()
        self.connector.fail_over()
        self.incremental = None
        self.note("failover", f"log {self.source.log_number}")

    def fence(self) -> None:
        """Every event up to here has gone through a committed batch: as far as Connect tells.

        The committed offset is the end of a transaction, once all of its events are sent.
        """
        stream, upto, source = self.connector.stream, self.oracle.upto, self.source
        self.connector.pull()
        if upto == len(stream) and source.durable == len(source.history):
            end = source.place_after(len(source.history)).place  # a heartbeat tells
            position = positions.of_epoch(self.coordinator.epoch, end)
        elif upto:
            event = stream[upto - 1]
            ends = upto == len(stream) or stream[upto].commit != event.commit
            position = self.connector.end_of(event) if ends else event.position
        else:
            return
        self.coordinator.say(type="fence", position=position.hex())

    def batch(self, **more: Any) -> None:
        super().batch(**more)
        self._recover()

    def _recover(self) -> None:
        """`lakemark recover --new-epoch`, once for each time that it is asked for.

        Where no event of the new log shows that it is another one, somebody knows it in the end,
        when all of the old log has been read: what is read later is of the new epoch.
        """
        state = self.pipeline.state
        stopped = state.stopped is not None and state.stopped.code in OF_ANOTHER_EPOCH
        read = self.resting and not self.pipeline.behind() and not self.connector.waiting()
        known = read and self.failed_over and not state.epochs
        if (stopped or known) and self.recovering == len(state.epochs):
            self.recovering += 1
            self.coordinator.say(type="new-epoch")

    def _note_ghosts(self, done: Any) -> None:
        super()._note_ghosts(done)
        if len(done.state.epochs) > self.known_epochs:
            self.known_epochs = len(done.state.epochs)
            self.coordinator.ghosts_since = self.coordinator.unread_since = done.state.batch
            self.coordinator.begin_epoch()

    def _finish_transactions(self) -> None:
        super()._finish_transactions()
        self._recover()


def binlog_failure(seed: int, world: BinlogWorld | None = None) -> str | None:
    """What is wrong with a history; None = nothing."""
    try:
        BinlogHistory(seed, world).run()
    except WrongError as error:
        return str(error)
    return None


__all__ = ["BinlogHistory", "BinlogWorld", "Shape", "any_binlog_world", "binlog_failure"]
