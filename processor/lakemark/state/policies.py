"""The policies of the tables as they are now, applied to changes of their sources."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from lakemark.connectors.catalog_changes import Action, CatalogLook, Difference, SourceKeys
from lakemark.connectors.catalog_policies import CODES, KINDS, judged, outcome_of
from lakemark.connectors.connector import Connector
from lakemark.connectors.refusals import refusals
from lakemark.errors import LakemarkError
from lakemark.settings.config import Config
from lakemark.settings.schema_policy import FOLLOWS, Kind, Outcome, SchemaPolicy, way_on
from lakemark.sink import formats
from lakemark.sink.names import folder_of
from lakemark.state.tables import PipelineState


def readable(now: CatalogLook, keys: SourceKeys) -> set[str]:
    """Return the tables whose snapshots nothing in the catalog speaks against.

    Args:
        now: the catalog.
        keys: the keys that the connector is told to send, by table.
    """
    tables = now.tables.items()
    return {name for name, table in tables if table.is_whole and (keys.get(name) or table.has_key)}


def can_rebuild(config: Config, connector: Connector, table: str) -> bool:
    """Return whether a table that cannot follow its source can be made anew unasked.

    It takes a database, snapshots that nobody has to ask for and nothing speaks against, and a
    store in which one commit replaces the table. Rows that the table keeps and the source does not,
    and deletes of an output topic, would be lost: nobody gives them up unasked.
    """
    by_itself = config.database is not None and config.snapshot.incomplete == "auto"
    refused = not connector.has_windows or refusals(connector.settings, connector.bare(table))
    loses = config.lake.deletes_of(table) == "soft" or config.output is not None
    if not by_itself or refused or loses:
        return False
    made_by = formats.format_of(config.lake)
    return made_by.can_replace(folder_of(config.lake, table), config.lake.options())


class Policies:
    """The policies of tables.

    Args:
        config: has them.
        connector: as it is configured.
        state: the tables as the newest batch left them.
    """

    def __init__(
        self, config: Config, connector: Connector, state: Callable[[], PipelineState]
    ) -> None:
        self._config, self._connector, self._state = config, connector, state
        self.readable: Collection[str] = ()

    def outcome(self, table: str, kind: Kind) -> Outcome:
        """Return the outcome of a change by the table's policy."""

        def policy_of(name: str) -> SchemaPolicy:  # one that is being made gets what comes
            is_made = self._is_made(name) and kind not in CODES.values()
            return FOLLOWS if is_made else self._config.lake.policy_of(name)

        def is_automatic(name: str) -> bool:
            return name in self.readable and can_rebuild(self._config, self._connector, name)

        return outcome_of(policy_of, is_automatic)(table, kind)

    def judged(self, changes: Iterable[Difference]) -> list[Difference]:
        """Return the catalog's differences as the policies have them."""
        return [*judged(changes, self.outcome, self._has_column)]

    def late(self, waiting: Iterable[Difference], state: PipelineState) -> Iterator[Difference]:
        """Yield differences that had to wait, by the present policies; not of tables made anew."""
        for change in waiting:
            entry, kind = state.tables.get(change.table), KINDS[change.kind]
            if change.table in state.left:
                yield change
                continue
            if entry is None or entry.files.rebuild:
                continue
            outcome = self.outcome(change.table, kind)
            if outcome is Outcome.STOP:
                hint = way_on(change.table, kind)
                yield replace(change, action=Action.STOP, refused=True, hint=hint)
            elif outcome is Outcome.REBUILD:
                yield replace(change, action=Action.REBUILD, refused=False, hint="")
            elif change.kind != "column-dropped":
                yield replace(change, action=Action.READ_AGAIN, refused=False, hint="")

    def _is_made(self, table: str) -> bool:
        entry = self._state().tables.get(table)
        return entry is not None and bool(entry.files.rebuild)

    def _has_column(self, table: str, column: str) -> bool:
        """Say whether a table of the lake has a column, or may get it; yes if that is unknown."""
        lake = self._config.lake
        try:
            reader = formats.format_of(lake).reader_of(folder_of(lake, table), lake.options())
            columns = reader.columns()
        except LakemarkError:
            return True
        return columns is None or column in columns
