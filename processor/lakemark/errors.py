"""Every error that lakemark raises on purpose, in one tree.

    LakemarkError                 what happened, whether it is retried, what to do
    ├── ConfigError               the configuration is wrong: exit code 3, nothing was started
    ├── TableError                one table cannot go on; the others do (shown as `errored`)
    ├── PipelineError             the whole pipeline cannot go on
    │   └── StateVersionError     the checkpoint was written by another version
    └── DependencyError           broker, lake, Connect or database is away: tried again; `degraded`

Each can be pickled: errors cross from Python workers to the driver.
"""


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
        self.hint = hint
        if code:
            self.code = code
        if retried is not None:
            self.retried = retried

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross from Python workers to the driver, so they must survive pickling."""
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


def _rebuild(
    kind: type[LakemarkError],
    message: str,
    code: str,
    hint: str,
    retried: bool,  # noqa: FBT001
) -> LakemarkError:
    return kind(message, code=code, hint=hint, retried=retried)
