"""One table of the lake, as a batch needs it, whatever its format and its engine.

`apply` is the order of effects; a `TableSink` has them on one table. One is made for each table and
batch, in the task that merges it, and is not for two threads.

Guarantees that each gives: a change of rows is one commit that records (app id, version) with it,
so it is made once; a reader sees a commit whole or not at all; a commit that somebody else made in
between is no error but the reason to look again.

An app id is ``<query id>/<table>/<step>``, a version says batch and content (`version_of`). A
number of its own for each content of a batch makes one comparison enough: what is recorded already
is left out, whatever else is applied.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from lakemark.errors import TableError
from lakemark.model.evolution import Evolution, compare, way_on
from lakemark.sink.names import CDC, column_names, field_named, sources_of
from lakemark.sink.resolve import Part


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a table's files, by the log.

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
    """The effects of a commit, and the table's size after it.

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
    """The changes that a table needs, under its own column names.

    Attributes:
        added: columns.
        members: members of `_cdc`: soft deletes were switched on, or `lake.metadata`.
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


def schema_plan(
    old: pa.Schema, owner: str | None, schema: pa.Schema, *, path: str, table: str = ""
) -> SchemaPlan:
    """Return what a table needs to hold rows of `schema`.

    Args:
        old: the table's, with the source's names in the fields' metadata (`names.field_named`).
        owner: ``schema.table`` of the source that it was made for; None = it does not say.
        schema: source columns under their own names, and `_cdc`.
        path: the table's folder.
        table: ``schema.table`` of the source; empty = any.

    Raises:
        TableError: `schema-incompatible` names each column, its old and its new type;
            `path-clash`: the folder belongs to another source table.
    """
    if table and owner not in {None, table}:
        raise TableError(
            f"{path} belongs to {owner}, not to {table}",
            code="path-clash",
            hint=f"set lake.tables.{table}.path to a folder of its own, start again, and "
            f"`lakemark table resume {table}`",
        )
    known = {source: name for name, source in sources_of(old).items()}
    names = {**column_names((n for n in schema.names if n != CDC), known), CDC: CDC}
    back = {name: source for source, name in names.items()}
    found = compare(old, pa.schema([field_named(f, names[f.name]) for f in schema]))
    if found.incompatible:
        raise _incompatible(path, found, back, table)
    members = [f for name, was, kind in found.widened if name == CDC for f in _new(was, kind)]
    return SchemaPlan(found.added, members, [w for w in found.widened if w[0] != CDC], back)


def _new(was: pa.StructType, kind: pa.StructType) -> list[pa.Field]:
    known = {f.name for f in was}
    return [f for f in kind if f.name not in known]


def _incompatible(path: str, found: Evolution, back: dict[str, str], table: str) -> TableError:
    changes = "; ".join(
        f"column {back.get(name, name)!r} from {was} to {kind} ({why})"
        for name, was, kind, why in found.incompatible
    )
    return TableError(
        f"{path} cannot follow its source: {changes}",
        code="schema-incompatible",
        hint=way_on(table or "TABLE", path),
    )


class TableVersion(Protocol):
    """A version of a table, open to be asked."""

    def version(self) -> int:
        """Its number; 0 where nothing was ever committed to it."""

    def size(self) -> TableSize:
        """Rows, bytes and files."""

    def columns_of(self) -> pa.Schema:
        """Return its columns under the source's names, without `_cdc`."""

    def rows_of(self, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys, and `_cdc`, under the source's names, in no order.

        Args:
            keys: the key's columns in the table's types.
        """


class Pending(Protocol):
    """Halves of key changes that wait beside the table."""

    def save(self, packet: pa.Table, batch: int, step: str) -> None:
        """Keeps the halves that a step of a batch leaves."""

    def load(self, batch: int, step: str) -> pa.Table | None:
        """Return what a step of a batch left; None if there is nothing of it."""

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
        """Say whether it merges in the task; else it stages rows, and the driver merges them."""

    @property
    def opened(self) -> TableVersion | None:
        """The newest version as it was found last; None if there is no table, or it has changed."""

    @property
    def pending(self) -> Pending:
        """The halves of key changes that wait beside the table."""

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
        truncated_at: bytes | None,
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


# A version, from its highest bit: batch + 1, how many contents of it came before, digest of this
# one. Two contents of one batch are taken for the same by chance once in a million times.
_BATCH: Final = 32
_CONTENT: Final = 20
_DIGEST: Final = (1 << _CONTENT) - 1


def newest_recorded(
    found: Sequence[int | None], path: str, *, batch: int
) -> tuple[int | None, int]:
    """Return the first of the versions that are recorded, and the newest batch of any (-1 = none).

    Whoever catches up asks for the stream's too: nobody gets round `checkpoint-older` that way.

    Args:
        found: what a table has recorded for some app ids; None = nothing.
        path: its folder.
        batch: that is at hand.

    Raises:
        TableError: `checkpoint-older`: the newest is later than `batch`.
    """
    last = max((batch_of(version) for version in found if version is not None), default=-1)
    if last > batch:
        raise TableError(
            f"{path} has batch {last} of this checkpoint, which is at batch {batch}: the "
            "checkpoint is older than the table",
            code="checkpoint-older",
            hint="put the newest checkpoint back; or begin with a new checkpoint folder, and "
            "snapshot the tables again: their rows stay",
        )
    return found[0], last


def require_recorded(version: int | None, batch: int, *, path: str, table: str) -> None:
    """Find that a table has the newest batch that it must have.

    Args:
        version: what it has recorded; None = nothing.
        batch: that it must have at least.
        path: its folder.
        table: its name.

    Raises:
        TableError: `table-older`.
    """
    newest = -1 if version is None else batch_of(version)
    if newest >= batch:
        return
    raise TableError(
        f"{path} has {f'batch {newest}' if newest >= 0 else 'no batch'} of this checkpoint, and "
        f"must have batch {batch}: an older copy of the table was put back, or its newest commits "
        "are gone",
        code="table-older",
        hint=f"put the newest copy back, then `lakemark table resume {table}`; without one: "
        f"`lakemark table skip {table}`, which goes on with this copy, leaves out the changes that "
        "were not applied, and snapshots the table again",
    )


def version_of(batch: int, content: int, last: int | None) -> int:
    """The version to record for a batch with this content.

    Args:
        batch: batch id.
        content: a digest of what is to be applied; its lowest 20 bits count.
        last: the version that is recorded; None if none is.

    Returns:
        `last`, if it is of the same batch and content: then nothing is to be done. Otherwise a
        higher one, unless `last` is of a later batch (`batch_of`).
    """
    first = (batch + 1) << _BATCH
    if last is not None and last >= first and last & _DIGEST == content & _DIGEST:
        return last
    return version_above(first | content & _DIGEST, last)


def version_above(version: int, other: int | None) -> int:
    """`version`, with a higher count where that is needed to be above another recorded one."""
    if other is None or other < version:
        return version
    return ((other >> _CONTENT) + 1) << _CONTENT | version & _DIGEST


def batch_of(version: int) -> int:
    """The batch that a recorded version is of; small ones are a batch's number and nothing else."""
    return version if version >> _BATCH == 0 else (version >> _BATCH) - 1
