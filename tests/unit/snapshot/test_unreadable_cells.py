"""Values that the connector cannot carry, such as NaN of a numeric: in a chunk's rows as in events."""

from collections import Counter

import pyarrow as pa
import pytest

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.connectors.postgres.column_sql import cell
from lakemark.connectors.postgres.postgres_chunks import _parsed
from lakemark.connectors.typed_rows import typed_rows
from lakemark.errors import TableError
from lakemark.model.handling_modes import HandlingModes
from lakemark.snapshot import chunks
from lakemark.snapshot.chunks import ChunkResult, KeyedRows
from lakemark.snapshot.snapshot_state import Settings
from tests.kit.fake_world import PIPELINE
from tests.kit.shop import ORDERS
from tests.kit.whole_pipeline import Change, World

COLUMNS = [
    CatalogColumn("id", "int8", key_position=1),
    CatalogColumn("v", "numeric", typmod=((10 << 16) | 2) + 4),
]


def read(columns, key, csv):
    """As the answer of a SELECT is read."""
    modes = HandlingModes()
    schema = from_catalog(ORDERS, columns, key, modes)
    cells = tuple(cell(c, t, modes) for c, t in zip(columns, schema.columns, strict=True))
    return typed_rows(schema, cells, _parsed(pa.py_buffer(csv.encode()), 40, len(columns)), None)


def test_the_row_stays_without_the_value():
    chunk = read(COLUMNS, ["id"], "1,1.50\n2,NaN\n3,\n")
    assert [str(row["v"]) for row in chunk.rows.to_pylist()] == ["1.50", "None", "None"]
    assert [key for key, *_ in chunk.bad] == [b"[2]"]
    assert chunk.keys.to_pylist() == [b"[1]", b"[2]", b"[3]"]


def test_a_table_with_such_a_value_in_its_key_is_not_read_without_that_row():
    with pytest.raises(TableError) as caught:
        read(COLUMNS, ["id", "v"], "1,1.50\n2,NaN\n")
    assert caught.value.code == "key-out-of-range"
    assert "'v'" in caught.value.message


class Numbers(World):
    """PostgreSQL's answers are texts, as COPY sends them."""

    schema = from_catalog(ORDERS, COLUMNS, ["id"], HandlingModes())

    def start(self):
        self.lake.schemas[ORDERS] = self.lake.pipeline.schemas[ORDERS] = self.schema
        return super().start()

    def read_chunk(self, spec):
        rows, keys = self.rows[ORDERS], self.database.within(ORDERS, spec.span)
        chunk = read(COLUMNS, ["id"], "".join(f"{key},{rows[key]}\n" for key in keys))
        counts = Counter()
        found = KeyedRows(chunk.keys, chunk.rows)
        for part in chunks.parts(
            spec, self.schema, found, absent=None, source_ts=0, max_record_bytes=1 << 20
        ):
            (shard,) = part.shards
            told = len(part.key).to_bytes(4) + part.key + part.value
            self.lake.shards.parts.append((shard, told))
            counts[shard] += 1
        return ChunkResult(
            attempt=spec.attempt,
            rows=chunk.rows.num_rows,
            parts=counts,
            proof=self.database.snapshot(),
            fingerprint=self.database.fingerprints[ORDERS],
            bad_rows=len(chunk.bad),
        )


@pytest.mark.usefixtures("logs")
def test_a_sweep_leaves_such_a_row(tmp_path):
    settings = Settings(PIPELINE, shards=2, chunk_rows=100, parallelism=1, interval=1.0)
    world = Numbers(tmp_path, {ORDERS: {}}, settings)
    world.start()
    world.commit(Change("c", ORDERS, 1, "1.50", told={"v": "AJY="}))
    world.commit(Change("c", ORDERS, 2, "NaN", told={"v": None}))
    world.step()
    world.execute("r1", ORDERS)
    world.go(60.0, until=lambda: world.ended("r1"))
    world.go(3.0)
    assert world.run_state("r1") == "completed"
    assert {key: str(v) for key, v in world.lake.values(ORDERS).items()} == {1: "1.50", 2: "None"}
