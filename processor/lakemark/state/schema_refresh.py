"""The catalog asked again, for tables whose records do not fit their schema as it was last read.

Each connector has a catalog of its own, which fails for its tables alone.

The database may be away. Then those tables wait as `errored`, tried again by themselves, and the
others go on: nothing of this ends a batch. Between two failures some time passes without a
question, so that a database that does not answer costs the log a connection's timeout now and then.
Any other table that is retried waits as well between two tries: each reads a slice of its topics
again, while all tables wait for the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Protocol

import structlog

from lakemark.errors import LakemarkError
from lakemark.model.fills import UNSEEN
from lakemark.model.schema import TableSchema
from lakemark.settings.table_id import unqualified
from lakemark.state import tables
from lakemark.state.encoding import Forms
from lakemark.state.tables import PipelineState, TableState

log = structlog.get_logger(__name__)

AGAIN_S: Final = 15.0  # after a failure; a connection may take `database.connect_timeout` to fail
# From one try of a table to the next: the batch that the supervisor makes every 15 s shall not come
# a moment too early.
RETRY_S: Final = 14.0
LONGEST_S: Final = 600.0  # between two questions for a table that the catalog does not have
LOOK_S: Final = 30.0  # between two questions about one whose records have another schema
UNKNOWN: Final = "schema-unknown"
MADE_ANEW: Final = (
    "it was made anew in the source: rows of the table that had its name before may still be here"
)


class Catalog(Protocol):
    """The source of plain JSON tables' schemas."""

    def read(self, names: Sequence[str] | None) -> dict[str, TableSchema]:
        """Return schemas of the named tables, or of all; tables it does not know are absent."""

    @property
    def live(self) -> bool:
        """Say whether asking again can give another answer."""


@dataclass(slots=True)
class Refresh:
    """Asks the catalog again.

    Attributes:
        catalogs: that are asked, by the qualifier of their connectors; of the only one it is empty.
        schemas: by table, as last read: new ones are put there.
        forms: is told of new schemas first.
        clock: seconds that only grow.
        read: tables that were read again and have not been read from Kafka since: records that do
            not fit now never will.
    """

    catalogs: Mapping[str, Catalog]
    schemas: dict[str, TableSchema]
    forms: Forms = field(default_factory=Forms)
    clock: Callable[[], float] = monotonic
    read: set[str] = field(default_factory=set)
    _failures: dict[str, LakemarkError] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)
    _held: dict[str, float] = field(default_factory=dict)
    _waits_s: dict[str, float] = field(default_factory=dict)
    _looks: dict[str, float] = field(default_factory=dict)

    def retries(self, table: str, entry: TableState) -> bool:
        """Say whether an errored table is to be tried again by the batch that begins."""
        if entry.state != tables.ERRORED or not entry.retried or self._waits(table, entry):
            return False
        return self.clock() >= self._held.get(table, 0.0)

    def is_back(self, table: str, entry: TableState) -> bool:
        """Say whether the catalog knows a table now that had stopped for want of a schema.

        It had events and was not there, so it is another table now than that of these events. The
        catalog is asked for it at growing intervals, as long as it is not there.
        """
        if entry.state != tables.ERRORED or entry.code != UNKNOWN or not self.may_ask(table):
            return False
        now = self.clock()
        if now < self._held.get(table, 0.0):
            return False
        wait = self._waits_s[table] = min(LONGEST_S, 2 * self._waits_s.get(table, RETRY_S / 2))
        self._held[table] = now + wait
        try:
            found = self._ask([table])
        except LakemarkError:
            return False
        self.forms.seen(found)
        self.schemas.update(found)
        if table in found:
            del self._waits_s[table], self._held[table]
        return table in found

    def put_off(self, state: PipelineState, before: PipelineState, *, batch_s: float) -> None:
        """Let some batches pass before tables are tried again that failed again in this one.

        The same holds for a table that waits for a look at the catalog: the look lets it go on.

        Args:
            state: the state being made.
            before: the state before the batch.
            batch_s: seconds since the batch began.
        """
        for table, old in before.tables.items():
            entry = state.tables.get(table, old)
            failed = entry.state == tables.ERRORED and entry.since_batch == state.batch
            again = old.state != tables.STREAMING or entry.code == UNSEEN
            if failed and again and not self._waits(table, entry):
                self._held[table] = self.clock() - batch_s + RETRY_S

    def may_ask(self, table: str) -> bool:
        """Say whether the catalog of a table can be asked again."""
        catalog = self.catalogs.get(self._whose(table) or "")
        return catalog is not None and catalog.live

    def _whose(self, table: str) -> str | None:
        """Return the connector of a table, by its qualifier; None if it is of none of these."""
        return next((one for one in self.catalogs if unqualified(one, table) is not None), None)

    def _waits(self, table: str, entry: TableState) -> bool:
        """Say whether a table waits for its catalog, and it is not to be asked yet."""
        connector = self._whose(table) or ""
        failure = self._failures.get(connector)
        return failure is not None and entry.code == failure.code and not self._due(connector)

    def verified(self, names: frozenset[str]) -> frozenset[str]:
        """Return those of the tables whose records are judged by the schemas as they are."""
        return frozenset(n for n in names if n in self.read or not self.may_ask(n))

    def __call__(self, state: PipelineState, needed: Mapping[str, set[str]]) -> None:
        """Read missing schemas; tables that are known then catch up, the others stay errored.

        Columns that the records have and the catalog no longer has are left out from then on. A
        failure of any kind is the tables' own, and is retried.

        Args:
            state: the state being made; the tables are errored in it.
            needed: the tables, with the columns that their schemas lack.
        """
        for connector in dict.fromkeys(map(self._whose, sorted(needed))):
            own = (table for table in needed if self._whose(table) == connector)
            self._read(state, {table: needed[table] for table in own})

    def _read(self, state: PipelineState, needed: Mapping[str, set[str]]) -> None:
        """Read missing schemas of tables of one connector."""
        try:
            found = self._ask(sorted(needed))
        except LakemarkError as failure:
            for table in needed:
                _wait(state.tables[table], table, failure)
            return
        self.forms.seen(found, needed)
        self.schemas.update(found)
        for table, unknown in needed.items():
            if table in found:
                self._known(state, table, unknown)

    def learn(self, read: Mapping[str, TableSchema]) -> None:
        """Take in schemas that snapshots have read, of tables that the stream has not asked for.

        A record's own schema does not tell which columns are char(n): without the catalog's, an
        event would have another key than the row of a chunk.
        """
        new = {table: schema for table, schema in read.items() if table not in self.schemas}
        if new:
            self.forms.seen(new)
            self.schemas.update(new)

    def again(self, table: str) -> None:
        """Read a table's schema again before a person lets it go on: its columns may be mended.

        If the catalog cannot be asked, the schema that was read last holds.
        """
        if not self.may_ask(table):
            return
        try:
            found = self._ask([table])
        except LakemarkError as failure:
            log.warning("table.schema_unread", table=table, code=failure.code, reason=str(failure))
            return
        self.forms.seen(found)
        self.schemas.update(found)

    def look(self, table: str) -> None:
        """Read a table's schema again, if that was not done within the last half a minute."""
        if self.clock() >= self._looks.get(table, 0.0):
            self._looks[table] = self.clock() + LOOK_S
            self.again(table)

    def _ask(self, names: list[str]) -> dict[str, TableSchema]:
        """Ask for tables of one connector."""
        connector = self._whose(names[0])
        if connector is None:
            return {}
        if connector in self._failures and not self._due(connector):
            raise self._failures[connector]
        try:
            found = self.catalogs[connector].read(names)
        except LakemarkError as failure:
            self._failures[connector] = failure
            self._not_before[connector] = self.clock() + AGAIN_S
            raise
        self._failures.pop(connector, None)
        return found

    def _due(self, connector: str) -> bool:
        return self.clock() >= self._not_before.get(connector, 0.0)

    def _known(self, state: PipelineState, table: str, unknown: set[str]) -> None:
        columns = {column.name for column in self.schemas[table].columns}
        gone = unknown - columns
        if gone:
            state.ignorable[table] = sorted({*state.ignorable.get(table, ()), *gone})
            log.warning("table.columns_gone", table=table, columns=sorted(gone))
        log.info("table.schema_read", table=table, columns=len(columns))
        self.read.add(table)
        tables.resume(state, table)


def _wait(entry: TableState, table: str, failure: LakemarkError) -> None:
    """Have a table retried; the catalog's failure is added to its own reason."""
    entry.reason = f"{entry.reason or entry.code}; who knows cannot be asked: {failure.message}"
    entry.code, entry.hint, entry.retried = failure.code, failure.hint, True
    log.warning("table.degraded", table=table, code=failure.code, reason=failure.message)
