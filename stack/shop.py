"""The demo's shop: a schema with what makes change data capture hard, and deterministic data.

table               what it is there for
------------------  ----------------------------------------------------------------------
customers           PostgreSQL: a column outside the row (TOAST) that updates leave out; keys that
                    change
orders              enum, exact decimals, JSON; the table with most changes
line_items          a key of two columns
products            a text key, numeric without scale or with more digits than the lake's; lists
shelves             `id = id + 1` for many rows in one statement; PostgreSQL: a deferrable key
carts               truncated now and then
Bestell Übersicht   names of a table and of columns that need quoting
all_types           a column of every type (`stack.every_type`, `stack.every_mysql_type`)

What differs between the products is in `stack.shop_dialect`.
"""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from stack.database import Database
from stack.every_type import TABLE as EVERY_TYPE
from stack.shop_dialect import ODD, STATUSES, Dialect, dialect_of

Filling = tuple[Sequence[str], Iterator[tuple[Any, ...]]]
"""Columns of a table, and its rows."""

TABLES: Final = (
    "customers",
    "orders",
    "line_items",
    "products",
    "shelves",
    "carts",
    ODD,
    EVERY_TYPE,
)
"""The tables' bare names."""

_EPOCH: Final = datetime(2024, 1, 1, tzinfo=UTC)
_WORDS: Final = [
    "Anker",
    "Birne",
    "Čeština",
    "Dorf",
    "élan",
    "Fjord",
    "Größe",
    "Hafen",
    "Insel",
    "jalapeño",
    "Κόσμος",
    "Laub",
    "мир",
    "ñandú",
    "Øst",
    "Pfad",
    "Quelle",
    "Růže",
    "señal",
    "Tür",
    "Übung",
    "vīns",
    "Węgiel",
    "ξένος",
    "yağmur",
    "žába",
    "日本語",
    "한국어",
    "עברית",
    "🚲",
]
_BATCH: Final = 2000


def tables(database: Database) -> list[str]:
    """Return the tables' identifiers, as lakemark and the connector have them."""
    return [database.identifier(table) for table in TABLES]


def create(database: Database) -> None:
    """Create the tables, all but the one of every type empty."""
    dialect = dialect_of(database)
    with database.connect() as connection:
        for statement in dialect.schema:
            connection.execute(statement)
        dialect.every_type(connection)


def fill(database: Database, *, scale: float = 1.0, seed: int = 1) -> int:
    """Fill the tables and return the number of rows; the same rows for the same arguments.

    Args:
        database: with the tables of `create`.
        scale: 1.0 is about 60,000 rows; 4,000 customers bring 22 MB of TOAST.
        seed: of the random numbers.
    """
    rng, dialect = random.Random(seed), dialect_of(database)
    orders = max(10, round(20_000 * scale))
    customers = max(10, round(4_000 * scale))
    products = max(10, round(1_000 * scale))
    skus = [f"SKU-{number:05d}" for number in range(products)]
    sources: dict[str, Filling] = {
        "customers": (
            ("name", "email", "bio", "updated_at"),
            (_customer(rng) for _ in range(customers)),
        ),
        "products": (
            ("sku", "name", "price", "tags"),
            (_product(rng, sku, dialect) for sku in skus),
        ),
        "orders": (
            ("id", "customer_id", "status", "amount", "note", "created", "details"),
            (_order(rng, number, customers) for number in range(1, orders + 1)),
        ),
        "line_items": (
            ("order_id", "line_no", "sku", "quantity", "price"),
            (
                (number, line, rng.choice(skus), rng.randint(1, 9), _price(rng))
                for number in range(1, orders + 1)
                for line in range(1, rng.randint(1, 3) + 1)
            ),
        ),
        "shelves": (
            ("id", "label", "filled"),
            ((number, f"shelf {number}", rng.randint(0, 99) / 100) for number in range(1, 101)),
        ),
        "carts": (
            ("customer_id", "sku", "added"),
            (
                (rng.randint(1, customers), rng.choice([*skus, None]), _moment(rng))
                for _ in range(max(10, round(500 * scale)))
            ),
        ),
        ODD: (
            ("Id", "Art", "select", "Größe (cm)", "Preis = netto; brutto", 'quo"te`tick',
             "a.b", "percent%20sign", "ウ", "$x y", "n" * 63),
            (_odd_row(rng, number) for number in range(40)),
        ),
    }  # fmt: skip
    return sum(database.insert(table, columns, rows) for table, (columns, rows) in sources.items())


def biography(rng: random.Random) -> str:
    """Return 3 to 8 kB of text: too long for a row, so stored outside of it."""
    return f"{rng.choice(_WORDS)} {rng.randbytes(rng.randint(1500, 4000)).hex()}"


def words(rng: random.Random, count: int) -> str:
    """Return some words in some of the world's scripts."""
    return " ".join(rng.choices(_WORDS, k=count))


def _customer(rng: random.Random) -> tuple[Any, ...]:
    name = words(rng, 2)
    bio = None if rng.random() < 0.05 else biography(rng)
    return name, f"user{rng.randint(1, 10**9)}@example.com", bio, _moment(rng)


def _product(rng: random.Random, sku: str, dialect: Dialect) -> tuple[Any, ...]:
    price = rng.choice(
        [None, Decimal(0), Decimal(rng.randint(1, 10**9)).scaleb(-rng.randint(0, 8))]
    )
    tags = rng.choice([None, [], rng.choices(["new", "sale", None, "a,b", 'quo"te'], k=3)])
    return sku, words(rng, 3), price, dialect.texts(tags)


def _order(rng: random.Random, number: int, customers: int) -> tuple[Any, ...]:
    details = None
    if rng.random() < 0.5:
        details = f'{{"gift": {rng.choice(["true", "false"])}, "weight": {rng.random():.6f}}}'
    note = words(rng, 4) if rng.random() < 0.3 else None
    customer = rng.randint(1, customers)
    return number, customer, rng.choice(STATUSES), _price(rng), note, _moment(rng), details


def _price(rng: random.Random) -> Decimal:
    return Decimal(rng.randint(-100, 10**7)).scaleb(-2)


def _moment(rng: random.Random) -> datetime:
    return _EPOCH + timedelta(microseconds=rng.randint(0, 60 * 86_400_000_000))


def _odd_row(rng: random.Random, number: int) -> tuple[Any, ...]:
    return (
        *(number, f"k{number % 3}"),
        *(rng.choice(["from", "", None]), rng.random() * 200, _price(rng)),
        rng.choice([True, False, None]),
        *(words(rng, 1), "100%", _moment(rng).date(), number, "n"),
    )
