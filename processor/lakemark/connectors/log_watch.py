"""The reader of a database's log and its place, as the server sees them: for operators. Pure."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that keeps changes from coming; `code` is stable, kebab case."""

    code: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class LogReader:
    """The server's knowledge of the connector as the reader of its log, such as its slot.

    Positions are bytes of the log since its beginning.

    Attributes:
        name: what the server calls it.
        end: where the log ended.
        active: whether somebody reads now; None where the server does not know the reader.
        confirmed: up to where the reader has dealt with the log.
        received: up to where the reader has received the log; None if we may not see that.
        near: the reader keeps up with a log that ends no further ahead.
        trouble: why changes are lost, or will be.
        silence: what it means that nobody reads now.
    """

    name: str
    end: int
    active: bool | None
    confirmed: int | None = None
    received: int | None = None
    near: int = 0
    trouble: Trouble | None = None
    silence: Trouble | None = None

    @property
    def distance(self) -> int | None:
        """Bytes from what was confirmed to the end of the log."""
        return None if self.confirmed is None else max(0, self.end - self.confirmed)


class LogWatch(Protocol):
    """One session that is asked again and again, and made anew after an error; for one thread.

    Raises (every question):
        DependencyError: the database does not answer.
        ConfigError: it refuses us.
    """

    def reader(self) -> LogReader | None:
        """The connector as it reads the log now; None where the server has no say in it."""

    def there(self, tables: frozenset[str]) -> frozenset[str]:
        """Those of the tables that the database has."""

    def close(self) -> None:
        """End the session; the next question makes another one."""
