"""The watch on the database's catalog: changes that no event tells are found, and followed.

Every `source.watch_interval`, before the query of every start, and when events of a table are not
of its form any more, the catalog is looked at, and compared with what was seen last
(`catalog_changes`). A look has this order of effects:

1. the catalog is read, in one moment;
2. what follows is said in control records: a table gets values, is read again, stops, or goes on;
3. what was seen is kept in the checkpoint, and the next look compares with it.

After a crash between 2 and 3 the same is said once more: a table may be read twice. What changed
while nothing ran is noticed by the first look of the next start.

A table that is gone is remembered: one that is made in its place has none of the copy's rows.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

import msgspec
import structlog
from msgspec import to_builtins

from lakemark import plans
from lakemark.connectors.catalog_changes import (
    Action,
    Cascades,
    CatalogLook,
    Difference,
    TableLook,
    children_of,
)
from lakemark.connectors.catalog_policies import CODES, OutcomeOf
from lakemark.connectors.connector import Connector
from lakemark.connectors.database import Database, DatabaseAccess
from lakemark.connectors.refusals import refusals
from lakemark.connectors.registry import database_of
from lakemark.errors import LakemarkError
from lakemark.kafka import brokers
from lakemark.model import positions
from lakemark.model.fills import UNSEEN, Fill, packed
from lakemark.model.handling_modes import HandlingModes
from lakemark.ops.status import CatalogChange, CatalogNow
from lakemark.settings.config import Config, DatabaseConfig
from lakemark.settings.schema_policy import REFUSED, Outcome
from lakemark.state import control, data_loss
from lakemark.state.policies import Policies, readable
from lakemark.state.tables import ERRORED, PAUSED, PipelineState, TableState

log = structlog.get_logger(__name__)

KEPT: Final = 50  # changes
AT_MOST_EVERY_S: Final = 1.0
LONGEST_VALUE: Final = 64 << 10  # letters: it is in a record, and in the state of each batch
LONGEST_S: Final = 3600.0  # between two rebuilds of a table for the same reason
Word = Literal["nothing", "fill", "read-again", "rebuild", "stop", "dropped"]
WORDS: Final[Mapping[Action, Word]] = {
    Action.NOTHING: "nothing",
    Action.FILL: "fill",
    Action.READ_AGAIN: "read-again",
    Action.REBUILD: "rebuild",
    Action.STOP: "stop",
    Action.GONE: "dropped",
}
STOP: Final = "table-stop"
REBUILD: Final = "table-rebuild"
FILL: Final = "table-fill"
RESUME: Final = "table-resume"


class _Stored(msgspec.Struct, frozen=True):
    """`Seen` as it stands in the checkpoint, before the database reads what is its own."""

    facts: msgspec.Raw
    gone: dict[str, msgspec.Raw] = {}
    changes: tuple[CatalogChange, ...] = ()
    waiting: tuple[Difference, ...] = ()


class Seen(msgspec.Struct, frozen=True):
    """The result of the looks so far, as the checkpoint stores it.

    Attributes:
        facts: the newest look, as far as it is kept.
        gone: tables that were there, and are there no more: forgotten, or as they were while
            `source.tables` alone leaves them out.
        changes: the newest that were found, newest first.
        waiting: policies' decisions on tables that stand still, see `has_to_wait`.
    """

    facts: CatalogLook
    gone: dict[str, TableLook] = {}
    changes: tuple[CatalogChange, ...] = ()
    waiting: tuple[Difference, ...] = ()

    @classmethod
    def of(cls, kept: bytes, database: Database | type[Database]) -> "Seen":
        """Return what was kept as JSON of looks at a database of this kind.

        Raises:
            msgspec.MsgspecError: it is of another form.
        """
        stored = msgspec.json.decode(kept, type=_Stored)
        facts = msgspec.json.decode(stored.facts, type=database.look_form)
        gone = {
            name: msgspec.json.decode(table, type=database.table_form)
            for name, table in stored.gone.items()
        }
        return cls(facts, gone, stored.changes, stored.waiting)

    def known(self, now: CatalogLook, state: PipelineState) -> CatalogLook:
        """Return what `now` is compared with.

        A table that is back counts as another one than went, though it may be the same: nobody has
        looked at it meanwhile, and its events may not have been captured. Those of a table that
        only `source.tables` left out were.
        """
        back = {name: facts for name, facts in self.gone.items() if name in now.tables}
        here = {name: facts for name, facts in self.facts.tables.items() if name not in state.left}
        return self.facts.having({**back, **here})

    @staticmethod
    def after(
        seen: "Seen | None",
        now: CatalogLook,
        state: PipelineState,
        changes: Iterable[CatalogChange] = (),
        waiting: Iterable[Difference] = (),
    ) -> "Seen":
        """Return the facts to store when `now` and the changes in it have been dealt with.

        Of the tables that are gone those of which something has come.

        Args:
            seen: what was kept before; None for nothing.
            now: the look of now.
            state: the tables as they are now.
            changes: as people are told, newest first.
            waiting: what is said later.
        """
        were = {**seen.gone, **seen.facts.tables} if seen else {}
        names = {*state.tables, *state.left}
        captured = {name for name, left in state.left.items() if left.captured}
        return Seen(
            now.kept(seen.known(now, state) if seen else None),
            {
                name: facts if name in captured else facts.forgotten()
                for name, facts in were.items()
                if name in names and name not in now.tables
            },
            (*changes, *(seen.changes if seen else ()))[:KEPT],
            tuple(waiting),
        )


class Store(Protocol):
    """The part of `Checkpoint` that stores the facts of the newest look."""

    def catalog(self, connector: str = "", /) -> bytes | None:
        """Return the bytes stored for a connector, by its qualifier; None if nothing was."""

    def note_catalog(self, seen: bytes, connector: str = "", /) -> None:
        """Store these bytes instead."""

    def check_owner(self) -> None:
        """Raise unless this process still runs the pipeline."""


def _which(one: Difference | CatalogChange) -> tuple[str, str, str]:
    what = one.what if isinstance(one, Difference) else one.reason
    return one.table, one.kind, what


def _now_ms() -> int:
    return int(time.time() * 1000)


NO_FILLS: Final[Mapping[str, Sequence[Fill]]] = MappingProxyType({})
NO_REASONS: Final[Mapping[str, str]] = MappingProxyType({})
Record = tuple[str, str, dict[str, Any]]
"""A control record: its type, the table, and its other fields."""


def records(
    changes: Sequence[Difference],
    state: PipelineState,
    *,
    there: Collection[str],
    commanded: Collection[str] = (),
    fills: Mapping[str, Sequence[Fill]] = NO_FILLS,
    waiting: Collection[str] = (),
    mended: Mapping[str, str] = NO_REASONS,
    outcome: OutcomeOf = lambda _table, _kind: Outcome.STOP,
) -> Iterator[Record]:
    """Yield the control records for differences of the catalog, in the order of writing.

    Args:
        changes: by table, as the policies have them.
        state: the tables as they are now. One that is paused stays so, whatever its catalog says;
            so does one that waits for a person for another reason.
        there: the tables that the database has.
        commanded: tables that were told to stop or go on since `state`.
        fills: by table, what its older rows get.
        waiting: tables that have waited for this look, see `fills.UNSEEN`.
        mended: codes with which tables stop until the catalog no longer gives them; why the tables
            are read again then.
        outcome: what the tables' policies say of changes that they cannot follow.
    """
    stopped: set[str] = set()
    for table, group in groupby(changes, key=lambda change: change.table):
        entry = state.tables.get(table)
        several = [
            change
            for change in group
            if not _has_key(entry, change.key) and not has_to_wait(change, entry)
        ]
        stops = [change for change in several if change.action is Action.STOP]
        if stops:
            stopped.add(table)
        if entry is None:  # nothing of it is wrong yet, unless the first delete would be lost
            stops = [change for change in stops if change.at_once]
        if table in commanded:
            stops = [change for change in stops if change.refused]
        if stops and _may_stop(table, state):
            code = REFUSED if stops[0].refused else stops[0].kind
            yield STOP, table, {"code": code, "reason": stops[0].what, "hint": stops[0].hint}
        anew = [change for change in several if change.action is Action.REBUILD]
        again = [change for change in several if change.action is Action.READ_AGAIN]
        if table in fills:
            given = [change for change in several if change.action is Action.FILL]
            yield FILL, table, {"reason": _reasons(given), "fills": to_builtins(fills[table])}
        if again or anew:  # also of a table of which nothing came: it may be read just now
            yield data_loss.RESNAPSHOT, table, {"reason": _reasons([*again, *anew])}
        if anew and entry is not None:
            code = next((change.kind for change in anew if change.kind in CODES), "")
            yield REBUILD, table, {"reason": _reasons(anew), "code": code, "automatic": True}
    errored = {
        table: entry
        for table, entry in sorted(state.tables.items())
        if entry.state == ERRORED and table in there and table not in {*stopped, *commanded}
    }
    yield from _going_on(errored, state.regressed, waiting, mended, outcome)


def _going_on(
    errored: Mapping[str, TableState],
    regressed: Collection[str],
    waiting: Collection[str],
    mended: Mapping[str, str],
    outcome: OutcomeOf,
) -> Iterator[Record]:
    """Yield the records that let tables go on that stopped for a reason which holds no more."""
    for table, entry in errored.items():
        if entry.code in mended:
            yield data_loss.RESNAPSHOT, table, {"reason": mended[entry.code]}
            yield RESUME, table, {"code": entry.code}
        if entry.code == UNSEEN and table in waiting:
            yield RESUME, table, {"code": UNSEEN}
        kind = CODES.get(entry.code)
        went_back = any(topic in regressed for topic in entry.topics)
        if kind and not went_back and outcome(table, kind) is Outcome.REBUILD:
            more = {"reason": entry.reason, "code": entry.code, "automatic": True}
            yield REBUILD, table, more


def _on_their_way(
    given: Mapping[str, frozenset[str]], state: PipelineState
) -> dict[str, frozenset[str]]:
    """Return, by table, the columns whose values for older rows no batch has taken yet."""
    left = {
        table: columns - {one.column for one in state.tables[table].repair.fills}
        for table, columns in given.items()
        if table in state.tables
    }
    return {table: columns for table, columns in left.items() if columns}


def _reasons(changes: Iterable[Difference]) -> str:
    return "; ".join(dict.fromkeys(change.what for change in changes))


def has_to_wait(change: Difference, entry: TableState | None, *, is_left: bool = False) -> bool:
    """Say whether a policy's decision has to wait: the table stands still for another reason.

    The catalog shows such a change once: the look after the one in which the table runs again
    carries the decision out.

    Args:
        change: as the policy has it.
        entry: the table; None if nothing of it came yet.
        is_left: whether the configuration leaves it out.
    """
    is_word = change.refused or (change.action is Action.REBUILD and change.kind not in CODES)
    stands = entry is not None and not entry.runs()
    return is_word and (is_left or stands)


def _has_key(entry: TableState | None, key: Sequence[str]) -> bool:
    """Say whether a new key changes nothing: the rows have it already, or there are no rows yet.

    Events may have told of the key first, and somebody may have seen to the table since.
    """
    return (
        bool(key)
        and entry is not None
        and (not entry.files.key or set(entry.files.key) == set(key))
    )


def _may_stop(table: str, state: PipelineState) -> bool:
    entry = state.tables.get(table)
    if table in state.left:
        return False
    return entry is None or entry.state not in {PAUSED, ERRORED} or entry.retried


class CatalogWatch:
    """Looks at the catalog; one thread at a time.

    Its event `looked` is set when the first look is over, whatever came of it.

    Args:
        config: says where the database is.
        connector: as it is configured.
        store: where what was seen is kept.
        state: the tables as the newest batch left them.
        tell: is told what a look has found, for people.

    Attributes:
        newest: when the newest successful look began, by a clock that only grows, and where the log
            ended after it.
    """

    def __init__(
        self,
        config: Config,
        connector: Connector,
        store: Store,
        state: Callable[[], PipelineState],
        tell: Callable[[CatalogNow], None] = lambda _: None,
    ) -> None:
        self._config, self._connector, self._store = config, connector, store
        self._state, self._tell = state, tell
        self.looked = threading.Event()
        self._told = CatalogNow()
        self._standing: set[tuple[str, str, str]] | None = None
        self._tables: frozenset[str] = frozenset()
        self._columns: Mapping[str, frozenset[str]] = {}
        self._given: Mapping[str, frozenset[str]] = {}
        self._numerics: Mapping[str, frozenset[str]] = {}
        self._children: Mapping[str, Cascades] = {}
        self._said: tuple[int, set[str]] = (-1, set())
        self._failure = ""
        self._soon = threading.Event()
        self._rebuilds: dict[str, tuple[int, float]] = {}
        self._policies = Policies(config, connector, state)
        self.newest: tuple[float, bytes] | None = None

    def look_soon(self) -> None:
        """Have the catalog looked at before the interval ends: events show that it changed."""
        self._soon.set()

    def has_seen(self, table: str) -> bool:
        """Say whether a table was looked at before: only then is a later change of it found."""
        return table in self._tables

    def columns(self, state: PipelineState) -> Mapping[str, frozenset[str]]:
        """Return the columns, by table, of tables that may wait for a look when they get others.

        It is empty while the database does not answer: nothing waits for it then. A column whose
        value for older rows is on its way through the control topic is not among them.

        Args:
            state: of the batch that is planned.
        """
        given = _on_their_way(self._given, state)
        return {name: found - given.get(name, set()) for name, found in self._columns.items()}

    def numerics(self) -> Mapping[str, frozenset[str]]:
        """Return columns of type numeric, by table, as the newest successful look found them."""
        return self._numerics

    def children(self) -> Mapping[str, Cascades]:
        """Return the tables that change without an event, by the table whose events tell it.

        What was kept of an earlier start counts until the first successful look.
        """
        return self._children

    def look(self) -> list[Difference]:
        """Look once, write the control records that follow, and store the facts.

        Raises:
            LakemarkError: the database or the brokers are away: nothing was stored.
        """
        if self._config.database is None:
            return []
        database = self._ask(self._config.database)
        seen = self._seen(database)
        if seen is not None and not self._tables:
            self._children = children_of(seen.facts)
        entries = self._state().tables.items()
        waiting = [name for name, entry in entries if entry.code == UNSEEN]
        begun = time.monotonic()
        now = database.look(
            lambda name: name in self._connector.tables and name != self._connector.signal_table,
            before=seen.facts if seen else None,
        )
        state = self._state()
        before = seen.known(now, state) if seen else None
        keys = self._keys(now)
        self._policies.readable = readable(now, keys)
        self.newest = begun, positions.of_epoch(self._epoch(state), now.end)
        changes = self._policies.judged(database.differences(before, now, source_key=keys))
        fills = self._fills(database, before, now, changes, state)
        changes = [
            replace(change, action=Action.FILL, hint="")
            if change.table in fills and change.action is Action.READ_AGAIN
            else change
            for change in changes
        ]
        late = [] if seen is None else [*self._policies.late(seen.waiting, state)]
        every = sorted([*late, *changes], key=lambda change: change.table)
        self._log(changes)
        self._numerics = {name: table.numerics for name, table in now.tables.items()}
        self._children = children_of(now)
        self._say(every, now, state, fills=fills, waiting=waiting, mended=database.mended)
        wait = [
            change
            for change in every
            if has_to_wait(
                change, state.tables.get(change.table), is_left=change.table in state.left
            )
        ]
        noted = self._noted(changes, seen)
        after = Seen.after(seen, now, state, noted, wait)
        if after != seen:
            self._store.note_catalog(msgspec.json.encode(after), self._connector.qualifier)
        self._tables = frozenset(now.tables)
        given = _on_their_way(self._given, state)
        for table, several in fills.items():
            columns = {one.column for one in several}
            given[table] = given.get(table, frozenset()) | columns
        self._given = given
        self._columns = {
            name: frozenset(table.column_names)
            for name, table in now.tables.items()
            if table.may_fill
        }
        self._standing = {_which(one) for one in changes if one.action is Action.STOP}
        self._told = CatalogNow(_now_ms(), changes=after.changes)
        self._tell(self._told)
        return changes

    def _noted(self, changes: Sequence[Difference], seen: Seen | None) -> list[CatalogChange]:
        """Return the changes to show to people; one that lasts is shown once, while it lasts."""
        shown = self._standing
        if shown is None:
            shown = {_which(one) for one in seen.changes if one.action == "stop"} if seen else set()
        now = _now_ms()
        return [
            CatalogChange(one.table, one.kind, WORDS[one.action], one.what, one.hint, now)
            for one in changes
            if one.action is not Action.STOP or _which(one) not in shown
        ]

    def _keys(self, now: CatalogLook) -> Mapping[str, Sequence[str]]:
        """Return the keys that the connector is configured to send, by table."""
        return {
            name: key
            for name, table in now.tables.items()
            if (key := self._connector.key_of(name, table.column_names))
        }

    def _seen(self, database: Database) -> Seen | None:
        blob = self._store.catalog(self._connector.qualifier)
        try:
            return Seen.of(blob, database) if blob else None
        except msgspec.MsgspecError as error:
            log.warning("catalog.unreadable_look", reason=str(error))
            return None

    def _with_offsets(self, record: Record, state: PipelineState) -> Record:
        """Add to a rebuild the ends of the table's topics: what comes before them it leaves out.

        Raises:
            DependencyError: the brokers are away.
        """
        kind, table, more = record
        entry = state.tables.get(table)
        if kind != REBUILD or entry is None:
            return record
        return kind, table, more | {"offsets": brokers.end_offsets(self._config, entry.topics)}

    def _log(self, changes: Sequence[Difference]) -> None:
        for change in changes:
            if change.action is Action.STOP:  # those come with each look
                continue
            log.info(
                "catalog.changed", table=change.table, kind=change.kind,
                action=change.action.name.lower(), what=change.what, hint=change.hint,
            )  # fmt: skip

    def _fills(
        self,
        database: Database,
        before: CatalogLook | None,
        now: CatalogLook,
        changes: Sequence[Difference],
        state: PipelineState,
    ) -> dict[str, list[Fill]]:
        """Return the values that older rows get, by table, where only columns were added."""
        by_table: dict[str, list[Fill]] = {}
        for table, group in groupby(changes, key=lambda change: change.table):
            entry, facts = state.tables.get(table), now.tables.get(table)
            former = before.tables.get(table) if before is not None else None
            several = list(group)
            if entry is None or facts is None or former is None or table in state.left:
                continue
            if not plans.can_fill(self._config, table, entry):
                continue
            if self._policies.outcome(table, "add-column") is not Outcome.FOLLOW:
                continue
            if database.are_fills(former, facts, several):
                upto = positions.of_epoch(self._epoch(state), now.end)
                fills = self._values(database, former, facts, several, upto)
                if fills:
                    by_table[table] = fills
        return by_table

    def _epoch(self, state: PipelineState) -> int:
        epochs = state.log_of(self._connector.qualifier).epochs
        return positions.epoch_number(self._connector.kind, len(epochs))

    def _values(
        self,
        database: Database,
        former: TableLook,
        facts: TableLook,
        changes: Sequence[Difference],
        upto: bytes,
    ) -> list[Fill] | None:
        """Return new columns' values in older rows; None unless events would bring the same."""
        lacking = [change for change in changes if change.action is Action.READ_AGAIN]
        missing = {c.column: c.fill for c in lacking if not c.other and c.fill is not None}
        own = self._connector.bare(facts.name)
        if refusals(self._connector.settings, own, facts.column_names):
            return None
        try:
            values = database.missing_values(facts, missing)
        except LakemarkError as error:
            log.warning("catalog.no_values", table=facts.name, code=error.code)
            return None
        fills = []
        for one in lacking:
            cell = values.get(one.column)
            value = "" if one.other or cell is None else packed(cell)
            is_told = one.column in values and bool(one.other or value)
            if not is_told or len(value) > LONGEST_VALUE:
                return None
            fills.append(Fill(one.column, upto.hex(), former.column_names, value, one.other))
        return fills

    def _ask(self, database: DatabaseConfig) -> Database:
        settings = self._connector.settings
        modes = HandlingModes.from_connector(settings)
        qualifier = self._connector.qualifier
        return database_of(DatabaseAccess(database, modes, settings, qualifier=qualifier))

    def _say(
        self,
        changes: Sequence[Difference],
        now: CatalogLook,
        state: PipelineState,
        *,
        fills: Mapping[str, Sequence[Fill]],
        waiting: Collection[str],
        mended: Mapping[str, str],
    ) -> None:
        batch, told = self._said
        told = told if batch == state.batch else set()
        pending = list(
            records(
                changes,
                state,
                there=now.tables,
                commanded=told,
                fills=fills,
                waiting=waiting,
                mended=mended,
                outcome=self._policies.outcome,
            )
        )
        pending = [one for one in pending if self._is_due(one)]
        if pending:
            self._store.check_owner()
            control.say(self._config, [self._with_offsets(one, state) for one in pending])
            for kind, table, more in pending:
                if kind == REBUILD and more["code"]:
                    self._note_rebuild(table)
            obeyed = {
                table for kind, table, _ in pending if kind not in {data_loss.RESNAPSHOT, FILL}
            }
            self._said = state.batch, told | obeyed

    def _is_due(self, record: Record) -> bool:
        """Say whether a record is to be written now.

        A table that a rebuild does not help is rebuilt again and again, at growing intervals.
        """
        kind, table, more = record
        _, due = self._rebuilds.get(table, (0, 0.0))
        return kind != REBUILD or not more["code"] or time.monotonic() >= due

    def _note_rebuild(self, table: str) -> None:
        times, _ = self._rebuilds.get(table, (0, 0.0))
        first_s = self._config.source.watch_interval.total_seconds()
        wait_s = min(LONGEST_S, first_s * float(1 << min(times, 30)))
        self._rebuilds[table] = times + 1, time.monotonic() + wait_s

    def try_to_look(self) -> None:
        """Look; log a failure once, the next look makes up for it."""
        try:
            self.look()
        except LakemarkError as error:
            if self._failure != error.code:
                log.warning("catalog.not_seen", code=error.code, reason=error.message)
            self._failure, self._columns = error.code, {}
            self._told = msgspec.structs.replace(self._told, reason=error.message)
            self._tell(self._told)
        except Exception:
            self._columns = {}
            log.exception("catalog.internal_error")
        else:
            self._failure = ""

    @contextmanager
    def running(self) -> Iterator["CatalogWatch"]:
        """Look now, and then every `source.watch_interval` while the block runs, in a thread."""
        if self._config.database is None:
            self.looked.set()
            yield self
            return
        stopping = threading.Event()

        def keep_looking() -> None:
            self.try_to_look()
            self.looked.set()
            interval = self._config.source.watch_interval.total_seconds()
            while not stopping.wait(min(AT_MOST_EVERY_S, interval)):
                self._soon.wait(max(0.0, interval - AT_MOST_EVERY_S))
                self._soon.clear()
                if not stopping.is_set():
                    self.try_to_look()

        thread = threading.Thread(target=keep_looking, name="catalog", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stopping.set()
            self.look_soon()
            thread.join(timeout=5)
