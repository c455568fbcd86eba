"""A table that is made anew beside the old one, and takes its place in one commit.

While a table is rebuilt, everything that comes of it goes to a Delta table of its own, in
``<table>/_lakemark/<name of the rebuild>``; the old one stays as it was, and can be read. When the
new one is whole, `replace` brings it into the old one's place:

1. its files get a second name in the table's folder: data, deletion vectors, halves of key changes;
2. one commit of the old table takes all its files out, and puts schema, properties, protocol, files
   and records of batches of the new one in. It records, under the rebuild's name, the version of
   the new table that it has.

A crash before 2 leaves the old table, one after it the new table; done again, what is done is left
out. If more has come to the new table since, as where another process did 2 late, it is replaced
once more. The new table's own folder is deleted (`discard`) when the pipeline's state that does
without it is durable. Readers of older versions keep their files until those are vacuumed, as after
any other change.
"""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog
from deltalake import DeltaTable

from lakemark import failpoints
from lakemark.errors import TableError
from lakemark.model.proof import PROPERTY
from lakemark.sink.delta import roaring, table_actions, table_log, table_store
from lakemark.sink.delta.commits import Options, open_table, retried
from lakemark.sink.delta.engines import ENGINE
from lakemark.sink.delta.failures import Conflict, told
from lakemark.sink.delta.table_log import Action, DataFile, TableFiles, vector_id
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.names import OWN_FOLDER, rebuild_path
from lakemark.sink.table_format import Replaced

log = structlog.get_logger(__name__)

_OURS: Final = "lakemark/"  # app ids that are of a table's own history, and no batch's
_PENDING: Final = f"{OWN_FOLDER}/pending"
_AT_ONCE: Final = 16
_NEW: Final = TableFiles(-1, {}, {}, {})
# Properties of the old table that ask nothing of files, columns or features.
_KEPT: Final = frozenset(
    {
        "delta.deletedFileRetentionDuration",
        "delta.logRetentionDuration",
        "delta.checkpointInterval",
        "delta.targetFileSize",
    }
)


def replace(
    path: str, name: str, *, table: str = "", storage_options: Options = None
) -> Replaced | None:
    """Brings a table that was made anew into its place; done again it changes nothing.

    Args:
        path: folder of the table.
        name: of the rebuild; none is used twice for a table.
        table: ``schema.table`` of the source.
        storage_options: of delta-rs.

    Returns:
        None if there is no new table; nothing was done.

    Raises:
        TableError: the old table's log, or the new one's, cannot be read; `path-clash`;
            `lake-refused`.
        DependencyError: the lake does not answer or refuses; the same call again later goes on.
    """
    options = dict(storage_options or {})
    store = TableStore(path, options)

    def attempt() -> Replaced | None:
        new = _files(rebuild_path(path, name), options)
        if new is None:
            return None
        old = _files(path, options)
        _require_own(path, old, table)
        if old is not None and old.recorded.get(_OURS + name, -1) >= new.version:
            return Replaced(new.rows, new.bytes)
        stale = [f"{_PENDING}/{one.base_name}" for one in store.listing(_PENDING)]
        halves = _move(store, name, new)
        failpoints.reach(failpoints.BEFORE_REPLACED)
        if table_log.commit(store, old or _NEW, _actions(old, new, name)) is None:
            raise Conflict("another writer's version came first")
        failpoints.reach(failpoints.AFTER_REPLACED)
        for one in set(stale) - set(halves):  # of the old table; another process may not know it
            store.delete(one)
        _checkpoint(path, options)
        return Replaced(new.rows, new.bytes)

    with told(path):
        _require_conditional(store)
        done = retried(path, attempt)
        table_store.settle()
    return done


def empty(path: str, name: str, *, storage_options: Options = None) -> None:
    """Take all rows out of a table whose source has none, and no new columns to tell.

    Done again, or after that rebuild has replaced the table, it changes nothing.

    Raises:
        TableError, DependencyError: as `replace`.
    """
    options = dict(storage_options or {})
    store = TableStore(path, options)

    def attempt() -> None:
        old = _files(path, options)
        if old is None or not old.files or _OURS + name in old.recorded:
            return
        now = time.time_ns() // 1_000_000
        actions = [
            table_actions.info("DELETE", now, old.version),
            {"txn": {"appId": _OURS + name, "version": -1, "lastUpdated": now}},
            *_removals(old.files.values(), now),
        ]
        if table_log.commit(store, old, actions) is None:
            raise Conflict("another writer's version came first")

    with told(path):
        _require_conditional(store)
        retried(path, attempt)
        table_store.settle()


def discard(path: str, name: str, *, storage_options: Options = None) -> None:
    """Delete all that a rebuild has written beside its table.

    Raises:
        DependencyError: the lake does not answer or refuses.
    """
    with told(path):
        store = TableStore(path, dict(storage_options or {}))
        store.delete_folder(f"{OWN_FOLDER}/{name}")


def _require_conditional(store: TableStore) -> None:
    """Refuse stores in which the commit that replaces a table would have no condition."""
    if not store.is_conditional:
        raise TableError(
            f"{store.path} is in a store where a commit has no condition of its own (HDFS, a lock "
            "in DynamoDB, unsafe renames): a table cannot be replaced there",
            code="lake-refused",
            hint="give the table a new folder (lake.tables.TABLE.path) and snapshot it; "
            "`lakemark table rebuild TABLE --cancel` ends the rebuild",
        )


def _require_own(path: str, old: TableFiles | None, table: str) -> None:
    name = old.metadata.get("name") if old is not None else None
    if table and name not in {None, "", table}:
        raise TableError(
            f"{path} belongs to {name}, not to {table}",
            code="path-clash",
            hint=f"set lake.tables.{table}.path to a folder of its own and start again",
        )


def _files(path: str, options: Mapping[str, str]) -> TableFiles | None:
    opened = open_table(path, options)
    if opened is None:
        return None
    with told(path):
        return table_log.load(
            TableStore(path, dict(options)), opened.version(), table_id=str(opened.metadata().id)
        )


def _move(store: TableStore, name: str, new: TableFiles) -> list[str]:
    """Give the new table's files their names in the old one's folder; return those of halves."""
    if store.local is not None:
        (store.local / table_log.LOG).mkdir(parents=True, exist_ok=True)
    own = f"{OWN_FOLDER}/{name}"
    vectors = (one.vector for one in new.files.values())
    names = {roaring.file_of(v["pathOrInlineDv"]) for v in vectors if v and v["storageType"] == "u"}
    names |= {one.path for one in new.files.values()}
    halves = [f"{_PENDING}/{one.base_name}" for one in store.listing(f"{own}/{_PENDING}")]
    with ThreadPoolExecutor(_AT_ONCE, "lakemark-rebuild") as pool:
        list(pool.map(lambda one: store.copy(f"{own}/{one}", one), [*names, *halves]))
    store.keep(halves)  # the others are kept by the commit that names them
    return halves


def _actions(old: TableFiles | None, new: TableFiles, name: str) -> list[Action]:
    now = time.time_ns() // 1_000_000
    kept = {of: version for of, version in new.recorded.items() if not of.startswith(_OURS)}
    there = {_which(one) for one in old.files.values()} if old is not None else set()
    here = {_which(one) for one in new.files.values()}
    gone = [one for one in old.files.values() if _which(one) not in here] if old is not None else []
    return [
        table_actions.info("REPLACE TABLE AS SELECT", now, -1 if old is None else old.version),
        {"protocol": new.protocol},
        {"metaData": _metadata(old, new)},
        *(
            {"txn": {"appId": of, "version": version, "lastUpdated": now}}
            for of, version in {**kept, _OURS + name: new.version}.items()
        ),
        *_removals(gone, now),
        *(
            {"add": {**one.add, "modificationTime": now, "dataChange": True}}
            for one in new.files.values()
            if _which(one) not in there
        ),
    ]


def _which(file: DataFile) -> tuple[str, str]:
    return file.add["path"], vector_id(file.vector)


def _removals(files: Iterable[DataFile], now: int) -> Iterable[Action]:
    return (table_actions.removal(one, now, data_change=True) for one in files)


def _metadata(old: TableFiles | None, new: TableFiles) -> dict[str, Any]:
    """The new table's, under the identity of the old one, with what its owner has set."""
    if old is None:
        return new.metadata
    kept = {
        name: value
        for name, value in (old.metadata.get("configuration") or {}).items()
        if name in _KEPT or not (name.startswith("delta.") or name in {ENGINE, PROPERTY})
    }
    same = {
        name: old.metadata[name]
        for name in ("id", "name", "description", "createdTime")
        if old.metadata.get(name) is not None
    }
    own = new.metadata.get("configuration") or {}
    return {**new.metadata, **same, "configuration": {**own, **kept}}


def _checkpoint(path: str, options: Mapping[str, str]) -> None:
    """Readers that know less than the old table needed need not read what it was."""
    try:
        DeltaTable(path, storage_options=dict(options) or None).create_checkpoint()
    except Exception:  # no reason to stop: upkeep makes one soon
        log.exception("rebuild.no_checkpoint", path=path)
