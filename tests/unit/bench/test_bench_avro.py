"""The benchmark's events in Avro are those that it has in JSON."""

import itertools
import json

from bench import avro_events, events, stream
from bench.events import Orders
from bench.ours import ENGINES
from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.json.converter import JsonConverter
from lakemark.model.decoding import Records, StretchPlan
from lakemark.model.events import Kind, SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from tests.kit.avro_records import DictSource


def test_events_in_avro_are_the_same_changes():
    """By the schemas that are registered; amounts are exact, and the rows are equal."""
    orders = Orders("orders", events=300, keys=60, before=True)
    source = DictSource()
    schemas = avro_events.schemas("orders")
    ids = {side: source.put(json.loads(text)) for side, text in schemas.items()}
    keys, values = zip(*avro_events.AvroOrders(orders, ids).records(), strict=True)
    converter = AvroConverter(JsonConverter(), lambda _: source)
    count = len(values)
    records = Records("t", 0, [*range(count)], [*keys], [*values], [None] * count)
    plan = StretchPlan(SourceIdentity("postgresql", events.AVRO_NAME), HandlingModes())
    heads = converter.headers(records, plan)
    assert (set(heads.kind), set(heads.table)) == ({int(Kind.CHANGE)}, {"public.orders"})
    assert heads.op == orders.op
    assert all(a < b for a, b in itertools.pairwise(heads.position))
    schema = converter.schema_of("public.orders", heads.schema[0], keys[0])
    assert schema.key == ("id",)
    for n, image in enumerate(heads.after):
        if image is not None:
            (row,) = converter.rows([image], schema, plan.modes).columns.to_pylist()
            (expected,) = events.as_table([orders.row(n)]).to_pylist()
            assert row == expected
    assert [image is None for image in heads.before] == [
        '"before":null' in value.decode() for _, value in orders.records()
    ]


def test_lakemark_and_the_usual_pipeline_can_read_avro():
    options = stream.parse(["--format", "avro"])
    assert options.format == "avro"
    able = [one.who for each in stream.CONTESTANTS if (one := stream.in_avro(each))]
    assert able == [f"lakemark-{engine}, avro" for engine in ENGINES] + ["usual, avro"]
    assert stream.in_avro(stream.in_avro(stream.CONTESTANTS[0])) is None
