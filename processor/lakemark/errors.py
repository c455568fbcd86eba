"""Every error that lakemark raises on purpose, in one tree.

    LakemarkError                 what happened, whether it is retried, what to do
    ├── ConfigError               the configuration is wrong: exit code 3, nothing was started
    ├── TableError                one table cannot go on; the others do (shown as `errored`)
    ├── PipelineError             the whole pipeline cannot go on
    │   └── StateVersionError     the checkpoint was written by another version
    ├── RefusedError              a signal cannot be carried out; its sender is told so
    └── DependencyError           broker, lake, Connect or database is away: tried again; `degraded`

Each can be pickled: errors cross from Python workers to the driver.
"""

import difflib
from collections.abc import Iterable
from typing import Final

EXPIRED: Final = "source-data-expired"

_COMPARED: Final = 200  # characters of a name that is compared with all that are known
_SHOWN: Final = 60  # characters of a name that are shown: enough to recognise a mistake


class LakemarkError(Exception):
    """Root of the tree: says what happened, whether it is retried and what to do.

    Args:
        message: what happened, one sentence, without cell values or secrets.
        code: stable name of the failure, kebab case, as shown by status and metrics.
        hint: what the reader should do about it.
        retried: whether lakemark itself tries again without being asked.
    """

    code = "failure"
    retried = False

    def __init__(
        self, message: str, *, code: str = "", hint: str = "", retried: bool | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = str(hint)  # those that are more than a text have no JSON
        if code:
            self.code = code
        if retried is not None:
            self.retried = retried

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error with all its parts: errors cross from Python workers to the driver."""
        return (_rebuild, (type(self), self.message, self.code, self.hint, self.retried))


class ConfigError(LakemarkError):
    """The configuration cannot be used; nothing was started."""

    code = "configuration"


class TableError(LakemarkError):
    """One table cannot go on. Nothing is lost: it resumes from its first offset not applied."""

    code = "table-error"


class PipelineError(LakemarkError):
    """The whole pipeline cannot go on."""

    code = "pipeline-error"


class StateVersionError(PipelineError):
    """The checkpoint or a state blob was written by another version of lakemark."""

    code = "state-version"


class DependencyError(LakemarkError):
    """Something lakemark needs is away: tried again, and never a reason for dead letters."""

    code = "dependency-down"
    retried = True


class RefusedError(LakemarkError):
    """A signal that cannot be carried out; its sender is told so."""


def lost(what: str) -> DependencyError:
    """Return the error for records that Kafka lost unread; the next start names the tables."""
    return DependencyError(
        f"Kafka no longer has records that were not read yet: {what}",
        code=EXPIRED,
        hint="it starts again, and says then what is missing; raise the topic's retention",
    )


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint with the known name most like this one; the other hint if none is."""
    near = difflib.get_close_matches(name[:_COMPARED], list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else otherwise


def cut(text: str) -> str:
    """Return as much of a text as is shown."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _rebuild(
    kind: type[LakemarkError],
    message: str,
    code: str,
    hint: str,
    retried: bool,  # noqa: FBT001
) -> LakemarkError:
    return kind(message, code=code, hint=hint, retried=retried)
