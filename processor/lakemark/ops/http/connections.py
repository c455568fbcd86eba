"""Connections of the HTTP server: few, and none that waits for its client for long.

A client that sends half a request, or reads half an answer, costs a file of the process, and the
query needs those. So there are at most `most_connections()`. One more closes the one whose client
has been waited for the longest; where all are being answered, the one that has been for the
longest. A client gets `PATIENCE_S` for a whole request, and as long to read on.
"""

import asyncio
import resource
from typing import Any, Final

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

log = structlog.get_logger(__name__)

PATIENCE_S: Final = 10.0
AT_ONCE: Final = 8
"""Connections taken in one turn of the event loop: so many more than the limit may be open."""

_MOST: Final = 128  # a page takes up to six, a probe or Prometheus one each
_LEAST: Final = 16
_SHARE: Final = 8  # of the files that the process may open: Java, Kafka and the lake need the rest


def most_connections() -> int:
    """Return how many connections may be open, far below the process's limit of open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MOST
    return min(_MOST, max(_LEAST, files // _SHARE))


class Connections:
    """The open connections of a server.

    Args:
        most: how many may be open.
        patience_s: for how long a client is waited for.
    """

    def __init__(self, most: int, patience_s: float = PATIENCE_S) -> None:
        self.most, self.patience_s = most, patience_s
        # Both in the order in which they came there: the oldest is the first.
        self._waiting: dict[Connection, asyncio.TimerHandle] = {}
        self._answered: dict[Connection, None] = {}

    def wait_for(self, connection: "Connection") -> None:
        """Note that it is the client's turn; a new connection may close another one."""
        self.forget(connection)
        close = connection.transport.abort  # `close` would wait for a client that does not read
        later = asyncio.get_running_loop().call_later(self.patience_s, close)
        self._waiting[connection] = later
        if len(self._waiting) + len(self._answered) > self.most:
            oldest = next(iter(self._waiting if len(self._waiting) > 1 else self._answered))
            self.forget(oldest)
            oldest.transport.abort()
            log.warning(
                "http.crowded",
                connections=self.most,
                hint="see who asks so much; the oldest connection that waits is closed each time",
            )

    def answer(self, connection: "Connection") -> None:
        """Note that it is our turn."""
        self.forget(connection)
        self._answered[connection] = None

    def is_waiting(self, connection: "Connection") -> bool:
        """Say whether it is the client's turn."""
        return connection in self._waiting

    def forget(self, connection: "Connection") -> None:
        """Forget a connection that is closed, or about to change from one turn to the other."""
        later = self._waiting.pop(connection, None)
        if later is not None:
            later.cancel()
        self._answered.pop(connection, None)


class Connection(H11Protocol):
    """uvicorn's connection, which says whose turn it is."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._all, self._over = connections, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._all.wait_for(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._over = True
        self._all.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Note a part of a request, maybe the last one."""
        super().data_received(data)
        if self._all.is_waiting(self) and not self._is_clients_turn():
            self._all.answer(self)

    def on_response_complete(self) -> None:
        """Note that the answer is written; the next request may have come already."""
        super().on_response_complete()
        self._turn()

    def pause_writing(self) -> None:
        """Note that the client does not read."""
        super().pause_writing()
        self._turn()

    def resume_writing(self) -> None:
        """Note that the client has read on."""
        super().resume_writing()
        self._turn()

    def _turn(self) -> None:
        if not self._over:
            (self._all.wait_for if self._is_clients_turn() else self._all.answer)(self)

    def _is_clients_turn(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if self.flow.write_paused or cycle is None or cycle.response_complete:
            return True
        return self.conn.their_state not in {h11.DONE, h11.MUST_CLOSE, h11.CLOSED}
