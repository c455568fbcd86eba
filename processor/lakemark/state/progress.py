"""The progress topic's records as somebody outside the process reads them; pure."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from lakemark.state import stored_form
from lakemark.state.tables import PipelineState, TableState

PIPELINE: Final = b"_pipeline"
CAPTURED: Final = b"_captured"
RUN_PREFIX: Final = b"_run/"
PAGE_PREFIX: Final = b"_page/"


class ProgressRecord(Protocol):
    """The part of a record that is read here."""

    @property
    def key(self) -> bytes | None:
        """The table, or the name of a record of the pipeline's own."""

    @property
    def value(self) -> bytes | None:
        """JSON; None takes back the record before."""


class Captured(msgspec.Struct, frozen=True):
    """Value of `CAPTURED`: the tables that the query is for, also those of which nothing came."""

    tables: tuple[str, ...]
    ts_ms: int = 0


class Kept(msgspec.Struct):
    """The newest of every key.

    Attributes:
        tables: states by table.
        others: values of the pipeline's own records, by key.
        unreadable: tables whose newest record is none.
    """

    tables: dict[str, TableState]
    others: dict[bytes, bytes]
    unreadable: tuple[str, ...] = ()

    def captured(self) -> tuple[str, ...]:
        """Return the tables that the query is for; none where they were not recorded."""
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(self.others.get(CAPTURED, b""), type=Captured).tables
        return ()


def is_own(key: bytes) -> bool:
    """Say whether a record is the pipeline's own or a run's, and not a table's.

    Names of tables have a dot, also those that begin with an underscore; names of ours have none.
    """
    return key.startswith((RUN_PREFIX, PAGE_PREFIX)) or (key.startswith(b"_") and b"." not in key)


def record_of(table: str, state: PipelineState) -> bytes | None:
    """Return the value of a table's record; None if it has left the pipeline."""
    entry = state.tables.get(table)
    if entry is None:
        return None
    told = {"table": table, "batch": state.batch, **stored_form.flat(entry)}
    return msgspec.json.encode(told)


def kept(records: Iterable[ProgressRecord]) -> Kept:
    """Return the newest value of every key, of records read in their order."""
    found, unreadable = Kept({}, {}), dict[str, None]()
    for record in records:
        if record.key is None:
            continue
        if is_own(record.key):
            _put(found.others, record.key, record.value)
            continue
        name = record.key.decode(errors="replace")
        found.tables.pop(name, None)
        unreadable.pop(name, None)
        if record.value is None:
            continue
        entry = _entry(record.value)
        if entry is None:
            unreadable[name] = None
            continue
        found.tables[name] = entry
    found.unreadable = tuple(sorted(unreadable))
    return found


def tables_of(newest: Mapping[bytes, bytes]) -> dict[str, TableState]:
    """Return the tables' states in the newest value of each key; unreadable ones are left out."""
    found = {
        key.decode(errors="replace"): _entry(v) for key, v in newest.items() if not is_own(key)
    }
    return {name: entry for name, entry in found.items() if entry is not None}


def _put(others: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    others.pop(key, None)
    if value is not None:
        others[key] = value


def _entry(value: bytes) -> TableState | None:
    try:
        return stored_form.of_flat(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
