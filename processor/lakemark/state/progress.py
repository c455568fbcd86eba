"""The progress topic's records as somebody outside the process reads them; pure."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from lakemark.model.proof import TableProof
from lakemark.state import stored_form
from lakemark.state.tables import PipelineState, TableState

PIPELINE: Final = b"_pipeline"
CAPTURED: Final = b"_captured"
RUN_PREFIX: Final = b"_run/"
PAGE_PREFIX: Final = b"_page/"
_OF: Final = b"_of/"
"""Before the keys of what each of several connectors has: then comes its qualifier."""


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
        proofs: of those that have one, see `model.proof`.
        others: values of the pipeline's own records, by key.
        unreadable: tables whose newest record is none.
    """

    tables: dict[str, TableState]
    others: dict[bytes, bytes]
    unreadable: tuple[str, ...] = ()
    proofs: dict[str, TableProof] = {}

    def captured(self) -> tuple[str, ...]:
        """Return the tables that the query is for; none where they were not recorded."""
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(self.others.get(CAPTURED, b""), type=Captured).tables
        return ()


def is_own(key: bytes) -> bool:
    """Say whether a record is the pipeline's own or a run's, and not a table's.

    Names of tables have a dot, also those that begin with an underscore; names of ours have none.
    """
    named = (RUN_PREFIX, PAGE_PREFIX, _OF)
    return key.startswith(named) or (key.startswith(b"_") and b"." not in key)


def key_of(connector: str, key: bytes) -> bytes:
    """Return the key of a record of a connector's; the key itself for the only one."""
    return b"%s%s/%s" % (_OF, connector.encode(), key) if connector else key


def of_connector(newest: Mapping[bytes, bytes], connector: str) -> dict[bytes, bytes]:
    """Return the records of a connector's, by their keys without it."""
    if not connector:
        return {key: value for key, value in newest.items() if not key.startswith(_OF)}
    start = key_of(connector, b"")
    return {k.removeprefix(start): value for k, value in newest.items() if k.startswith(start)}


def connectors_in(newest: Iterable[bytes]) -> list[str]:
    """Return the qualifiers of connectors that have records, of their keys; an empty one if none.

    The only connector of a pipeline has none.
    """
    own = {key.split(b"/", 2)[1].decode() for key in newest if key.startswith(_OF)}
    return sorted(own) or [""]


def record_of(table: str, state: PipelineState) -> bytes | None:
    """Return the value of a table's record; None if it has left the pipeline."""
    return _record(table, state.tables.get(table), state)


def record_of_left(table: str, state: PipelineState) -> bytes | None:
    """Return the value that a table's record would have if it were not left out; None if it is not.

    Args:
        table: its name.
        state: of the checkpoint: nothing is said of the table on the topic.
    """
    left = state.left.get(table)
    return _record(table, left.entry if left else None, state)


def _record(table: str, entry: TableState | None, state: PipelineState) -> bytes | None:
    if entry is None:
        return None
    told = {"table": table, "batch": state.batch, **stored_form.flat(entry)}
    if proof := state.proofs.get(table):
        told["proof"] = proof
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
        found.proofs.pop(name, None)
        unreadable.pop(name, None)
        if record.value is None:
            continue
        entry = _entry(record.value)
        if entry is None:
            unreadable[name] = None
            continue
        found.tables[name] = entry
        if proof := _proof(record.value):
            found.proofs[name] = proof
    found.unreadable = tuple(sorted(unreadable))
    return found


def tables_of(newest: Mapping[bytes, bytes]) -> dict[str, TableState]:
    """Return the tables' states in the newest value of each key; unreadable ones are left out."""
    found = {
        key.decode(errors="replace"): _entry(v) for key, v in newest.items() if not is_own(key)
    }
    return {name: entry for name, entry in found.items() if entry is not None}


def proofs_of(newest: Mapping[bytes, bytes]) -> dict[str, TableProof]:
    """Return the tables' proofs in the newest value of each key, of those that have one."""
    found = {
        key.decode(errors="replace"): _proof(v) for key, v in newest.items() if not is_own(key)
    }
    return {name: proof for name, proof in found.items() if proof is not None}


def _put(others: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    others.pop(key, None)
    if value is not None:
        others[key] = value


def _entry(value: bytes) -> TableState | None:
    try:
        return stored_form.of_flat(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class _Proved(msgspec.Struct):
    proof: TableProof | None = None


def _proof(value: bytes) -> TableProof | None:
    try:
        return msgspec.json.decode(value, type=_Proved).proof
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
