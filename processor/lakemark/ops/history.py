"""The batches of the last hour, in a bounded ring of ten-second stretches; event rates; pure."""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from lakemark.ops.status import BatchDone, History, Lag, SlowestStep, Stretch

STRETCH_S: Final = 10
STRETCHES: Final = 3600 // STRETCH_S
PACE_S: Final = 60.0
_NEWEST: Final = 20  # batches shown one by one; the slowest step is one of these


class BatchHistory:
    """The history of the batches; not thread-safe: the board holds the lock."""

    def __init__(self) -> None:
        self._stretches: deque[Stretch] = deque(maxlen=STRETCHES)
        self._newest: deque[BatchDone] = deque(maxlen=_NEWEST)
        self.count = self.events = self.rows = 0
        self.seconds: Counter[str] = Counter()

    def add(self, done: BatchDone) -> None:
        """Add a batch that has ended."""
        self._newest.appendleft(done)
        self.count += 1
        self.events += done.events
        self.rows += done.rows
        self.seconds.update(done.seconds)
        now = self._at(done.ended_ms)
        self._stretches[-1] = msgspec.structs.replace(
            now,
            batches=now.batches + 1,
            events=now.events + done.events,
            rows=now.rows + done.rows,
            longest_s=max(now.longest_s, round(done.duration(), 3)),
        )

    def lagging(self, lag: Lag, at_ms: int) -> None:
        """Note the pipeline's lag at a time; each stretch has the highest."""
        now = self._at(at_ms)
        self._stretches[-1] = msgspec.structs.replace(
            now,
            lag_s=_higher(now.lag_s, lag.seconds),
            lag_records=_higher(now.lag_records, lag.records),
        )

    def recall(self, stretches: Iterable[Stretch], now_ms: int) -> None:
        """Add stored stretches, of this process or another; one that this process has made wins."""
        own = {stretch.at_ms: stretch for stretch in self._stretches}
        found = {stretch.at_ms: stretch for stretch in stretches if stretch.at_ms <= now_ms} | own
        self._stretches.clear()
        self._stretches.extend(found[at] for at in sorted(found))

    def _at(self, ms: int) -> Stretch:
        """Return the stretch of a time; a time before the newest stretch belongs to the newest."""
        begin = ms - ms % (STRETCH_S * 1000)
        if not self._stretches or self._stretches[-1].at_ms < begin:
            self._stretches.append(Stretch(begin))
        return self._stretches[-1]

    def history(self, now_ms: int) -> History:
        """Return the last hour."""
        oldest = now_ms - 3_600_000
        return History(STRETCH_S, tuple(s for s in self._stretches if s.at_ms >= oldest))

    def newest(self) -> tuple[BatchDone, ...]:
        """Return the newest batches, newest first."""
        return tuple(self._newest)

    def slowest(self) -> SlowestStep | None:
        """Return the step that took most of the newest batches' time; None before the first."""
        spent: Counter[str] = Counter()
        for done in self._newest:
            spent.update(done.seconds)
        whole = sum(spent.values())
        if whole <= 0:
            return None
        ((step, seconds),) = spent.most_common(1)
        return SlowestStep(step, round(seconds, 3), round(seconds / whole, 3), len(self._newest))


_Number = TypeVar("_Number", int, float)


def _higher(one: _Number | None, other: _Number | None) -> _Number | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)


class EventRate:
    """Events a second of one table over the last `PACE_S`, or since it is known."""

    def __init__(self, at: float, events: int) -> None:
        self._seen = deque([(at, events)])  # the first one is the newest before the last minute

    def add(self, at: float, events: int) -> None:
        """Note how many events were applied in all by a time (seconds)."""
        if events != self._seen[-1][1]:
            self._seen.append((at, events))
        self._forget(at)

    def now(self, at: float) -> float:
        """Return the rate at a time (seconds), in events a second."""
        self._forget(at)
        begin, before = self._seen[0]
        return (self._seen[-1][1] - before) / max(1.0, min(PACE_S, at - begin))

    def _forget(self, at: float) -> None:
        while len(self._seen) > 1 and self._seen[1][0] <= at - PACE_S:
            self._seen.popleft()
