"""The table of cuts: ``<lake>/_lakemark/cuts``, a row for each, see `model.cuts`.

A batch's cut is kept with its state first. From time to time a batch puts those of earlier ones
into the table, in one commit under a name of their own; one that is repeated adds nothing. A cut
may be there twice: they are told apart by connector and batch.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from lakemark.model.cuts import SourceCut
from lakemark.settings.config import LakeConfig
from lakemark.sink import formats
from lakemark.sink.names import OWN_FOLDER

SCHEMA: Final = pa.schema(
    [
        ("query", pa.string()),
        ("connector", pa.string()),
        ("batch", pa.int64()),
        ("transaction", pa.string()),
        ("committed_at", pa.timestamp("us", "UTC")),
        ("position", pa.string()),
        ("without", pa.list_(pa.string())),
    ]
)
AT_ONCE: Final = 100
"""So many cuts are put into the table together, at least."""
EVERY_S: Final = 60.0
"""Unless so many seconds have gone by."""
MOST: Final = 2_000
"""So many are kept with the state while the lake does not take them."""


def path_of(lake: LakeConfig) -> str:
    """Return the table's folder."""
    return f"{lake.path.rstrip('/')}/{OWN_FOLDER}/cuts"


def keep(lake: LakeConfig, connector: str, cuts: Sequence[SourceCut], *, query: str) -> None:
    """Add cuts; the same again changes nothing.

    Args:
        lake: where.
        connector: its qualifier.
        cuts: in their order, at least one.
        query: id of the streaming query, whose batches have numbers of their own.

    Raises:
        TableError: the folder holds something else.
        DependencyError: the lake does not answer or refuses.
    """
    rows = pa.Table.from_pylist([_row(connector, cut, query) for cut in cuts], SCHEMA)
    app_id = f"{query}/cuts/{connector}/{cuts[0].batch}-{cuts[-1].batch}"
    formats.format_of(lake).append(path_of(lake), rows, app_id=app_id, options=lake.options())


def kept(lake: LakeConfig, query: str) -> dict[str, list[SourceCut]]:
    """Return the cuts of a query by connector, each list by batch; raises as `keep`."""
    reader = formats.format_of(lake).reader_of(path_of(lake), lake.options())
    found: dict[str, dict[int, SourceCut]] = {}
    for rows in reader.rows(SCHEMA.names):
        for row in rows.to_pylist():
            if row["query"] == query:
                cut = SourceCut(
                    row["batch"],
                    row["transaction"],
                    round(row["committed_at"].timestamp() * 1000),
                    row["position"] or "",
                    tuple(row["without"] or ()),
                )
                found.setdefault(row["connector"], {})[cut.batch] = cut
    return {name: [cuts[batch] for batch in sorted(cuts)] for name, cuts in found.items()}


def _row(connector: str, cut: SourceCut, query: str) -> dict[str, object]:
    return {
        "query": query,
        "connector": connector,
        "batch": cut.batch,
        "transaction": cut.transaction,
        "committed_at": datetime.fromtimestamp(cut.ended_ms / 1000, UTC),
        "position": cut.position,
        "without": list(cut.without),
    }
