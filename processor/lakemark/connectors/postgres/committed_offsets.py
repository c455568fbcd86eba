"""PostgreSQL: the connector's position, by the offsets that Connect has committed for it."""

from collections.abc import Mapping, Sequence
from typing import Any

from lakemark.connectors.log_place import offsets_of
from lakemark.connectors.postgres.positions import of_stream, pack


def committed_position(entries: Sequence[Mapping[str, Any]], epoch: int, *, server: str) -> bytes:
    """Return the position of a PostgreSQL connector, by the offsets that Connect has committed.

    Connect keeps the offsets of a connector for every `topic.prefix` that it ever had: those of
    another one say nothing of the log that is read now.

    Args:
        entries: as Connect gives them: ``[{"partition": {…}, "offset": {"lsn_commit": …, …}}]``.
            ``lsn_commit`` and ``lsn`` compare with the two numbers of ``source.sequence``.
        epoch: of the positions.
        server: the connector's `topic.prefix`.

    Returns:
        empty if the connector has none, or is in a snapshot of its own.
    """
    newest = b""
    for offset in offsets_of(entries, server):
        last, own = offset.get("lsn_commit"), offset.get("lsn")
        parts = of_stream(f'["{last}","{own}"]' if last is not None else None, None)
        if own is not None and parts is not None:
            newest = max(newest, pack(epoch, *parts))
    return newest
