"""Statements by which tools change a table of MariaDB or MySQL under writers, without the tools.

Each makes a ghost beside the table, gives it the new form, copies the rows in chunks while what
writers do goes to it as well, and lets it take the table's place by RENAME TABLE:

- `pt_online_schema_change`: triggers write to the ghost in the writers' own transactions
- `gh_ost`: what writers did is applied to the ghost afterwards, in its order, and at last under a
  lock of the table. The tool reads that from the log; here triggers note it in a queue
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from stack.database import Database
from stack.mysql_rows import quoted
from stack.processes import wait_for

CHUNK = 200
RENAMED_S = 300.0


@dataclass(frozen=True)
class OnlineChange:
    """A change of a table.

    Attributes:
        database: where it is.
        table: its name.
        change: the rest of ALTER TABLE; it neither drops nor renames a column.
        columns: those that it has before.
        key: of these the primary key's.
    """

    database: Database
    table: str
    change: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    @classmethod
    def of(cls, database: Database, table: str, change: str) -> Self:
        """Return the change of a table as the catalog has it."""
        rows = database.execute(
            "SELECT column_name, column_key FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            [database.name, table],
        )
        columns = tuple(name for name, _ in rows)
        return cls(database, table, change, columns, tuple(n for n, key in rows if key == "PRI"))

    def name(self, suffix: str) -> str:
        """Return a name beside the table's, as statements have it."""
        return quoted(f"_{self.table}_{suffix}")

    def make_ghost(self, connection: Any, ghost: str) -> None:
        """Create an empty table of the new form."""
        connection.execute(f"CREATE TABLE {ghost} LIKE {quoted(self.table)}")
        connection.execute(f"ALTER TABLE {ghost} {self.change}")

    def copy(self, connection: Any, ghost: str) -> int:
        """Copy all rows by ranges of the key, each in a transaction; return how many ranges."""
        key, last, ranges = listed(self.key), None, 0
        table = quoted(self.table)
        while True:
            after = f"WHERE ({key}) > ({marks(self.key)})" if last else ""
            limit = f"ORDER BY {key} LIMIT {CHUNK}"
            query = f"SELECT {key} FROM {table} FORCE INDEX (PRIMARY) {after} {limit}"
            keys = connection.execute(query, last).fetchall()
            if not keys:
                return ranges
            upto = f"({key}) <= ({marks(self.key)})"
            where = f"{after} AND {upto}" if last else f"WHERE {upto}"
            connection.execute(
                f"INSERT IGNORE INTO {ghost} ({listed(self.columns)})"
                f" SELECT {listed(self.columns)} FROM {table} FORCE INDEX (PRIMARY) {where}"
                " LOCK IN SHARE MODE",
                [*(last or ()), *keys[-1]],
            )
            last, ranges = keys[-1], ranges + 1

    def values(self, row: str, columns: Sequence[str]) -> str:
        """Return the values of a trigger's row, OLD or NEW."""
        return ", ".join(f"{row}.{quoted(column)}" for column in columns)

    def same_key(self, one: str, other: str) -> str:
        """Return the condition that two rows have the same key."""
        pairs = (f"{one}.{quoted(c)} <=> {other}.{quoted(c)}" for c in self.key)
        return f"({' AND '.join(pairs)})"


def listed(columns: Sequence[str]) -> str:
    """Return columns with commas between, as statements have them."""
    return ", ".join(map(quoted, columns))


def marks(columns: Sequence[str]) -> str:
    """Return the places of so many parameters."""
    return ", ".join(["%s"] * len(columns))


def pt_online_schema_change(database: Database, table: str, change: str) -> None:
    """Change a table as pt-online-schema-change does."""
    asked = OnlineChange.of(database, table, change)
    ghost, old, name = asked.name("new"), asked.name("old"), quoted(table)
    replace = (
        f"REPLACE INTO {ghost} ({listed(asked.columns)})"
        f" VALUES ({asked.values('NEW', asked.columns)})"
    )
    delete = f"DELETE IGNORE FROM {ghost} WHERE {asked.same_key(ghost, 'OLD')}"
    moved = f"{delete} AND NOT {asked.same_key('OLD', 'NEW')}"
    bodies = {"DELETE": delete, "UPDATE": f"BEGIN {moved}; {replace}; END", "INSERT": replace}
    with database.connect() as connection:
        asked.make_ghost(connection, ghost)
        for event, body in bodies.items():
            trigger = quoted(f"pt_osc_{table}_{event.lower()}")
            connection.execute(
                f"CREATE TRIGGER {trigger} AFTER {event} ON {name} FOR EACH ROW {body}"
            )
        assert asked.copy(connection, ghost) > 1
        connection.execute(f"RENAME TABLE {name} TO {old}, {ghost} TO {name}")
        connection.execute(f"DROP TABLE {old}")


def gh_ost(database: Database, table: str, change: str) -> None:
    """Change a table as gh-ost does, its log being a queue."""
    asked = OnlineChange.of(database, table, change)
    ghost, queue, old = asked.name("gho"), asked.name("ghc"), asked.name("del")
    name = quoted(table)
    with database.connect() as connection:
        asked.make_ghost(connection, ghost)
        _make_queue(asked, connection, queue)
        assert asked.copy(connection, ghost) > 1
        connection.autocommit(False)  # COMMIT keeps the locks, and BEGIN does not
        while _apply(asked, connection, queue, ghost) > CHUNK:
            pass
        connection.execute(f"CREATE TABLE {old} (id int PRIMARY KEY)")
        locked = ", ".join(f"{one} WRITE" for one in (name, old, ghost, queue))
        connection.execute(f"LOCK TABLES {locked}")
        while _apply(asked, connection, queue, ghost):
            pass
        statement = f"RENAME TABLE {name} TO {old}, {ghost} TO {name}"
        renaming = threading.Thread(target=database.execute, args=(statement,))
        renaming.start()
        wait_for(lambda: _waits(database, statement), RENAMED_S, "RENAME TABLE to wait")
        connection.execute(f"DROP TABLE {old}")
        connection.execute("UNLOCK TABLES")
        renaming.join(RENAMED_S)
        assert not renaming.is_alive()
        connection.execute(f"DROP TABLE {old}, {queue}")


def _waits(database: Database, statement: str) -> bool:
    query = "SELECT count(*) FROM information_schema.processlist WHERE info = %s AND state LIKE %s"
    return database.execute(query, [statement, "Waiting for table%"]) == [(1,)]


def _make_queue(asked: OnlineChange, connection: Any, queue: str) -> None:
    """Have all changes of rows noted: of a key that is gone, and of a row as it is then."""
    connection.execute(f"CREATE TABLE {queue} AS SELECT * FROM {quoted(asked.table)} WHERE FALSE")
    connection.execute(
        f"ALTER TABLE {queue} ADD `is there` bool NOT NULL,"
        " ADD `number` bigint AUTO_INCREMENT PRIMARY KEY"
    )

    def noted(row: str, *, is_there: bool) -> str:
        return (
            f"INSERT INTO {queue} ({listed(asked.columns)}, `is there`)"
            f" VALUES ({asked.values(row, asked.columns)}, {is_there})"
        )

    gone, there = noted("OLD", is_there=False), noted("NEW", is_there=True)
    bodies = {"DELETE": gone, "UPDATE": f"BEGIN {gone}; {there}; END", "INSERT": there}
    for event, body in bodies.items():
        trigger = quoted(f"gho_{asked.table}_{event.lower()}")
        connection.execute(
            f"CREATE TRIGGER {trigger} AFTER {event} ON {quoted(asked.table)} FOR EACH ROW {body}"
        )


def _apply(asked: OnlineChange, connection: Any, queue: str, ghost: str) -> int:
    """Apply what is noted, in its order; return how many rows."""
    query = f"SELECT `number`, `is there`, {listed(asked.columns)} FROM {queue} ORDER BY `number`"
    rows = connection.execute(query).fetchall()
    for number, is_there, *values in rows:
        if is_there:
            columns = listed(asked.columns)
            connection.execute(
                f"REPLACE INTO {ghost} ({columns}) VALUES ({marks(asked.columns)})", values
            )
        else:
            found = dict(zip(asked.columns, values, strict=True))
            connection.execute(
                f"DELETE FROM {ghost} WHERE ({listed(asked.key)}) = ({marks(asked.key)})",
                [found[column] for column in asked.key],
            )
        connection.execute(f"DELETE FROM {queue} WHERE `number` = %s", [number])
    connection.commit()
    return len(rows)
