"""The tables' policies applied to the differences between two looks at the catalog; pure.

The database says what becomes of the rows of a table's copy (`catalog_changes`). The policy says
whether the table follows, leaves the change out, is made anew or stops.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from lakemark.connectors.catalog_changes import Action, Difference
from lakemark.settings.schema_policy import Kind, Outcome, SchemaPolicy, way_on

KINDS: Final[Mapping[str, Kind]] = MappingProxyType({
    "column-added": "add-column",
    "column-dropped": "drop-column",
    "column-renamed": "rename-column",
    "column-replaced": "rename-column",
    "key-changed": "change-key",
    "table-dropped": "drop-table",
    "table-renamed": "rename-table",
})  # fmt: skip
"""By kind of a difference the kind of the change; the others are none of the schema."""

CODES: Final[Mapping[str, Kind]] = MappingProxyType({
    "schema-incompatible": "change-type",
    "key-changed": "change-key",
})  # fmt: skip
"""By code of a table that has stopped the kind of the change that it could not follow."""

OutcomeOf = Callable[[str, Kind], Outcome]


def outcome_of(
    policy_of: Callable[[str], SchemaPolicy], can_rebuild: Callable[[str], bool]
) -> OutcomeOf:
    """Return the function that gives a policy's outcome for a change, by table and kind."""

    def found(table: str, kind: Kind) -> Outcome:
        policy = policy_of(table)
        if policy.outcome(kind) is not Outcome.REBUILD:
            return policy.outcome(kind)
        return policy.outcome(kind, can_rebuild=can_rebuild(table))

    return found


def judged(
    changes: Iterable[Difference], outcome: OutcomeOf, has_column: Callable[[str, str], bool]
) -> Iterator[Difference]:
    """Yield the differences as the policies have them.

    Args:
        changes: as `Database.differences` gives them.
        outcome: of a table's policy.
        has_column: whether a table of the lake has a column, or may have. What is left out of a
            table concerns one that it has all the same: of that name there was another before.
    """
    for change in changes:
        kind = KINDS.get(change.kind)
        if kind is None or not change.table:
            yield change
            continue
        found = outcome(change.table, kind)
        if change.kind == "key-changed":
            yield change  # the table stops, whatever comes then
        elif found is Outcome.STOP:
            hint = way_on(change.table, kind)
            yield replace(change, action=Action.STOP, refused=True, hint=hint)
            if change.action is Action.READ_AGAIN:
                yield change
        elif found is Outcome.LEAVE and change.action is Action.READ_AGAIN:
            is_there = has_column(change.table, change.column)
            yield change if is_there else replace(change, action=Action.NOTHING, hint="")
        elif found is not Outcome.REBUILD:
            yield change
        if found is Outcome.REBUILD:
            yield replace(change, action=Action.REBUILD, hint="")
