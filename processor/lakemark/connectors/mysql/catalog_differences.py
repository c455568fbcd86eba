"""Changes that no event tells, by two looks at MySQL's or MariaDB's catalog; pure.

The actions are those of `catalog_changes`. The catalog knows a table and a column by name alone, so
in doubt a table is read again. What it cannot tell:

- a column that was renamed from one that was dropped while another was added
- a table that was renamed from one that was dropped: it is gone, and the other one is new
- a table that was dropped and made anew, or swapped with another one (as gh-ost and
  pt-online-schema-change do), from one that OPTIMIZE, TRUNCATE or ALTER TABLE has written anew: all
  are read again
- rows that went or came with a partition that was truncated or exchanged: see `moved_rows`
- what was changed and changed back between two looks, and DDL of the second in which a table was
  made
- rows that a foreign key's cascade has changed where the log does not have them (MariaDB, MySQL
  before 9.6): `cascades` of a look say only that it may
"""

import re
from collections.abc import Iterator
from typing import Final

from lakemark.connectors.catalog_changes import (
    NO_KEYS,
    Action,
    Difference,
    SourceKeys,
    read_again,
)
from lakemark.connectors.mysql.catalog_facts import ColumnFacts, SourceFacts, TableFacts

MENDED: Final[dict[str, str]] = {}
"""See `Database.mended`: nothing stops a table for as long as looks give it."""

_LENGTH: Final = re.compile(r"(varchar|varbinary)\((\d+)\)")
_WHOLE: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS: Final = ("tinytext", "text", "mediumtext", "longtext")
_BLOBS: Final = ("tinyblob", "blob", "mediumblob", "longblob")
_DISPLAY: Final = re.compile(r"^((?:tiny|small|medium|big)?int)\(\d+\)")


def differences(
    before: SourceFacts | None, now: SourceFacts, *, source_key: SourceKeys = NO_KEYS
) -> list[Difference]:
    """Return what has changed, the server's first, then by table.

    Args:
        before: the last look; None for none.
        now: the look of now, at the same tables.
        source_key: by table the key's columns as the connector sends them.
    """
    if before is None:
        return []
    server = [*_server(before, now)]
    found = [*server]
    for name in sorted({*before.tables, *now.tables}):
        was, is_ = before.tables.get(name), now.tables.get(name)
        if is_ is None:
            what = f"there is no table {name} any more"
            found.append(Difference(name, "table-dropped", Action.GONE, what))
            continue
        found += [
            read_again(name, change.kind, change.what)
            for change in server
            if change.action is Action.READ_AGAIN
        ]
        if was is not None:
            found += _table(was, is_, tuple(source_key.get(name, ())))
    return [change for change in found if change.table or change.action is not Action.READ_AGAIN]


def _server(before: SourceFacts, now: SourceFacts) -> Iterator[Difference]:
    """Yield that it is another server: by its uuid, or where there is none by its id."""
    was, is_ = before.server_uuid or before.server_id, now.server_uuid or now.server_id
    if was and is_ and was != is_:
        what = f"the database is another server: it is {is_}, and was {was}"
        yield read_again("", "other-server", what)


def _table(before: TableFacts, now: TableFacts, sent_key: tuple[str, ...]) -> Iterator[Difference]:
    changes = [*_columns(before, now)]
    yield from changes
    yield from _key(before, now, sent_key)
    yield from _partitions(before, now)
    doubted = any(change.action is Action.READ_AGAIN for change in changes)
    if before.made != now.made and not doubted:
        what = f"{now.name} was made anew, or its rows were written anew"
        yield read_again(now.name, "rewritten", what)


def _columns(before: TableFacts, now: TableFacts) -> Iterator[Difference]:
    was = {column.name: column for column in before.columns}
    is_ = {column.name: column for column in now.columns}
    for name in was.keys() - is_.keys():
        what = f"column {name} was dropped from {now.name}, or renamed"
        yield Difference(now.name, "column-dropped", Action.NOTHING, what, column=name)
    for column in now.columns:
        former = was.get(column.name)
        if former is None:
            what = f"column {column.name} was added to {now.name}, or another one was renamed to it"
            yield read_again(now.name, "column-added", what, column=column.name)
        elif changed := _changed(former, column):
            yield read_again(
                now.name,
                "rewritten",
                f"column {column.name} of {now.name} {changed}: older values were written anew",
                column=column.name,
            )
        elif former.type != column.type:
            what = f"column {column.name} of {now.name} has another type, and the same values"
            yield Difference(now.name, "type-changed", Action.NOTHING, what, column=column.name)


def _changed(former: ColumnFacts, column: ColumnFacts) -> str:
    """Return what may have changed the values of a column that is there in both looks."""
    if former.generated != column.generated:
        return "is generated now" if column.generated else "is no longer generated"
    if former.charset != column.charset and former.charset:
        return f"has the character set {column.charset or 'binary'} now"
    if former.nullable and not column.nullable:
        return "must not be NULL now"
    if former.type != column.type and not _is_wider(former, column):
        return f"is {column.type} now, and was {former.type}"
    return ""


def _is_wider(former: ColumnFacts, column: ColumnFacts) -> bool:
    """Say whether every value of a type is the same in another one."""
    was, is_ = _DISPLAY.sub(r"\1", former.type), _DISPLAY.sub(r"\1", column.type)
    if was == is_:
        return True
    for family in (_WHOLE, _TEXTS, _BLOBS):
        if former.base in family and column.base in family:
            same_sign = ("unsigned" in was) == ("unsigned" in is_)
            return same_sign and family.index(former.base) <= family.index(column.base)
    old, new = _LENGTH.fullmatch(was), _LENGTH.fullmatch(is_)
    if old and new:
        return old[1] == new[1] and int(old[2]) <= int(new[2])
    labels = ("enum", "set")
    return former.base in labels and former.base == column.base and is_.startswith(was[:-1] + ",")


def _key(before: TableFacts, now: TableFacts, sent: tuple[str, ...]) -> Iterator[Difference]:
    """Yield a change of the key's columns; one that `message.key.columns` names is not theirs."""
    if not before.key or set(before.key) == set(now.key) or (sent and set(sent) != set(now.key)):
        return
    new = ", ".join(now.key) or "none"
    yield Difference(
        now.name,
        "key-changed",
        Action.STOP,
        f"{now.name} has another key: {new} instead of {', '.join(before.key)}; the rows that are "
        "there were told apart by the old one",
        f"lakemark table rebuild {now.name}",
        key=now.key,
    )


def _partitions(before: TableFacts, now: TableFacts) -> Iterator[Difference]:
    """Yield rows that went with a partition, or came with one that was exchanged."""
    gone = [name for name in before.partitions if name not in now.partitions]
    if gone:
        what = f"partitions of {now.name} were dropped or reorganised: {', '.join(gone)}"
        yield read_again(now.name, "partitions-changed", what, other=", ".join(gone))
