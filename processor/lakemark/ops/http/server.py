"""The HTTP server: uvicorn in a thread of its own, beside the query.

It serves from before Spark starts to after the query has ended. A port in use is a warning, and a
server that fails begins again: the tables do not wait for it.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from lakemark.connectors.registry import database_kind
from lakemark.kafka import records
from lakemark.ops.board import Board
from lakemark.ops.http import http
from lakemark.ops.http.commands import Commands
from lakemark.ops.http.connections import AT_ONCE, Connection, Connections, most_connections
from lakemark.ops.http.waiting import LongPolls
from lakemark.ops.metrics import Metrics
from lakemark.ops.waits import Waits
from lakemark.settings.config import Config
from lakemark.settings.masking import foreign
from lakemark.settings.units import host_port
from lakemark.state import control

log = structlog.get_logger(__name__)

_STOP_WITHIN_S: Final = 5.0
_GRACE_S: Final = 2  # answers that are under way may take as long
_AGAIN_S: Final = 5.0
_QUEUE: Final = 1024  # the kernel keeps these until it is their turn


@contextmanager
def serving(
    config: Config,
    board: Board,
    numbers: Metrics,
    does: Commands | None = None,
    waits: Waits | None = None,
) -> Iterator[None]:
    """Answer requests while the block runs, where `http.bind` says; not at all where it is none.

    Args:
        config: of the pipeline.
        board: what is answered.
        numbers: the metrics.
        does: where commands go; default: the topics.
        waits: looks at what is visible; default: nothing can be waited for.
    """
    place = _bound(config.http.bind) if config.http.bind else None
    if place is None:
        yield
        return
    token = config.http.token.get_secret_value() if config.http.token else None
    answers = http.Endpoints(
        config.name,
        board,
        numbers,
        does or _commands(config),
        LongPolls(waits or Waits(board), most=most_connections() // 2),
        ready_lag=config.http.ready_lag,
        ready_proved=config.http.ready_proved,
    )
    server = _Server(http.app(answers, token=token), place)
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()
    log.info("http.listening", address=_address(place), token=token is not None)
    try:
        yield
    finally:
        server.stop()
        thread.join(_STOP_WITHIN_S)
        place.close()


class _Server:
    """uvicorn, begun again whenever anything but `stop` ends it.

    Args:
        app: answers the requests.
        place: a listening socket; it stays open.
    """

    def __init__(self, app: ASGIApp, place: socket.socket) -> None:
        self._app, self._place = app, place
        self._stopping = threading.Event()
        self._now: _Listening | None = None

    def run(self) -> None:
        """Answer until `stop`."""
        while not self._stopping.is_set():
            try:
                self._now = self._listening()
                self._now.should_exit = self._stopping.is_set()
                self._now.run(sockets=[self._place.dup()])
            except (Exception, SystemExit):  # uvicorn exits where it cannot start
                log.exception("http.failed", retried=True, again_in_s=_AGAIN_S)
            self._stopping.wait(_AGAIN_S)

    def stop(self) -> None:
        """End the server; requests that are under way have `_GRACE_S`."""
        self._stopping.set()
        if self._now is not None:
            self._now.should_exit = True

    def _listening(self) -> "_Listening":
        connection: Any = partial(Connection, Connections(most_connections()))  # uvicorn calls it
        return _Listening(
            uvicorn.Config(
                self._app,
                http=connection,
                backlog=AT_ONCE,
                log_config=None,  # the log is ours
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )


class _Listening(uvicorn.Server):
    """uvicorn's server, with a queue of connections longer than the number it takes at once."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        for place in sockets or []:
            place.listen(_QUEUE)


def _bound(bind: str) -> socket.socket | None:
    """Return a listening socket; None, with a warning, where there can be none."""
    host, port = host_port(bind)
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        log.warning(
            "http.off",
            bind=bind,
            reason=error.strerror or foreign(error),
            hint="set http.bind to a free port (0 is any) or to none, and restart; "
            "the pipeline runs without the page and the metrics",
            retried=False,
        )
        return None


def _address(place: socket.socket) -> str:
    host, port = place.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _commands(config: Config) -> Commands:
    topic, key = config.topics.signals, config.name.encode()

    def signal(value: bytes) -> None:
        control.require(config, topic, config.topics.notifications)
        records.publish(config, topic, [(key, value)])

    return Commands(
        signal,
        lambda kind, table: control.write(config, kind, table),
        lambda text: _check_condition(config, text),
    )


def _check_condition(config: Config, text: str) -> None:
    """Raise if no database takes a condition; of several each has a say when it is carried out."""
    if not config.several:
        database_kind(database=config.database).check_condition(text)
