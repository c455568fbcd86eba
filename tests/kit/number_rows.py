"""Rows of numbers, as each product makes them."""

from stack.database import Database


def numbers_of(database: Database, first: int, last: int) -> str:
    """SQL after FROM: a row for each number of a range, in the column `seq`."""
    if database.server.connector == "postgres":
        return f"generate_series({first}, {last}) AS numbers (seq)"
    return numbers(first, last)


def numbers(first: int, last: int) -> str:
    """Return the same for MariaDB and MySQL."""
    digits = " UNION ALL ".join(f"SELECT {digit} AS digit" for digit in range(10))
    places = range(len(str(last - first)))
    offset = " + ".join(f"{10**place} * p{place}.digit" for place in places)
    rows = " CROSS JOIN ".join(f"({digits}) AS p{place}" for place in places)
    select = f"SELECT CAST({first} + {offset} AS SIGNED) AS seq FROM {rows}"
    return f"({select} WHERE {offset} <= {last - first}) AS numbers"
