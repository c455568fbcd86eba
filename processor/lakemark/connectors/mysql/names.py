"""Names in the SQL of MySQL and MariaDB. Pure."""


def quoted(name: str) -> str:
    """Return an identifier as SQL has it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def table_name(database: str, table: str) -> str:
    """Return a table's name with its database, quoted."""
    return f"{quoted(database)}.{quoted(table)}"
