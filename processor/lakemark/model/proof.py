"""The proof of a table: what verify runs have shown of it. Pure."""

from collections.abc import Mapping
from typing import Any, Final, Self

import msgspec

from lakemark.model.control import TableVerified

KINDS: Final = ("missing", "extra", "differing", "duplicate", "left")
"""Of rows that are not as in the source, and of those that were not compared."""
PROPERTY: Final = "lakemark.proved"
"""Of the Delta table, with what `TableProof.told` returns as JSON."""


class TableProof(msgspec.Struct, frozen=True, omit_defaults=True):
    """The proof of a table.

    *Proved* is a table whose run has compared all of its rows and has left no difference: it found
    none, or has mended all. A later run that finds one takes nothing of that back: it was so then.

    Attributes:
        proved_ms: when the newest run began that has proved the table; milliseconds since the
            epoch; 0 = never.
        position: of the log, as hex: which changes that run has compared, see docs/verify.md; empty
            where none was known.
        proved_by: that run.
        rows: of the source that it has read.
        newer: keys that it has left to a newer event, or to a read that the stream asked for.
        run: the newest run over the whole table, whatever has come of it.
        turn_ms: when that one began.
        ended_ms: when it ended.
        found: rows that it found not to be alike or did not compare, by `KINDS`; only those that
            there are.
        mended: whether it was to mend them.
        failures: runs of lakemark's own since the last one that was not in vain.
        code, reason, hint, retried: why the newest one was; empty if it was not.
        files_since: batch in which the table's files took the place of others, of which nothing
            that was found before counts any more; -1 = never.
    """

    proved_ms: int = 0
    position: str = ""
    proved_by: str = ""
    rows: int = 0
    newer: int = 0
    run: str = ""
    turn_ms: int = 0
    ended_ms: int = 0
    found: dict[str, int] = {}
    mended: bool = False
    failures: int = 0
    code: str = ""
    reason: str = ""
    hint: str = ""
    retried: bool = False
    files_since: int = -1

    @property
    def unlike(self) -> int:
        """The number of rows that the newest run has left not to be as in the source."""
        kinds = ("duplicate", "left") if self.mended else KINDS
        return sum(self.found.get(kind, 0) for kind in kinds)

    def after(self, said: TableVerified) -> Self:
        """Return the proof after one more run; the same run once more changes nothing."""
        if said.batch < self.files_since:
            return self
        again = said.run == self.run and bool(said.code) == bool(self.code)
        failures = self.failures if again else self.failures + 1
        common: dict[str, Any] = {
            "run": said.run,
            "turn_ms": said.turn_ms,
            "ended_ms": said.ended_ms,
            "failures": failures if said.code else 0,
            "code": said.code,
            "reason": said.reason,
            "hint": said.hint,
            "retried": bool(said.retried),
        }
        if said.compared:
            common |= {"found": _counts(said.found), "mended": bool(said.mended)}
        if said.proved:
            common |= {
                "proved_ms": said.turn_ms,
                "position": said.position,
                "proved_by": said.run,
                "rows": said.rows,
                "newer": said.newer,
            }
        return msgspec.structs.replace(self, **common)

    def told(self) -> dict[str, Any]:
        """Return what the Delta table says of its proof."""
        return {
            "at_ms": self.proved_ms,
            "position": self.position,
            "run": self.proved_by,
            "rows": self.rows,
            "newer": self.newer,
        }


UNPROVED: Final = TableProof()


def _counts(found: Mapping[str, int]) -> dict[str, int]:
    return {kind: found[kind] for kind in KINDS if found.get(kind)}
