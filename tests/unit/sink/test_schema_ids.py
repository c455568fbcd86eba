"""Rows say by which schema of the registry the record of their newest change was written."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.json.converter import JsonConverter
from lakemark.converters.registry import CONVERTERS
from lakemark.model import change_batch
from lakemark.model.decoding import ConverterChoice, Records, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink.apply import apply
from lakemark.sink.delta.engines import DELETION_VECTORS, TASK_MERGE
from lakemark.sink.lake_plan import LakePlan, TablePlan
from lakemark.sink.resolve import Part
from lakemark.source import decoder
from tests.kit.avro_records import DictSource, confluent, datum, record
from tests.kit.converter_contract import source
from tests.kit.write_sets import at

NAME = "avro-of-things"
SOURCE = DictSource()
TABLE, TOPIC = "public.orders", "shop.public.orders"
USUAL = {"id": "int", "text": ["null", "string"], "more": ["null", "long"],
         "sequence": ["null", "string"], "lsn": ["null", "long"], "xmin": ["null", "long"],
         "txId": ["null", "long"]}  # fmt: skip
LACKING = HandlingModes().placeholder_text
ASKED = ("schema_id",)


@pytest.fixture(autouse=True, scope="module")
def registered():
    CONVERTERS[NAME] = AvroConverter(JsonConverter(), lambda _: SOURCE)
    yield
    del CONVERTERS[NAME]


def key_of(row):
    schema = record("Key", {"id": row["id"]}, USUAL)
    return confluent(SOURCE.put(schema), datum(schema, {"id": row["id"]}))


def schema_of(row):
    images = [{"name": n, "type": ["null", record(n, row, USUAL)]} for n in ("before", "after")]
    block = {"name": "source", "type": record("Source", source(), USUAL)}
    return {
        "type": "record",
        "name": "E",
        "fields": [*images, block, {"name": "op", "type": "string"}],
    }


def id_of(row):
    return SOURCE.put(schema_of(row))


def event(op, row, lsn, *, new=None, old=None, **told):
    """A record: its key, its value and its headers."""
    images = {"before": row if op == "d" else None, "after": None if op == "d" else row}
    value = {**images, "source": source(lsn, **told), "op": op}
    moved = {"__debezium.newkey": new, "__debezium.oldkey": old}
    headers = [{"key": n, "value": key_of({"id": k})} for n, k in moved.items() if k is not None]
    return key_of(row), confluent(id_of(row), datum(schema_of(row), value)), headers


def decoded(*events, metadata=ASKED):
    plan = StretchPlan(
        SourceIdentity("postgresql", "shop"),
        HandlingModes(),
        converter=ConverterChoice(NAME),
        metadata=metadata,
    )
    keys, values, headers = map(list, zip(*events, strict=True))
    found = decoder.decode_range(
        Records(TOPIC, 0, [*range(len(keys))], keys, values, headers), plan
    )
    assert found.dead == []
    # As they come out of a shuffle.
    packets = [change_batch.decode(change_batch.encode(packet)) for _, packet in found.packets]
    return [Part("0", n, packet) for n, packet in enumerate(packets)]


class Lake:
    def __init__(self, path, *, engine=TASK_MERGE, deletes="hard"):
        self.path, self.engine, self.deletes, self.batch = str(path), engine, deletes, 0
        self.pending = -1

    def apply(self, parts, *, metadata=ASKED):
        own = TablePlan(
            self.path, deletes=self.deletes, metadata=metadata, engine=self.engine, partial=True,
            pending=self.pending,
        )  # fmt: skip
        done = apply(TABLE, parts, LakePlan("q", self.batch, "stream", lambda _: own))
        self.pending = self.batch if done.pending else -1
        self.batch += 1

    def ids(self):
        rows = pa.table(DeltaTable(self.path).scan()).to_pylist()
        return {row["id"]: row["_cdc"]["schema_id"] for row in rows}


@pytest.fixture(params=[TASK_MERGE, DELETION_VECTORS])
def lake(request, tmp_path):
    return Lake(tmp_path / "t", engine=request.param)


def short(key, text="a"):
    return {"id": key, "text": text}


def wide(key, text="a"):
    return {"id": key, "text": text, "more": 1}


OLD, NEW = id_of(short(0)), id_of(wide(0))


def test_each_row_has_the_schema_of_its_newest_event(lake):
    lake.apply(decoded(event("c", short(1), 1), event("c", short(2), 2), event("c", wide(3), 3)))
    assert lake.ids() == {1: OLD, 2: OLD, 3: NEW}
    lake.apply(decoded(event("u", wide(2), 4), event("u", wide(1, LACKING), 5)))
    assert lake.ids() == {1: NEW, 2: NEW, 3: NEW}


def test_schemas_that_are_alike_have_their_own_numbers_also_event_by_event(lake):
    """Whoever registers a schema with another doc has another number, and the same columns."""
    documented = {**schema_of(short(0)), "doc": "again"}
    number = SOURCE.put(documented)

    def again(op, row, lsn):
        key, value, headers = event(op, row, lsn)
        return key, confluent(number, value[5:]), headers

    lake.apply(decoded(event("c", short(1), 1), again("u", short(1, LACKING), 2),
                       again("c", short(2), 3), event("u", short(2, LACKING), 4)))  # fmt: skip
    assert lake.ids() == {1: number, 2: OLD}


def test_a_deleted_row_has_the_schema_of_its_delete(tmp_path):
    lake = Lake(tmp_path / "t", deletes="soft")
    lake.apply(decoded(event("c", short(1), 1)))
    lake.apply(decoded(event("d", wide(1), 2)))
    assert lake.ids() == {1: NEW}


def test_halves_of_a_key_change_that_come_apart_keep_the_schema_of_their_own_event(lake):
    lake.apply(decoded(event("c", short(1, "long"), 1)))
    lake.apply(decoded(event("d", short(1, LACKING), 2, new=2)))
    lake.apply(decoded(event("c", wide(2, LACKING), 2, old=1)))
    assert lake.ids() == {2: NEW}
    (row,) = pa.table(DeltaTable(lake.path).scan()).to_pylist()
    assert row["text"] == "long"


def test_a_row_that_was_displaced_and_is_back_has_its_own_schema_again(lake):
    """Under a deferrable key a delete of the same transaction is of the row that came last."""
    lake.apply(decoded(event("c", short(2, "two"), 1)))
    lake.apply(decoded(event("c", wide(2, "one"), 3, old=1)))
    assert lake.ids() == {2: NEW}
    lake.apply(decoded(event("d", wide(2, "one"), 3, new=3, sequence='["24","26"]')))
    assert lake.ids() == {2: OLD}


def test_rows_that_were_read_have_none(lake):
    rows = pa.array([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
    rows = rows.cast(pa.struct({"id": pa.int32(), "text": pa.string()}))
    keys = change_batch.KeyColumns(("id",))
    read = change_batch.reads(
        pa.array([b"[1]", b"[2]"]), rows, source_ts=0, table=TABLE, key_columns=keys
    )
    lake.apply([Part("chunks", 0, change_batch.as_of(read, at(1)))])
    assert lake.ids() == {1: None, 2: None}
    lake.apply(decoded(event("u", short(2), 9)))
    assert lake.ids() == {1: None, 2: OLD}
    newer = change_batch.as_of(read, at(99))
    lake.apply([Part("chunks", 0, newer), *decoded(event("c", short(3), 9))])
    assert lake.ids() == {1: None, 2: None, 3: OLD}


def test_switched_on_it_is_known_from_then_on_and_switched_off_it_is_null(lake):
    lake.apply(decoded(event("c", short(1), 1), metadata=()), metadata=())
    cdc = pa.schema(DeltaTable(lake.path).schema().to_arrow()).field("_cdc").type
    assert "schema_id" not in {member.name for member in cdc}
    lake.apply(decoded(event("c", short(2), 2)))
    assert lake.ids() == {1: None, 2: OLD}
    lake.apply(decoded(event("u", short(2), 3), metadata=()), metadata=())
    assert lake.ids() == {1: None, 2: None}
