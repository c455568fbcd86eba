"""The coordinator of a simulated history: every order of steps that its contract allows.

The contract: a batch has begun with a run's start, or is committed, before the run's first open row
is written; a chunk's `lo` is an acknowledged open row, not older than announced, that the
xmin rule allows; its `hi` is the close row of the next tick that begins; a manifest is written when
all parts are; attempts are numbered and never reused; a chunk counts when every shard has settled
its attempt and the table was there; a complete run ends with a sweep below its first `lo`; listed
keys are read again by runs of their own that are armed after they were listed.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from lakemark.connectors.database import Watermark, visible
from lakemark.connectors.postgres.visibility import Snapshot, bound_of
from lakemark.model import change_batch
from lakemark.source.changed_keys import shard_of
from tests.kit.log_model import TABLE, Row
from tests.kit.simulation.pipeline import Done, Pipeline
from tests.kit.simulation.runs import Attempt, Chain, Chunk, Run, Tick, Window, packet_of
from tests.kit.simulation.source import Source

ALL_KEYS = 64  # higher than any: the last chunk has no upper bound


@dataclass
class Coordinator:
    """What decides about runs; it hears of batches when they are planned and when committed."""

    source: Source
    pipeline: Pipeline
    dice: random.Random
    order: bool = False
    files: ClassVar[bool] = True  # rows of every other attempt are in data files
    shared: bool = True
    runs: list[Run] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    announced: Window | None = None
    clock: int = 0
    attempts: list[Attempt] = field(default_factory=list)  # all, by number
    live: list[Attempt] = field(default_factory=list)
    zombies: list[Attempt] = field(default_factory=list)
    closed: dict[int, int] = field(default_factory=dict)  # attempt → offset of what ended it
    below: list[tuple[int, int]] = field(default_factory=list)
    listed: dict[int, int] = field(default_factory=dict)  # key → batch that last listed it
    ghosts_since: int = -1  # batch since which a complete run is needed; -1 = none is
    unread_since: int = -1  # batch since which any row may miss an event; -1 = none does
    count: int = 0
    planned: int = 0  # end of the control records of the batch that has begun
    chain: Chain = field(default_factory=lambda: Chain("windows"))
    note: Callable[..., None] = lambda *_: None

    # -- runs -----------------------------------------------------------------------------------

    def say(self, **record: Any) -> int:
        """Writes a control record; its offset."""
        self.pipeline.control.append(record)
        self.note("control", record)
        return len(self.pipeline.control) - 1

    def start(self, keys: Iterable[int] | None = None, *, whole: bool = False) -> Run:
        """A run over the whole table, over a list of keys, or over some ranges (keys None)."""
        self.count += 1
        name = f"run{self.count}"
        chain = self.chain if self.shared else Chain(name)
        run = Run(name, chain, whole, [], 0, self.pipeline.state.batch, 0)
        number = self.source.shape.keys + 4
        every = range(-1, ALL_KEYS)
        if keys is not None:
            groups = [frozenset(keys)]
        else:
            edges = sorted(self.dice.sample(range(1, number), self.dice.choice([0, 1, 1, 2])))
            groups = [
                frozenset(k for k in every if low <= k < high)
                for low, high in zip([-1, *edges], [*edges, ALL_KEYS], strict=True)
            ]
            if not whole and len(groups) > 1:
                groups = groups[1:]
        run.chunks = [
            Chunk(run, at, group, explicit=keys is not None) for at, group in enumerate(groups)
        ]
        run.started_at = self.say(
            type="run-start", run=name, tables=[TABLE], mode="order" if self.order else "table",
            windows=chain.name, attempt=len(self.attempts),
        )  # fmt: skip
        self.runs.append(run)
        return run

    def verify(self, how: str) -> Run:
        """A run that compares all keys, also one that no row ever had, in one chunk or in two."""
        self.count += 1
        name = f"run{self.count}"
        chain = self.chain if self.shared else Chain(name)
        run = Run(name, chain, False, [], 0, self.pipeline.state.batch, 0, verify=how)
        keys = list(range(1, self.source.shape.keys + 2))
        cut = self.dice.choice([0, len(keys) // 2])
        groups = [group for group in (keys[:cut], keys[cut:]) if group]
        run.chunks = [
            Chunk(run, at, frozenset(group), explicit=True) for at, group in enumerate(groups)
        ]
        run.started_at = self.say(
            type="run-start", run=name, tables=[TABLE], mode="order" if self.order else "table",
            windows=chain.name, attempt=len(self.attempts), verify=how,
        )  # fmt: skip
        self.runs.append(run)
        return run

    def waits(self) -> bool:
        """Whether chunks wait for a fence."""
        return self.order or any(run.verify for run in self.runs)

    def may_open(self, run: Run) -> bool:
        """Whether a batch has begun with the run's start, or is committed."""
        return max(self.pipeline.state.control, self.planned) > run.started_at

    def arm(self) -> None:
        for run in self.runs:
            if not run.armed and self.may_open(run):
                run.armed = True
                run.since = len(self.windows)

    def chains(self) -> list[Chain]:
        found = {id(run.chain): run.chain for run in self.runs if run.armed}
        return list(found.values())

    # -- windows --------------------------------------------------------------------------------

    def begin_tick(self, chain: Chain) -> None:
        begun = self._tick()
        window = Window(f"w{len(self.windows)}", len(self.windows), chain.name, begun)
        window.wal = self.source.end_of_log()
        self.windows.append(window)
        tick = Tick(self.source.begin(), chain.current, window)
        tick.transaction.durable = True
        oldest = self._oldest()
        server = self.source.server
        data = msgspec.json.encode(
            {"run": chain.name, "oldest": oldest, "server": str(server),
             "bound": self.bound(window).hex()}
        ).decode()  # fmt: skip
        for kind, one in (("close", tick.closes), ("open", window)):
            if one is not None:
                row = (f"{one.uuid}-{kind}", f"snapshot-window-{kind}", data)
                tick.transaction.add("c", signal=row)
        chain.tick = tick

    def _oldest(self) -> str:
        """A window that none in use, now or later, may precede."""
        used = [w for a in self.live for w in (a.lo, a.hi)] + [c.current for c in self.chains()]
        used += [c.tick.opens for c in self.chains() if c.tick is not None]
        if self.announced is None or self.dice.random() < 0.4:
            found = [
                w
                for w in self.windows
                if w.watermark
                and w.is_at_or_after(self.announced)
                and all(u.is_at_or_after(w) for u in used if u is not None)
            ]
            if found:
                self.announced = self.dice.choice(found)
        if self.announced is None:
            return "none"
        return self.announced.uuid

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def commit_tick(self, chain: Chain) -> None:
        if chain.tick is not None and chain.tick.transaction in self.source.open:
            self.source.commit(chain.tick.transaction)

    def can_acknowledge(self, chain: Chain) -> bool:
        tick = chain.tick
        return (
            tick is not None
            and tick.transaction.index >= 0
            and tick.transaction not in self.source.hidden
        )

    def acknowledge(self, chain: Chain) -> None:
        """The commit has returned: the proof of the open row is taken."""
        if chain.tick is not None:
            window = chain.tick.opens
            window.acknowledged = self._tick()
            window.watermark = Watermark(window.uuid, self.proof(), self.bound(window))
            chain.current, chain.tick = window, None

    def bound(self, window: Window) -> bytes:
        """A position that was known before the open row was committed."""
        return bound_of(window.wal)

    def proof(self) -> Snapshot:
        """S0: every transaction that had an id when the open row's commit returned is below it."""
        self.source.end_of_a_transaction()
        return self.source.snapshot()

    # -- chunks ---------------------------------------------------------------------------------

    def unread(self) -> list[Chunk]:
        return [
            chunk
            for run in self.runs
            if run.armed and not run.ending
            for chunk in run.chunks
            if not chunk.done and chunk.attempt is None
        ]

    def read(self, chunk: Chunk) -> Attempt:
        """The SELECT."""
        source = self.source
        rows = {key: row for key, row in source.seen.items() if key in chunk.keys}
        absent = sorted(chunk.keys - rows.keys()) if chunk.explicit else []
        attempt = Attempt(
            len(self.attempts), chunk, source.snapshot(), rows, absent, dict(source.seen_at)
        )
        self.attempts.append(attempt)
        self.live.append(attempt)
        chunk.attempt = attempt
        self.note("read", attempt)
        return attempt

    def finish(self, attempt: Attempt) -> None:
        """The SELECT has ended: its bounds, and its parts."""
        run = attempt.chunk.run
        usable = [
            w.watermark
            for w in self.windows
            if w.watermark
            and w.chain == run.chain.name
            and w.number >= run.since
            and w.is_at_or_after(self.announced)
        ]
        found = self.choose(attempt.snapshot, usable)
        if found is None:
            self.give_back(attempt)
            return
        attempt.lo = next(w for w in self.windows if w.watermark is found)
        tick = run.chain.tick
        attempt.hi = tick.opens if tick is not None else run.chain.current
        self._pack(attempt)

    def choose(self, snapshot: Snapshot, usable: list[Watermark]) -> Watermark | None:
        return visible(snapshot, usable)

    def _pack(self, attempt: Attempt) -> None:
        shards = self.pipeline.shards
        by_shard: dict[int, list[tuple[int, Row | None]]] = {}
        for key in [*attempt.rows, *attempt.absent]:
            shard = shard_of(TABLE, b"[%d]" % key, shards)
            by_shard.setdefault(shard, []).append((key, attempt.rows.get(key)))
        if not by_shard:
            by_shard[0] = []
        for shard, rows in by_shard.items():
            cut = self.dice.randint(0, len(rows)) if self.dice.random() < 0.3 else 0
            pieces = [rows[:cut], rows[cut:]] if 0 < cut < len(rows) else [rows]
            attempt.counts[str(shard)] = len(pieces)
            for part, piece in enumerate(pieces):
                chunk = attempt.chunk
                packet = packet_of(piece)
                if self.files and attempt.number % 2 and not chunk.explicit:
                    packet = self.pipeline.filed(
                        packet, str(attempt.number), self.place_of(attempt)
                    )
                header = {
                    "run": chunk.run.name, "table": TABLE, "chunk": chunk.number,
                    "attempt": attempt.number, "shard": shard, "part": part,
                }  # fmt: skip
                attempt.parts.append((msgspec.json.encode(header), change_batch.encode(packet)))
        self.dice.shuffle(attempt.parts)

    def place_of(self, attempt: Attempt) -> bytes:
        """The position of a chunk's rows, as a data file has it."""
        lo = attempt.lo.watermark if attempt.lo is not None else None
        return lo.position(0) if lo is not None else b""

    def write_part(self, attempt: Attempt) -> None:
        self.dice.choice(self.pipeline.chunks).append(attempt.parts.pop())

    def can_finish(self, attempt: Attempt) -> bool:
        return attempt.lo is not None and not attempt.manifest and self.complete(attempt)

    def complete(self, attempt: Attempt) -> bool:
        return not attempt.parts

    def write_manifest(self, attempt: Attempt) -> None:
        chunk, lo, hi = attempt.chunk, attempt.lo, attempt.hi
        if lo is None or hi is None:
            return
        self.say(
            type="chunk", run=chunk.run.name, table=TABLE, chunk=chunk.number,
            attempt=attempt.number, parts=attempt.counts, lo=lo.uuid, hi=hi.uuid,
            server=attempt.snapshot.life, **self.place_told(attempt),
        )  # fmt: skip
        attempt.manifest = True

    def place_told(self, attempt: Attempt) -> dict[str, str]:
        """What the manifest says of the read's own place in the log; PostgreSQL has none."""
        return {}

    def give_back(self, attempt: Attempt, *, void: bool = False) -> None:
        """The attempt is over; what it has not written yet may still come."""
        if attempt in self.live:
            self.live.remove(attempt)
            if attempt.parts and self.dice.random() < 0.7:
                self.zombies.append(attempt)
        if attempt.chunk.attempt is attempt:
            attempt.chunk.attempt = None
        if void:
            self.closed[attempt.number] = self.say(
                type="void", run=attempt.chunk.run.name, table=TABLE, chunk=attempt.chunk.number,
                attempt=attempt.number, reason="timeout",
            )  # fmt: skip

    def restart(self) -> None:
        """The coordinator's process died: nothing that was in flight counts."""
        number = len(self.attempts)
        self.below.append((number, self.say(type="attempts", attempt=number)))
        for attempt in list(self.live):
            self.give_back(attempt)
        self.planned = 0
        for run in self.runs:
            run.armed = self.may_open(run)
            run.since = len(self.windows)
            run.chain.current = run.chain.tick = None
        self.chain.current = self.chain.tick = None

    def server_died(self) -> None:
        """Ticks and SELECTs under way have failed; so has what waits for a lost tick."""
        lost = set()
        for chain in [self.chain, *(run.chain for run in self.runs)]:
            if chain.tick is not None:
                lost.add(chain.tick.opens.uuid)
                chain.tick = None
        for attempt in list(self.live):
            if attempt.lo is None:
                self.give_back(attempt)
            elif attempt.hi is not None and attempt.hi.uuid in lost:
                self.give_back(attempt, void=True)

    # -- what batches say -----------------------------------------------------------------------

    def begin(self, control: int) -> None:
        """A batch has begun: it reads the control records below this one."""
        self.planned = control
        self.arm()

    def hear(self, done: Done) -> None:
        """A batch is committed."""
        batch = done.state.batch
        for key in done.reread:
            self.listed[int(key.strip(b"[]"))] = batch
        if done.restarts:
            self._start_again()
        for settled in done.settled:
            attempt = self.attempts[settled.attempt]
            if attempt not in self.live:
                continue
            if settled.void:
                self.note("void", settled)
                self.give_back(attempt, void=True)
                continue
            attempt.settled.add(settled.shard)
            if len(attempt.settled) == self.pipeline.shards:
                attempt.chunk.done, attempt.chunk.lo = True, bytes.fromhex(settled.lo)
                self.live.remove(attempt)
        for run in self.runs:
            if run.sweeping >= 0 and not run.swept and done.state.control > run.sweeping:
                if done.swept:
                    run.swept = True
                else:
                    run.sweeping = -1
        self.arm()

    def stale(self) -> frozenset[bytes] | None:
        """Keys whose rows miss an event; None = any may."""
        return None if self.unread_since >= 0 else frozenset(b"[%d]" % key for key in self.listed)

    def _start_again(self) -> None:
        """The connector reads the table anew: so do we."""
        for run in self.runs:
            for chunk in run.chunks:
                if chunk.attempt is not None and not chunk.done:
                    self.give_back(chunk.attempt, void=True)
                chunk.done, chunk.attempt = False, None
            run.since = len(self.windows)
            run.sweeping, run.swept = -1, False

    def finishing(self) -> list[Run]:
        """Runs all of whose chunks are done."""
        return [r for r in self.runs if not r.ending and all(chunk.done for chunk in r.chunks)]

    def finish_run(self, run: Run) -> None:
        """Sweeps, or ends."""
        if run.whole and not run.swept:
            waits = any(batch > run.until for batch in self.listed.values())
            if run.sweeping < 0 and not waits:
                first = min(chunk.lo for chunk in run.chunks)
                run.sweeping = self.say(
                    type="sweep", run=run.name, table=TABLE, position=first.hex()
                )
            return
        keys = None if run.whole else {k for chunk in run.chunks for k in chunk.keys}
        for key in list(self.listed):
            if self.listed[key] <= run.until and (keys is None or key in keys) and not run.verify:
                del self.listed[key]
        if run.whole and self.ghosts_since <= run.until:
            self.ghosts_since = -1
        if run.whole and self.unread_since <= run.until:
            self.unread_since = -1
        run.ending = True
        self.runs.remove(run)
        self.say(type="run-end", run=run.name)

    def wind_up(self) -> None:
        """Runs that nobody needs read no more chunks: later ones would hide what is wrong now."""
        for run in self.runs:
            if not run.whole or self.ghosts_since < 0:
                run.whole, run.sweeping = False, -1
                run.chunks = [c for c in run.chunks if c.done or c.attempt is not None]

    def stop(self, run: Run) -> None:
        """A run that is stopped: its chunks are not read any more."""
        for chunk in run.chunks:
            if chunk.attempt is not None and not chunk.done:
                self.give_back(chunk.attempt, void=True)
        run.ending = True
        self.runs.remove(run)
        self.say(type="run-end", run=run.name)
