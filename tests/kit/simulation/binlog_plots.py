"""Plots of histories with the rules of MySQL and MariaDB, see `plots`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.kit.simulation.plots import PLOTS, Script, _armed, _commit, _hand_over, _pick, _read

if TYPE_CHECKING:
    from tests.kit.simulation.binlog_history import BinlogHistory


def on_both_sides_of_a_million(h: "BinlogHistory") -> Script:
    """A row changes in file 999999 of the log, and in file 1000000."""
    for _ in range(3):
        keys = _pick(h)
        if keys is None:
            return
        writer = h.source.begin()
        h.source.statement(writer, lambda to, key=keys[0]: h.source.update_at(to, key))
        _commit(h, writer)
        h.source.rotate()
        yield
        h._deliver_all()
        h.batch(everything=True)


def moved_and_changed_at_once(h: "BinlogHistory") -> Script:
    """A row gets another key, and under that it changes or goes, in one transaction."""
    keys = _pick(h, free=True)
    if keys is None:
        return
    one, other = keys
    writer = h.source.begin()
    h.source.statement(writer, lambda to: h.source.move_to(to, old=one, new=other))
    if h.dice.random() < 0.5:
        h.source.statement(writer, lambda to: h.source.delete_at(to, other))
    else:
        h.source.statement(writer, lambda to: h.source.update_at(to, other))
    _commit(h, writer)
    yield
    h._deliver_all()
    h.batch(everything=True)


def synced_and_not_committed(h: "BinlogHistory") -> Script:
    """A chunk is read while a change is in the log, and synced, and no SELECT sees it yet."""
    run = yield from _armed(h)
    keys = _pick(h)
    if keys is None:
        return
    writer = h.source.begin()
    h.source.statement(writer, lambda to: h.source.update_at(to, keys[0]))
    h.source.commit(writer)
    h.source.flush()
    yield
    attempts = _read(h, run)
    yield
    h.turn(run.chain)
    _hand_over(h, attempts)
    h._deliver_all()
    h.batch(everything=True)


def sent_before_it_is_seen(h: "BinlogHistory") -> Script:
    """A change has been applied when a run begins, and no SELECT sees it: a replica is silent."""
    keys = _pick(h)
    if keys is None:
        return
    writer = h.source.begin()
    h.source.statement(writer, lambda to: h.source.delete_at(to, keys[0]))
    h.source.commit(writer)
    h.source.flush()
    h._deliver_all()
    h.batch(everything=True)
    yield
    run = yield from _armed(h)
    attempts = _read(h, run)
    yield
    h.turn(run.chain)
    _hand_over(h, attempts)
    h._deliver_all()
    h.batch(everything=True)


BINLOG_PLOTS: Final[dict[str, Callable[["BinlogHistory"], Script]]] = {
    **PLOTS,
    "on_both_sides_of_a_million": on_both_sides_of_a_million,
    "moved_and_changed_at_once": moved_and_changed_at_once,
    "synced_and_not_committed": synced_and_not_committed,
    "sent_before_it_is_seen": sent_before_it_is_seen,
}
