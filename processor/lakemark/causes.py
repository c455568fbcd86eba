"""What stopped a query: an error of ours, or what a trace of Java says. Pure."""

from typing import Final

from lakemark.errors import DependencyError, LakemarkError, StateVersionError

# Of a shard's state, which is read in a worker: all that comes out of there is a text.
_STATE: Final = f"{StateVersionError.__module__}.{StateVersionError.__name__}: "
_DATA_LOSS: Final = ("OffsetOutOfRange", "failOnDataLoss", "Some data may have been lost")


def cause(failure: BaseException | None, error: BaseException) -> LakemarkError:
    """What to say of a query that ended; whatever is not known to be final is tried again.

    Args:
        failure: of the batch; None if it did not fail there.
        error: that Spark gave.
    """
    if isinstance(failure, LakemarkError):
        if failure.retried and not isinstance(failure, DependencyError):
            return DependencyError(failure.message, code=failure.code, hint=failure.hint)
        return failure
    text = f"{failure or ''}\n{error}"
    if _STATE in text:
        return StateVersionError(
            root_cause(text).removeprefix(_STATE),
            hint="run the version of lakemark that wrote the checkpoint, or put a copy of it back;"
            " or start a new one and snapshot the tables again",
        )
    if any(sign in text for sign in _DATA_LOSS):
        return DependencyError(  # the next start says which, or goes over it: `recovery`
            "Kafka no longer has records that were not read yet: " + root_cause(text),
            code="source-data-expired",
            hint="it starts again, and says then what is missing; raise the topic's retention",
        )
    return DependencyError(
        f"the query stopped: {root_cause(text)}",
        code="query-failed",
        hint="see the log; it is started again from its checkpoint",
    )


def root_cause(text: str) -> str:
    """The line of a Java or Python trace that says what was wrong first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("lakemark.errors.")]
    caused = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (ours[:1] or caused[-1:] or lines[:1] or ["unknown"])[0]
