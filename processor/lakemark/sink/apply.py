"""One table, one batch: the order of effects.

1. Look up whether this (app id, batch) is committed already: then nothing is done again.
2. Create or evolve the table (idempotent).
3. Truncate, as a commit of its own.
4. Resolve the packets to a write set, reading the rows that key changes need.
5. Write the halves of key changes that still wait beside the table, under this batch's number.
6. Merge: one Delta commit that records (app id, batch).

A crash between any two of them is followed by the whole batch again, with the same outcome.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakemark import packets
from lakemark.errors import TableError
from lakemark.sink import delta, pending
from lakemark.sink.resolve import CDC, Part, Resolution, cdc_type, resolve

POINTS: Final = ("before-truncate", "before-pending", "before-merge", "after-merge")


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What the driver knows of a table: see `tables.TableState`."""

    path: str
    deletes: str = "hard"
    floor: bytes | None = None
    pending: int = -1


@dataclass(frozen=True, slots=True)
class LakePlan:
    """Where and how the tables of a batch are written.

    Attributes:
        query: id of the streaming query: part of the app id.
        batch: batch id: the version recorded with each commit.
        step: `stream` or `catchup`: part of the app id.
        tables: plans by table id.
        new_table: the plan of a table not seen before.
        options: storage options of delta-rs.
    """

    query: str
    batch: int
    step: str
    new_table: Callable[[str], TablePlan]
    tables: dict[str, TablePlan] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


class TableOutcome(msgspec.Struct, omit_defaults=True):
    """What happened to one table; `code` is empty where all went well."""

    table: str
    code: str = ""
    reason: str = ""
    hint: str = ""
    retried: bool = False
    trace: str = ""
    skipped: bool = False
    truncate: bytes = b""
    key: list[str] = msgspec.field(default_factory=list)
    rows_before: int = -1
    rows: int = -1
    bytes: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unavailable: int = 0
    pending: bool = False
    seconds: float = 0.0
    changes: list[str] = msgspec.field(default_factory=list)
