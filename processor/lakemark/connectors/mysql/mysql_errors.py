"""MySQL and MariaDB: their errors in our words, which never hold values.

Both have the same numbers, but for few of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pymysql
from pymysql import err

from lakemark.connectors.mysql.names import table_name
from lakemark.errors import ConfigError, DependencyError, LakemarkError, TableError
from lakemark.settings.layers import InvalidConfig, LoginRefused, Mistake
from lakemark.settings.masking import foreign
from lakemark.settings.table_id import pair_of

INTERRUPTED: Final = frozenset({1317, 1969, 3024})
"""KILL QUERY, max_statement_time (MariaDB), max_execution_time (MySQL)."""

_FIRST_OF_CLIENT, _LAST_OF_CLIENT = 2000, 2999
_LOCKED: Final = frozenset({1205, 1213})
_NO_RIGHT: Final = frozenset({1142, 1143, 1370})  # of a table, a column, a function
# Of the server as a whole: it ends, it is full, it has ended our session.
_AWAY: Final = frozenset({1040, 1053, 1077, 1152, 1153, 1158, 1159, 1160, 1161, 1203, 1927, 3032})
# Asking again does not mend them: host, user and password, default database, rights of any kind;
# the plug-in for the password; encryption that is demanded.
_REFUSED: Final = frozenset(
    {1044, 1045, 1049, 1129, 1130, 1133, 1227, 1251, 1524, 1698, 1820, 1862, 3118, 3159, 4151}
)
_KNOWN: Final[tuple[tuple[frozenset[int], str, str], ...]] = (
    (
        frozenset({1049, 1051, 1146, 1932}),
        "table-gone",
        "correct the name, or take the table out of the configuration",
    ),
    (
        frozenset({1347, 1356}),
        "not-a-table",
        "name the table behind it: only tables have events",
    ),
    (
        frozenset({1054, 1412, 1072}),
        "schema-changed",
        "the chunk is read again with the new schema",
    ),
)
_MEND: Final = "check database.url, database.password and the user's rights"


@contextmanager
def translated(table: str = "") -> Iterator[None]:
    """Turn the database's errors into ours.

    Args:
        table: its text that was worked on, for the messages.

    Raises:
        DependencyError: ``statement-timeout`` (halve the chunk), ``table-locked``,
            ``database-unavailable``.
        TableError: ``table-gone``, ``schema-changed``, ``not-a-table``, ``query-failed``.
        ConfigError: a privilege is missing; the hint is the SQL that grants it.
    """
    try:
        yield
    except pymysql.MySQLError as error:
        raise _ours(error, table) from error


def grant(privilege: str, table: str) -> str:
    """SQL that grants a privilege on a table to lakemark's user."""
    return f"GRANT {privilege} ON {table_name(*pair_of(table))} TO <lakemark's user>;"


def unavailable(error: Exception) -> LakemarkError:
    """Translate a connection's error: the database is away, or refuses us."""
    if number_of(error) in _REFUSED:
        problem = Mistake("database", f"the database refuses us: {_one_line(error)}", _MEND)
        return LoginRefused(problem, code="database-refused")
    if "SSL" in str(error) or "certificate" in str(error):
        return InvalidConfig(
            [Mistake("database.url", f"no encryption: {_one_line(error)}", "check its ssl-mode")]
        )
    return DependencyError(
        f"the database is away: {_one_line(error)}",
        code="database-unavailable",
        hint="start it, or correct the section database",
    )


def number_of(error: BaseException) -> int:
    """Return the number that the server gives an error, or the client; 0 for none."""
    number = error.args[0] if error.args else 0
    return number if isinstance(number, int) else 0


def _ours(error: pymysql.MySQLError, table: str) -> LakemarkError:
    what, number = table or "the database", number_of(error)
    if number in INTERRUPTED:
        return DependencyError(
            f"reading {what} took longer than the statement timeout",
            code="statement-timeout",
            hint="make chunks smaller, or raise the timeout",
        )
    if number in _LOCKED:
        return DependencyError(
            f"{what} is locked by somebody else",
            code="table-locked",
            hint="wait for the schema change (ALTER TABLE ...) to end, or for LOCK TABLES",
        )
    if number in _NO_RIGHT and table:
        return ConfigError(
            f"lakemark's user may not read all of {what}", hint=grant("SELECT", table)
        )
    for numbers, code, hint in _KNOWN:
        if table and number in numbers:
            return TableError(f"{what} cannot be read: {code}", code=code, hint=hint)
    ended = _FIRST_OF_CLIENT <= number <= _LAST_OF_CLIENT or isinstance(error, err.InterfaceError)
    if ended or number in _AWAY or number in _REFUSED:
        return unavailable(error)
    return TableError(
        f"{what} cannot be read: the database answers with error {number}",
        code="query-failed",
        hint="see the server's documentation for the number, and its log",
    )


def _one_line(error: BaseException) -> str:
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    lines = [line.strip() for line in foreign(text).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
