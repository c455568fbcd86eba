"""The process's health: alive or not, ready or not; pure.

Alive: the query runs, or another process's does and this one stands by. Ready: the query runs, the
connector brings changes, every table is within `http.ready_lag` of the source, and none has stopped
by an error. A table that a person has paused, or that is gone, is no reason; a paused connector is.
"""

from collections.abc import Iterator
from datetime import timedelta

import msgspec

from lakemark.ops.status import DROPPED, ERRORED, PAUSED, STANDBY, STREAMING, Status


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
    problems = now.source.problems if now.source else ()
    yield from (Reason(one.code, one.reason, one.hint) for one in problems)
    if now.lag.records is not None and now.lag.seconds is None and _may_be_known(now):
        yield Reason(
            "lag-unknown",
            "nothing has shown yet that the connector has sent everything",
            "wait; see `source` in /v1/status if this stays",
        )
    for table in now.tables:
        if table.state == ERRORED:
            yield Reason(table.code or "errored", table.reason, table.hint, table.name)
        elif problems:
            continue  # they are why all tables are behind
        elif table.state not in {PAUSED, DROPPED} and (table.lag.seconds or 0.0) > seconds:
            yield Reason(
                "lagging",
                f"{table.lag.seconds:.0f} s behind the source, more than {seconds:g} s",
                "wait; see the slowest step in /v1/status if it does not get less",
                table.name,
            )


def _may_be_known(now: Status) -> bool:
    return now.source is not None and now.source.watched and not now.source.problems
