"""The stored form of a pipeline's state, and the forms that older versions stored; pure.

    format    what differed
    --------  --------------------------------------------------------------------------------------
    1         nothing said what had brought all rows of a table
    up to 3   tables had names, schema and name with a dot between them; two could have one name,
              and of such none was written. Now each has a text of its own, see `settings.table_id`.
              A name with the joining dot only is the text that it always was
    up to 4   a table was one flat record, as it still is in the progress topic

A newer format is refused by name.
"""

import copy
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lakemark.errors import StateVersionError
from lakemark.settings.table_id import text_of
from lakemark.state import tables
from lakemark.state.table_parts import (
    BEFORE,
    PendingHalves,
    TableCounts,
    TableProgress,
    TableRepair,
    WrittenFiles,
)
from lakemark.state.tables import PipelineState, TableState

PARTS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "progress": TableProgress,
    "size": TableCounts,
    "files": WrittenFiles,
    "pending": PendingHalves,
    "repair": TableRepair,
}
_PART_OF: Final = {
    field.encode_name: part
    for part, kind in PARTS.items()
    for field in msgspec.structs.fields(kind)
}
_APART: Final = "another table had the same name: it has a folder of its own from now on"


class _Version(msgspec.Struct):
    format: int = 0


def encode(state: PipelineState) -> bytes:
    """Return the state as JSON."""
    return msgspec.json.encode(state)


def copied(state: PipelineState) -> PipelineState:
    """Return another state that is equal, and shares nothing with it."""
    return msgspec.json.decode(encode(state), type=PipelineState)


def decode(blob: bytes) -> PipelineState:
    """Return the state that `encode` wrote, here or in an older version.

    Raises:
        StateVersionError: it was written by a newer version of lakemark.
    """
    written = msgspec.json.decode(blob, type=_Version).format
    if written > tables.FORMAT:
        raise StateVersionError(
            f"the checkpoint's state has format {written}, this version of lakemark reads "
            f"{tables.FORMAT}",
            hint="start the version of lakemark that wrote it, or a newer one",
        )
    if written == tables.FORMAT:
        return msgspec.json.decode(blob, type=PipelineState)
    raw = msgspec.json.decode(blob)
    raw["tables"] = {name: in_parts(entry) for name, entry in raw.get("tables", {}).items()}
    for left in raw.get("left", {}).values():
        left["entry"] = in_parts(left["entry"])
    state = msgspec.convert(raw, PipelineState, str_keys=True)
    if written < 2:  # noqa: PLR2004 - it had no `complete`
        for entry in state.entries():
            entry.repair.loaded_by(BEFORE)
    if written < 4:  # noqa: PLR2004 - tables had names
        _give_texts(state, msgspec.json.decode(blob, type=OldNames))
    state.format = tables.FORMAT
    return state


def in_parts(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is decoded as a `TableState` of a flat record; fields that it lacks stay out."""
    entry: dict[str, Any] = {}
    for name, value in flat.items():
        part = _PART_OF.get(name)
        if part is None:
            entry[name] = value
        else:
            entry.setdefault(part, {})[name] = value
    return entry


def of_flat(record: bytes) -> TableState:
    """Return the state that a flat record in JSON says; what else it has is left out.

    Raises:
        msgspec.MsgspecError, UnicodeDecodeError: it is no such record.
    """
    fields = in_parts(msgspec.json.decode(record, type=dict[str, Any]))
    return msgspec.convert(fields, TableState, str_keys=True)


def flat(entry: TableState) -> dict[str, Any]:
    """Return a table's state as one flat record of JSON values, without what is as it began."""
    record: dict[str, Any] = msgspec.to_builtins(entry)
    for part in PARTS:
        record |= record.pop(part, {})
    return record


def _give_texts(state: PipelineState, old: "OldNames") -> None:
    """Name every table by its text; what stood still because two had one name goes on."""
    named, state.tables = state.tables, {}
    for name, entry in named.items():
        own, *twins = old.texts(name)
        state.tables[own] = entry
        if own != name:
            entry.files.ask_again()  # commits are recorded by name
        if own != text_of(*divided(name)):  # its rows are in a folder of another table
            _begin_anew(entry, state.batch)
        if entry.code == AMBIGUOUS:
            entry.resume(state.batch)
        for twin in twins:
            state.tables[twin] = other = copy.deepcopy(entry)
            _begin_anew(other, state.batch)
    state.left = {old.texts(name)[0]: left for name, left in state.left.items()}
    state.ignorable = {old.texts(name)[0]: gone for name, gone in state.ignorable.items()}
    forms = state.learnt_tables.items()
    state.learnt_tables = {old.texts(name)[0]: form for name, form in forms}


def _begin_anew(entry: TableState, batch: int) -> None:
    entry.files.forget()
    entry.forget_old_files()
    entry.repair.doubt_all(_APART, batch)


AMBIGUOUS: Final = "name-ambiguous"
"""Code of a table that had stopped because another one had its name; `reason` names both."""

_BOTH: Final = re.compile(r'"((?:[^"]|"")*)"\."((?:[^"]|"")*)"')


class OldEntry(msgspec.Struct):
    """An entry's names: `source_name` is the table whose rows it has, where known."""

    source_name: tuple[str, str] | None = None
    code: str = ""
    reason: str = ""

    def texts(self, name: str) -> list[str]:
        """Return the texts of the tables that an entry of this name was for, first its rows'."""
        own = self.source_name or divided(name)
        both = _BOTH.findall(self.reason) if self.code == AMBIGUOUS else []
        twins = [tuple(part.replace('""', '"') for part in pair) for pair in both]
        return list(dict.fromkeys(text_of(*parts) for parts in (own, *twins)))


class OldLeft(msgspec.Struct):
    """A table that was left out."""

    entry: OldEntry


class OldNames(msgspec.Struct):
    """The names in such a state."""

    tables: dict[str, OldEntry] = msgspec.field(default_factory=dict)
    left: dict[str, OldLeft] = msgspec.field(default_factory=dict)

    def texts(self, name: str) -> list[str]:
        """Return the texts of the tables that this name was for, see `OldEntry.texts`."""
        left = self.left.get(name)
        return (self.tables.get(name) or (left.entry if left else OldEntry())).texts(name)


def divided(name: str) -> tuple[str, ...]:
    """Return the parts of a name as chunks and folders had them: only the first dot divided."""
    return tuple(name.split(".", 1))
