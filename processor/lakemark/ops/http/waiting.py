"""Waits over HTTP: what a request asks for, and answers that come when there is one, or in time.

A wait holds no thread: between two looks only the connection is open. There are few at once, as
the connections of the server are few, and none lasts for longer than `LONGEST_S`: who waits for
longer asks again, with the position of the first answer.
"""

import time
from functools import partial
from typing import Final

from anyio import CapacityLimiter, sleep
from anyio.to_thread import run_sync
from starlette.datastructures import QueryParams
from starlette.requests import Request

from lakemark.errors import DependencyError, RefusedError, cut
from lakemark.ops.waits import CANNOT, WaitAnswer, WaitRequest, Waits

LONGEST_S: Final = 30.0
_USUAL_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.2
_LOOKS: Final = 4  # threads: each is held for a question to Connect, Kafka or the lake at most
_KNOWN: Final = ("now", "position", "connector", "table", "timeout")
_TRUE: Final = ("", "true", "1")
HINT: Final = (
    "give now=true, or position=P for each connector=NAME; table=T for each table, or none for all;"
    " timeout=SECONDS"
)


def request_of(query: QueryParams) -> tuple[WaitRequest, float]:
    """Return what the parameters of a request ask for, and for how long (seconds).

    Raises:
        RefusedError: ``bad-value``: they are wrong.
    """
    unknown = [name for name in query if name not in _KNOWN]
    if unknown:
        raise _bad(f"there is no parameter {cut(unknown[0])}")
    texts, connectors = query.getlist("position"), query.getlist("connector")
    if bool(texts) == ("now" in query) or query.get("now", "true").lower() not in _TRUE:
        raise _bad("a wait has either now=true or a position")
    if connectors and len(connectors) != len(texts):
        raise _bad("each connector has one position, and each position one connector")
    places = tuple(zip(connectors or [""] * len(texts), texts, strict=True))
    return WaitRequest(tuple(query.getlist("table")), places), _seconds(query.get("timeout"))


def _seconds(text: str | None) -> float:
    if text is None:
        return _USUAL_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise _bad("timeout is a number of seconds")
    return min(seconds, LONGEST_S)


def _bad(message: str) -> RefusedError:
    return RefusedError(message, code="bad-value", hint=HINT)


class LongPolls:
    """The waits of a server.

    Args:
        visible: looks at tables.
        most: how many may wait at once.
    """

    def __init__(self, visible: Waits, *, most: int) -> None:
        self._waits, self._most = visible, most
        self._under_way = 0
        self._looks = CapacityLimiter(_LOOKS)

    async def answer(self, request: Request) -> WaitAnswer:
        """Return when all is visible, the time is over, or nobody listens any more.

        Raises:
            LakemarkError: as `request_of` and `Waits.begin`; ``cannot-wait``: too many do.
        """
        wanted, seconds = request_of(request.query_params)
        if self._under_way >= self._most:
            raise DependencyError(
                f"{self._most} others wait already", code=CANNOT, hint="ask again later"
            )
        self._under_way += 1
        try:
            until = time.monotonic() + seconds
            wait = await run_sync(partial(self._waits.begin, wanted), limiter=self._looks)
            while True:
                found = await run_sync(partial(self._waits.look, wait), limiter=self._looks)
                left = until - time.monotonic()
                if found.visible or left <= 0 or await request.is_disconnected():
                    return found
                await sleep(min(_LOOK_EVERY_S, left))
        finally:
            self._under_way -= 1
