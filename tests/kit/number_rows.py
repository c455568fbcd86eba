"""Rows of numbers, as MariaDB and MySQL both make them."""


def numbers(first: int, last: int) -> str:
    """SQL after FROM: a row for each number of a range, in the column `seq`."""
    array = f"CONCAT('[0', REPEAT(',0', {last - first}), ']')"
    rows = f"JSON_TABLE({array}, '$[*]' COLUMNS (n FOR ORDINALITY)) AS counted"
    return f"(SELECT CAST(n AS SIGNED) + {first - 1} AS seq FROM {rows}) AS numbers"
