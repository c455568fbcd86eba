"""A shop of two tables over a Kafka in memory, and its records as Debezium writes them."""

import json

import pyarrow as pa
from deltalake import DeltaTable

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink import names
from tests.kit.log_model import STEP
from tests.kit.memory_pipeline import World

ORDERS, ITEMS = "public.orders", "public.items"
SIGNALS = "public.debezium_signal"


def schema_of(table, *, modes=None, **types):
    columns = [CatalogColumn(n, t, key_position=1 if n == "id" else None) for n, t in types.items()]
    return from_catalog(table, columns, ["id"], modes or HandlingModes())


def compact(value):
    """JSON as the converter writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def event(
    op, at, row, *, table=ORDERS, ts=None, snapshot="false", tx=None, name="shop", anew=False
):
    """An event at place `at` of the log, of the transaction after the commit at place `tx`."""
    lsn, last = STEP * at, None if anew or snapshot == "true" else str(STEP * (tx or at))
    schema, _, bare = table.partition(".")
    source = {
        "version": "3.7.0.Final", "connector": "postgresql", "name": name, "ts_ms": ts or at,
        "ts_us": (ts or at) * 1000, "snapshot": snapshot, "db": "shop", "schema": schema,
        "table": bare, "txId": 1, "lsn": lsn, "xmin": None,
        "sequence": json.dumps([last, str(lsn)], separators=(",", ":")),
    }  # fmt: skip
    after = None if op in "dt" else row
    before = {"id": row["id"]} if op == "d" else None
    value = {"before": before, "after": after, "source": source, "op": op, "ts_ms": at}
    return compact(value)


class Shop(World):
    """Orders and items, each in a topic of its own."""

    def put(self, op, at, key, *, table=ORDERS, partition=0, headers=None, **rest):
        options = {k: rest.pop(k) for k in ("ts", "snapshot", "tx", "name", "anew") if k in rest}
        row = {"id": key, **rest}
        raw = None if op == "t" else compact({"id": key})
        self.broker.put(
            f"shop.{table}", partition, raw, event(op, at, row, table=table, **options), headers
        )

    def rows(self, table=ORDERS):
        path = names.table_path(self.config.lake.path, table)
        found = pa.table(DeltaTable(path).scan()).to_pylist()
        return {row.pop("id"): row for row in found}

    def values(self, table=ORDERS, column="v"):
        return {key: row[column] for key, row in self.rows(table).items()}
