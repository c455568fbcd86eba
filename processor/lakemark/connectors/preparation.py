"""The preparation of a database for connector and lakemark: statements and reasons. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lakemark.model.findings import Finding
from lakemark.settings.names import split_list
from lakemark.settings.table_id import TableId

_NAME: Final = re.compile(r"(?:[\w -]|\\[.$-])+")
_PAIR: Final = re.compile(r"((?:[\w -]|\\[$-])+)\\?\.((?:[\w -]|\\[$-])+)")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a script, and its reason.

    Attributes:
        why: the reason, one sentence.
        sql: the statement as the product's own client takes it; empty where only the reader can
            say it.
    """

    why: str
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """A script of statements.

    Attributes:
        head: lines for its reader: with which client and as whom it is run.
        before: the client's own commands, ahead of all statements.
        statements: in the order in which they are run; each may be run again.
    """

    head: tuple[str, ...]
    before: tuple[str, ...]
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class ToPrepare:
    """A connector whose database is to be prepared, and what is known of its tables.

    Attributes:
        settings: the connector's, as they are to be.
        bootstrap: the brokers that it writes to.
        user: lakemark's in the database.
        tables: texts of the captured tables, in order; None where nobody knows them: the
            connector's list has expressions, and the catalog was not read, or hides some.
        chosen: those of them that lakemark reads.
        containers: the schemas or databases that the connector's list names; None = it names none.
        reads_rows: whether the connector itself reads rows.
        findings: the doctor's about the database; empty where it was not asked.
    """

    settings: Mapping[str, str]
    bootstrap: str
    user: str
    tables: tuple[str, ...] | None
    chosen: tuple[str, ...] | None
    containers: tuple[str, ...] | None
    reads_rows: bool
    findings: Sequence[Finding] = ()

    @property
    def connector_user(self) -> str:
        """The connector's user; `debezium` where only Connect knows it."""
        user = self.settings.get("database.user", "")
        return user if user and "${" not in user else "debezium"

    @property
    def homes(self) -> tuple[str, ...] | None:
        """The schemas or databases of the captured tables; None where nobody knows them."""
        if self.tables is None:
            return self.containers
        return tuple(dict.fromkeys(TableId.parse(table).namespace for table in self.tables))


def names_in(value: str) -> tuple[str, ...] | None:
    """Return the names of a connector's list; None where it is empty or has other expressions."""
    entries = split_list(value)
    if not entries or not all(map(_NAME.fullmatch, entries)):
        return None
    return tuple(dict.fromkeys(_plain(entry) for entry in entries))


def tables_in(value: str) -> tuple[str, ...] | None:
    """Return the texts of tables that a connector's list names, as `names_in` does."""
    found = [_PAIR.fullmatch(entry) for entry in split_list(value)]
    pairs = [match for match in found if match]
    if not found or len(pairs) < len(found):
        return None
    return tuple(dict.fromkeys(TableId.of(*map(_plain, match.groups())).text for match in pairs))


def _plain(expression: str) -> str:
    return expression.replace("\\", "")


def mends(findings: Iterable[Finding], checks: Iterable[str]) -> list[Finding]:
    """Return the findings of some checks that have something to mend."""
    wanted = frozenset(checks)
    return [finding for finding in findings if finding.check in wanted and finding.mend]
