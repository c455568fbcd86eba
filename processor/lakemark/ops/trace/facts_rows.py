"""The row of a key in the lake and in the database, and whether they agree; reads only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from lakemark.connectors.connector import Connector
from lakemark.connectors.database import ChunkRows, DatabaseAccess
from lakemark.connectors.registry import database_of
from lakemark.errors import LakemarkError, PipelineError
from lakemark.model import net_change
from lakemark.model.change_batch import key_columns_by
from lakemark.model.columns import Column
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import canonical_from_columns
from lakemark.model.net_change import NetChange
from lakemark.model.schema import TableSchema
from lakemark.ops.trace.traced import Image, RowAtStart
from lakemark.settings.config import Config
from lakemark.sink import comparison
from lakemark.sink.names import CDC
from lakemark.sink.table_format import TableReader

_NEVER_NEWER: Final = b"\xff" * 64
"""Above every position: both rows are as of now, and no event decides for one of them."""

SAME: Final = "same"
NEITHER: Final = "neither"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class KeyOfRow:
    """A key, as it is asked for.

    Attributes:
        canonical: as records have it.
        columns: the key's columns, one row, under the source's names and in the lake's types.
    """

    canonical: bytes
    columns: pa.Table


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of two rows.

    Attributes:
        kind: `same`, `neither` has a row, `unknown`, or as `sink.comparison` has it.
        columns: that differ.
        reason: why it is unknown.
    """

    kind: str
    columns: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RowInLake:
    """The lake's row.

    Attributes:
        row: its columns, without `_cdc`; None = there is none.
        cdc: its `_cdc`.
        copies: rows with the key; more than one is a mistake of somebody's.
        version: of the table; -1 without a table.
    """

    row: Image | None = field(repr=False)
    cdc: Mapping[str, Any] = field(default_factory=dict)
    copies: int = 0
    version: int = -1

    @property
    def is_alive(self) -> bool:
        """Say whether the row counts, and is not marked deleted."""
        return self.row is not None and not self.cdc.get("deleted")

    @property
    def position(self) -> bytes:
        """The position of the event, or of the read, that the row is of; empty without one."""
        return self.cdc.get("position") or b""


def read_source(
    config: Config,
    modes: HandlingModes,
    connector: Connector,
    table: str,
    texts: Sequence[str],
) -> ChunkRows:
    """Return the row of a key in the database, or its absence, typed as events have it.

    Args:
        config: of the connector's part; it has a database.
        modes: of the connector.
        connector: as it is configured.
        table: its name.
        texts: of the key's columns.

    Raises:
        TableError: the table, or such a key, cannot be read.
        DependencyError, ConfigError: the database is away, or refuses us.
    """
    if config.database is None:
        raise PipelineError(
            "no database is configured", code="no-database", hint="set database.url"
        )
    access = DatabaseAccess(
        config.database, modes, connector.settings, qualifier=connector.qualifier
    )
    reader = database_of(access).reader()
    try:
        return reader.read(table, keys=[tuple(texts)])
    finally:
        reader.close()


def key_of(rows: ChunkRows) -> KeyOfRow:
    """Return the key by what the database has made of its texts."""
    absent = rows.absent
    own = rows.found if rows.found.rows.num_rows or absent is None else absent
    names = list(own.schema.key)
    return KeyOfRow(own.keys.to_pylist()[0], own.rows.select(names).slice(0, 1))


def typed_key(
    table: str,
    names: Sequence[str],
    texts: Sequence[str],
    known: Mapping[str, Column],
    lake: pa.Schema | None,
) -> KeyOfRow:
    """Return a key without asking a database: its texts are read as the lake's types.

    Args:
        table: its name.
        names: of its key's columns.
        texts: of the same.
        known: columns by name, as far as catalog or file describe them.
        lake: the table's columns; None without a table.

    Raises:
        PipelineError: `key-unreadable`: they are no values of these types.
    """
    columns = [known.get(name) or _column(name, lake) for name in names]
    try:
        cells = [pa.array([text]).cast(one.type) for text, one in zip(texts, columns, strict=True)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise PipelineError(
            f"the key is none of {table}: {', '.join(f'{c.name} {c.type}' for c in columns)}",
            code="key-unreadable",
            hint="write its columns in key order, as a JSON list; with a database configured it is "
            "the database that reads them",
        ) from error
    (canonical,) = canonical_from_columns(cells, columns).to_pylist()
    return KeyOfRow(canonical, pa.table(cells, names=list(names)))


def _column(name: str, lake: pa.Schema | None) -> Column:
    there = lake.field(name).type if lake is not None and name in lake.names else pa.string()
    return Column(name, there)


def of_image(canonical: bytes, image: Image, names: Sequence[str], like: pa.Schema) -> KeyOfRow:
    """Return a key whose columns a record has told."""
    cells = [pa.array([image.get(name)], like.field(name).type) for name in names]
    return KeyOfRow(canonical, pa.table(cells, names=list(names)))


def in_lake(rows: pa.Table | None, version: int) -> RowInLake:
    """Return the lake's row among those that have its key: one that is alive first."""
    if rows is None or not rows.num_rows:
        return RowInLake(None, version=version)
    every = rows.to_pylist()
    every.sort(key=lambda row: bool((row.get(CDC) or {}).get("deleted")))
    alive = [row for row in every if not (row.get(CDC) or {}).get("deleted")]
    cdc = every[0].pop(CDC, None) or {}
    return RowInLake(every[0], cdc, len(alive), version)


def at_start(reader: TableReader, key: KeyOfRow, version: int) -> RowAtStart:
    """Return the row of a key as a version of the table has it.

    Args:
        reader: of the table.
        key: which.
        version: below 0 there was no table.
    """
    if version < 0:
        return RowAtStart(known=True)
    rows = reader.rows_at(version, key.columns)
    if rows is None:
        return RowAtStart()
    found = in_lake(rows, version)
    if found.row is None:
        return RowAtStart(known=True)
    cdc = found.cdc
    net = NetChange(
        net_change.UPSERT if found.is_alive else net_change.DELETE,
        str(cdc.get("op") or ""),
        found.position,
        unavailable=frozenset(cdc.get("unavailable") or ()),
        barrier=cdc.get("barrier"),
    )
    return RowAtStart(known=True, net=net, image=found.row)


def agreement(
    source: ChunkRows, lake: pa.Table | None, kept: pa.Schema | None, schema: TableSchema
) -> Agreement:
    """Say whether the lake has what the database has, by the rules of `lakemark verify`.

    Args:
        source: the database's row, or its absence.
        lake: rows of the lake with the key, and `_cdc`; None without a table.
        kept: the lake's columns under the source's names; None without a table.
        schema: the table's, as it was read.
    """
    if lake is None or kept is None:
        return Agreement(comparison.MISSING if source.found.rows.num_rows else NEITHER)
    own = source.found if source.found.rows.num_rows or source.absent is None else source.absent
    action = net_change.UPSERT if own is source.found else net_change.DELETE
    try:
        rows = comparison.as_kept(own.rows, kept, key=schema.key)
        compared = comparison.compare(
            rows,
            pa.chunked_array([[action] * rows.num_rows], pa.string()),
            own.keys.to_pylist(),
            lake,
            key=key_columns_by(schema),
            position=_NEVER_NEWER,
        )
    except LakemarkError as error:
        return Agreement(UNKNOWN, reason=error.message)
    if not compared.differences:
        return Agreement(SAME if own is source.found else NEITHER)
    first = compared.differences[0]
    return Agreement(first.kind, first.columns)
