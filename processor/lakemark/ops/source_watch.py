"""Looks at the source every few seconds, in a thread of its own: Connect, the database, heartbeats.

No batch waits for a look, and each question has a short deadline: that somebody does not answer is
a result, too.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Final, Self, TypeVar

import structlog

from lakemark.connectors.connect_rest import UNKNOWN_CONNECTOR, ConnectRest
from lakemark.connectors.connector import Connector
from lakemark.connectors.database import DatabaseAccess
from lakemark.connectors.log_watch import LogReader
from lakemark.connectors.registry import database_of, traits_of
from lakemark.converters import arrival_order
from lakemark.errors import LakemarkError
from lakemark.kafka.brokers import Cluster
from lakemark.model.handling_modes import HandlingModes
from lakemark.ops.board import Board
from lakemark.ops.doctor.checks_connector import Task, heartbeat_s
from lakemark.ops.source_side import ConnectorSeen, Expected, SourceLook, SourceSide
from lakemark.ops.status import SourceNow
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig

log = structlog.get_logger(__name__)

EVERY_S: Final = 5.0
_WITHIN: Final = timedelta(seconds=5)  # each who is asked
_TABLES_EVERY: Final = 6  # looks
_Answer = TypeVar("_Answer")


def expected(config: Config, connector: Connector) -> Expected:
    """Return the facts about the source that are known before anybody is asked."""
    connect = config.source.connect
    return Expected(
        connector.name,
        f"{connect.url.rstrip('/')}/connectors/{connector.name}" if connect else "",
        connector.settings,
        heartbeat_s(connector.settings),
        config.database is not None and connector.traits.has_reader(connector.settings),
        connector.traits,
        arrival_order.UNPROMISED if connector.by_arrival else "",
    )


class SourceWatch:
    """The questions to Connect, the database and Kafka, over open connections; for one thread.

    Args:
        config: says where everybody is.
        connector: as it is configured.
    """

    def __init__(self, config: Config, connector: Connector) -> None:
        self._config, self._connector = config, connector
        self._database = (
            database_of(
                DatabaseAccess(
                    config.database,
                    HandlingModes(),
                    connector.settings,
                    qualifier=connector.qualifier,
                )
            ).log_watch(name=config.name, within=_WITHIN)
            if config.database
            else None
        )
        self._kafka: Cluster | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Return this watch; the first look connects."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        self._open.close()
        if self._database is not None:
            self._database.close()

    def look(self) -> SourceLook:
        """Return all answers; that somebody does not answer is an error in them."""
        connector, reader = _answer(self._ask_connect), _answer(self._ask_reader)
        newest = _answer(self._ask_heartbeats)
        read = not isinstance(newest, LakemarkError)
        if not read:
            stack, self._open, self._kafka = self._open, ExitStack(), None
            stack.close()
        heartbeat = newest / 1000 if isinstance(newest, int) else None
        return SourceLook(time.time(), connector, reader, heartbeat, heartbeats_read=read)

    def gone(self, names: frozenset[str]) -> frozenset[str] | None:
        """Return which of these tables the database does not have; None if it does not say."""
        if self._database is None or not names:
            return None
        try:
            return names - self._database.there(names)
        except LakemarkError:
            return None

    def _ask_connect(self) -> ConnectorSeen | None:
        connect = self._config.source.connect
        if connect is None:
            return None
        quick = connect.model_copy(update={"timeout": min(connect.timeout, _WITHIN)})
        try:
            with ConnectRest(quick, attempts=1) as rest:
                found = rest.status()
        except InvalidConfig as error:
            raise _of_connect(error) from error
        return ConnectorSeen(found.state, tuple(Task(t.id, t.state, t.trace) for t in found.tasks))

    def _ask_reader(self) -> LogReader | None:
        return self._database.reader() if self._database else None

    def _ask_heartbeats(self) -> int | None:
        if not heartbeat_s(self._connector.settings):
            return None
        if self._kafka is None:
            kafka = self._config.kafka
            quick = kafka.model_copy(update={"timeout": min(kafka.timeout, _WITHIN)})
            cluster = Cluster(self._config.model_copy(update={"kafka": quick}))
            self._kafka = self._open.enter_context(cluster)
        return self._kafka.newest_ms([self._connector.other_topics["heartbeat"]])


def look_once(config: Config, connector: Connector, board: Board) -> None:
    """Look once and tell the board."""
    side = SourceSide(expected(config, connector), patient=False)
    with SourceWatch(config, connector) as watch:
        board.source(side.seen(watch.look()), connector.qualifier)
        gone = watch.gone(board.names(connector.qualifier))
        if gone is not None:
            board.gone(gone, connector.qualifier)


def unknown(config: Config, error: LakemarkError) -> SourceNow:
    """Return the state of a source whose connector cannot even be asked for its settings."""
    connect = config.source.connect
    name = connect.connector if connect else ""
    traits = traits_of(database=config.database)
    side = SourceSide(Expected(name, "", {}, 0.0, database=False, traits=traits), patient=False)
    error = _of_connect(error) if isinstance(error, InvalidConfig) else error
    return side.seen(SourceLook(time.time(), error))


def keep_looking(
    config: Config, board: Board, stopping: threading.Event, connector: Connector
) -> None:
    """Look every few seconds and tell the board, until `stopping` is set."""
    side, reported, looks = SourceSide(expected(config, connector)), frozenset[str](), 0
    absent = frozenset[str]()
    with SourceWatch(config, connector) as watch:
        while not stopping.is_set():
            try:
                now = side.seen(watch.look())
                board.source(now, connector.qualifier)
                names = board.names(connector.qualifier)
                if looks % _TABLES_EVERY == 0 and (gone := watch.gone(names)) is not None:
                    board.gone(gone, connector.qualifier)
                    if gone - absent:
                        log.warning("table.gone", tables=sorted(gone - absent))
                    absent = gone
                for problem in now.problems:
                    if problem.code not in reported:  # once, not every few seconds
                        log.warning(
                            "source.problem", code=problem.code, reason=problem.reason,
                            hint=problem.hint,
                        )  # fmt: skip
                if reported and not now.problems:
                    log.info("source.well")
                reported = frozenset(problem.code for problem in now.problems)
            except Exception:
                log.exception("source.internal_error")
            looks += 1
            stopping.wait(EVERY_S)


def _answer(ask: Callable[[], _Answer]) -> _Answer | LakemarkError:
    try:
        return ask()
    except LakemarkError as error:
        return error


def _of_connect(error: InvalidConfig) -> LakemarkError:
    problem = error.problems[0]
    unknown = problem.path == UNKNOWN_CONNECTOR
    code = error.code if error.code != InvalidConfig.code else "connect-unavailable"
    return LakemarkError(
        problem.message, code="connector-missing" if unknown else code, hint=problem.hint
    )
