"""The shop in each product: the same tables and rows, written in the product's own words."""

import json
import random
import re
from types import SimpleNamespace

import pytest

from stack import shop, shop_dialect
from stack.local import service_of
from stack.processes import StackError
from stack.shop_dialect import DIALECTS
from stack.transactions import Share, among


def described(statement: str) -> tuple[str, list[str]]:
    """A table and its columns, in their order."""
    name = r'(?:"(?:[^"]|"")+"|`(?:[^`]|``)+`|\w+)'
    table = re.match(rf"\s*CREATE TABLE ({name})", statement)[1]
    lines = [line for line in statement.splitlines()[2:] if "PRIMARY KEY (" not in line]
    columns = [m[1] for line in lines if (m := re.match(rf"\s+({name}) ", line))]
    return table, columns


def bare(name: str) -> str:
    quote = name[0]
    return name[1:-1].replace(quote * 2, quote) if quote in '"`' else name


@pytest.mark.parametrize("connector", DIALECTS)
def test_each_product_has_the_same_tables_with_the_same_columns(connector):
    def tables(dialect):
        found = [described(s) for s in dialect.schema if "CREATE TABLE" in s]
        return {bare(table): [*map(bare, columns)] for table, columns in found}

    found = tables(DIALECTS[connector])
    assert {*found, "all_types"} == set(shop.TABLES)
    assert found == tables(shop_dialect.POSTGRES)
    assert len(found[shop.TABLES[-2]]) == 11


class Rows:
    """Stands for a database: keeps the rows that are to be inserted."""

    def __init__(self, connector):
        self.server, self.inserted = SimpleNamespace(connector=connector), {}

    def insert(self, table, columns, rows):
        self.inserted[table] = [tuple(columns), *rows]
        return len(self.inserted[table]) - 1


@pytest.mark.parametrize("connector", DIALECTS)
def test_each_product_has_the_same_rows_but_for_lists(connector):
    one, other = Rows("postgres"), Rows(connector)
    assert shop.fill(one, scale=0.01) == shop.fill(other, scale=0.01) > 400
    tags, theirs = ([row[-1] for row in r.inserted.pop("products")[1:]] for r in (one, other))
    assert one.inserted == other.inserted
    assert [found is None for found in tags] == [found is None for found in theirs]
    assert None in tags
    assert tags == [json.loads(found) if isinstance(found, str) else found for found in theirs]


class Shelves:
    """A table of keys that checks each row's at once, as MySQL does, or all in the end."""

    def __init__(self, *, at_once):
        self.keys, self.at_once = [*range(1, 11)], at_once

    def execute(self, statement, parameters):
        change, condition = statement.removeprefix("UPDATE shelves SET id = ").split(" WHERE id ")
        condition, _, order = condition.partition(" ORDER BY id ")
        values = iter(parameters)
        change, condition = (
            re.sub("%s", lambda _: str(next(values)), text) for text in (change, condition)
        )
        keys = self.keys
        chosen = [at for at, key in enumerate(keys) if eval(f"{key} {condition}")]
        for at in sorted(chosen, key=keys.__getitem__, reverse=order == "DESC"):
            new = eval(change.replace("id", f"({keys[at]})"))
            assert not (self.at_once and new in keys), f"{keys[at]} becomes {new}, which is there"
            keys[at] = new
        assert len({*self.keys}) == len(self.keys)


@pytest.mark.parametrize("connector", DIALECTS)
@pytest.mark.parametrize("what", ["shift", "reverse"])
def test_shelves_change_their_keys_as_the_product_lets_them(connector, what):
    shelves = Shelves(at_once=connector != "postgres")
    dialect = DIALECTS[connector]
    statements = dialect.shift(4) if what == "shift" else dialect.reverse(4, 10)
    for statement in statements:
        shelves.execute(*statement)
    moved = [6, 7, 8, 9, 10, 11] if what == "shift" else [10, 9, 8, 7, 6, 5]
    assert shelves.keys == [1, 2, 3, 4, *moved]


def test_writers_have_keys_of_their_own():
    shares = [Share(n, 3, random.Random(n), Rows("mariadb"), None) for n in range(3)]
    keys = [key for share in shares for key in share.new_keys(50) + share.new_keys(1)]
    assert len({*keys}) == 153
    assert [{key % 3 for key in share.new_keys(5)} for share in shares] == [{0}, {1}, {2}]


def test_a_condition_of_no_keys_is_true_of_none():
    assert among([7, 8]) == "IN (%s, %s)"
    assert among([]) == "IN (NULL)"


def test_a_products_name_means_the_usual_one_of_its_versions():
    assert [service_of(name) for name in ("postgres", "mariadb", "mysql", "mariadb-10.11")] == [
        *("postgres", "mariadb-11.4", "mysql-9.7", "mariadb-10.11"),
    ]
    with pytest.raises(StackError, match="no database maria: only postgres, mariadb-11"):
        service_of("maria")
