"""The records of the control topic, one class for each type: everything that decides is one.

They travel as JSON objects with their type in `type`, see schemas/control.json. A record of a type
that a reader does not know is not for it; fields that it does not know mean nothing to it. A field
is left out where it says nothing, so that a new one can be read beside records without it.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, get_args

import msgspec

from lakemark.model.fills import Fill

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number that fits into a state."""
TABLE_MODE: Final = "table"
ORDER_MODE: Final = "order"
REPORT: Final = "report"
REPAIR: Final = "repair"


class ControlRecord(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"
):
    """Any of them.

    Attributes:
        id: of the record; those of snapshots have none.
        ts_ms: when it was written, in milliseconds since the epoch.
        connector: the one whose log it speaks of, where there are several, by its qualifier.
    """

    id: str = ""
    ts_ms: int = 0
    connector: str = ""


class RunStart(ControlRecord, frozen=True, kw_only=True, tag="run-start"):
    """Arms the shards for the tables of a run.

    Attributes:
        run: its id.
        tables: its tables.
        windows: what the window rows that its chunks use name as their run; None = the run.
        attempt: all attempts of the run have this number or a higher one; None = any.
        mode: `order`: chunks wait for a fence; None = `table`.
        verify: rows are compared with the tables': REPORT, or REPAIR to mend what differs; None =
            they are merged.
        values: whether the findings of a comparison have the rows' values.
    """

    run: str = ""
    tables: list[str] = []
    windows: str | None = None
    attempt: Whole | None = None
    mode: str | None = None
    verify: str | None = None
    values: bool | None = None


class RunEnd(ControlRecord, frozen=True, kw_only=True, tag="run-end"):
    """Disarms them."""

    run: str


class ChunkComplete(ControlRecord, frozen=True, kw_only=True, tag="chunk"):
    """All parts of an attempt at a chunk are written.

    Attributes:
        run, table, chunk, attempt: which.
        parts: number of parts by shard; a shard that is not named has none.
        lo: window whose open row bounds the chunk from below.
        hi: window whose close row is the first written after the SELECT ended.
        server: life of the server that was read.
        position: of a database whose reads know their place in the log: that place (hex), in place
            of the open row's.
    """

    run: str
    table: str
    chunk: Whole
    attempt: Whole
    parts: dict[str, Whole]
    lo: str
    hi: str
    server: str | None = None
    position: str | None = None


class WindowPlace(ControlRecord, frozen=True, kw_only=True, tag="window"):
    """A window row of a database whose reads know their place in the log: none is written there.

    Attributes:
        window: uuid of the window and which end of it this is.
        run: what window rows name as their run.
        oldest: uuid of the oldest window that any chunk, also a future one, may still use.
        position: where the log ended (hex).
        server: life of the database server.
    """

    window: str
    run: str
    oldest: str
    position: str
    server: str


class ChunkVoid(ControlRecord, frozen=True, kw_only=True, tag="void"):
    """An attempt does not count.

    Attributes:
        run, table, chunk, attempt: which; the number alone decides.
        reason: why.
    """

    attempt: Whole
    run: str = ""
    table: str = ""
    chunk: Whole | None = None
    reason: str | None = None


class AttemptsBegin(ControlRecord, frozen=True, kw_only=True, tag="attempts"):
    """Attempts below this number do not count: their coordinator is gone."""

    attempt: Whole


class Fence(ControlRecord, frozen=True, kw_only=True, tag="fence"):
    """Events up to a position (hex) are in the output topics."""

    position: str


class Sweep(ControlRecord, frozen=True, kw_only=True, tag="sweep"):
    """Rows of a table below a position (hex) are gone from the source."""

    run: str
    table: str
    position: str


class TablePause(ControlRecord, frozen=True, kw_only=True, tag="table-pause"):
    """The table stops with this batch."""

    table: str


class TableResume(ControlRecord, frozen=True, kw_only=True, tag="table-resume"):
    """It catches up.

    Attributes:
        table: which.
        code: goes on only if it has stopped for this; None = a person asks.
    """

    table: str
    code: str | None = None


class TableStop(ControlRecord, frozen=True, kw_only=True, tag="table-stop"):
    """It stops for a reason, unless a person paused it."""

    table: str
    code: str
    reason: str | None = None
    hint: str | None = None


class TableSkip(ControlRecord, frozen=True, kw_only=True, tag="table-skip"):
    """It leaves out what it has not applied, up to Kafka offsets by topic and partition."""

    table: str
    offsets: Any = None


class TableRead(ControlRecord, frozen=True, kw_only=True, tag="table-read"):
    """Rows that were in doubt have been read again.

    Attributes:
        table: which.
        until: they had been asked for up to this batch; None = nobody says.
        keys: canonical keys; None = all rows were.
    """

    table: str
    until: int | None = None
    keys: list[str] | None = None


class TableVerified(ControlRecord, frozen=True, kw_only=True, tag="table-verified"):
    """A verify run over a whole table has ended, see `model.proof`.

    Attributes:
        table: which.
        run: the run's id.
        turn_ms: when it began, in milliseconds since the epoch.
        ended_ms: when it ended.
        batch: the newest one that was done when it began to read.
        compared: whether all rows were looked at; None = it ended before.
        proved: whether none is left that is not as in the source.
        mended: whether it was to mend what it found.
        position: what it has compared, as hex.
        rows: that it has read in the source.
        newer: keys that newer events decide.
        found: rows that are not alike, by kind.
        code, reason, hint, retried: why it was in vain.
    """

    table: str
    run: str = ""
    turn_ms: Whole = 0
    ended_ms: Whole = 0
    batch: int = -1
    compared: bool | None = None
    proved: bool | None = None
    mended: bool | None = None
    position: str = ""
    rows: Whole = 0
    newer: Whole = 0
    found: dict[str, Whole] = {}
    code: str = ""
    reason: str = ""
    hint: str = ""
    retried: bool | None = None


class TableResnapshot(ControlRecord, frozen=True, kw_only=True, tag="table-resnapshot"):
    """Any of its rows may miss an event."""

    table: str
    reason: str | None = None


class TableRebuild(ControlRecord, frozen=True, kw_only=True, tag="table-rebuild"):
    """It is made anew beside the old one.

    Attributes:
        table: which.
        reason: what for.
        code: only if it has stopped for this.
        automatic: nobody has asked for it.
        cancel: goes on with the old one instead.
        offsets: what one that stands still leaves out, as `TableSkip` has it.
    """

    table: str
    reason: str | None = None
    code: str | None = None
    automatic: bool | None = None
    cancel: bool | None = None
    offsets: Any = None


class TableFill(ControlRecord, frozen=True, kw_only=True, tag="table-fill"):
    """Its older rows get values that no event tells."""

    table: str
    fills: list[Fill] = []
    reason: str | None = None


class NewEpoch(ControlRecord, frozen=True, kw_only=True, tag="new-epoch"):
    """The source's positions begin again.

    Attributes:
        follows: only if events have proven that they are of another server's log.
    """

    table: str | None = None
    follows: bool | None = None


class ControlLost(ControlRecord, frozen=True, kw_only=True, tag="control-lost"):
    """A person knows that records of this topic were lost."""

    table: str | None = None


class Wake(ControlRecord, frozen=True, kw_only=True, tag="wake"):
    """Nothing but a record: it makes a batch where the source is silent."""


Record = (
    RunStart | RunEnd | ChunkComplete | WindowPlace | ChunkVoid | AttemptsBegin | Fence | Sweep
    | TablePause | TableResume | TableStop | TableSkip | TableRead | TableResnapshot
    | TableVerified | TableRebuild | TableFill | NewEpoch | ControlLost | Wake
)  # fmt: skip
Command = (
    TablePause | TableResume | TableStop | TableSkip | TableRead | TableResnapshot
    | TableVerified | TableRebuild | TableFill | NewEpoch
)  # fmt: skip
COMMANDS: Final = frozenset(str(kind.__struct_config__.tag) for kind in get_args(Command))
"""Types of those that ask for something of the tables."""


def encode(record: ControlRecord) -> bytes:
    """A record as it is written; characters that UTF-8 has no form for are escaped."""
    return json.dumps(msgspec.to_builtins(record)).encode()


def decode(value: bytes) -> Record | None:
    """Return what a record says; None if it is none of these, or lacks what it must have."""
    try:
        found: Record = msgspec.json.decode(value, type=Record)
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return found


def converted(said: Mapping[str, Any]) -> Record:
    """Return the record of a JSON object.

    Raises:
        msgspec.ValidationError: as `decode` returns None.
    """
    found: Record = msgspec.convert(said, type=Record)
    return found
