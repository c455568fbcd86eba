"""Events of one batch from before and after an ALTER TYPE, their schemas in them.

The table must then be what it is where the two come in two batches.
"""

import base64
import json
from decimal import Decimal

import pytest
from deltalake import DeltaTable

from lakemark.errors import TableError
from lakemark.model.decoding import Records, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink.apply import apply
from lakemark.sink.lake_plan import LakePlan, TablePlan
from lakemark.sink.resolve import Part
from lakemark.source import decoder

TABLE = "public.orders"
TOGETHER = pytest.mark.parametrize("together", [False, True], ids=["two batches", "one batch"])


def plain(kind: str) -> dict:
    return {"type": kind, "optional": True, "field": "v"}


def decimal(precision: int, scale: int) -> dict:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    name = "org.apache.kafka.connect.data.Decimal"
    return {**plain("bytes"), "name": name, "version": 1, "parameters": parameters}


def cell(value: str, scale: int) -> str:
    number = int(Decimal(value).scaleb(scale))
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()  # fmt: skip


def event(at: int, key: int, kind: dict, value: object) -> tuple[bytes, bytes]:
    """Key and value of an insert."""
    fields = [{"type": "int64", "optional": False, "field": "id"}, kind]
    row = {"type": "struct", "fields": fields, "optional": True, "name": "V"}
    members = [
        {**row, "field": "before"}, {**row, "field": "after"},
        {"type": "struct", "fields": [], "field": "source"}, {"type": "string", "field": "op"},
    ]  # fmt: skip
    source = {
        "version": "3.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": at,
        "snapshot": "false", "db": "d", "sequence": json.dumps([str(8 * at), str(8 * at + 8)], separators=(",", ":")),
        "ts_us": at * 1000, "schema": "public", "table": "orders", "lsn": 8 * at + 8,
    }  # fmt: skip
    after = {"id": key, "v": value}
    payload = {"before": None, "after": after, "source": source, "op": "c", "ts_ms": at}
    envelope = {"type": "struct", "fields": members, "name": "Envelope"}
    keyed = {"schema": {**row, "fields": fields[:1]}, "payload": {"id": key}}
    return json.dumps(keyed).encode(), json.dumps({"schema": envelope, "payload": payload}).encode()


def run(path: str, *batches: list[tuple[bytes, bytes]]) -> dict[int, object]:
    """The table's values after these batches."""
    for number, events in enumerate(batches):
        keys, values = map(list, zip(*events, strict=True))
        numbers = list(range(len(events)))
        records = Records("shop.public.orders", 0, numbers, keys, values, [None] * len(keys))  # fmt: skip
        identity = SourceIdentity("postgresql", "shop")
        done = decoder.decode_range(records, StretchPlan(identity, HandlingModes()))
        assert not done.dead
        assert not done.stopped()
        parts = [Part("p/0", at, packet, digest=at) for at, (_, packet) in enumerate(done.packets)]
        apply(TABLE, parts, LakePlan("q", number, "stream", lambda _: TablePlan(path)))
    return {row["id"]: row["v"] for row in DeltaTable(path).to_pyarrow_table().to_pylist()}


def batches(old: dict, x: object, new: dict, y: object, *, together: bool):
    first, second, third = event(1, 0, old, x), event(2, 1, old, x), event(3, 2, new, y)
    return [[first], [second, third]] if together else [[first], [second], [third]]


@TOGETHER
@pytest.mark.parametrize("digits", [(5, 2), (10, 2), (12, 2), (12, 4), (20, 2), (38, 2)])
@pytest.mark.parametrize("kind", ["int16", "int32", "int64"])
@pytest.mark.sampled(8)
def test_an_integer_becomes_numeric(tmp_path, kind, digits, together):
    given = batches(plain(kind), 7, decimal(*digits), cell("1.5", digits[1]), together=together)
    assert run(str(tmp_path / "t"), *given) == {0: 7, 1: 7, 2: Decimal("1.5")}


@TOGETHER
@pytest.mark.parametrize(
    ("old", "x", "new", "y"),
    [
        (plain("double"), 0.5, decimal(38, 5), cell("1234567890123456789.12345", 5)),
        (plain("bytes"), "YQ==", plain("string"), "text"),
        (plain("float"), 0.5, plain("int32"), 16777217),
        (plain("double"), 0.5, plain("int64"), 7),
        (plain("string"), "a", plain("bytes"), "YQ=="),
        (plain("int32"), 1, plain("double"), 0.5),
    ],
)
@pytest.mark.sampled(4)
def test_what_no_type_can_hold_stops_the_table(tmp_path, old, x, new, y, together):
    with pytest.raises(TableError) as caught:
        run(str(tmp_path / "t"), *batches(old, x, new, y, together=together))
    assert caught.value.code == "schema-incompatible"
    if together:
        assert "'v'" in caught.value.message


@TOGETHER
def test_a_wider_type_and_another_column(tmp_path, together):
    wide = {"type": "double", "optional": True, "field": "v"}
    given = batches(plain("float"), 0.5, wide, 0.1, together=together)
    assert run(str(tmp_path / "t"), *given) == {0: 0.5, 1: 0.5, 2: 0.1}
