"""What a source database has to give, whichever connector it has: the proof of what a read saw.

Pure. Nothing outside of a connector's own folder knows how its database orders commits. What others
do with a proof is: keep it, ask which watermarks it shows, and ask for the server's life.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from lakemark.model import positions


class Proof(Protocol):
    """What one read of the database saw, as its connector can prove it.

    It travels between processes, so it can be pickled.
    """

    @property
    def life(self) -> str:
        """Name of the server's life that was read, never empty.

        Proofs of two lives say nothing about each other, and what was seen in one life may be lost
        in the next.
        """

    def shows(self, watermark: "Watermark") -> bool:
        """Whether the open row, and all that precedes it in the log, is provably in what was read.

        Args:
            watermark: of the same database, of whichever life.
        """


@dataclass(frozen=True, slots=True)
class Watermark:
    """An open row whose commit was acknowledged.

    Attributes:
        window: the window's uuid.
        after: what was seen after the commit returned.
        bound: a position behind its epoch, which was known before the open row came back: all
            events up to it are in what a read saw that shows the open row. Empty = the lowest.
    """

    window: str
    after: Proof
    bound: bytes = b""

    def position(self, epoch: int) -> bytes:
        """A position for rows of a chunk that takes this open row as its `lo`."""
        return positions.of_epoch(epoch, self.bound)


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window that is opened, or closed.

    Attributes:
        uuid: its own.
        run: the run it belongs to.
        oldest: uuid of the oldest window that any chunk, also a future one, may still use.
    """

    uuid: UUID
    run: str
    oldest: UUID


def visible(proof: Proof, watermarks: Iterable[Watermark]) -> Watermark | None:
    """The newest open row that is provably visible to a read, with all that precedes it.

    Args:
        proof: of the read.
        watermarks: acknowledged open rows that may still be used, in the order they were written.

    Returns:
        the newest that qualifies. None if none does: the chunk must be read again.
    """
    found = None
    for watermark in watermarks:
        if proof.shows(watermark):
            found = watermark
    return found
