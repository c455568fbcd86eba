"""Commands over HTTP: a signal, a table's pause and its resume, written to Kafka.

A signal is read as the pipeline will read it before it is written: so everything that can be
refused without the database is refused here, in the same words. A signal without an id gets one.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from lakemark.errors import RefusedError
from lakemark.ops.status import PAUSED, Status
from lakemark.snapshot import signals
from lakemark.snapshot.signals import ExecuteSnapshot, Rejection

MOST_BYTES: Final = 1_000_000  # brokers take 1 MiB of a record unless they are told otherwise
PAUSE: Final = "table-pause"
RESUME: Final = "table-resume"


@dataclass(frozen=True, slots=True)
class Commands:
    """The writers of commands; both may raise `LakemarkError` and return when Kafka has the record.

    Attributes:
        signal: writes the value of a signal under the pipeline's key.
        control: writes a control record of a kind for a table, and returns its id.
        check: refuses a filter that is none for any table, see `Database.check_condition`.
    """

    signal: Callable[[bytes], None]
    control: Callable[[str, str], str]
    check: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SignalToSend:
    """A signal that can be sent."""

    id: str
    value: bytes


def signal_record(body: bytes, *, pipeline: str, check: Callable[[str], None]) -> SignalToSend:
    """Return the signal in a request's body.

    Args:
        body: of the request.
        pipeline: its name.
        check: refuses a filter that is none for any table, see `Database.check_condition`.

    Raises:
        RefusedError: it would be rejected, whatever the database says.
    """
    if len(body) > MOST_BYTES:
        raise RefusedError(
            "the signal is larger than Kafka takes",
            code="too-large",
            hint="send several with fewer keys each, or take all rows",
        )
    made = str(uuid.uuid4())
    value = _named(body, made)
    signal = signals.read(pipeline.encode(), value, pipeline=pipeline, unnamed=made)
    if isinstance(signal, Rejection):
        raise RefusedError(signal.message, code=signal.code, hint=signal.hint)
    if isinstance(signal, ExecuteSnapshot):
        for condition in signal.conditions:
            check(condition.filter)
    return SignalToSend(signal.id, value)


def _named(body: bytes, name: str) -> bytes:
    """Return the same signal with an id; all else stays as written, every digit of a key too."""
    try:
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body  # the parser says what is wrong with it
    if bytes(given.get("id", msgspec.Raw(b"null"))) not in {b"null", b'""'}:
        return body
    return msgspec.json.encode({**given, "id": name})


def refusal(kind: str, table: str, now: Status) -> RefusedError | None:
    """Return the reason why a table cannot be paused or resumed now; None if it can."""
    entry = next((one for one in now.tables if one.name == table), None)
    if entry is None:
        return RefusedError(
            f"there is no table {table[:100]} in this pipeline",
            code="unknown-table",
            hint="GET /v1/status lists its tables",
        )
    if entry.committed_ms is None and not entry.events and not entry.rows and _is_new(entry.state):
        return RefusedError(
            f"nothing of {table} has come yet, so there is nothing to {_VERBS[kind]}",
            code="table-waiting",
            hint="wait for its first change, or start a snapshot of it",
        )
    if kind == PAUSE and entry.state == PAUSED:
        return RefusedError(
            f"{table} is paused already", code="already-paused", hint="resume it when it may go on"
        )
    if kind == RESUME and entry.state not in {PAUSED, "errored"}:
        return RefusedError(
            f"{table} is not stopped: it is {entry.state}",
            code="not-stopped",
            hint="nothing is to be done",
        )
    return None


def _is_new(state: str) -> bool:
    return state in {"waiting", "snapshotting"}


_VERBS: Final = {PAUSE: "pause", RESUME: "resume"}
