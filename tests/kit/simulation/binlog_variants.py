"""Wrong reconcilers of MySQL and MariaDB: as `variants`, each has one rule switched off."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from lakemark.connectors.mysql import binlog_place
from lakemark.connectors.mysql import positions as binlog
from lakemark.model import positions
from tests.kit.simulation import binlog_coordinator
from tests.kit.simulation.binlog_connector import BinlogConnector
from tests.kit.simulation.binlog_coordinator import BinlogCoordinator
from tests.kit.simulation.binlog_history import any_binlog_world, binlog_failure

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class BinlogVariant:
    """What is wrong (`apply`), and the histories in which it shows, as `variants.Variant`."""

    apply: Callable[[Patch], None]
    world: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)

    def history(self, seed: int) -> str | None:
        """What is wrong with the seed's history in the variant's world; None = nothing."""
        drawn = any_binlog_world(random.Random(seed))
        world = replace(drawn, **self.world, shape=replace(drawn.shape, **self.shape))
        return binlog_failure(seed, world)

    def find(self, start: int, *, limit: int) -> int:
        """How many histories it takes to be found; 0 = it was not, within `limit`."""
        for number in range(limit):
            if self.history(start + number) is not None:
                return number + 1
        return 0


def _file_as_text(patch: Patch) -> None:
    """``binlog.1000000`` stands before ``binlog.999999``, as their names do."""

    def rank(file: int) -> int:
        return int(f"{file:06d}".ljust(7, "0"))

    def number_of(file: str | None) -> int | None:
        found = real(file)
        return None if found is None else rank(found)

    def pack(epoch: int, file: int, pos: int) -> bytes:
        return binlog.pack(epoch, rank(file), pos)

    real = binlog.number_of
    patch.setattr(binlog, "number_of", number_of)
    patch.setattr(binlog_place, "pack", pack)


def _row_as_order(patch: Patch) -> None:
    """The number of the row is the event's place in its transaction."""
    patch.setattr(BinlogConnector, "told_order", lambda self, place: place.row + 1)


def _no_epoch(patch: Patch) -> None:
    """A new epoch is begun, and positions do not say so."""

    def epoch_number(connector: str, number: int) -> int:
        return real(connector, 0)

    real = positions.epoch_number
    patch.setattr(positions, "epoch_number", epoch_number)
    patch.setattr(binlog_coordinator, "epoch_number", epoch_number)


def _status(patch: Patch) -> None:
    """A read has seen all that stands before what the server calls its position."""
    patch.setattr(BinlogCoordinator, "wait_for_commits", lambda self: None)
    patch.setattr(
        BinlogCoordinator,
        "place_of_log",
        lambda self: self.source.place_after(len(self.source.history)),
    )


def _gtid_variable(patch: Patch) -> None:
    """A read of MariaDB has seen what is in its GTID variable: what is synced."""
    patch.setattr(
        BinlogCoordinator,
        "place_of_log",
        lambda self: self.source.place_after(self.source.durable),
    )


def _order_taken_for_granted(patch: Patch) -> None:
    """Whoever sees the newest transaction of the log sees all before it."""

    def wait_for_commits(self: BinlogCoordinator) -> None:
        held = sorted(self.source.held(), key=lambda one: one.index)
        self.source.wait(held[-1:])

    patch.setattr(BinlogCoordinator, "wait_for_commits", wait_for_commits)


def _no_xa(patch: Patch) -> None:
    """Nobody asks for prepared transactions."""
    patch.setattr(BinlogCoordinator, "wait_for_prepared", lambda self: True)


def _window_of_a_read(patch: Patch) -> None:
    """A window of MariaDB begins at the place of a snapshot, which may be behind events of before."""
    patch.setattr(BinlogCoordinator, "place_of_window", BinlogCoordinator.place_of_log)


_CALM: Any = {
    "gaps": False, "bad": 0.0, "stops": False, "reads": False, "crashes": 0.0, "resizes": False,
    "order": False, "has_xa": False, "unordered": False, "fails_over": False, "loses": False,
}  # fmt: skip
_SLOW: Any = {**_CALM, "slow": True}
_MARIADB: Any = {**_SLOW, "is_mariadb": True, "before": 9}
BINLOG_VARIANTS = {
    "file name compared as text": BinlogVariant(
        _file_as_text, {**_CALM, "plot": "on_both_sides_of_a_million", "before": 9}
    ),
    "row number as order": BinlogVariant(
        _row_as_order,
        {
            **_CALM,
            "one_place": True,
            "metadata": True,
            "plot": "moved_and_changed_at_once",
            "before": 2,
        },
        {"keys": 4},
    ),
    "no epoch after a failover": BinlogVariant(_no_epoch, {**_CALM, "fails_over": True}),
    "lo from the server's status": BinlogVariant(_status, {**_SLOW, "is_mariadb": False}),
    "lo from MariaDB's status": BinlogVariant(_status, {**_SLOW, "is_mariadb": True}),
    "lo from MariaDB's GTID": BinlogVariant(
        _gtid_variable, {**_MARIADB, "plot": "synced_and_not_committed"}
    ),
    "binlog_order_commits taken for ON": BinlogVariant(
        _order_taken_for_granted, {**_SLOW, "is_mariadb": False, "unordered": True}
    ),
    "XA ignored": BinlogVariant(_no_xa, {**_SLOW, "has_xa": True}),
    "a window begins where a read sees": BinlogVariant(
        _window_of_a_read, {**_MARIADB, "plot": "sent_before_it_is_seen"}
    ),
}
