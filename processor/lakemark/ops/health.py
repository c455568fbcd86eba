"""The process's health: alive or not, ready or not; pure.

Alive: the query runs, or another process's does and this one stands by. Ready: the query runs, the
connector brings changes, of several each does, every table is within `http.ready_lag` of the
source, and none has stopped by an error. A table that a person has paused, or that is gone, is no
reason; a paused connector is. With `http.ready_proved` the proof of every table must be younger, of
those that are verified by themselves, or of all where none is.
"""

from collections.abc import Iterator
from datetime import timedelta

import msgspec

from lakemark.ops.status import (
    DROPPED,
    ERRORED,
    PAUSED,
    STANDBY,
    STREAMING,
    WAITING,
    ConnectorNow,
    Status,
)
from lakemark.settings.table_id import unqualified


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reason for not being alive or ready; `table` is empty where it is the pipeline itself."""

    code: str
    reason: str
    hint: str = ""
    table: str = ""


def not_alive(now: Status) -> Reason | None:
    """Return the reason why no query runs; None if one does, or if this process stands by."""
    pipeline = now.pipeline
    if pipeline.state in {STREAMING, STANDBY}:
        return None
    if pipeline.code:
        return Reason(pipeline.code, pipeline.reason, pipeline.hint)
    return Reason(pipeline.state, f"the pipeline is {pipeline.state}", "see the log")


def not_ready(now: Status, limit: timedelta, proved: timedelta | None = None) -> list[Reason]:
    """Return every reason why the tables cannot be relied on to be recent.

    Args:
        now: the state.
        limit: how far a table may be behind.
        proved: how old the proof of a table may be; None = nobody asks for one.
    """
    alive = not_alive(now)
    if now.pipeline.state == STANDBY:
        return [Reason(STANDBY, "another process runs the pipeline", "ask that one")]
    old = [] if proved is None else _unproved(now, proved)
    return [*([alive] if alive else []), *_lagging(now, limit), *old]


def _lagging(now: Status, limit: timedelta) -> Iterator[Reason]:
    seconds = limit.total_seconds()
    if now.lag.records is None:
        yield Reason(
            "lag-unknown",
            "Kafka has not said yet how much is unread",
            "it is asked every few seconds; see the log if this stays",
        )
    for side in now.sides():
        yield from _of_connector(side)
    if now.lag.records is not None and now.lag.seconds is None and _may_be_known(now):
        yield Reason(
            "lag-unknown",
            "nothing has shown yet that the connector has sent everything",
            "wait; see `source` in /v1/status if this stays",
        )
    for table in now.tables:
        if table.state == ERRORED:
            yield Reason(table.code or "errored", table.reason, table.hint, table.name)
        elif any(_explains(side, table.name) for side in now.sides()):
            continue  # its connector is why it is behind
        elif table.state not in {PAUSED, DROPPED} and (table.lag.seconds or 0.0) > seconds:
            yield Reason(
                "lagging",
                f"{table.lag.seconds:.0f} s behind the source, more than {seconds:g} s",
                "wait; see the slowest step in /v1/status if it does not get less",
                table.name,
            )


def _unproved(now: Status, limit: timedelta) -> Iterator[Reason]:
    """Yield the tables whose proof is too old; one that has no row yet has nothing to prove."""
    for table in now.tables:
        proof = table.proof
        wanted = now.verify_every_s is None or (proof is not None and proof.expected)
        if not wanted or table.state in {PAUSED, DROPPED, WAITING} or not table.engine:
            continue
        since = proof.proved_ms if proof is not None else None
        age = None if since is None else timedelta(milliseconds=max(0, now.now_ms - since))
        if age is not None and age <= limit:
            continue
        why = "was never proved" if age is None else f"was proved {age.total_seconds():.0f} s ago"
        yield Reason(
            "proof-old",
            f"{table.name} {why}, not within {limit.total_seconds():g} s",
            f"`lakemark verify {table.name}` proves it; see `proof` in /v1/status for what was "
            "found, or why it could not be compared",
            table.name,
        )


def _of_connector(side: ConnectorNow) -> Iterator[Reason]:
    of = f"connector {side.name}: " if side.name else ""
    if side.state == "away":
        yield Reason(side.code, f"{of}{side.reason}", side.hint)
    for one in side.source.problems if side.source else ():
        yield Reason(one.code, f"{of}{one.reason}", one.hint)


def _explains(side: ConnectorNow, table: str) -> bool:
    """Say whether a connector has a problem that its tables are behind for, this one among them."""
    has_problems = side.source is not None and bool(side.source.problems)
    return has_problems and unqualified(side.topic_prefix, table) is not None


def _may_be_known(now: Status) -> bool:
    sources = [side.source for side in now.sides() if side.state != "away"]
    return all(one is not None and one.watched and not one.problems for one in sources)
