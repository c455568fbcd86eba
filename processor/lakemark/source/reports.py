"""What tasks tell the driver of the records that they decoded."""

from dataclasses import dataclass, field
from typing import Final

import msgspec

REPORT: Final = "report"  # kind of a row of a batch's results


@dataclass(slots=True)
class TableReport:
    """What a stretch held of one table.

    Attributes:
        bad: records that cannot be decoded.
        unread: those of them of which not even the key can be read: any row may miss them.
        reread: canonical keys whose rows miss an event.
        stop: code and reason.
    """

    events: int = 0
    replays: int = 0
    incremental_reads: int = 0
    bad: int = 0
    unread: int = 0
    clamped: int = 0
    newest_ts: int = 0
    own_snapshots: set[int] = field(default_factory=set)
    own_ends: bool = False
    unknown_columns: set[str] = field(default_factory=set)
    reread: list[str] = field(default_factory=list)
    stop: tuple[str, str] | None = None


class Report(msgspec.Struct):
    """What a stretch tells the driver: `DecodedRange` without its packets.

    For the output topics also `sample`, an event without images, and `wrappers`, the schemas of
    wrapped keys and values by table.
    """

    topic: str
    partition: int
    first: int
    last: int
    position: bytes
    source_ts: int
    tables: dict[str, TableReport]
    kinds: dict[int, int]
    dead: int
    regressed: int = -1
    creates: bool = False
    sample: bytes = b""
    wrappers: dict[str, tuple[bytes, bytes]] = {}
    first_times: list[int] = []
