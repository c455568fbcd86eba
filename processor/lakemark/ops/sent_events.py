"""The events that a connector has sent, asked of Connect and Kafka for who waits for them."""

import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import structlog

from lakemark.connectors.connect_rest import ConnectRest
from lakemark.connectors.connector import Connector
from lakemark.connectors.database import DatabaseAccess
from lakemark.connectors.log_place import LogEnd, LogPlace
from lakemark.connectors.registry import database_kind, database_of
from lakemark.errors import ConfigError, DependencyError, LakemarkError
from lakemark.kafka.brokers import Cluster
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.offsets import Offsets
from lakemark.settings.config import Config, DatabaseConfig
from lakemark.settings.table_id import unqualified

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = structlog.get_logger(__name__)

EVERY_S: Final = 0.5  # between two questions to Connect
_FAILED_S: Final = 5.0  # the same after an error
_WITHIN: Final = timedelta(seconds=5)  # each who is asked
NO_CONNECT: Final = DependencyError(
    "nothing but later events shows what the connector has sent: Connect is not known",
    code="waits-for-connector",
    hint="set source.connect, or let every partition of the table have a later event",
)


class ConnectorEvents:
    """See `waits.SentEvents`. From any thread: one asks, others take the last answer meanwhile.

    Args:
        config: of a pipeline that has this connector alone.
        connector: as it is configured.
        name: of it, where there are several.
    """

    def __init__(self, config: Config, connector: Connector, name: str = "") -> None:
        self.name, self.qualifier = name, connector.qualifier
        self.own_whole, self.kind = connector.reads_all_rows, connector.kind
        # With transforms nobody knows which topics a table has in the end.
        self.one_topic = not connector.settings.get("transforms") and not connector.by_arrival
        self._config, self._connector = config, connector
        self._asking, self._moving = threading.Lock(), threading.Lock()
        self._answer: tuple[Sequence[Mapping[str, Any]], Offsets] = (), {}
        self._next = 0.0
        self._moved = self._next_move = float("-inf")
        self._trouble: LakemarkError | None = None
        self._stuck: LakemarkError | None = None
        self._end: LogEnd | None = None

    @property
    def trouble(self) -> LakemarkError | None:
        """See `SentEvents`: what keeps the connector from being asked, then from being moved on."""
        return self._trouble or self._stuck

    def has(self, table: str) -> bool:
        """See `SentEvents`."""
        return unqualified(self.qualifier, table) is not None

    def place(self, text: str) -> LogPlace:
        """See `SentEvents`."""
        return database_kind(self._connector.settings, self._config.database).log_place(text)

    def ended_place(self, transaction: str) -> LogPlace | None:
        """Return the place behind a transaction, see `Database.ended_place`."""
        kind = database_kind(self._connector.settings, self._config.database)
        return kind.ended_place(transaction)

    def end(self) -> LogPlace:
        """See `SentEvents`.

        Raises:
            ConfigError: ``no-database``: there is none to be asked.
        """
        if self._config.database is None:
            raise ConfigError(
                "there is no database to be asked where its log ends",
                code="no-database",
                hint="give a position that it prints, or add the section database",
            )
        with self._moving:
            return self._log_end(self._config.database).place()

    def ends_past(self, place: LogPlace) -> Offsets | None:
        """See `SentEvents`."""
        if time.monotonic() >= self._next and self._asking.acquire(blocking=False):
            try:
                self._ask()
            finally:
                self._asking.release()
        entries, ends = self._answer
        server = self._connector.topic_prefix
        return ends if place.is_sent(entries, server=server) else None

    def _ask(self) -> None:
        """Ask Connect what is committed, and then Kafka where the topics end."""
        self._next = time.monotonic() + _FAILED_S
        connect = self._config.source.connect
        if connect is None:
            self._trouble = NO_CONNECT
            return
        try:
            quick = connect.model_copy(update={"timeout": min(connect.timeout, _WITHIN)})
            with ConnectRest(quick, attempts=1) as rest:
                entries = rest.offsets()
            ends: Offsets = {}
            with self._cluster() as cluster:
                topics = cluster.topics(self._connector.topic_pattern)
                for (topic, partition), end in cluster.end_offsets(topics, committed=False).items():
                    ends.setdefault(topic, {})[partition] = end
        except LakemarkError as error:
            self._trouble = error
            log.info("wait.delayed", code=error.code, reason=error.message, hint=error.hint)
            return
        self._answer, self._trouble = (entries, ends), None
        self._next = time.monotonic() + EVERY_S

    def partitions(self, topic: str) -> int | None:
        """See `SentEvents`."""
        try:
            with self._cluster() as cluster:
                return cluster.partition_counts([topic]).get(topic)
        except LakemarkError as error:
            log.info("wait.delayed", code=error.code, reason=error.message, hint=error.hint)
            return None

    def _cluster(self) -> Cluster:
        kafka = self._config.kafka
        quick = kafka.model_copy(update={"timeout": min(kafka.timeout, _WITHIN)})
        return Cluster(self._config.model_copy(update={"kafka": quick}))

    def move(self, since: float) -> None:
        """See `SentEvents`."""
        database = self._config.database
        if database is None or not self._moving.acquire(blocking=False):
            return
        try:
            begun = time.monotonic()
            if self._moved >= since or begun < self._next_move:
                return
            self._next_move = begun + _FAILED_S
            if self._log_end(database).move():
                log.info("wait.moved_on", connector=self._connector.name)
            self._moved, self._next_move, self._stuck = begun, 0.0, None
        except LakemarkError as error:
            self._stuck = error
            log.info("wait.not_moved_on", code=error.code, reason=error.message, hint=error.hint)
        finally:
            self._moving.release()

    def _log_end(self, database: DatabaseConfig) -> LogEnd:
        if self._end is None:
            access = DatabaseAccess(
                database,
                HandlingModes(),
                self._connector.settings,
                qualifier=self._connector.qualifier,
            )
            name = f"lakemark {self._config.name} waits"
            self._end = database_of(access).log_end(self._connector.signal_table or "", name=name)
        return self._end

    def close(self) -> None:
        """Close the session; who asks just now gets an error."""
        end, self._end = self._end, None
        if end is not None:
            with suppress(LakemarkError):
                end.drop()
