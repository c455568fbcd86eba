"""Keeps tables with deletion vectors small: few files, few deleted rows, a short log.

A file that is small, or much of which is deleted, is read and written again without its deleted
rows; a call rewrites a bounded number of bytes, so that no batch waits long for it. It changes no
row: a merge that commits in between makes it give up, and the next call begins again.
"""

import math
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa

from lakemark.sink import index_cache, roaring, table_actions, table_log
from lakemark.sink.commits import DELETION_VECTORS, Options, existing
from lakemark.sink.data_files import NewFile, drop_index, live_rows
from lakemark.sink.evolve import TARGET_FILE_BYTES
from lakemark.sink.failures import Conflict, told
from lakemark.sink.maintain import ORPHANS, Maintained
from lakemark.sink.table_log import Action, DataFile, TableFiles
from lakemark.sink.table_store import TableStore
from lakemark.sink.vectors import VECTORS_FOLDER
from lakemark.sink.vectors_rows import VectorReader, files_of, key_columns

_VECTOR_FILE: Final = re.compile(r"^deletion_vector_[0-9a-f-]{36}\.bin$")


@dataclass(frozen=True, slots=True)
class Policy:
    """When files are written again.

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


def maintain(
    path: str,
    *,
    key: Sequence[str],
    policy: Policy = DEFAULT,
    storage_options: Options = None,
) -> Maintained:
    """Does what is due, as the log says; after a batch in the same process looking costs nothing.

    Args:
        path: folder of the table.
        key: source names of the primary key's columns.
        policy: when what is due.
        storage_options: of delta-rs.

    Raises:
        TableError: `table-missing`, `engine-mismatch`, `unsupported-table-feature`.
        DependencyError: the lake does not answer or refuses.
    """
    known = table_log.last_known(path)
    since = _looked_at(path, known)
    if known is not None and not _is_due(known, since, policy):
        _looked[path] = known.version
        return Maintained(0, 0, 0)
    joined, removed = _Joined(), 0
    with suppress(Conflict):
        joined = _joined(path, key, policy, storage_options)
        with told(path):
            table = existing(path, storage_options, engine=DELETION_VECTORS)
            version = table.version()
            if since is None:
                since = version - joined.commits - 1
            if _crossed(version, since, policy.checkpoint_every):
                store = TableStore(path, dict(storage_options or {}))
                newest, _ = table_log.newest_checkpoint(store, version)
                if _crossed(version, newest, policy.checkpoint_every):  # no other worker made it
                    table.create_checkpoint()
                    table.cleanup_metadata()
            if _crossed(version, since, policy.vacuum_every):
                removed = vacuum(path, storage_options=storage_options)
            _looked[path] = version
    return Maintained(joined.read, joined.written, removed)


# The version of each table at which this process looked last, and did what was due. Commits of
# others lie between two looks, so looking at the newest one alone could miss every round number.
_looked: dict[str, int] = {}


def _looked_at(path: str, known: TableFiles | None) -> int | None:
    """The version up to which nothing is due any more; None if nothing is known of the table."""
    if known is None:
        return None
    return min(_looked.get(path, known.version), known.version - 1)


def _is_due(known: TableFiles, since: int | None, policy: Policy) -> bool:
    """Whether there is anything to do, as far as this process knows."""
    periods = (policy.checkpoint_every, policy.vacuum_every)
    return bool(
        due(list(known.files.values()), policy)
        or since is None
        or any(_crossed(known.version, since, every) for every in periods)
    )


def _crossed(version: int, since: int, every: int) -> bool:
    """Whether a multiple of `every` is among the commits after `since`."""
    return version // every > since // every


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
        if file.size >= policy.dirty_bytes and file.deleted > policy.dirty_share * file.records
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


def _joined(path: str, key: Sequence[str], policy: Policy, options: Options) -> _Joined:
    with told(path):
        table = existing(path, options, engine=DELETION_VECTORS)
        store = TableStore(path, dict(options or {}))
        before = files_of(table, store)
        if not before.vectors_on:
            return _Joined()
        chosen = due(list(before.files.values()), policy)
        if not chosen:
            return _Joined()
        table_actions.check_writable(path, before)
        schema = pa.schema(table.schema().to_arrow())
        new = NewFile(schema, key_columns(key, schema))
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
        for file in chosen:
            drop_index(file, new.key, str(before.metadata["id"]))
    return _Joined(len(chosen), len(adds), 1)


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
                new = NewFile(new.schema, new.key)
    if new.rows:
        adds.append(new.write(store, table_id, now, data_change=False))
    return adds


def vacuum(
    path: str, *, retention: timedelta | None = None, storage_options: Options = None
) -> int:
    """Deletes data files and deletion vectors that no version within `retention` needs.

    Args:
        path: folder of the table.
        retention: None: as the table says (`table_actions.retention`).
        storage_options: of delta-rs.

    Returns:
        How many files.

    Raises:
        TableError, DependencyError: as `maintain`.
    """
    with told(path):
        table = existing(path, storage_options, engine=DELETION_VECTORS)
        store = TableStore(path, dict(storage_options or {}))
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
    """Whether delta-rs's full vacuum leaves its file alone; one in the log has none."""
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
    table_log.forget()
    index_cache.forget()
