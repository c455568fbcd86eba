"""One scenario on its way through decoding, shards and table (`simulation.pipeline`).

What arrives is written into the topics in the scenario's order, and consumed in batches that the
caller cuts. `Play` is also the coordinator: a chunk that was not settled is read again, listed keys
are read by key, and runs end when their chunks are settled. Its windows are lakemark's own.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from lakemark.connectors.database import Watermark
from lakemark.connectors.postgres import positions as lsns
from lakemark.connectors.postgres.visibility import Server, Snapshot
from lakemark.model import change_batch, net_change, positions
from lakemark.model.control import ORDER_MODE, TABLE_MODE
from lakemark.reconcile import window
from lakemark.snapshot.windows import Windows
from lakemark.source.changed_keys import shard_of
from tests.kit.log_model import STEP, TABLE, Row, Shape
from tests.kit.scenarios import Arrival, Entry, Marker, Reading, Scenario, cells_of, row_of
from tests.kit.simulation.connector import SIGNAL_TOPIC, TOPIC, Connector, Event, stream_position
from tests.kit.simulation.pipeline import Done, Pipeline
from tests.kit.simulation.runs import packet_of
from tests.kit.simulation.source import new_source

SERVER = Server("2026-01-01T00:00:00Z", 1)
WINDOWS = "windows"
LOADED = 50  # where the connector read the table before everything
AGAIN = 200  # windows for what is read again
ENDED = f"{1 << 40}:{1 << 40}:"  # a snapshot to which all that a scenario tells of is visible


@dataclass(frozen=True)
class Said:
    """What went to the table.

    Attributes:
        what: op of an event (c, u, d, t; read if the connector's own snapshot had it), or of a
            chunk: r for a row, gone for a listed key without one, fill.
    """

    batch: int
    what: str
    key: int
    at: int
    cells: str = ""

    def __str__(self) -> str:
        return f"{self.what}{self.key}@{self.at}"


@dataclass(eq=False)
class Attempt:
    """A reading with its number: `parts` are records of the chunks topic and the key of each."""

    number: int
    reading: Reading
    parts: list[tuple[int, tuple[bytes, bytes]]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    settled: list[int] = field(default_factory=list)
    void: str = ""

    @property
    def chunk(self) -> tuple[str, int]:
        return self.reading.run, self.reading.chunk


class Play:
    """A scenario that is played.

    Args:
        mode: of its runs: table or order.
        partitions: of the topic, truncates have one more.
        loaded: the connector began with a snapshot of the source's rows.
        closing: record that ends the attempts before another one: void or attempts.

    Attributes:
        said: all that went to the table.
        held: the table after each batch: position and cells of every row.
        again: why chunks were read again, by label.
        repaired: keys that were read again because the sink listed them.
        loads: number of rows of the connector's own snapshot.
        wrong: what must never be.
    """

    def __init__(
        self, scenario: Scenario, *, mode: str = TABLE_MODE, shards: int = 1, partitions: int = 2,
        loaded: bool = False, crashes: float = 0.0, deletes: str = "hard",
        closing: str = "void",
    ) -> None:  # fmt: skip
        dice = random.Random(scenario.id)
        self.scenario, self.mode, self.closing = scenario, mode, closing
        self.connector = Connector(new_source(Shape(), dice), dice, partitions + 1)
        self.pipeline = Pipeline(self.connector, dice, shards, crashes, deletes)
        self.windows = Windows()
        self.at, self.last_commit = LOADED, _lsn(LOADED) + STEP
        self.numbers: dict[bytes, int] = {}
        self.attempts: list[Attempt] = []
        self.ended: list[str] = []
        self.seen: set[int] = set()
        self.newest: dict[int, bytes] = {}
        self.highest: dict[int, bytes] = {}
        self.said: list[Said] = []
        self.held: list[dict[int, tuple[bytes, str]]] = []
        self.again: dict[str, str] = {}
        self.listed: set[int] = set()
        self.repaired: set[int] = set()
        self.wrong: list[str] = []
        self.loads = len(scenario.src) if loaded else 0
        self._append_reads(list(scenario.src.items())[: self.loads])
        for entry in scenario.log:
            self._append(entry)
        for reading in scenario.readings:
            self._read(reading, {k: row_of(k, cells) for k, cells in reading.rows.items()})

    def table(self) -> dict[int, str]:
        return {key: cells_of(row) for key, row in self.pipeline.lake.rows().items()}

    def run(self, cut: Callable[[], bool]) -> "Play":
        """All of it; `cut` says after each arrival whether a batch ends there."""
        for place in range(self.loads):
            self._send(place)
        self.batch()
        for arrival in self.scenario.arrivals:
            self._arrive(arrival)
            if cut():
                self.batch()
        self._fence()
        self.batch()
        self._read_again()
        self._repair()
        for run in {reading.run for reading in self.scenario.readings}.difference(self.ended):
            self._say(type="run-end", run=run)
        self.batch()
        for number, blob in enumerate(self.pipeline.state.shards):
            state = window.decode_state(blob)
            if state.runs or state.segments or state.windows or state.attempts:
                self.wrong.append(f"shard {number} still remembers")
        return self

    # -- the log --------------------------------------------------------------------------------

    def _append_reads(self, rows: list[tuple[int, str]]) -> None:
        """The connector's own snapshot."""
        position = lsns.pack(0, 0, _lsn(LOADED))
        self.numbers[position] = LOADED
        for left, (key, cells) in enumerate(rows, 1 - len(rows)):
            change = {"op": "r", "key": key, "after": row_of(key, cells)}
            mark = "true" if left else "last"
            event = Event(-1, 0, change, (None, _lsn(LOADED)), position, 0, mark)
            self.connector.stream.append(event)

    def _append(self, entry: Entry) -> int:
        """An entry's event at the end of the stream; its place there."""
        if entry.at != self.at:
            self.last_commit, self.at = _lsn(self.at) + STEP, entry.at
        sequence = self.last_commit, _lsn(entry.lsn)
        position = stream_position(sequence)
        stream = self.connector.stream
        place = len(stream)
        oldest = next(e.window for e in self.scenario.log if isinstance(e, Marker))
        change = _change(entry, oldest)
        stream.append(Event(place, 0, change, sequence, position, 1000 * place))
        self.numbers[position] = entry.at
        return place

    def _send(self, place: int) -> None:
        """The connector emits an event, perhaps again: truncates into a partition of their own."""
        event, keyless = self.connector.stream[place], self.connector.partitions - 1
        key = event.change.get("key")
        to = (TOPIC, keyless if key is None else key % keyless)
        if "signal" in event.change:
            to = (SIGNAL_TOPIC, 0)
        self.connector.kafka[to].append(self.connector._record(event, place))

    def _marked(self, marker: Marker) -> None:
        """An open or close row is written, acknowledged and emitted."""
        self._send(self._append(marker))
        self._acknowledge(marker)

    def _acknowledge(self, marker: Marker) -> None:
        """The open row's commit has returned: S0 is taken, where the scenario has one."""
        seen = self.scenario.seen
        if seen and marker.end == "open":
            xmin = seen.partition(":")[0]
            proof = {"": seen, "0": f"{xmin}:{xmin}:"}.get(marker.window, ENDED)
            self.windows.open(Watermark(uuid(marker.window), Snapshot.parse(proof, SERVER)), [])

    # -- the coordinator ------------------------------------------------------------------------

    def _say(self, **record: Any) -> None:
        self.pipeline.control.append(record)

    def _arrive(self, arrival: Arrival) -> None:
        attempt = next((a for a in self.attempts if a.reading.label == arrival.label), None)
        if arrival.kind == "A":
            for run in dict.fromkeys(reading.run for reading in self.scenario.readings):
                self._arm(run)
        elif arrival.kind == "F":
            self._fence()
        elif arrival.kind == "C" and attempt is not None:
            self._write(attempt, arrival.keys)
        elif arrival.kind == "M" and attempt is not None:
            self._manifest(attempt)
        else:
            entry = self.scenario.log[arrival.at]
            self._send(self.loads + arrival.at)
            if isinstance(entry, Marker):
                self._acknowledge(entry)

    def _arm(self, run: str) -> None:
        self._say(
            type="run-start", run=run, tables=[TABLE], mode=self.mode, windows=WINDOWS,
            attempt=0,
        )  # fmt: skip

    def _fence(self) -> None:
        """Says up to where all events have gone through a committed batch."""
        if self.mode != ORDER_MODE:
            return
        self.batch()
        stream = self.connector.stream
        missing = [event.position for at, event in enumerate(stream) if at not in self.seen]
        end = min(missing, default=b"\xff" * lsns.WIDTH)
        below = [event.position for event in stream if event.position < end]
        self._say(type="fence", position=max(below, default=positions.LOWEST).hex())

    def _read(self, reading: Reading, rows: dict[int, Row | None]) -> Attempt:
        """A SELECT, packed: one part per row, at least one."""
        attempt = Attempt(len(self.attempts), reading)
        self.attempts.append(attempt)
        pieces: Iterable[list[tuple[int, Row | None]]] = [[item] for item in rows.items()] or [[]]
        for piece in pieces:
            key = piece[0][0] if piece else -1
            name, shards = b"[%d]" % key, self.pipeline.shards
            shard = shard_of(TABLE, name, shards) if piece else 0
            header = {
                "run": reading.run, "table": TABLE, "chunk": reading.chunk,
                "attempt": attempt.number, "shard": shard, "part": attempt.counts[str(shard)],
            }  # fmt: skip
            attempt.counts[str(shard)] += 1
            part = msgspec.json.encode(header), change_batch.encode(packet_of(piece))
            attempt.parts.append((key, part))
        return attempt

    def _write(self, attempt: Attempt, keys: frozenset[int] | None = None) -> None:
        """Parts of an attempt; the attempts of its chunk before it are over."""
        for other in self.attempts[: attempt.number]:
            if other.chunk == attempt.chunk and not other.void:
                self._void(other, "given-up")
        found = [part for key, part in attempt.parts if keys is None or key in keys]
        self.pipeline.chunks[0] += found

    def _void(self, attempt: Attempt, reason: str) -> None:
        attempt.void = reason
        if self.closing == "attempts":
            self._say(type="attempts", attempt=attempt.number + 1)
        else:
            self._say(type="void", attempt=attempt.number, reason=reason)

    def _manifest(self, attempt: Attempt) -> None:
        """All parts are written, if an open row is provably visible."""
        reading = attempt.reading
        low: str | None = uuid(reading.lo)
        if self.scenario.seen:
            again = reading.label in self.again
            snapshot = Snapshot.parse(ENDED if again else self.scenario.seen, SERVER)
            low = self.windows.lo(snapshot)
        if low is None:
            self._void(attempt, "not-visible")
            return
        self._say(
            type="chunk", run=reading.run, table=TABLE, chunk=reading.chunk,
            attempt=attempt.number, parts=attempt.counts, lo=low, hi=uuid(reading.hi),
            server=str(SERVER),
        )  # fmt: skip

    def _read_again(self) -> None:
        """Chunks of which no attempt has settled."""
        for chunk in dict.fromkeys(attempt.chunk for attempt in self.attempts):
            attempts = [attempt for attempt in self.attempts if attempt.chunk == chunk]
            if any(map(self._counts, attempts)):
                continue
            *_, last = attempts
            if not last.void:
                self._void(last, "not-decided")
            self.again[last.reading.label] = last.void
            rows = self.scenario.source()
            found = {key: row_of(key, rows[key]) for key in last.reading.rows if key in rows}
            self._window(last.reading, found)

    def _repair(self) -> None:
        """Listed keys are read by a run of their own."""
        if not self.listed:
            return
        rows = self.scenario.source()
        self.repaired, self.listed = self.listed, set()
        found = {key: row_of(key, rows[key]) if key in rows else None for key in self.repaired}
        self._arm("repair")
        self.batch()
        self._window(Reading("repair", "repair", 0, {}, "", ""), found)
        if self.listed:
            self.wrong.append(f"still listed: {self.listed}")

    def _window(self, of: Reading, rows: dict[int, Row | None]) -> None:
        """A reading in a window of its own, after everything."""
        at = AGAIN + 20 * len(self.attempts)
        name = f"again{at}"
        reading = Reading(of.label, of.run, of.chunk, of.rows, name, name)
        self._marked(Marker("open", name, at, at))
        attempt = self._read(reading, rows)
        self._write(attempt)
        self._manifest(attempt)
        self._marked(Marker("close", name, at + 10, at + 10))
        self._fence()
        self.batch()
        if not self._counts(attempt):
            self.wrong.append(f"attempt {attempt.number} of {of.label} is not decided")
        if of.run == "repair":
            self._say(type="run-end", run=of.run)

    def _counts(self, attempt: Attempt) -> bool:
        return len(set(attempt.settled)) == self.pipeline.shards

    # -- batches --------------------------------------------------------------------------------

    def batch(self) -> None:
        """Consumes all that has come."""
        if self.pipeline.behind():
            self._hear(self.pipeline.run(self.pipeline.ends(everything=True)))

    def _hear(self, done: Done) -> None:
        number, stream = len(self.held), self.connector.stream
        say = partial(Said, number)
        self.seen |= set(done.taken)
        for place in done.kept:
            change, at = stream[place].change, self.numbers[stream[place].position]
            what = "read" if change["op"] == "r" else change["op"]
            self.said.append(say(what, change.get("key", 0), at))
            if stream[place].is_change:
                key = change["key"]
                self.newest[key] = max(self.newest.get(key, b""), stream[place].position)
        for _, output in done.outputs:
            if output.kind == window.SURVIVORS:
                self._survivors(output, say)
        for settled in done.settled:
            attempt = self.attempts[settled.attempt]
            if settled.shard in attempt.settled:
                self.wrong.append(f"attempt {settled.attempt} is settled twice")
            if settled.void:
                attempt.void = settled.void
            else:
                attempt.settled.append(settled.shard)
        self.listed |= {int(key.strip(b"[]")) for key in done.reread}
        self._note_rows()
        self._end_runs()

    def _survivors(self, output: window.Output, say: Callable[..., Said]) -> None:
        for row in change_batch.decode(output.blob).to_pylist():
            key, at = int(row["key"].strip(b"[]")), self.numbers.get(row["position"], -1)
            cells = cells_of(row["row"])
            what = "gone" if row["action"] == net_change.DELETE else "r"
            what = "fill" if row["record"] == change_batch.FILL else what
            self.said.append(say(what, key, at, cells))
            if what != "fill" and self.newest.get(key, b"") > row["position"]:
                self.wrong.append(f"{self.said[-1]} though a newer event was seen")

    def _note_rows(self) -> None:
        rows = self.pipeline.lake.rows()
        now = {key: (row["_cdc"]["position"], cells_of(row)) for key, row in rows.items()}
        for key, (position, _) in now.items():
            if position < self.highest.get(key, b""):
                self.wrong.append(f"{key} goes back")
            self.highest[key] = position
        self.held.append(now)

    def _end_runs(self) -> None:
        """Where runs overlap, one ends as soon as its chunks are settled."""
        runs = {reading.run for reading in self.scenario.readings}
        for run in sorted(runs.difference(self.ended)):
            mine = [attempt for attempt in self.attempts if attempt.reading.run == run]
            if len(runs) > 1 and all(self._counts(attempt) for attempt in mine):
                self._say(type="run-end", run=run)
                self.ended.append(run)


def _lsn(number: int) -> int:
    """A scenario's place in the log as an LSN; commits stand between."""
    return 2 * STEP * number


def uuid(label: str) -> str:
    """Of the window that a scenario calls so."""
    return f"w{label}"


def _change(entry: Entry, oldest: str) -> dict[str, Any]:
    if isinstance(entry, Marker):
        data = {
            "run": WINDOWS, "oldest": uuid(oldest), "server": str(SERVER),
        }  # fmt: skip
        name, text = uuid(entry.window), msgspec.json.encode(data).decode()
        return {"op": "c", "signal": (f"{name}-{entry.end}", f"snapshot-window-{entry.end}", text)}
    found: dict[str, Any] = {"op": entry.op}
    if entry.key is not None:
        found["key"] = entry.key
        if entry.cells is None:
            found["before"] = {"id": entry.key, "a": None, "b": None, "c": None}
        else:
            found["after"] = row_of(entry.key, entry.cells)
        found |= {n: k for n, k in (("new_key", entry.new), ("old_key", entry.old)) if k}
    return found
