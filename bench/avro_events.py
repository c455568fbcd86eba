"""The events of `events.Orders` in Avro, as a connector's converter writes them with a registry.

Confluent's form: a zero, the id of the schema in four bytes, the datum. The source block has every
field that Debezium 3.7 writes, as a schema has it: `Orders(full=False)` leaves out some of JSON.
"""

import io
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import fastavro
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from bench.events import AVRO, Orders

PREFIX: Final = 5
"""Bytes before a datum."""
_DECIMAL: Final = {
    "type": "bytes",
    "scale": 2,
    "precision": 12,
    "connect.version": 1,
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "12"},
    "connect.name": "org.apache.kafka.connect.data.Decimal",
    "logicalType": "decimal",
}
_MOMENT: Final = {
    "type": "long",
    "connect.version": 1,
    "connect.name": "io.debezium.time.MicroTimestamp",
}
_ALLOWED: Final = (
    "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
)
_SNAPSHOT: Final = {
    "type": "string",
    "connect.version": 1,
    "connect.parameters": {"allowed": _ALLOWED},
    "connect.default": "false",
    "connect.name": "io.debezium.data.Enum",
}


def key_schema(table: str) -> str:
    """The schema of a table's keys."""
    return json.dumps(_record("Key", _space(table), id="long"))


def value_schema(table: str) -> str:
    """The schema of a table's events."""
    row = _record(
        "Value", "", id="long", customer_id="long", status="string", quantity="int",
        amount=_DECIMAL, updated_at=_MOMENT, note=_or_null("string"),
    )  # fmt: skip
    source = _record(
        "Source", "io.debezium.connector.postgresql",
        version="string", connector="string", name="string", ts_ms="long",
        snapshot=[_SNAPSHOT, "null"], db="string", sequence=_or_null("string"),
        ts_us=_or_null("long"), ts_ns=_or_null("long"), schema="string", table="string",
        txId=_or_null("long"), lsn=_or_null("long"), xmin=_or_null("long"),
        origin=_or_null("string"), origin_lsn=_or_null("long"),
    )  # fmt: skip
    block = _record("block", "event", id="string", total_order="long", data_collection_order="long")
    envelope = _record(
        "Envelope", _space(table),
        before=_or_null(row), after=_or_null("Value"), source=source, transaction=_or_null(block),
        op="string", ts_ms=_or_null("long"), ts_us=_or_null("long"), ts_ns=_or_null("long"),
    )  # fmt: skip
    return json.dumps(envelope)


def schemas(table: str) -> dict[str, str]:
    """The schemas of a table's keys and values."""
    return {"key": key_schema(table), "value": value_schema(table)}


def registered(registry: str, table: str) -> dict[str, int]:
    """The ids of a table's schemas in a registry with Confluent's API, which has them then."""
    client, topic = SchemaRegistryClient({"url": registry}), AVRO.topic_of(table)
    return {
        side: client.register_schema(f"{topic}-{side}", Schema(text, "AVRO"))
        for side, text in schemas(table).items()
    }


class AvroOrders:
    """Events in Avro.

    Args:
        orders: the events.
        ids: of the schemas of keys and values, see `registered`.
    """

    def __init__(self, orders: Orders, ids: Mapping[str, int]) -> None:
        self._orders = orders.in_form(AVRO)
        self._heads = {side: b"\0" + one.to_bytes(PREFIX - 1) for side, one in ids.items()}
        texts = schemas(orders.table)
        self._schemas = {side: fastavro.parse_schema(json.loads(texts[side])) for side in ids}

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, as Kafka gets them."""
        for key, value in self._orders.records():
            event = json.loads(value, parse_float=Decimal)
            yield self._written("key", json.loads(key)), self._written("value", event)

    def _written(self, side: str, value: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        out.write(self._heads[side])
        fastavro.schemaless_writer(out, self._schemas[side], value)
        return out.getvalue()


def _space(table: str) -> str:
    return AVRO.topic_of(table)


def _or_null(kind: Any) -> list[Any]:
    return ["null", kind]


def _record(name: str, space: str, /, **types: Any) -> dict[str, Any]:
    """A record; what may be null is null unless it is told."""
    fields = [
        {"name": field, "type": kind}
        | ({"default": None} if isinstance(kind, list) and kind[0] == "null" else {})
        for field, kind in types.items()
    ]
    named = {"type": "record", "name": name, "fields": fields}
    return named | ({"namespace": space} if space else {})
