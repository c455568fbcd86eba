"""Cuts: places between two transactions of a source that batches have ended at."""

import msgspec


class SourceCut(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch after which the tables of a connector hold everything up to one place of the log.

    Attributes:
        batch: after which it is so.
        transaction: the last one that they hold, as the connector's transaction topic names it.
        ended_ms: when that was committed, milliseconds since the epoch by the source's clock.
        position: of the newest event that they hold, in hexadecimal; empty where none came.
        without: tables that it is not true of.
    """

    batch: int
    transaction: str
    ended_ms: int = 0
    position: str = ""
    without: tuple[str, ...] = ()


class CutProgress(msgspec.Struct, omit_defaults=True):
    """The counts by which cuts are proved, of one connector.

    Attributes:
        read: first offset of the transaction topic that has not been counted; -1 = none has been.
        due: by table, events that transactions have and that did not come, or came beyond them;
            none is 0.
        unproven: tables whose counts began, or went wrong, while events may have been on their way.
        newest: by origin, the number of the newest transaction that was counted.
        epoch: of the log; with another one all counts begin anew.
        last_ended: the newest transaction that was counted.
        last: the newest cut.
        kept: cuts that are not in the lake yet.
    """

    read: int = -1
    due: dict[str, int] = msgspec.field(default_factory=dict)
    unproven: set[str] = msgspec.field(default_factory=set)
    newest: dict[str, int] = msgspec.field(default_factory=dict)
    epoch: int = 0
    last_ended: str = ""
    last: SourceCut | None = None
    kept: list[SourceCut] = msgspec.field(default_factory=list)

    @property
    def doubts(self) -> bool:
        """Say whether any table is not proved to be whole."""
        return bool(self.due or self.unproven)

    def count(self, table: str, more: int) -> None:
        """Count events of a table that are due; those that came are fewer than none."""
        now = self.due.get(table, 0) + more
        if now:
            self.due[table] = now
        else:
            self.due.pop(table, None)

    def prove(self, table: str) -> None:
        """Take a table for whole: it is known that all came."""
        self.due.pop(table, None)
        self.unproven.discard(table)

    def suspect(self, table: str) -> None:
        """Take a table's counts for wrong."""
        self.due.pop(table, None)
        self.unproven.add(table)
