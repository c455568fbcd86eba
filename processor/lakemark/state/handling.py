"""Records that are being handled: one over which the process ends again and again is left out.

Before a record of the signals or the control topic is handled, a mark says so, durably; afterwards
it is taken back. Whoever finds the mark of another process knows that it ended in between. Once may
be anything; a record over which the process ended `DEATHS` times is left out, and its sender told.

Several records may stand in one mark. After the first end they are handled one by one, so that the
one to blame is known after the second. Pure; the marks are kept by their owners: signals beside the
runs (`snapshot.signal_processor`), control records in the checkpoint (`pipeline`).
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

DEATHS: Final = 2
PROCESS: Final = str(uuid.uuid4())  # this process, whichever part of it asks
CODE: Final = "crashed-pipeline"
REASON: Final = f"crashed the pipeline: its process ended {DEATHS} times while this was handled"
HINT: Final = "it is left out and the pipeline goes on; please report it with the log"


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The mark of records that are being handled.

    Attributes:
        places: of the records.
        process: the one that handles them; empty = nobody at the moment, they wait.
        deaths: how often a process has ended over them before.
        left: places of records beside these that are left out.
    """

    places: tuple[str, ...] = ()
    process: str = ""
    deaths: int = 0
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Past:
    """The past of records that are to be handled now.

    Attributes:
        deaths: how often a process has ended over them.
        apart: whether they must be handled one by one.
        left: those that are left out.
    """

    deaths: int
    apart: bool
    left: frozenset[str]


def past(mark: Mark | None, places: Sequence[str], process: str) -> Past:
    """Return what a mark says of the records at these places.

    Args:
        mark: the newest that was kept.
        places: of the records, the same for each whenever it is read.
        process: which one asks; its own marks count no death.
    """
    known = mark or Mark()
    left = set(known.left) & set(places)
    marked = set(known.places) <= set(places) and bool(known.places)
    deaths = known.deaths + (known.process not in {"", process}) if marked else 0
    if deaths >= DEATHS and len(known.places) == 1:
        left |= set(known.places)
        deaths = 0
    return Past(deaths, deaths > 0 and len(places) > 1, frozenset(left))


def encode(mark: Mark) -> bytes:
    """Return the mark as JSON."""
    return msgspec.json.encode(mark)


def decode(blob: bytes | None) -> Mark | None:
    """Return the mark that `encode` wrote; None if there is none, or one of another version."""
    try:
        return msgspec.json.decode(blob, type=Mark) if blob else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
