"""What each scenario breaks: one rule switched off, and what must then be wrong.

Rules that random histories break too are those of `simulation.variants`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from lakemark.connectors.database import Watermark
from lakemark.connectors.postgres import positions as lsns
from lakemark.connectors.postgres.visibility import Snapshot
from lakemark.model import net_change
from lakemark.model.control import ORDER_MODE, TABLE_MODE
from lakemark.model.events import Kind
from lakemark.reconcile import chunks, window
from lakemark.sink import key_changes
from lakemark.snapshot import windows
from lakemark.source import changed_keys
from tests.kit.simulation.variants import VARIANTS
from tests.kit.table_model import DictLake

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Break:
    """A wrong rule by its name in the scenario.

    Attributes:
        shows: what is wrong with the scenario then.
        mode: of the runs.
        at_once: all arrives in one batch.
    """

    id: str
    name: str
    apply: Callable[[Patch], None]
    shows: str
    mode: str = TABLE_MODE
    at_once: bool = False


# -- the shards ------------------------------------------------------------------------------------


def _decided(patch: Patch, other: Callable[..., Any]) -> None:
    """`chunks.decide` with other touches or another truncate."""
    real = chunks.decide

    def decide(parts: Any, lo: bytes, touched: pa.RecordBatch, *, truncated_at: bytes) -> Any:
        touched, truncated_at = other(touched, truncated_at)
        return real(parts, lo, touched, truncated_at=truncated_at)

    patch.setattr(chunks, "decide", decide)


def no_dedup(patch: Patch) -> None:
    """Every row survives."""
    _decided(patch, lambda touched, truncated_at: (touched.slice(0, 0), truncated_at))


def keyed_only(patch: Patch) -> None:
    """A truncate touches no row: it has no key."""
    _decided(patch, lambda touched, truncated_at: (touched, b""))


def deletes_touch_nothing(patch: Patch) -> None:
    """The row of a key that is gone comes back."""
    real = changed_keys.pack_touches

    def pack(converter: Any, heads: Any, keys: Any, *, shards: int) -> Any:
        kinds = [
            int(Kind.TOMBSTONE) if op == "d" else kind
            for op, kind in zip(heads.op, heads.kind, strict=True)
        ]
        return real(converter, replace(heads, kind=kinds), keys, shards=shards)

    patch.setattr(changed_keys, "pack_touches", pack)


def from_the_open_row_on(patch: Patch) -> None:
    """Touches are remembered once an open row has been read, not from arming on."""
    real = window._remember

    def remember(now: Any, blobs: Any) -> None:
        if any(one.open for one in now.windows.values()):
            real(now, blobs)

    patch.setattr(window, "_remember", remember)


def purged_at_the_close_row(patch: Patch) -> None:
    """A close row forgets the touches of its window."""
    real = window._mark

    def mark(now: Any, marks: Any, outputs: Any) -> Any:
        oldest = real(now, marks, outputs)
        if any(one.close for one in now.windows.values()):
            window._set_segments(now, [])
        return oldest

    patch.setattr(window, "_mark", mark)


def touches_of_one_run(patch: Patch) -> None:
    """The end of a run takes its touches away, also from the others."""
    real = window._drop_tables

    def drop(now: Any) -> None:
        real(now)
        window._set_segments(now, [])

    patch.setattr(window, "_drop_tables", drop)


# -- the table -------------------------------------------------------------------------------------


def fills_overwrite(patch: Patch) -> None:
    """A fill counts for columns that the row has."""

    def fill(row: Any, given: Any) -> Any:
        return row and replace(row, cells={**row.cells, "c": given.row}, unavailable=frozenset())

    patch.setattr(key_changes, "_fill", fill)


def last_event_only(patch: Patch) -> None:
    """Of a key's events the last one counts alone, and a chunk's row that lost gives nothing."""
    VARIANTS["drop instead of fold"].apply(patch)
    patch.setattr(net_change, "compose", lambda before, after: after)


def unversioned(patch: Patch) -> None:
    """The table takes what comes last."""
    real = DictLake._merge
    patch.setattr(DictLake, "_merge", lambda self, row: real(self, {**row, "__force": True}))


def truncated_by_arrival(patch: Patch) -> None:
    """A truncate takes all that is there."""
    patch.setattr(DictLake, "truncate", lambda self, position, *, version: self.table.clear())


# -- visibility ------------------------------------------------------------------------------------


def newest_open_row(patch: Patch) -> None:
    """A chunk takes the newest open row that was acknowledged, as DBLog has it."""

    def newest(snapshot: Snapshot, watermarks: list[Watermark]) -> Watermark:
        return watermarks[-1]

    patch.setattr(windows, "visible", newest)


def events_of_running_transactions(patch: Patch) -> None:
    """The same, and all events since arming beat rows: at least those of running transactions."""
    newest_open_row(patch)
    patch.setattr(window, "_forget", lambda now, below: None)

    def lifted(touched: pa.RecordBatch, truncated_at: bytes) -> Any:
        highest = pa.repeat(pa.scalar(b"\xff" * lsns.WIDTH), touched.num_rows)
        at = touched.schema.get_field_index("position")
        column = highest.cast(pa.binary(lsns.WIDTH))
        return touched.set_column(at, touched.schema.field(at), column), truncated_at

    _decided(patch, lifted)


def ids_of_32_bits(patch: Patch) -> None:
    """Transactions are compared by what their events carry of the id."""
    real = Snapshot.parse

    def parse(text: str, server: Any) -> Snapshot:
        found = real(text, server)
        return replace(found, xmin=found.xmin % (1 << 32), xmax=found.xmax % (1 << 32))

    patch.setattr(Snapshot, "parse", parse)


_LSN = VARIANTS["compared by lsn"].apply
BREAKS = (
    Break("S02", "no-dedup", no_dedup, "!r1"),
    Break("S04", "resurrect", deletes_touch_nothing, "final"),
    Break("S08", "record-from-L-seen", from_the_open_row_on, "!r1"),
    Break("S09", "version=hi", VARIANTS["version hi"].apply, "final"),
    Break(
        "S10", "end-offset fence", VARIANTS["released at the close row"].apply, "!r1",
        ORDER_MODE,
    ),
    Break("S11", "lsn-compare", _LSN, "final"),
    Break("S12", "lsn-compare", _LSN, "final"),
    Break("S13", "lsn-compare", _LSN, "final"),
    Break("S14", "DBLog-on-PG-primary", newest_open_row, "final"),
    Break("S15", "xid-rule-without-memory", events_of_running_transactions, "final"),
    Break("S16", "32-vs-64-bit compare", ids_of_32_bits, "final"),
    Break("S17", "plain drop", VARIANTS["drop instead of fold"].apply, "final"),
    Break("S18", "patch-without-version", fills_overwrite, "final"),
    Break("S19", "keep-last-event-only", last_event_only, "final", at_once=True),
    Break("S20", "fold-without-delete-barrier", VARIANTS["fill across a delete"].apply, "!fill1"),
    Break("S21", "resurrect", deletes_touch_nothing, "final"),
    # That a row fills its own key only is ours: what makes key 2 whole is that it is read again.
    Break("S23", "fold-by-key-only", VARIANTS["drop instead of fold"].apply, "final"),
    Break("S26", "unversioned sink", unversioned, "1 goes back"),
    Break("S27", "unversioned sink", unversioned, "1 goes back"),
    Break("S28", "purge-at-H", purged_at_the_close_row, "!r1"),
    Break("S29", "no manifest", VARIANTS["no manifest"].apply, "final"),
    Break("S30", "no attempt fencing", VARIANTS["attempts are never over"].apply, "settled 2"),
    Break("S31", "per-run touched set", touches_of_one_run, "r1@106"),
    Break("S33", "keyed-only touch", keyed_only, "!r1"),
    Break("S34", "truncate-by-arrival", truncated_by_arrival, "final"),
)  # fmt: skip
