"""Rows and statements in any order of the topics: every row is read by the columns that it had.

A log of rows and statements, and a connector that sends rows to one topic and statements to another.
The stream takes both in batches, cut anywhere; the catalog is read and looked at at any time. Each
row is an insert of its own key, so what became of it can be seen.
"""

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import example, given, settings

from lakemark.connectors.mysql import positions as binlog
from lakemark.connectors.mysql.told_definitions import definitions
from lakemark.converters.registry import converter_of
from lakemark.model import positions
from lakemark.model.decoding import ANY_CONVERTER, AppliedPosition, Records, StretchPlan
from lakemark.model.definitions import Definition
from lakemark.model.events import SourceIdentity
from lakemark.source.decoder import decode_range
from lakemark.state.table_history import TableHistory
from tests.kit import told_tables
from tests.kit.told_tables import KINDS, MODES, SCHEMA_TOPIC, TABLE, TOPIC, catalog_of, value_of

IDENTITY = SourceIdentity("mysql", "shop")
EPOCH = positions.epoch_number("mysql", 0)
STEP = 100  # bytes of an entry of the log


def records(topic, values, first, keys=None):
    count = len(values)
    offsets = list(range(first, first + count))
    return Records(topic, 0, offsets, keys or [None] * count, values, [None] * count)


def place(pos):
    return binlog.pack(EPOCH, 1, pos)


@dataclass
class Log:
    """The log of a server with one table, and the two topics of its connector.

    Attributes:
        columns: of the table now.
        rows, statements: the records of the two topics.
        truth: by key, the row as it was written.
    """

    columns: dict[str, str]
    end: int = STEP
    rows: list[tuple[int, bytes, int]] = field(default_factory=list)
    statements: list[tuple[int, bytes]] = field(default_factory=list)
    truth: dict[int, dict[str, Any]] = field(default_factory=dict)

    def insert(self, number: int) -> None:
        key = len(self.rows)
        values = {name: value_of(kind, number) for name, kind in self.columns.items()}
        self.truth[key] = values
        record = told_tables.event(self.end, key, self.columns, values)
        self.rows.append((self.end, record, key))
        self.end += STEP

    def alter(self, columns: dict[str, str]) -> None:
        self.columns = columns
        self.statements.append((self.end, told_tables.statement(self.end, columns)))
        self.end += STEP


@dataclass
class Stream:
    """Batches over the two topics, as the driver and its tasks take them.

    Attributes:
        log: where the records come from.
        ahead: whether the catalog's records are known as early as the events behind them.
        read: of the table, by key.
        doubted: whether the table is to be read again.
        stopped: how often it had stopped, as events did not fit.
        ignorable: columns that the catalog did not have then.
    """

    log: Log
    history: TableHistory = field(default_factory=TableHistory)
    schema: Any = None
    clock: float = 0.0
    taken: int = 0
    told: int = 0
    reached: AppliedPosition = field(default_factory=AppliedPosition)
    read: dict[int, dict[str, Any]] = field(default_factory=dict)
    doubted: bool = False
    stopped: int = 0
    ignorable: frozenset[str] = frozenset()

    def now(self) -> float:
        self.clock += 1
        return self.clock

    def ask(self) -> None:
        """The catalog is read."""
        self.schema = catalog_of(self.log.columns)
        self.history.has(TABLE, self.schema, now=self.now())

    def look(self) -> None:
        begun = self.now()
        self.history.looked(begun, place(self.log.end))

    def restart(self) -> None:
        """Another process: what is stored is known, and the catalog is read."""
        self.history = TableHistory.of(self.history.to_json(), self.history.modes)
        self.ask()

    def batch(self, rows: int, statements: int) -> None:
        """Take rows up to a number, and statements up to another one."""
        self._tell(statements)
        found = self.log.rows[self.taken : rows]
        first, self.taken = self.taken, max(rows, self.taken)
        if not found:
            return
        done = self._decoded(found, first, again=())
        for _ in range(2 if done.stopped() else 0):
            self.stopped += 1
            self.ask()
            unknown = done.tables[TABLE].unknown_columns
            self.ignorable |= unknown - {*self.schema.by_name}
            done = self._decoded(found, first, again=(TABLE,))
        assert not done.stopped()
        for table, packet in done.packets:
            assert table == TABLE
            self._apply(packet)
        self.reached = done.applied_position
        self.history.passed([(TABLE, self.reached.position)])

    def _tell(self, upto: int) -> None:
        first, new = self.told, self.log.statements[self.told : upto]
        self.told = max(upto, self.told)
        plan = StretchPlan(IDENTITY, MODES).of_epoch(0)
        for change in converter_of(ANY_CONVERTER).schema_changes(
            records(SCHEMA_TOPIC, [value for _, value in new], first), plan
        ):
            for table, schema in definitions(change.tables, MODES, connector="mysql"):
                told = Definition(change.position, schema, told=True)
                self.doubted |= self.history.says(
                    table, told, reached=lambda _: self.reached.position
                )

    def _decoded(self, found, first, again):
        schemas = {TABLE: self.schema}
        plan = StretchPlan(
            IDENTITY,
            MODES,
            schemas,
            ignorable={TABLE: self.ignorable},
            known_keys={TABLE: ("id",)},
            applied={(TOPIC, 0): self.reached},
            verified=frozenset(again),
            max_bad_share=1.0,
            definitions=self.history.of_batch(schemas, again),
        ).of_epoch(0)
        values = [value for _, value, _ in found]
        keys = [told_tables.key_of(key) for _, _, key in found]
        return decode_range(records(TOPIC, values, first, keys), plan)

    def _apply(self, packet: pa.Table) -> None:
        for row in packet.column("row").to_pylist():
            if row is not None:
                self.read[row.pop("id")] = row


NUMBERS = ("whole", "days", "millis", "micros", "signed")  # written alike
COLUMNS = st.one_of(
    st.fixed_dictionaries({"a": st.sampled_from(NUMBERS)}),
    st.fixed_dictionaries(
        {"a": st.sampled_from(NUMBERS), "b": st.sampled_from(("cents", "exact", "text"))}
    ),
    st.fixed_dictionaries({"b": st.sampled_from(sorted(KINDS))}),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, 9999)),
        st.tuples(st.just("insert"), st.integers(0, 9999)),
        st.tuples(st.just("alter"), COLUMNS),
        st.tuples(st.sampled_from(["ask", "look", "restart"]), st.none()),
        st.tuples(st.just("batch"), st.tuples(st.integers(0, 4), st.integers(0, 2))),
        st.tuples(st.just("batch"), st.tuples(st.integers(1, 4), st.just(0))),
    ),
    min_size=10,
    max_size=60,
)


def run(columns, steps, *, statements_of):
    """The stream at the end of a history.

    Args:
        columns: of the table at first.
        steps: of the history.
        statements_of: (log, rows taken, chosen) -> how many statements the batch knows.
    """
    log = Log(dict(columns))
    stream = Stream(log)
    stream.ask()
    for what, how in [*steps, ("batch", (99, 99)), ("batch", (99, 99))]:
        if what == "insert":
            log.insert(how)
        elif what == "alter":
            log.alter(dict(how))
        elif what == "batch":
            rows = min(len(log.rows), stream.taken + how[0])
            stream.batch(rows, statements_of(log, rows, stream.told, how[1]))
        else:
            getattr(stream, what)()
    assert stream.taken == len(log.rows)
    assert stream.told == len(log.statements)
    return stream


def needed(log, rows):
    """The statements before the last of so many rows."""
    end = log.rows[rows - 1][0] if rows else 0
    return sum(pos <= end for pos, _ in log.statements)


@settings(max_examples=300)
@given(COLUMNS, STEPS)
def test_rows_are_read_by_the_columns_they_had_where_statements_come_in_time(columns, steps):
    stream = run(
        columns,
        steps,
        statements_of=lambda log, rows, told, more: min(
            len(log.statements), max(told, needed(log, rows)) + more
        ),
    )
    assert stream.read == stream.log.truth
    assert not stream.doubted
    assert not stream.stopped


ROW = ("insert", 0)
LOOKED = [("ask", None), ("look", None)]
FOUND_BY_A_LOOK = [ROW, ("batch", (1, 0)), ("alter", {"a": "days"}), ROW, *LOOKED, ROW]


@settings(max_examples=300)
@example(  # one that does not fit has the one before it, of its batch, read by the catalog, too
    {"a": "whole"},
    [ROW, ROW, ("batch", (1, 0)), ("alter", {"b": "cents"}), ROW, *LOOKED, ROW, ("batch", (3, 0))],
)
@example({"a": "whole"}, [*FOUND_BY_A_LOOK, ("batch", (2, 0))])
@example({"a": "whole"}, [*FOUND_BY_A_LOOK, ("batch", (2, 0)), ("restart", None)])
@given(COLUMNS, STEPS)
def test_what_was_read_otherwise_is_doubted_in_whatever_order_topics_come(columns, steps):
    stream = run(
        columns,
        steps,
        statements_of=lambda log, _rows, told, more: min(len(log.statements), told + more),
    )
    assert stream.doubted or stream.read == stream.log.truth


@settings(max_examples=300)
@given(COLUMNS, STEPS)
def test_what_is_kept_is_bounded_by_what_is_under_way(columns, steps):
    stream = run(
        columns,
        steps,
        statements_of=lambda log, rows, told, more: min(
            len(log.statements), max(told, needed(log, rows)) + more
        ),
    )
    behind = len(stream.log.statements) - needed(stream.log, len(stream.log.rows))
    assert len(stream.history.tables[TABLE]) <= 2 + behind
