"""PostgreSQL: the connector's position, by the offsets that Connect has committed for it."""

from collections.abc import Mapping, Sequence
from typing import Any

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
    for entry in entries:
        place, offset = entry.get("partition"), entry.get("offset")
        if not isinstance(place, Mapping) or place.get("server") != server:
            continue
        if not isinstance(offset, Mapping) or offset.get("snapshot"):
            continue
        last, own = offset.get("lsn_commit"), offset.get("lsn")
        parts = of_stream(f'["{last}","{own}"]' if last is not None else None, None)
        if own is not None and parts is not None:
            newest = max(newest, pack(epoch, *parts))
    return newest
