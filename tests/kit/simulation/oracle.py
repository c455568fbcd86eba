"""What must hold, after every batch and at the end (section 8.2 of the reconciliation's proofs)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from lakemark.connectors.mysql import positions as binlog
from lakemark.connectors.postgres import positions as lsns
from lakemark.model import change_batch
from lakemark.model.control import REPAIR
from lakemark.reconcile import window
from lakemark.reconcile.chunks import Settled
from tests.kit.simulation.connector import Event
from tests.kit.simulation.pipeline import Done
from tests.kit.simulation.source import cells_of, describe

if TYPE_CHECKING:
    from tests.kit.simulation.history import History


class WrongError(AssertionError):
    """An invariant does not hold; `key` is the key concerned, None = none in particular."""

    def __init__(self, what: str, key: int | None = None) -> None:
        super().__init__(what if key is None else f"{what}: key {key}")
        self.key = key


@dataclass
class Oracle:
    """Watches one history."""

    history: "History"
    newest: dict[int, bytes] = field(default_factory=dict)  # per key, of events taken so far
    truncated: bytes = b""
    shown: dict[int, tuple[int, int]] = field(default_factory=dict)  # per key, what was emitted
    emitted: dict[int, tuple[int, int]] = field(default_factory=dict)  # per key, newest event
    applied: set[int] = field(default_factory=set)  # events of committed batches
    upto: int = 0  # all events before this one are of committed batches, or lost

    # -- after every batch ------------------------------------------------------------------------

    def batch(self, done: Done, before: int) -> None:
        """A batch is committed. `before`: control offset at which it began."""
        stream = self.history.connector.stream
        for index in done.taken:
            event = stream[index]
            if not event.is_change:
                if event.change["op"] == "t":
                    self.truncated = max(self.truncated, event.position)
                continue
            key = event.change["key"]
            if event.change.get("bad") != "key":
                self.newest[key] = max(self.newest.get(key, b""), event.position)
        survivors = [
            (int(found.key.strip("[]")), one.attempt)
            for one, result in done.compared
            if one.verify == REPAIR
            for found in result.findings
        ]
        for _, output in done.outputs:
            if output.kind == window.SURVIVORS and output.source.startswith("chunk/"):
                attempt = int(output.source.removeprefix("chunk/"))
                self._is_live(attempt, before)
                survivors += self._survivors(attempt, output.blob)
            elif output.kind == window.SETTLED:
                self._settled(msgspec.json.decode(output.blob, type=Settled), before)
        if self.history.coordinator.order and done.applied:
            self._emit(survivors, (stream[index] for index in done.kept))
        elif self.history.coordinator.order:
            self._emit([], (stream[index] for index in done.caught_up))
        self.applied.update(done.taken)
        oldest = self.history.connector.oldest  # of what was lost with a slot none will come
        while self.upto < len(stream) and (self.upto in self.applied or self.upto < oldest):
            self.upto += 1

    def _is_live(self, attempt: int, before: int) -> None:
        """I9: an attempt that was over before the batch began says nothing."""
        coordinator = self.history.coordinator
        ended = coordinator.closed.get(attempt, 1 << 60)
        ends = [at for below, at in coordinator.below if attempt < below]
        if min([ended, *ends]) < before:
            raise WrongError(f"I9: attempt {attempt} was over")

    def _survivors(self, attempt: int, blob: bytes) -> list[tuple[int, int]]:
        """I5: no event that has been seen is newer than a row that survives."""
        packet = change_batch.decode(blob)
        found = []
        for row in packet.select(["record", "key", "position"]).to_pylist():
            if row["record"] != change_batch.NET:
                continue
            key = int(row["key"].strip(b"[]"))
            at = row["position"]
            if not self.history.are_comparable(self.newest.get(key, b""), at):
                continue
            if self.newest.get(key, b"") > at:
                raise WrongError("I5: an event that was seen is newer than the row", key)
            if self.truncated > at:
                raise WrongError("I5: a truncate that was seen is newer than the row", key)
            found.append((key, attempt))
        return found

    def _settled(self, settled: Settled, before: int) -> None:
        attempt = self.history.coordinator.attempts[settled.attempt]
        if attempt.manifest is False:
            raise WrongError(f"attempt {settled.attempt} is decided before its manifest")
        if settled.void:
            return
        self._is_live(settled.attempt, before)
        if self.history.coordinator.order:
            stream, high = self.history.connector.stream, bytes.fromhex(settled.hi)
            behind = [e for e in stream[self.upto :] if e.position <= high and e.commit >= 0]
            if behind:
                raise WrongError("I6: an event before the chunk's close row is still to come")

    def _emit(self, survivors: list[tuple[int, int]], events: Iterable[Event]) -> None:
        """I4: per key, the output never goes back to an older state."""
        for key, number in survivors:
            seen_at = self.history.coordinator.attempts[number].seen_at
            self._show(key, (seen_at.get(key, -1), 1 << 30))
        for event in events:
            place = (event.commit, event.number)
            if not event.is_change or event.change.get("bad") is not None:
                continue
            key = event.change["key"]
            if place > self.emitted.get(key, (-1, -1)):
                self.emitted[key] = place
                self._show(key, place)
            elif place < self.emitted[key] and not self._may_repeat():
                raise WrongError("I4: the output repeats an older state", key)

    def _show(self, key: int, state: tuple[int, int]) -> None:
        if state < self.shown.get(key, (-1, -1)) and not self._may_repeat():
            raise WrongError("I4: the output goes back to an older state", key)
        self.shown[key] = state

    def _may_repeat(self) -> bool:
        """What is sent again to other partitions, or after a gap, is not known to be a replay."""
        connector = self.history.connector
        return connector.repeats or bool(connector.snapshots)

    # -- at the end -------------------------------------------------------------------------------

    def end(self) -> None:
        """I1, I2, I3, I10: the lake is the source. I12: nothing is remembered."""
        source, rows = self.history.source, self.history.pipeline.lake.rows()
        for key in sorted(rows.keys() | source.seen.keys()):
            is_, should = rows.get(key), source.seen.get(key)
            if should is None:
                raise WrongError("I2: the source has no such row", key)
            if is_ is None:
                raise WrongError("I3: the row is lost", key)
            absent = is_["_cdc"]["unavailable"] or ()
            for name, value in should.items():
                if name in absent:
                    raise WrongError(f"I10: {name} is unavailable", key)
                if is_[name] != value:
                    raise WrongError(f"I1: {name} is {is_[name]!r}, not {value!r}", key)
        for number, blob in enumerate(self.history.pipeline.state.shards):
            state = window.decode_state(blob)
            if state.runs or state.segments or state.windows or state.attempts:
                raise WrongError(f"I12: shard {number} still remembers")

    # -- for people -------------------------------------------------------------------------------

    def trace(self, key: int | None) -> str:
        """What happened, to one key or at all, in order."""
        lines = []
        for at, (what, *rest) in enumerate(self.history.journal):
            text = self._line(what, rest, key)
            if text:
                lines.append(f"{at:4} {what:9} {text}")
        lines += ["log:"]
        for index, committed in enumerate(self.history.source.history):
            found = [
                f"{lsn}: {describe(change)}"
                for lsn, change in committed.changes
                if key is None or change.get("key") in {key, None} or key in _others(change)
            ]
            if found:
                lines.append(
                    f"  #{index} x={committed.xid} @{committed.commit}  {'; '.join(found)}"
                )
        if key is not None:
            row = self.history.pipeline.lake.table.get(key)
            lines.append(f"lake:   {_lake_row(row)}")
            seen = self.history.source.seen.get(key)
            lines.append(f"source: {'-' if seen is None else cells_of(seen)}")
        return "\n".join(lines)

    def _line(self, what: str, rest: list[Any], key: int | None) -> str:
        if what == "read":
            (attempt,) = rest
            row = attempt.rows.get(key) if key is not None else None
            shown = "" if key is None else f" {'-' if row is None else cells_of(row)}"
            if key is not None and key not in attempt.chunk.keys:
                return ""
            s = attempt.snapshot
            return (
                f"attempt {attempt.number} of {attempt.chunk.run.name}/{attempt.chunk.number}"
                f" {s} lo={attempt.lo and attempt.lo.uuid}"
                f" hi={attempt.hi and attempt.hi.uuid}{shown}"
            )
        if what == "batch":
            done, stream = rest[0], self.history.connector.stream
            kept = set(done.kept)
            found = [
                f"{'' if index in kept or 'signal' in stream[index].change else 'replay of '}"
                f"{describe(stream[index].change)} @{_short(stream[index].position)}"
                for index in done.taken
                if key is None
                or stream[index].change.get("key") in {key, None}
                or key in _others(stream[index].change)
            ]
            said = [
                f"{output.kind} {output.source}{_settled(output)}" for _, output in done.outputs
            ]
            row = "" if key is None else f" → {rest[1].get(key, '-')}"
            return f"{done.state.batch}: {'; '.join(found)} | {'; '.join(said)}{row}"
        return str(rest[0]) if rest else "-"


def _settled(output: window.Output) -> str:
    if output.kind == window.SETTLED:
        settled = msgspec.json.decode(output.blob, type=Settled)
        return f" {settled.attempt}/{settled.shard} {settled.void or settled.survivors}"
    if output.kind == window.SURVIVORS:
        rows = change_batch.decode(output.blob).select(["record", "key", "position"]).to_pylist()
        return " " + " ".join(
            f"{'fill ' if r['record'] == change_batch.FILL else ''}{(r['key'] or b'').decode()}"
            f"@{_short(r['position'])}"
            for r in rows
        )
    return ""


def _others(change: dict[str, Any]) -> set[int]:
    return {change[name] for name in ("new_key", "old_key") if change.get(name) is not None}


def _short(position: bytes) -> str:
    epoch, *parts = (binlog if position[0] else lsns).unpack(position)
    return f"{epoch & 0xFFFFFF}:{'.'.join(map(str, parts))}"


def _lake_row(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    cdc = row["_cdc"]
    return f"{cells_of(row)} @{_short(cdc['position'])} {cdc['op']} {cdc['unavailable'] or ''}"
