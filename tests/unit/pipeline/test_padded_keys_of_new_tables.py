"""A table made while the query runs, of which records carry a schema: that tells no char(n)."""

import json
from collections import Counter

import pyarrow as pa
import pytest

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.model.handling_modes import HandlingModes
from lakemark.snapshot import chunks
from lakemark.snapshot.chunks import ChunkResult, KeyedRows
from lakemark.snapshot.snapshot_state import Settings
from tests.kit.fake_world import PIPELINE
from tests.kit.shop import ORDERS, event
from tests.kit.whole_pipeline import Change, World

COLUMNS = [CatalogColumn("id", "bpchar", typmod=9, key_position=1), CatalogColumn("v", "text")]
SCHEMA = from_catalog(ORDERS, COLUMNS, ["id"], HandlingModes())
FIELDS = [
    {"type": "string", "optional": False, "field": "id"},
    {"type": "string", "optional": True, "field": "v"},
]
ROW = {"type": "struct", "fields": FIELDS, "optional": True, "name": "V"}
ENVELOPE = {
    "type": "struct",
    "name": "E",
    "fields": [
        {**ROW, "field": "before"},
        {**ROW, "field": "after"},
        {"type": "struct", "fields": [], "field": "source"},
        {"type": "string", "field": "op"},
    ],
}


def padded(key):
    return f"k{key}".ljust(5)


def wrapped(schema, payload):
    return json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()


class Chars(World):
    """Keys are char(5); a row is deleted right after a chunk's SELECT has seen it."""

    def start(self):
        self.lake.pipeline.schemas.pop(ORDERS)  # it was made after the query began

        real = self.lake.put

        def put(op, at, key, *, table=ORDERS, partition=0, headers=None, **rest):
            if table != ORDERS:
                real(op, at, key, table=table, partition=partition, headers=headers, **rest)
                return
            known = ("ts", "snapshot", "tx", "name", "anew")
            options = {name: rest.pop(name) for name in known if name in rest}
            value = json.loads(event(op, at, {"id": padded(key), **rest}, table=table, **options))
            raw = wrapped({"type": "struct", "fields": FIELDS[:1]}, {"id": padded(key)})
            self.lake.broker.put(f"shop.{table}", partition, raw, wrapped(ENVELOPE, value), headers)

        self.lake.put = put
        return super().start()

    def read_chunk(self, spec):
        rows, keys = self.rows[ORDERS], self.database.within(ORDERS, spec.span)
        names = [pa.array([f'["k{key}"]'.encode() for key in keys], pa.binary())]
        columns = {"id": [padded(key) for key in keys], "v": [rows[key] for key in keys]}
        found, counts = KeyedRows(pa.chunked_array(names), pa.table(columns)), Counter()
        for part in chunks.parts(
            spec, SCHEMA, found, absent=None, source_ts=0, max_record_bytes=1 << 20
        ):
            (shard,) = part.shards
            told = len(part.key).to_bytes(4) + part.key + part.value
            self.lake.shards.parts.append((shard, told))
            counts[shard] += 1
        proof = self.database.snapshot()
        if 2 in rows:
            self.commit(Change("d", ORDERS, 2))
        return ChunkResult(
            attempt=spec.attempt, rows=len(keys), parts=counts, proof=proof,
            fingerprint=self.database.fingerprints[ORDERS],
        )  # fmt: skip


@pytest.mark.usefixtures("logs")
def test_a_row_that_is_deleted_in_its_window_stays_so(tmp_path):
    settings = Settings(PIPELINE, shards=2, chunk_rows=100, parallelism=1, interval=1.0)
    world = Chars(tmp_path, {ORDERS: {}}, settings)
    world.start()
    for key in (1, 2, 3):
        world.commit(Change("c", ORDERS, key, f"v{key}"))
    world.step()
    # the coordinator asks the catalog when it accepts a signal
    world.lake.pipeline.read_schemas = lambda: {ORDERS: SCHEMA} if world.coordinator else {}
    world.execute("r1", ORDERS)
    world.go(60.0, until=lambda: world.ended("r1"))
    world.go(3.0)
    assert world.lake.values(ORDERS) == {padded(1): "v1", padded(3): "v3"}
