"""A place in the connector's log that is compared with the log of the server that is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class ReachedPlace:
    """A place in the connector's log, as its records tell it.

    Attributes:
        position: of the newest event that was applied in the newest epoch; empty if there is none.
        transactions: by origin the number of the newest transaction that the event's partition has
            brought, its own among them; empty where transactions have no names.
        begun_at: where the connector began, if no event has come since; 0 = not known. See
            `replay_filter.beginnings`.
        is_between: the place is between transactions, and may be one before the newest of these;
            else it is in that one.
    """

    position: bytes = b""
    transactions: Mapping[str, int] = field(default_factory=dict)
    begun_at: int = 0
    is_between: bool = False


NOWHERE: Final = ReachedPlace()
"""Of a connector of which nothing has come."""
