"""The captured tables of MySQL and MariaDB: from the catalog's facts to findings. Pure."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lakemark.connectors.mysql.catalog_facts import Cascade
from lakemark.connectors.mysql.names import table_name
from lakemark.model.findings import Finding, fine, warning, wrong
from lakemark.settings.table_id import pair_of

CHECKS: Final = ("select", "key", "columns", "cascades")

# The connector of MariaDB stops at a table that has one of these.
_STOPPING: Final = frozenset({"inet4", "inet6"})


@dataclass(frozen=True, slots=True)
class Relation:
    """A table that the connector's lists match.

    Attributes:
        table: its text.
        is_view: whether it is none, and has no events.
        select: whether we may read it.
        key: columns of the key that its events have, in order; empty: it has none.
        types: of its columns, by name: the base type in lower case, such as ``bigint``.
        generated: columns that the database computes.
        cascades: foreign keys that change or delete its rows without an event.
    """

    table: str
    is_view: bool = False
    select: bool = True
    key: tuple[str, ...] = ()
    types: tuple[tuple[str, str], ...] = ()
    generated: tuple[str, ...] = ()
    cascades: tuple[Cascade, ...] = ()


def findings(
    relations: Sequence[Relation],
    *,
    user: str,
    is_mariadb: bool,
    generated_lost: bool,
    chosen: bool,
) -> list[Finding]:
    """Return all findings about the captured tables.

    Args:
        relations: those that the connector's lists and `source.tables` match.
        user: ours, as the server names us.
        is_mariadb: whether the server is MariaDB.
        generated_lost: whether the server leaves generated columns out of its log.
        chosen: whether tables were named: then a view among them is a mistake.
    """
    tables = with_events(relations)
    found = [
        warning(
            "tables",
            relation.table,
            "is a view: it has no events and is left out",
            "name the tables behind it in table.include.list or source.tables",
        )
        for relation in relations
        if relation.is_view and chosen
    ]
    if not tables:
        found.append(
            wrong(
                "tables",
                "",
                "the connector captures no table of this server",
                "correct table.include.list of the connector, source.tables or database.url",
            )
        )
    return [
        *found,
        *(_select(relation, user) for relation in tables),
        *(_key(relation) for relation in tables),
        *(
            finding
            for relation in tables
            for finding in _columns(relation, is_mariadb=is_mariadb, generated_lost=generated_lost)
        ),
        *(_cascades(relation, {other.table for other in tables}) for relation in tables),
    ]


def with_events(relations: Sequence[Relation]) -> list[Relation]:
    """Return those that have events."""
    return [relation for relation in relations if not relation.is_view]


def grant(privilege: str, table: str, user: str) -> str:
    """The statement that gives a privilege on a table to a user, who is named as SQL has it."""
    return f"GRANT {privilege} ON {table_name(*pair_of(table))} TO {user};"


def _name(relation: Relation) -> str:
    return table_name(*pair_of(relation.table))


def _select(relation: Relation, user: str) -> Finding:
    if relation.select:
        return fine("select", relation.table, "granted")
    return wrong(
        "select",
        relation.table,
        f"{user} may not read it: no snapshot of it can be taken",
        grant("SELECT", relation.table, "<lakemark's user>"),
    )


def _key(relation: Relation) -> Finding:
    if relation.key:
        return fine("key", relation.table, "has one")
    return wrong(
        "key",
        relation.table,
        "has no key: its rows cannot be told apart, so it stops at its first event"
        " (message.key.columns of the connector may name unique columns instead)",
        f"ALTER TABLE {_name(relation)} ADD PRIMARY KEY (<columns that tell its rows apart>);",
    )


def _columns(relation: Relation, *, is_mariadb: bool, generated_lost: bool) -> Iterator[Finding]:
    stopping = [name for name, kind in relation.types if kind in _STOPPING]
    if is_mariadb and stopping:
        yield wrong(
            "columns",
            relation.table,
            f"{', '.join(stopping)} of a type that the connector does not know: it stops at the"
            " table",
            "take the table out of table.include.list, or give the columns another type",
        )
    elif generated_lost and relation.generated:
        yield wrong(
            "columns",
            relation.table,
            f"{', '.join(relation.generated)} generated, and not in the log of this server: the"
            " connector stops at the table's first row",
            "take the table out of table.include.list, or the generated columns out of it",
        )
    else:
        yield fine("columns", relation.table, "events have all of them")


def _cascades(relation: Relation, captured: Container[str]) -> Finding:
    """Return whether its rows change unseen; a captured parent's events have it read again."""
    unseen = [one for one in relation.cascades if one.parent not in captured]
    if unseen:
        return warning(
            "cascades",
            relation.table,
            f"rows change by foreign keys ({_named(unseen)}) without an event, and the connector"
            " does not capture the tables that they follow: its copy keeps what they were until"
            " it is read again",
            f"capture {', '.join(sorted({one.parent for one in unseen}))}, or after such changes:"
            f" lakemark snapshot start {relation.table}",
        )
    if relation.cascades:
        parents = ", ".join(sorted({one.parent for one in relation.cascades}))
        return fine(
            "cascades",
            relation.table,
            f"rows change by foreign keys ({_named(relation.cascades)}) without an event: it is"
            f" read again after rows of {parents} were deleted",
        )
    return fine("cascades", relation.table, "no foreign key changes its rows unseen")


def _named(cascades: Sequence[Cascade]) -> str:
    return ", ".join(one.name for one in cascades)
