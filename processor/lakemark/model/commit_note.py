"""The note that a commit of a table has: which batch made it, and of what. Pure.

It stands in the commit's `userMetadata`, where every reader of Delta's history shows it. Nothing
of a batch depends on it: what is recorded of batches is the transaction's app id and version.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from lakemark.model.change_batch import SWEEPS

Span = tuple[int, int]
"""Offsets of a partition: the first, and the one behind the last."""
CHUNK: Final = "chunk/"
"""How the source of a chunk's rows begins; the attempt's number follows."""
TRUNCATES: Final = "/truncate"
"""How the step ends in the note of a commit that removes what a truncate, or a sweep, does."""


class CommitNote(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="by", tag="lakemark"):
    """The note of one commit.

    Attributes:
        batch: of the query.
        step: `stream` or `catchup`, with `TRUNCATES` behind it where the commit only removes rows.
        offsets: by topic and partition, what the batch read there; only partitions that brought
            something for the table.
        chunks: attempts at chunks of snapshots whose rows took part.
        sweeps: runs of snapshots at whose end rows were removed that the source has not.
    """

    batch: int
    step: str
    offsets: dict[str, dict[int, Span]] = {}
    chunks: list[int] = []
    sweeps: list[str] = []

    @property
    def truncates(self) -> bool:
        """Say whether the commit only removes what a truncate, or a sweep, does."""
        return self.step.endswith(TRUNCATES)

    def has(self, topic: str, partition: int, offset: int) -> bool:
        """Say whether the batch read this record for the table."""
        first, end = self.offsets.get(topic, {}).get(partition, (0, 0))
        return first <= offset < end


def note_of(
    batch: int, step: str, sources: Iterable[str], offsets: Mapping[str, Span]
) -> CommitNote:
    """Return the note of what a batch does to a table.

    Args:
        batch: its number.
        step: see `CommitNote`.
        sources: of the table's change batches: topic and partition, an attempt at a chunk, or the
            sweep of a run.
        offsets: what the batch reads, by topic and partition.
    """
    found: dict[str, dict[int, Span]] = {}
    attempts: set[int] = set()
    sweeps: set[str] = set()
    for source in sources:
        topic, _, number = source.rpartition("/")
        if source in offsets:
            found.setdefault(topic, {})[int(number)] = offsets[source]
        elif source.startswith(CHUNK):
            attempts.add(int(number))
        elif source.startswith(SWEEPS):
            sweeps.add(source.removeprefix(SWEEPS))
    return CommitNote(batch, step, found, sorted(attempts), sorted(sweeps))


def of_truncate(text: str) -> str:
    """Return the note of the commit that removes rows before the batch's others are merged."""
    note = decode(text)
    return text if note is None else encode(replace(note, step=f"{note.step}{TRUNCATES}"))


def encode(note: CommitNote) -> str:
    """Return the note as a commit has it."""
    return msgspec.json.encode(note).decode()


def decode(text: object) -> CommitNote | None:
    """Return the note in a commit's `userMetadata`; None if it is none of ours."""
    if not isinstance(text, str):
        return None
    try:
        return msgspec.json.decode(text, type=CommitNote)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
