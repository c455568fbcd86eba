"""Order-like change events as Debezium's PostgreSQL connector writes them, with the rows they leave.

    orders = Orders("orders", events=1_000_000, keys=200_000)
    for key, value in orders.records(): ...
    orders.expected            # id of every row that is left -> number of the event that wrote it

Everything is a function of the arguments: the same arguments give the same bytes. Positions
(`lsn`, `sequence`) rise strictly with the event's number, so they do in every partition too. Each
event is a transaction of its own.
"""

from collections.abc import Iterator
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
STATUS: Final = ("new", "paid", "packed", "shipped", "delivered", "returned")
NOTES: Final = (
    "null",
    '"leave at the door"',
    '"gift"',
    '"ring twice"',
    '"fragil \u2013 b\u00e4rtig"',
)

Row = tuple[int, int, str, int, int, int, str | None]


class Orders:
    """The events of one table.

    Args:
        table: name of the table, in schema `public`.
        events: how many events follow the load.
        keys: most rows alive at a time; beyond it an insert becomes an update.
        load: how many inserts, of ids 1 to `load`, come before the events.
        mix: shares of the operations. Every fifth insert takes the id of a deleted row.
        full: the whole envelope as Debezium 3.7 writes it (about 565 bytes a value) instead of
            one without the fields that no pipeline reads (about 450 bytes).
        seed: of the random numbers.

    Attributes:
        table: the table's name.
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
        load: int = 0,
        mix: dict[str, float] | None = None,
        full: bool = False,
        seed: int = 7,
    ) -> None:
        self.table = table
        random = np.random.default_rng(seed)
        count = load + events
        shares = mix or MIX
        wanted = random.choice(list(shares), size=events, p=list(shares.values())).tolist()
        self.op, self.id, self.expected = _history(load, wanted, keys, random.random(events))
        self._customer = random.integers(1, 1 + max(1, keys // 4), count).tolist()
        self._status = random.integers(0, len(STATUS), count).tolist()
        self._quantity = random.integers(1, 20, count).tolist()
        self._cents = random.integers(100, 10_000_000, count).tolist()
        self._note = random.integers(0, len(NOTES), count).tolist()
        self._parts = (
            '"version":"3.7.0.Final",' if full else "",
            f'"schema":"{SCHEMA}","table":"{table}",',
            ',"xmin":null,"origin":null,"origin_lsn":null' if full else "",
        )

    def __len__(self) -> int:
        return len(self.id)

    def records(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the events from `start` to before `stop`, as Kafka gets them."""
        version, table, origin = self._parts
        for n in range(start, len(self.id) if stop is None else stop):
            key, op = self.id[n], self.op[n]
            lsn, ms = FIRST_LSN + n * 184, FIRST_MS + n
            times = (
                f'"ts_ms":{ms},"ts_us":{ms}000,"ts_ns":{ms}000000' if origin else f'"ts_ms":{ms}'
            )
            value = (
                f'{{"before":{self._images(n)},"source":{{{version}"connector":"postgresql",'
                f'"name":"{CONNECTOR}","ts_ms":{ms},"snapshot":"false","db":"shop",'
                f'"sequence":"[\\"{lsn}\\",\\"{lsn}\\"]","ts_us":{ms}000,"ts_ns":{ms}000000,'
                f'{table}"txId":{1000 + n},"lsn":{lsn}{origin}}},"op":"{op}",{times}}}'
            )
            yield b'{"id":%d}' % key, value.encode()

    def _images(self, n: int) -> str:
        """Before and after; with the default replica identity a delete keeps only the key."""
        key = self.id[n]
        if self.op[n] == "d":
            return (
                f'{{"id":{key},"customer_id":0,"status":"","quantity":0,"amount":0.00,'
                f'"updated_at":0,"note":null}},"after":null'
            )
        cents = self._cents[n]
        return (
            f'null,"after":{{"id":{key},"customer_id":{self._customer[n]},'
            f'"status":"{STATUS[self._status[n]]}","quantity":{self._quantity[n]},'
            f'"amount":{cents // 100}.{cents % 100:02d},"updated_at":{FIRST_MS + n}000,'
            f'"note":{NOTES[self._note[n]]}}}'
        )

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
        return as_table([self.row(n) for _, n in sorted(self.expected.items())])

    def loaded(self, count: int) -> pa.Table:
        """The rows of the first `count` events, which must be inserts."""
        return as_table([self.row(n) for n in range(count)])


def as_table(rows: list[Row]) -> pa.Table:
    """Rows as an Arrow table with the types of `ARROW`."""
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * len(ARROW)
    # Cents become a decimal by moving the point: the same bytes, read with another scale.
    arrays = [
        _moved_point(column) if f.name == "amount" else pa.array(column, f.type)
        for column, f in zip(columns, ARROW, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=ARROW)


def zoned(rows: pa.Table) -> pa.Table:
    """The rows with their times in UTC, as a pipeline that knows but one type of timestamp has it."""
    at = ARROW.get_field_index("updated_at")
    times = rows.column(at).cast(pa.timestamp("us", "UTC"))
    return rows.set_column(at, "updated_at", times)


def _moved_point(cents: Any) -> pa.Array:
    whole = pa.array(cents, pa.int64()).cast(pa.decimal128(19, 0))
    return pa.Array.from_buffers(pa.decimal128(12, 2), len(whole), whole.buffers())


def _history(
    load: int, wanted: list[str], keys: int, draws: Any
) -> tuple[list[str], list[int], dict[int, int]]:
    """Operations and ids such that each is possible, and what is left at the end."""
    ops, ids = ["c"] * load, list(range(1, load + 1))
    alive = ids.copy()
    expected = {key: n for n, key in enumerate(ids)}
    dead: list[int] = []
    fresh = load + 1
    for n, (want, draw) in enumerate(zip(wanted, draws.tolist(), strict=True), start=load):
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
            del expected[key]
        else:
            expected[key] = n
        ops.append(op)
        ids.append(key)
    return ops, ids, expected
