"""The agreement of a table's records with its database about its columns. Pure.

Events are kept in the types of their records' own schema, rows of snapshots in those of the
database; the lake has what holds both, or the table stops. So where they differ is to be told.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from lakemark.model.schema import TableSchema

_NAMED: Final = 5  # columns in a text


@lru_cache(maxsize=512)
def disagreement(records: TableSchema, database: TableSchema) -> str:
    """Return how two schemas of a table differ in what the lake gets; empty if they do not.

    Columns that only one of them has are no difference, unless each has some: then one may have
    another name in records. Connectors leave columns out, and transforms add some.

    Args:
        records: the schema that its newest records bring.
        database: what the database's catalog, or a file, says.
    """
    kinds = [
        f"{c.name} is {c.type} in its records and {known.type} in the database"
        for c in records.columns
        if (known := database.by_name.get(c.name)) is not None and known.type != c.type
    ]
    more = [name for name in records.by_name if name not in database.by_name]
    lacking = [name for name in database.by_name if name not in records.by_name]
    if more and lacking:
        names = f"its records have {_listed(more)}, which the database has not, instead of "
        kinds.append(names + _listed(lacking))
    return "; ".join(kinds[:_NAMED])


def _listed(names: Iterable[str]) -> str:
    names = [*names]
    return ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
