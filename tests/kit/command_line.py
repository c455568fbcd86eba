"""The command line in a folder of its own, without brokers."""

import contextlib
import json
import sys
import types
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

import lakemark.kafka
from lakemark.cli import cli
from lakemark.ops import overview
from lakemark.state import control

SMALL = """\
name: shop
kafka: {bootstrap_servers: "localhost:9092"}
source: {connector_file: shop.json, tables: [public.orders, public.customers]}
lake: {path: ./lake}
checkpoint: ./checkpoint
database: {url: "postgresql://u@h/d", password: hush-4hush}
"""
CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "topic.prefix": "shop",
    "skipped.operations": "none",
    "signal.data.collection": "public.debezium_signal",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}


class Kept(NamedTuple):
    """A record of a compacted topic."""

    key: bytes
    value: bytes
    timestamp_ms: int = 1_700_000_000_000


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAKEMARK_CONFIG", raising=False)
    (tmp_path / "lakemark.yaml").write_text(SMALL)
    (tmp_path / "shop.json").write_text(json.dumps(CONNECTOR))
    return tmp_path


def invoke(*arguments: str, **options):
    result = CliRunner().invoke(cli.app, list(arguments), **options)
    assert "Traceback" not in result.output or "--debug" in arguments
    assert "hush-4hush" not in result.output
    return result


@pytest.fixture
def kafka(monkeypatch):
    """Stands in for the modules that talk to the brokers."""
    stub = types.ModuleType("lakemark.kafka.brokers")
    stub.published, stub.records = [], {}
    stub.publish = lambda config, topic, records: stub.published.extend(
        (topic, *r) for r in records
    )
    own = ("control", "signals", "notifications", "dead-letters")
    stub.partitions = {f"shop.{name}": 1 for name in own}

    class Cluster(contextlib.nullcontext):
        def __init__(self, config):
            super().__init__(self)

        def partition_counts(self, topics):
            return {t: stub.partitions[t] for t in topics if t in stub.partitions}

        def end_offsets(self, topics):
            return {place: end for place, end in stub.ends.items() if place[0] in topics}

        def start_offsets(self, topics):
            return {place: 0 for place in stub.ends if place[0] in topics}

    stub.ends = {}  # by topic and partition
    stub.Cluster = Cluster
    stub.answers = []  # values, or functions of the published records that make one

    class Tail(contextlib.nullcontext):
        def __init__(self, config, topic):
            assert topic == "shop.notifications"
            super().__init__(self)

        def value(self, seconds):
            answer = stub.answers.pop(0) if stub.answers and stub.published else None
            if isinstance(answer, BaseException):
                raise answer
            return answer(stub.published) if callable(answer) else answer

    stub.Tail = Tail
    stub.read_compacted = lambda config, topic: stub.records
    stub.notifications = []  # values
    stub.signals = []  # records of the signals topic
    stub.letters = []  # records of the dead-letters topic

    def read_all(config, topic, *, since_ms=None):
        if topic == "shop.progress":
            return iter([Kept(key, value) for key, value in stub.records.items()])
        if topic == "shop.notifications":
            return iter([Kept(b"", value) for value in stub.notifications])
        stub.since_ms = since_ms
        return iter({"shop.signals": stub.signals, "shop.dead-letters": stub.letters}[topic])

    stub.read_all = read_all
    for name in ("brokers", "records"):
        monkeypatch.setitem(sys.modules, f"lakemark.kafka.{name}", stub)
        monkeypatch.setattr(lakemark.kafka, name, stub, raising=False)
        monkeypatch.setattr(control, name, stub)
    monkeypatch.setattr(overview, "read_all", read_all)
    monkeypatch.setattr(overview, "Cluster", Cluster)
    return stub
