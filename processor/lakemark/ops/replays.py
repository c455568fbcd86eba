"""Replay of dead letters: the rows to read again, and the letters that cannot be replayed.

A change event cannot be applied late: the replay filter drops events that are older than those
applied. So the row of its key is read again from the database, by a signal with `keys`.

Pure: the letters and the catalog's schemas are arguments. A letter's key takes the way of all keys:
record key → canonical key (`keys`) → texts that the database compares (`Database.key_texts`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lakemark.converters.converter import Converter
from lakemark.errors import LakemarkError, TableError
from lakemark.model.columns import Column
from lakemark.model.decoding import Records, StretchPlan
from lakemark.model.events import ANY_SOURCE
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.model.topic_owners import TopicOwners
from lakemark.ops.dead_letters import Letter
from lakemark.settings.names import quoted, topic_safe
from lakemark.settings.table_id import plain_of, unqualified

# Of one signal. The broker takes 1 MB of a record, and the run keeps its keys in one record too.
MOST_KEYS: Final = 10_000
MOST_KEY_BYTES: Final = 400_000

Key = tuple[str, ...]
KeyTexts = Callable[[Sequence[bytes], Sequence[Column]], list[Key]]


@dataclass(frozen=True, slots=True)
class Rereading:
    """Rows of one table that are to be read again.

    Attributes:
        table: its name.
        keys: in key order, each once: the texts of its columns.
        letters: ids of the letters that ask for them.
    """

    table: str
    keys: dict[Key, None] = field(default_factory=dict)
    letters: list[str] = field(default_factory=list)

    def signals(self) -> Iterator[dict[str, Any]]:
        """Yield `data` of the execute-snapshot signals: one, or several if there are many keys."""
        for part in _parts(self.keys):
            yield {"data-collections": [quoted(self.table)], "keys": [list(key) for key in part]}


@dataclass(frozen=True, slots=True)
class Refused:
    """A letter that cannot be replayed: the reason, and what to do instead."""

    letter: str
    table: str
    code: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class Replay:
    """The plan of a replay."""

    rereadings: list[Rereading]
    refused: list[Refused]


def planned(
    letters: Iterable[Letter],
    schemas: Mapping[str, TableSchema],
    *,
    prefix: str,
    converter: Converter,
    key_texts: KeyTexts,
    qualifier: str = "",
) -> Replay:
    """Sort letters into rows to be read again, by table, and letters that cannot be replayed.

    Args:
        letters: each once.
        schemas: the tables that the connector captures, as the catalog knows them now.
        prefix: the connector's ``topic.prefix``.
        converter: reads the letters' keys.
        key_texts: of the connector's database, see `Database.key_texts`.
        qualifier: of the tables' names, see `Connector.qualifier`.
    """
    own = {table: unqualified(qualifier, table) or table for table in schemas}
    by_topic = {f"{prefix}.{topic_safe(plain_of(name))}": table for table, name in own.items()}
    by_table: dict[str, list[Letter]] = {}
    for letter in letters:
        by_table.setdefault(letter.named or by_topic.get(letter.topic, letter.table), []).append(
            letter
        )
    replay = Replay([], [])
    for table, table_letters in sorted(by_table.items()):
        schema = schemas.get(table)
        if schema is None or not schema.key:
            replay.refused.extend(
                _no_rows(letter, table, is_known=schema is not None) for letter in table_letters
            )
        else:
            _sort(table_letters, schema, table, replay, converter=converter, key_texts=key_texts)
    return replay


def refused(letters: Iterable[Letter], error: LakemarkError) -> list[Refused]:
    """Return letters whose connector is away, as refused for that reason."""
    return [
        Refused(letter.id, letter.table, error.code, error.message, error.hint)
        for letter in letters
    ]


def owner_of(letter: Letter, qualifiers: Iterable[str], owners: TopicOwners) -> str:
    """Return the connector of a letter, by its table if its record named one, else by its topic.

    Args:
        letter: the letter.
        qualifiers: of the connectors; an empty one for the only one.
        owners: of topics.
    """
    named = (one for one in qualifiers if unqualified(one, letter.named) is not None)
    return next(named, None) or owners(letter.topic)


def _sort(
    letters: Sequence[Letter],
    schema: TableSchema,
    table: str,
    replay: Replay,
    *,
    converter: Converter,
    key_texts: KeyTexts,
) -> None:
    """Sort the letters of a table that has a key into the replay."""
    entry = Rereading(table)
    columns = [schema.column(name) for name in schema.key]
    canonical = converter.canonical_keys(_keys(letters, converter), schema)
    for letter, key in zip(letters, canonical, strict=True):
        text = None if key is None else _text(key, columns, key_texts)
        if text is None:
            replay.refused.append(_no_key(letter, table, schema.key))
            continue
        entry.keys[text] = None
        entry.letters.append(letter.id)
    if entry.keys:
        replay.rereadings.append(entry)


def _keys(letters: Sequence[Letter], converter: Converter) -> Sequence[bytes | None]:
    """Return the letters' keys so that each can be read without its headers."""
    keys = [letter.key for letter in letters]
    if not any(letter.headers for letter in letters):
        return keys
    headers = [[{"key": n, "value": value} for n, value in one.headers] for one in letters]
    count = len(keys)
    records = Records("", 0, [*range(count)], keys, [None] * count, [*headers])
    return converter.headers(records, StretchPlan(ANY_SOURCE, HandlingModes())).readable(keys)


def _text(canonical: bytes, columns: Sequence[Column], key_texts: KeyTexts) -> Key | None:
    try:
        return key_texts([canonical], columns)[0]
    except TableError:
        return None


def _no_rows(letter: Letter, table: str, *, is_known: bool) -> Refused:
    if is_known:
        return Refused(
            letter.id, table, "no-key", f"{table} has no key to read rows by",
            "give it a primary key, or set message.key.columns of the connector",
        )  # fmt: skip
    reason = f"{table} is not among the tables that the connector captures"
    return Refused(
        letter.id, table, "unknown-table",
        reason if table else "neither the record nor its topic names a table",
        "if you know the table: lakemark snapshot start TABLE",
    )  # fmt: skip


def _no_key(letter: Letter, table: str, columns: Sequence[str]) -> Refused:
    command = f"lakemark snapshot start {table}"
    if letter.key is None:
        return Refused(letter.id, table, "no-key", "the record has no key", command)
    reason = (
        f"the record's key is none by which {table} can be asked for a row: a key consists of "
        f"{', '.join(columns)}"
    )
    return Refused(letter.id, table, "key-unreadable", reason, command)


def _parts(keys: Iterable[Key]) -> Iterator[list[Key]]:
    part: list[Key] = []
    size = 0
    for key in keys:
        # Escaped, a character takes up to six bytes; quotes, comma and brackets are around it.
        more = sum(6 * len(text.encode()) + 3 for text in key) + 3
        if part and (len(part) >= MOST_KEYS or size + more > MOST_KEY_BYTES):
            yield part
            part, size = [], 0
        part.append(key)
        size += more
    if part:
        yield part
