"""The topics and tables that a configuration names."""

from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Wanted:
    """The topics and tables that the configuration names.

    Attributes:
        topic: whether the change topic of this name is read.
        tables: the tables whose events count.
        captured: whether the connector's own lists let this table through.
    """

    topic: Callable[[str], bool]
    tables: Container[str]
    captured: Callable[[str], bool]

    def table(self, name: str, topics: Collection[str]) -> bool:
        """Say whether anything is to come of a table whose events came in these topics."""
        return name in self.tables and (not topics or any(map(self.topic, topics)))

    @classmethod
    def by_any(cls, parts: Sequence[Self]) -> Self:
        """Return what any of several connectors names."""
        return cls(
            topic=lambda topic: any(part.topic(topic) for part in parts),
            tables=_InAny([part.tables for part in parts]),
            captured=lambda table: any(part.captured(table) for part in parts),
        )


class _InAny(Container[str]):
    """The tables that any of several choices has."""

    def __init__(self, choices: Sequence[Container[str]]) -> None:
        self._choices = choices

    def __contains__(self, table: object) -> bool:
        return any(table in choice for choice in self._choices)
