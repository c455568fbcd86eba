"""Keeps tables small: few files, few deleted rows, a short log, and no files that nobody needs.

Files that are small, or much of which is deleted, are read and written again without their deleted
rows; a call rewrites a bounded number of bytes, so that no batch waits long for it. It changes no
row: whoever commits in between makes it give up, and the next call begins again. It in turn makes
every other writer's work that it overtakes fail, delta-rs's compaction included.
"""

import math
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from lakemark.sink.delta import index_cache, roaring, table_actions, table_log, table_store
from lakemark.sink.delta.commits import Options, existing
from lakemark.sink.delta.data_files import NewFile, drop_index, live_rows
from lakemark.sink.delta.deletion_vectors import VECTORS_FOLDER
from lakemark.sink.delta.deletion_vectors_rows import VectorReader, files_of, key_columns
from lakemark.sink.delta.engines import DELETION_VECTORS
from lakemark.sink.delta.failures import Conflict, told
from lakemark.sink.delta.object_client import NO_FILE
from lakemark.sink.delta.schema_evolution import TARGET_FILE_BYTES
from lakemark.sink.delta.table_log import Action, DataFile, TableFiles, commit_name
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.table_sink import MergeResult

_VECTOR_FILE: Final = re.compile(r"^deletion_vector_[0-9a-f-]{36}\.bin$")
# Files that no version names are left by killed writers, or belong to one that has not committed
# yet: no merge takes this long.
ORPHANS: Final = timedelta(days=1)
# The app id under which the log says at which version files were looked through last.
_VACUUMED: Final = "lakemark/vacuum"


@dataclass(frozen=True, slots=True)
class Maintained:
    """The result of upkeep.

    Attributes:
        compacted: data files that were written again.
        added: files these became.
        removed: files deleted from storage.
    """

    compacted: int = 0
    added: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits beyond which files are written again.

    Attributes:
        spare_files: so many small files are borne; reading slows down by about 2 ms a file.
        target: bytes of a large file; one below half of it is small.
        dirty_share: share of deleted rows that is borne in a file.
        dirty_bytes: a smaller file waits until there are many small ones.
        budget: bytes that one call reads.
        checkpoint_every: commits between two checkpoints of the log.
        vacuum_every: commits between two looks for files that nobody needs any more.
    """

    spare_files: int = 32
    target: int = TARGET_FILE_BYTES
    dirty_share: float = 0.25
    dirty_bytes: int = 4 << 20
    budget: int = 2 * TARGET_FILE_BYTES
    checkpoint_every: int = 50
    vacuum_every: int = 1000


DEFAULT: Final = Policy()
_ONCE: Final = CommitProperties(max_commit_retries=0)


def wants_upkeep(path: str, merged: MergeResult, policy: Policy = DEFAULT) -> bool:
    """Say whether anything may be due in a task-merge table, by its newest commit.

    Args:
        path: folder of the table.
        merged: the table after that commit.
        policy: when what is due.
    """
    since = min(_looked.setdefault(path, merged.at - 1), merged.at - 1)  # it may have begun anew
    many = merged.files > policy.spare_files + 2 * merged.bytes // policy.target
    return many or _at_a_period(merged.at, since, policy)


def maintain(
    path: str,
    *,
    key: Sequence[str],
    engine: str,
    policy: Policy = DEFAULT,
    storage_options: Options = None,
) -> Maintained:
    """Does what is due, as the log says.

    Of a table with deletion vectors looking costs nothing after a batch in the same process; of
    others ask `wants_upkeep` first.

    Args:
        path: folder of the table.
        key: source names of the primary key's columns.
        engine: `task-merge` or `deletion-vectors`.
        policy: when what is due.
        storage_options: of delta-rs.

    Raises:
        TableError: `table-missing`, `engine-mismatch`, `unsupported-table-feature`.
        DependencyError: the lake does not answer or refuses.
    """
    known = table_log.last_known(path) if engine == DELETION_VECTORS else None
    since = _looked_at(path, known)
    if known is not None and not _is_due(known, since, policy):
        _looked[path] = known.version
        return Maintained()
    joined, removed = _Joined(), 0
    with suppress(Conflict):
        joined = _joined(path, key, engine, policy, storage_options)
        with told(path):
            table = existing(path, storage_options, engine=engine)
            version = table.version()
            if since is None or since > version:  # the table began anew
                since = version - joined.commits - 1
            if _crossed(version, since, policy.checkpoint_every):
                store = _store(path, engine, storage_options)
                newest, _ = table_log.newest_checkpoint(store, version)
                if _crossed(version, newest, policy.checkpoint_every):  # no other worker made it
                    table.create_checkpoint()
                    table.cleanup_metadata()
            if _crossed(version, since, policy.vacuum_every) and _begins(table, policy):
                removed = vacuum(path, engine=engine, storage_options=storage_options)
            _looked[path] = version
    return Maintained(joined.read, joined.written, removed)


# The version of each table at which this process looked last, and did what was due. Commits of
# others lie between two looks, so looking at the newest one alone could miss every round number.
_looked: dict[str, int] = {}


def _store(path: str, engine: str, options: Options) -> TableStore:
    """The table's folder; tables of task-merge are read as its merges read them."""
    return TableStore(path, dict(options or {}), native=engine != DELETION_VECTORS)


def _looked_at(path: str, known: TableFiles | None) -> int | None:
    """The version up to which nothing is due any more; None if nothing is known of the table."""
    if known is None:
        return _looked.get(path)
    return min(_looked.get(path, known.version), known.version - 1)


def _is_due(known: TableFiles, since: int | None, policy: Policy) -> bool:
    """Say whether there is anything to do, as far as this process knows."""
    return bool(
        due(list(known.files.values()), policy)
        or since is None
        or _at_a_period(known.version, since, policy)
    )


def _at_a_period(version: int, since: int, policy: Policy) -> bool:
    periods = (policy.checkpoint_every, policy.vacuum_every)
    return any(_crossed(version, since, every) for every in periods)


def _crossed(version: int, since: int, every: int) -> bool:
    """Say whether a multiple of `every` is among the commits after `since`."""
    return version // every > since // every


def _begins(table: DeltaTable, policy: Policy) -> bool:
    """Say whether this worker looks for unneeded files now; if so, the log says so, too.

    Raises:
        CommitFailedError: somebody else committed first; it may have been for this.
    """
    version = table.version()
    if not _crossed(version, table.transaction_version(_VACUUMED) or 0, policy.vacuum_every):
        return False
    said = CommitProperties(
        app_transactions=[Transaction(_VACUUMED, version)], max_commit_retries=0
    )
    nothing = pa.schema(table.schema().to_arrow()).empty_table()
    write_deltalake(table, nothing, mode="append", commit_properties=said)
    return True


@dataclass(frozen=True, slots=True)
class _Joined:
    read: int = 0
    written: int = 0
    commits: int = 0


def due(files: Sequence[DataFile], policy: Policy = DEFAULT) -> list[DataFile]:
    """The files to write again now, within the budget: the dirtiest, or else the small ones.

    Args:
        files: of the table's version.
        policy: when what is due.
    """
    dirty = [
        file
        for file in files
        if file.size >= policy.dirty_bytes
        and file.deleted > policy.dirty_share * max(0, file.records)
    ]
    small = [file for file in files if 2 * _live_bytes(file) < policy.target]
    if len(small) > policy.spare_files:
        dirty += [file for file in sorted(small, key=_live_bytes) if file not in dirty]
    else:
        dirty.sort(key=lambda file: -file.deleted / max(1, file.records))
    chosen: list[DataFile] = []
    total = 0
    for file in dirty:
        total += file.size
        if chosen and total > policy.budget:
            break
        chosen.append(file)
    if len(chosen) == 1 and not chosen[0].deleted:
        return []
    return chosen


def _live_bytes(file: DataFile) -> float:
    if file.records <= 0:
        return file.size
    return file.size * (1 - file.deleted / file.records)


def _joined(
    path: str, key: Sequence[str], engine: str, policy: Policy, options: Options
) -> _Joined:
    with told(path):
        table = existing(path, options, engine=engine)
        store = _store(path, engine, options)
        before = files_of(table, store)
        chosen = due(list(before.files.values()), policy)
        if not chosen:
            return _Joined()
        vectors = engine == DELETION_VECTORS
        ours = store.is_conditional and not table_actions.refused(before)
        if not vectors and not (ours and _may_commit(store, before)):
            return _joined_by_delta_rs(table)
        table_actions.check_writable(path, before)
        schema = pa.schema(table.schema().to_arrow())
        new = NewFile(schema, key_columns(key, schema), indexed=vectors)
        adds = _rewritten(store, before, chosen, new, policy.target)
        now = time.time_ns() // 1_000_000
        actions = [
            table_actions.info("OPTIMIZE", now, before.version),
            # A compaction of delta-rs that this one overtakes looks for removals that change data,
            # and for no others: it would bring every row a second time.
            *(table_actions.removal(file, now, data_change=True) for file in chosen),
            *adds,
        ]
        if table_log.commit(store, before, actions) is None:
            for add in adds:
                store.delete(add["add"]["path"])
            raise Conflict(f"version {before.version + 1} is another writer's")
        for file in chosen if vectors else ():
            drop_index(file, new.key, str(before.metadata["id"]))
    return _Joined(len(chosen), len(adds), 1)


# Buckets in which only delta-rs has got an answer.
_unanswered: set[str] = set()


def _may_commit(store: TableStore, before: TableFiles) -> bool:
    """Say whether our own client can commit to a task-merge table: it may lack credentials."""
    bucket = "/".join(store.path.split("/")[:3])
    if not store.is_object_store:
        return True
    if bucket not in _unanswered:
        try:
            if replace(store, native=False).stamp(commit_name(before.version)) != NO_FILE:
                return True
        except OSError:
            pass
        _unanswered.add(bucket)
    return False


def _joined_by_delta_rs(table: DeltaTable) -> _Joined:
    """Have delta-rs join the files where it alone can commit, or meet the table's demands."""
    version = table.version()
    found = table.optimize.compact(commit_properties=_ONCE)
    return _Joined(
        int(found["numFilesRemoved"]), int(found["numFilesAdded"]), table.version() - version
    )


def _rewritten(
    store: TableStore,
    before: TableFiles,
    chosen: Sequence[DataFile],
    new: NewFile,
    target: int,
) -> list[Action]:
    """The live rows of the files in new ones, and the actions that add these."""
    now = time.time_ns() // 1_000_000
    table_id = str(before.metadata["id"])
    vectors = VectorReader(store)
    adds: list[Action] = []
    for file in chosen:
        for rows in live_rows(store, file, vectors.read(file), new.schema):
            if not rows.num_rows:
                continue
            new.add(rows)
            if new.bytes >= target:
                adds.append(new.write(store, table_id, now, data_change=False))
                new = NewFile(new.schema, new.key, indexed=new.indexed)
    if new.rows:
        adds.append(new.write(store, table_id, now, data_change=False))
    return adds


def vacuum(
    path: str,
    *,
    engine: str,
    retention: timedelta | None = None,
    storage_options: Options = None,
) -> int:
    """Deletes data files and deletion vectors that no version within `retention` needs.

    Args:
        path: folder of the table.
        engine: as `maintain`.
        retention: None: as the table says (`table_actions.retention`).
        storage_options: of delta-rs.

    Returns:
        How many files.

    Raises:
        TableError, DependencyError: as `maintain`.
    """
    with told(path):
        table = existing(path, storage_options, engine=engine)
        store = _store(path, engine, storage_options)
        found = table_log.load_whole(store, table.version())
        if retention is None:
            retention = table_actions.retention(found.metadata)
        since = datetime.now(UTC) - retention
        kept = _vectors_needed(found, since)
        removed = table.vacuum(
            retention_hours=math.ceil(retention / timedelta(hours=1)),
            dry_run=False,
            enforce_retention_duration=False,
            # A full one deletes vectors of other writers, which delta-rs takes for orphans.
            full=retention >= ORPHANS and all(_is_ours(vector) for vector in kept),
        )
        return len(removed) + _vacuum_vectors(store, kept, max(since, datetime.now(UTC) - ORPHANS))


def _vectors_needed(found: TableFiles, since: datetime) -> list[Action]:
    """The vectors of the table's files, and of those that left it after a moment."""
    vectors = [file.vector for file in found.files.values()]
    vectors += [
        remove.get("deletionVector")
        for remove in found.gone
        if int(remove.get("deletionTimestamp") or 0) >= since.timestamp() * 1000
    ]
    return [vector for vector in vectors if vector]


def _is_ours(vector: Action) -> bool:
    """Say whether delta-rs's full vacuum leaves its file alone; one in the log has none."""
    if vector["storageType"] == "u":
        return bool(roaring.file_of(vector["pathOrInlineDv"]).startswith(f"{VECTORS_FOLDER}/"))
    return bool(vector["storageType"] == "i")


def _vacuum_vectors(store: TableStore, kept: Sequence[Action], since: datetime) -> int:
    """Deletes files of vectors that are not kept; how many.

    A file that nobody names may belong to a writer that has not committed yet: those that were
    written after a moment stay.
    """
    names = {roaring.file_of(v["pathOrInlineDv"]) for v in kept if v["storageType"] == "u"}
    gone = 0
    for listed in store.listing(VECTORS_FOLDER):
        name = f"{VECTORS_FOLDER}/{listed.base_name}"
        if (
            _VECTOR_FILE.match(listed.base_name)
            and name not in names
            and listed.mtime_ns
            and listed.mtime_ns < since.timestamp() * 1e9
        ):
            store.delete(name)
            gone += 1
    return gone


def forget() -> None:
    """Drops what this process knows of tables: the next batch reads logs and indexes again."""
    _looked.clear()
    _unanswered.clear()
    table_log.forget()
    table_store.forget()
    index_cache.forget()
