"""The source database as tests and tools use it, whichever product it is.

A `SourceServer` makes databases; a `Database` is one of them with the connector that captures it.
`stack.postgres` and `stack.mysql` have those that there are.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from lakemark.model.handling_modes import HandlingModes
from stack.connect import connector_config
from stack.expected import Source
from stack.processes import Controlled, StackError, wait_for

if TYPE_CHECKING:
    from stack.local import Servers

CONFIGS: Final = Path(__file__).parents[1] / "connect-configs"
"""The connectors' configurations, one file for each product."""
DEADLOCKS: Final = 20
"""So often at most a statement is run that others stand in the way of."""


class SourceServer(Controlled):
    """A database server as its clients see it.

    Attributes:
        connector: names the Debezium connector that reads its log, see `stack.connect.CONNECTORS`.
        user: a user with all rights, who needs no password from loopback.
        host: its address on this machine.
        port: likewise.
    """

    connector: ClassVar[str]
    user: str
    host = "127.0.0.1"
    port: int

    @property
    def for_connect(self) -> tuple[str, int]:
        """Host and port under which Connect reaches it."""
        return self.host, self.port

    @abstractmethod
    def dsn(self, dbname: str, /) -> str:
        """Return the address of a database, as lakemark takes it."""

    @abstractmethod
    def create(self, stack: "Servers", name: str) -> "Database":
        """Create an empty database and return its handle.

        Args:
            stack: whose Connect and Kafka are to capture it.
            name: the database's name, which no other one has.
        """


@dataclass
class Database(ABC):
    """A database, and the connector of a stack that captures it.

    Names follow the database's: the connector's and its topic prefix are `name`.

    Attributes:
        stack: whose Connect and Kafka it uses.
        server: where it lives.
        name: the database's name.
        config: the connector's configuration, as last given to `start_connector`.
    """

    stack: "Servers"
    server: SourceServer
    name: str
    config: dict[str, str] = field(default_factory=dict)

    SIGNAL_TABLE: ClassVar[str]
    """The statement that creates the signal table."""

    CLIENT_ERROR: ClassVar[type[Exception]]
    """The root of the errors of this database's client."""

    INSTANT: ClassVar[str]
    """The type of a column with moments of all time zones, to the microsecond."""

    NOT_CAPTURED: ClassVar[Mapping[str, Collection[str]]] = {}
    """Columns of tables of ours that the connector cannot carry, by the tables' names."""

    @property
    @abstractmethod
    def dsn(self) -> str:
        """The database's address, as lakemark's `database.url` takes it."""

    @abstractmethod
    def identifier(self, table: str) -> str:
        """Return a table's identifier as lakemark and the connector have it."""

    @abstractmethod
    def connect(self) -> Any:
        """Return a new connection that commits each statement, to be closed by `with`.

        Both products' have `execute(statement, parameters)`, which returns a cursor, and
        `transaction()`, a context that commits at its end.
        """

    @abstractmethod
    def tables(self) -> list[str]:
        """Return the identifiers of the tables, but for the signal table, in order."""

    @abstractmethod
    def quoted(self, name: str) -> str:
        """Return a name of a table or a column as statements have it."""

    @abstractmethod
    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        """Insert many rows in the fastest way that the product has, and return how many."""

    @abstractmethod
    def source(self) -> AbstractContextManager[Source]:
        """Open the database to compare a lake with it, whose values are as the connector sends."""

    @abstractmethod
    def is_conflict(self, error: BaseException) -> bool:
        """Tell whether a transaction failed by others that run: it may be tried again."""

    @abstractmethod
    def is_deadlock(self, error: BaseException) -> bool:
        """Tell whether a transaction was taken back so that others could go on."""

    @abstractmethod
    def is_away(self, error: BaseException) -> bool:
        """Tell whether a connection was lost, or could not be made."""

    @abstractmethod
    def placeholders(self) -> dict[str, str]:
        """Return the values for the placeholders of the connector's configuration."""

    @abstractmethod
    def _names(self) -> dict[str, str]:
        """Return the connector's settings that no other connector may share."""

    @abstractmethod
    def _reader(self) -> int | None:
        """Return what on the server sends the log to the connector; None while nothing does."""

    @abstractmethod
    def _release(self) -> None:
        """Remove what a deleted connector leaves on the server."""

    @abstractmethod
    def _drop(self) -> None:
        """Drop the database, whoever is connected to it."""

    @property
    def modes(self) -> HandlingModes:
        """How the connector is set to send values."""
        return HandlingModes.from_connector(self.config)

    def not_captured(self, table: str) -> Collection[str]:
        """Return the columns of a table, given as its identifier, that no event has."""
        return self.NOT_CAPTURED.get(table.partition(".")[2], ())

    def topic(self, table: str) -> str:
        """Return the topic of a table."""
        return f"{self.name}.{self.identifier(table)}"

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement in a connection of its own and return its rows, if it has any.

        A deadlock with others' transactions has left nothing of it: it is run again.
        """
        with self.connect() as connection:
            for left in reversed(range(DEADLOCKS)):
                try:
                    cursor = connection.execute(statement, parameters or None)
                    break
                except self.CLIENT_ERROR as error:
                    if not self.is_deadlock(error) or not left:
                        raise
            return list(cursor.fetchall()) if cursor.description else []

    def start_connector(self, overrides: Mapping[str, str | None] | None = None) -> None:
        """Register the connector of the product's file in connect-configs; return when it streams.

        Args:
            overrides: settings to change or, with None, to leave out.
        """
        template = CONFIGS / f"{self.server.connector}.json"
        changes = {**self._names(), **self.stack.connector_settings, **(overrides or {})}
        config: dict[str, str | None] = {
            **connector_config(template, self.placeholders()),
            **changes,
        }
        before, self.config = self.config, {k: v for k, v in config.items() if v is not None}
        self.stack.connect.require_plugin(self.server.connector)
        reader = self._reader()
        self.stack.connect.put_connector(self.name, self.config)
        if reader is not None and self.config != before:
            # Connect has the task with the old settings read on for a while.
            wait_for(lambda: self._reader() not in (None, reader), 60, "the task to start again")
        self.wait_streaming()

    def stop_connector(self) -> None:
        """End the connector's tasks; it keeps its offsets, and `resume_connector` begins again."""
        self.stack.connect.stop_connector(self.name)

    def resume_connector(self) -> None:
        """Begin a stopped connector's tasks again and return when it streams."""
        self.stack.connect.resume_connector(self.name)
        self.wait_streaming()

    def restart_connector(self) -> None:
        """Restart the connector and its task, a failed one too, and return when it streams."""
        self.stack.connect.restart_connector(self.name)
        self.wait_streaming()

    def wait_streaming(self, deadline_s: float = 480) -> None:
        """Return when the connector reads the log: its tasks run and the server sends to it.

        Connect alone may still show as running what died with a killed worker.
        """
        self.stack.connect.wait_running(self.name, deadline_s)
        wait_for(self._is_streaming, deadline_s, f"connector {self.name} to stream")

    def revive(self, deadline_s: float = 480) -> None:
        """Return when the connector streams again; restart what has failed, as an operator would.

        A connector that is slow is left alone.

        Raises:
            StackError: it does not stream at the deadline.
        """

        def streams() -> bool:
            try:
                status = self.stack.connect.status(self.name)
                parts = [status["connector"], *status["tasks"]] if status else []
                states = {part["state"] for part in parts}
                if "FAILED" in states:
                    self.stack.connect.restart_failed(self.name)
                return len(parts) > 1 and states == {"RUNNING"} and self._reader() is not None
            except (StackError, self.CLIENT_ERROR):
                return False  # it is away, or not back yet

        wait_for(streams, deadline_s, f"connector {self.name} to stream again")

    def _is_streaming(self) -> bool:
        self.stack.connect.wait_running(self.name)  # raises if the task has failed meanwhile
        return self._reader() is not None

    def forget_connector(self) -> None:
        """Delete the connector with its offsets and what it leaves on the server."""
        self.stop_connector()
        self.stack.connect.reset_offsets(self.name)
        self._delete_connector()

    def close(self) -> None:
        """Delete the connector, what it leaves on the server, and the database."""
        if self.config:
            self._delete_connector()
        self._drop()

    def _delete_connector(self) -> None:
        self.stack.connect.delete_connector(self.name)
        self._release()
        self.config = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
