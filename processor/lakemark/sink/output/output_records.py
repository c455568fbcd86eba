"""Change events on their way to an output topic: as they came, with what has become known put in.

Pure. Of a table's events in one stretch of one Kafka partition, in log order:

| event | written |
|---|---|
| c, u, r of the connector's own snapshot | key and value byte for byte, the headers and ours |
| an unchanged TOAST column | its value, where the table or the stretch knows it; else as it came |
| d | as it came, then a tombstone |
| truncate | nothing: the rows it removes follow one by one, see `output.row_events` |
| an event below a truncate that came before it | nothing: its row is deleted already |
| Debezium's incremental read | nothing: it may be older than what was written before it |

A TOAST value is taken from the newest event of the same key before it in the stretch, else from
the table's row as of the batch before: all events between the two are in the stretch, because a
key's events share a partition. After a key change that takes the row from another key, and for
rows that miss an event, nobody knows; such a placeholder passes as it came.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from lakemark.converters.converter import Converter, whole
from lakemark.kafka.output_names import ID
from lakemark.model.decoding import Records
from lakemark.model.events import Headers, Kind, may_lack
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema

POSITION: Final = "lakemark.position"
SOURCE: Final = "lakemark.source"
SCHEMA: Final = "lakemark.schema"
TOMBSTONE: Final = "/tombstone"

FORWARDED: Final = frozenset({int(Kind.CHANGE), int(Kind.OWN_SNAPSHOT)})

Cells = Mapping[str, bytes]
"""Values as they are written, by column: see `Converter.cells`."""

Known = Callable[[Mapping[bytes, bytes]], Mapping[bytes, Cells]]
"""From raw record keys, each with the position of its first event in the stretch, to what the
table knew of their rows before."""


class Message(NamedTuple):
    """One record for an output topic; `at` is what it is counted by, see `output.transaction`."""

    at: int
    key: bytes
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]


def identity(pipeline: str, position: bytes, key: bytes) -> str:
    """The stable id of a record: equal however often it is written."""
    # As text, bytes that UTF-8 has not would all be one sign.
    return f"{pipeline}/{position.hex()}/{key.decode() if is_text(key) else key.hex()}"


def is_text(key: bytes) -> bool:
    """Say whether a key is text."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in key


def messages(
    records: Records,
    heads: Headers,
    indices: Sequence[int],
    *,
    pipeline: str,
    values: Mapping[int, bytes] | None = None,
) -> list[Message]:
    """Return the messages for the events at `indices`, which are in log order.

    Args:
        records: the stretch, with all its headers.
        heads: its decoded headers.
        indices: events of one table that count.
        pipeline: its name.
        values: by index the values that differ from what came, see `resolved`.
    """
    out: list[Message] = []
    values = values or {}
    place = f"{records.topic}-{records.partition}-"
    for at in indices:
        key, value = records.keys[at], values.get(at, records.values[at])
        if heads.kind[at] not in FORWARDED or key is None or value is None:
            continue
        offset, position = records.offsets[at], heads.position[at]
        name = identity(pipeline, position, key)
        ours: list[tuple[str, str | bytes | None]] = [
            (ID, name.encode()),
            (POSITION, position.hex().encode()),
            (SOURCE, f"{place}{offset}".encode()),
        ]
        given = [(entry["key"], entry["value"]) for entry in records.headers[at] or ()]
        out.append(Message(offset, key, value, [*given, *ours]))
        if heads.op[at] == "d":
            ours[0] = (ID, (name + TOMBSTONE).encode())
            out.append(Message(offset, key, None, ours))
    return out


def resolved(
    converter: Converter,
    records: Records,
    heads: Headers,
    indices: Sequence[int],
    *,
    schema_of: Callable[[int], TableSchema | None],
    modes: HandlingModes,
    known: Known,
) -> dict[int, bytes]:
    """The values of events with TOAST placeholders that can be put in, by index.

    Args:
        converter: reads the records.
        records: as `messages`.
        heads: as `messages`.
        indices: as `messages`.
        schema_of: the schema of the event at an index.
        modes: the connector's settings.
        known: asked once, of the keys concerned.
    """
    lacking = _lacking(converter, records, heads, indices, schema_of=schema_of, modes=modes)
    if not lacking:
        return {}
    wanted = {records.keys[at] for at in lacking}
    first: dict[bytes, bytes] = {}
    events: list[tuple[int, bytes]] = []
    for at in indices:
        key = records.keys[at]
        if key is not None and key in wanted:
            first.setdefault(key, heads.position[at])
            events.append((at, key))
    rows_of = {key: dict(row) for key, row in known(first).items()}
    values: dict[int, bytes] = {}
    for at, key in events:
        value = records.values[at]
        if heads.kind[at] not in FORWARDED or value is None:
            continue
        row = rows_of.setdefault(key, {})
        if heads.op[at] != "u":
            row.clear()
        after = heads.after[at]
        if after is None:
            continue
        unknown = lacking.get(at, frozenset())
        given = {name: row[name] for name in unknown if name in row}
        if given:
            values[at] = converter.with_cells(value, given, records.headers[at])
        row.update(
            (name, cell) for name, cell in converter.cells(after).items() if name not in unknown
        )
    return values


def _lacking(
    converter: Converter,
    records: Records,
    heads: Headers,
    indices: Iterable[int],
    *,
    schema_of: Callable[[int], TableSchema | None],
    modes: HandlingModes,
) -> dict[int, frozenset[str]]:
    """The columns that the events with any placeholder lack."""
    groups: dict[int, tuple[TableSchema, list[int]]] = {}
    for at in indices:
        if heads.after[at] is not None and may_lack(heads.op[at], records.headers[at]):
            schema = schema_of(at)
            if schema is not None:
                groups.setdefault(id(schema), (schema, []))[1].append(at)
    found: dict[int, frozenset[str]] = {}
    for schema, events in groups.values():
        suspects = converter.suspects([heads.after[at] or b"" for at in events], schema, modes)
        places = [at for number, at in enumerate(events) if number in suspects]
        shown = [at for at in places if heads.before[at] is not None]
        afters = [heads.after[at] or b"" for at in shown]
        befores = [heads.before[at] or b"" for at in shown]
        known = {shown[n] for n in whole(converter, afters, befores, schema, modes)}
        partial = {number for number, at in enumerate(places) if at not in known}
        images = [heads.after[at] or b"" for at in places]
        unavailable = converter.rows(images, schema, modes, partial=partial).unavailable
        found |= {
            at: frozenset(names) for at, names in zip(places, unavailable, strict=True) if names
        }
    return found
