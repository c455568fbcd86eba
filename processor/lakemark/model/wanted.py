"""The topics and tables that a configuration names."""

from collections.abc import Callable, Collection, Container
from dataclasses import dataclass


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
