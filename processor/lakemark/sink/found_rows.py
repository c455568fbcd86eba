"""The table of what verify runs have found: ``<lake>/_lakemark/verify``.

It has a row for each row that was not alike. What a batch has found is kept before its state is, a
shard's share of a chunk in one commit under its own name: so a batch that is repeated adds nothing,
and finds what it had found, since it compares with the table as it was before. A chunk that is read
again may find a row once more: rows are told apart by run, table and key.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model.comparisons import ComparedChunk
from lakemark.model.control import REPAIR
from lakemark.settings.config import LakeConfig
from lakemark.sink import formats
from lakemark.sink.comparison import DUPLICATE
from lakemark.sink.names import OWN_FOLDER

SCHEMA: Final = pa.schema(
    [
        ("run", pa.string()),
        ("table", pa.string()),
        ("kind", pa.string()),
        ("key", pa.string()),
        ("columns", pa.list_(pa.string())),
        ("position", pa.string()),
        ("found_at", pa.timestamp("us", "UTC")),
        ("mended", pa.bool_()),
        ("source", pa.string()),
        ("lake", pa.string()),
    ]
)


def path_of(lake: LakeConfig) -> str:
    """Return the table's folder."""
    return f"{lake.path.rstrip('/')}/{OWN_FOLDER}/verify"


def keep(lake: LakeConfig, compared: Sequence[ComparedChunk], *, query: str, at: datetime) -> None:
    """Add what was found; the same again changes nothing.

    Args:
        lake: where.
        compared: what merging tasks have found.
        query: id of the streaming query, whose attempts have numbers of their own.
        at: when.

    Raises:
        TableError: the folder holds something else.
        DependencyError: the lake does not answer or refuses.
    """
    made_by = formats.format_of(lake)
    for one in compared:
        if one.findings:
            rows = pa.Table.from_pylist([*_rows(one, at)], SCHEMA)
            app_id = f"{query}/verify/{one.attempt}/{one.shard}"
            made_by.append(path_of(lake), rows, app_id=app_id, options=lake.options())


def of_run(lake: LakeConfig, run: str) -> list[dict[str, Any]]:
    """Return what a run has found, one row for each key, by table and key; raises as `keep`."""
    reader = formats.format_of(lake).reader_of(path_of(lake), lake.options())
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for rows in reader.rows(SCHEMA.names):
        for row in rows.filter(pc.equal(rows.column("run"), run)).to_pylist():
            known = found.setdefault((row["table"], row["key"]), row)
            known["mended"] = known["mended"] or row["mended"]
    return [found[key] for key in sorted(found)]


def counts(lake: LakeConfig, run: str, table: str) -> Mapping[str, int]:
    """Return how many rows of a table a run has found, by kind; raises as `keep`."""
    return Counter(row["kind"] for row in of_run(lake, run) if row["table"] == table)


def _rows(one: ComparedChunk, at: datetime) -> Iterator[dict[str, Any]]:
    for finding in one.findings:
        yield {
            "run": one.run,
            "table": one.table,
            "kind": finding.kind,
            "key": finding.key,
            "columns": list(finding.columns),
            "position": one.position.hex(),
            "found_at": at.astimezone(UTC),
            "mended": one.verify == REPAIR and finding.kind != DUPLICATE,
            "source": finding.source or None,
            "lake": finding.kept or None,
        }
