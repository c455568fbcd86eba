"""Statements of MySQL and MariaDB that move rows without an event, and the tables of which."""

import pytest

from lakemark.connectors.mysql.moved_rows import moved_by

TABLES = ["shop.orders", "shop.orders_2025", "shop.Other", "shop.a`b", 'shop."x.y"', "crm.orders"]
ORDERS = {"shop.orders", "crm.orders"}


@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("ALTER TABLE orders TRUNCATE PARTITION p1, p2", ORDERS),
        ("/* tool */ alter table `shop`.`ORDERS`\n truncate\npartition all", ORDERS),
        ("ALTER TABLE orders EXCHANGE PARTITION p WITH TABLE other", ORDERS | {"shop.Other"}),
        ("ALTER TABLE `a``b` EXCHANGE PARTITION p WITH TABLE `x.y`", {"shop.a`b", 'shop."x.y"'}),
        ("ALTER TABLE orders CONVERT TABLE other TO PARTITION p", ORDERS | {"shop.Other"}),
        ("ALTER TABLE orders CONVERT PARTITION p TO TABLE orders_2025", ORDERS | {TABLES[1]}),
        ("ALTER TABLE orders_2025 DISCARD TABLESPACE", {"shop.orders_2025"}),
        ("ALTER TABLE orders_2025 IMPORT PARTITION p TABLESPACE", {"shop.orders_2025"}),
        ("ALTER TABLE unknown TRUNCATE PARTITION p", set()),
        ("TRUNCATE TABLE orders", set()),
        ("ALTER TABLE orders ADD COLUMN x int", set()),
        ("ALTER TABLE orders DROP PARTITION p", set()),
    ],
)
def test_tables_whose_rows_a_statement_may_have_moved(statement, tables):
    assert set(moved_by(statement, TABLES)) == tables
