"""The HTTP server: uvicorn in a thread of its own, beside the query.

It serves from before Spark starts to after the query has ended. A port in use, or a server that
fails, is a warning: the tables do not wait for it.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog
import uvicorn

from lakemark import control, records
from lakemark.config import Config
from lakemark.ops import http
from lakemark.ops.board import Board
from lakemark.ops.commands import Commands
from lakemark.ops.log import SecretFilter
from lakemark.ops.metrics import Metrics
from lakemark.settings.units import host_port

log = structlog.get_logger(__name__)

_STOP_WITHIN_S: Final = 5.0
_GRACE_S: Final = 2  # answers that are under way may take as long


@contextmanager
def serving(
    config: Config, board: Board, numbers: Metrics, does: Commands | None = None
) -> Iterator[None]:
    """Answers requests while the block runs, where `http.bind` says; not at all where it is none.

    Args:
        config: of the pipeline.
        board: what is answered.
        numbers: the metrics.
        does: where commands go; default: the topics.
    """
    place = _bound(config.http.bind) if config.http.bind else None
    if place is None:
        yield
        return
    token = config.http.token.get_secret_value() if config.http.token else None
    answers = http.Answers(
        config.name,
        board,
        numbers,
        does or _commands(config),
        ready_lag=config.http.ready_lag,
        hide=SecretFilter(config.secrets()),
    )
    server = uvicorn.Server(
        uvicorn.Config(
            http.app(answers, token=token),
            log_config=None,  # the log is ours
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
    )
    thread = threading.Thread(target=_serve, args=(server, place), name="http", daemon=True)
    thread.start()
    log.info("http.listening", address=_address(place), token=token is not None)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(_STOP_WITHIN_S)
        place.close()


def _bound(bind: str) -> socket.socket | None:
    """A listening socket; None, with a warning, where there can be none."""
    host, port = host_port(bind)
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        log.warning(
            "http.off",
            bind=bind,
            reason=error.strerror or str(error),
            hint="set http.bind to a free port (0 is any) or to none, and restart; "
            "the pipeline runs without the page and the metrics",
            retried=False,
        )
        return None


def _address(place: socket.socket) -> str:
    host, port = place.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _serve(server: uvicorn.Server, place: socket.socket) -> None:
    try:
        server.run(sockets=[place])
    except (Exception, SystemExit):  # uvicorn exits where it cannot start
        log.exception("http.failed", hint="restart lakemark to have the page and the metrics again")


def _commands(config: Config) -> Commands:
    topic, key = config.topics.signals, config.name.encode()

    def signal(value: bytes) -> None:
        control.require(config, topic, config.topics.notifications)
        records.publish(config, topic, [(key, value)])

    return Commands(signal, lambda kind, table: control.write(config, kind, table))
