"""Records of a connector's transaction topic, from JSON; pure."""

from collections.abc import Iterator
from typing import Final

import msgspec

from lakemark.converters.json.envelope import unwrapped
from lakemark.model.decoding import Records
from lakemark.model.transactions import TransactionEnd


class _EventCount(msgspec.Struct):
    data_collection: str
    event_count: int


class _TransactionRecord(msgspec.Struct):
    status: str
    id: str
    data_collections: tuple[_EventCount, ...] | None = None
    ts_ms: int | None = None


_read: Final = msgspec.json.Decoder(_TransactionRecord).decode
_END: Final = b"END"


def transaction_ends(records: Records) -> Iterator[TransactionEnd]:
    """Yield the ends of transactions that records tell, in their order; others are left out.

    Args:
        records: of one partition of a transaction topic.
    """
    for offset, value in zip(records.offsets, records.values, strict=True):
        if not value or _END not in value:
            continue
        try:
            record = _read(unwrapped(value)[1])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        if record.status == _END.decode():
            counts: dict[str, int] = {}
            for one in record.data_collections or ():
                counts[one.data_collection] = counts.get(one.data_collection, 0) + one.event_count
            yield TransactionEnd(offset, record.id, counts, record.ts_ms or 0)
