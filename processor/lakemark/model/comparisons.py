"""Chunks of verify runs on their way to be compared with a table, and what came of it; pure."""

import msgspec


class Comparison(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a chunk that no newer event decides, to be compared with the table's.

    Attributes:
        run, table, chunk, attempt, shard: whose rows they are.
        position: that they were read at: all events up to it are in the table.
        verify: REPORT or REPAIR, see `control.RunStart`.
        rows: the packet.
        newer: rows, and keys without one, that newer events decide: they are not in it.
        values: whether findings have the rows' values.
    """

    run: str
    table: str
    chunk: int
    attempt: int
    shard: int
    position: bytes
    verify: str
    rows: bytes
    newer: int = 0
    values: bool = False


class UnlikeRow(msgspec.Struct, frozen=True, array_like=True):
    """A row that is not in the table as it is in the source.

    Attributes:
        key: canonical.
        kind: see `sink.comparison`.
        columns: that differ.
        source: the row in the source, as JSON; empty where there is none.
        kept: the row in the table, likewise.
    """

    key: str
    kind: str
    columns: tuple[str, ...] = ()
    source: str = ""
    kept: str = ""


class ComparedChunk(msgspec.Struct, frozen=True, array_like=True):
    """The result of a `Comparison`, as a merging task says it.

    Attributes:
        run, table, chunk, attempt, shard, position, verify: as there.
        rows: keys that were compared.
        newer: keys that were not, since a newer event decides, or lakemark is to read them again.
        findings: the rows that are not alike.
        code, reason, hint, retried: why nothing was compared; empty if it was.
    """

    run: str
    table: str
    chunk: int
    attempt: int
    shard: int
    position: bytes
    verify: str
    rows: int
    newer: int
    findings: list[UnlikeRow] = []
    code: str = ""
    reason: str = ""
    hint: str = ""
    retried: bool = False
