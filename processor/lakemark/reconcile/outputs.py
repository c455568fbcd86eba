"""The outputs of a shard after a batch: rows for the tables, and records for the coordinator."""

from typing import Final

import msgspec

RESTART: Final = "restart"
SURVIVORS: Final = "survivors"
COMPARISON: Final = "comparison"
COMPARED: Final = "compared"
SETTLED: Final = "settled"
SWEPT: Final = "swept"
SIZE: Final = "size"
OF_TABLES: Final = frozenset({SURVIVORS, COMPARISON})
"""Kinds that go to the merging task of their table."""


class Output(msgspec.Struct, frozen=True):
    """Something a shard says.

    Attributes:
        kind: one of

            | kind | blob | |
            |---|---|---|
            | SURVIVORS | packet | rows, fills and truncates for the table |
            | COMPARISON | `Comparison`, msgpack | rows to compare with the table's |
            | SETTLED | `chunks.Settled`, JSON | an attempt is decided |
            | SWEPT | `Swept`, JSON | the truncate of a sweep went out; shard 0 says so |
            | RESTART | the table | the connector reads it anew; every shard says so |
            | SIZE | `Size`, JSON | what the shard holds, in every batch under a run |
        table: the table concerned; empty for SIZE.
        blob: see `kind`.
        source: of SURVIVORS: stretches of one source compose in order.
    """

    kind: str
    table: str
    blob: bytes
    source: str = ""


class Size(msgspec.Struct, frozen=True):
    """The sizes in a shard: touches, rows' parts that wait, bytes of its state."""

    shard: int
    touches: int
    parts: int
    bytes: int


class Swept(msgspec.Struct, frozen=True):
    """A sweep went out: rows below the position (hex) are ghosts. `void`: the table was stopped."""

    run: str
    table: str
    position: str
    void: str = ""


class ShardOutcome(msgspec.Struct, frozen=True):
    """Outcome of one batch in one shard: `state` is None if the old one stays as it is."""

    state: bytes | None
    outputs: list[Output]
