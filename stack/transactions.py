"""What the writers of the workload do: one function a kind of transaction, and how often each.

An action changes rows of its writer's share of the keys and returns how many; the caller commits,
or rolls back where it raises `TakenBack`.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from stack import shop
from stack.database import Database
from stack.shop_dialect import ODD, STATUSES, Dialect, dialect_of

FIRST_NEW_KEY: Final = 10_000_000
"""New and moved keys begin here, out of the way of those that the database gives."""


@dataclass(slots=True)
class Share:
    """A writer's share of the keys, its connection and its random numbers.

    Attributes:
        number: the writer's; its keys are those with this rest when they are divided by `of`.
        of: how many writers there are.
        rng: its random numbers.
        database: the shop.
        connection: one that commits each statement where no transaction was begun.
    """

    number: int
    of: int
    rng: random.Random
    database: Database
    connection: Any
    next_key: int = 0

    @property
    def dialect(self) -> Dialect:
        """How the database has its shop."""
        return dialect_of(self.database)

    def begin_session(self) -> None:
        """Have the session behave as in every product."""
        for statement in self.dialect.session:
            self.connection.execute(statement)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it has changed."""
        return int(self.connection.execute(statement, parameters or None).rowcount)

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> int:
        """Insert rows in the present transaction and return how many."""
        values = ", ".join(["%s"] * len(columns))
        command = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"
        if rows:
            self.connection.cursor().executemany(command, rows)
        return len(rows)

    def new_keys(self, count: int) -> list[int]:
        """Return keys that nobody has used, in this writer's share."""
        if not self.next_key:
            self.next_key = FIRST_NEW_KEY + self.rng.randrange(10**9) * self.of + self.number
            self.next_key -= (self.next_key - self.number) % self.of
        first = self.next_key
        self.next_key += count * self.of
        return list(range(first, self.next_key, self.of))

    def highest(self, table: str) -> int:
        """Return the highest key of a table that no writer has made, 0 without any."""
        query = f"SELECT coalesce(max(id), 0) FROM {table} WHERE id < {FIRST_NEW_KEY}"
        return int(self.connection.execute(query).fetchone()[0])

    def keys(self, table: str, count: int) -> list[int]:
        """Return up to `count` existing keys of this share that follow a random one."""
        highest = self.highest(table)
        start = self.rng.randint(0, max(1, highest)) if self.rng.random() < 0.7 else FIRST_NEW_KEY
        query = f"SELECT id FROM {table} WHERE id >= %s AND id %% %s = %s ORDER BY id LIMIT %s"
        place = [start, self.of, self.number % self.of, count]
        return [key for (key,) in self.connection.execute(query, place).fetchall()]


class TakenBack(Exception):  # noqa: N818 - it is meant to happen
    """Ends a transaction that is to leave nothing."""


Action = Callable[[Share, int], int]


def among(keys: Sequence[Any]) -> str:
    """Return the condition that a column is one of so many parameters."""
    return f"IN ({', '.join(['%s'] * len(keys)) or 'NULL'})"


def _insert_orders(share: Share, size: int) -> int:
    """Insert orders with their lines."""
    keys = share.new_keys(max(1, size // 3))
    channel, now = share.rng.choice(["web", "shop", "phone"]), datetime.now(UTC)
    orders = [
        (key, key % 4000 + 1, "new", key % 100_000 / 100, now, f'{{"n": {key}, "by": "{channel}"}}')
        for key in keys
    ]
    columns = ("id", "customer_id", "status", "amount", "created", "details")
    return share.insert("orders", columns, orders) + _insert_lines(share, keys)


def _insert_lines(share: Share, keys: Sequence[int]) -> int:
    lines = [
        (key, line, f"SKU-{key % 1000:05d}", key % 9 + 1, key % 10_000 / 100)
        for key in keys
        for line in (1, 2)
    ]
    columns = ("order_id", "line_no", "sku", "quantity", "price")
    return share.insert("line_items", columns, lines)


def _insert_customers(share: Share, size: int) -> int:
    """Insert customers with biographies."""
    keys = share.new_keys(min(size, 50))
    rows = [(key, shop.words(share.rng, 2), None, shop.biography(share.rng)) for key in keys]
    return share.insert("customers", ("id", "name", "email", "bio"), rows)


def _update_orders(share: Share, size: int) -> int:
    """Move orders on."""
    keys = share.keys("orders", size)
    return share.execute(
        f"UPDATE orders SET status = %s, amount = amount + 0.01, note = %s WHERE id {among(keys)}",
        [share.rng.choice(STATUSES), shop.words(share.rng, 3), *keys],
    )


def _update_lines(share: Share, size: int) -> int:
    """Change lines of orders, some of them twice in one transaction."""
    keys = share.keys("orders", max(1, size // 2))
    update = f"UPDATE line_items SET quantity = quantity + 1 WHERE order_id {among(keys)}"
    return sum(share.execute(update, keys) for _ in range(share.rng.randint(1, 2)))


def _rename_customers(share: Share, size: int) -> int:
    """Change customers but not their biographies: PostgreSQL's log leaves those out."""
    keys = share.keys("customers", size)
    return share.execute(
        f"UPDATE customers SET name = %s, updated_at = current_timestamp(6) WHERE id {among(keys)}",
        [shop.words(share.rng, 2), *keys],
    )


def _rewrite_customers(share: Share, size: int) -> int:
    """Change biographies; then the address alone, in the same transaction."""
    keys = share.keys("customers", min(size, 30))
    bio = share.rng.choice([None, "short", shop.biography(share.rng)])
    share.execute(f"UPDATE customers SET bio = %s WHERE id {among(keys)}", [bio, *keys])
    first = keys[:3]
    share.execute(f"UPDATE customers SET email = 'x@y.z' WHERE id {among(first)}", first)
    return len(keys) + len(first)


def _delete_orders(share: Share, size: int) -> int:
    """Delete orders with their lines; some come back under the same key."""
    keys = share.keys("orders", max(1, size // 4))
    rows = share.execute(f"DELETE FROM line_items WHERE order_id {among(keys)}", keys)
    rows += share.execute(f"DELETE FROM orders WHERE id {among(keys)}", keys)
    columns, now = ("id", "customer_id", "status", "amount", "note", "created"), datetime.now(UTC)
    again = [(key, 1, "returned", 0, "again", now) for key in keys[:2]]
    return rows + share.insert("orders", columns, again)


def _delete_customers(share: Share, size: int) -> int:
    """Delete some customers."""
    keys = share.keys("customers", min(size, 10))
    return share.execute(f"DELETE FROM customers WHERE id {among(keys)}", keys)


def _move(share: Share, old: int, new: int) -> int:
    return share.execute("UPDATE customers SET id = %s WHERE id = %s", [new, old])


def _move_customers(share: Share, size: int) -> int:
    """Give customers new keys; their biographies stay, so PostgreSQL's log does not hold them."""
    keys = share.keys("customers", min(size, 20))
    pairs = zip(keys, share.new_keys(len(keys)), strict=True)
    return sum(_move(share, old, new) for old, new in pairs)


def _chain_customers(share: Share, _size: int) -> int:
    """Give one customer several keys in a row, then move others onto the keys that became free."""
    keys = share.keys("customers", 4)
    if len(keys) < 2:
        return 0
    hops = [keys[0], *share.new_keys(share.rng.randint(1, 4))]
    moves = [*itertools.pairwise(hops), *zip(keys[1:], keys, strict=False)]
    for old, new in moves:
        _move(share, old, new)
    share.execute("UPDATE customers SET name = 'moved' WHERE id = %s", [hops[-1]])
    return len(moves) + 1


def _move_lines(share: Share, size: int) -> int:
    """Change a part of a composite key."""
    keys = share.keys("orders", min(size, 20))
    return share.execute(
        f"UPDATE line_items SET line_no = line_no + 100 WHERE order_id {among(keys)}"
        " AND line_no = 1",
        keys,
    )


def _shift_shelves(share: Share, size: int) -> int:
    """Shift all keys from one on: each key is deleted and inserted again in one transaction."""
    # The lowest shelf never moves: who holds its row is the only one who moves the others.
    share.execute("SELECT label FROM shelves WHERE id = 1 FOR UPDATE")
    highest = share.highest("shelves")
    start = highest - min(size, 60)
    if share.rng.random() < 0.5:
        statements = share.dialect.shift(start)
    else:
        statements = share.dialect.reverse(start, highest)
    return sum(share.execute(*statement) for statement in statements)


def _price_products(share: Share, size: int) -> int:
    """Change prices and tags."""
    query = "SELECT sku FROM products WHERE ascii(right(sku, 1)) %% %s = %s LIMIT %s"
    mine = [share.of, share.number % share.of, size]
    skus = [sku for (sku,) in share.connection.execute(query, mine).fetchall()]
    price = share.rng.choice([None, "1.50", "1e20"])
    tags = share.dialect.texts(share.rng.choice([None, [], ["x", None]]))
    return share.execute(
        f"UPDATE products SET price = %s, tags = %s WHERE sku {among(skus)}", [price, tags, *skus]
    )


def _savepoints(share: Share, size: int) -> int:
    """Roll back a part of a transaction, and keep what came before and after it."""
    rows = _update_orders(share, size)
    share.execute("SAVEPOINT a")
    _delete_orders(share, size)
    share.execute("ROLLBACK TO SAVEPOINT a")
    rows += _update_lines(share, size)
    share.execute("SAVEPOINT b")
    rows += _insert_orders(share, size)
    share.execute("RELEASE SAVEPOINT b")
    return rows


def _roll_back(share: Share, size: int) -> int:
    """Change much, and take all of it back."""
    _insert_orders(share, size)
    _rewrite_customers(share, size)
    raise TakenBack


def _fill_carts(share: Share, size: int) -> int:
    """Fill carts."""
    now = datetime.now(UTC).replace(tzinfo=None)
    rows = [(number, None, now) for number in range(1, size + 1)]
    return share.insert("carts", ("customer_id", "sku", "added"), rows)


def truncate(share: Share, size: int) -> int:
    """Empty the carts, then put something into them.

    PostgreSQL does both in one transaction; elsewhere a TRUNCATE ends it.
    """
    share.execute("TRUNCATE TABLE carts")
    return _fill_carts(share, min(size, 5))


def _odd(share: Share, _size: int) -> int:
    """Change the table with the odd names."""
    name = share.database.quoted
    number = share.rng.randrange(10**6) * share.of + share.number
    columns = ", ".join(map(name, ("Id", "Art", "Größe (cm)", "$x y")))
    share.execute(
        f"INSERT INTO {name(ODD)} ({columns}) VALUES (%s, %s, 1.5, 3)"
        f" {share.dialect.or_else} {name('select')} = 'again'",
        [number, "new"],
    )
    return 1 + share.execute(
        f"UPDATE {name(ODD)} SET {name('a.b')} = 'changed'"
        f" WHERE {name('Id')} %% %s = %s AND {name('Id')} < 40",
        [share.of, share.number % share.of],
    )


def long_step(share: Share) -> int:
    """One statement of a long transaction: rows of its own, and customers nobody else holds."""
    key = share.new_keys(1)[0]
    share.insert("customers", ("id", "name", "bio"), [(key, "long", shop.biography(share.rng))])
    order = (key, 1, "new", 1, "long", datetime.now(UTC))
    columns = ("id", "customer_id", "status", "amount", "note", "created")
    share.insert("orders", columns, [order])
    found = share.connection.execute(
        "SELECT id FROM customers WHERE id < %s ORDER BY id DESC LIMIT 1 FOR UPDATE SKIP LOCKED",
        [share.rng.randint(1, FIRST_NEW_KEY)],
    ).fetchall()
    if not found:
        return 2
    share.execute("UPDATE customers SET name = concat(name, '!') WHERE id = %s", found[0])
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
