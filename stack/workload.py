"""Writers that change the shop in every way that is hard for change data capture.

Each writer has a connection and a share of the keys (`id % writers`), so that writers wait for
each other but do not deadlock. One more writer holds long transactions open, into which the others
commit. What a writer does is drawn from a seeded generator; how the writers interleave is not.
"""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import psycopg
from psycopg import errors

from stack import shop
from stack.processes import StackError

SIZES: Final = (1, 1, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500)
"""Rows a transaction is meant to change; small ones are common."""
LONG_S: Final = (0.5, 3.0)
"""How long the long transactions stay open, in seconds."""
FIRST_NEW_KEY: Final = 10_000_000
"""New and moved keys begin here, out of the way of the identity column's."""

Cursor = psycopg.Cursor[Any]


@dataclass(slots=True)
class Written:
    """What was committed.

    Attributes:
        transactions: committed transactions.
        rows: rows changed in them, those of a truncate not counted.
        rolled_back: transactions that were rolled back.
        actions: committed transactions by kind.
    """

    transactions: int = 0
    rows: int = 0
    rolled_back: int = 0
    actions: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.transactions} transactions with {self.rows} rows committed, "
            f"{self.rolled_back} rolled back"
        )


class Workload:
    """Writers that run until they are stopped.

    Args:
        dsn: the database, with the shop's tables.
        writers: connections that write, the one with the long transactions not counted.
        seed: of what they do.
        rows_per_s: about how many rows are changed per second, by all writers together.
        sizes: rows a transaction is meant to change.
        truncates: whether carts is truncated now and then.
    """

    def __init__(
        self,
        dsn: str,
        *,
        writers: int = 3,
        seed: int = 1,
        rows_per_s: float = 1000.0,
        sizes: tuple[int, ...] = SIZES,
        truncates: bool = True,
    ) -> None:
        self.written = Written()
        self._dsn = dsn
        self._writers = writers
        self._seed = seed
        self._pause_s = writers / rows_per_s
        self._sizes = sizes
        self._truncates = truncates
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Start the writers."""
        for number in range(self._writers + 1):
            target = self._long if number == self._writers else self._short
            thread = threading.Thread(
                target=self._guarded, args=(target, number), name=f"writer-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self, deadline_s: float = 60) -> Written:
        """Let each writer finish its transaction and return what was committed.

        Raises:
            StackError: a writer failed, or did not end in time.
        """
        self._stopping.set()
        end = time.monotonic() + deadline_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            raise StackError(f"writers have not ended after {deadline_s:g} s")
        if self._failure is not None:
            raise StackError(f"a writer failed: {self._failure!r}") from self._failure
        return self.written

    def run_for(self, seconds: float) -> Written:
        """Write for so many seconds."""
        self.start()
        self._stopping.wait(seconds)
        return self.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)

    def _guarded(self, target: Callable[[int], None], number: int) -> None:
        try:
            target(number)
        except BaseException as error:  # noqa: BLE001 (told by `stop`)
            self._failure = error

    def _short(self, number: int) -> None:
        rng = random.Random(f"{self._seed}-{number}")
        actions = [a for a in _ACTIONS if self._truncates or a is not _truncate]
        weights = [_ACTIONS[action] for action in actions]
        while not self._stopping.is_set():
            # A database that restarts is not the writer's failure: it goes on when it is back.
            with suppress(psycopg.OperationalError), psycopg.connect(self._dsn) as connection:
                share = _Share(number, self._writers, rng, connection)
                while not self._stopping.is_set():
                    (action,) = rng.choices(actions, weights)
                    rows = self._transact(share, action, rng.choice(self._sizes))
                    self._stopping.wait(self._pause_s * max(1, rows) * rng.uniform(0.5, 1.5))
            self._stopping.wait(0.2)

    def _transact(self, share: "_Share", action: "_Action", size: int) -> int:
        kind = action.__name__.strip("_")
        with suppress(errors.DeadlockDetected, errors.UniqueViolation, errors.LockNotAvailable):
            with share.connection.cursor() as cursor:
                rows = action(share, cursor, size)
            if kind == "roll_back":
                share.connection.rollback()
            else:
                share.connection.commit()
            self._count(kind, rows)
            return rows
        share.connection.rollback()
        self._count("roll_back", 0)
        return 0

    def _count(self, kind: str, rows: int) -> None:
        with self._lock:
            if kind == "roll_back":
                self.written.rolled_back += 1
            else:
                self.written.transactions += 1
                self.written.rows += rows
                self.written.actions[kind] += 1

    def _long(self, number: int) -> None:
        """Transactions that stay open: their changes are old when they are committed."""
        rng = random.Random(f"{self._seed}-long")
        share_of = self._writers + 1
        while not self._stopping.is_set():
            with suppress(psycopg.OperationalError), psycopg.connect(self._dsn) as connection:
                share = _Share(number, share_of, rng, connection)
                while not self._stopping.is_set():
                    rows = 0
                    with connection.cursor() as cursor:
                        end = time.monotonic() + rng.uniform(*LONG_S)
                        while time.monotonic() < end and not self._stopping.wait(0.1):
                            rows += _long_step(share, cursor)
                    connection.commit()
                    self._count("long", rows)


@dataclass(slots=True)
class _Share:
    """A writer's share of the keys, its connection and its random numbers."""

    number: int
    of: int
    rng: random.Random
    connection: psycopg.Connection[Any]
    next_key: int = 0

    def new_keys(self, count: int) -> list[int]:
        """Return keys that nobody has used, in this writer's share."""
        if not self.next_key:
            self.next_key = FIRST_NEW_KEY + self.rng.randrange(10**9) * self.of + self.number
            self.next_key -= (self.next_key - self.number) % self.of
        first = self.next_key
        self.next_key += count * self.of
        return list(range(first, self.next_key, self.of))

    def keys(self, cursor: Cursor, table: str, count: int) -> list[int]:
        """Return up to `count` existing keys of this share that follow a random one."""
        query = f"SELECT coalesce(max(id), 0) FROM {table} WHERE id < {FIRST_NEW_KEY}"
        (highest,) = _one(cursor, query)
        start = self.rng.randint(0, max(1, highest)) if self.rng.random() < 0.7 else FIRST_NEW_KEY
        found = cursor.execute(
            f"SELECT id FROM {table} WHERE id >= %s AND id %% %s = %s"
            " ORDER BY id LIMIT %s".encode(),
            [start, self.of, self.number % self.of, count],
        ).fetchall()
        return [key for (key,) in found]


_Action = Callable[[_Share, Cursor, int], int]


def _one(cursor: Cursor, query: str) -> tuple[Any, ...]:
    row = cursor.execute(query.encode()).fetchone()
    assert row is not None
    return tuple(row)


def _insert_orders(share: _Share, cursor: Cursor, size: int) -> int:
    """Insert orders with their lines."""
    rng = share.rng
    keys = share.new_keys(max(1, size // 3))
    cursor.execute(
        b"INSERT INTO orders SELECT k, k %% 4000 + 1, 'new', (k %% 100000) / 100.0, NULL, now(),"
        b" jsonb_build_object('channel', %s::text, 'n', k) FROM unnest(%s::bigint[]) AS k",
        [rng.choice(["web", "shop", "phone"]), keys],
    )
    cursor.execute(
        b"INSERT INTO line_items SELECT k, l, 'SKU-' || lpad((k %% 1000)::text, 5, '0'),"
        b" (k %% 9 + 1)::int, (k %% 10000) / 100.0"
        b" FROM unnest(%s::bigint[]) AS k, generate_series(1, 2) AS l",
        [keys],
    )
    return 3 * len(keys)


def _insert_customers(share: _Share, cursor: Cursor, size: int) -> int:
    """Insert customers with biographies."""
    keys = share.new_keys(min(size, 50))
    rows = [(key, shop.words(share.rng, 2), shop.biography(share.rng)) for key in keys]
    cursor.executemany(
        b"INSERT INTO customers (id, name, email, bio) VALUES (%s, %s, NULL, %s)", rows
    )
    return len(keys)


def _update_orders(share: _Share, cursor: Cursor, size: int) -> int:
    """Move orders on."""
    keys = share.keys(cursor, "orders", size)
    cursor.execute(
        b"UPDATE orders SET status = %s, amount = amount + 0.01, note = %s WHERE id = ANY(%s)",
        [share.rng.choice(shop.STATUSES), shop.words(share.rng, 3), keys],
    )
    return cursor.rowcount


def _update_lines(share: _Share, cursor: Cursor, size: int) -> int:
    """Change lines of orders, some of them twice in one transaction."""
    keys = share.keys(cursor, "orders", max(1, size // 2))
    rows = 0
    for _ in range(share.rng.randint(1, 2)):
        cursor.execute(
            b"UPDATE line_items SET quantity = quantity + 1 WHERE order_id = ANY(%s)", [keys]
        )
        rows += cursor.rowcount
    return rows


def _rename_customers(share: _Share, cursor: Cursor, size: int) -> int:
    """Change customers but not their biographies: the log leaves those out."""
    keys = share.keys(cursor, "customers", size)
    cursor.execute(
        b"UPDATE customers SET name = %s, updated_at = clock_timestamp() WHERE id = ANY(%s)",
        [shop.words(share.rng, 2), keys],
    )
    return cursor.rowcount


def _rewrite_customers(share: _Share, cursor: Cursor, size: int) -> int:
    """Change biographies; then the name alone, in the same transaction."""
    keys = share.keys(cursor, "customers", min(size, 30))
    bio = share.rng.choice([None, "short", shop.biography(share.rng)])
    cursor.execute(b"UPDATE customers SET bio = %s WHERE id = ANY(%s)", [bio, keys])
    cursor.execute(b"UPDATE customers SET email = 'x@y.z' WHERE id = ANY(%s)", [keys[:3]])
    return len(keys) + len(keys[:3])


def _delete_orders(share: _Share, cursor: Cursor, size: int) -> int:
    """Delete orders with their lines; some come back under the same key."""
    keys = share.keys(cursor, "orders", max(1, size // 4))
    cursor.execute(b"DELETE FROM line_items WHERE order_id = ANY(%s)", [keys])
    rows = cursor.rowcount
    cursor.execute(b"DELETE FROM orders WHERE id = ANY(%s)", [keys])
    again = keys[:2]
    cursor.execute(
        b"INSERT INTO orders SELECT k, 1, 'returned', 0, 'again', now(), NULL"
        b" FROM unnest(%s::bigint[]) AS k",
        [again],
    )
    return rows + len(keys) + len(again)


def _delete_customers(share: _Share, cursor: Cursor, size: int) -> int:
    """Delete some customers."""
    keys = share.keys(cursor, "customers", min(size, 10))
    cursor.execute(b"DELETE FROM customers WHERE id = ANY(%s)", [keys])
    return len(keys)


def _move_customers(share: _Share, cursor: Cursor, size: int) -> int:
    """Give customers new keys; their biographies stay, so the log does not hold them."""
    keys = share.keys(cursor, "customers", min(size, 20))
    for key, new in zip(keys, share.new_keys(len(keys)), strict=True):
        cursor.execute(b"UPDATE customers SET id = %s WHERE id = %s", [new, key])
    return len(keys)


def _chain_customers(share: _Share, cursor: Cursor, _size: int) -> int:
    """Give one customer several keys in a row, then move others onto the keys that became free."""
    keys = share.keys(cursor, "customers", 4)
    if len(keys) < 2:
        return 0
    hops = [keys[0], *share.new_keys(share.rng.randint(1, 4))]
    moves = [*itertools.pairwise(hops), *zip(keys[1:], keys, strict=False)]
    for old, new in moves:
        cursor.execute(b"UPDATE customers SET id = %s WHERE id = %s", [new, old])
    cursor.execute(b"UPDATE customers SET name = 'moved' WHERE id = %s", [hops[-1]])
    return len(moves) + 1


def _move_lines(share: _Share, cursor: Cursor, size: int) -> int:
    """Change a part of a composite key."""
    keys = share.keys(cursor, "orders", min(size, 20))
    cursor.execute(
        b"UPDATE line_items SET line_no = line_no + 100 WHERE order_id = ANY(%s)"
        b" AND line_no < 100 AND line_no = 1",
        [keys],
    )
    return cursor.rowcount


def _shift_shelves(share: _Share, cursor: Cursor, size: int) -> int:
    """Shift all keys from one on: each key is deleted and inserted again in one transaction."""
    cursor.execute(b"SELECT pg_advisory_xact_lock(1)")
    (highest,) = _one(cursor, "SELECT coalesce(max(id), 0) FROM shelves")
    start = highest - min(size, 60)
    if share.rng.random() < 0.5:
        cursor.execute(b"UPDATE shelves SET id = id + 1 WHERE id > %s", [start])
    else:
        cursor.execute(
            b"UPDATE shelves SET id = %s + %s + 1 - id WHERE id > %s", [highest, start, start]
        )
    return cursor.rowcount


def _price_products(share: _Share, cursor: Cursor, size: int) -> int:
    """Change prices and tags."""
    rng = share.rng
    cursor.execute(
        b"UPDATE products SET price = %s, tags = %s"
        b" WHERE sku IN (SELECT sku FROM products WHERE hashtext(sku) %% %s = %s LIMIT %s)",
        [rng.choice([None, "1.50", "1e20"]), rng.choice([None, [], ["x", None]]),
         share.of, share.number % share.of, size],
    )  # fmt: skip
    return cursor.rowcount


def _savepoints(share: _Share, cursor: Cursor, size: int) -> int:
    """Roll back a part of a transaction, and keep what came before and after it."""
    rows = _update_orders(share, cursor, size)
    cursor.execute(b"SAVEPOINT a")
    _delete_orders(share, cursor, size)
    cursor.execute(b"ROLLBACK TO SAVEPOINT a")
    rows += _update_lines(share, cursor, size)
    cursor.execute(b"SAVEPOINT b")
    rows += _insert_orders(share, cursor, size)
    cursor.execute(b"RELEASE SAVEPOINT b")
    return rows


def _roll_back(share: _Share, cursor: Cursor, size: int) -> int:
    """Change much, and take all of it back."""
    _insert_orders(share, cursor, size)
    _rewrite_customers(share, cursor, size)
    return 0


def _fill_carts(_share: _Share, cursor: Cursor, size: int) -> int:
    """Fill carts."""
    cursor.execute(
        b"INSERT INTO carts (customer_id, sku, added) SELECT n, NULL, clock_timestamp()"
        b" FROM generate_series(1, %s) AS n",
        [size],
    )
    return size


def _truncate(share: _Share, cursor: Cursor, size: int) -> int:
    """Empty the carts, and put something into them in the same transaction."""
    cursor.execute(b"TRUNCATE carts")
    return _fill_carts(share, cursor, min(size, 5))


def _odd(share: _Share, cursor: Cursor, _size: int) -> int:
    """Change the table with the odd names."""
    number = share.rng.randrange(10**6) * share.of + share.number
    cursor.execute(
        f'INSERT INTO "{shop.ODD}" ("Id", "Art", "Größe (cm)", "$x y") VALUES (%s, %s, 1.5, 3)'
        ' ON CONFLICT ("Id", "Art") DO UPDATE SET "select" = \'again\''.encode(),
        [number, "new"],
    )
    cursor.execute(
        f'UPDATE "{shop.ODD}" SET "a.b" = \'changed\' WHERE "Id" %% %s = %s AND "Id" < 40'.encode(),
        [share.of, share.number % share.of],
    )
    return 1 + cursor.rowcount


def _long_step(share: _Share, cursor: Cursor) -> int:
    """One statement of a long transaction: rows of its own, and customers nobody else holds."""
    key = share.new_keys(1)[0]
    cursor.execute(b"INSERT INTO customers (id, name, bio) VALUES (%s, 'long', %s)",
                   [key, shop.biography(share.rng)])  # fmt: skip
    cursor.execute(b"INSERT INTO orders VALUES (%s, 1, 'new', 1, 'long', now(), NULL)", [key])
    found = cursor.execute(
        b"SELECT id FROM customers WHERE id < %s ORDER BY id DESC LIMIT 1 FOR UPDATE SKIP LOCKED",
        [share.rng.randint(1, FIRST_NEW_KEY)],
    ).fetchall()
    if not found:
        return 2
    cursor.execute(b"UPDATE customers SET name = name || '!' WHERE id = %s", found[0])
    return 3


_ACTIONS: Final[dict[_Action, int]] = {
    _insert_orders: 10,
    _insert_customers: 3,
    _update_orders: 12,
    _update_lines: 6,
    _rename_customers: 8,
    _rewrite_customers: 3,
    _delete_orders: 5,
    _delete_customers: 2,
    _move_customers: 3,
    _chain_customers: 3,
    _move_lines: 2,
    _shift_shelves: 2,
    _price_products: 2,
    _savepoints: 2,
    _roll_back: 2,
    _fill_carts: 4,
    _truncate: 1,
    _odd: 2,
}
"""What the writers do, and how often."""
