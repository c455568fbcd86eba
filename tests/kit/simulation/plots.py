"""Plots: what leads to one situation, step by step; the dice's own steps come between.

A plot is a generator over the history: each `yield` is a place where others may act. What it does
is allowed by every contract, so the right code stands it; a wrong one seldom meets it by chance.
The world that goes with a plot is in `variants`.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

from tests.kit.log_model import Row
from tests.kit.simulation.alters import NEW, OLD
from tests.kit.simulation.connector import SIGNAL_TOPIC, TOPIC, Place
from tests.kit.simulation.runs import Attempt, Run
from tests.kit.simulation.source import Transaction

if TYPE_CHECKING:
    from tests.kit.simulation.history import History

Script = Generator[None, None, None]
Statement = Callable[[Transaction], None]


# -- what plots are made of ----------------------------------------------------------------------


def _armed(h: "History", *, whole: bool = True) -> Generator[None, None, Run]:
    """A run whose first window is open. `whole`: somebody needs it, so it sweeps in the end."""
    coordinator = h.coordinator
    if whole:
        coordinator.ghosts_since = max(coordinator.ghosts_since, 0)
    run = coordinator.start(None if whole else _every(h), whole=whole)
    coordinator.arm()
    while not run.armed:
        h.batch(everything=True)
    yield
    h.turn(run.chain)
    yield
    return run


def _every(h: "History") -> list[int]:
    return list(range(1, h.source.shape.keys + 1))


def _write(h: "History", *statements: Statement) -> None:
    """One transaction, or one per statement, visible at the end."""
    apart = h.dice.random() < 0.5
    writer = h.source.begin()
    for number, statement in enumerate(statements):
        if apart and number:
            _commit(h, writer)
            writer = h.source.begin()
        h.source.statement(writer, statement)
    _commit(h, writer)


def _commit(h: "History", writer: Transaction) -> None:
    h.source.commit(writer)
    if writer in h.source.hidden:
        h.source.show(writer)


def _read(h: "History", run: Run) -> list[Attempt]:
    """All chunks of the run, read within the current window."""
    for chunk in run.chunks:
        if not chunk.done and chunk.attempt is None and h.source.can_read():
            h.coordinator.read(chunk)
    attempts = [chunk.attempt for chunk in run.chunks if chunk.attempt is not None]
    for attempt in attempts:
        if attempt.lo is None:
            h.coordinator.finish(attempt)
    return attempts


def _hand_over(h: "History", attempts: list[Attempt]) -> None:
    """Parts and manifests."""
    coordinator = h.coordinator
    for attempt in attempts:
        while attempt.parts and attempt in coordinator.live:
            coordinator.write_part(attempt)
        if attempt in coordinator.live and coordinator.can_finish(attempt):
            coordinator.write_manifest(attempt)


def _deliver_windows(h: "History") -> None:
    """All is sent, but only window rows are stored."""
    connector = h.connector
    while connector.can_emit():
        connector.emit()
    connector.deliver((SIGNAL_TOPIC, 0), 1 << 30)


def _topic(h: "History") -> list[Place]:
    return [place for place in h.connector.kafka if place[0] == TOPIC]


def _pick(h: "History", *, free: bool = False) -> tuple[int, int] | None:
    """A key with a row, and another with one or (`free`) without; nobody has locked them.

    Where there is a choice, a row that moves has values that its events do not carry.
    """
    source = h.source
    locked = {key for t in (*source.open, *source.hidden) for key in t.rows}
    every = [key for key in _every(h) if key not in locked]
    taken = [key for key in every if key in source.seen]
    h.dice.shuffle(taken)
    taken.sort(key=lambda key: not _stored(source.seen[key]))
    others = [key for key in every if key not in source.seen] if free else taken[:1]
    ones = taken if free else taken[1:]
    return (ones[0], h.dice.choice(others)) if ones and others else None


def _stored(row: Row) -> bool:
    text = str(row.get(OLD, row.get(NEW)))
    return text.startswith("T") or (row["c"] or b"").startswith(b"T")


def _alter(h: "History") -> None:
    """All transactions end, and the table is altered, if it is not yet."""
    for writer in h._writers():
        _commit(h, writer)
    for hidden in list(h.source.hidden):
        h.source.show(hidden)
    if h.source.altered is None and h.source.can_alter():
        h.alter()


def _lose_to_an_update(h: "History", key: int) -> Script:
    """A chunk has a row that changes before the window is closed."""
    run = yield from _armed(h)
    attempts = _read(h, run)
    yield
    _write(h, partial(h.source.update_at, key=key))
    h.turn(run.chain)
    _hand_over(h, attempts)
    yield
    h._deliver_all()
    h.batch(everything=True)


# -- plots -----------------------------------------------------------------------------------------


def across_a_delete(h: "History") -> Script:
    """A row is read, goes, and another comes to its key with columns that nobody knows."""
    run = yield from _armed(h)
    attempts = _read(h, run)
    yield
    keys = _pick(h)
    if keys is None:
        return
    one, other = keys
    _write(
        h,
        lambda to: h.source.delete_at(to, one),
        lambda to: h.source.move_to(to, old=other, new=one),
    )
    yield
    h.turn(run.chain)
    _hand_over(h, attempts)
    yield
    h._deliver_all()
    h.batch(everything=True)


def moved_and_replaced(h: "History") -> Script:
    """A row moves, another takes its key and is read; of its key only the move is stored."""
    run = yield from _armed(h)
    keys = _pick(h, free=True)
    if keys is None:
        return
    one, other = keys
    h.held.update(_topic(h))
    _write(
        h,
        lambda to: h.source.move_to(to, old=one, new=other),
        lambda to: h.source.insert_at(to, key=one),
    )
    yield
    attempts = _read(h, run)
    yield
    h.turn(run.chain)
    _hand_over(h, attempts)
    _deliver_windows(h)
    if h.dice.random() < 0.5:  # rows first, their events later
        h.batch(everything=True)
        yield
    for place, queue in h.connector.queues.items():
        stream = h.connector.stream
        last = [
            at
            for at, record in enumerate(queue)
            if stream[record.entry].change.get("key") == one
            and stream[record.entry].change["op"] == "c"
        ]
        h.connector.deliver(place, last[-1] if last else len(queue))
    h.batch(everything=True)


def moved_behind_its_changes(h: "History") -> Script:
    """A row with large values changes and moves; of its new key the event is first."""
    keys = _pick(h, free=True)
    if keys is None:
        return
    one, other = keys
    h.held.update(_topic(h))
    _write(
        h,
        lambda to: h.source.update_at(to, key=one),
        lambda to: h.source.move_to(to, old=one, new=other),
    )
    yield
    h.held -= {h.connector.place_of(other)}
    h._deliver_all()
    h.batch(everything=True)
    yield
    h.held.clear()
    h._deliver_all()
    h.batch(everything=True)


def lost_and_elsewhere(h: "History") -> Script:
    """The connector dies with events on their way, and finds the topic with more partitions."""
    h._write_some(h.dice.randint(2, 4))
    yield
    while h.connector.can_emit():
        h.connector.emit()
    h.held.add(h.dice.choice(_topic(h)))
    h._deliver_all()
    h.batch(everything=True)
    yield
    if h.connector.in_snapshot() or h.connector.resized is not None:
        return
    h.held.clear()
    h.connector.restart(0)
    h.connector.resize()
    h._write_some(1)
    h._deliver_all()
    h.batch(everything=True)


def late_events(h: "History") -> Script:
    """Rows are applied before the events between the SELECT and the close row are stored."""
    run = yield from _armed(h, whole=False)
    h.held.update(_topic(h))
    attempts = _read(h, run)
    yield
    h._write_some(h.dice.randint(1, 2))
    yield
    h.turn(run.chain)
    _hand_over(h, attempts)
    yield
    _deliver_windows(h)
    h.batch(everything=True)


def replays(h: "History") -> Script:
    """The connector starts again and again."""
    for _ in range(4):
        h._write_some(2)
        yield
        h._deliver_all()
        yield
        h.batch()
        if not h.connector.in_snapshot():
            h.connector.restart(h.dice.choice([2, 6]))
        yield


def reads_in_the_window(h: "History") -> Script:
    """An incremental snapshot of Debezium's begins and ends within a chunk's window."""
    run = yield from _armed(h)
    h.incremental = None
    h._incremental()
    yield
    attempts = _read(h, run)
    if h.incremental is not None:
        h._incremental()
    h.turn(run.chain)
    _hand_over(h, attempts)
    yield
    h._deliver_all()
    h.batch(everything=True)


def stale_reads(h: "History") -> Script:
    """An incremental snapshot of Debezium's reads what a commit is about to change."""
    h.incremental = None
    writer = h.source.begin()
    h._statement(writer)
    h._commit(writer)
    yield
    if h.source.can_read():
        h._incremental()
        yield
    if writer in h.source.hidden:
        h.source.show(writer)
    if h.incremental is not None:
        h._incremental()


def truncated_reads(h: "History") -> Script:
    """A truncate waits for its commit while an incremental snapshot of Debezium's ends."""
    h.incremental = None
    if not h.source.can_read():
        return
    h._incremental()
    writer = h.source.begin()
    h.source.statement(writer, h.source.truncate)
    yield
    if h.incremental is not None:
        h._incremental()
    if h.dice.random() < 0.5:
        h._deliver_all()
        h.batch(everything=True)
    if writer in h.source.open:
        _commit(h, writer)
    if writer.alone and h.coordinator.ghosts_since == 0:
        h.coordinator.ghosts_since = -1  # of the rows from before the connector none is left


def stopped(h: "History") -> Script:
    """The table stops in the batch that decides the chunks."""
    run = yield from _armed(h)
    attempts = _read(h, run)
    yield
    h.turn(run.chain)
    _hand_over(h, attempts)
    if h.dice.random() < 0.5:
        h.batch(everything=True, stop=True)  # decided later, while it stands still
        yield
    h._deliver_all()
    h.batch(everything=True, stop=True)


def shared_key(h: "History") -> Script:
    """Rows share a key for a while within a chunk's window; one may be back in the end."""
    run = yield from _armed(h)
    keys = _pick(h)
    if keys is None:
        return
    attempts = _read(h, run) if h.dice.random() < 0.5 else []
    one, other = keys
    statement = h.dice.choice(
        [lambda to: h.source.visit(to, old=one, new=other), h.source.shift, h.source.swap]
    )
    _write(h, statement)
    yield
    attempts = attempts or _read(h, run)
    h.turn(run.chain)
    _hand_over(h, attempts)
    yield
    h._deliver_all()
    h.batch(everything=True)


def lost_commits(h: "History") -> Script:
    """The server dies with a commit that was read and never reached the disk."""
    run = yield from _armed(h, whole=False)
    writer = h.source.begin()
    writer.durable = False
    h._statement(writer)
    _commit(h, writer)
    attempts = _read(h, run)
    if h.connector.in_snapshot():
        return
    h._die()
    yield
    h.turn(run.chain)
    _hand_over(h, attempts)
    yield
    h._deliver_all()
    h.batch(everything=True)


def overtaking(h: "History") -> Script:
    """A transaction with a higher id than the tick's is first in the log, and visible last."""
    run = yield from _armed(h, whole=False)
    if run.chain.tick is None:
        h.coordinator.begin_tick(run.chain)
    writer = h.source.begin()
    h._statement(writer)
    h.source.commit(writer)
    h.turn(run.chain)
    attempts = _read(h, run)
    yield
    if writer in h.source.hidden:
        h.source.show(writer)
    h.turn(run.chain)
    _hand_over(h, attempts)
    yield
    h._deliver_all()
    h.batch(everything=True)


def void_and_complete(h: "History") -> Script:
    """An attempt is given up when all but its close row has come."""
    run = yield from _armed(h, whole=False)
    attempts = _read(h, run)
    _hand_over(h, attempts)
    yield
    for attempt in attempts:
        if attempt in h.coordinator.live:
            h.coordinator.give_back(attempt, void=True)
    h.batch(everything=True)
    yield
    h._write_some(1)
    h.turn(run.chain)
    h._deliver_all()
    h.batch(everything=True)


def unarmed(h: "History") -> Script:
    """Events come in a batch that has not heard of the run yet, if that can be."""
    run = yield from _armed(h, whole=False)
    attempts = _read(h, run)
    h._write_some(2)
    h._deliver_all()
    h.batch(everything=True, control=False)
    h.turn(run.chain)
    _hand_over(h, attempts)
    yield
    h._deliver_all()
    h.batch(everything=True)


def below_a_truncate(h: "History") -> Script:
    """A truncate overtakes events of other partitions."""
    h._write_some(2)
    yield
    writer = h.source.begin()
    h.source.statement(writer, h.source.truncate)
    h.source.commit(writer)
    late = h.dice.choice(_topic(h))
    h.held.add(late)
    yield
    h._deliver_all()
    h.batch(everything=True)


def unread_before_a_chunk(h: "History") -> Script:
    """A large value changes unheard; the chunk that has it loses to an event that does not."""
    keys = _pick(h)
    if keys is None:
        return
    _, one = keys
    writer = h.source.begin()
    h.source.statement(writer, lambda to: h.source.update_at(to, key=one))
    for _, change in writer.changes:
        change["bad"] = "key"
    _commit(h, writer)
    h._deliver_all()
    h.batch(everything=True)
    yield
    yield from _lose_to_an_update(h, one)


def altered_beside_late_events(h: "History") -> Script:
    """A row is null in a new column, while older events of others are on their way still."""
    keys = _pick(h)
    if keys is None:
        return
    _, one = keys
    _write(h, *(partial(h.source.update_at, key=key) for key in _every(h) if key != one))
    _deliver_windows(h)
    for place in _topic(h):
        if place != h.connector.place_of(one):
            h.held.add(place)
    yield
    _alter(h)
    _write(h, partial(h.source.null_at, key=one))
    h._deliver_all()
    while h.pipeline.behind() and NEW not in h.pipeline.lake.added:
        h.batch(everything=True)
    yield
    if not h.looked and h.source.altered is not None:
        h.look()
    h.batch(everything=True)
    h.held.clear()
    yield
    h._deliver_all()
    h.batch(everything=True)


def renamed_before_it_is_known(h: "History") -> Script:
    """A column of a row is unknown, and renamed; the chunk that has it loses to an event."""
    keys = _pick(h)
    if keys is None:
        return
    _, one = keys
    _write(h, partial(h.source.update_at, key=one))
    h._deliver_all()
    h.batch(everything=True)
    yield
    _alter(h)
    if h.source.altered is None:
        return
    h.looked or h.look()
    h.batch(everything=True)
    yield
    yield from _lose_to_an_update(h, one)


PLOTS: dict[str, Callable[["History"], Script]] = {
    plot.__name__: plot
    for plot in (
        across_a_delete, moved_and_replaced, late_events, replays, reads_in_the_window,
        stale_reads, truncated_reads, stopped, shared_key, lost_commits, overtaking, void_and_complete, unarmed,
        below_a_truncate, moved_behind_its_changes, lost_and_elsewhere, unread_before_a_chunk,
        altered_beside_late_events, renamed_before_it_is_known,
    )
}  # fmt: skip
