"""The process's health: alive or not, ready or not; pure.

Alive: the query runs, or another process's does and this one stands by. Ready: the query runs, the
connector brings changes, of several each does, every table is within `http.ready_lag` of the
source, and none has stopped by an error. A table that a person has paused, or that is gone, is no
reason; a paused connector is.
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


def not_ready(now: Status, limit: timedelta) -> list[Reason]:
    """Return every reason why the tables cannot be relied on to be recent."""
    alive = not_alive(now)
    if now.pipeline.state == STANDBY:
        return [Reason(STANDBY, "another process runs the pipeline", "ask that one")]
    return [*([alive] if alive else []), *_lagging(now, limit)]


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
