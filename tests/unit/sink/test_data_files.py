"""Data files as lakemark writes them itself: how their columns are encoded."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from lakemark.sink.delta.data_files import LakeKey, NewFile
from lakemark.sink.delta.table_store import TableStore

pytestmark = pytest.mark.usefixtures("cache")

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "status": pa.string(),
        "note": pa.string(),
        "view": pa.string_view(),
        "tags": pa.list_(pa.string()),
        "_cdc": pa.struct({"position": pa.binary(), "op": pa.string()}),
    }
)


def rows(ids):
    return pa.Table.from_pylist(
        [
            {
                "id": i, "status": f"s{i % 3}", "note": f"note {i}", "view": f"v{i}",
                "tags": [f"t{i % 2}"], "_cdc": {"position": b"p", "op": "c"},
            }
            for i in ids
        ],
        SCHEMA,
    )  # fmt: skip


def written(folder, *pieces):
    new = NewFile(SCHEMA, LakeKey((SCHEMA.field("id"),)))
    for piece in pieces:
        new.add(piece)
    add = new.write(TableStore(str(folder)), "table", 1, data_change=True)["add"]
    return folder / add["path"], json.loads(add["stats"])


def with_dictionary(path):
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    return {c.path_in_schema for c in columns if "RLE_DICTIONARY" in c.encodings}


def test_values_that_seldom_come_again_have_no_dictionary(tmp_path):
    path, stats = written(tmp_path, rows(range(10_000)), rows(range(10_000, 10_010)))
    repeated = {"status", "tags.list.element", "_cdc.position", "_cdc.op"}
    assert with_dictionary(path) - {"view"} == repeated
    assert pq.read_table(path).cast(SCHEMA) == rows(range(10_010))
    assert (stats["numRecords"], stats["minValues"], stats["maxValues"]) == (
        10_010, {"id": 0}, {"id": 10_009},
    )  # fmt: skip


def test_few_rows_and_none(tmp_path):
    path, _ = written(tmp_path, rows([1, 2, 3]))
    assert pq.read_table(path).cast(SCHEMA) == rows([1, 2, 3])
    path, stats = written(tmp_path, rows([]))
    assert (pq.read_table(path).num_rows, stats["numRecords"]) == (0, 0)
