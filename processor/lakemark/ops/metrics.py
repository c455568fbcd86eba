"""The metrics in Prometheus's format, read off the board when they are asked for.

A number that is not known has no sample. Runs of snapshots are shown while they are under way, so
that their ids do not pile up.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from lakemark.ops.board import Board
from lakemark.ops.source_side import CONNECTOR_STATES
from lakemark.ops.status import (
    PIPELINE_STATES,
    TABLE_STATES,
    BatchDone,
    Status,
    TableNow,
)
from lakemark.snapshot.run_tracker import ENDED

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Counters are named without `_total`: the client library adds it.
BUILD_INFO: Final = "lakemark_build_info"
PIPELINE_STATE: Final = "lakemark_pipeline_state"
LAG_SECONDS: Final = "lakemark_lag_seconds"
LAG_RECORDS: Final = "lakemark_lag_records"
SOURCE_UP: Final = "lakemark_source_up"
CONNECTOR_STATE: Final = "lakemark_connector_state"
SLOT_DISTANCE: Final = "lakemark_slot_distance_bytes"
HEARTBEAT_AGE: Final = "lakemark_heartbeat_age_seconds"
BATCHES: Final = "lakemark_batches"
BATCH_EVENTS: Final = "lakemark_batch_events"
BATCH_ROWS: Final = "lakemark_batch_rows"
STEP_SECONDS: Final = "lakemark_batch_step_seconds"
BATCH_DURATION: Final = "lakemark_batch_duration_seconds"
TABLE_STATE: Final = "lakemark_table_state"
TABLE_LAG_SECONDS: Final = "lakemark_table_lag_seconds"
TABLE_LAG_RECORDS: Final = "lakemark_table_lag_records"
TABLE_ROWS: Final = "lakemark_table_rows"
TABLE_BYTES: Final = "lakemark_table_size_bytes"
TABLE_EVENTS: Final = "lakemark_table_events"
TABLE_REPLAYS: Final = "lakemark_table_replays"
TABLE_DEAD_LETTERS: Final = "lakemark_table_dead_letters"
TABLE_INEXACT: Final = "lakemark_table_inexact_values"
TABLE_REREADS: Final = "lakemark_table_rereads_outstanding"
TABLE_SOURCE_TIME: Final = "lakemark_table_newest_source_timestamp_seconds"
TABLE_COMMIT_TIME: Final = "lakemark_table_last_commit_timestamp_seconds"
PROVED_AGE: Final = "lakemark_proved_age_seconds"
VERIFY_UNLIKE: Final = "lakemark_verify_unlike_rows"
VERIFY_FAILED: Final = "lakemark_verify_failed"
VERIFY_EVERY: Final = "lakemark_verify_every_seconds"
CUT_BEHIND: Final = "lakemark_cut_behind_seconds"
CUT_WITHOUT: Final = "lakemark_cut_tables_left_out"
SNAPSHOT_PROGRESS: Final = "lakemark_snapshot_progress_ratio"
SNAPSHOT_ROWS: Final = "lakemark_snapshot_rows_read"
SHARD_TOUCHES: Final = "lakemark_snapshot_touches"
SHARD_PARTS: Final = "lakemark_snapshot_buffered_parts"
SHARD_STATE: Final = "lakemark_snapshot_largest_state_bytes"

_OF_SHARDS: Final = (
    (SHARD_TOUCHES, "Keys of change events that the shards remember for open windows", "touches"),
    (SHARD_PARTS, "Parts of chunks that wait in the shards for their close row", "parts"),
    (SHARD_STATE, "Size of the largest shard's state; 0 without a run", "largest_state"),
)
_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)  # a trigger is a second


class Metrics(Collector):
    """A registry for one board, without the metrics of other libraries."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._registry = CollectorRegistry(auto_describe=False)
        self._durations = Histogram(
            BATCH_DURATION, "Seconds that a batch took", registry=self._registry, buckets=_SECONDS
        )
        self._held = {
            word: Gauge(name, text, registry=self._registry) for name, text, word in _OF_SHARDS
        }
        self._registry.register(self)

    def batch(self, done: BatchDone) -> None:
        """Add a batch that has ended."""
        self._durations.observe(done.duration())
        for word, gauge in self._held.items():
            gauge.set(done.held.get(word, 0))

    def text(self) -> bytes:
        """Return all metrics as they are now."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        now = self._board.status()
        yield _gauge(BUILD_INFO, "Version of lakemark; always 1", ["version"], [([now.version], 1)])
        states = [([state], int(state == now.pipeline.state)) for state in PIPELINE_STATES]
        yield _gauge(PIPELINE_STATE, "1 for the state that the pipeline is in", ["state"], states)
        yield _gauge(
            LAG_SECONDS,
            "Seconds that the table furthest behind is behind the source; 0 with all sent and read",
            [],
            [([], now.lag.seconds)],
        )
        yield _gauge(
            LAG_RECORDS, "Records in Kafka that no batch has read", [], [([], now.lag.records)]
        )
        yield from _sources(now)
        yield from self._batches()
        yield from _tables(now)
        yield from _proofs(now)
        yield from _cuts(now)
        yield from _snapshots(now)

    def _batches(self) -> Iterator[Metric]:
        count, events, rows, seconds = self._board.totals()
        yield _counter(BATCHES, "Batches done since the process began", [], [([], count)])
        yield _counter(
            BATCH_EVENTS, "Change events in batches since the process began", [], [([], events)]
        )
        yield _counter(
            BATCH_ROWS, "Rows written to tables since the process began", [], [([], rows)]
        )
        yield _counter(
            STEP_SECONDS,
            "Seconds spent in a step of the batches since the process began",
            ["step"],
            [([step], spent) for step, spent in sorted(seconds.items())],
        )


_Samples = Iterable[tuple[list[str], float | None]]


def _gauge(name: str, text: str, labels: list[str], samples: _Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: list[str], samples: _Samples) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def _sources(now: Status) -> Iterator[Metric]:
    """Yield what is known of the connectors; of several each has a label."""
    sides = [side for side in now.sides() if side.source is not None or side.state == "away"]
    if not sides:
        return
    labels = ["connector"] if now.connectors else []
    found = [([side.name] if labels else [], side.source) for side in sides]
    yield _gauge(
        SOURCE_UP, "0 while the source has a problem: no changes come", labels,
        [(name, int(source is not None and not source.problems)) for name, source in found],
    )  # fmt: skip
    yield _gauge(
        CONNECTOR_STATE,
        "1 for the worst of the states that Connect gives the connector and its tasks",
        [*labels, "state"],
        [
            ([*name, state], int(state == source.connector))
            for name, source in found
            if source is not None
            for state in CONNECTOR_STATES
        ],
    )
    yield _gauge(
        SLOT_DISTANCE,
        "Bytes from what the connector has confirmed to the end of the database's log",
        labels,
        [(name, source.slot_distance_bytes) for name, source in found if source is not None],
    )
    yield _gauge(
        HEARTBEAT_AGE, "Seconds since the connector's newest heartbeat", labels,
        [
            (name, max(0, now.now_ms - source.heartbeat_ms) / 1000)
            for name, source in found
            if source is not None and source.heartbeat_ms is not None
        ],
    )  # fmt: skip


_Reading = Callable[[TableNow], float | None]
_OF_TABLES: Final[tuple[tuple[str, str, _Reading], ...]] = (
    (TABLE_LAG_SECONDS, "Seconds that a table is behind the source", lambda t: t.lag.seconds),
    (TABLE_LAG_RECORDS, "Records of a table that were not applied", lambda t: t.lag.records),
    (TABLE_ROWS, "Rows of a table", lambda t: t.rows),
    (TABLE_BYTES, "Size of a table's files", lambda t: t.bytes),
    (TABLE_REREADS, "Rows to be read again from the source", lambda t: t.rereads),
    (
        TABLE_SOURCE_TIME,
        "When the source made the newest change that was applied, in seconds since the epoch",
        lambda t: _seconds(t.newest_source_ms),
    ),
    (
        TABLE_COMMIT_TIME,
        "When this process last wrote a table, in seconds since the epoch",
        lambda t: _seconds(t.committed_ms),
    ),
)
_COUNTED: Final[tuple[tuple[str, str, _Reading], ...]] = (
    (TABLE_EVENTS, "Change events of a table that were applied", lambda t: t.events),
    (TABLE_REPLAYS, "Events that had been applied before and came again", lambda t: t.replays),
    (TABLE_INEXACT, "Dates and times of events that the lake cannot hold", lambda t: t.inexact),
    (TABLE_DEAD_LETTERS, "Records of a table that became dead letters", lambda t: t.dead_letters),
)


def _tables(now: Status) -> Iterator[Metric]:
    yield _gauge(
        TABLE_STATE,
        "1 for the state that a table is in",
        ["table", "state"],
        [([t.name, state], int(t.state == state)) for t in now.tables for state in TABLE_STATES],
    )
    for name, text, value in _OF_TABLES:
        yield _gauge(name, text, ["table"], [([t.name], value(t)) for t in now.tables])
    for name, text, value in _COUNTED:
        yield _counter(name, text, ["table"], [([t.name], value(t)) for t in now.tables])


def _proofs(now: Status) -> Iterator[Metric]:
    """Yield what verify runs have shown; of a table that was never verified nothing."""
    found = [([t.name], t.proof) for t in now.tables if t.proof is not None]
    yield _gauge(
        PROVED_AGE, "Seconds since the verify run began that last proved a table", ["table"],
        [
            (name, max(0, now.now_ms - proof.proved_ms) / 1000)
            for name, proof in found
            if proof.proved_ms is not None
        ],
    )  # fmt: skip
    ended = [(name, proof) for name, proof in found if proof.ended_ms is not None]
    yield _gauge(
        VERIFY_UNLIKE,
        "Rows of a table that its newest verify run has left not as in the source",
        ["table"],
        [(name, proof.unlike) for name, proof in ended],
    )
    yield _gauge(
        VERIFY_FAILED,
        "1 while a table's newest verify run could not compare it",
        ["table"],
        [(name, int(bool(proof.code))) for name, proof in ended],
    )
    yield _gauge(
        VERIFY_EVERY,
        "Seconds between two verify runs of a table, where they come by themselves",
        [],
        [([], now.verify_every_s)],
    )


def _cuts(now: Status) -> Iterator[Metric]:
    """Yield how the newest cut of each connector is; nothing without `stream.cuts`."""
    yield _gauge(
        CUT_BEHIND,
        "Seconds in the source from a connector's newest cut to the newest change in its tables",
        ["connector"],
        [([one.connector], one.behind_s) for one in now.cuts],
    )
    yield _gauge(
        CUT_WITHOUT,
        "Tables that a connector's newest cut has no version of",
        ["connector"],
        [([one.connector], len(one.without)) for one in now.cuts],
    )


def _snapshots(now: Status) -> Iterator[Metric]:
    going = [
        (run.id, scan) for run in now.snapshots if run.state not in ENDED for scan in run.tables
    ]
    labels = ["run", "table"]
    yield _gauge(
        SNAPSHOT_PROGRESS,
        "Share of a table's chunks that are settled, of runs under way (0 to 1)",
        labels,
        [([run, scan.table], scan.percent / 100) for run, scan in going],
    )
    yield _gauge(
        SNAPSHOT_ROWS,
        "Rows in settled chunks, of runs under way",
        labels,
        [([run, scan.table], scan.rows) for run, scan in going],
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
