"""The ends of transactions, as a connector's transaction topic tells them."""

from collections.abc import Mapping
from typing import NamedTuple


class TransactionEnd(NamedTuple):
    """A record with the status END.

    Attributes:
        offset: of the record.
        id: of the transaction, as the connector writes it; see `PositionRules.ended`.
        events: how many events it has, by the name that the connector gives a table.
        ended_ms: milliseconds since the epoch, by the source's clock.
    """

    offset: int
    id: str
    events: Mapping[str, int]
    ended_ms: int
