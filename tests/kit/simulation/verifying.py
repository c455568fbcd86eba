"""Histories in which somebody changes the lake behind lakemark's back, and verify runs find it.

Beside the lake stands another, the *right* one: it gets what the lake gets, and nobody touches it.
Where the two are alike a finding is wrong, and where they are not, a comparison must say so. That
is asked of every comparison. At the end, when nothing more comes, what a run finds is exactly what
differs between source and lake, and a run that mends leaves them alike.

The lake must be right but for what was planted, so there are no gaps in the log, no events that
cannot be read, no rows from before the connector that it has not read, and no ALTER TABLE. Neither
does the topic get partitions: events that were sent before come again there, and rows go back to
older states until the rest has come. Nothing is asked of keys that are to be read again, either.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lakemark.model import change_batch
from lakemark.model.comparisons import ComparedChunk, Comparison
from lakemark.model.control import REPAIR, REPORT
from lakemark.sink.comparison import DIFFERING, EXTRA, MISSING
from lakemark.sink.resolve import Part
from tests.kit.log_model import COLUMNS
from tests.kit.simulation.binlog_history import (
    BinlogHistory,
    BinlogPipeline,
    BinlogWorld,
    any_binlog_world,
)
from tests.kit.simulation.history import History
from tests.kit.simulation.lake_version import LakeRow, LakeVersion
from tests.kit.simulation.oracle import Oracle, WrongError
from tests.kit.simulation.pipeline import AppliedPositions, Done, Ends, Pipeline, State
from tests.kit.simulation.plots import _deliver_windows, _hand_over, _read
from tests.kit.simulation.runs import Run
from tests.kit.simulation.world import World, draw
from tests.kit.simulation.writes import Step

RIGHT: Mapping[str, Any] = {
    "loaded": True, "gaps": False, "bad": 0.0, "alters": "", "resizes": False,
}  # fmt: skip
"""What holds in worlds whose lake is right."""
BINLOG_RIGHT: Mapping[str, Any] = {**RIGHT, "fails_over": False}
Cells = tuple[Any, ...] | None


def cells(row: LakeRow | None) -> Cells:
    """The values of a row that is there; None if it is not, or marked deleted."""
    if row is None or row["_cdc"].get("deleted"):
        return None
    return tuple(row[name] for name in COLUMNS)


@dataclass
class VerifyingPipeline(Pipeline):
    """As any, with the right lake beside.

    Attributes:
        right: a pipeline of which only the lake is used.
        found, was_right: both lakes as the newest batch found them.
    """

    right: Pipeline = field(init=False)
    found: LakeVersion = field(init=False)
    was_right: LakeVersion = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.right = Pipeline(self.connector, random.Random(0), self.shards, 0.0, self.deletes)
        self.right.files = self.files

    def run(self, ends: Ends) -> Done:
        self.found, self.was_right = (
            LakeVersion.of(self.lake), LakeVersion.of(self.right.lake),
        )  # fmt: skip
        return super().run(ends)

    def _apply(
        self, parts: list[Part], state: State, version: int, done: Done, applied: AppliedPositions
    ) -> State:
        after = super()._apply(parts, state, version, done, applied)
        right = self.right
        right.stale = self.stale
        own = replace(state, pending=right.state.pending, partial=right.state.partial)
        right.state = right._apply(parts, own, version, done, applied)
        return after


class VerifyingBinlogPipeline(VerifyingPipeline, BinlogPipeline):
    """As `VerifyingPipeline`, with the rules of MySQL and MariaDB."""


@dataclass
class VerifyingOracle(Oracle):
    """Watches comparisons besides.

    Attributes:
        findings: kinds by key, of each run.
    """

    findings: dict[str, dict[int, str]] = field(default_factory=dict)

    if TYPE_CHECKING:
        history: "Verifying"

    def batch(self, done: Done, before: int) -> None:
        super().batch(done, before)
        listed = {b"[%d]" % key for key in self.history.coordinator.listed} | done.reread
        for one, result in done.compared:
            self._is_live(one.attempt, before)
            self._compared(one, result, {int(key.strip(b"[]")) for key in listed})
        compared = {(one.attempt, one.shard) for one, _ in done.compared}
        for settled in done.settled:
            run = self.history.coordinator.attempts[settled.attempt].chunk.run
            counts = run.verify and settled.survivors and not settled.void
            if counts and (settled.attempt, settled.shard) not in compared:
                raise WrongError(f"V5: {settled.attempt}/{settled.shard} is not compared")

    def _compared(self, one: Comparison, result: ComparedChunk, in_doubt: set[int]) -> None:
        """V1: what is found was planted. V2: what was planted is found. V3: it is mended.

        Nothing is said of keys that are to be read again (`advance.chunks`).
        """
        pipeline = self.history.pipeline
        every = {int(each.key.strip("[]")): each for each in result.findings}
        found = {key: each for key, each in every.items() if key not in in_doubt}
        self.findings.setdefault(one.run, {}).update({k: f.kind for k, f in found.items()})
        for key in sorted(_keys_of(one) - in_doubt):
            row = pipeline.found.rows.get(key)
            has, right = cells(row), cells(pipeline.was_right.rows.get(key))
            is_newer = row is not None and row["_cdc"]["position"] > one.position
            if key not in found:
                if has != right and not is_newer:
                    raise WrongError(f"V2: {one.run} does not find {has}, not {right}", key)
                continue
            if is_newer:
                raise WrongError(f"V1: {one.run} finds a row from behind its position", key)
            if has == right:
                raise WrongError(f"V1: {one.run} finds what nobody planted: {found[key]}", key)
            kind, columns = difference(has, right)
            if (found[key].kind, found[key].columns) != (kind, columns):
                raise WrongError(f"V1: {found[key]} is {kind} {columns}", key)
            now = cells(pipeline.lake.table.get(key))
            if one.verify == REPAIR and now != cells(pipeline.right.lake.table.get(key)):
                raise WrongError(f"V3: {one.run} leaves {now}", key)

    def differing(self) -> dict[int, str]:
        """Kinds by key of all rows that differ now between source and lake."""
        source, lake = self.history.source.seen, self.history.pipeline.lake.table
        found = {}
        for key in source.keys() | lake.keys():
            row = source.get(key)
            should = None if row is None else tuple(row[name] for name in COLUMNS)
            if cells(lake.get(key)) != should:
                found[key], _ = difference(cells(lake.get(key)), should)
        return found


def difference(has: Cells, should: Cells) -> tuple[str, tuple[str, ...]]:
    """The kind of a difference, and its columns."""
    if has is None or should is None:
        return (MISSING if has is None else EXTRA), ()
    pairs = zip(COLUMNS, has, should, strict=True)
    return DIFFERING, tuple(name for name, one, other in pairs if one != other)


def _keys_of(one: Comparison) -> set[int]:
    rows = change_batch.decode(one.rows).select(["record", "key"]).to_pylist()
    return {int(row["key"].strip(b"[]")) for row in rows if row["record"] == change_batch.NET}


class Verifying(History):
    """A history whose lake somebody changes; the steps of verify runs and of that somebody."""

    make_pipeline = VerifyingPipeline
    make_oracle = VerifyingOracle

    if TYPE_CHECKING:
        oracle: VerifyingOracle
        pipeline: VerifyingPipeline

    def _choices(self) -> list[tuple[float, Step]]:
        verifies = any(run.verify for run in self.coordinator.runs)
        more: list[tuple[float, Step]] = [(1.5, self.plant)]
        if not verifies and len(self.coordinator.runs) < 3:
            more += [(2.0, self.verify), (9.0, self.verify_among_writes)]
        return [*super()._choices(), *more]

    def _last_act(self) -> None:
        if self.dice.random() < 0.7:
            self.verify()
        self.plant()
        super()._last_act()

    def _come_to_rest(self) -> None:
        super()._come_to_rest()
        for _ in range(self.dice.randint(0, 2)):
            self.plant()
        self._prove()

    def _prove(self) -> None:
        """V4: nothing more comes, so what is found is what differs. Then it is mended."""
        differing, run = self.oracle.differing(), self.coordinator.verify(REPORT)
        self._work_off()
        found = self.oracle.findings.get(run.name, {})
        for key in sorted(found.keys() | differing.keys()):
            if found.get(key) != differing.get(key):
                raise WrongError(f"V4: found is {found.get(key)}, not {differing.get(key)}", key)
        self.coordinator.verify(REPAIR)
        self._work_off()

    def verify(self) -> Run:
        return self.coordinator.verify(self.dice.choice([REPORT, REPORT, REPAIR]))

    def verify_among_writes(self) -> None:
        """A run whose chunks are read among writes; some of what has been written is stored late."""
        run, dice = self.verify(), self.dice
        while not run.armed:
            self.batch(everything=True)
        self.plant()
        self._write_some(dice.randint(0, 2))
        self.turn(run.chain)
        attempts = _read(self, run)
        self._write_some(dice.randint(0, 2))
        self.turn(run.chain)
        self._write_some(dice.randint(0, 1))
        _hand_over(self, attempts)
        if dice.random() < 0.5:
            self._deliver_all()
        else:
            _deliver_windows(self)
            for place in self._places():
                self.connector.deliver(place, dice.choice([0, 1, 9]))
        self.batch(everything=dice.random() < 0.7)
        self.fence()
        self.batch(everything=dice.random() < 0.7)

    # -- what is planted ------------------------------------------------------------------------

    def plant(self) -> None:
        """A row is deleted, changed or added in the lake, or one is missing and one too many."""
        lake = self.pipeline.lake
        every = range(1, self.source.shape.keys + 2)
        there = [key for key in every if cells(lake.table.get(key)) is not None]
        free = [key for key in every if key not in there]
        does: list[Callable[[], None]] = []
        if there:
            gone = self.dice.choice(there)
            does += [lambda: self._delete(gone), lambda: self._change(self.dice.choice(there))]
        if there and free:
            new, like = self.dice.choice(free), self.dice.choice(there)
            does.append(lambda: self._add(new, like=like))
            does.append(lambda: self._exchange(gone, new))
        if does:
            self.dice.choice(does)()

    def _delete(self, key: int) -> None:
        row = self.pipeline.lake.table[key]
        if self.world.soft and self.dice.random() < 0.5:
            self.pipeline.lake.table[key] = {**row, "_cdc": {**row["_cdc"], "deleted": True}}
        else:
            del self.pipeline.lake.table[key]
        self.note("plant", f"{key} deleted")

    def _change(self, key: int) -> None:
        row = self.pipeline.lake.table[key]
        name, value = self.dice.choice(
            [("a", 77), ("a", None), ("b", f"{row['b']} "), ("b", None), ("c", b"planted")]
        )
        self.pipeline.lake.table[key] = {**row, name: value}
        self.note("plant", f"{key} changed: {name}={value!r}")

    def _add(self, key: int, *, like: int) -> None:
        """A copy of another row, also of where that was in the log."""
        row = self.pipeline.lake.table[like]
        self.pipeline.lake.table[key] = {**row, "id": key}
        self.note("plant", f"{key} added like {like}")

    def _exchange(self, gone: int, new: int) -> None:
        self._add(new, like=gone)
        self._delete(gone)


class VerifyingBinlog(Verifying, BinlogHistory):
    """As `Verifying`, with the rules of MySQL and MariaDB."""

    make_pipeline = VerifyingBinlogPipeline


def verifying_failure(seed: int, world: World | None = None) -> str | None:
    """What is wrong with a history; None = nothing."""
    return _failure(Verifying(seed, world or replace(draw(seed), **RIGHT)))


def verifying_binlog_failure(seed: int, world: BinlogWorld | None = None) -> str | None:
    """As `verifying_failure`, with the rules of MySQL and MariaDB."""
    drawn = world or replace(any_binlog_world(random.Random(seed)), **BINLOG_RIGHT)
    return _failure(VerifyingBinlog(seed, drawn))


def _failure(history: History) -> str | None:
    try:
        history.run()
    except WrongError as error:
        return str(error)
    return None
