"""The connector's choice of tables and columns, and of a table's key, by its settings. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakemark.settings.names import split_list
from lakemark.settings.patterns import JavaPattern, compile_java
from lakemark.settings.table_id import pair_of, plain_of, unqualified


class TableChoice:
    """The captured tables: the connector's lists and, inside them, ``source.tables``.

    The connector's lists match in full and without regard to case, as Debezium compiles them
    (`io.debezium.function.Predicates`); an include list makes its exclude list void. Ours match in
    full and regard case. Expressions that only Java understands match everything here: the
    connector has applied them already. It is not started with them, see `suitability`.
    """

    def __init__(
        self, settings: Mapping[str, str], chosen: list[str], *, container: str = "schema"
    ) -> None:
        """Reads the lists.

        Args:
            settings: the connector's.
            chosen: ``source.tables``.
            container: what a table stands in, see `ConnectorTraits`.
        """
        self._containers = _Lists(settings, container)
        self._tables = _Lists(settings, "table")
        self._chosen = [compile_java(regex) for regex in chosen]

    def __contains__(self, table: object) -> bool:
        """Say whether the table of this text is captured and chosen."""
        if not isinstance(table, str) or not self.captured(table):
            return False
        return not self._chosen or any(regex.matches(plain_of(table)) for regex in self._chosen)

    @property
    def own(self) -> "TableChoice":
        """The choice by the tables' names in their database: this one."""
        return self

    def captured(self, table: str) -> bool:
        """Say whether the connector's own lists let the table of this text through."""
        return self._containers.allow(pair_of(table)[0]) and self._tables.allow(plain_of(table))


@dataclass(frozen=True, slots=True)
class QualifiedChoice:
    """The choice of one connector among the tables of several: none of another one's.

    Attributes:
        qualifier: of its tables' names.
        own: the choice by their names without it.
    """

    qualifier: str
    own: TableChoice

    def __contains__(self, table: object) -> bool:
        """Say whether the table of this text is captured and chosen."""
        bare = unqualified(self.qualifier, table) if isinstance(table, str) else None
        return bare is not None and bare in self.own

    def captured(self, table: str) -> bool:
        """Say whether the connector's own lists let the table of this text through."""
        bare = unqualified(self.qualifier, table)
        return bare is not None and self.own.captured(bare)


Choice = TableChoice | QualifiedChoice


class _Lists:
    def __init__(self, settings: Mapping[str, str], what: str) -> None:
        self._include = _compiled(settings.get(f"{what}.include.list", ""))
        self._exclude = _compiled(settings.get(f"{what}.exclude.list", ""))

    def allow(self, name: str) -> bool:
        if self._include:
            return any(regex is None or regex.matches(name) for regex in self._include)
        return not any(regex is not None and regex.matches(name) for regex in self._exclude)


def _compiled(value: str) -> list[JavaPattern | None]:
    found: list[JavaPattern | None] = []
    for entry in split_list(value):
        try:
            found.append(compile_java(entry, ignore_case=True))
        except ValueError:
            found.append(None)
    return found


def wants_column(settings: Mapping[str, str], table: str, column: str) -> bool:
    """Say whether the connector sends a column: ``column.include.list``, ``column.exclude.list``.

    Key columns are always sent; the caller knows them.
    """
    return _Lists(settings, "column").allow(f"{plain_of(table)}.{column}")


def key_columns(settings: Mapping[str, str], table: str, columns: Sequence[str]) -> list[str]:
    """Return the columns that ``message.key.columns`` makes the key; empty: the table's own key.

    As in `Key.CustomKeyMapper`, each column of an entry is one more expression: the entry's, a dot,
    and the column. It ignores case and is matched with ``schema.table.column``, also with the
    database before it. All entries count; columns that the table lacks do not.

    Args:
        settings: the connector's.
        table: ``schema.table``.
        columns: of the table, in its order.
    """
    database = settings.get("database.dbname", "")
    found: dict[str, None] = {}
    for entry in settings.get("message.key.columns", "").split(";"):
        expression, _, listed = entry.strip().rpartition(":")
        for name in filter(None, map(str.strip, listed.split(","))):
            try:
                regex = compile_java(f"{expression.strip()}.{name}", ignore_case=True)
            except ValueError:
                continue
            for column in columns:
                place = f"{plain_of(table)}.{column}"
                if regex.matches(place) or regex.matches(f"{database}.{place}"):
                    found[column] = None
    return list(found)
