"""Connect's JSON as records of other forms are made of it, and records of others as JSON."""

from collections.abc import Sequence
from typing import Final

from lakemark.converters.converter import ConnectData, Departing
from lakemark.converters.json.envelope import unwrapped

FORM: Final = "json"


def opened(departing: Departing, at: Sequence[int]) -> list[ConnectData | None]:
    """See `Converter.opened`."""
    of_key, of_value = departing.learnt.tables.get(departing.table, (b"", b""))
    known = of_key if departing.side == "key" else of_value
    return [_opened(departing.raws[index], known or None) for index in at]


def _opened(raw: bytes | None, known: bytes | None) -> ConnectData | None:
    if raw is None:
        return None
    schema, payload = unwrapped(raw)
    return ConnectData(payload, known if schema is None else schema, FORM)


def issued(raw: bytes | None, data: ConnectData | None, *, wraps: bool) -> bytes | None:
    """Return a key or a value in JSON; what is JSON already as it is, but for its schema.

    Args:
        raw: as it is.
        data: what it says.
        wraps: whether it carries its schema.
    """
    if raw is None or data is None or (wraps and data.form == FORM):
        return raw
    if not wraps or data.schema is None:
        return data.payload
    return b'{"schema":' + data.schema + b',"payload":' + data.payload + b"}"
