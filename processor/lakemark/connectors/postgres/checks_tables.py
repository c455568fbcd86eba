"""The captured tables: from the catalog's facts to findings. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lakemark.connectors.postgres.catalog import CatalogColumn, connect_field
from lakemark.connectors.postgres.checks_database import grant, mending
from lakemark.connectors.postgres.column_sql import quoted
from lakemark.connectors.refusals import Refusal
from lakemark.model.findings import Finding, fine, warning, wrong
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.table_id import pair_of

CHECKS: Final = ("select", "key", "columns", "replica identity", "publication")

_NO_LOG: Final[Mapping[str, str]] = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
}
_MODES: Final = HandlingModes()
# Debezium writes null, not its placeholder, for unchanged TOAST values of these (seen with 3.7).
_NULL_ARRAYS: Final = frozenset({"numeric", "timestamp", "bool", "float8", "int2"})


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation that the connector's lists match.

    Attributes:
        table: ``schema.table``.
        root: the partitioned table that it belongs to or is; empty without partitions.
        kind: pg_class.relkind.
        logged: whether changes are written to the log (relpersistence is p).
        select: whether we may read it, its schema included.
        row_security: whether policies may hide rows from us.
        identity: relreplident: d(efault), f(ull), i(ndex), n(othing).
        key: columns of the key that its events have, in order; empty: it has none.
        primary: name of the primary key's constraint, empty if there is none.
        deferrable: whether the primary key is.
        ready_index: a unique index that could be the replica identity, empty if there is none.
        toast: whether values may be stored apart.
        columns: of the catalog, those that the connector sends.
        every_column: also those that it cannot send; not those that its lists leave out.
        refusals: what of the table the publication leaves out.
    """

    table: str
    root: str = ""
    kind: str = "r"
    logged: bool = True
    select: bool = True
    row_security: bool = False
    identity: str = "d"
    key: tuple[str, ...] = ()
    primary: str = ""
    deferrable: bool = False
    ready_index: str = ""
    toast: bool = False
    columns: tuple[CatalogColumn, ...] = ()
    every_column: tuple[CatalogColumn, ...] = ()
    refusals: tuple[Refusal, ...] = ()


def findings(
    relations: Sequence[Relation],
    *,
    user: str,
    publication: str,
    chosen: bool,
    modes: HandlingModes = _MODES,
) -> list[Finding]:
    """Return all findings about the captured tables.

    Args:
        relations: those that the connector's lists and `source.tables` match.
        user: ours in the database.
        publication: the connector's; empty when it has none or none exists.
        chosen: whether tables were named: then a view among them is a mistake.
        modes: how the connector writes values.
    """
    tables = with_events(relations)
    left_out = [
        finding
        for relation in relations
        if relation.kind in _NO_LOG or not relation.logged
        for finding in _without_log(relation, chosen=chosen)
    ]
    if not tables:
        left_out.append(
            wrong(
                "tables",
                "",
                "the connector captures no table of this database",
                "correct table.include.list of the connector, source.tables or database.url",
            )
        )
    return [
        *left_out,
        *(finding for relation in tables for finding in _select(relation, user)),
        *(finding for relation in tables for finding in _key(relation)),
        *(_columns(relation, modes) for relation in tables),
        *(finding for relation in tables for finding in _identity(relation, modes.binary)),
        *(f for relation in tables if publication for f in _publication(relation, publication)),
    ]


def with_events(relations: Sequence[Relation]) -> list[Relation]:
    """Return tables without partitions that are published as their root, or vice versa."""
    tables = [r for r in relations if r.kind not in _NO_LOG and r.logged]
    published = {r.root for r in tables if r.root and not _unpublished(r)}
    return [r for r in tables if r.root not in published or not _unpublished(r)]


def _unpublished(relation: Relation) -> bool:
    return any(refusal.code == "not-published" for refusal in relation.refusals)


def _sql(relation: Relation) -> str:
    schema, name = pair_of(relation.table)
    return quoted(schema, name)


def _without_log(relation: Relation, *, chosen: bool) -> Iterator[Finding]:
    if relation.kind in _NO_LOG and chosen:
        yield warning(
            "tables",
            relation.table,
            f"is {_NO_LOG[relation.kind]}: it has no events and is left out",
            "name the tables behind it in table.include.list or source.tables",
        )
    elif relation.kind not in _NO_LOG:
        yield warning(
            "tables",
            relation.table,
            "is unlogged: its changes are not in the log, so it has no events",
            f"ALTER TABLE {_sql(relation)} SET LOGGED;",
        )


def _select(relation: Relation, user: str) -> Iterator[Finding]:
    if not relation.select:
        yield wrong(
            "select",
            relation.table,
            f"{user} may not read it: no snapshot of it can be taken",
            grant("SELECT", relation.table, user),
        )
    elif relation.row_security:
        yield wrong(
            "select",
            relation.table,
            f"row-level security may hide rows from {user}: snapshots would delete them",
            f"ALTER ROLE {quoted(user)} BYPASSRLS;",
        )
    else:
        yield fine("select", relation.table, "granted")


# --- keys ------------------------------------------------------------------------------------


def _key(relation: Relation) -> Iterator[Finding]:
    if not relation.key:
        yield _no_key(relation)
    elif relation.deferrable:
        columns = ", ".join(quoted(column) for column in relation.key)
        yield warning(
            "key",
            relation.table,
            f"{relation.primary} is deferrable: two rows may have one key for a while, and then it"
            " is read again from the database",
            f"ALTER TABLE {_sql(relation)} DROP CONSTRAINT {quoted(relation.primary)},"
            f" ADD PRIMARY KEY ({columns});",
        )
    else:
        yield fine("key", relation.table, "has one")


def _no_key(relation: Relation) -> Finding:
    return wrong(
        "key",
        relation.table,
        "has no key: its rows cannot be told apart, so it stops at its first event"
        " (message.key.columns of the connector may name unique columns instead)",
        f"ALTER TABLE {_sql(relation)} ADD PRIMARY KEY (<columns that tell its rows apart>);",
    )


# --- columns ---------------------------------------------------------------------------------


def _columns(relation: Relation, modes: HandlingModes) -> Finding:
    """Report columns that events have otherwise than the table, or not at all (seen with 3.7)."""
    columns = relation.every_column
    sent = {column.name for column in relation.columns}
    unwritten = [c for c in columns if connect_field(c, modes) is None]
    generated = [c for c in columns if c.generated and c.name not in sent]
    after = next((at for at, c in enumerate(columns) if c.generated and c.name not in sent), None)
    shifted = [] if after is None else [c for c in columns[after:] if c.name in sent]
    nested = [c for c in columns if c.dimensions > 1 and c not in unwritten]
    nulls = [c for c in columns if c.type_name == "name" or c.element_type_name == "bit"]
    deviations = [
        f"{_listed(those)} {what}"
        for those, what in (
            (unwritten, "of a type that the connector leaves out of its events: no column of it"),
            (generated, "generated, and in no event of the log: no column of it"),
            (shifted, "behind a generated column: events of the log may have values of others"),
            (nested, "an array of several dimensions: null, or garbage, for the inner ones"),
            (nulls, "of a type that is null in events of the log"),
        )
        if those
    ]
    if not deviations:
        return fine("columns", relation.table, "events have all of them")
    return warning(
        "columns",
        relation.table,
        f"not held as they are: {'; '.join(deviations)}",
        "keep what the lake needs in columns of other types, such as json or text, in front of "
        "generated ones; what it does not need goes into the connector's column.exclude.list",
    )


def _listed(columns: Sequence[CatalogColumn]) -> str:
    kinds = [
        f"{c.name} ({c.element_type_name}{'[]' * max(c.dimensions, 1)})"
        if c.element_type_name
        else f"{c.name} ({c.type_name})"
        for c in columns
    ]
    return f"{', '.join(kinds)} {'is' if len(columns) == 1 else 'are'}"


# --- what the log says of the old row -----------------------------------------------------------


def _identity(relation: Relation, binary: str) -> Iterator[Finding]:
    check, name = "replica identity", relation.table
    full = f"ALTER TABLE {_sql(relation)} REPLICA IDENTITY FULL;"
    if relation.identity == "n":
        reason = "is NOTHING: the database refuses updates and deletes while it is published"
        yield wrong(check, name, reason, f"ALTER TABLE {_sql(relation)} REPLICA IDENTITY DEFAULT;")
    elif relation.identity == "i":
        yield warning(
            check,
            name,
            "is an index: a delete says the index's columns only, the key's may be missing",
            f"ALTER TABLE {_sql(relation)} REPLICA IDENTITY DEFAULT;",
        )
    elif relation.identity == "f":
        yield fine(check, name, "FULL: every event has the whole old row")
    elif not relation.primary:
        reason = "is DEFAULT without a primary key: the database refuses updates and deletes"
        yield wrong(check, name, reason, _by_index(relation) if relation.ready_index else full)
    elif relation.deferrable:
        reason = "is DEFAULT under a deferrable key: the database refuses updates"
        yield wrong(check, name, reason, full)
    elif nulls := _null_when_unchanged(relation, binary):
        yield warning(
            check,
            name,
            f"is DEFAULT: large values of {', '.join(nulls)} that an update leaves alone arrive as"
            " null, and nothing tells them from real ones",
            full,
        )
    elif relation.toast:
        yield fine(
            check, name, "DEFAULT: unchanged large values arrive as a placeholder and are kept"
        )
    else:
        yield fine(check, name, "DEFAULT: no value is large enough to be left out")


def _by_index(relation: Relation) -> str:
    index = quoted(relation.ready_index)
    return f"ALTER TABLE {_sql(relation)} REPLICA IDENTITY USING INDEX {index};"


def _null_when_unchanged(relation: Relation, binary: str) -> list[str]:
    """Return columns whose unchanged large values come as null, not as the placeholder."""
    if not relation.toast:
        return []
    return [c.name for c in relation.columns if _null_instead(c, binary)]


def _null_instead(column: CatalogColumn, binary: str) -> bool:
    if column.element_type_name is not None:
        return column.element_type_name in _NULL_ARRAYS
    if column.type_name == "bytea":
        return binary in {"base64", "base64-url-safe"}
    # A numeric with a precision is a few bytes and never stored apart.
    return column.type_name == "varbit" or (column.type_name == "numeric" and column.typmod < 0)


def _publication(relation: Relation, publication: str) -> Iterator[Finding]:
    check, name = "publication", relation.table
    for refusal in relation.refusals:
        yield wrong(check, name, refusal.message, mending(refusal, publication, name))
    if not relation.refusals:
        yield fine(check, name, f"{publication} has all of it")
