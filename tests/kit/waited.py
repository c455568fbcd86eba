"""A connector's side of a wait, told by hand."""

from dataclasses import dataclass, field
from typing import Any

from lakemark.connectors.log_place import LogPlace
from lakemark.connectors.postgres.log_place import Lsn
from lakemark.errors import LakemarkError
from lakemark.model.offsets import Offsets
from lakemark.ops.board import Board
from lakemark.settings.table_id import unqualified
from lakemark.state.table_parts import BY_SNAPSHOT
from lakemark.state.tables import PipelineState, TableState
from tests.kit.table_states import table_state


@dataclass
class ToldEvents:
    """See `waits.SentEvents`, of PostgreSQL.

    Attributes:
        log_end: where the log ends.
        committed: LSN that Connect has committed.
        ends: of the topics, after that.
        counts: partitions that Kafka has now, by topic; None = it does not say.
        moved: since when the log was to be moved on, each time.
        asked: how often Connect was.
    """

    qualifier: str = ""
    name: str = ""
    own_whole: bool = True
    kind: str = "postgresql"
    one_topic: bool = True
    trouble: LakemarkError | None = None
    log_end: int = 0
    committed: int = 0
    ends: Offsets = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    moved: list[float] = field(default_factory=list)
    asked: int = 0

    def has(self, table: str) -> bool:
        return unqualified(self.qualifier, table) is not None

    def end(self) -> LogPlace:
        if self.trouble is not None:
            raise self.trouble
        return Lsn(self.log_end)

    def place(self, text: str) -> LogPlace:
        return Lsn.parse(text)

    def ends_past(self, place: LogPlace) -> Offsets | None:
        self.asked += 1
        offsets = [{"partition": {"server": ""}, "offset": {"lsn": self.committed}}]
        ends = {topic: dict(partitions) for topic, partitions in self.ends.items()}
        return ends if place.is_sent(offsets, server="") else None

    def partitions(self, topic: str) -> int | None:
        return self.counts.get(topic)

    def move(self, since: float) -> None:
        self.moved.append(since)


def whole_table(topic: str, **fields: Any) -> TableState:
    """A table that streams, and has all rows of its source."""
    return table_state(**{"topics": [topic], "complete": BY_SNAPSHOT, **fields})


def board_of(state: PipelineState) -> Board:
    """A board that a pipeline has told its state."""
    board = Board("shop")
    board.pipeline("streaming")
    board.captured(state.tables)
    board.tables(state)
    return board
