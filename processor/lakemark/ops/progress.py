"""The progress topic's records as somebody outside the process reads them; pure.

A table says something only when it has changed, so its record's time is that of the commit it
tells of.
"""

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from lakemark.tables import ERRORED, TableState

PIPELINE: Final = b"_pipeline"


class Record(Protocol):
    """What is read of a record; `timestamp_ms` is None where the broker does not say."""

    @property
    def key(self) -> bytes | None:
        """The table, or who else."""

    @property
    def value(self) -> bytes | None:
        """JSON; None takes back what was said before."""

    @property
    def timestamp_ms(self) -> int | None:
        """When it was written."""


class Kept(msgspec.Struct):
    """The newest of every key.

    Attributes:
        tables: states by table.
        others: values of the pipeline's own records, by key.
        committed_ms: when a table's numbers changed last.
        unreadable: tables whose newest record is none.
    """

    tables: dict[str, TableState]
    others: dict[bytes, bytes]
    committed_ms: dict[str, int]
    unreadable: tuple[str, ...] = ()


def kept(records: Iterable[Record]) -> Kept:
    """What the records say together, read in their order."""
    found, unreadable = Kept({}, {}, {}), dict[str, None]()
    for record in records:
        if record.key is None:
            continue
        if record.key.startswith(b"_"):
            _put(found.others, record.key, record.value)
            continue
        name = record.key.decode(errors="replace")
        before = found.tables.pop(name, None)
        unreadable.pop(name, None)
        if record.value is None:
            found.committed_ms.pop(name, None)
            continue
        entry = _entry(record.value)
        if entry is None:
            unreadable[name] = None
            continue
        found.tables[name] = entry
        if record.timestamp_ms and has_written(before or TableState(), entry):
            found.committed_ms[name] = record.timestamp_ms
    found.unreadable = tuple(sorted(unreadable))
    return found


def _put(others: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    others.pop(key, None)
    if value is not None:
        others[key] = value


def _entry(value: bytes) -> TableState | None:
    try:
        return msgspec.json.decode(value, type=TableState)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def has_written(before: TableState, entry: TableState) -> bool:
    """Whether a commit stands between the two: its numbers differ, and not for want of one."""
    return entry.state != ERRORED and _numbers(before) != _numbers(entry)


def _numbers(entry: TableState) -> tuple[int, int, int]:
    return entry.events, entry.rows, entry.bytes
