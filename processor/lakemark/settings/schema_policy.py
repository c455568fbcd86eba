"""The policies, as one table: what a Delta table does about a change of its source's schema; pure.

outcome   means
--------  ------------------------------------------------------------------------------------------
FOLLOW    the table gets it: a column and its values, a wider type, no rows
LEAVE     the table stays as it is: a new column is left out, one that is gone is null in new rows
REBUILD   the table is made anew beside the old one, see `tables.rebuild`
STOP      the table stops before the first row of the new form

The words of the behaviors are those of Flink CDC's `schema.change.behavior`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, get_args

Kind = Literal[
    "add-column",
    "drop-column",
    "rename-column",
    "widen-type",
    "change-type",
    "change-key",
    "truncate",
    "drop-table",
    "rename-table",
]
Behavior = Literal["exception", "evolve", "try_evolve", "lenient", "ignore"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
BEHAVIORS: Final[tuple[Behavior, ...]] = get_args(Behavior)

REFUSED: Final = "schema-change-refused"
"""The code of a table that stops by its policy."""


class Outcome(StrEnum):
    """The answer to a change; the table is in the module's docstring."""

    FOLLOW = "follow"
    LEAVE = "leave"
    REBUILD = "rebuild"
    STOP = "stop"


_F, _L, _R, _S = Outcome.FOLLOW, Outcome.LEAVE, Outcome.REBUILD, Outcome.STOP
# Nothing can be left out of another type or key: rows of the new form have no place in the table.
_OUTCOMES: Final[Mapping[Kind, tuple[Outcome, ...]]] = MappingProxyType({
    # kind             exception, evolve, try_evolve, lenient, ignore
    "add-column":      (_S, _F, _F, _F, _L),
    "drop-column":     (_S, _R, _R, _L, _L),
    "rename-column":   (_S, _R, _R, _F, _L),
    "widen-type":      (_S, _F, _F, _F, _L),
    "change-type":     (_S, _R, _R, _R, _S),
    "change-key":      (_S, _R, _R, _R, _S),
    "truncate":        (_S, _F, _F, _F, _L),
    "drop-table":      (_S, _L, _L, _L, _L),
    "rename-table":    (_S, _F, _F, _F, _F),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """The policy of one table.

    Attributes:
        behavior: what is done about the kinds that count.
        include: the kinds that count; empty = all.
        exclude: of those, the ones that do not: they are ignored.
    """

    behavior: Behavior = "lenient"
    include: frozenset[Kind] = frozenset()
    exclude: frozenset[Kind] = frozenset()

    @classmethod
    def of(
        cls, behavior: Behavior, include: Iterable[Kind] = (), exclude: Iterable[Kind] = ()
    ) -> "SchemaPolicy":
        """Return the policy with these lists."""
        return cls(behavior, frozenset(include), frozenset(exclude))

    def outcome(self, kind: Kind, *, can_rebuild: bool = True) -> Outcome:
        """Return what is done about a change of this kind.

        Args:
            kind: of the change.
            can_rebuild: whether the table can be made anew. If not, `evolve` stops; `try_evolve`
                does about columns what `lenient` does; nobody follows another type or key.
        """
        counts = kind not in self.exclude and (not self.include or kind in self.include)
        behavior = self.behavior if counts else "ignore"
        outcome = _outcome(behavior, kind)
        if outcome is not Outcome.REBUILD or can_rebuild:
            return outcome
        lenient = _outcome("lenient", kind)
        if behavior == "try_evolve" and lenient is not Outcome.REBUILD:
            return lenient
        return Outcome.STOP


def _outcome(behavior: Behavior, kind: Kind) -> Outcome:
    return _OUTCOMES[kind][BEHAVIORS.index(behavior)]


FOLLOWS: Final = SchemaPolicy("lenient")
"""Of a table that is being made: what comes first is no change."""


def way_on(table: str, what: str) -> str:
    """Return what a person does about a table that its policy has stopped.

    Args:
        table: which.
        what: the kind of the change, or several.
    """
    return (
        f"to take it: set lake.tables.{table}.schema_changes.behavior to lenient, or put {what} "
        f"into its exclude to leave it out; start again; then `lakemark table resume {table}`. "
        f"Or change it back in the source, then `lakemark table skip {table}`"
    )
