"""The values that a connector writes otherwise than its database has them, and how they are mended.

A converter reads the *plain form* of a column first: what the Connect schema alone tells. Where the
database has another value, or one of another type, the column names a `Mend`, which makes canonical
values of plain ones, and plain ones again for records that are written. It is made from the
connector's name, the column's form and, where that is known, the database's own type.

Each database has its rules in its connector's folder (`RULES`, one line each), with the settings of
its connector that others do not have. Who has no rules writes values as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Final, Protocol

import pyarrow as pa

from lakemark.model.columns import Column

RULES: Final[dict[str, str]] = {
    "mysql": "lakemark.connectors.mysql.mended_values",
    "mariadb": "lakemark.connectors.mysql.mended_values",
}
"""The module whose `VALUES` has a connector's rules, by `source.connector`."""

_JAVA: Final = ("io", "debezium", "connector")  # package of all connectors, and of their records


@dataclass(frozen=True, slots=True)
class Mend:
    """A way from the plain values of a column to canonical ones, and back. Pure.

    Attributes:
        read: plain values to canonical ones, as many; null stays null. Raises ValueError for a
            value of which it cannot be said what the database has: its row must be read again.
        write: the plain values that the connector would write; None for the same values.
        plain: type of the plain values; None for the canonical type.
        exact: the canonical type; None for the plain one.
        loss: why plain values may be written otherwise than the connector would; empty if not.
    """

    read: Callable[[pa.Array], pa.Array]
    write: Callable[[pa.Array], pa.Array] | None = None
    plain: pa.DataType | None = None
    exact: pa.DataType | None = None
    loss: str = ""

    def form_of(self, column: Column) -> Column:
        """Return a mended column as its plain form is read and written."""
        return replace(column, mend="", type=self.plain or column.type)


class ValueRules(Protocol):
    """The rules of one connector's values. Pure.

    Attributes:
        choices: by setting the values that it may have, the default first: settings that only this
            connector has, and others whose values are different here.
        lacks_values: whether an update's event may have a placeholder for an unchanged value.
        mends: by name.
    """

    choices: Mapping[str, tuple[str, ...]]
    lacks_values: bool
    mends: Mapping[str, Mend]

    def more_settings(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return further settings that decide how values are written, as they are."""

    def mend_of(self, column: Column) -> str:
        """Return the name of a column's mend; empty for one that is written as it is."""


def connector_of(java_name: str) -> str:
    """Return the connector that a class or a schema of Debezium belongs to; empty for none.

    Args:
        java_name: such as ``io.debezium.connector.mysql.Source``.
    """
    *package, connector = java_name.split(".")[:4]
    return connector if tuple(package) == _JAVA else ""


@cache
def rules_of(connector: str) -> ValueRules | None:
    """Return the rules of a connector's values; None where there are none.

    Args:
        connector: `source.connector`.
    """
    if connector not in RULES:
        return None
    found: ValueRules = import_module(RULES[connector]).VALUES[connector]
    return found


def mended(column: Column, connector: str) -> Column:
    """Return a column with its mend and its exact type.

    Args:
        column: of a table, as its form tells it, with its source type where that is known.
        connector: `source.connector`.
    """
    rules = rules_of(connector)
    name = rules.mend_of(column) if rules is not None else ""
    if rules is None or not name:
        return column
    return replace(column, mend=f"{connector}/{name}", type=rules.mends[name].exact or column.type)


def mend_of(column: Column) -> Mend | None:
    """Return the mend of a column; None for one that is written as it is."""
    connector, _, name = column.mend.partition("/")
    rules = rules_of(connector) if name else None
    return None if rules is None else rules.mends[name]
