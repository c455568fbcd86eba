"""The errors for failures of the lake, and whether trying again can help.

Conflict                                  somebody else committed first: reload and try again
DependencyError  lake-unavailable         storage does not answer: retried
                 lake-forbidden           storage answers, and refuses: rights or credentials
                 lake-full                no space left
                 lake-busy                others kept committing first
TableError       unsupported-table-feature   the table has features delta-rs cannot write
                 engine-mismatch          the table belongs to another engine
                 table-missing            there is no Delta table in this folder
                 table-file-missing       a file that the log names is gone
                 table-damaged            a file of the log cannot be read
                 schema-incompatible      the types do not fit
                 lake-refused             anything else delta-rs says no to
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deltalake.exceptions import (
    CommitFailedError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)

from lakemark.errors import DependencyError, LakemarkError, TableError
from lakemark.model.evolution import way_on
from lakemark.settings.masking import foreign


class Conflict(Exception):  # noqa: N818 - not an error: the next attempt sees the other commit
    """Another commit came first; look again and repeat."""


# Mistakes in our own Python: shown as they are.
_OURS: Final = (AssertionError, AttributeError, LookupError, NameError, TypeError)
# Two who create the same table at once.
_CREATED: Final = re.compile(r"table already exists", re.IGNORECASE)
_FORBIDDEN: Final = re.compile(
    r"permission denied|operation not permitted|read-only file system|access ?denied|forbidden"
    r"|unauthorized|\b40[13]\b|invalidaccesskeyid|signaturedoesnotmatch|expiredtoken|credential",
    re.IGNORECASE,
)
_FULL: Final = re.compile(r"no space left|quota exceeded|disk full", re.IGNORECASE)
_GONE: Final = re.compile(
    r"(no such file|not ?found).*\.(parquet|bin)|\.(parquet|bin).*(no such file|not ?found)",
    re.IGNORECASE | re.DOTALL,
)
_FEATURE: Final = re.compile(
    r"unsupported.{0,20}feature|feature.{0,60}(not|un)supported|"
    r"unsupported (reader|writer) version|column mapping is not supported|table is append-only",
    re.IGNORECASE,
)
_DAMAGED: Final = re.compile(r"json error|invalid json|eof while parsing", re.IGNORECASE)
# What it says then holds values and names, in which any word may occur.
_ROWS: Final = re.compile(
    r"invalid data found|invariant|non-nullable|failed validation", re.IGNORECASE
)
_STORAGE: Final = re.compile(
    r"object ?store error|generic (?!deltatable|delta kernel)[\w ]+ error|error performing|"
    r"timed? ?out|connection|dns|input/output|os error|stale file handle|"
    r"slow ?down|too many requests|\b50[0234]\b",
    re.IGNORECASE,
)


@contextmanager
def told(path: str) -> Iterator[None]:
    """Turns what delta-rs raises inside into our errors.

    Raises:
        Conflict: another writer committed first.
        DependencyError: the lake is away, or refuses us.
        TableError: this table cannot be written.
    """
    try:
        yield
    except (LakemarkError, Conflict, *_OURS):
        raise
    except CommitFailedError as error:
        if _FEATURE.search(str(error)):  # no repetition mends that
            raise classified(error, path) from error
        raise Conflict(str(error)) from error
    except Exception as error:
        if _CREATED.search(str(error)):
            raise Conflict(str(error)) from error
        raise classified(error, path) from error
    except BaseException as error:
        # A panic of the Rust side is no Exception in Python and would end the whole worker.
        if type(error).__name__ != "PanicException":
            raise
        raise classified(error, path) from error


def classified(error: BaseException, path: str) -> LakemarkError:
    """Our error for one of delta-rs or its storage."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", foreign(error)).replace(path, "the table")
    short = " ".join(text.split())[:500]
    if _ROWS.search(text) and not isinstance(error, OSError):
        return TableError(
            f"{path} has a constraint, or a column that must not be null, that rows do not meet",
            code="lake-refused",
            hint="drop that from the Delta table; then: lakemark table resume TABLE",
        )
    if isinstance(error, DeltaProtocolError) or _FEATURE.search(text):
        return unsupported_feature(path, short)
    if isinstance(error, SchemaMismatchError):
        return TableError(
            f"{path} does not take these rows: {short}",
            code="schema-incompatible",
            hint=way_on("TABLE", path),
        )
    if _GONE.search(text):
        return TableError(
            f"a data file of {path} is gone: {short}",
            code="table-file-missing",
            hint="something outside lakemark removed files; restore them, then `lakemark table "
            "resume TABLE`; or `lakemark table rebuild TABLE`, which makes the table anew",
        )
    if isinstance(error, TableNotFoundError):
        return TableError(
            f"{path} holds no Delta table",
            code="table-missing",
            hint="put it back, then `lakemark table resume TABLE`; or `lakemark table skip TABLE`: "
            "it snapshots the table again",
        )
    return _storage(error, path, text, short)


def _storage(error: BaseException, path: str, text: str, short: str) -> LakemarkError:
    if _DAMAGED.search(text) and not isinstance(error, OSError):
        return damaged(path, "a commit is no JSON")
    if isinstance(error, PermissionError) or _FORBIDDEN.search(text):
        return DependencyError(
            f"the lake refuses us at {path}: {short}",
            code="lake-forbidden",
            hint="give lakemark's user the right to read, write and list below lake.path",
        )
    if _FULL.search(text):
        return DependencyError(
            f"the lake has no space left for {path}: {short}",
            code="lake-full",
            hint="make room below lake.path",
        )
    if isinstance(error, OSError) or _STORAGE.search(text):
        return DependencyError(
            f"the lake does not answer at {path}: {short}",
            code="lake-unavailable",
            hint="check the storage and the way to it; lakemark goes on by itself",
        )
    return TableError(
        f"delta-rs refuses {path}: {short}",
        code="lake-refused",
        hint="report this message; the table resumes where it stopped",
    )


def unsupported_feature(path: str, features: str) -> TableError:
    """The error for a table that only Spark may write."""
    return TableError(
        f"{path} has table features that only Spark can write: {features}",
        code="unsupported-table-feature",
        hint="set this table's engine to spark-merge, or drop the feature",
    )


def damaged(path: str, what: str) -> TableError:
    """The error for a log that cannot be read, as a machine leaves it that lost its power."""
    return TableError(
        f"the log of {path} cannot be read: {what}",
        code="table-damaged",
        hint="put the newest copy of the table back, then `lakemark table resume TABLE`; or move "
        f"the folder {path} away, then `lakemark table skip TABLE`: it snapshots the table again",
    )


def busy(path: str, attempts: int) -> DependencyError:
    """The error when other writers committed first every time."""
    return DependencyError(
        f"other writers of {path} committed first {attempts} times in a row",
        code="lake-busy",
        hint="find out what else writes this table (maintenance, another pipeline)",
    )
