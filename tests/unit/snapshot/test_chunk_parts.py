"""Chunks: their rows as parts of the chunks topic, by shard and size."""

import json
import pickle
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.postgres import positions as lsns
from lakemark.connectors.postgres.visibility import Server, Snapshot
from lakemark.errors import TableError
from lakemark.model import change_batch, net_change, positions
from lakemark.model.change_batch import ChunkFile
from lakemark.model.columns import Column
from lakemark.model.key_ranges import Condition, KeyRange
from lakemark.model.schema import TableSchema
from lakemark.snapshot import chunks
from lakemark.snapshot.chunks import ChunkError, ChunkResult, ChunkSpec, KeyedRows
from lakemark.source.changed_keys import shard_of

TABLE = "public.orders"
SCHEMA = TableSchema(
    TABLE,
    (
        Column("id", pa.int64(), wire="int64"),
        Column("code", pa.string(), padded=True),
        Column("note", pa.string()),
    ),
    ("id", "code"),
)
LIMIT = 11 * 1024**2


def spec(**changed) -> ChunkSpec:
    given = {"run": "r1", "table": TABLE, "chunk": 3, "attempt": 17, "shards": 4}
    return ChunkSpec(**{**given, **changed})


def at(number: int) -> bytes:
    return lsns.pack(0, number, number)


def rows(notes: list[str], *, first: int = 0) -> KeyedRows:
    ids = list(range(first, first + len(notes)))
    table = pa.table({"id": ids, "code": ["ab  "] * len(ids), "note": notes}, schema=SCHEMA.arrow())
    keys = pa.chunked_array([[f'[{i},"ab"]'.encode() for i in ids]], pa.binary())
    return KeyedRows(keys, table)


def made(found: KeyedRows, what: ChunkSpec | None = None, **options) -> list[chunks.ChunkPart]:
    options = {"source_ts": 1_700, "max_record_bytes": LIMIT, **options}
    return list(chunks.parts(what or spec(), SCHEMA, found, **options))


def records(parts: list[chunks.ChunkPart]) -> list[dict]:
    return [row for part in parts for row in change_batch.decode(part.value).to_pylist()]


def test_every_row_is_an_upsert_at_no_position_in_the_shard_of_its_key():
    found = rows([f"note {i}" for i in range(200)])
    parts = made(found)
    assert sorted(part.shards[0] for part in parts) == [0, 1, 2, 3]
    for part in parts:
        packet = change_batch.decode(part.value)
        assert packet.schema.metadata[b"lakemark.table"] == TABLE.encode()
        assert change_batch.key_columns_of(packet) == change_batch.KeyColumns(
            ("id", "code"), frozenset({"code"})
        )
        assert packet.schema.names == [*change_batch.CONTROL.names, "row"]
        for row in packet.to_pylist():
            assert shard_of(TABLE, row["key"], 4) == part.shards[0]
            assert row["position"] == row["net_position"] == positions.LOWEST
            assert (row["record"], row["action"], row["op"]) == (
                change_batch.NET,
                net_change.UPSERT,
                "r",
            )
            assert row["source_ts"] == 1_700
            assert row["base"] is row["force"] is False
            assert [row[n] for n in ("other_key", "unavailable", "missing", "barrier")] == [
                None
            ] * 4
    back = sorted(records(parts), key=lambda row: row["row"]["id"])
    assert [row["row"] for row in back] == found.rows.to_pylist()
    assert [row["key"] for row in back] == found.keys.to_pylist()


def test_a_packet_of_reads_is_what_build_simple_makes_of_the_same_rows():
    found = rows(["a", "", "c"])
    keys, images = found.keys.combine_chunks(), found.rows.to_struct_array().combine_chunks()
    key = change_batch.KeyColumns(("id",))
    same = {"rows": images, "table": TABLE, "key_columns": key}
    for make, op in ((change_batch.reads, "r"), (change_batch.absences, "d")):
        made_fast = make(keys, images, source_ts=5, table=TABLE, key_columns=key)
        expected = change_batch.build_simple(
            keys=keys,
            ops=pa.array([op] * 3),
            position=pa.array([bytes(20)] * 3, pa.binary()),
            source_ts=pa.array([5] * 3),
            force=pa.array([False] * 3),
            **same,
        )
        assert made_fast.equals(expected, check_metadata=True)
        made_fast.validate(full=True)
    records_of = change_batch.records_of(made_fast, np.arange(3), offset=7)
    assert [r.net.action for r in records_of] == [net_change.DELETE] * 3
    assert [r.net.row for r in records_of] == [7, 8, 9]


def test_headers_name_the_part_and_count_per_shard():
    dice = random.Random(7)  # what compresses well makes few parts
    notes = [dice.randbytes(1000).hex() for _ in range(400)]
    parts = made(rows(notes), max_part_bytes=20_000)
    seen: dict[int, list[int]] = {}
    for part in parts:
        header = json.loads(part.key)
        assert list(header) == ["run", "table", "chunk", "attempt", "shard", "part"]
        assert (header["run"], header["table"]) == ("r1", TABLE)
        assert (header["chunk"], header["attempt"], header["shard"]) == (3, 17, part.shards[0])
        seen.setdefault(part.shards[0], []).append(header["part"])
    assert len(parts) > 20
    assert seen == {shard: list(range(len(found))) for shard, found in seen.items()}


@given(st.lists(st.integers(0, 30_000), max_size=30), st.integers(1, 5))
def test_parts_hold_every_row_once_and_are_as_small_as_they_can_be(sizes, shards):
    limit = 20_000
    found = rows(["n" * size for size in sizes])
    parts = made(found, spec(shards=shards), max_part_bytes=limit)
    assert sorted(row["row"]["id"] for row in records(parts)) == list(range(len(sizes)))
    for part in parts:
        assert len(part.value) <= limit or change_batch.decode(part.value).num_rows == 1
        assert 0 <= part.shards[0] < shards
    assert len({part.key for part in parts}) == len(parts)


@given(st.lists(st.binary(max_size=9), max_size=20), st.integers(1, 64), st.text(max_size=9))
def test_shards_are_those_of_touches(keys, shards, table):
    assert chunks.shards_of(table, keys, shards).tolist() == [
        shard_of(table, key, shards) for key in keys
    ]


def filed(found: KeyedRows, what: ChunkSpec | None = None, **options) -> list[chunks.ChunkPart]:
    options = {"source_ts": 1_700, "max_record_bytes": LIMIT, **options}
    file = ChunkFile("chunk-1.parquet", 1, len(found.keys), at(7).hex(), SCHEMA.arrow(), "{}", "r1")
    return list(chunks.filed(what or spec(), SCHEMA, found.keys, file, **options))


@given(st.integers(1, 400), st.integers(1, 5), st.sampled_from([300, 5_000, 900_000]))
def test_parts_of_a_file_have_every_key_once_with_its_place_in_it(count, shards, limit):
    found = rows(["x"] * count)
    parts = filed(found, spec(shards=shards), max_part_bytes=limit)
    seen: dict[int, bytes] = {}
    numbers: dict[int, list[int]] = {}
    for part in parts:
        assert part.value is None
        assert json.loads(part.key)["shard"] == chunks.NO_SHARD
        assert [shard for shard, _ in part.headers] == [str(shard) for shard in part.shards]
        for shard, (_, framed) in zip(part.shards, part.headers, strict=True):
            size = int.from_bytes(framed[:4])
            header, packet = (
                json.loads(framed[4 : 4 + size]),
                change_batch.decode(framed[4 + size :]),
            )
            assert (header["shard"], header["attempt"]) == (shard, 17)
            numbers.setdefault(shard, []).append(header["part"])
            assert change_batch.file_of(packet).position == at(7).hex()
            for row in packet.to_pylist():
                assert shard_of(TABLE, row["key"], shards) == shard
                seen[row["at"]] = row["key"]
    assert [seen[n] for n in range(count)] == found.keys.to_pylist()
    assert numbers == {shard: list(range(len(n))) for shard, n in numbers.items()}
    assert len(parts) == 1 or limit < 900_000


def test_a_key_that_no_record_can_hold_is_refused():
    with pytest.raises(TableError, match="larger than a record may be"):
        filed(rows(["x"] * 100), max_record_bytes=1500)


def test_a_chunk_without_rows_is_one_empty_part_of_shard_0_with_the_schema():
    (part,) = made(rows([]))
    packet = change_batch.decode(part.value)
    assert (part.shards[0], json.loads(part.key)["part"], packet.num_rows) == (0, 0, 0)
    assert [f.name for f in packet.schema.field("row").type] == ["id", "code", "note"]
    assert packet.schema.metadata[b"lakemark.table"] == TABLE.encode()


def test_absent_keys_are_deletes_with_the_key_alone_after_the_rows_of_their_shard():
    gone = rows(["", ""], first=500)
    absent = KeyedRows(gone.keys, gone.rows.select(["id", "code"]))
    parts = made(rows(["a", "b"]), spec(shards=1), absent=absent)
    assert [json.loads(part.key)["part"] for part in parts] == [0, 1]
    deletes = records(parts[1:])
    assert [row["row"] for row in deletes] == [
        {"id": 500, "code": "ab  "},
        {"id": 501, "code": "ab  "},
    ]
    assert {(row["action"], row["op"], row["position"]) for row in deletes} == {
        ("delete", "d", bytes(20))
    }
    (alone,) = made(rows([]), spec(shards=1), absent=absent)
    assert len(records([alone])) == 2


def test_a_row_that_no_record_can_hold_is_refused_without_its_values():
    secret = "secret" + random.Random(7).randbytes(60_000).hex()
    made(rows([secret]), max_record_bytes=70_000)
    with pytest.raises(TableError) as caught:
        made(rows([secret]), max_record_bytes=60_000)
    assert caught.value.code == "row-too-large"
    assert TABLE in str(caught.value)
    assert "secret" not in repr(caught.value) + caught.value.hint


def test_chunked_and_sliced_columns_are_read_from_where_they_begin():
    many = pa.concat_tables([rows(["a", "b"]).rows, rows(["c", "d"], first=2).rows]).slice(1, 2)
    keys = pa.chunked_array([[b"[0]", b"[1]"], [b"[2]", b"[3]"]], pa.binary()).slice(1, 2)
    found = records(made(KeyedRows(keys, many), spec(shards=1)))
    assert [(row["key"], row["row"]["note"]) for row in found] == [(b"[1]", "b"), (b"[2]", "c")]


def test_what_is_asked_and_answered_survives_the_way_to_a_worker_and_back():
    asked = spec(
        span=KeyRange(("1",), None), condition=Condition("a = %s", (1,)), keys=(("1", "ü"),)
    )
    answer = ChunkResult(
        attempt=17,
        parts={0: 1, 3: 2},
        proof=Snapshot(1, 2, Server("now", 1)),
        error=ChunkError(code="statement-timeout", message="late", halves=(KeyRange(),)),
    )
    for value in (asked, answer):
        assert pickle.loads(pickle.dumps(value)) == value
