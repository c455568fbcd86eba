"""Signals that come in the same poll as a login that is refused: they are read again."""

import json
from types import SimpleNamespace
from typing import ClassVar

from confluent_kafka import KafkaError

from lakemark.connectors.connector import read
from lakemark.errors import LakemarkError
from lakemark.snapshot import adapters
from lakemark.snapshot.adapters import Adapters
from tests.kit.connector_settings import POSTGRES


class Message:
    """A record of the signals topic."""

    def __init__(self, at: int, key: bytes, value: bytes) -> None:
        self.offset, self.key, self.value = (lambda: at), (lambda: key), (lambda: value)
        self.error, self.partition = (lambda: None), (lambda: 0)


class FakeConsumer:
    """librdkafka's, which serves its errors within the poll that brings records."""

    log: ClassVar[list[Message]] = []
    refuses: ClassVar[list[int]] = []

    def __init__(self, conf) -> None:
        self.told, self.at = conf["error_cb"], 0

    def assign(self, places) -> None:
        self.at = max(0, places[0].offset)

    def consume(self, _count, timeout) -> list[Message]:
        found, self.at = self.log[self.at :], len(self.log)
        if self.refuses:
            self.refuses.clear()
            self.told(KafkaError(KafkaError._AUTHENTICATION))
        return found

    def close(self) -> None:
        """Nothing is open."""


class Cluster:
    """One with a partition for signals."""

    def __init__(self, _config) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def partition_counts(self, topics):
        return {topics[0]: 1}


def test_no_signal_is_lost(shop, monkeypatch):
    shop.config.source.connector_file.write_text(json.dumps(POSTGRES))
    monkeypatch.setattr(adapters, "Consumer", FakeConsumer)
    monkeypatch.setattr(adapters, "Cluster", Cluster)
    settings = SimpleNamespace(database=None, modes=None, connector={})
    ours = Adapters(None, shop.config, read(shop.config), settings, lambda _: None, lambda: None, lambda _: False)  # fmt: skip
    assert ours.signals() == []
    value = json.dumps({"id": "s1", "type": "pause-snapshot"}).encode()
    FakeConsumer.log.append(Message(0, shop.config.name.encode(), value))
    FakeConsumer.refuses.append(1)
    found, refused = [], 0
    for _ in range(3):
        try:
            found += ours.signals()
        except LakemarkError:
            refused += 1
    ours.close()
    assert ([one.id for one in found], refused) == (["s1"], 1)
