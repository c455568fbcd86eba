"""What the writers of the workload do: one function a kind of transaction, and how often each.

An action changes rows of its writer's share of the keys and returns how many; the caller commits,
or rolls back after `_roll_back`.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from stack import shop

FIRST_NEW_KEY: Final = 10_000_000
"""New and moved keys begin here, out of the way of the identity column's."""

Cursor = psycopg.Cursor[Any]


@dataclass(slots=True)
class Share:
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


Action = Callable[[Share, Cursor, int], int]


def _one(cursor: Cursor, query: str) -> tuple[Any, ...]:
    row = cursor.execute(query.encode()).fetchone()
    assert row is not None
    return tuple(row)


def _insert_orders(share: Share, cursor: Cursor, size: int) -> int:
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


def _insert_customers(share: Share, cursor: Cursor, size: int) -> int:
    """Insert customers with biographies."""
    keys = share.new_keys(min(size, 50))
    rows = [(key, shop.words(share.rng, 2), shop.biography(share.rng)) for key in keys]
    cursor.executemany(
        b"INSERT INTO customers (id, name, email, bio) VALUES (%s, %s, NULL, %s)", rows
    )
    return len(keys)


def _update_orders(share: Share, cursor: Cursor, size: int) -> int:
    """Move orders on."""
    keys = share.keys(cursor, "orders", size)
    cursor.execute(
        b"UPDATE orders SET status = %s, amount = amount + 0.01, note = %s WHERE id = ANY(%s)",
        [share.rng.choice(shop.STATUSES), shop.words(share.rng, 3), keys],
    )
    return cursor.rowcount


def _update_lines(share: Share, cursor: Cursor, size: int) -> int:
    """Change lines of orders, some of them twice in one transaction."""
    keys = share.keys(cursor, "orders", max(1, size // 2))
    rows = 0
    for _ in range(share.rng.randint(1, 2)):
        cursor.execute(
            b"UPDATE line_items SET quantity = quantity + 1 WHERE order_id = ANY(%s)", [keys]
        )
        rows += cursor.rowcount
    return rows


def _rename_customers(share: Share, cursor: Cursor, size: int) -> int:
    """Change customers but not their biographies: the log leaves those out."""
    keys = share.keys(cursor, "customers", size)
    cursor.execute(
        b"UPDATE customers SET name = %s, updated_at = clock_timestamp() WHERE id = ANY(%s)",
        [shop.words(share.rng, 2), keys],
    )
    return cursor.rowcount


def _rewrite_customers(share: Share, cursor: Cursor, size: int) -> int:
    """Change biographies; then the name alone, in the same transaction."""
    keys = share.keys(cursor, "customers", min(size, 30))
    bio = share.rng.choice([None, "short", shop.biography(share.rng)])
    cursor.execute(b"UPDATE customers SET bio = %s WHERE id = ANY(%s)", [bio, keys])
    cursor.execute(b"UPDATE customers SET email = 'x@y.z' WHERE id = ANY(%s)", [keys[:3]])
    return len(keys) + len(keys[:3])


def _delete_orders(share: Share, cursor: Cursor, size: int) -> int:
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


def _delete_customers(share: Share, cursor: Cursor, size: int) -> int:
    """Delete some customers."""
    keys = share.keys(cursor, "customers", min(size, 10))
    cursor.execute(b"DELETE FROM customers WHERE id = ANY(%s)", [keys])
    return len(keys)


def _move_customers(share: Share, cursor: Cursor, size: int) -> int:
    """Give customers new keys; their biographies stay, so the log does not hold them."""
    keys = share.keys(cursor, "customers", min(size, 20))
    for key, new in zip(keys, share.new_keys(len(keys)), strict=True):
        cursor.execute(b"UPDATE customers SET id = %s WHERE id = %s", [new, key])
    return len(keys)


def _chain_customers(share: Share, cursor: Cursor, _size: int) -> int:
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


def _move_lines(share: Share, cursor: Cursor, size: int) -> int:
    """Change a part of a composite key."""
    keys = share.keys(cursor, "orders", min(size, 20))
    cursor.execute(
        b"UPDATE line_items SET line_no = line_no + 100 WHERE order_id = ANY(%s)"
        b" AND line_no < 100 AND line_no = 1",
        [keys],
    )
    return cursor.rowcount


def _shift_shelves(share: Share, cursor: Cursor, size: int) -> int:
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


def _price_products(share: Share, cursor: Cursor, size: int) -> int:
    """Change prices and tags."""
    rng = share.rng
    cursor.execute(
        b"UPDATE products SET price = %s, tags = %s"
        b" WHERE sku IN (SELECT sku FROM products WHERE hashtext(sku) %% %s = %s LIMIT %s)",
        [rng.choice([None, "1.50", "1e20"]), rng.choice([None, [], ["x", None]]),
         share.of, share.number % share.of, size],
    )  # fmt: skip
    return cursor.rowcount


def _savepoints(share: Share, cursor: Cursor, size: int) -> int:
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


def _roll_back(share: Share, cursor: Cursor, size: int) -> int:
    """Change much, and take all of it back."""
    _insert_orders(share, cursor, size)
    _rewrite_customers(share, cursor, size)
    return 0


def _fill_carts(_share: Share, cursor: Cursor, size: int) -> int:
    """Fill carts."""
    cursor.execute(
        b"INSERT INTO carts (customer_id, sku, added) SELECT n, NULL, clock_timestamp()"
        b" FROM generate_series(1, %s) AS n",
        [size],
    )
    return size


def truncate(share: Share, cursor: Cursor, size: int) -> int:
    """Empty the carts, and put something into them in the same transaction."""
    cursor.execute(b"TRUNCATE carts")
    return _fill_carts(share, cursor, min(size, 5))


def _odd(share: Share, cursor: Cursor, _size: int) -> int:
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


def long_step(share: Share, cursor: Cursor) -> int:
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


ACTIONS: Final[dict[Action, int]] = {
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
    truncate: 1,
    _odd: 2,
}
"""What the writers do, and how often."""
