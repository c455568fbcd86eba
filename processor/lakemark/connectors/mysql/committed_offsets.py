"""MySQL and MariaDB: the connector's position, by the offsets that Connect has committed for it."""

from collections.abc import Mapping, Sequence
from typing import Any

from lakemark.connectors.log_place import offsets_of
from lakemark.connectors.mysql.binlog_place import newest_of
from lakemark.connectors.mysql.positions import number_of, pack
from lakemark.connectors.reached_place import NOWHERE, ReachedPlace


def committed_position(entries: Sequence[Mapping[str, Any]], epoch: int, *, server: str) -> bytes:
    """Return the position up to which all events are in Kafka, by what Connect has committed.

    `file` and `pos` are where the connector would go on after a restart: the end of the last
    transaction, or the beginning of the one whose events it has sent in part (`event`, `row`). So
    all events before that place are in Kafka, and of those at it none may be.

    Args:
        entries: as Connect gives them: ``[{"partition": {…}, "offset": {"file": …, "pos": …}}]``.
        epoch: of the positions.
        server: the connector's `topic.prefix`.

    Returns:
        empty if the connector has none, or is in a snapshot of its own.
    """
    return committed_place(entries, epoch, server=server).position


def committed_place(
    entries: Sequence[Mapping[str, Any]], epoch: int, *, server: str
) -> ReachedPlace:
    """Return the place of `committed_position`, with the newest transactions that were sent.

    A connector that begins by its transactions is at the head of the log's file for a while, until
    it comes to new ones.
    """
    newest = NOWHERE
    for offset in offsets_of(entries, server):
        file, pos = offset.get("file"), offset.get("pos")
        number = number_of(file) if isinstance(file, str) else None
        if number is not None and isinstance(pos, int) and pos >= 0:
            position = pack(epoch, number, pos)
            if position > newest.position:
                gtids = offset.get("gtids")
                ended = newest_of(gtids) if isinstance(gtids, str) else {}
                newest = ReachedPlace(position, ended, is_between=True)
    return newest
