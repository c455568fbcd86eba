"""Output topics in memory: transactions with their marks, as `output.transaction` keeps them in Kafka."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lakemark.sink.output.output_records import Message
from lakemark.sink.output.transaction import MarkSource, OutputTarget, TopicMark, unwritten
from tests.kit.memory_pipeline import DiedError


@dataclass
class MemoryTopics:
    """Records by topic; `dies` is asked before and after every transaction."""

    records: dict[str, list[Message]] = field(default_factory=lambda: defaultdict(list))
    marks: dict[tuple[str, str, int], TopicMark] = field(default_factory=dict)
    dies: Callable[[], bool] = lambda: False

    def write(
        self, target: OutputTarget, source: MarkSource, upto: int, messages: Sequence[Message]
    ) -> int:
        """As `output.transaction.write`."""
        place = (target.group, source.kind or source.topic, source.partition)
        new = unwritten(self.marks.get(place), source, messages)
        assert all(m.at < upto for m in new)
        if not new:
            return 0
        if self.dies():
            raise DiedError
        self.records[target.topic] += new
        self.marks[place] = TopicMark(upto, source.note, source.content)
        if self.dies():
            raise DiedError
        return len(new)

    def events(self, topic: str) -> list[tuple[int, bytes, dict | None]]:
        """Key, position and value of every record, None for a tombstone."""
        return [
            (
                json.loads(m.key)["id"],
                bytes.fromhex(dict(m.headers)["lakemark.position"].decode()),
                None if m.value is None else json.loads(m.value),
            )
            for m in self.records[topic]
        ]
