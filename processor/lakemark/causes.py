"""The cause that stopped a query: an error of ours, or one from a trace of Java. Pure.

Spark hands on the trace alone of an error in a Python worker: the error's code and hint are a note
in it.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar

from lakemark import errors
from lakemark.errors import DependencyError, LakemarkError, lost
from lakemark.settings.masking import foreign

P = ParamSpec("P")
T = TypeVar("T")

_NOTE: Final = "lakemark.error "
_NOTED: Final = re.compile(rf"^\s*{re.escape(_NOTE)}(\{{.*\}})\s*$", re.MULTILINE)
_BROKERS_AWAY: Final = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable)Exception"
    r"|No resolvable bootstrap urls"
)
_DATA_LOSS: Final = ("OffsetOutOfRange", "failOnDataLoss", "Some data may have been lost")


def cause(failure: BaseException | None, error: BaseException) -> LakemarkError:
    """Return the error of a query that ended; if not known to be final, it is tried again.

    Args:
        failure: of the batch; None if it did not fail there.
        error: that Spark gave.
    """
    if isinstance(failure, LakemarkError):
        if failure.retried and not isinstance(failure, DependencyError):
            return DependencyError(failure.message, code=failure.code, hint=failure.hint)
        return failure
    text = f"{failure or ''}\n{error}"
    if ours := carried(text):
        return cause(ours, error)
    if any(sign in text for sign in _DATA_LOSS):
        return lost(root_cause(text))
    if _BROKERS_AWAY.search(text):
        return DependencyError(
            f"the query stopped: {root_cause(text)}",
            code="kafka-unavailable",
            hint="start the brokers, or correct kafka.bootstrap_servers; it is tried again",
        )
    return DependencyError(
        f"the query stopped: {root_cause(text)}",
        code="query-failed",
        hint="see the log; it is started again from its checkpoint",
    )


def carrying(stage: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Wrap a stage: its errors leave Spark's Python worker with code and hint; see `carried`.

    Args:
        stage: a generator function, run in a worker.
    """

    @functools.wraps(stage)
    def carries(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from stage(*args, **kwargs)
        except LakemarkError as error:
            said = {name: getattr(error, name) for name in ("message", "code", "hint", "retried")}
            error.add_note(_NOTE + json.dumps({"kind": type(error).__name__, **said}))
            raise

    return carries


def carried(text: str) -> LakemarkError | None:
    """Return our error whose trace this is, as the worker raised it; None if it is another."""
    if (found := _NOTED.search(text)) is None:
        return None
    said = json.loads(found[1])
    kind: type[LakemarkError] = getattr(errors, said.pop("kind"), LakemarkError)
    return kind(**said)


def root_cause(text: str) -> str:
    """Return the line of a Java or Python trace that says what was wrong first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("lakemark.errors.")]
    caused = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (ours[:1] or [*map(foreign, caused[-1:] or lines[:1])] or ["unknown"])[0]
