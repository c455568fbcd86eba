"""The command ``lakemark recover --skip-signal``: a check of the id, and the record for it.

Pure: the progress topic's records and the unread signals are arguments. The next start of the
pipeline carries the record out (`snapshot.signal_processor`): a signal that has not been dealt with
is rejected unread, a run that goes on is ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lakemark.errors import PipelineError, cut, nearest
from lakemark.snapshot import runs
from lakemark.snapshot.signals import id_of

CODE: Final = "skipped"
REASON: Final = "left out by lakemark recover --skip-signal"
HINT: Final = "send it again under another id if it is wanted after all"
SIGNALS_KEY: Final = b"_signals"  # in the progress topic: where the signals stand
_PREFIX: Final = b"_skip:"


def key_of(name: str) -> bytes:
    """Return the key of the record that leaves out the signal or run with this id."""
    return _PREFIX + name.encode("utf-8", "surrogatepass").hex().encode()


def names_in(stored: Iterable[bytes]) -> set[str]:
    """Return the ids that are to be left out, from the keys of the progress topic."""
    found = [key.removeprefix(_PREFIX) for key in stored if key.startswith(_PREFIX)]
    return {
        bytes.fromhex(name.decode()).decode("utf-8", "surrogatepass")
        for name in found
        if len(name) % 2 == 0 and not set(name) - set(b"0123456789abcdef")
    }


def unread(
    signals: Iterable[tuple[int, int, bytes | None]], stored: Mapping[bytes, bytes], *, topic: str
) -> list[str]:
    """Return the ids of the signals that have not been dealt with.

    Args:
        signals: partition, offset and value of the records of the signals topic.
        stored: the newest records of the progress topic, by key.
        topic: name of the signals topic, of which ids are made for signals without one.
    """
    stand = msgspec.json.decode(stored.get(SIGNALS_KEY, b"{}"), type=dict[int, int])
    return [
        id_of(value, f"{topic}-{partition}-{offset}")
        for partition, offset, value in signals
        if offset >= stand.get(partition, 0)
    ]


def going(stored: Mapping[bytes, bytes]) -> list[str]:
    """Return the ids of the runs that go on, from the newest records of the progress topic."""
    return [run.id for run, _ in runs.loaded(stored) if not run.over]


def what(name: str, signals: Sequence[str], stored: Mapping[bytes, bytes]) -> str:
    """Return in words whether this id is a signal or a run.

    Raises:
        PipelineError: `unknown-signal`: no signal that waits, and no run that goes on.
    """
    if name in signals:
        return "a signal that waits"
    open_runs = going(stored)
    if name in open_runs:
        return "a run that goes on"
    known = list(dict.fromkeys([*signals, *open_runs]))
    shown = ", ".join(cut(one) for one in known[:5]) or "there is none"
    raise PipelineError(
        f"no signal that waits and no run that goes on has the id {cut(name)}",
        code="unknown-signal",
        hint=nearest(name, known, f"these do: {shown}"),
    )
