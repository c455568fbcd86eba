"""The stream beside a coordinator: what shards do with its records, and what batches tell it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from lakemark.connectors.database import OpenWindow
from lakemark.connectors.reached_place import ReachedPlace
from lakemark.errors import LakemarkError
from lakemark.model.comparisons import ComparedChunk, UnlikeRow
from lakemark.model.control import TableVerified
from lakemark.model.offsets import Offsets
from lakemark.snapshot.coordinator import Coordinator
from lakemark.snapshot.ports import Stream, StreamedTable
from lakemark.state.table_parts import BY_SNAPSHOT

if TYPE_CHECKING:
    from lakemark.snapshot.chunks import ChunkSpec
    from tests.kit.fake_world import FakeDatabase

Tell = Callable[[Coordinator], None]


@dataclass
class SeenWindow:
    """A window: when its rows were written, and what the shards have seen of it."""

    number: int
    server: object
    closed: int = -1
    shown_open: bool = False
    shown_close: bool = False

    @property
    def position(self) -> str:
        return f"{self.number + 1:040x}"


@dataclass
class Applied:
    """An attempt whose rows are in the table."""

    spec: "ChunkSpec"
    lo: str


@dataclass
class FakeStream:
    """Shards, table states and batches.

    Attributes:
        lag: batches by which window rows come late.
        voids: reasons for which the next attempts are void.
        lost: attempts of which a shard has lost a part.
        paused: the stream commits no batch.
        swept_void: so many sweeps find their table stopped.
        epoch: of the positions.
        newest: position that some partition has passed.
        deaf: shards take no windows: they stand below what was used already.
        lake: by table the rows that it has, each a whole number by its key; None = no table.
        uncomparable: by table, why its next comparison fails.
    """

    database: "FakeDatabase"
    shards: int
    query: str = "q1"
    number: int = 0
    lag: int = 0
    voids: list[str] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    swept_void: int = 0
    epoch: int = 0
    newest: bytes = b""
    deaf: bool = False
    lake: dict[str, dict[int, int] | None] = field(default_factory=dict)
    uncomparable: dict[str, LakemarkError] = field(default_factory=dict)
    verifying: dict[str, str] = field(default_factory=dict)
    findings: list[ComparedChunk] = field(default_factory=list)
    tables: dict[str, StreamedTable] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)
    controls: list[Mapping[str, Any]] = field(default_factory=list)
    armed: set[str] = field(default_factory=set)
    windows: dict[str, SeenWindow] = field(default_factory=dict)
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)
    voided: set[int] = field(default_factory=set)
    sweeps: list[Mapping[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _over: set[int] = field(default_factory=set)
    _specs: dict[int, tuple["ChunkSpec", int, int]] = field(default_factory=dict)
    _manifests: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    _decided: dict[int, set[int]] = field(default_factory=dict)
    _planned: tuple[int, int] | None = None
    _since: dict[str, int] = field(default_factory=dict)  # by armed run: windows before it
    _offset: int = 0
    _row: int = 0
    _seen: list[int] = field(default_factory=lambda: [0])
    _below: int = 0
    _forgotten: int = -1
    _announced: int = -1
    _clock: int = 0
    _end: int = 0
    _was_armed: bool = False

    def now(self) -> Stream:
        return Stream(
            self.query, self.number, frozenset(self.armed), dict(self.tables), dict(self.offsets),
            self.epoch, ReachedPlace(self.newest),
        )  # fmt: skip

    def table(self, table: str, **changes: Any) -> None:
        self.tables[table] = replace(self.tables.get(table, StreamedTable()), **changes)

    # -- what is written ------------------------------------------------------------------------

    def write(self, record: Mapping[str, Any], *, alive: set[int]) -> None:
        self._clock += 1
        self.controls.append(record)
        if record["type"] == "chunk" and record["attempt"] in alive:
            self._check_manifest(record)
        elif record["type"] == "sweep":
            self._check_sweep(record)
        elif record["type"] == "void":
            self._over.add(record["attempt"])
        elif record["type"] == "attempts":
            self._over |= {attempt for attempt in self._specs if attempt < record["attempt"]}

    def _check_manifest(self, record: Mapping[str, Any]) -> None:
        lo, hi = self.windows[record["lo"]], self.windows[record["hi"]]
        read_at = self._specs[record["attempt"]][2]
        if lo.number < self._since.get(record["run"], 0):
            self.wrong.append(f"lo {lo.number} was opened before {record['run']} was armed")
        if lo.number < self._announced:
            self.wrong.append(f"lo {lo.number} is older than announced {self._announced}")
        if 0 <= hi.closed < read_at:
            self.wrong.append("hi was closed before the read ended")
        if lo.number > hi.number:
            self.wrong.append("lo above hi")

    def _check_sweep(self, record: Mapping[str, Any]) -> None:
        """Every row of the source must be in the table with a version that the sweep leaves."""
        kept = [a for a in self.applied if a.lo >= record["position"]]
        kept = [a for a in kept if a.spec.table == record["table"] and a.spec.run == record["run"]]
        for key in self.database.keys[record["table"]]:
            if not any(covers(one.spec, key) for one in kept):
                self.wrong.append(f"the sweep of {record['run']} removes key {key}")

    def write_window(
        self, closes: OpenWindow | None, opens: OpenWindow | None, *, alive: set[int]
    ) -> None:
        self._clock += 1
        if opens is not None and not self._was_armed:
            self.wrong.append("a window was opened before any run was armed")
        for one in (closes, opens):
            if one is None:
                continue
            oldest = self.windows.get(str(one.oldest))
            number = oldest.number if oldest else len(self.windows)
            if number < self._announced:
                self.wrong.append("an announcement was taken back")
            self._announced = max(self._announced, number)
            for attempt, record in self._manifests.items():
                if attempt in alive - self._over and self.windows[record["lo"]].number < number:
                    self.wrong.append(f"window of attempt {attempt} announced as out of use")
        if closes is not None:
            self.windows[str(closes.uuid)].closed = self._clock
            self.rows.append(("close", str(closes.uuid), str(closes.oldest)))
        if opens is not None:
            uuid = str(opens.uuid)
            self.windows[uuid] = SeenWindow(len(self.windows), self.database.server)
            self.rows.append(("open", uuid, str(opens.oldest)))

    def read(self, spec: "ChunkSpec", *, rows: int) -> None:
        """A task has read a chunk and written its parts."""
        self._clock += 1
        self._specs[spec.attempt] = (spec, rows, self._clock)

    # -- a batch --------------------------------------------------------------------------------

    def plan(self) -> frozenset[str]:
        """How far the next batch reads; the runs that are armed in it."""
        self._planned = self._planned or (len(self.controls), len(self.rows))
        armed = set(self.armed)
        for record in self.controls[self._offset : self._planned[0]]:
            if record["type"] == "run-start":
                armed.add(record["run"])
            elif record["type"] == "run-end":
                armed.discard(record["run"])
        self._since = {run: self._since.get(run, len(self.windows)) for run in armed}
        self._was_armed = self._was_armed or bool(armed)
        return frozenset(armed)

    def batch(self) -> tuple[Stream, Tell]:
        """One batch, and what it tells the coordinator."""
        self.number += 1
        swept = []
        self.plan()
        control, self._end = self._planned or (0, 0)
        self._planned = None
        for record in self.controls[self._offset : control]:
            if record["type"] == "sweep" and record["run"] in self.armed:
                swept.append(record)
            self._take(record)
        self._offset = control
        self._take_rows()
        restarts, self.restarts = self.restarts, []
        self.applied = [one for one in self.applied if one.spec.table not in restarts]
        settled = self._decide()

        compared = [self._compared(*one[:2]) for one in settled if not one[-1]]
        self.findings += filter(None, compared)

        def tell(coordinator: Coordinator) -> None:
            for found in filter(None, compared):
                coordinator.scheduler.compared(found)
            for attempt, shard, rows, lo, void in settled:
                coordinator.scheduler.settled(attempt, shard, rows=rows, lo=lo, void=void)
            for table in restarts:
                coordinator.restarted(table)
            for record, void in outcomes:
                coordinator.completion.swept(record["run"], record["table"], void=void)

        outcomes = [(record, self._sweep(record)) for record in swept]
        return self.now(), tell

    def _take(self, record: Mapping[str, Any]) -> None:
        kind, attempt = record["type"], record.get("attempt", 0)
        if kind == "run-start":
            self.armed.add(record["run"])
            self.verifying[record["run"]] = record.get("verify", "")
        elif kind == "run-end":
            self.armed.discard(record["run"])
            self._drop(lambda m: m["run"] == record["run"])
        elif kind == "chunk" and record["run"] in self.armed and attempt >= self._below:
            if attempt not in self.voided:
                self._manifests[attempt] = record
        elif kind == "void":
            self.voided.add(attempt)
            self._manifests.pop(attempt, None)
        elif kind == "attempts":
            self._below = max(self._below, attempt)
            self._drop(lambda m: m["attempt"] < self._below)
        elif kind == "table-verified" and record["table"] in self.tables:
            said = msgspec.convert(dict(record), TableVerified)
            now = self.tables[said.table]
            self.tables[said.table] = replace(now, proof=now.proof.after(said))
        elif kind == "table-read":
            self._read_again(record["table"], record["until"], record.get("keys"))

    def _drop(self, over: Callable[[Mapping[str, Any]], bool]) -> None:
        gone = {n for n, manifest in self._manifests.items() if over(manifest)}
        self.voided |= gone - self.settled
        self._manifests = {n: m for n, m in self._manifests.items() if n not in gone}

    def _read_again(self, table: str, until: int, keys: list[str] | None) -> None:
        now = self.tables.get(table, StreamedTable())
        if keys is None:
            now = replace(now, complete=BY_SNAPSHOT)
        if keys is None and now.resnapshot_since <= until:
            now = replace(now, resnapshot_since=-1)
        if keys is None and now.reread_missed <= until:
            now = replace(now, reread_missed=-1)
        gone = set(now.reread or {}) if keys is None else set(keys)
        left = {k: b for k, b in (now.reread or {}).items() if k not in gone or b > until}
        self.tables[table] = replace(now, reread=left)

    def _take_rows(self) -> None:
        self._seen.append(self._end)
        upto = self._seen[max(0, len(self._seen) - 1 - self.lag)]
        fresh, self._row = self.rows[self._row : upto], max(self._row, upto)
        if not self.armed:
            for window in self.windows.values():
                window.shown_open = False
            return
        for kind, uuid, oldest in [] if self.deaf else fresh:
            window = self.windows[uuid]
            if kind == "open":
                window.shown_open = True
            window.shown_close = window.shown_close or kind == "close"
            self._forgotten = max(self._forgotten, self.windows[oldest].number)

    def _decide(self) -> list[tuple[int, int, int, str, str]]:
        found = []
        for attempt, manifest in sorted(self._manifests.items()):
            lo, hi = self.windows[manifest["lo"]], self.windows[manifest["hi"]]
            if not (lo.shown_open and hi.shown_close):
                continue
            spec, rows, _ = self._specs[attempt]
            decided = self._decided.setdefault(attempt, set())
            void = self._doubt(spec, lo, manifest)
            for shard in range(self.shards):
                if shard in decided or (attempt in self.lost and shard == 0):
                    continue
                decided.add(shard)
                found.append((attempt, shard, rows if shard == 0 else 0, lo.position, void))
            if len(decided) == self.shards:
                self.settled.add(attempt)
                self._over.add(attempt)
                del self._manifests[attempt]
                if not void:
                    self.applied.append(Applied(spec, lo.position))
        return found

    def _compared(self, attempt: int, shard: int) -> ComparedChunk | None:
        """What the merging task finds of a chunk of a verify run; all its keys are shard 0's."""
        spec = self._specs[attempt][0]
        verify = self.verifying.get(spec.run, "")
        if not verify or shard:
            return None
        place = (spec.run, spec.table, spec.chunk, attempt, shard, b"\x01", verify)
        if error := self.uncomparable.pop(spec.table, None):
            return ComparedChunk(
                *place, 0, 0, [], error.code, error.message, error.hint, error.retried
            )
        assert spec.keys is not None
        assert spec.condition is None, "a key that a filter hides would look as if it were gone"
        source, lake = self.database.rows(spec.table), self.lake[spec.table] or {}
        found = []
        for key in [int(text) for (text,) in spec.keys]:
            kind = ""
            if source.get(key) != lake.get(key):
                kind = (
                    "missing" if key not in lake else "extra" if key not in source else "differing"
                )
                found.append(UnlikeRow(f"[{key}]", kind))
            if verify == "repair" and key in source:
                lake[key] = source[key]
            elif verify == "repair":
                lake.pop(key, None)
        return ComparedChunk(*place, len(spec.keys), 0, found)

    def _doubt(self, spec: "ChunkSpec", lo: SeenWindow, manifest: Mapping[str, Any]) -> str:
        if self.voids:
            return self.voids.pop(0)
        if lo.number < self._forgotten:
            return "window-forgotten"
        if self.windows[manifest["hi"]].server != lo.server:
            return "server-restarted"
        now = self.tables.get(spec.table)
        return "" if now is None or now.streaming else "table-stopped"

    def _sweep(self, record: Mapping[str, Any]) -> str:
        if self.swept_void:
            self.swept_void -= 1
            return "table-stopped"
        self.sweeps.append(record)
        return ""

    def under_way(self) -> set[int]:
        """Attempts that shards wait for."""
        return set(self._manifests)

    def coverage(self, run: str, table: str) -> set[int]:
        """Keys, from one below to one above those of the table, that a run has read."""
        specs = [a.spec for a in self.applied if (a.spec.run, a.spec.table) == (run, table)]
        wanted = self.database.keys[table] | {-1, max(self.database.keys[table]) + 1}
        return {key for key in wanted if any(covers(spec, key) for spec in specs)}


def covers(spec: "ChunkSpec", key: int) -> bool:
    if spec.keys is not None:
        return (str(key),) in spec.keys
    low = -(10**9) if spec.span.after is None else int(spec.span.after[0])
    high = 10**9 if spec.span.upto is None else int(spec.span.upto[0])
    return low < key <= high
