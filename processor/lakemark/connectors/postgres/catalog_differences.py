"""Changes that no event tells, by two looks at PostgreSQL's catalog; pure.

The actions are those of `catalog_changes`. It is the values of a new column, values that ALTER TYPE
computed, a name that now means other values, rows that a partition brought or took along. What the
catalog cannot tell:

- what was changed and changed back between two looks: columns or tables renamed or swapped twice,
  a label, a replica identity or the rows of a partition that was detached and attached again
- VACUUM FULL from ALTER TYPE without another type, in a table without a TOAST table, for a column
  without a default of which also something else was set, such as its statistics, or that is newer
  than rows: read again
- an added column behind which came VACUUM FULL or TRUNCATE at once, from one with a constant
  default: read again
- TRUNCATE of a partition from VACUUM FULL, CLUSTER and a new tablespace; a TRUNCATE of the whole
  table, which is in the log, from one of each of its partitions: read again. A partition that was
  truncated, filled, and then rewritten by ALTER TABLE (SET LOGGED) is taken for one that was only
  rewritten
- TRUNCATE of a table whose truncates the connector leaves out from VACUUM FULL and what else writes
  its rows into a new file: read again
- a partition that was attached without rows from one that brought some: read again. One that was
  made as a partition is known as such, unless it was truncated or altered since
- a table that was dropped before one look and is there anew at the next: it is new then
- a slot that was dropped and made again between two looks, and has sent at least half as many
  transactions as the former had; before PostgreSQL 14, and where the server has crashed or its
  statistics were reset between the two, any such slot
- a slot that is made for the first time from one that was gone: read again
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from lakemark.connectors.catalog_changes import (
    NO_KEYS,
    Action,
    Difference,
    SourceKeys,
    read_again,
)
from lakemark.connectors.postgres.catalog_facts import (
    ColumnFacts,
    Numbers,
    PartFacts,
    SourceFacts,
    TableFacts,
)
from lakemark.connectors.postgres.column_sql import quoted
from lakemark.settings.table_id import pair_of

_IN_NEW_FILE: Final = "storage-changed"
_SHOWN: Final = 3  # partitions that a sentence names
_MENDED: Final = (
    ("identity-without-key", "until its replica identity was mended, deletes may have been lost"),
    ("not-published", "until the publication had it again, changes were lost"),
)
MENDED: Final = {code: why for code, why in _MENDED}  # noqa: C416 - as the codes are collected
"""See `Database.mended`."""


def differences(
    before: SourceFacts | None,
    now: SourceFacts,
    *,
    source_key: SourceKeys = NO_KEYS,
    truncates_come: bool = True,
) -> list[Difference]:
    """Return what has changed, the server's first, then by table.

    Some entries are about a state and not about a change: they come with every look as long as it
    lasts. These are `identity-without-key` and `not-published`, also at the first look.

    Args:
        before: the last look; None for none.
        now: the look of now, at the same tables.
        source_key: by table the key's columns as the connector sends them. Of a table that is not
            there it is the primary key, else the unique index that Debezium takes.
        truncates_come: whether events tell of truncates. Else a table whose rows are in a new file
            may have been truncated.
    """
    looks = _Looks(before or SourceFacts(), now, source_key, is_first=before is None)
    entries = [] if before is None else [*_server(before, now), *_slot(before, now)]
    of_all = [entry for entry in entries if entry.action is Action.READ_AGAIN]
    changes = [entry for entry in entries if entry.action is Action.NOTHING]
    for name in sorted({*looks.before.tables, *now.tables}):
        if name in now.tables:
            changes += [read_again(name, entry.kind, entry.what) for entry in of_all]
        changes += looks.at(name)
    return changes if truncates_come else [*map(_maybe_truncated, changes)]


def _maybe_truncated(change: Difference) -> Difference:
    if change.kind != _IN_NEW_FILE:
        return change
    what = f"{change.table} was truncated, or its rows were written anew: no event tells which"
    return read_again(change.table, "rewritten", what)


def named(facts: SourceFacts) -> SourceFacts:
    """Return the facts without tables whose changes come under the names of others.

    Those are the partitions of a table where the publication names the root, and the root where it
    names the partitions.
    """
    parts = {oid for root in facts.tables.values() if root.kind == "p" for oid in root.parts}

    def is_other(table: TableFacts) -> bool:
        if table.published:
            return False
        return table.oid in parts if facts.via_root else table.kind == "p"

    tables = {name: table for name, table in facts.tables.items() if not is_other(table)}
    return msgspec.structs.replace(facts, tables=tables)


def are_fills(before: TableFacts | None, now: TableFacts, changes: Sequence[Difference]) -> bool:
    """Say whether older rows lack only constants of new columns and values of renamed ones.

    It is proved only where one transaction did it, and no column had another name in between: each
    change of a column's name writes its row of the catalog.

    Args:
        before: the last look at the table.
        now: the look of now.
        changes: of the table, as the policies have them.
    """
    if before is None or before.oid != now.oid or now.kind != "r" or now.column_list is not None:
        return False
    was = {column.number: column for column in before.columns}
    new = [column for column in now.columns if column.number not in was]
    if not before.width or now.width - before.width != len(new):
        return False
    named = [c for c in now.columns if c.number in was and was[c.number].name != c.name]
    others = [c for c in now.columns if c.number in was and c not in named]
    if any(was[column.number].xmin != column.xmin for column in others):
        return False
    if len({column.xmin for column in (*new, *named)}) != 1:
        return False
    lacking = [change for change in changes if change.action is not Action.NOTHING]
    kept = {column.name for column in new if column.xmin == column.default_xmin}
    return bool(lacking) and all(
        change.action is Action.READ_AGAIN
        and (
            (change.kind == "column-added" and change.fill is not None and change.column in kept)
            or (change.kind == "column-renamed" and change.other)
        )
        for change in lacking
    )


# --- the server and the slot --------------------------------------------------------------------


def _is_other_server(before: SourceFacts, now: SourceFacts) -> bool:
    return bool(before.system and now.system) and before.system != now.system


def _server(before: SourceFacts, now: SourceFacts) -> Iterator[Difference]:
    if _is_other_server(before, now):
        what = f"the database is another server: its identifier is {now.system}, and was "
        yield read_again("", "other-server", f"{what}{before.system}")
    elif before.timeline and now.timeline and before.timeline != now.timeline:
        yield Difference(
            "",
            "timeline-changed",
            Action.NOTHING,
            f"the server is on timeline {now.timeline} and was on {before.timeline}: "
            "a standby was promoted, or a backup was restored",
        )


def _slot(before: SourceFacts, now: SourceFacts) -> Iterator[Difference]:
    """Yield changes of the slot; another one of the same name shows in what it has sent."""
    if before.slot != now.slot:
        return
    if before.had_slot is False:
        return  # it comes for the first time, and was not gone
    if before.slot_present and not now.slot_present:
        yield Difference(
            "",
            "slot-gone",
            Action.NOTHING,
            f"the replication slot {now.slot} is gone: changes from now on may be lost",
            "restart the connector: it makes the slot anew",
        )
    elif now.slot_present and not before.slot_present:
        what = f"the replication slot {now.slot} was gone and is there again: "
        yield read_again("", "slot-made-anew", f"{what}changes between were lost")
    elif (
        before.slot_counted_since == now.slot_counted_since
        and -1 < now.slot_sent < before.slot_sent
    ):
        yield read_again(
            "",
            "slot-made-anew",
            f"the replication slot {now.slot} has sent fewer transactions than it had: it was "
            "dropped and made again, and changes between were lost",
        )


# --- which table is which -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Looks:
    """Both looks, and the tables of each by oid.

    Attributes:
        before, now, source_key: as `differences` has them.
        is_first: whether there was no look before.
    """

    before: SourceFacts
    now: SourceFacts
    source_key: SourceKeys
    is_first: bool

    def at(self, name: str) -> Iterator[Difference]:
        """Yield the differences of the table that has, or had, this name."""
        facts = self.now.tables.get(name)
        former = self.before.tables.get(name)
        if facts is None:
            if former is not None and self.now.elsewhere.get(former.oid) != name:
                yield self._gone(former)  # else it is left out now, and there
            return
        if not self.is_first:
            yield from self._compared(former, facts)
        yield from _unpublished(self.now, facts)
        yield from _identity(facts, self._key(facts))

    def _compared(self, former: TableFacts | None, facts: TableFacts) -> Iterator[Difference]:
        elsewhere = _is_other_server(self.before, self.now)
        same = former is not None and former.oid == facts.oid and not elsewhere
        if same and former is not None:
            yield from _columns(former, facts)
            yield from _labels(former, facts)
            yield from _parts(former, facts)
            yield from _publication(former, facts)
            yield from _generated(self.before, self.now, facts)
        elif not elsewhere:
            yield self._anew(former, facts)
        if former is not None:
            yield from _key_changed(former, facts, self._key(facts), by_number=same)

    def _anew(self, former: TableFacts | None, facts: TableFacts) -> Difference:
        """Return the difference of a table whose oid did not have this name before."""
        name = facts.name
        old = next((t.name for t in self.before.tables.values() if t.oid == facts.oid), "")
        if old:
            what = f"{name} is the table that was {old}: its rows are in no event of this name"
            return read_again(name, "table-renamed-to", what, other=old)
        if former is not None:
            what = f"{name} was dropped, or renamed, and another table has its name"
            return read_again(name, "table-made-anew", what)
        return Difference(name, "table-new", Action.NOTHING, f"{name} is there for the first time")

    def _gone(self, former: TableFacts) -> Difference:
        """Return the difference of a table whose name is gone."""
        name, new = former.name, ""
        if not _is_other_server(self.before, self.now):
            by_oid = {table.oid: table.name for table in self.now.tables.values()}
            new = by_oid.get(former.oid) or self.now.elsewhere.get(former.oid, "")
        if not new:
            return Difference(
                name,
                "table-dropped",
                Action.GONE,
                f"{name} was dropped",
                f"take {name} out of the connector's table.include.list; its rows stay in the lake",
            )
        return Difference(
            name,
            "table-renamed",
            Action.GONE,
            f"{name} was renamed: it is {new} now",
            f"name {new} in the connector's table.include.list; or {_renamed(new, name)}",
            other=new,
        )

    def _key(self, facts: TableFacts) -> Numbers:
        names = self.source_key.get(facts.name)
        return _own_key(facts) if names is None else facts.numbers(tuple(names))


def _own_key(facts: TableFacts) -> Numbers:
    """Return what Debezium takes for the key of a table by itself."""
    return facts.key or (facts.unique_keys[0].columns if facts.unique_keys else ())


# --- columns and what they hold -----------------------------------------------------------------


def _columns(before: TableFacts, now: TableFacts) -> Iterator[Difference]:
    """Yield changes of columns: the names first, then values that may have been computed anew.

    A rewrite of the whole file has a new filenode, and where ALTER TABLE did it, a new TOAST table.
    If no column's row of the catalog was written meanwhile, it has changed no value.
    """
    files = [*_files(before, now)]
    moved, rewritten = bool(files), any(not _keeps_toast(*file) for file in files)
    by_name = {column.name: column for column in before.columns}
    by_number = {column.number: column for column in before.columns}
    changes = []
    for column in now.columns:
        former, homonym = by_number.get(column.number), by_name.get(column.name)
        if homonym is None and former is None:
            is_back = column.name in before.former
            changes.append(_added(now.name, column, is_rewritten=moved, is_back=is_back))
        elif homonym is None and former is not None:
            changes.append(_column_renamed(now.name, former, column))
        elif homonym is not None and homonym.number != column.number:
            changes.append(_replaced(now.name, former, column))
        if former is not None:
            changes.extend(_retyped(now.name, former, column, is_rewritten=rewritten))
    yield from changes
    if moved and all(change.action is Action.NOTHING for change in changes):
        what = f"the rows of {now.name} are in a new file, and none was computed anew"
        yield Difference(now.name, _IN_NEW_FILE, Action.NOTHING, what)
    names = {column.name for column in now.columns}
    numbers = {column.number for column in now.columns}
    for column in before.columns:
        if column.name not in names and column.number not in numbers:
            yield Difference(
                now.name,
                "column-dropped",
                Action.NOTHING,
                f"column {column.name} of {now.name} was dropped",
                column=column.name,
            )


_Relation = TableFacts | PartFacts


def _files(before: TableFacts, now: TableFacts) -> Iterator[tuple[_Relation, _Relation]]:
    """Yield what has its rows in another file; those of a partitioned table are in its leaves."""
    leaves = now.leaves
    relations: list[tuple[_Relation, _Relation]] = [(before, now)]
    relations += [(leaf, leaves[oid]) for oid, leaf in before.leaves.items() if oid in leaves]
    for former, relation in relations:
        if former.filenode != relation.filenode:
            yield former, relation


def _keeps_toast(former: _Relation, relation: _Relation) -> bool:
    return bool(former.toast) and former.toast == relation.toast


def _added(table: str, column: ColumnFacts, *, is_rewritten: bool, is_back: bool) -> Difference:
    """Return the difference of a new column; a copy may have values of one that had its name."""
    what = f"column {column.name} was added to {table}"
    if column.missing is not None:
        what += ", and older rows have its default"
        return read_again(table, "column-added", what, column=column.name, fill=column.missing)
    if is_rewritten:
        what += ", and values of it were written to all rows, or may have been"
        return read_again(table, "column-added", what, column=column.name)
    if is_back:
        what += ", which had another one of this name before"
        return read_again(table, "column-added", what, column=column.name)
    return Difference(table, "column-added", Action.NOTHING, what, column=column.name)


def _column_renamed(table: str, former: ColumnFacts, column: ColumnFacts) -> Difference:
    what = f"column {former.name} of {table} was renamed: it is {column.name} now"
    return read_again(
        table, "column-renamed", what, column=column.name, other=former.name, fill=column.missing
    )


def _replaced(table: str, former: ColumnFacts | None, column: ColumnFacts) -> Difference:
    what = f"column {column.name} of {table} is another one than before"
    old = "" if former is None else former.name
    if old:
        what += f": it was {old}"
    return read_again(
        table, "column-replaced", what, column=column.name, other=old, fill=column.missing
    )


def _retyped(
    table: str, former: ColumnFacts, column: ColumnFacts, *, is_rewritten: bool
) -> Iterator[Difference]:
    typed = (former.type, former.modifier) != (column.type, column.modifier)
    if is_rewritten and (typed or _may_be_computed(former, column)):
        what = f"rows of {table} were written anew, and column {column.name} was changed"
        yield read_again(table, "rewritten", what, column=column.name)
    elif typed:
        yield Difference(
            table,
            "type-changed",
            Action.NOTHING,
            f"column {column.name} of {table} has another type, and the same values",
            column=column.name,
        )
    if former.generated and not column.generated:
        what = f"column {column.name} of {table} is no longer generated: events have it from now on"
        yield read_again(table, "generated-no-more", what, column=column.name)


def _may_be_computed(former: ColumnFacts, column: ColumnFacts) -> bool:
    """Tell whether ALTER TYPE may have computed a column's values, its type being the same.

    It writes the column's row of the catalog, as others do; and makes its default anew.
    """
    if former.xmin == column.xmin:
        return False
    return not former.default or former.default != column.default


def _labels(before: TableFacts, now: TableFacts) -> Iterator[Difference]:
    former = {oid: label for labels in before.labels.values() for oid, label in labels}
    for kind, labels in now.labels.items():
        for oid, label in labels:
            old = former.get(oid, label)
            if old != label:
                what = f"label {old} of the type {kind}, which {now.name} uses, is {label} now"
                yield read_again(now.name, "label-renamed", what, other=old)


# --- partitions ---------------------------------------------------------------------------------


def _parts(before: TableFacts, now: TableFacts) -> Iterator[Difference]:
    """Yield rows that came or went with a partition; a TRUNCATE shows in the partition's file only.

    VACUUM FULL and CLUSTER leave the same traces. What ALTER TABLE rewrites has another TOAST
    table; without pages then it may have been truncated before.
    """
    if now.kind != "p":
        return
    was, is_ = before.parts, now.parts
    new = [part for oid, part in is_.items() if oid not in was]
    made = [part.name for part in new if part.is_first]
    if made:
        what = f"partitions of {now.name} were made: {_listed(made)}"
        yield Difference(now.name, "partitions-made", Action.NOTHING, what, other=", ".join(made))
    attached = [part for part in new if not part.is_first]
    detached = [part for oid, part in was.items() if oid not in is_]
    both = [(was[oid], part) for oid, part in is_.items() if oid in was]
    emptied = [part for former, part in both if _may_be_emptied(former, part)]
    for does, parts in (
        ("were attached", attached),
        ("were detached or dropped", detached),
        ("were truncated, or may have been", emptied),
    ):
        if parts:
            names = [part.name for part in parts]
            what = f"partitions of {now.name} {does}: {_listed(names)}"
            yield read_again(now.name, "partitions-changed", what, other=", ".join(names))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _may_be_emptied(former: PartFacts, part: PartFacts) -> bool:
    if former.filenode == part.filenode:
        return False
    if not former.toast or _keeps_toast(former, part):
        return True
    return part.pageless and not former.pageless


# --- keys, replica identity, publication --------------------------------------------------------


def _key_changed(
    before: TableFacts, now: TableFacts, key: Numbers, *, by_number: bool
) -> Iterator[Difference]:
    """Yield a change of the key's columns: their names tell the rows of the copy apart.

    A key that `message.key.columns` names is not that of the database, whose changes mean nothing
    to it. It is recognised by being none of the table's own.
    """
    old = _own_key(before)
    chosen = {frozenset(now.key)} if now.key else {frozenset(k.columns) for k in now.unique_keys}
    if not old or (key and frozenset(key) not in chosen):
        return
    was, is_ = before.names(old), now.names(key)
    if set(was) == set(is_) and (not by_number or set(old) == set(key)):
        return
    new = ", ".join(is_) or "none"
    yield Difference(
        now.name,
        "key-changed",
        Action.STOP,
        f"{now.name} has another key: {new} instead of {', '.join(was)}; the rows that are there "
        "were told apart by the old one",
        f"lakemark table rebuild {now.name}",
        key=tuple(is_) if set(was) != set(is_) else (),
    )


def _identity(facts: TableFacts, key: Numbers) -> Iterator[Difference]:
    """Yield a replica identity that lacks the key: old rows of updates and deletes need it.

    Partitions have identities of their own. Where an identity has no column at all, the server
    refuses updates and deletes of published tables.
    """
    leaves = facts.leaves.values() if facts.kind == "p" else ()
    relations = [(leaf.name, leaf.identity_columns) for leaf in leaves] or [
        (facts.name, facts.identity_columns)
    ]
    lacking = [name for name, columns in relations if columns and not set(key) <= set(columns)]
    if not lacking:
        return
    clause = _identity_clause(facts, key, is_leaf=lacking[0] != facts.name)
    more = f", and {len(lacking) - 1} other partitions" if len(lacking) > 1 else ""
    yield Difference(
        facts.name,
        "identity-without-key",
        Action.STOP,
        f"the replica identity of {lacking[0]}{more} leaves columns of the key out "
        f"({', '.join(facts.names(key))}): nobody can tell which row a delete is about",
        "; ".join(f"ALTER TABLE {_sql(name)} REPLICA IDENTITY {clause}" for name in lacking),
        at_once=True,
    )


def _identity_clause(facts: TableFacts, key: Numbers, *, is_leaf: bool) -> str:
    """Return the least that has the key. Indexes of partitions have names of their own."""
    usable = [unique for unique in facts.unique_keys if set(key) <= set(unique.columns)]
    if any(unique.columns == facts.key for unique in usable):
        return "DEFAULT"
    names = [unique.name for unique in usable if unique.not_null and not is_leaf]
    return f"USING INDEX {quoted(names[0])}" if names else "FULL"


def _unpublished(now: SourceFacts, facts: TableFacts) -> Iterator[Difference]:
    if facts.published:
        return
    publication, table = quoted(now.publication), _sql(facts.name)
    if not now.publication_present:
        hint = f"CREATE PUBLICATION {publication} FOR TABLE {table}"
    elif not facts.logged:
        hint = f"ALTER TABLE {table} SET LOGGED"
    else:
        hint = f"ALTER PUBLICATION {publication} ADD TABLE {table}"
        by_root = f"ALTER PUBLICATION {publication} SET (publish_via_partition_root = %s)"
        if facts.kind == "p" and not now.via_root:
            whole = by_root % "true"
            hint = whole if facts.published_by else f"{hint}; {whole}"
        elif facts.published_by:
            hint = "name the table that it is a partition of in the connector's table.include.list"
            hint = f"{hint}, instead of it; or {by_root % 'false'}"
    yield Difference(
        facts.name,
        "not-published",
        Action.STOP,
        f"the publication {now.publication} does not have {facts.name}: no change of it comes",
        hint,
    )


def _publication(before: TableFacts, now: TableFacts) -> Iterator[Difference]:
    """Yield changes in the publication of a table, and times in which it was not published."""
    if not now.published:
        return
    if not before.published:
        what = f"the publication has {now.name} again: changes between were lost"
        yield read_again(now.name, "published-again", what)
        return
    changes = [*_filtered(before, now)]
    yield from changes
    if not changes and before.published_by and not {*before.published_by} & {*now.published_by}:
        what = f"{now.name} was taken out of the publication and added again: changes may be lost"
        yield read_again(now.name, "published-again", what)


def _filtered(before: TableFacts, now: TableFacts) -> Iterator[Difference]:
    if before.row_filter != now.row_filter:
        what = f"the publication has other rows of {now.name}: {now.row_filter or 'all of them'}"
        yield read_again(now.name, "row-filter-changed", what)
    if before.column_list != now.column_list:
        listed = "all of them" if now.column_list is None else ", ".join(now.column_list)
        what = f"the publication has other columns of {now.name}: {listed}"
        yield read_again(now.name, "column-list-changed", what)


def _generated(before: SourceFacts, now: SourceFacts, facts: TableFacts) -> Iterator[Difference]:
    """Yield generated columns that begin to come, or to be left out, without a column list."""
    stored = [column.name for column in facts.columns if column.generated == "s"]
    if stored and facts.column_list is None and before.sends_generated != now.sends_generated:
        does = "brings" if now.sends_generated else "no longer brings"
        what = f"the publication {does} generated columns of {facts.name}: {', '.join(stored)}"
        yield read_again(facts.name, "column-list-changed", what)


# --- SQL ----------------------------------------------------------------------------------------


def _sql(table: str) -> str:
    schema, name = pair_of(table)
    return quoted(schema, name)


def _renamed(table: str, name: str) -> str:
    """Return the statements that give a table its former name."""
    schema, base = pair_of(table)
    wanted_schema, wanted = pair_of(name)
    statements = []
    if base != wanted:
        statements.append(f"ALTER TABLE {_sql(table)} RENAME TO {quoted(wanted)}")
    if schema != wanted_schema:
        moved = quoted(schema, wanted)
        statements.append(f"ALTER TABLE {moved} SET SCHEMA {quoted(wanted_schema)}")
    return "; ".join(statements)
