"""Order-like change events as Debezium's connectors write them, with the rows they leave.

    orders = Orders("orders", events=1_000_000, keys=200_000)
    for key, value in orders.records(): ...
    orders.expected            # id of every row that is left -> number of the event that wrote it

Everything is a function of the arguments: the same arguments give the same bytes. Positions
(`lsn` and `sequence`, or `file` and `pos`) rise strictly with the event's number, so they do in
every partition too. Each event is a transaction of its own.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

CONNECTOR: Final = "bench"
SCHEMA: Final = "public"
FIRST_LSN: Final = 26_749_816
FIRST_MS: Final = 1_767_225_600_000  # 2026-01-01T00:00:00Z
MIX: Final = {"u": 0.70, "c": 0.25, "d": 0.05}
COLUMNS: Final = {
    "id": "bigint not null",
    "customer_id": "bigint not null",
    "status": "text not null",
    "quantity": "integer not null",
    "amount": "numeric(12,2) not null",
    "updated_at": "timestamp not null",
    "note": "text",
}
ARROW: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("customer_id", pa.int64()),
        ("status", pa.string()),
        ("quantity", pa.int32()),
        ("amount", pa.decimal128(12, 2)),
        ("updated_at", pa.timestamp("us")),
        ("note", pa.string()),
    ]
)
HEADERS: Final = [
    ("__debezium.context.connectorLogicalName", CONNECTOR.encode()),
    ("__debezium.context.taskId", b"0"),
    ("__debezium.context.connectorName", b"postgresql"),
    ("__debezium.context.runId", b"01a21929-a704-7a34-941f-87719236e97f"),
]
"""Of every record, unless `extended.headers.enabled` is false."""
SLICE: Final = 100_000  # rows that are made at once
HOT: Final = 0.01  # of the rows are hot, if any
STATUS: Final = ("new", "paid", "packed", "shipped", "delivered", "returned")
NOTES: Final = (
    "null",
    '"leave at the door"',
    '"gift"',
    '"ring twice"',
    '"fragil \u2013 b\u00e4rtig"',
)

Row = tuple[int, int, str, int, int, int, str | None]


@dataclass(frozen=True, slots=True)
class Form:
    """How a product's connector writes what an event comes from.

    Attributes:
        connector: as the events name its kind.
        name: its logical name, with which its topics begin.
        schema: of the tables; in MariaDB, their database.
        source: the members `source` and `transaction` of an event, by its number, its time in
            milliseconds, its table, and whether fields are in it that no pipeline reads.
        label: how reports tell it from PostgreSQL's in JSON.
    """

    connector: str
    name: str
    schema: str
    source: Callable[[int, int, str, bool], str]
    label: str = ""

    def topic_of(self, table: str) -> str:
        """The topic that the connector would write a table's events to."""
        return f"{self.name}.{self.schema}.{table}"


def _of_postgres(n: int, ms: int, table: str, full: bool, name: str = CONNECTOR) -> str:  # noqa: FBT001
    lsn, version = FIRST_LSN + n * 184, '"version":"3.7.0.Final",' if full else ""
    origin = ',"xmin":null,"origin":null,"origin_lsn":null' if full else ""
    return (
        f'"source":{{{version}"connector":"postgresql",'
        f'"name":"{name}","ts_ms":{ms},"snapshot":null,"db":"shop",'
        f'"sequence":"[\\"{lsn}\\",\\"{lsn}\\"]","ts_us":{ms}000,"ts_ns":{ms}000000,'
        f'"schema":"{SCHEMA}","table":"{table}","txId":{1000 + n},"lsn":{lsn}{origin}}}'
    )


def _of_mariadb(n: int, ms: int, table: str, full: bool) -> str:  # noqa: FBT001
    gtid, s = f"0-101-{n + 1}", ms // 1000 * 1000  # MariaDB's log has whole seconds
    version, nothing = '"version":"3.5.0.Final",', ',"thread":null,"query":null'
    return (
        f'"source":{{{version if full else ""}"connector":"mariadb",'
        f'"name":"{MARIADB_NAME}","ts_ms":{s},"snapshot":null,"db":"{MARIADB_SCHEMA}",'
        f'"sequence":null,"ts_us":{s}000,"ts_ns":{s}000000,'
        f'"table":"{table}","server_id":101,"gtid":"{gtid}","file":"binlog.000001",'
        f'"pos":{342 + n * 570},"row":0{nothing if full else ""}}},'
        f'"transaction":{{"id":"{gtid}","total_order":1,"data_collection_order":1}}'
    )


MARIADB_NAME: Final = "mariadb"
MARIADB_SCHEMA: Final = "shop"
POSTGRES: Final = Form("postgresql", CONNECTOR, SCHEMA, _of_postgres)
MARIADB: Final = Form("mariadb", MARIADB_NAME, MARIADB_SCHEMA, _of_mariadb, "mariadb")
AVRO_NAME: Final = "avro"
AVRO: Final = Form("postgresql", AVRO_NAME, SCHEMA, partial(_of_postgres, name=AVRO_NAME), "avro")
"""What PostgreSQL's connector writes with a registry of schemas: see `avro_events`."""


class Orders:
    """The events of one table.

    Args:
        table: name of the table.
        events: how many.
        keys: most rows alive at a time; beyond it an insert becomes an update.
        start: how many rows, of ids 1 to `start`, the table has before the first event. They are
            no events: whoever takes part fills the table by `base`.
        hot: share of the updates and deletes that go to the same 1 % of the rows, which are spread
            over all of the table; 0 spreads them evenly over all rows.
        mix: shares of the operations. Every fifth insert takes the id of a deleted row.
        before: whether updates and deletes have the row as it was, as with REPLICA IDENTITY FULL;
            else updates have none, and deletes only the key.
        full: the whole envelope as Debezium 3.7 writes it (about 565 bytes a value) instead of
            one without the fields that no pipeline reads (about 450 bytes).
        seed: of the random numbers.

    Attributes:
        table: the table's name.
        form: how the events are written.
        op: operation of each event.
        id: key of each event.
        expected: number of the newest event of every row that is left, by id.
    """

    def __init__(
        self,
        table: str,
        *,
        events: int,
        keys: int,
        start: int = 0,
        hot: float = 0.0,
        mix: dict[str, float] | None = None,
        before: bool = False,
        full: bool = False,
        seed: int = 7,
    ) -> None:
        self.table, self.start = table, start
        random = np.random.default_rng(seed)
        shares = mix or MIX
        wanted = random.choice(list(shares), size=events, p=list(shares.values())).tolist()
        draws = random.random(events)
        if hot:
            draws = _heated(draws, hot, np.random.default_rng(seed + 1).random(events))
        self.op, self.id, self.expected = _history(start, wanted, keys, draws)
        self._last = _last(self.op, self.id, start) if before else [None] * events
        self._customer = random.integers(1, 1 + max(1, keys // 4), events).tolist()
        self._status = random.integers(0, len(STATUS), events).tolist()
        self._quantity = random.integers(1, 20, events).tolist()
        self._cents = random.integers(100, 10_000_000, events).tolist()
        self._note = random.integers(0, len(NOTES), events).tolist()
        self._full = full
        self.form = POSTGRES

    def __len__(self) -> int:
        return len(self.id)

    def in_form(self, form: Form) -> "Orders":
        """The same events, as another product's connector writes them."""
        other = copy.copy(self)
        other.form = form
        return other

    def records(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the events from `start` to before `stop`, as Kafka gets them."""
        source, table, full = self.form.source, self.table, self._full or self.form is AVRO
        for n in range(start, len(self.id) if stop is None else stop):
            key, op, ms = self.id[n], self.op[n], FIRST_MS + n
            times = f'"ts_ms":{ms},"ts_us":{ms}000,"ts_ns":{ms}000000' if full else f'"ts_ms":{ms}'
            of = source(n, ms, table, full)
            value = f'{{"before":{self._images(n)},{of},"op":"{op}",{times}}}'
            yield b'{"id":%d}' % key, value.encode()

    def _images(self, n: int) -> str:
        """Before and after; with the default replica identity a delete keeps only the key."""
        key, op, last = self.id[n], self.op[n], self._last[n]
        if last is not None:
            before = _image(self.row(last) if last >= 0 else _base_row(key))
        elif op == "d":
            before = _image((key, 0, "", 0, 0, 0, None))
        else:
            before = "null"
        return f'{before},"after":{"null" if op == "d" else _image(self.row(n))}'

    def row(self, n: int) -> Row:
        """The row that event `n` writes: amount in cents, time in microseconds since 1970."""
        note = NOTES[self._note[n]]
        return (
            self.id[n],
            self._customer[n],
            STATUS[self._status[n]],
            self._quantity[n],
            self._cents[n],
            (FIRST_MS + n) * 1000,
            None if note == "null" else note[1:-1],
        )

    def rows(self) -> pa.Table:
        """The rows that are left, by id, with the types of `ARROW`."""
        written = as_table([self.row(n) for _, n in sorted(self.expected.items())])
        if not self.start:
            return written
        kept = np.ones(self.start + 1, dtype=bool)
        kept[[0, *(key for key in self.id if key <= self.start)]] = False
        untouched = pa.Table.from_batches(
            batch.filter(pa.array(kept[batch.column("id").to_numpy()])) for batch in self.base()
        )
        return pa.concat_tables([untouched, written]).sort_by("id")

    def base(self) -> pa.RecordBatchReader:
        """The rows that the table has before the first event, by id."""
        ends = range(1, self.start + 1, SLICE)
        parts = (_base(np.arange(at, min(at + SLICE, self.start + 1))) for at in ends)
        return pa.RecordBatchReader.from_batches(ARROW, parts)


def _base(ids: Any) -> pa.RecordBatch:
    """Rows of these ids as they are before the first event."""
    notes = pa.array([None if note == "null" else note[1:-1] for note in NOTES])
    columns = [
        pa.array(ids),
        pa.array(1 + ids * 7919 % 50_021),
        pa.array(STATUS).take(pa.array(ids % len(STATUS))),
        pa.array(1 + ids % 19, pa.int32()),
        _moved_point(100 + ids * 104_729 % 9_999_900),
        pa.array((FIRST_MS * 1000) - ids, pa.timestamp("us")),
        notes.take(pa.array(ids * 31 % 7 % len(NOTES))),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW)


def as_table(rows: list[Row]) -> pa.Table:
    """Rows as an Arrow table with the types of `ARROW`."""
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * len(ARROW)
    # Cents become a decimal by moving the point: the same bytes, read with another scale.
    arrays = [
        _moved_point(column) if f.name == "amount" else pa.array(column, f.type)
        for column, f in zip(columns, ARROW, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=ARROW)


ZONED: Final = ARROW.set(
    ARROW.get_field_index("updated_at"), pa.field("updated_at", pa.timestamp("us", "UTC"))
)
"""The types with times in UTC, as a pipeline that knows but one type of timestamp has it."""


def zoned_batches(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """The rows with the types of `ZONED`."""
    return pa.RecordBatchReader.from_batches(ZONED, (batch.cast(ZONED) for batch in rows))


def _moved_point(cents: Any) -> pa.Array:
    whole = pa.array(cents, pa.int64()).cast(pa.decimal128(19, 0))
    return pa.Array.from_buffers(pa.decimal128(12, 2), len(whole), whole.buffers())


def _base_row(key: int) -> Row:
    """The same for one id."""
    note = NOTES[key * 31 % 7 % len(NOTES)]
    return (
        key,
        1 + key * 7919 % 50_021,
        STATUS[key % len(STATUS)],
        1 + key % 19,
        100 + key * 104_729 % 9_999_900,
        FIRST_MS * 1000 - key,
        None if note == "null" else note[1:-1],
    )


def _image(row: Row) -> str:
    """A row as JSON."""
    key, customer, status, quantity, cents, updated_at, note = row
    said = "null" if note is None else f'"{note}"'
    return (
        f'{{"id":{key},"customer_id":{customer},"status":"{status}","quantity":{quantity},'
        f'"amount":{cents // 100}.{cents % 100:02d},"updated_at":{updated_at},'
        f'"note":{said}}}'
    )


def _last(ops: list[str], ids: list[int], start: int) -> list[int | None]:
    """Number of the event that wrote the row before each event: -1 is the start, None no row."""
    last: dict[int, int | None] = {}
    found = []
    for n, (op, key) in enumerate(zip(ops, ids, strict=True)):
        found.append(last.get(key, -1 if key <= start else None))
        last[key] = None if op == "d" else n
    return found


def _heated(draws: Any, hot: float, which: Any) -> Any:
    """Draws of which a share falls below `HOT`: those are the places of the hot rows."""
    return np.where(which < hot, draws * HOT, draws)


def _history(
    start: int, wanted: list[str], keys: int, draws: Any
) -> tuple[list[str], list[int], dict[int, int]]:
    """Operations and ids such that each is possible, and what is left of them at the end."""
    ops: list[str] = []
    ids: list[int] = []
    # Neighbours in this list are no neighbours in the table: see `hot`.
    alive = (np.random.default_rng(start).permutation(start) + 1).tolist()
    expected: dict[int, int] = {}
    dead: list[int] = []
    fresh = start + 1
    for n, (want, draw) in enumerate(zip(wanted, draws.tolist(), strict=True)):
        op = want
        if not alive:
            op = "c"
        elif op == "c" and len(alive) >= keys:
            op = "u"
        if op == "c":
            if dead and draw < 0.2:
                key = dead.pop(int(draw * 5 * len(dead)))
            else:
                key, fresh = fresh, fresh + 1
            alive.append(key)
        else:
            at = int(draw * len(alive))
            key = alive[at]
            if op == "d":
                alive[at] = alive[-1]
                alive.pop()
                dead.append(key)
        if op == "d":
            expected.pop(key, None)  # a row of the start is no event's
        else:
            expected[key] = n
        ops.append(op)
        ids.append(key)
    return ops, ids, expected
