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
from typing import Final, TypeVar, overload

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lakemark.errors import TableError
from lakemark.sink.delta import table_log
from lakemark.sink.delta.engines import (
    DELETION_VECTORS,
    ENGINE,
    NAMES,
    SPARK_MERGE,
    TASK_MERGE,
    USER_METADATA,
)
from lakemark.sink.delta.failures import Conflict, busy, told, unsupported_feature
from lakemark.sink.delta.table_log import LogTable, Opened
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.table_sink import MergeResult, TableSize, batch_of

FORGETS: Final = "delta.setTransactionRetentionDuration"
"""A table with this property drops what is recorded for batches, after a while."""
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
# Somebody else's OPTIMIZE makes a merge start again. Twenty in a row, with waits up to a second,
# means a writer that never rests; the batch is then tried again later.
_ATTEMPTS: Final = 20
Options = Mapping[str, str] | None
T = TypeVar("T")


def is_adopted(table: Opened) -> bool:
    """Say whether the table was moved to the Spark MERGE engine."""
    return bool(table.metadata().configuration.get(ENGINE) == SPARK_MERGE)


def open_table(
    path: str, storage_options: Options = None, *, with_files: bool = True
) -> DeltaTable | None:
    """The newest version of the table, None if there is none.

    Args:
        path: its folder.
        storage_options: of delta-rs.
        with_files: whether it is to be read, and not only asked for its version.

    Raises:
        DependencyError: the lake does not answer or refuses.
        TableError: the folder holds something that is no readable Delta table.
    """
    with told(path):
        try:
            return DeltaTable(
                path,
                storage_options=dict(storage_options or {}) or None,
                without_files=not with_files,
            )
        except TableNotFoundError:
            return None


def reopened(path: str, storage_options: Options, *, engine: str) -> Opened | None:
    """Open a table as `open_table` does; one known with deletion vectors at less cost.

    Such a table, if this process has opened it before, costs the commits since then, however long
    its log is: see `table_log.newest`.

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
    """Return the same as `committed`, of an open table; None if there is none."""
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
            f"{path} was moved to {NAMES.get(own, own)} and does not go back by itself",
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
    note: str = "",
) -> MergeResult:
    """Look up, work, commit; again from the look-up when somebody else committed first.

    `opened`: the table as it was a moment ago. That saves reading its log again; if it is out of
    date, the commit fails as any other that comes second. `note`: what the commit says of itself.
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
                counts = work(table, conditional(app_id, version, note=note))
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


def conditional(app_id: str, version: int, *, note: str = "") -> CommitProperties:
    """The record, and the condition that the next version of the table is still free."""
    return CommitProperties(
        app_transactions=[Transaction(app_id, version)],
        max_commit_retries=0,
        custom_metadata={USER_METADATA: note} if note else None,
    )
