"""A broker that keeps a thing from all but those whom its rights name, if there are any."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stack.kafka import Kafka

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}


@contextmanager
def strict_kafka(directory: Path, **settings: str) -> Iterator[Kafka]:
    """Runs one in the block; whoever connects is ANONYMOUS.

    Args:
        directory: an empty one.
        settings: of the broker besides, `_` for `.`.
    """
    rights = {**AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    more = {name.replace("_", "."): value for name, value in settings.items()}
    data = directory / "kafka"
    data.mkdir()
    broker = Kafka(directory=data, log=directory / "kafka.log", settings=rights | more)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()
