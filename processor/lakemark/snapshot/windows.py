"""The coordinator's windows: which may still be used, and which is the oldest in use.

Pure. A window is opened and the one before it closed by one transaction on the connector's signal
table, once per tick. A chunk takes as its `lo` the newest open row that is provably visible to it,
and as its `hi` the close row of the window that is open when it has been read: the first close row
written after its SELECT.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lakemark.snapshot.visibility import Snapshot, Watermark, visible


@dataclass(slots=True)
class Windows:
    """Windows of one coordinator, oldest first.

    Attributes:
        usable: acknowledged open rows that a chunk may still take as its `lo`.
        current: the window that is open; empty if none is.
        order: number of every window that is usable or was used, in the order they were opened.
    """

    usable: list[Watermark] = field(default_factory=list)
    current: str = ""
    order: dict[str, int] = field(default_factory=dict)
    opened: int = 0

    def lo(self, snapshot: Snapshot) -> str | None:
        """The window of the newest open row that a snapshot provably shows; None if none is."""
        found = visible(snapshot, self.usable)
        return found.window if found else None

    @property
    def ready(self) -> bool:
        """Whether a read that begins now would find a window, as far as the newest tick tells."""
        return bool(self.usable) and self.lo(self.usable[-1].after) is not None

    def floor(self) -> str:
        """The oldest window that a read which begins now may take."""
        return self.usable[0].window if self.usable else ""

    def oldest(self, in_use: Iterable[str]) -> str:
        """The oldest window that any chunk may still use; empty before the first.

        Args:
            in_use: windows that chunks which are not settled took, or may take.
        """
        known = [w for w in (*in_use, self.floor()) if w in self.order]
        return min(known, key=self.order.__getitem__, default="")

    def open(self, watermark: Watermark, in_use: Iterable[str]) -> None:
        """A tick was acknowledged: its window is the current one.

        Open rows that no later snapshot needs go: whatever is read from now on sees at least what
        this tick's own snapshot sees.
        """
        self.opened += 1
        self.order[watermark.window] = self.opened
        self.usable.append(watermark)
        self.current = watermark.window
        newest = watermark.after
        for at in range(len(self.usable) - 1, -1, -1):
            if visible(newest, [self.usable[at]]) is not None:
                self.usable = self.usable[at:]
                break
        self.usable = [w for w in self.usable if w.after.server == newest.server]
        kept = {w.window for w in self.usable} | set(in_use)
        self.order = {window: n for window, n in self.order.items() if window in kept}

    def lost(self) -> str:
        """The newest tick was not acknowledged: whether its rows are in the log is not known.

        Returns the window whose close row may never come.
        """
        window, self.current = self.current, ""
        return window

    def close(self) -> None:
        """The last window is closed; the next tick begins anew."""
        self.usable, self.current, self.order = [], "", {}
