"""Keeps a task-merge table small in files and bytes: compaction and vacuum by delta-rs."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from deltalake import CommitProperties

from lakemark.sink.commits import MergeResult, Options, TableSize, existing, retried
from lakemark.sink.evolve import TARGET_FILE_BYTES
from lakemark.sink.failures import told

# Readers that opened an older version, and Delta's time travel, have this long.
RETENTION: Final = timedelta(days=7)
# Files that no version names are left by killed writers, or belong to one that has not committed
# yet: no merge takes this long.
ORPHANS: Final = timedelta(days=1)
# Every batch that only inserts adds one file; reading slows down by about 2 ms a file.
_SPARE_FILES: Final = 32


@dataclass(frozen=True, slots=True)
class Maintained:
    """What maintenance did.

    Attributes:
        compacted: data files that were joined into larger ones.
        added: files these became.
        removed: files deleted from storage.
    """

    compacted: int
    added: int
    removed: int


def wants_maintenance(size: MergeResult | TableSize) -> bool:
    """Whether a table has many more files than its bytes need."""
    return size.files > _SPARE_FILES + 2 * size.bytes // TARGET_FILE_BYTES


def maintain(
    path: str, *, retention: timedelta = RETENTION, storage_options: Options = None
) -> Maintained:
    """Joins small files and deletes those that no version within `retention` needs.

    Changes no row and no record of what was committed. Safe at any time: a merge that commits in
    between makes the compaction start again, and a merge that a compaction overtakes does.

    Args:
        path: folder of the table.
        retention: how long files of older versions are kept for readers and time travel.
        storage_options: of delta-rs.

    Raises:
        TableError: `table-missing`, `engine-mismatch`, `unsupported-table-feature`.
        DependencyError: the lake does not answer or refuses, or others keep committing.
    """

    def attempt() -> Maintained:
        with told(path):
            table = existing(path, storage_options)
            found = table.optimize.compact(commit_properties=CommitProperties(max_commit_retries=0))
            removed = table.vacuum(
                retention_hours=int(retention / timedelta(hours=1)),
                dry_run=False,
                enforce_retention_duration=False,
                full=retention >= ORPHANS,
            )
        return Maintained(int(found["numFilesRemoved"]), int(found["numFilesAdded"]), len(removed))

    return retried(path, attempt)
