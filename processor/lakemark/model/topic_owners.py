"""The connector of a topic, where a pipeline has several of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lakemark.settings.patterns import compile_java


@dataclass(frozen=True, slots=True)
class OwnTopics:
    """The topics of one connector among several.

    Attributes:
        connector: its qualifier, see `table_id`.
        start: with which the names begin that it gives by itself.
        pattern: Java regular expression of the topics that are read for it.
    """

    connector: str
    start: str
    pattern: str


@dataclass(frozen=True, slots=True)
class TopicOwners:
    """The topics of all connectors; picklable.

    A topic whose name begins as one connector names its own is that one's: of several, the one with
    the longest beginning. Others, renamed by a transform, are the first one's that reads them.

    Attributes:
        several: of each connector; empty where there is only one, whose qualifier is empty.
    """

    several: tuple[OwnTopics, ...] = ()

    @classmethod
    def of(cls, several: Iterable[OwnTopics]) -> "TopicOwners":
        """Return the owners, in the order in which they are asked."""
        return cls(tuple(sorted(several, key=lambda own: (-len(own.start), own.connector))))

    def __call__(self, topic: str) -> str:
        """Return the qualifier of a topic's connector; of a topic of none that of any."""
        if not self.several:
            return ""
        for own in self.several:
            if topic.startswith(own.start) and _matches(own, topic):
                return own.connector
        for own in self.several:
            if _matches(own, topic):
                return own.connector
        return self.several[0].connector


ONE_OWNER: Final = TopicOwners()
"""Of a pipeline with one connector."""


def _matches(own: OwnTopics, topic: str) -> bool:
    return compile_java(own.pattern).matches(topic)
