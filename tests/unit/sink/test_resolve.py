"""What `resolve` does that histories seldom do: odd keys, odd images, empty tables, odd types."""

import math
from dataclasses import replace

import pyarrow as pa
import pytest

from lakemark.connectors.postgres import positions as lsns
from lakemark.errors import TableError
from lakemark.model import change_batch, net_change
from lakemark.model.change_batch import PacketRecord
from lakemark.model.decoding import AppliedPosition, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink.resolve import Part, resolve
from lakemark.sink.row_images import RowImages
from lakemark.source import decoder
from tests.kit.log_model import TABLE, Entry, table_schema
from tests.kit.log_model import Record as Kafka
from tests.kit.log_records import key_json, value_json
from tests.kit.table_model import DictLake, kafka, lake_schema


def at(major, minor=1):
    return lsns.pack(0, major, minor)


def row(key, a=None, b=None, c=None):
    return {"id": key, "a": a, "b": b, "c": c}


def records(*entries):
    out = []
    for number, entry in enumerate(entries):
        headers = [
            {"key": name, "value": key_json(key, wrapped=False)}
            for name, key in (
                ("__debezium.newkey", entry.new_key),
                ("__debezium.oldkey", entry.old_key),
            )
            if key is not None
        ]
        key = None if entry.key is None else key_json(entry.key, wrapped=False)
        out.append(Kafka(key, value_json(entry, wrapped=False), headers, number))
    return kafka(out, 0, 0)


def process(*entries, start=None):
    plan = StretchPlan(
        SourceIdentity("postgresql", "shop"),
        HandlingModes(),
        schemas={TABLE: table_schema()},
        verified=frozenset({TABLE}),
        applied={("shop.public.things", 0): start or AppliedPosition()},
    )
    return decoder.decode_range(records(*entries), plan)


def parts(*entries):
    return [Part("0", n, p) for n, (_, p) in enumerate(process(*entries).packets)]


def run(lake, found, *, truncated_at=None, pending=None, version=1):
    result = resolve(
        found, truncated_at=truncated_at, pending=pending, read_rows=lake.read_rows, deletes="hard"
    )
    lake.merge(result.write_set, version=version)
    return result


def test_a_key_change_between_spellings_of_one_key_keeps_the_row():
    """Two spellings, one canonical key: d and c of one row at one position."""
    lake = DictLake()
    run(
        lake,
        parts(
            Entry("c", (1, 2), 1, 1, after=row(1, 5, "T1")),
            Entry("d", (1, 3), 1, 1, before=row(1), new_key=1),
            Entry("c", (1, 3), 1, 1, after=row(1, 6, "__debezium_unavailable_value"), old_key=1),
        ),
    )
    assert (lake.rows()[1]["a"], lake.rows()[1]["b"]) == (6, "T1")
    assert lake.rows()[1]["_cdc"]["unavailable"] is None


@pytest.mark.parametrize("before", [None, {"id": None, "a": None, "b": "x", "c": None}])
def test_a_delete_is_named_by_its_key_when_the_image_does_not(before):
    lake = DictLake()
    run(lake, parts(Entry("c", (1, 2), 1, 1, after=row(1))))
    run(lake, parts(Entry("d", (1, 3), 1, 1, before=before)), version=2)
    assert lake.rows() == {}


def test_rows_below_this_batchs_truncate_are_no_base():
    """The truncate may not be committed yet when the table is read."""
    lake = DictLake()
    run(lake, parts(Entry("c", (1, 2), 1, 1, after=row(1, 5, "T1"))))
    found = parts(
        Entry("t", (4, 5), 1),
        Entry("d", (6, 7), 1, 1, before=row(1), new_key=2),
    )
    result = resolve(
        found, truncated_at=None, pending=None, read_rows=lake.read_rows, deletes="hard"
    )
    assert result.truncate == lsns.pack(0, 4, 5)
    (left,) = result.pending.to_pylist()
    assert left["row"]["id"] is None  # nothing is known of a row that the truncate removed


def test_halves_below_settled_positions_are_forgotten():
    found = parts(Entry("d", (6, 7), 1, 1, before=row(1), new_key=2))
    lake = DictLake()
    kept = resolve(found, truncated_at=None, pending=None, read_rows=lake.read_rows, deletes="hard")
    assert kept.pending is not None
    later = resolve(
        [],
        truncated_at=None,
        pending=kept.pending,
        read_rows=lake.read_rows,
        deletes="hard",
        settled=at(7),
    )
    assert later.pending is None
    assert later.write_set.num_rows == 0


def test_a_truncate_alone_needs_no_columns():
    result = resolve(
        parts(Entry("t", (4, 5), 1)),
        truncated_at=None,
        pending=None,
        read_rows=lambda keys: pytest.fail("nothing to read"),
        deletes="hard",
    )
    assert result.truncate == lsns.pack(0, 4, 5)
    assert result.write_set.num_rows == 0


def test_a_truncate_below_the_newest_does_not_lower_it():
    result = resolve(
        parts(Entry("t", (4, 5), 1), Entry("c", (6, 7), 1, 1, after=row(1))),
        truncated_at=at(9),
        pending=None,
        read_rows=DictLake().read_rows,
        deletes="hard",
    )
    assert result.dropped == 1
    assert result.write_set.num_rows == 0


@pytest.mark.parametrize(
    ("truncated_at", "truncate"), [(at(3), at(4, 5)), (at(4, 5), None), (at(4, 6), None)]
)
def test_only_a_truncate_above_the_newest_is_a_new_one(truncated_at, truncate):
    result = resolve(
        parts(Entry("t", (4, 5), 1)),
        truncated_at=truncated_at,
        pending=None,
        read_rows=DictLake().read_rows,
        deletes="hard",
    )
    assert result.truncate == truncate


def _packet(value):
    pool = pa.StructArray.from_arrays([pa.array([1]), value], names=["id", "x"])
    net = net_change.upsert(op="c", position=at(1), source_ts=1, row=0)
    items = [PacketRecord(change_batch.NET, b"[1]", net.position, net)]
    return change_batch.build(
        items, pool, table=TABLE, key_columns=change_batch.KeyColumns(("id",))
    )


def test_packets_of_two_schema_versions_meet_in_the_wider_type():
    found = [Part("0", 0, _packet(pa.array([1], pa.int32()))), Part("0", 1, _packet(pa.array([2])))]
    result = resolve(
        found, truncated_at=None, pending=None, read_rows=DictLake().read_rows, deletes="hard"
    )
    assert result.write_set.column("x").to_pylist() == [2]
    assert result.write_set.schema.field("x").type == pa.int64()


def test_packets_whose_types_do_not_go_together_stop_the_table():
    found = [Part("0", 0, _packet(pa.array(["x"]))), Part("0", 1, _packet(pa.array([2])))]
    with pytest.raises(TableError) as caught:
        resolve(
            found, truncated_at=None, pending=None, read_rows=DictLake().read_rows, deletes="hard"
        )
    assert caught.value.code == "schema-incompatible"


def test_one_key_in_two_partitions_goes_by_position():
    """After a change of the partition count: old partitions first, then all."""
    older = parts(Entry("c", (1, 2), 1, 1, after=row(1, 5)))
    newer = parts(Entry("u", (3, 4), 1, 1, after=row(1, 6)))
    for first, second in ((0, 1), (1, 0)):
        lake = DictLake()
        run(lake, [Part(str(first), 0, older[0].packet), Part(str(second), 0, newer[0].packet)])
        assert lake.rows()[1]["a"] == 6


def test_nan_is_equal_to_itself():
    values = pa.array([math.nan, math.nan, 1.0])
    pool_rows = pa.StructArray.from_arrays([pa.array([1, 1, 1]), values], names=["id", "x"])
    net = net_change.upsert(op="c", position=at(1), source_ts=1, row=0)
    packet = change_batch.build(
        [PacketRecord(change_batch.NET, b"[1]", at(1), replace(net, row=n)) for n in range(3)],
        pool_rows,
        table=TABLE,
        key_columns=change_batch.KeyColumns(("id",)),
    )
    pool = RowImages([packet], change_batch.KeyColumns(("id",)), deletes="hard")
    assert pool.same(net, net_change.delete(position=at(2), source_ts=2, row=1))
    assert not pool.same(net, net_change.delete(position=at(2), source_ts=2, row=2))


def test_packets_survive_the_shuffle():
    (part, *_) = parts(
        Entry("c", (1, 2), 1, 1, after=row(1, 5, "T1", b"x")),
        Entry("u", (1, 3), 1, 2, after=row(2, 5, "__debezium_unavailable_value")),
    )
    again = change_batch.decode(change_batch.encode(part.packet))
    assert again.equals(part.packet)
    assert change_batch.key_columns_of(again).names == ("id",)


def test_the_lake_schema_has_what_rows_need():
    assert lake_schema("soft").field("_cdc").type.get_field_index("deleted") >= 0
    assert lake_schema("hard").field("_cdc").type.get_field_index("deleted") < 0
