"""The last hour, stored as a record of the progress topic; pure.

After a restart, or when another process takes the pipeline over, the charts go on. 360 stretches of
seven numbers: about 15 kB, and at most `MOST_BYTES`.
"""

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from lakemark.ops.history import STRETCH_S, STRETCHES
from lakemark.ops.status import Stretch

KEY: Final = b"_history"
FORM: Final = 1
MOST_BYTES: Final = 40_000
# Bounds of what is believed, and of the record's size.
_Count = Annotated[int, msgspec.Meta(ge=0, lt=10**12)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=10**9)]


class UnreadableError(ValueError):
    """The record is not the last hour, or has a form that this version does not know."""


class _Kept(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A stretch as numbers only."""

    at_s: _Count
    batches: _Count
    events: _Count
    rows: _Count
    longest_s: _Seconds
    lag_s: _Seconds | None
    lag_records: _Count | None


class _Record(msgspec.Struct, frozen=True):
    form: int
    stretch_s: int
    stretches: list[_Kept]


class _Form(msgspec.Struct, frozen=True):
    form: int


def encode(stretches: Iterable[Stretch]) -> bytes:
    """Return the record's value: the newest 360 stretches, oldest first."""
    rows = [
        _Kept(
            s.at_ms // 1000,
            s.batches,
            s.events,
            s.rows,
            round(s.longest_s, 3),
            None if s.lag_s is None else round(s.lag_s, 3),
            s.lag_records,
        )
        for s in list(stretches)[-STRETCHES:]
    ]
    return msgspec.json.encode(_Record(FORM, STRETCH_S, rows))


def decode(value: bytes | None) -> tuple[Stretch, ...]:
    """Return the stretches as they were stored, none without a record.

    Raises:
        UnreadableError: it is no such record, or one of a newer version.
    """
    if value is None:
        return ()
    try:
        form = msgspec.json.decode(value, type=_Form).form
        if form != FORM:
            raise UnreadableError(f"it has form {form}, and this version knows {FORM}")
        record = msgspec.json.decode(value, type=_Record)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableError(f"it is damaged: {error}") from error
    if record.stretch_s != STRETCH_S or len(record.stretches) > STRETCHES:
        raise UnreadableError("its stretches are others than this version's")
    return tuple(
        Stretch(k.at_s * 1000, k.batches, k.events, k.rows, k.longest_s, k.lag_s, k.lag_records)
        for k in record.stretches
    )
