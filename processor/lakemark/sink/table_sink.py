"""What a batch needs of one table of the lake, whatever its format and the engine that writes it.

`apply` is the order of effects; a `TableSink` has them on one table. One is made for each table and
batch, in the task that merges it, and is not for two threads.

Guarantees that each gives: a change of rows is one commit that records (app id, version) with it
(`versions`), so it is made once; a reader sees a commit whole or not at all; a commit that somebody
else made in between is no error but the reason to look again.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from lakemark.model.evolution import Evolution
from lakemark.sink.resolve import Part


@dataclass(frozen=True, slots=True)
class TableSize:
    """What the log says about a table's files.

    Attributes:
        rows: rows, those marked deleted included; -1 if a file does not say.
        bytes: bytes of the data files.
        files: data files.
    """

    rows: int
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a commit did, and how large the table is after it.

    Attributes:
        inserted, updated, deleted: rows; a row marked deleted counts as updated.
        skipped: the version was committed before, so nothing was done.
        rows, bytes, files: see `TableSize`.
        at: the table's version after it; -1 if that is not known.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    skipped: bool = False
    rows: int = 0
    files: int = 0
    bytes: int = 0
    at: int = -1


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """What a table needs, under its own column names.

    Attributes:
        added: columns.
        members: members of `_cdc`: soft deletes were switched on.
        widened: (column, type now, type to be).
        sources: source names by column.
    """

    added: list[pa.Field]
    members: list[pa.Field]
    widened: list[tuple[str, pa.DataType, pa.DataType]]
    sources: dict[str, str]

    def note(self, applied: Evolution) -> None:
        """Adds what was done to `applied`, under the source's names."""
        applied.added.extend(f.with_name(self.sources[f.name]) for f in self.added)
        applied.widened.extend((self.sources[n], was, kind) for n, was, kind in self.widened)


class TableVersion(Protocol):
    """A version of a table, open to be asked."""

    def version(self) -> int:
        """Its number; 0 where nothing was ever committed to it."""

    def size(self) -> TableSize:
        """Rows, bytes and files."""


class Pending(Protocol):
    """Halves of key changes that wait beside the table."""

    def save(self, packet: pa.Table, batch: int, step: str) -> None:
        """Keeps the halves that a step of a batch leaves."""

    def load(self, batch: int, step: str) -> pa.Table | None:
        """What a step of a batch left; None if there is nothing of it."""

    def remove(self, batch: int, step: str) -> None:
        """Deletes what a step of a batch left; what cannot be deleted stays, and harms nobody."""


class TableSink(Protocol):
    """One table, as one batch finds and changes it.

    All raise `TableError` where this table cannot go on, and `DependencyError` where the lake is
    away: the same call again later does the same.
    """

    @property
    def engine(self) -> str:
        """Name of the engine that writes it."""

    @property
    def merges(self) -> bool:
        """Whether it merges in the task; else it stages rows, and the driver merges them."""

    @property
    def opened(self) -> TableVersion | None:
        """The newest version as it was found last; None if there is no table, or it has changed."""

    @property
    def pending(self) -> Pending:
        """What waits beside it."""

    def open(self) -> None:
        """Look at the newest version."""

    def keep(self, *versions: int) -> None:
        """Make versions durable that are committed, whoever has; -1 is none."""

    def before(self, app_ids: Sequence[str], batch: int) -> TableVersion | None:
        """Return the version before this batch or a later one was recorded for any of the ids."""

    def recorded(self, app_id: str) -> int | None:
        """Return the highest version that is recorded for an app id; None if there is none."""

    def forgets(self) -> bool:
        """Return whether it is a table that need not know what was recorded before."""

    def columns(self) -> Collection[str]:
        """Return the source names of its columns."""

    def plan(self, schema: pa.Schema, table: str) -> SchemaPlan:
        """Return what it needs for rows of a schema."""

    def fits(self) -> bool:
        """Return whether it is ready to be written once it has all columns."""

    def require_writable(self) -> None:
        """Find that it may be written."""

    def ensure(self, schema: pa.Schema, *, key: Sequence[str], table: str) -> Evolution:
        """Create it, or give it what it lacks."""

    def place(
        self,
        parts: Sequence[Part],
        *,
        deletes: str,
        pending: pa.Table | None,
        floor: bytes | None,
        fills: bool,
    ) -> tuple[Sequence[Part], Sequence[Any]]:
        """Return parts with all images that `resolve` needs, and rows that stay in their files."""

    def truncate(self, position: bytes, *, deletes: str, app_id: str, version: int) -> MergeResult:
        """Remove the rows below a position."""

    def read_rows(self, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys, under the source's names."""

    def merge(
        self,
        write_set: pa.Table,
        *,
        key: Sequence[str],
        deletes: str,
        app_id: str,
        version: int,
        files: Sequence[Any],
    ) -> MergeResult:
        """Apply a write set, and the rows in files of `place`, in one commit."""

    def stage(self, write_set: pa.Table, *, key: Sequence[str], app_id: str, version: int) -> bytes:
        """Keep a write set beside the table for the driver (`merges`); return what it must know."""

    def maintain(self, merged: MergeResult, *, key: Sequence[str]) -> None:
        """Join small files and remove old ones, where that is due: changes no row."""
