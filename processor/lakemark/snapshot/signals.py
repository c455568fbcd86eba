"""Signals: the typed request in a record of the topic ``<name>.signals``, or why it is refused.

Debezium's format: the key is the pipeline's name, the value ``{"id", "type", "data"}``, where
`data` is an object or, as in Debezium's signal table, the text of one.

| type | asks for |
|---|---|
| execute-snapshot | a run over some tables, over rows by condition, or over a list of keys |
| verify-snapshot | the same, but rows are compared with the lake's (lakemark's own) |
| stop-snapshot | the end of all runs, or of some tables in them |
| pause-snapshot, resume-snapshot | a pause of all runs, and its end |
| set-snapshot | other chunk rows, parallelism or delay for one run (lakemark's own) |

Pure, and nothing here raises on what a user sent. A condition is only carried: it is text until it
has been parsed against the columns of its table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from lakemark.errors import RefusedError, cut, nearest
from lakemark.settings.patterns import compile_java
from lakemark.settings.table_id import TableId, plain_of
from lakemark.snapshot import fields
from lakemark.snapshot.fields import AdditionalCondition, PrimaryKey

_ANY: Final = ".*"
# Bytes of a value: what brokers take of a record as they are set at first.
MAX_BYTES: Final = 1_048_588


@dataclass(frozen=True, slots=True)
class ExecuteSnapshot:
    """The request for a run. None means: as configured.

    Attributes:
        id: the signal's id, and the run's.
        data_collections: Java regular expressions for `matching`, at least one.
        conditions: filters; see `filters_of`.
        surrogate_key: column that orders the chunks instead of the primary key.
        keys: the only rows to read, all of the same columns; empty = all rows.
        chunk_rows: rows of one chunk.
        parallelism: chunks read at once.
        delay: pause after each chunk.
        priority: a run of a higher one goes first.
    """

    id: str
    data_collections: tuple[str, ...]
    conditions: tuple[AdditionalCondition, ...] = ()
    surrogate_key: str | None = None
    keys: tuple[PrimaryKey, ...] = ()
    chunk_rows: int | None = None
    parallelism: int | None = None
    delay: timedelta | None = None
    priority: int = 0

    def filters_of(self, tables: Sequence[str]) -> dict[str, str]:
        """Return by table the first filter whose pattern matches, as in Debezium."""
        found: dict[str, str] = {}
        for condition in self.conditions:
            pattern = [condition.data_collection]
            for table in matching(pattern, tables, ignore_case=True).tables:
                found.setdefault(table, condition.filter)
        return found


@dataclass(frozen=True, slots=True)
class VerifySnapshot(ExecuteSnapshot):
    """The request to compare tables with their source.

    Attributes:
        repair: what differs is mended.
        with_values: the rows' values are kept with what is found.
        rows_per_second: that its scan reads of the source; None = any number.
    """

    repair: bool = False
    with_values: bool = False
    rows_per_second: int | None = None


@dataclass(frozen=True, slots=True)
class StopSnapshot:
    """The request to end runs: all, or those of the tables that the patterns match."""

    id: str
    data_collections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PauseSnapshot:
    """The request to pause all runs until a `ResumeSnapshot`."""

    id: str


@dataclass(frozen=True, slots=True)
class ResumeSnapshot:
    """The request to let all runs go on."""

    id: str


@dataclass(frozen=True, slots=True)
class SetSnapshot:
    """The request to change an active run: at least one of the last three is not None.

    Attributes:
        id: the signal's id.
        run: id of the run, which is that of its execute-snapshot signal.
        chunk_rows: rows of the chunks that are cut from now on.
        parallelism: chunks read at once.
        delay: pause after each chunk.
        rows_per_second: that the scan of a verify run reads.
    """

    id: str
    run: str
    chunk_rows: int | None = None
    parallelism: int | None = None
    delay: timedelta | None = None
    rows_per_second: int | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """A signal that is not carried out. Never shows values of keys or filters.

    Attributes:
        id: the signal's id, or the one given to a signal without a readable one.
        code: stable name of the reason, kebab case.
        message: what is wrong, one sentence.
        hint: what the sender should do.
    """

    id: str
    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class SignalRecord:
    """A record of the signals topic, as it came.

    Attributes:
        key, value: the record's.
        place: partition and offset, as text.
        unnamed: id for a signal that has none of its own: the same whenever this record is read,
            so that it is carried out once.
        stands: the place of the signals after it, to be stored.
    """

    key: bytes | None
    value: bytes | None
    place: str
    unnamed: str
    stands: bytes

    @property
    def id(self) -> str:
        """The signal's id; nothing else of it is looked at."""
        return id_of(self.value, self.unnamed)


Signal = ExecuteSnapshot | StopSnapshot | PauseSnapshot | ResumeSnapshot | SetSnapshot


@dataclass(frozen=True, slots=True)
class Matched:
    """Tables that patterns chose.

    Attributes:
        tables: in the order of the patterns, then in that of the known tables; none twice.
        unmatched: the patterns that chose none.
    """

    tables: tuple[str, ...]
    unmatched: tuple[str, ...]


def read(
    key: bytes | None, value: bytes | None, *, pipeline: str, unnamed: str
) -> Signal | Rejection:
    """Read a record of the signals topic. Never raises.

    Args:
        key: the record's key.
        value: the record's value.
        pipeline: name of the pipeline that reads.
        unnamed: id for a signal that has none of its own: the same whenever this record is read,
            so that it is carried out once.
    """
    name = unnamed
    try:
        _check_size(value)
        given = fields.json_object(value, "the signal")
        name = _own_id(given) or unnamed
        _check_key(key, pipeline)
        return _signal(name, given)
    except RefusedError as refused:
        return Rejection(name, refused.code, refused.message, refused.hint)


def id_of(value: bytes | None, unnamed: str) -> str:
    """Return the id of the signal in a record's value, as `read` does. Never raises."""
    try:
        _check_size(value)
        return _own_id(fields.json_object(value, "the signal")) or unnamed
    except RefusedError:
        return unnamed


def matching(
    patterns: Sequence[str], tables: Iterable[str], *, ignore_case: bool = False
) -> Matched:
    """Return the tables that a signal means, by Debezium's rules for its PostgreSQL connector.

    A pattern is a Java regular expression that must match the whole of ``schema.table``, without
    the database, or a table's text. One that matches no table is taken as the name of one, with or
    without quotes.

    Args:
        patterns: of a signal that `read` gave, so each is a regular expression.
        tables: the known tables' texts.
        ignore_case: as Debezium does for additional conditions, and only for them.
    """
    candidates = list(tables)
    chosen: dict[str, None] = {}
    unmatched = []
    for pattern in dict.fromkeys(patterns):
        regex = compile_java(pattern, ignore_case=ignore_case)
        found = [t for t in candidates if regex.matches(t) or regex.matches(plain_of(t))]
        found = found or [table for table in candidates if pattern in {table, _quoted(table)}]
        chosen.update(dict.fromkeys(found))
        if not found:
            unmatched.append(pattern)
    return Matched(tuple(chosen), tuple(unmatched))


def _quoted(table: str) -> str:
    return ".".join(f'"{part}"' for part in TableId.parse(table).parts)


def _own_id(record: Mapping[str, Any]) -> str:
    """Return the signal's id; empty when it has none.

    A number is no valid id: it is returned as text, to name the rejection.
    """
    found = record.get("id")
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    return found if isinstance(found, str) and found.strip() else ""


def _check_size(value: bytes | None) -> None:
    if value is not None and len(value) > MAX_BYTES:
        raise RefusedError(
            f"the signal is larger than {MAX_BYTES:,} bytes",
            code="too-large",
            hint="send several with fewer keys each, or take all rows",
        )


def _check_key(key: bytes | None, pipeline: str) -> None:
    if key == pipeline.encode():
        return
    hint = f"send it with the key {pipeline}, the pipeline's name, as plain text"
    if not key:
        raise RefusedError("the record has no key", code="no-key", hint=hint)
    shown = cut(key.decode(errors="replace"))
    raise RefusedError(
        f"the record's key is {shown}, not {pipeline}", code="other-pipeline", hint=hint
    )


def _signal(name: str, record: Mapping[str, Any]) -> Signal:
    fields.check_names(record, ("id", "type", "data"), "the signal")
    if record.get("id") is not None:
        fields.identifier("id", record["id"])
    kind = record.get("type")
    if kind is None:
        raise fields.missing("type", f"one of {', '.join(_TYPES)}")
    if not isinstance(kind, str):
        raise fields.wrong_type("type", "text", kind)
    if kind not in _TYPES:
        raise _unknown_type(kind)
    data = record.get("data")
    if data is None or (isinstance(data, str) and not data.strip()):
        data = {}
    readers, build = _TYPES[kind]
    known = fields.json_object(data, "data")
    fields.check_names(known, tuple(readers), f"data of {kind}")
    return build(name, {n: readers[n](n, v) for n, v in known.items() if v is not None})


def _execute(name: str, data: Mapping[str, Any]) -> ExecuteSnapshot:
    return ExecuteSnapshot(id=name, **_what(data))


def _verify(name: str, data: Mapping[str, Any]) -> VerifySnapshot:
    own = {
        "repair": data.get("repair", False),
        "with_values": data.get("with-values", False),
        "rows_per_second": data.get("rows-per-second"),
    }
    return VerifySnapshot(id=name, **_what(data), **own)


def _what(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a signal asks for: tables and rows, and how they are read."""
    tables = data.get("data-collections", ())
    if not tables:
        raise fields.missing("data-collections", 'at least one table, such as ["public.orders"]')
    conditions = data.get("additional-conditions", ())
    if for_all := data.get("additional-condition"):
        if conditions:
            raise fields.bad_value(
                "additional-condition and additional-conditions are both set",
                "move the first into the list: it is the old form",
            )
        conditions = (AdditionalCondition(_ANY, for_all),)
    return {
        "data_collections": tables,
        "conditions": conditions,
        "surrogate_key": data.get("surrogate-key") or None,
        "keys": data.get("keys", ()),
        "chunk_rows": data.get("chunk-rows"),
        "parallelism": data.get("parallelism"),
        "delay": data.get("delay"),
        "priority": data.get("priority", 0),
    }


def _stop(name: str, data: Mapping[str, Any]) -> StopSnapshot:
    return StopSnapshot(name, data.get("data-collections", ()))


def _set(name: str, data: Mapping[str, Any]) -> SetSnapshot:
    if "id" not in data:
        raise fields.missing("data.id", "the id of the run to change")
    if len(data) == 1:
        raise fields.missing("chunk-rows, parallelism, delay or rows-per-second", "what to change")
    return SetSnapshot(
        id=name,
        run=data["id"],
        chunk_rows=data.get("chunk-rows"),
        parallelism=data.get("parallelism"),
        delay=data.get("delay"),
        rows_per_second=data.get("rows-per-second"),
    )


def _unknown_type(kind: str) -> RefusedError:
    hint = nearest(kind, _TYPES, f"lakemark knows {', '.join(_TYPES)}")
    if kind in _OF_CONNECTORS:
        hint = "send it to the connector's own signal channel: it is carried out there"
    return RefusedError(f"{cut(kind)} is not known here", code="unknown-type", hint=hint)


# Debezium's own, which only its connectors carry out.
_OF_CONNECTORS: Final = {
    *("log", "schema-changes", "set-binlog-position", "drop-transaction"),
    *("snapshot-window-open", "snapshot-window-close"),
}
_CHANGEABLE: Final = {
    "chunk-rows": fields.whole(1, fields.MAX_CHUNK_ROWS),
    "parallelism": fields.whole(1, fields.MAX_PARALLELISM),
    "delay": fields.delay,
}
_Readers = Mapping[str, Callable[[str, Any], Any]]
_WHAT: Final = {
    "data-collections": fields.patterns,
    "type": fields.snapshot_type,
    "additional-conditions": fields.conditions,
    "additional-condition": fields.text,
    "surrogate-key": fields.text,
    "keys": fields.keys,
    **_CHANGEABLE,
    "priority": fields.whole(-fields.MAX_PRIORITY, fields.MAX_PRIORITY),
}
_PACE: Final = {"rows-per-second": fields.whole(1, fields.MAX_ROWS_PER_SECOND)}
_OF_VERIFY: Final = {"repair": fields.truth, "with-values": fields.truth, **_PACE}
_TYPES: Final[dict[str, tuple[_Readers, Callable[[str, Mapping[str, Any]], Signal]]]] = {
    "execute-snapshot": (_WHAT, _execute),
    "verify-snapshot": ({**_WHAT, **_OF_VERIFY}, _verify),
    "stop-snapshot": ({"data-collections": fields.patterns, "type": fields.snapshot_type}, _stop),
    "pause-snapshot": ({"type": fields.snapshot_type}, lambda name, _: PauseSnapshot(name)),
    "resume-snapshot": ({"type": fields.snapshot_type}, lambda name, _: ResumeSnapshot(name)),
    "set-snapshot": ({"id": fields.identifier, **_CHANGEABLE, **_PACE}, _set),
}
