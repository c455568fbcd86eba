"""What a table records with each commit: an app id, and a version that says batch and content.

An app id is ``<query id>/<table>/<step>``. A number of its own for each content of a batch makes
one comparison enough: what is recorded already is left out, whatever else is applied.
"""

from collections.abc import Sequence
from typing import Final

from lakemark.errors import TableError

# A version, from its highest bit: batch + 1, how many contents of it came before, digest of this
# one. Two contents of one batch are taken for the same by chance once in a million times.
_BATCH: Final = 32
_CONTENT: Final = 20
_DIGEST: Final = (1 << _CONTENT) - 1


def newest(found: Sequence[int | None], path: str, *, batch: int) -> tuple[int | None, int]:
    """Return the first of the versions that are recorded, and the newest batch of any (-1 = none).

    Whoever catches up asks for the stream's too: nobody gets round `checkpoint-older` that way.

    Args:
        found: what a table has recorded for some app ids; None = nothing.
        path: its folder.
        batch: that is at hand.

    Raises:
        TableError: `checkpoint-older`: the newest is later than `batch`.
    """
    last = max((batch_of(version) for version in found if version is not None), default=-1)
    if last > batch:
        raise TableError(
            f"{path} has batch {last} of this checkpoint, which is at batch {batch}: the "
            "checkpoint is older than the table",
            code="checkpoint-older",
            hint="put the newest checkpoint back; or begin with a new checkpoint folder, and "
            "snapshot the tables again: their rows stay",
        )
    return found[0], last


def require(version: int | None, batch: int, *, path: str, table: str) -> None:
    """Find that a table has the newest batch that it must have.

    Args:
        version: what it has recorded; None = nothing.
        batch: that it must have at least.
        path: its folder.
        table: its name.

    Raises:
        TableError: `table-older`.
    """
    newest = -1 if version is None else batch_of(version)
    if newest >= batch:
        return
    raise TableError(
        f"{path} has {f'batch {newest}' if newest >= 0 else 'no batch'} of this checkpoint, and "
        f"must have batch {batch}: an older copy of the table was put back, or its newest commits "
        "are gone",
        code="table-older",
        hint=f"put the newest copy back, then `lakemark table resume {table}`; without one: "
        f"`lakemark table skip {table}`, which goes on with this copy, leaves out the changes that "
        "were not applied, and snapshots the table again",
    )


def version_of(batch: int, content: int, last: int | None) -> int:
    """The version to record for a batch with this content.

    Args:
        batch: batch id.
        content: a digest of what is to be applied; its lowest 20 bits count.
        last: the version that is recorded; None if none is.

    Returns:
        `last`, if it is of the same batch and content: then nothing is to be done. Otherwise a
        higher one, unless `last` is of a later batch (`batch_of`).
    """
    first = (batch + 1) << _BATCH
    if last is not None and last >= first and last & _DIGEST == content & _DIGEST:
        return last
    return version_above(first | content & _DIGEST, last)


def version_above(version: int, other: int | None) -> int:
    """`version`, with a higher count where that is needed to be above another recorded one."""
    if other is None or other < version:
        return version
    return ((other >> _CONTENT) + 1) << _CONTENT | version & _DIGEST


def batch_of(version: int) -> int:
    """The batch that a recorded version is of; small ones are a batch's number and nothing else."""
    return version if version >> _BATCH == 0 else (version >> _BATCH) - 1
