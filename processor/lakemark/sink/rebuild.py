"""A table that is made anew beside the old one, and takes its place in one commit.

While a table is rebuilt, everything that comes of it goes to a Delta table of its own, in
``<table>/_lakemark/rebuild-<number>``; the old one stays as it was, and can be read. When the new
one is whole, `replace` brings it into the old one's place:

1. its files get a second name in the table's folder: data, deletion vectors, halves of key changes;
2. one commit of the old table takes all its files out, and puts schema, properties, protocol, files
   and records of batches of the new one in. It records the rebuild's number, too;
3. the new one's own folder is deleted.

A crash before 2 leaves the old table, one after it the new table; done again, what is done is left
out. Readers of older versions keep their files until those are vacuumed, as after any other change.
"""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import structlog
from deltalake import DeltaTable

from lakemark import crashpoints
from lakemark.sink import roaring, table_actions, table_log
from lakemark.sink.commits import ENGINE, Options, open_table, retried
from lakemark.sink.failures import Conflict, told
from lakemark.sink.names import OWN_FOLDER, REBUILDS, rebuild_folder, rebuild_path
from lakemark.sink.table_log import Action, TableFiles
from lakemark.sink.table_store import TableStore

log = structlog.get_logger(__name__)

RECORD: Final = "lakemark/rebuild"
"""The app id under which the newest rebuild's number is recorded."""
_PENDING: Final = f"{OWN_FOLDER}/pending"
_AT_ONCE: Final = 16
_NEW: Final = TableFiles(-1, {}, {}, {})
# Properties that say how the old files were written, or what their columns must be.
_OF_FILES: Final = (
    ENGINE, "delta.enableDeletionVectors", "delta.columnMapping.", "delta.constraints.",
    "delta.dataSkipping", "delta.enableTypeWidening", "delta.enableRowTracking",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a rebuild has brought.

    Attributes:
        rows: live rows of the table now; -1 if its log does not say.
        bytes: bytes of its data files.
    """

    rows: int
    bytes: int


def replace(path: str, number: int, *, storage_options: Options = None) -> Replaced | None:
    """Brings a table that was made anew into its place; done again it changes nothing.

    Args:
        path: folder of the table.
        number: of the rebuild; none is used twice for a table.
        storage_options: of delta-rs.

    Returns:
        None if nothing has been written to it, as where the source has no row: the table has none
        either then, and its columns are as they were.

    Raises:
        TableError: the old table's log, or the new one's, cannot be read; `lake-refused`.
        DependencyError: the lake does not answer or refuses; the same call again later goes on.
    """
    options = dict(storage_options or {})
    store = TableStore(path, options)

    def attempt() -> Replaced | None:
        old = _files(path, options)
        if old is not None and old.recorded.get(RECORD, -1) >= number:
            return Replaced(old.rows, old.bytes)
        new = _files(rebuild_path(path, number), options)
        if new is None:
            _empty(store, old)
            return None
        stale = [f"{_PENDING}/{one.base_name}" for one in store.listing(_PENDING)]
        halves = _move(store, number, new)
        crashpoints.reach(crashpoints.BEFORE_REPLACED)
        if table_log.commit(store, old or _NEW, _actions(old, new, number)) is None:
            raise Conflict("another writer's version came first")
        crashpoints.reach(crashpoints.AFTER_REPLACED)
        for name in set(stale) - set(halves):  # of the old table; another process may not know it
            store.delete(name)
        return Replaced(new.rows, new.bytes)

    with told(path):
        done = retried(path, attempt)
        if done is not None:
            _checkpoint(path, options)
            discard(path, storage_options=options)
    return done


def discard(path: str, *, storage_options: Options = None) -> None:
    """Delete all that rebuilds of a table have written beside it.

    Raises:
        DependencyError: the lake does not answer or refuses.
    """
    with told(path):
        TableStore(path, dict(storage_options or {})).delete_folders(OWN_FOLDER, REBUILDS)


def _files(path: str, options: Mapping[str, str]) -> TableFiles | None:
    opened = open_table(path, options)
    if opened is None:
        return None
    with told(path):
        return table_log.load(
            TableStore(path, dict(options)), opened.version(), table_id=str(opened.metadata().id)
        )


def _move(store: TableStore, number: int, new: TableFiles) -> list[str]:
    """Give the new table's files their names in the old one's folder; return those of halves."""
    if store.local is not None:
        (store.local / table_log.LOG).mkdir(parents=True, exist_ok=True)
    own = rebuild_folder(number)
    vectors = (one.vector for one in new.files.values())
    names = {roaring.file_of(v["pathOrInlineDv"]) for v in vectors if v and v["storageType"] == "u"}
    names |= {one.path for one in new.files.values()}
    halves = [f"{_PENDING}/{one.base_name}" for one in store.listing(f"{own}/{_PENDING}")]
    with ThreadPoolExecutor(_AT_ONCE, "lakemark-rebuild") as pool:
        list(pool.map(lambda name: store.copy(f"{own}/{name}", name), [*names, *halves]))
    store.keep(halves)  # the others are kept by the commit that names them
    return halves


def _actions(old: TableFiles | None, new: TableFiles, number: int) -> list[Action]:
    now = time.time_ns() // 1_000_000
    recorded = {**new.recorded, RECORD: number}
    actions: list[Action] = [
        table_actions.info("REPLACE TABLE AS SELECT", now, -1 if old is None else old.version),
        {"protocol": _protocol(old, new)},
        {"metaData": _metadata(old, new)},
    ]
    actions += [
        {"txn": {"appId": app_id, "version": version, "lastUpdated": now}}
        for app_id, version in recorded.items()
    ]
    if old is not None:
        actions += _removals(old, now)
    actions += [
        {"add": {**one.add, "modificationTime": now, "dataChange": True}}
        for one in new.files.values()
    ]
    return actions


def _removals(old: TableFiles, now: int) -> Iterable[Action]:
    return (table_actions.removal(one, now, data_change=True) for one in old.files.values())


def _metadata(old: TableFiles | None, new: TableFiles) -> dict[str, Any]:
    """The new table's, under the identity of the old one, whose other properties are kept."""
    if old is None:
        return new.metadata
    own = dict(new.metadata.get("configuration") or {})
    kept = {
        name: value
        for name, value in (old.metadata.get("configuration") or {}).items()
        if not name.startswith(_OF_FILES)
    }
    told = {
        name: old.metadata[name]
        for name in ("id", "name", "description", "createdTime")
        if old.metadata.get(name) is not None
    }
    return {**new.metadata, **told, "configuration": {**own, **kept}}


def _protocol(old: TableFiles | None, new: TableFiles) -> Action:
    """The new table's, with what the old one's properties need; nothing for its files."""
    if old is None:
        return new.protocol
    return table_actions.joined_protocol(old.protocol, new.protocol)


def _empty(store: TableStore, old: TableFiles | None) -> None:
    """The source has no row, and nothing says what its columns are now."""
    if old is None or not old.files:
        return
    now = time.time_ns() // 1_000_000
    actions = [table_actions.info("DELETE", now, old.version), *_removals(old, now)]
    if table_log.commit(store, old, actions) is None:
        raise Conflict("another writer's version came first")


def _checkpoint(path: str, options: Mapping[str, str]) -> None:
    """Readers that know less than the old table needed need not read what it was."""
    try:
        DeltaTable(path, storage_options=dict(options) or None).create_checkpoint()
    except Exception:  # no reason to stop: upkeep makes one soon
        log.exception("rebuild.no_checkpoint", path=path)
