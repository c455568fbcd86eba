"""A place in a source's log as its database prints it, and where the log ends now. Pure.

Commits are in the log in their order, and the connector sends them in that order. So one offset
that Connect has committed, or one event, that stands at a place or behind it proves that all that
was committed before the place was sent: to Kafka, or to that event's partition.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from lakemark.errors import RefusedError, cut


class LogPlace(Protocol):
    """A place between two transactions of a database's log."""

    @property
    def text(self) -> str:
        """The place as the database prints it, and as `Database.log_place` reads it."""

    def is_sent(self, entries: Sequence[Mapping[str, Any]], *, server: str) -> bool:
        """Say whether all that was committed before it is in Kafka.

        Args:
            entries: as Connect gives them: ``[{"partition": {…}, "offset": {…}}]``; they are
                committed for records that are acknowledged, with all before them.
            server: the connector's `topic.prefix`.
        """

    def is_passed(self, position: bytes) -> bool:
        """Say whether an event of the stream at this position of the newest epoch is behind it."""

    def has(self, transaction: str, position: bytes) -> bool:
        """Say whether a transaction was committed before it.

        Args:
            transaction: its id, as the connector's transaction topic has it.
            position: of its newest event, or of one before; empty if it is not known.
        """


class LogEnd(Protocol):
    """The end of a database's log. For one thread at a time.

    Raises (`place` and `move`):
        LakemarkError: the database is away, or refuses.
    """

    def place(self) -> LogPlace:
        """Return a place behind all that anybody was told to be committed."""

    def move(self) -> bool:
        """Write a row that the connector sends; False where none is needed, or can be written.

        A connector shows how far it is by what it sends. In a silent database that is this row.
        """

    def drop(self) -> None:
        """Close the session. Never raises."""


def offsets_of(entries: Sequence[Mapping[str, Any]], server: str) -> Iterator[Mapping[str, Any]]:
    """Yield the offsets that Connect has committed for a connector which streams.

    Connect keeps those of every `topic.prefix` that it ever had: another one's say nothing of the
    log that is read now. Nor does an offset in the connector's own snapshot.

    Args:
        entries: as Connect gives them.
        server: the connector's `topic.prefix`.
    """
    for entry in entries:
        place, offset = entry.get("partition"), entry.get("offset")
        if not isinstance(place, Mapping) or place.get("server") != server:
            continue
        if isinstance(offset, Mapping) and not offset.get("snapshot"):
            yield offset


def unreadable(text: str, expected: str) -> RefusedError:
    """Return the error of a text that is no place.

    Args:
        text: as it was given.
        expected: what the database prints, with an example.
    """
    return RefusedError(
        f"{cut(text)!r} is no position of this database's log",
        code="bad-value",
        hint=f"give {expected}",
    )
