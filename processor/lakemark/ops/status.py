"""The answers of `/v1/status` and `/v1/history`: frozen values; `schemas/status.json` is theirs.

Times ending in `_ms` are milliseconds since the epoch. A number that is not known is null.

| state of a table | means |
|---|---|
| waiting | the connector captures it, and nothing of it has come yet |
| snapshotting | it streams, or will, and a run is reading it |
| catching_up | it reads what it missed, then it streams |
| streaming | each batch applies its events |
| paused | asked for: nothing is applied, nothing is lost |
| errored | `reason` says why, `hint` what to do, `retried` whether it is tried again |
| dropped | the source has no such table any more, and nothing of it is unread |
"""

import json
import sys
from typing import Any, Final, Literal

import msgspec

from lakemark.settings import masking

WAITING: Final = "waiting"
SNAPSHOTTING: Final = "snapshotting"
CATCHING_UP: Final = "catching_up"
STREAMING: Final = "streaming"
PAUSED: Final = "paused"
ERRORED: Final = "errored"
DROPPED: Final = "dropped"
TABLE_STATES: Final = (WAITING, SNAPSHOTTING, CATCHING_UP, STREAMING, PAUSED, ERRORED, DROPPED)

STARTING: Final = "starting"
STANDBY: Final = "standby"
DEGRADED: Final = "degraded"
STOPPED: Final = "stopped"
PIPELINE_STATES: Final = (STARTING, STANDBY, STREAMING, DEGRADED, STOPPED)

TableWord = Literal[
    "waiting", "snapshotting", "catching_up", "streaming", "paused", "errored", "dropped"
]
PipelineWord = Literal["starting", "standby", "streaming", "degraded", "stopped"]


class PipelineNow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process: `since_ms` is when it entered its state; `batch` is -1 before the first."""

    state: PipelineWord
    since_ms: int
    started_ms: int
    code: str = ""
    reason: str = ""
    hint: str = ""
    batch: int = -1


class Lag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The distance behind the source, a bound: no change that was committed longer ago is missing.

    0 seconds while nothing is unread in Kafka and the source is known to have sent everything; null
    where nothing shows that.
    """

    seconds: float | None = None
    records: int | None = None


class ProofNow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The proof of a table: that all of its rows were as in the source, see docs/verify.md.

    `expected`: it is verified by itself. `proved_ms` is when the newest run began that has proved
    it, `position` (hex) which changes that run has compared, `rows` and `newer` how many it has
    read, and left to newer events. `run` is the newest run, `ended_ms` when it ended, `found` what
    it found by kind, `mended` whether it was to mend that, `unlike` how many rows it has left not
    as in the source. `code`, `reason` and `hint` say why it was in vain, `waits` why the next one
    does not begin.
    """

    expected: bool
    proved_ms: int | None = None
    position: str = ""
    rows: int = 0
    newer: int = 0
    run: str = ""
    ended_ms: int | None = None
    found: dict[str, int] = {}
    mended: bool = False
    unlike: int = 0
    code: str = ""
    reason: str = ""
    hint: str = ""
    retried: bool = False
    waits: str = ""


class TableNow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table; `rereads` are rows to be read again, `more_rereads` says that not all are known.

    `inexact` counts dates and times of its events so far that the lake cannot hold.
    `disagrees` says how its newest records and the database differ about its columns;
    `hidden_nulls` are columns whose NULL these records have as the column's default; `maybe_null`
    counts rows that came with such a default and were not read again.
    `resnapshot` says why it may hold rows that the source no longer has. `events_per_second` is of
    the last minute, and null where only the topics were asked. `proof` is null where the table was
    never verified, and is not to be.
    """

    name: str
    state: TableWord
    code: str = ""
    reason: str = ""
    hint: str = ""
    retried: bool = False
    rows: int = 0
    bytes: int = 0
    events: int = 0
    replays: int = 0
    dead_letters: int = 0
    rereads: int = 0
    more_rereads: bool = False
    resnapshot: str = ""
    engine: str = ""
    newest_source_ms: int | None = None
    committed_ms: int | None = None
    lag: Lag = Lag()
    events_per_second: float | None = None
    inexact: int = 0
    disagrees: str = ""
    hidden_nulls: tuple[str, ...] = ()
    maybe_null: int = 0
    proof: ProofNow | None = None


class SourceProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reason why changes may not come to Kafka; `since_ms` is when it was seen first."""

    code: str
    reason: str
    hint: str
    since_ms: int


class SourceNow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The connector, its slot and its heartbeats, as they were found at `asked_ms`.

    `connector` is the worst of the states that Connect gives it and its tasks, MISSING where it
    knows none of that name, empty where Connect was not asked or did not answer. `proven_ms`: what
    had been committed then is in Kafka; null where nothing has shown that. `watched` is false where
    nothing ever can. `unpromised` says what does not hold for its tables, where `source.order`
    gives something up.
    """

    asked_ms: int
    watched: bool
    connector: str = ""
    slot: str = ""
    slot_active: bool | None = None
    slot_distance_bytes: int | None = None
    heartbeat_ms: int | None = None
    proven_ms: int | None = None
    problems: tuple[SourceProblem, ...] = ()
    unpromised: str = ""


class CatalogChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change in the database's catalog (`reason`), and what follows from it.

    `action` is nothing (the table is right as it is), fill (its older rows get the values),
    read-again (it is snapshotted), rebuild (it is made anew), stop (it waits until somebody did
    what `hint` says) or dropped (its Delta table stays as it is).
    """

    table: str
    kind: str
    action: Literal["nothing", "fill", "read-again", "rebuild", "stop", "dropped"]
    reason: str
    hint: str
    at_ms: int


class CatalogNow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest look at the database's catalog; `looked_ms` is null before the first.

    `reason` says why that look failed, and is empty where it did not. `changes` are the newest
    ones, newest first.
    """

    looked_ms: int | None = None
    reason: str = ""
    changes: tuple[CatalogChange, ...] = ()


class BatchDone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The effects of a batch; `seconds` are by step.

    `held` is what the shards hold for snapshots: `touches` (changed keys), `parts`, and the bytes
    of the `largest_state`; empty without a run.
    """

    batch: int
    events: int
    rows: int
    seconds: dict[str, float]
    ended_ms: int = 0
    held: dict[str, int] = {}

    def duration(self) -> float:
        """Return the seconds of all its steps."""
        return sum(self.seconds.values())


class SlowestStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The step that took most of the newest batches' time, and its share of it (0 to 1)."""

    step: str
    seconds: float
    share: float
    batches: int


class ChunkNow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk in flight: `state` is reading, read (it waits for a window) or settling.

    `since_ms` is when it entered its state, `rows` what was read. `lo` and `hi` are the windows it
    lies between, empty until they are known.
    """

    chunk: int
    attempt: int
    state: str
    since_ms: int
    rows: int | None
    lo: str
    hi: str


class WindowsNow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Windows of the snapshots under way.

    `open` is the one that is open now and empty between two, `opened_ms` when it was opened;
    `in_use` counts those that chunks in flight may need. `waits_for` is the transaction that
    keeps chunks waiting, empty if none does.
    """

    open: str
    opened_ms: int | None
    in_use: int
    waits_for: str


class Delay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reason why snapshots wait; they go on by themselves."""

    code: str
    reason: str
    hint: str


class ScanNow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The progress of a table in a run; `status` is empty while it goes on.

    `inexact` counts values that the lake gets otherwise than the database has them: null where
    Debezium cannot carry one, the first or last date of the lake. `found` has the numbers of a
    verify run: rows that are missing, extra, differing or duplicate in the lake, that a newer event
    decides, and that were left; null of a snapshot. `stage` (arming, waiting, scanning, cutting,
    reading, checking, sweeping) and `in_flight` are known to the process that runs the
    snapshot alone: elsewhere they are empty.
    """

    table: str
    status: str
    percent: int
    chunks: int
    total_chunks: int | None
    rows: int
    total_rows: int | None
    rows_per_second: int | None
    eta_seconds: int | None
    inexact: int = 0
    found: dict[str, int] | None = None
    stage: str = ""
    in_flight: tuple[ChunkNow, ...] = ()


class RunNow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot: state running, paused, completed, aborted."""

    id: str
    state: str
    updated_ms: int
    tables: tuple[ScanNow, ...]
    code: str = ""
    reason: str = ""
    hint: str = ""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest notification under a signal's id."""

    type: str
    at_ms: int
    code: str = ""
    reason: str = ""
    hint: str = ""


class SignalSeen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signal and what became of it; `answer` is null until there is one."""

    id: str
    type: str
    tables: tuple[str, ...]
    sent_ms: int
    answer: Answer | None = None


class ConnectorNow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several connectors.

    `topic_prefix` begins the names of its tables; it is empty while the connector is not known.
    `state` is away where the connector could not be used when the query was started, for `reason`:
    its tables are not read, they go on when it is there. The others are as `Status` has them for a
    single connector.
    """

    name: str
    topic_prefix: str = ""
    state: Literal["streaming", "away"] = "streaming"
    code: str = ""
    reason: str = ""
    hint: str = ""
    windows: WindowsNow | None = None
    snapshot_delay: Delay | None = None
    source: SourceNow | None = None
    catalog: CatalogNow | None = None


class CutNow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest cut of a connector, see docs/cuts.md.

    `connector` begins the names of its tables, and is empty for the only one. The tables hold all
    up to `transaction`, committed at `committed_ms` by the source's clock, but those in `without`.
    `behind_s` is from then to the newest change that the tables have.
    """

    connector: str
    transaction: str
    committed_ms: int
    behind_s: float
    without: tuple[str, ...] = ()


class Status(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that the process knows now; batches, snapshots and signals newest first.

    `windows` is null while no snapshot has one, `snapshot_delay` while nothing delays snapshots,
    `source` until it has been looked at, `catalog` where nobody looks at it. In a pipeline of
    several `connectors` each of these has them; else there are none. `verify_every_s` is
    `verify.every`, null where no table is verified by itself. `cuts` are the newest of each
    connector, with `stream.cuts`; none where only the topics were asked.
    """

    name: str
    version: str
    now_ms: int
    pipeline: PipelineNow
    lag: Lag
    slowest_step: SlowestStep | None
    tables: tuple[TableNow, ...]
    batches: tuple[BatchDone, ...]
    snapshots: tuple[RunNow, ...]
    signals: tuple[SignalSeen, ...]
    windows: WindowsNow | None = None
    snapshot_delay: Delay | None = None
    source: SourceNow | None = None
    catalog: CatalogNow | None = None
    connectors: tuple[ConnectorNow, ...] = ()
    verify_every_s: float | None = None
    cuts: tuple[CutNow, ...] = ()

    def sides(self) -> tuple[ConnectorNow, ...]:
        """Return what is each connector's; a single one has no name here."""
        alone = ConnectorNow(
            "",
            windows=self.windows,
            snapshot_delay=self.snapshot_delay,
            source=self.source,
            catalog=self.catalog,
        )
        return self.connectors or (alone,)


class Stretch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ten seconds: what its batches did, the longest of them, the highest lag seen."""

    at_ms: int
    batches: int = 0
    events: int = 0
    rows: int = 0
    longest_s: float = 0.0
    lag_s: float | None = None
    lag_records: int | None = None


class History(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last hour, oldest first; ten seconds in which nothing was known are left out."""

    stretch_s: int
    stretches: tuple[Stretch, ...]


def as_told(status: Status) -> dict[str, Any]:
    """Return the state for others: secrets in faults are masked; ids and answers stay as sent."""
    found: dict[str, Any] = msgspec.to_builtins(status)
    told = ("pipeline", "tables", "snapshot_delay", "source", "catalog", "connectors")
    faults = {name: found[name] for name in told}
    return {**found, **masking.explained(faults)}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of `Status`."""
    found = msgspec.json.schema(Status)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
