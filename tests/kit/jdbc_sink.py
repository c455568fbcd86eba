"""Debezium's JDBC sink: it makes tables of a database equal to topics, and is not ours."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from stack.avro import avro_settings
from stack.connect import Worker
from stack.database import Database
from stack.registry import Registry
from tests.kit.documents import ROOT, blocks

JDBC = "jdbc"
PAGE = ROOT / "examples" / "outputs" / "README.md"
"""Has the sink's settings, but for addresses and the converter."""


def table_of(topic: str) -> str:
    """The table that the sink makes of a topic."""
    return topic.replace(".", "_")


@dataclass(frozen=True)
class JdbcSink:
    """The sink, as its connector in Connect."""

    connect: Worker
    name: str

    def require_running(self) -> None:
        """Return if nothing of it has failed, else raise with the trace."""
        self.connect.wait_running(self.name)


@contextmanager
def jdbc_sink(target: Database, topics: Sequence[str], registry: Registry) -> Iterator[JdbcSink]:
    """Have topics in Avro written into a database, whose tables the sink makes and changes itself.

    Connect must have the plugin `JDBC`.
    """
    connect, name = target.stack.connect, f"{target.name}-sink"
    host, port = target.server.for_connect
    (page,) = (b for b in blocks("json") if b.page == PAGE)
    ours = {
        "topics": ",".join(topics),
        "connection.url": f"jdbc:postgresql://{host}:{port}/{target.name}",
        "connection.username": target.server.user,
        "connection.password": "trusted",
    }
    settings = json.loads(page.text)
    assert {*ours} < {*settings}
    converters = {n: v for n, v in avro_settings(registry.url).items() if ".converter" in n}
    connect.put_connector(name, {**settings, **ours, **converters})
    try:
        sink = JdbcSink(connect, name)
        sink.require_running()
        yield sink
    finally:
        connect.delete_connector(name)
