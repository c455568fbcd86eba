"""The coordinator's windows: which may still be used, and which is the oldest in use.

Pure. A window is opened and the one before it closed by one transaction on the connector's signal
table, once per tick. A chunk takes as its `lo` the newest open row that is provably visible to it,
and as its `hi` the close row of the window that is open when it has been read: the first close row
written after its SELECT.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lakemark.connectors.database import Proof, Watermark, visible


@dataclass(slots=True)
class Windows:
    """Windows of one coordinator, oldest first.

    Attributes:
        usable: acknowledged open rows that a chunk may still take as its `lo`.
        floor: the oldest window that a read which begins now may take; empty before the first tick.
        current: the window that is known to be open; empty if none is.
        closing: the window whose close row is on its way, and may be written by now.
        ready: whether a read that begins now would find a window, as far as the newest tick tells.
        begun: ticks that were begun; a window has the number of its tick.
        batch: the newest batch that was done when the tick of `floor` began: all that it holds is
            older than whatever window a read may take.
    """

    usable: list[Watermark] = field(default_factory=list)
    floor: str = ""
    current: str = ""
    closing: str = ""
    ready: bool = False
    begun: int = 0
    batch: int = -1
    _done: int = -1
    _batches: dict[str, int] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    @property
    def readable(self) -> bool:
        """Say whether reads may begin: the newest tick was acknowledged, or is on its way."""
        return bool(self.floor and (self.current or self.closing))

    def has_opened(self, since: int) -> bool:
        """Say whether a window was opened by a tick after the first `since` ticks."""
        return bool(self.usable) and self._numbers[self.usable[-1].window] > since

    def leads_to(self, since: int) -> bool:
        """Say whether a read begun now takes only windows of ticks after the first `since`."""
        return self._numbers.get(self.floor, 0) > since

    def lo(self, proof: Proof) -> str | None:
        """Return the window of the newest open row that a read provably saw, if any."""
        found = visible(proof, self.usable)
        return found.window if found else None

    def since(self, floor: str) -> tuple[Watermark, ...]:
        """Return the windows that a read may take as its `lo`: `floor` and all after it."""
        names = [one.window for one in self.usable]
        return tuple(self.usable[names.index(floor) :]) if floor in names else ()

    def has(self, window: str) -> bool:
        """Say whether a chunk may still take a window as its `lo`."""
        return any(one.window == window for one in self.usable)

    def oldest(self, in_use: Iterable[str]) -> str:
        """Return the oldest window that any chunk may still use; empty before the first.

        Args:
            in_use: windows that chunks which are not settled took, or may take.
        """
        wanted = {self.floor, *in_use}
        return next((w.window for w in self.usable if w.window in wanted), "")

    def leave(self, batch: int, *, last: bool = False) -> None:
        """Note that a tick is on its way: reads until then end with the window that it opens.

        A tick that opens none (`last`) has no reads: they would have no window to end with.

        Args:
            batch: the newest that is done.
            last: see above.
        """
        self.begun += 1
        self._done = batch
        self.closing, self.current = self.current, ""
        if last:
            self.floor = ""

    def open(self, watermark: Watermark, in_use: Iterable[str]) -> None:
        """Make the window of an acknowledged tick the current one.

        A read from now on sees at least what this tick's own snapshot sees, so it needs no open row
        older than the newest that this one sees. A read under way may need older ones.
        """
        self.usable.append(watermark)
        self._numbers[watermark.window], self._batches[watermark.window] = self.begun, self._done
        self.current, self.closing = watermark.window, ""
        base = visible(watermark.after, self.usable)
        self.ready = base is not None
        same = [w for w in self.usable if w.after.life == watermark.after.life]
        self.floor = base.window if base is not None else same[0].window
        oldest = self.oldest(in_use)
        begin = next(at for at, w in enumerate(self.usable) if w.window == oldest)
        self.usable = self.usable[begin:]
        self._numbers = {w.window: self._numbers[w.window] for w in self.usable}
        self._batches = {w.window: self._batches[w.window] for w in self.usable}
        self.batch = self._batches[self.floor]

    def lost(self) -> str:
        """Note that the newest tick was not acknowledged: its rows may be in the log or not.

        If that tick was the last one, the next begins anew: it would announce its own window as the
        oldest, and none before may be used.

        Returns:
            the window whose close row may never come.
        """
        window, self.closing = self.closing, ""
        if not self.floor:
            self.close()
        return window

    def close(self) -> None:
        """Forget the last window, which is closed; the next tick begins anew."""
        self.usable, self.floor, self.ready = [], "", False
        self.current = self.closing = ""
