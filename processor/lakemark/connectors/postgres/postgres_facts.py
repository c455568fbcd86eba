"""PostgreSQL: the catalog's facts of all captured tables, for `catalog_differences`.

A few queries of one moment, none of them per table. They read the catalog's tables themselves, not
functions that look into the server's caches: those answer as of now and not as of the moment, and
some wait behind a table's lock. All of it any user may read; of the rest, see `_control`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import psycopg

from lakemark.connectors.postgres.catalog_facts import (
    ColumnFacts,
    Numbers,
    PartFacts,
    SourceFacts,
    TableFacts,
    UniqueKey,
)
from lakemark.connectors.postgres.column_sql import SESSION_SETTINGS
from lakemark.connectors.postgres.postgres import catalog_session
from lakemark.errors import DependencyError
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.table_id import pair_of, text_of

_STATEMENT_TIMEOUT_MS: Final = 30_000  # as for other reads of the catalog
_PUBLICATION_LISTS_VERSION: Final = 150_000  # row filters, column lists, schemas
_GENERATED_VERSION: Final = 180_000  # generated columns in publications
_DETACH_VERSION: Final = 140_000  # DETACH CONCURRENTLY

# Also unlogged ones: that they are is a fact. A table of a session is nobody else's.
_NAMES: Final = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence IN ('p', 'u')
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
"""
_CONTROL_RIGHTS: Final = """
SELECT has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')
   AND has_function_privilege('pg_catalog.pg_control_checkpoint()', 'EXECUTE')
"""
_CONTROL: Final = """
SELECT s.system_identifier::text, c.timeline_id
FROM pg_catalog.pg_control_system() s, pg_catalog.pg_control_checkpoint() c
"""
# Read after the moment of the others: every change that they show is below it.
_LSN: Final = "SELECT (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::int8"
_SLOT: Final = """
SELECT {sent}::int8, {since}
FROM pg_catalog.pg_replication_slots s {counts} WHERE s.slot_name = %s
"""
# A slot that is made counts from zero; so does every slot after a crash of the server, which makes
# all of its statistics anew.
_COUNTS: Final = {
    "sent": "c.total_txns",
    "since": "concat_ws(' ', extract(epoch FROM b.stats_reset), extract(epoch FROM c.stats_reset))",
    "counts": "LEFT JOIN pg_catalog.pg_stat_replication_slots c ON c.slot_name = s.slot_name"
    " CROSS JOIN pg_catalog.pg_stat_bgwriter b",
}
_NO_COUNTS: Final = {"sent": "NULL", "since": "''", "counts": ""}
_COUNTS_VERSION: Final = 140_000
_PUBLICATION: Final = """
SELECT oid::int8, puballtables, pubviaroot, {generated}
FROM pg_catalog.pg_publication WHERE pubname = %s
"""
_GENERATED: Final = "pubgencols = 's'"
_RELATIONS: Final = """
WITH wanted AS (
    SELECT c.oid
    FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS w(nspname, relname)
    JOIN pg_catalog.pg_namespace n ON n.nspname = w.nspname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname
    WHERE c.relkind IN ('r', 'p')
    UNION
    SELECT unnest(%(known)s::oid[])
)
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relfilenode::int8,
       c.reltoastrelid::int8, c.relpersistence = 'p', c.relreplident::text, c.relnatts::int
FROM wanted w
JOIN pg_catalog.pg_class c ON c.oid = w.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""
# Members as in `PartFacts`; by table. Foreign tables have no filenode. ATTACH and DETACH write the
# row of every column anew: a part of which one row is as old as its type, to the command, was made
# as a part. The file that a table begins with has the number of its oid.
_PARTS: Final = """
WITH RECURSIVE below AS (
    SELECT t.oid AS root, t.oid FROM unnest(%(oids)s::oid[]) AS t(oid)
    UNION
    SELECT b.root, i.inhrelid
    FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.oid {attached}
)
SELECT b.root::int8, c.oid::int8, n.nspname::text, c.relname::text, c.relfilenode::int8,
       c.reltoastrelid::int8, c.reltuples < 0, c.relpages = 0,
       c.relfilenode IN (0, c.oid) AND EXISTS (
           SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = c.reltype
           WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.xmin = t.xmin AND a.cmin = t.cmin),
       c.relreplident::text
FROM below b
JOIN pg_catalog.pg_class c ON c.oid = b.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE b.oid <> b.root
ORDER BY b.root, c.oid
"""
_ATTACHED: Final = "AND NOT i.inhdetachpending"
# The catalog's own type of attmissingval is an array of the column's type, with one member.
_COLUMNS: Final = """
SELECT a.attrelid::int8, a.attnum::int, a.attname::text, format_type(a.atttypid, NULL),
       a.atttypmod, array_to_string(a.attmissingval, ''), coalesce(d.oid, 0)::int8,
       a.attgenerated::text, a.xmin::text::int8, coalesce(d.xmin::text, '0')::int8
FROM pg_catalog.pg_attribute a
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""
# Debezium takes the first unique index in this order.
_INDEXES: Final = """
SELECT i.indrelid::int8, ic.relname::text, (i.indkey::int2[])[0:i.indnkeyatts - 1]::int[],
       i.indisprimary, i.indisreplident,
       i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
           AND NOT 0 = ANY (i.indkey::int2[]),
       NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                   WHERE a.attrelid = i.indrelid AND NOT a.attnotnull
                     AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
WHERE i.indrelid = ANY (%(oids)s::oid[]) AND (i.indisunique OR i.indisreplident)
ORDER BY i.indrelid, i.indisprimary DESC, i.indisclustered DESC, ic.relname
"""
_LABELS: Final = """
WITH RECURSIVE used AS (
    SELECT a.attrelid, a.atttypid AS typid
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT u.attrelid, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END
    FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.typid
    WHERE t.typtype = 'd' OR t.typcategory = 'A' AND t.typelem <> 0
)
SELECT u.attrelid::int8, format_type(t.oid, NULL), e.oid::int8, e.enumlabel::text
FROM used u
JOIN pg_catalog.pg_type t ON t.oid = u.typid AND t.typtype = 'e'
JOIN pg_catalog.pg_enum e ON e.enumtypid = t.oid
ORDER BY u.attrelid, 2, e.enumsortorder
"""
# The rows that put a table into the publication: its own or its schema's, or those of the
# partitioned tables above it. `own` is about the table itself.
_MEMBERSHIPS: Final = """
WITH RECURSIVE above AS (
    SELECT t.oid AS leaf, t.oid FROM unnest(%(oids)s::oid[]) AS t(oid)
    UNION
    SELECT a.leaf, i.inhparent
    FROM above a
    JOIN pg_catalog.pg_class c ON c.oid = a.oid AND c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.oid
)
SELECT a.leaf::int8, r.oid::int8, a.leaf = a.oid AS own, {filters}
FROM above a JOIN pg_catalog.pg_publication_rel r ON r.prrelid = a.oid
WHERE r.prpubid = %(publication)s
{schemas}
UNION ALL
SELECT a.leaf::int8, %(publication)s::int8, a.leaf = a.oid, NULL, NULL
FROM above a WHERE %(all_tables)s
"""
_FILTERS: Final = "pg_get_expr(r.prqual, r.prrelid) AS row_filter, r.prattrs::int2[]::int[]"
_NO_FILTERS: Final = "NULL::text AS row_filter, NULL::int[]"
_SCHEMAS: Final = """
UNION ALL
SELECT a.leaf::int8, s.oid::int8, a.leaf = a.oid, NULL, NULL
FROM above a
JOIN pg_catalog.pg_class c ON c.oid = a.oid
JOIN pg_catalog.pg_publication_namespace s ON s.pnnspid = c.relnamespace
WHERE s.pnpubid = %(publication)s
"""

Session = psycopg.Connection[Any]
Row = tuple[Any, ...]


def read_facts(
    session: Session,
    tables: Sequence[str],
    *,
    publication: str,
    slot: str,
    known: Iterable[int] = (),
) -> SourceFacts:
    """Return the catalog's facts of these tables, as of one moment.

    Nothing is locked and nothing waits for a lock on a table. What the session's user may not ask
    is left empty.

    Args:
        session: any user's, with no transaction open; rows as tuples.
        tables: ``schema.table`` names. A table that does not exist is left out.
        publication: the connector's; "" if it needs none.
        slot: the connector's.
        known: oids of tables that earlier looks have seen: those that are there under names which
            are not asked for are in `SourceFacts.elsewhere`.

    Raises:
        psycopg.Error: whatever the session raises.
    """
    with session.transaction():
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        # Without a search path names of types have their schema. Missing values are texts of a
        # chunk's session.
        local = {
            **SESSION_SETTINGS,
            "statement_timeout": str(_STATEMENT_TIMEOUT_MS),
            "search_path": "",
        }
        session.execute(
            "SELECT set_config(name, value, true)"
            " FROM unnest(%s::text[], %s::text[]) AS s(name, value)",
            [list(local), list(local.values())],
        )
        pairs = [pair_of(name) for name in dict.fromkeys(tables)]
        relations = _named(
            session.execute(
                _RELATIONS,
                {
                    "schemas": [schema for schema, _ in pairs],
                    "tables": [table for _, table in pairs],
                    "known": list(known),
                },
            )
        )
        names = set(tables)
        asked = {row[0]: row for row in relations if row[1] in names and row[2] in {"r", "p"}}
        system, timeline = _control(session)
        counts = _COUNTS if session.info.server_version >= _COUNTS_VERSION else _NO_COUNTS
        slot_row = session.execute(_SLOT.format(**counts), [slot]).fetchone()
        (lsn,) = session.execute(_LSN).fetchone() or (0,)
        published = _Published(session, publication, list(asked))
        return SourceFacts(
            system=system,
            timeline=timeline,
            version=session.info.server_version,
            lsn=lsn,
            slot=slot,
            slot_present=slot_row is not None,
            slot_sent=-1 if slot_row is None else _at_least(slot_row[0]),
            slot_counted_since=slot_row[1] if slot_row else "",
            publication=publication,
            publication_present=published.present,
            via_root=published.via_root,
            sends_generated=published.sends_generated,
            elsewhere={row[0]: row[1] for row in relations if row[0] not in asked},
            tables=_tables(session, asked, published),
        )


def _at_least(count: int | None) -> int:
    """Round a count down to a power of two, which seldom changes; -1 for none."""
    if not count:
        return -1 if count is None else 0
    return int(1 << (count.bit_length() - 1))


def _control(session: Session) -> tuple[str, int]:
    """Return the server's identifier and timeline; empty where the user must not ask."""
    (allowed,) = session.execute(_CONTROL_RIGHTS).fetchone() or (False,)
    row = session.execute(_CONTROL).fetchone() if allowed else None
    return (row[0], row[1]) if row else ("", 0)


def _tables(
    session: Session, asked: Mapping[int, Row], published: "_Published"
) -> dict[str, TableFacts]:
    attached = _ATTACHED if session.info.server_version >= _DETACH_VERSION else ""
    found = _by_table(session, _PARTS.format(attached=attached), list(asked))
    parts = defaultdict(list, {root: _named(rows) for root, rows in found.items()})
    everything = [*asked, *(row[0] for rows in parts.values() for row in rows)]
    columns = _by_table(session, _COLUMNS, everything)
    indexes = _by_table(session, _INDEXES, everything)
    labels = _by_table(session, _LABELS, list(asked))
    facts = {}
    for oid, (_, name, kind, filenode, toast, logged, identity, width) in asked.items():
        own = _columns(columns[oid], (columns[row[0]] for row in parts[oid] if kind == "p"))
        numbers = {column.name: column.number for column in own}
        below = {
            row[0]: _part(row, numbers, columns[row[0]], indexes[row[0]]) for row in parts[oid]
        }
        leaves = [p for p in below.values() if p.filenode] if kind == "p" else []
        facts[name] = TableFacts(
            oid=oid,
            name=name,
            kind=kind,
            filenode=filenode,
            toast=toast,
            logged=logged,
            columns=own,
            width=width,
            key=next((tuple(row[1]) for row in indexes[oid] if row[2]), ()),
            unique_keys=tuple(
                UniqueKey(row[0], tuple(row[1]), row[5]) for row in indexes[oid] if row[4]
            ),
            identity=identity,
            identity_columns=_in_common(leaves)
            if leaves
            else _identity(identity, tuple(numbers.values()), indexes[oid]),
            labels=_labels(labels[oid]),
            parts=below,
            **published.members(oid, kind, own, logged=logged),
        )
    return facts


def _named(rows: Iterable[Row]) -> list[Row]:
    """Return rows of oid, schema, name and more with the table's text for the two."""
    return [(oid, text_of(schema, name), *more) for oid, schema, name, *more in rows]


def _by_table(session: Session, query: str, oids: list[int]) -> defaultdict[int, list[Row]]:
    """Return the rows behind their first member, by it."""
    rows: defaultdict[int, list[Row]] = defaultdict(list)
    for oid, *row in session.execute(query.encode(), {"oids": oids}):
        rows[oid].append(tuple(row))
    return rows


def _columns(rows: Iterable[Row], parts: Iterable[Iterable[Row]]) -> tuple[ColumnFacts, ...]:
    """Return a table's columns; old rows of partitions say what the partitioned table cannot."""
    missing: dict[str, str] = {}
    for part in parts:
        for _, name, _, _, value, *_ in part:
            if value is not None:
                missing.setdefault(name, value)
    return tuple(
        ColumnFacts(
            number=number,
            name=name,
            type=kind,
            modifier=modifier,
            missing=missing.get(name) if value is None else value,
            default=default,
            generated=generated,
            xmin=xmin,
            default_xmin=default_xmin,
        )
        for number, name, kind, modifier, value, default, generated, xmin, default_xmin in rows
    )


def _part(
    row: Row, numbers: Mapping[str, int], columns: Sequence[Row], indexes: Sequence[Row]
) -> PartFacts:
    """Return a part's facts; its columns have the table's names, and numbers of their own."""
    _, name, filenode, toast, uncounted, pageless, is_first, identity = row
    names = {number: name for number, name, *_ in columns}
    own = _identity(identity, tuple(names), indexes)
    return PartFacts(
        name=name,
        filenode=filenode,
        toast=toast,
        uncounted=uncounted,
        pageless=pageless,
        is_first=is_first,
        identity=identity,
        identity_columns=tuple(
            sorted(numbers[names[number]] for number in own if names.get(number) in numbers)
        ),
    )


def _identity(identity: str, columns: Numbers, indexes: Sequence[Row]) -> Numbers:
    """Return the columns of an old row. A deferrable key is none, as the server has it."""
    if identity == "f":
        return columns
    for _, numbers, primary, chosen, immediate, _ in indexes:
        if (identity == "d" and primary and immediate) or (identity == "i" and chosen):
            return tuple(sorted(numbers))
    return ()


def _in_common(parts: Sequence[PartFacts]) -> Numbers:
    shared = set(parts[0].identity_columns)
    for part in parts[1:]:
        shared &= set(part.identity_columns)
    return tuple(sorted(shared))


def _labels(rows: Iterable[Row]) -> dict[str, tuple[tuple[int, str], ...]]:
    labels: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for kind, oid, label in rows:
        labels[kind].append((oid, label))
    return {kind: tuple(of_type) for kind, of_type in labels.items()}


class _Published:
    """The publication, and the tables that it has under their own names, by the server's rules."""

    def __init__(self, session: Session, publication: str, oids: list[int]) -> None:
        version = session.info.server_version
        generated = _GENERATED if version >= _GENERATED_VERSION else "false"
        query = _PUBLICATION.format(generated=generated).encode()
        row = session.execute(query, [publication]).fetchone() if publication else None
        self.needed, self.present = bool(publication), row is not None
        self.via_root, self.sends_generated = bool(row and row[2]), bool(row and row[3])
        self._memberships: defaultdict[int, list[Row]] = defaultdict(list)
        if row is None:
            return
        lists = version >= _PUBLICATION_LISTS_VERSION
        query = _MEMBERSHIPS.format(
            filters=_FILTERS if lists else _NO_FILTERS, schemas=_SCHEMAS if lists else ""
        ).encode()
        parameters = {"oids": oids, "publication": row[0], "all_tables": row[1]}
        for oid, *membership in session.execute(query, parameters):
            self._memberships[oid].append(tuple(membership))

    def members(
        self, oid: int, kind: str, columns: Sequence[ColumnFacts], *, logged: bool
    ) -> dict[str, Any]:
        """Return those members of `TableFacts` that are about the publication.

        Via the root, changes have the name of the topmost table that the publication has. Else they
        have the partition's name, and a partitioned table has no changes of its own.
        """
        if not self.needed:
            return {"published": True}
        rows = self._memberships[oid]
        above = any(not own for _, own, *_ in rows)
        published = not above if self.via_root else kind != "p"
        own = [row for row in rows if row[1]]
        members = {
            "published": bool(rows) and published and logged,
            "published_by": tuple(sorted({row[0] for row in rows})),
        }
        # A condition or a list counts only where nothing else publishes the table as a whole.
        if len(own) == 1:
            _, _, row_filter, listed = own[0]
            members["row_filter"] = row_filter or ""
            if listed is not None:
                members["column_list"] = tuple(c.name for c in columns if c.number in listed)
        return members


def look(
    database: DatabaseConfig,
    wanted: Callable[[str], bool],
    *,
    publication: str,
    slot: str,
    known: Iterable[int] = (),
) -> SourceFacts:
    """Return the catalog's facts of the wanted tables, by a connection of its own.

    Raises:
        DependencyError: the database does not answer, or is a standby.
        LoginRefused: it refuses us.
        InvalidConfig: ``database.url`` is wrong.
    """
    with catalog_session(database) as session:
        if session.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone() == (True,):
            raise DependencyError(
                "the database that answers is a standby: it may be behind what was seen before",
                code="database-unavailable",
                hint="name the primary in database.url",
            )
        names = [text_of(*row) for row in session.execute(_NAMES).fetchall()]
        names = [name for name in names if wanted(name)]
        return read_facts(session, names, publication=publication, slot=slot, known=known)
