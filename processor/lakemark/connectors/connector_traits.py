"""The peculiarities of the connectors of one kind of database, as their settings show it. Pure.

`suitability` and the doctor have the rules for settings that all of Debezium's connectors share.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lakemark.model.definitions import TableChange
from lakemark.model.findings import Finding
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.settings.layers import Mistake

Settings = Mapping[str, str]

SETTING: Final = "connector setting"
"""The check of what is found of a connector's settings."""


@dataclass(frozen=True, slots=True)
class ConnectorTraits:
    """The traits of a kind of connector.

    Attributes:
        connector: their name in the `source` block of events.
        schemes: that ``database.url`` may have; each is of one kind of database only.
        example: a ``database.url``, to be shown.
        reads_know_their_place: whether proofs of reads have a `place`: then no window rows are
            written, and no signal table is needed.
        has_schema_topic: whether its schema topic is read with those of the tables: there it says
            that it has read their structure, as it does when it begins without offsets.
        hides_tables: whether the catalog shows a user no table that he may not read.
        container: what a table stands in, as the connector's lists call it: ``schema``.
        naming: settings that name tables, or what holds or sends them, beside those of all
            connectors: what they name must be known.
        shown: settings whose values may be shown where a trace has them, beside those of all.
        driver: beginnings of Java classes of errors whose messages tell what is wrong.
        unread_log: what becomes of the log while the connector stands still: the end of a sentence.
        silent_log: likewise while it runs without heartbeats and its tables do not change.
        problems: why settings do not suit; paths are the settings' names.
        findings: what should be known of settings besides; their check is `SETTING`.
        has_reader: whether `LogWatch.reader` can say something of a connector with such settings.
        moved_by: the tables, of those that there are, whose rows a statement in the schema topic
            may have changed without an event or a trace in the catalog.
        definitions: the tables after a statement, as the schema topic tells it, and their schemas.
    """

    connector: str
    schemes: tuple[str, ...]
    example: str
    reads_know_their_place: bool
    has_schema_topic: bool
    hides_tables: bool
    container: str
    naming: tuple[str, ...]
    shown: tuple[str, ...]
    driver: tuple[str, ...]
    unread_log: str
    silent_log: str
    problems: Callable[[Settings], Iterable[Mistake]]
    findings: Callable[[Settings], Iterable[Finding]]
    has_reader: Callable[[Settings], bool]
    moved_by: Callable[[str, Iterable[str]], Iterable[str]] = lambda _statement, _tables: ()
    definitions: Callable[
        [Sequence[TableChange], HandlingModes], Iterable[tuple[str, TableSchema]]
    ] = lambda _tables, _modes: ()

    def is_of(self, url: str) -> bool:
        """Return whether ``database.url`` leads to such a database, by its scheme."""
        return url.partition(":")[0].lower() in self.schemes
