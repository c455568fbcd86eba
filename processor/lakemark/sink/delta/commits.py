"""One Delta transaction, exactly once per (app id, version), by delta-rs.

In this order:

1. look up what the table has recorded for the app id: as far as `version`, nothing is done;
2. read the newest state of the table and compute the change;
3. commit change and record in one Delta transaction, on condition that nobody has committed since
   2; otherwise begin again at 1.

delta-rs by itself would let a blind append land after a foreign commit, and two app ids add the
same key twice; here every commit is conditional on the version read. A call that is repeated, in
this process or after a crash in another one, therefore changes nothing.

A batch that is repeated need not be the same: the catalog or a setting may be another, a topic may
have grown, the checkpoint may be an older copy. So the version that is recorded for a batch says
what was in it, too (`version_of`): only the same content is left out, other content is applied.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, overload

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lakemark.errors import TableError
from lakemark.sink.delta import table_log
from lakemark.sink.delta.failures import Conflict, busy, told, unsupported_feature
from lakemark.sink.delta.log_table import LogTable, Opened
from lakemark.sink.delta.table_store import TableStore

ENGINE: Final = "lakemark.engine"
FORGETS: Final = "delta.setTransactionRetentionDuration"
"""A table with this property drops what is recorded for batches, after a while."""
TASK_MERGE: Final = "task-merge"
SPARK_MERGE: Final = "spark-merge"
DELETION_VECTORS: Final = "deletion-vectors"
# delta-rs reads or half supports these, but readers of task-merge tables or our merge would not.
_VECTORS: Final = "deletionVectors"
_REFUSED_FEATURES: Final = frozenset(
    {
        _VECTORS,
        "columnMapping",
        "typeWidening",
        "typeWidening-preview",
        "clustering",
        "rowTracking",
        "icebergCompatV1",
        "icebergCompatV2",
        "identityColumns",
        "generatedColumns",
    }
)
# Checkpoints whose files delta-rs finds, and our own reading of the log does not.
_UNREAD: Final = frozenset({"v2Checkpoint"})
_NAMES: Final = {
    SPARK_MERGE: "the Spark MERGE engine",
    DELETION_VECTORS: "the engine with deletion vectors",
}
# Somebody else's OPTIMIZE makes a merge start again. Twenty in a row, with waits up to a second,
# means a writer that never rests; the batch is then tried again later.
_ATTEMPTS: Final = 20
# A version, from its highest bit: batch + 1, how many contents of it came before, digest of this
# one. Two contents of one batch are taken for the same by chance once in a million times.
_BATCH: Final = 32
_CONTENT: Final = 20
_DIGEST: Final = (1 << _CONTENT) - 1
Options = Mapping[str, str] | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableSize:
    """What the log says about a table's files.

    Attributes:
        rows: rows, those marked deleted included; -1 if a file does not say.
        bytes: bytes of the data files.
        files: data files.
    """

    rows: int
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a commit did, and how large the table is after it.

    Attributes:
        inserted, updated, deleted: rows; a row marked deleted counts as updated.
        skipped: the version was committed before, so nothing was done.
        rows, bytes, files: see `TableSize`.
        at: the table's version after it; -1 if that is not known.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    skipped: bool = False
    rows: int = 0
    files: int = 0
    bytes: int = 0
    at: int = -1


def is_adopted(table: Opened) -> bool:
    """Whether the table was moved to the Spark MERGE engine."""
    return bool(table.metadata().configuration.get(ENGINE) == SPARK_MERGE)


def open_table(path: str, storage_options: Options = None) -> DeltaTable | None:
    """The newest version of the table, None if there is none.

    Raises:
        DependencyError: the lake does not answer or refuses.
        TableError: the folder holds something that is no readable Delta table.
    """
    with told(path):
        try:
            return DeltaTable(path, storage_options=dict(storage_options or {}) or None)
        except TableNotFoundError:
            return None


def reopened(path: str, storage_options: Options, *, engine: str) -> Opened | None:
    """As `open_table`; a table with deletion vectors that this process has opened before costs
    what has been committed since, however long its log is: see `table_log.newest`.

    Raises:
        DependencyError, TableError: as `open_table`.
    """
    if engine == DELETION_VECTORS:
        with told(path):
            found = table_log.newest(TableStore(path, dict(storage_options or {})))
        if found is not None:
            return LogTable(found)
    return open_table(path, storage_options)


def committed(path: str, app_id: str, storage_options: Options = None) -> int | None:
    """The highest version recorded for the app id; None if none or if there is no table.

    Raises:
        DependencyError: the lake does not answer or refuses.
    """
    return recorded(open_table(path, storage_options), path, app_id)


def recorded(table: Opened | None, path: str, app_id: str) -> int | None:
    """As `committed`, of a table that is open; None if there is none."""
    with told(path):
        return None if table is None else table.transaction_version(app_id)


def before(
    table: Opened | None,
    path: str,
    app_ids: Sequence[str],
    batch: int,
    storage_options: Options = None,
) -> Opened | None:
    """The table as it was before it recorded this batch or a later one for any of the app ids.

    So a batch that is repeated sees what it saw the first time, if the log goes back that far.
    """
    options = dict(storage_options or {}) or None
    while table is not None and table.version():
        found = [recorded(table, path, app_id) for app_id in app_ids]
        if all(version is None or batch_of(version) < batch for version in found):
            break
        with told(path):
            try:
                table = DeltaTable(path, table.version() - 1, storage_options=options)
            except DeltaError:
                break
    return table


def newest(
    table: Opened | None, path: str, app_ids: Sequence[str], *, batch: int
) -> tuple[int | None, int]:
    """The version recorded for the first app id, and the newest batch of any of them (-1 = none).

    Whoever catches up asks for the stream's too: nobody gets round `checkpoint-older` that way.

    Raises:
        TableError: `checkpoint-older`: that batch is later than `batch`.
    """
    found = [recorded(table, path, app_id) for app_id in app_ids]
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


def size_of(table: DeltaTable) -> TableSize:
    """Rows, bytes and files, from the log alone."""
    adds = pa.table(table.get_add_actions(flatten=True))
    rows = adds.column("num_records") if "num_records" in adds.column_names else None
    known = rows is not None and not rows.null_count
    return TableSize(
        rows=int(pc.sum(rows).as_py() or 0) if known else 0 if not adds.num_rows else -1,
        bytes=int(pc.sum(adds.column("size_bytes")).as_py() or 0),
        files=adds.num_rows,
    )


@overload
def existing(
    path: str,
    storage_options: Options,
    opened: DeltaTable | None = None,
    *,
    engine: str = TASK_MERGE,
) -> DeltaTable: ...


@overload
def existing(
    path: str, storage_options: Options, opened: Opened | None, *, engine: str
) -> Opened: ...


def existing(
    path: str,
    storage_options: Options,
    opened: Opened | None = None,
    *,
    engine: str = TASK_MERGE,
) -> Opened:
    """The table, which must be one that the engine may write.

    Args:
        path: folder of the table.
        storage_options: of delta-rs.
        opened: the table, if it is open already.
        engine: `task-merge`, or `deletion-vectors`, to which tables of the former may move.

    Raises:
        TableError: `table-missing`, `engine-mismatch`, `unsupported-table-feature`.
    """
    table = opened or open_table(path, storage_options)
    if table is None:
        raise TableError(
            f"{path} holds no Delta table",
            code="table-missing",
            hint="snapshot the table again to create it anew",
        )
    protocol = table.protocol()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    own = table.metadata().configuration.get(ENGINE) or TASK_MERGE
    if own not in {TASK_MERGE, engine}:
        raise TableError(
            f"{path} was moved to {_NAMES.get(own, own)} and does not go back by itself",
            code="engine-mismatch",
            hint=f"set this table's engine to {own}",
        )
    refused = features & _REFUSED_FEATURES
    if engine == DELETION_VECTORS:
        refused = (refused - {_VECTORS}) | (features & _UNREAD)
    if refused:
        raise unsupported_feature(path, ", ".join(sorted(refused)))
    return table


def once(
    path: str,
    work: Callable[[DeltaTable, CommitProperties], tuple[int, int, int]],
    *,
    app_id: str,
    version: int,
    storage_options: Options,
    opened: DeltaTable | None = None,
    engine: str = TASK_MERGE,
) -> MergeResult:
    """Look up, work, commit; again from the look-up when somebody else committed first.

    `opened`: the table as it was a moment ago. That saves reading its log again; if it is out of
    date, the commit fails as any other that comes second.
    """
    given = [opened]

    def attempt() -> MergeResult:
        with told(path):
            now = given.pop() if given else None
            table = existing(path, storage_options, now, engine=engine)
            recorded = table.transaction_version(app_id)
            counts = (0, 0, 0)
            skipped = recorded is not None and recorded >= version
            if not skipped:
                counts = work(table, conditional(app_id, version))
            size = size_of(table)
            at = table.version()
        return MergeResult(
            *counts, skipped=skipped, rows=size.rows, files=size.files, bytes=size.bytes, at=at
        )

    return retried(path, attempt)


def retried(path: str, attempt: Callable[[], T]) -> T:
    """Repeats `attempt` while it ends in a `Conflict`.

    Raises:
        DependencyError: `lake-busy`, when every attempt did.
    """
    try:
        return Retrying(
            retry=retry_if_exception_type(Conflict),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.02, max=1),
            reraise=True,
        )(attempt)
    except Conflict as error:
        raise busy(path, _ATTEMPTS) from error


def conditional(app_id: str, version: int) -> CommitProperties:
    """The record, and the condition that the next version of the table is still free."""
    return CommitProperties(app_transactions=[Transaction(app_id, version)], max_commit_retries=0)
