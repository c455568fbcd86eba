"""Output topics in another form than the connector's records, over the real driver and tasks."""

import io
import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import fastavro
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakemark.converters import registry
from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.avro.schema_source import SchemaReference, SchemaRefusedError
from lakemark.converters.json.converter import JsonConverter
from lakemark.errors import DependencyError
from lakemark.model import change_batch
from lakemark.model.decoding import (
    ANY_CONVERTER,
    ConverterChoice,
    ConverterOptions,
    Records,
    StretchPlan,
)
from lakemark.model.events import ANY_SOURCE, Learnt
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink.output import transaction
from lakemark.sink.output.publisher import OutputPlan, RowPublisher
from lakemark.state.schema_refresh import LOOK_S
from tests.kit.avro_records import DictSource, confluent, datum
from tests.kit.memory_pipeline import Broker
from tests.kit.memory_topics import MemoryTopics
from tests.kit.nightly import examples
from tests.kit.shop import ORDERS, Shop, event, schema_of
from tests.model.test_rows_in_any_order import of_chunk
from tests.unit.pipeline.test_outputs import PLACEHOLDER, STEPS, Source, consume

AVRO = "io.confluent.connect.avro.AvroConverter"
CLEAN = f"clean.{ORDERS}"
THEIRS, OURS = "http://theirs", "http://ours"
AVRO_IN = ConverterChoice("avro", ConverterOptions(own=(("schema.registry.url", THEIRS),)))
COLUMNS = {"id": "int4", "v": "int4", "big": "text"}
ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "v", "type": ["null", "int"], "default": None},
        {"name": "big", "type": ["null", "string"], "default": None},
    ],
}
SOURCE = {
    "type": "record",
    "name": "Source",
    "fields": [
        *({"name": n, "type": "string"} for n in ("version", "connector", "name")),
        *({"name": n, "type": "long"} for n in ("ts_ms", "ts_us")),
        *({"name": n, "type": "string"} for n in ("snapshot", "db", "schema", "table")),
        *({"name": n, "type": ["null", "long"]} for n in ("txId", "lsn", "xmin")),
        {"name": "sequence", "type": ["null", "string"]},
    ],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.orders",
    "fields": [
        {"name": "before", "type": ["null", ROW]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
    ],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}


class Registry(DictSource):
    """Takes schemas, unless it is told not to."""

    refuses = False
    away = False

    def register(self, subject, text):
        if self.away:
            raise DependencyError("the registry is away", code="registry-unavailable")
        if self.refuses:
            raise SchemaRefusedError(f"{subject} is not compatible")
        return super().register(subject, text)


class AvroBroker(Broker):
    """Takes records in JSON, and has them as a connector with Avro writes them."""

    def __init__(self, source) -> None:
        super().__init__()
        self.key, self.value = source.put(KEY), source.put(ENVELOPE)

    def put(self, topic, partition, key, value, headers=None):
        raw = key and confluent(self.key, datum(KEY, json.loads(key)))
        super().put(topic, partition, raw, value and self.event(value), headers)

    def event(self, value):
        event = json.loads(value)
        if event["before"]:
            event["before"] |= {"v": None, "big": None}
        return confluent(self.value, datum(ENVELOPE, event))


class AvroTopics(MemoryTopics):
    """Reads what was written as a consumer does that has the registry, and fastavro."""

    def __init__(self, source) -> None:
        super().__init__()
        self.source = source

    def read(self, raw):
        text = self.source.texts[SchemaReference("id", int.from_bytes(raw[1:5]))]
        return fastavro.schemaless_reader(io.BytesIO(raw[5:]), json.loads(text), None)

    def events(self, topic):
        return [
            (
                self.read(m.key)["id"],
                bytes.fromhex(dict(m.headers)["lakemark.position"].decode()),
                None if m.value is None else self.read(m.value),
            )
            for m in self.records[topic]
        ]


@pytest.fixture
def registries(monkeypatch):
    """The registry of the connector, and another one of ours."""
    with patched(monkeypatch) as found:
        yield found


class patched:  # noqa: N801 - read as a statement
    def __init__(self, patch) -> None:
        self.patch, self.found = patch, {THEIRS: Registry(), OURS: Registry()}
        self.found[OURS].put({"type": "long"})  # its numbers are others

    def __enter__(self):
        def of(options):
            return self.found[dict(options.own)["schema.registry.url"]]

        avro = AvroConverter(JsonConverter(), of, registries=of)
        self.patch.setitem(registry.CONVERTERS, "avro", avro)
        registry.converter_of.cache_clear()
        return self.found

    def __exit__(self, *_):
        registry.converter_of.cache_clear()


def shop_in(root, form, *, broker=None):
    told = {"topic_prefix": "clean", "format": form}
    if form == "avro":
        told["converter"] = {"schema.registry.url": OURS}
    schemas = {ORDERS: schema_of(ORDERS, **COLUMNS)}
    return Shop(Path(root), broker or Broker(), schemas, sections={"output": told})


def reading_avro(shop, form, told):
    """Let the connector write Avro."""
    its = {"key.converter": AVRO, "value.converter": AVRO}
    writer = registry.output_choice(its, {"schema.registry.url": THEIRS}, format_=form, told=told)
    shop.reconnect(converter=AVRO_IN, writer=writer)


@settings(max_examples=examples(12, nightly=400))
@example(
    steps=[("write", 1), ("write", 4), ("batch",), ("delete", 4), ("touch", 1), ("truncate",)],
    seed=0,
)
@given(
    steps=st.lists(STEPS, min_size=5, max_size=40),
    seed=st.integers(0, 1 << 16),
)
def test_what_is_sent_in_json_arrives_in_avro(steps, seed):
    with TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch, patched(patch) as of:
        out = AvroTopics(of[OURS])
        patch.setattr(transaction, "write", out.write)
        shop = shop_in(root, "avro")
        source = Source(shop)
        source.play(steps, out, random.Random(seed))
        arrived = consume(out)
        assert not [entry.code for entry in shop.state.tables.values() if entry.code]
        assert arrived.keys() == source.rows.keys()
        for key, row in arrived.items():
            assert row in (source.rows[key], (source.rows[key][0], PLACEHOLDER))
        assert of[OURS].subjects.keys() <= {f"{CLEAN}-key", f"{CLEAN}-value"}
        ids = [dict(m.headers)["lakemark.id"] for m in out.records[CLEAN]]
        assert len(ids) == len(set(ids))


def avro_shop(tmp_path, of, form, told):
    shop = shop_in(tmp_path, None, broker=AvroBroker(of[THEIRS]))
    reading_avro(shop, form, told)
    return shop


def played(shop):
    shop.put("c", 10, 1, v=1, big="large")
    shop.put("c", 11, 2, v=1, big="small")
    shop.put("u", 12, 1, v=2, big=PLACEHOLDER)
    shop.put("d", 13, 2)
    shop.run()
    assert shop.values() == {1: 2}
    return shop.broker.topics[f"shop.{ORDERS}"][0]


@pytest.mark.parametrize("form", [None, "avro"])
def test_avro_stays_as_it_came_and_its_schema_gets_the_subject_of_the_topic(
    registries, monkeypatch, tmp_path, form
):
    out = AvroTopics(registries[THEIRS])
    monkeypatch.setattr(transaction, "write", out.write)
    sent = played(avro_shop(tmp_path, registries, form, {}))
    written = [(m.key, m.value) for m in out.records[CLEAN] if m.value is not None]
    came = [(key, value) for key, value, _ in sent]
    whole = {**out.read(sent[2][1]), "after": {"id": 1, "v": 2, "big": "large"}}
    put_in = confluent(registries[THEIRS].put(ENVELOPE), datum(ENVELOPE, whole))
    assert written == [*came[:2], (came[2][0], put_in), came[3]]
    subjects = registries[THEIRS].subjects
    assert {name: len(texts) for name, texts in subjects.items()} == {
        f"{CLEAN}-key": 1, f"{CLEAN}-value": 1,
    }  # fmt: skip
    assert json.loads(subjects[f"{CLEAN}-value"][0]) == ENVELOPE


def test_avro_of_another_registry_is_the_same_datum_under_another_number(
    registries, monkeypatch, tmp_path
):
    out = AvroTopics(registries[OURS])
    monkeypatch.setattr(transaction, "write", out.write)
    told = {"schema.registry.url": OURS, "value.subject.name.strategy": "x.RecordNameStrategy"}
    sent = played(avro_shop(tmp_path, registries, "avro", told))
    first = out.records[CLEAN][0]
    assert (first.key[5:], first.value[5:]) == (sent[0][0][5:], sent[0][1][5:])
    assert "lakemark.schema" not in dict(first.headers), "the bytes have it"
    assert first.value[:5] != sent[0][1][:5]
    assert consume(out) == {1: (2, "large")}
    assert registries[OURS].subjects.keys() == {f"{CLEAN}-key", "shop.public.orders.Envelope"}
    assert not registries[THEIRS].subjects


@pytest.mark.parametrize("wraps", ["true", "false"])
def test_avro_goes_out_as_json(registries, monkeypatch, tmp_path, wraps):
    out = MemoryTopics()
    monkeypatch.setattr(transaction, "write", out.write)
    played(avro_shop(tmp_path, registries, "json", {"schemas.enable": wraps}))
    events = [json.loads(m.value) for m in out.records[CLEAN] if m.value]
    keys = [json.loads(m.key) for m in out.records[CLEAN]]
    assert {*events[0]} == ({"schema", "payload"} if wraps == "true" else {*events[0]} - {"schema"})
    rows = [event.get("payload", event)["after"] for event in events]
    assert rows == [
        {"id": 1, "v": 1, "big": "large"}, {"id": 2, "v": 1, "big": "small"},
        {"id": 1, "v": 2, "big": "large"}, None,
    ]  # fmt: skip
    assert [key.get("payload", key) for key in keys][:2] == [{"id": 1}, {"id": 2}]
    assert not registries[THEIRS].subjects
    number = str(registries[THEIRS].put(ENVELOPE)).encode()
    named = [dict(m.headers).get("lakemark.schema") for m in out.records[CLEAN]]
    assert named == [number if m.value else None for m in out.records[CLEAN]]


def test_a_schema_that_is_refused_stops_the_table_and_loses_nothing(
    registries, monkeypatch, tmp_path
):
    out, ours = AvroTopics(registries[OURS]), registries[OURS]
    monkeypatch.setattr(transaction, "write", out.write)
    shop, ours.refuses = shop_in(tmp_path, "avro"), True
    shop.put("c", 10, 1, v=1, big="x")
    shop.run()
    assert shop.state.tables[ORDERS].code == "output-schema-refused"
    assert not out.records[CLEAN]
    ours.refuses = False
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.run()
    shop.run()
    assert consume(out) == {1: (1, "x")}
    assert not shop.state.tables[ORDERS].code


def test_a_registry_that_is_away_holds_the_batch_and_makes_no_dead_letter(
    registries, monkeypatch, tmp_path
):
    out, ours = AvroTopics(registries[OURS]), registries[OURS]
    monkeypatch.setattr(transaction, "write", out.write)
    shop, ours.away = shop_in(tmp_path, "avro"), True
    shop.put("c", 10, 1, v=1, big="x")
    with pytest.raises(DependencyError):
        shop.run()
    ours.away = False
    shop.again()
    assert consume(out) == {1: (1, "x")}
    assert not shop.state.tables[ORDERS].code


# -- rows of snapshots -----------------------------------------------------------------------------

ROWS_OF = {
    "json to avro": (None, OURS, True),
    "avro to avro": (ENVELOPE, THEIRS, True),
    "avro of a table without an event": (None, THEIRS, True),
    "avro, as it is, of a table without an event": (None, THEIRS, False),
    "avro to json": (ENVELOPE, None, True),
}


@pytest.mark.parametrize("way", [*ROWS_OF])
def test_rows_of_a_snapshot_have_the_form_of_the_topic(registries, monkeypatch, way):
    known, address, converts = ROWS_OF[way]
    is_json = way.startswith("json")
    out = AvroTopics(registries[address]) if address else MemoryTopics()
    monkeypatch.setattr(transaction, "write", out.write)
    reader = ANY_CONVERTER if is_json else AVRO_IN
    learnt = shown(registry.converter_of(reader), registries[THEIRS], plain=is_json)
    if not known:
        learnt = Learnt(learnt.event)
    to = ConverterChoice("json")
    if address:
        to = ConverterChoice("avro", ConverterOptions(own=(("schema.registry.url", address),)))
    plan = OutputPlan(
        "shop", "clean", "control", "q", 1,
        wrapped=not is_json, learnt=learnt, converter=reader, writer=to, converts=converts,
    )  # fmt: skip
    packets = [change_batch.decode(blob) for _, _, blob in of_chunk(0, [1, 2, 3])]
    schema = schema_of(ORDERS, id="int4", v="int4", big="text")
    RowPublisher(ORDERS, plan, HandlingModes(), packets, packets, schema)(b"", 7)
    events = out.events(CLEAN) if address else plain_events(out)
    rows = {key: value for key, _, value in events if value}
    assert {key: value["op"] for key, value in rows.items()} == {1: "r", 2: "r", 3: "d"}
    assert [rows[key]["after"]["v"] for key in (1, 2)] == ["v1", "v2"]
    assert sum(value is None for _, _, value in events) == 1, "a tombstone"
    ids = [dict(m.headers)["lakemark.id"].decode() for m in out.records[CLEAN]]
    assert not any("schema" in one for one in ids)
    if address:
        assert registries[address].subjects.keys() == {f"{CLEAN}-key", f"{CLEAN}-value"}
        assert all(len(texts) == 1 for texts in registries[address].subjects.values())


VALUE = {
    **ENVELOPE,
    "fields": [
        {"name": "before", "type": ["null", {
            "type": "record", "name": "Value", "fields": [
                {"name": "id", "type": "long"}, {"name": "v", "type": ["null", "string"]},
            ],
        }]},
        *ENVELOPE["fields"][1:],
    ],
}  # fmt: skip


def shown(converter, source, *, plain):
    """What one event of the connector shows."""
    raw = event("u", 9, {"id": 1, "v": "a"})
    key = b'{"id":1}'
    if not plain:
        ids = source.put(KEY), source.put(VALUE)
        key = confluent(ids[0], datum(KEY, {"id": 1}))
        raw = confluent(ids[1], datum(VALUE, json.loads(raw)))
    records = Records("t", 0, [0], [key], [raw], [None])
    heads = converter.headers(records, StretchPlan(ANY_SOURCE, HandlingModes()))
    return converter.learn(records, heads)


def plain_events(out):
    return [
        (json.loads(m.key)["payload"]["id"], None, m.value and json.loads(m.value)["payload"])
        for m in out.records[CLEAN]
    ]


# -- what a table says of its records' schema ------------------------------------------------------


def test_a_table_says_that_the_database_has_another_type_than_its_records(
    registries, monkeypatch, tmp_path
):
    """As where somebody has edited the schema in the registry: both are kept, in the wider type."""
    out = MemoryTopics()
    monkeypatch.setattr(transaction, "write", out.write)
    shop = avro_shop(tmp_path, registries, "json", {})
    clock = [0.0]
    shop.pipeline.refresh.clock = lambda: clock[0]
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, id="int4", v="int8", big="text")
    shop.pipeline.schemas.update(shop.catalog.schemas)
    shop.put("c", 10, 1, v=1, big="x")
    shop.run()
    told = "v is int32 in its records and int64 in the database"
    assert shop.state.tables[ORDERS].disagrees == told
    assert shop.values() == {1: 1}
    shop.catalog.schemas[ORDERS] = schema_of(ORDERS, **COLUMNS)
    for lsn, still in ((11, told), (12, "")):
        shop.put("u", lsn, 1, v=2, big="x")
        shop.run()
        assert shop.state.tables[ORDERS].disagrees == still
        clock[0] += LOOK_S
