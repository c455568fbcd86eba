"""Positions in a source's log: bytes that sort in commit order, and what they mean.

A position begins with four bytes of epoch, the first of which is the number of its *kind*; what
follows is the kind's own, of a fixed width. Every database has a kind, whose rules stand in its
connector's folder, and so have records without a place in a log (`RULES`, one line each): which two
positions are of one transaction, which rows were read outside the log's order and how those compare
with a truncate. Whoever holds a position asks here and need not know of which database it is.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

LOWEST: Final = bytes(20)
"""Below every position: where there is none."""

KIND_BITS: Final = 24
_EPOCH: Final = 4  # bytes

RULES: Final[dict[int, str]] = {
    0: "lakemark.connectors.postgres.positions",
    1: "lakemark.connectors.mysql.positions",
    2: "lakemark.model.arrival",
}
"""The module whose `POSITIONS` are the rules of each kind, by its number."""

ARRIVAL: Final = "arrival"
"""Instead of `source.connector` where records say no place in a log, see `arrival`."""

KINDS: Final[dict[str, int]] = {"postgresql": 0, "": 0, "mysql": 1, "mariadb": 1, ARRIVAL: 2}
"""Numbers of kinds by `source.connector`; empty where records of any connector are taken."""


class LoggedEvent(NamedTuple):
    """An event by the name that its transaction has in the log of every server.

    Attributes:
        origin: where the transaction was numbered: a server, or a domain of servers.
        number: the transaction's; those of an origin rise in each log.
        order: of the event in its transaction, from 1; 0 where nobody tells it.
    """

    origin: str
    number: int
    order: int


Numbering = Callable[[str | None, bytes], int]
"""Returns an event's transaction by its number in a sequence, see `PositionRules.numbering`.

It is asked with what `Headers.transaction` and `Headers.position` have of the event.
"""


class PositionRules(Protocol):
    """The meaning of the positions of one kind. Pure.

    Attributes:
        width: bytes of a position.
        fields: of the source block, those that `from_source` needs, and their types.
        of_transaction: likewise of the event's `transaction` block; the names differ.
        compiled: names of what a compiled reader finds the numbers for `of_numbers` in, in their
            order: one of those that readers know, else events go the general way.
        most: of each of these numbers the largest that a position can have.
        missing: what a source block lacks that has no position: half a sentence.
        of_entries: fields of the source block that only an entry of the log has: they are null for
            a row that was read beside it, also where `to_source` has them.
        identity: the field of the source block that names the event's transaction alike in the log
            of every server that has it; empty if none does.
        across_partitions: whether positions of different Kafka partitions compare, as places in one
            log do.
    """

    width: int
    fields: Mapping[str, type]
    of_transaction: Mapping[str, type]
    compiled: tuple[str, ...]
    most: tuple[int, ...]
    missing: str
    of_entries: tuple[str, ...]
    identity: str
    across_partitions: bool

    def from_source(
        self, fields: Mapping[str, Sequence[Any]], own: Sequence[bool] | None, epoch: int
    ) -> list[bytes | None]:
        """Return the positions of many records; None for one whose source block has none.

        Args:
            fields: of the blocks, as `fields` and `of_transaction` name them: a column each, None
                where absent.
            own: which are rows of the connector's own snapshot; None = none.
            epoch: number of the epoch.
        """

    def of_numbers(self, numbers: npt.NDArray[np.int64], epoch: int) -> npt.NDArray[np.uint8]:
        """Return the positions of records of the stream, a row of bytes for each row of numbers.

        Args:
            numbers: what a compiled reader has found in the source blocks, in the kind's order.
            epoch: number of the epoch.
        """

    def numbers_of(self, position: bytes) -> tuple[int, ...]:
        """Return the numbers of a position of the stream, as `of_numbers` got them."""

    def transactions(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return a number a row, equal for records of one transaction of one epoch."""

    def to_source(self, position: bytes, like: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a source block that has this position of the stream.

        Args:
            position: of the stream.
            like: another source block of the connector: what a position does not hold, such as how
                the files of the log are called, is as there.
        """

    def one_transaction(self, before: bytes, after: bytes) -> bool:
        """Return whether two positions may be of one transaction."""

    def may_be_counted_anew(self, position: bytes, applied: bytes) -> bool:
        """Return whether an event below an applied position may never have come.

        So it is where the connector counts a transaction's events, was started again in the midst
        of one, and counts the rest from the beginning.
        """

    def event_of(self, identity: str, position: bytes) -> "LoggedEvent | None":
        """Return the event at a position of the stream by its transaction; None if it has no name.

        Args:
            identity: the value of the field `identity`.
            position: the event's.
        """

    def ended(self, transaction: str) -> "LoggedEvent | None":
        """Return what the id of a transaction says, as the connector's transaction topic has it.

        Of one origin, numbers rise from each transaction to the next; `order` does not matter.

        Returns:
            None where it is no id that events can be told by.
        """

    def numbering(self, ended: Sequence[str], newest: Mapping[str, int]) -> Numbering:
        """Return what tells of which of some transactions an event is.

        Args:
            ended: ids, as the transaction topic has them, in the order of the log; each one that
                `ended` reads.
            newest: by origin, the number of the newest one before them.

        Returns:
            what gives an event's place in `ended`; -1 for one of an earlier transaction, and their
            count for one of a later transaction.
        """

    def has_ended(
        self, position: bytes, seen: Mapping[str, tuple[int, int]], newest: Mapping[str, int]
    ) -> bool:
        """Return whether all events up to a partition's progress are of transactions that ended.

        Args:
            position: the applied one, of the stream.
            seen: see `decoding.AppliedPosition`.
            newest: by origin, the number of the newest one that ended, see `ended`.
        """

    def left_at(self, arrived: bytes) -> bytes:
        """Return the position of the delete with which the key change of a create begins."""

    def is_ordered(self, position: bytes) -> bool:
        """Return whether an event's position tells its place among those of its transaction."""

    def is_own_snapshot(self, position: bytes) -> bool:
        """Return whether a row of the connector's own snapshot has this position."""

    def snapshot_of(self, position: bytes) -> int:
        """Return the number that tells the connector's own snapshots apart, of a row of one."""

    def which_first(self, positions: Sequence[bytes]) -> list[int]:
        """Return which of many are of the first transaction of a log that was begun anew."""

    def outside_stream(self, position: bytes) -> bytes:
        """Return the position of the connector's incremental read: older than any event."""

    def in_stream(self, position: bytes) -> bytes:
        """Return the place in the stream's order at which a record was written.

        Of an event it is its position. A row of the connector's own snapshot stands before the
        events that begin where the snapshot was taken, an incremental read behind those of the
        place that it has.
        """

    def taken_before(self, own_snapshot: bytes, position: bytes) -> bool:
        """Return whether the connector's own snapshot was taken before an event; no if in doubt."""

    def below_truncate(self, position: bytes, truncate: bytes) -> bool:
        """Return whether a truncate at `truncate` removes a row at `position`."""

    def which_below_truncate(
        self, column: pa.FixedSizeBinaryArray, truncate: bytes
    ) -> npt.NDArray[np.bool_]:
        """`below_truncate` of many."""

    def ranges_below_truncate(self, truncate: bytes) -> list[tuple[bytes | None, bytes, bool]]:
        """Return `below_truncate` as ranges: above the first, below the second or equal to it."""


def rules_of(connector: str) -> PositionRules:
    """Return the rules of a connector's positions.

    Args:
        connector: `source.connector`.

    Raises:
        KeyError: nobody knows this connector.
    """
    return _rules(KINDS[connector])


def fields_of(connector: str) -> tuple[Mapping[str, type], Mapping[str, type]]:
    """Return the fields of a source block, and of a transaction block, that are read.

    Positions are made of them, and one names the transaction.

    Args:
        connector: `source.connector`; a stranger's has none.
    """
    if connector not in KINDS:
        return {}, {}
    rules = rules_of(connector)
    named = {rules.identity: str} if rules.identity else {}
    return {**rules.fields, **named}, rules.of_transaction


def identity_of(connector: str) -> str:
    """Return the field of a source block that names transactions, see `PositionRules`.

    Args:
        connector: `source.connector`; a stranger's has none.
    """
    return rules_of(connector).identity if connector in KINDS else ""


def missing_of(connector: str) -> str:
    """Return why a record has no position: half a sentence.

    Args:
        connector: `source.connector`, also one that nobody knows.
    """
    if connector not in KINDS:
        return f"positions of the connector {connector} are not known"
    return rules_of(connector).missing


@cache
def _rules(kind: int) -> PositionRules:
    found: PositionRules = import_module(RULES[kind]).POSITIONS
    return found


def is_one(position: bytes) -> bool:
    """Return whether these bytes are a position of some kind."""
    return bool(position) and position[0] in RULES and len(position) == _rules(position[0]).width


def epoch_number(connector: str, number: int) -> int:
    """Return the number of an epoch with its kind, as the first bytes of its positions have it.

    Args:
        connector: `source.connector`; one that nobody knows has no positions.
        number: of the epoch.
    """
    return (KINDS.get(connector, 0) << KIND_BITS) | number


def of_epoch(epoch: int, rest: bytes) -> bytes:
    """Return the position of an epoch with what stands behind it; empty = the lowest of the epoch.

    Args:
        epoch: as `epoch_number` gives it.
        rest: of the kind's width, without the epoch's four bytes.
    """
    kind = epoch >> KIND_BITS
    return epoch.to_bytes(_EPOCH) + (rest or bytes(_rules(kind).width - _EPOCH))


def epoch_of(position: bytes) -> bytes:
    """Return the epoch, with its kind, as bytes that compare."""
    return position[:_EPOCH]


def is_of_stream(position: bytes) -> bool:
    """Return whether an event of the stream has it: not `LOWEST`, and of no snapshot."""
    return position != LOWEST and not is_own_snapshot(position)


def one_transaction(before: bytes, after: bytes) -> bool:
    """See `PositionRules`."""
    return before[0] == after[0] and _rules(before[0]).one_transaction(before, after)


def may_be_counted_anew(position: bytes, applied: bytes) -> bool:
    """See `PositionRules`."""
    return position[0] == applied[0] and _rules(applied[0]).may_be_counted_anew(position, applied)


def event_of(connector: str, identity: str | None, position: bytes) -> LoggedEvent | None:
    """See `PositionRules`; None without a name.

    Args:
        connector: `source.connector`, also one that nobody knows.
        identity: the value of the field that names the event's transaction.
        position: the event's.
    """
    if not identity or connector not in KINDS:
        return None
    return rules_of(connector).event_of(identity, position)


def left_at(arrived: bytes) -> bytes:
    """See `PositionRules`."""
    return _rules(arrived[0]).left_at(arrived)


def across_partitions(position: bytes) -> bool:
    """See `PositionRules`; of `LOWEST` too."""
    return _rules(position[0]).across_partitions


def is_ordered(position: bytes) -> bool:
    """See `PositionRules`."""
    return _rules(position[0]).is_ordered(position)


def is_own_snapshot(position: bytes) -> bool:
    """See `PositionRules`."""
    return _rules(position[0]).is_own_snapshot(position)


def snapshot_of(position: bytes) -> int:
    """See `PositionRules`."""
    return _rules(position[0]).snapshot_of(position)


def which_first(found: Sequence[bytes]) -> list[int]:
    """See `PositionRules`; all of one kind."""
    return _rules(found[0][0]).which_first(found) if found else []


def outside_stream(position: bytes) -> bytes:
    """See `PositionRules`."""
    return _rules(position[0]).outside_stream(position)


def in_stream(position: bytes) -> bytes:
    """See `PositionRules`; of `LOWEST` itself."""
    return position if position == LOWEST else _rules(position[0]).in_stream(position)


def taken_before(own_snapshot: bytes, position: bytes) -> bool:
    """See `PositionRules`."""
    kind = own_snapshot[0]
    return kind == position[0] and _rules(kind).taken_before(own_snapshot, position)


def below_truncate(position: bytes, truncate: bytes) -> bool:
    """See `PositionRules`; what is of another kind is compared as bytes."""
    kind = truncate[0]
    if position[0] != kind:
        return position < truncate
    return _rules(kind).below_truncate(position, truncate)


def which_below_truncate(column: pa.ChunkedArray, truncate: bytes) -> npt.NDArray[np.bool_]:
    """`below_truncate` of many; all of the truncate's kind."""
    rules = _rules(truncate[0])
    fixed = column.combine_chunks().cast(pa.binary(rules.width))
    return rules.which_below_truncate(fixed, truncate)


def ranges_below_truncate(truncate: bytes) -> list[tuple[bytes | None, bytes, bool]]:
    """See `PositionRules`."""
    return _rules(truncate[0]).ranges_below_truncate(truncate)


def to_source(position: bytes, like: Mapping[str, Any]) -> dict[str, Any]:
    """See `PositionRules`."""
    return _rules(position[0]).to_source(position, like)


# -- columns of positions ------------------------------------------------------------------------


def fixed(found: Sequence[bytes]) -> pa.FixedSizeBinaryArray:
    """Return positions of one width as a column; without any, one of the width of `LOWEST`."""
    width = len(found[0]) if found else len(LOWEST)
    return pa.Array.from_buffers(
        pa.binary(width), len(found), [None, pa.py_buffer(b"".join(found))]
    )


def words(column: pa.FixedSizeBinaryArray) -> list[npt.NDArray[np.uint64]]:
    """Return a column's bytes as numbers, the most significant first; of nulls they are anything.

    Two positions compare as their numbers do, one after the other.
    """
    width = column.type.byte_width
    start = column.offset * width
    data = np.frombuffer(column.buffers()[1], np.uint8, count=len(column) * width, offset=start)
    data = data.reshape(len(column), width)
    behind = -(-(width - _EPOCH) // 8)
    padded = np.zeros((len(column), 8 + 8 * behind), np.uint8)
    padded[:, 4:8] = data[:, :_EPOCH]
    padded[:, 8 : 8 + width - _EPOCH] = data[:, _EPOCH:]
    return list(padded.view(">u8").astype(np.uint64).T)


def which_above(column: pa.FixedSizeBinaryArray, bound: bytes) -> npt.NDArray[np.bool_]:
    """Return which of many positions are above a bound of their width, or above `LOWEST`."""
    width = column.type.byte_width
    above: npt.NDArray[np.bool_] = np.zeros(len(column), bool)
    equal: npt.NDArray[np.bool_] = np.ones(len(column), bool)
    limits = words(fixed([bound.ljust(width, b"\0")[:width]]))
    for found, (limit,) in zip(words(column), limits, strict=True):
        above |= equal & (found > limit)
        equal &= found == limit
    return above
