"""Dead letters as they are read again: the record's place, the reason and its original bytes.

Pure. They are written at least once under a stable id (`output.dead_letter`), so each id counts
once here. A record of the topic that has no such id is none of ours and is passed over.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from lakemark.settings.names import topic_safe
from lakemark.settings.table_id import plain_of

_PREFIX = "lakemark."


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter.

    Attributes:
        id: stable; where the record stands in its own topic.
        reason: code, kebab case.
        detail: one sentence without cell values.
        named: the table its record named; empty where that could not be read.
        topic, partition, offset: where the record stands.
        written: when the letter was written; None where the broker does not say.
        size: bytes of the value.
        key, value: the original bytes; not in what `ls` shows, so not in what `repr` does.
        headers: of the record, those that say how it is read.
    """

    id: str
    reason: str
    detail: str
    named: str
    topic: str
    partition: int
    offset: int
    written: datetime | None = None
    size: int = 0
    key: bytes | None = field(default=None, repr=False)
    value: bytes | None = field(default=None, repr=False)
    headers: tuple[tuple[str, bytes | str | None], ...] = ()

    @property
    def table(self) -> str:
        """Return the table, by the topic's name where the record has none; empty if unknown."""
        parts = self.topic.split(".")
        return self.named or (".".join(parts[-2:]) if len(parts) > 2 else "")  # noqa: PLR2004

    def is_of(self, table: str) -> bool:
        """Say whether the letter is of this table, as far as that can be known."""
        if self.named:
            return self.named == table
        named = topic_safe(plain_of(table))  # of several connectors with the topic prefix
        return self.table == table or f".{self.topic}".endswith(f".{named}")

    def without_value(self) -> "Letter":
        """Return the same letter without the bytes of its value, which take memory."""
        return replace(self, value=None)


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """A choice of letters; an empty field chooses all.

    Attributes:
        table: of this table.
        reason: with this code.
        ids: these ones.
        since: written at this time or later.
    """

    table: str = ""
    reason: str = ""
    ids: frozenset[str] = frozenset()
    since: datetime | None = None

    def __contains__(self, letter: Letter) -> bool:
        """Say whether the letter is chosen."""
        if self.since is not None and (letter.written is None or letter.written < self.since):
            return False
        return (
            (not self.table or letter.is_of(self.table))
            and (not self.reason or letter.reason == self.reason)
            and (not self.ids or letter.id in self.ids)
        )


@dataclass(frozen=True, slots=True)
class Count:
    """The number of letters that a table has for one reason."""

    table: str
    reason: str
    letters: int


def letter_of(
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | str | None]],
    timestamp_ms: int | None,
) -> Letter | None:
    """Read a record of the dead-letters topic; None if it is no dead letter of lakemark's."""
    fields = {
        name.removeprefix(_PREFIX): text.decode("utf-8", "replace")
        if isinstance(text, bytes)
        else text or ""
        for name, text in headers
        if name.startswith(_PREFIX)
    }
    try:
        return Letter(
            id=fields["id"],
            reason=fields["reason"],
            detail=fields.get("detail", ""),
            named=fields.get("table", ""),
            topic=fields["topic"],
            partition=int(fields["partition"]),
            offset=int(fields["offset"]),
            written=None if timestamp_ms is None else _moment(timestamp_ms),
            size=len(value or b""),
            key=key,
            value=value,
            headers=tuple(one for one in headers if not one[0].startswith(_PREFIX)),
        )
    except (KeyError, ValueError):
        return None


def chosen(letters: Iterable[Letter | None], choice: LetterFilter) -> Iterator[Letter]:
    """Yield the letters that the filter chooses, each id once, in the order in which they come."""
    seen: set[str] = set()
    for letter in letters:
        if letter is not None and letter in choice and letter.id not in seen:
            seen.add(letter.id)
            yield letter


def by_time(letters: Iterable[Letter]) -> list[Letter]:
    """Sort by time, the oldest first; those of one moment in the order of their topics."""
    begin = datetime.min.replace(tzinfo=UTC)
    return sorted(
        letters, key=lambda one: (one.written or begin, one.topic, one.partition, one.offset)
    )


def summary(letters: Iterable[Letter]) -> list[Count]:
    """Count the letters of each table and reason."""
    counted = Counter((letter.table, letter.reason) for letter in letters)
    return [Count(table, reason, many) for (table, reason), many in sorted(counted.items())]


def _moment(milliseconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
