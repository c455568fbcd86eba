"""Notes that a table has about itself: a property, by a commit of its own that changes no row."""

import time
from typing import Final

from lakemark.sink.delta import table_actions, table_log, table_store
from lakemark.sink.delta.commits import Options, open_table, retried
from lakemark.sink.delta.failures import Conflict, told
from lakemark.sink.delta.table_store import TableStore

_TIMED: Final = "delta.enableInCommitTimestamps"


def note(path: str, name: str, text: str, *, storage_options: Options = None) -> bool:
    """Give a table a property, in one commit that has the text as its message (`userMetadata`).

    The commit is the next version of the log, whichever engine writes the table. Done again it
    changes nothing.

    Args:
        path: folder of the table.
        name: of the property.
        text: its value.
        storage_options: of delta-rs.

    Returns:
        False if there is no table, if each of its commits must have the time in it, or where a
        commit of ours and one of delta-rs would not respect each other (HDFS, a lock in DynamoDB):
        nothing was done.

    Raises:
        TableError: the table's log cannot be read.
        DependencyError: the lake does not answer or refuses.
    """
    options = dict(storage_options or {})
    store = TableStore(path, options)
    if not store.is_conditional:
        return False

    def attempt() -> bool:
        with told(path):
            opened = open_table(path, options)
            if opened is None or opened.metadata().configuration.get(_TIMED) == "true":
                return False
            if opened.metadata().configuration.get(name) == text:
                table_log.keep(store, [opened.version()])
                return True
            old = table_log.load(store, opened.version(), table_id=str(opened.metadata().id))
            settings = {**(old.metadata.get("configuration") or {}), name: text}
            info = table_actions.info("SET TBLPROPERTIES", time.time_ns() // 1_000_000, old.version)
            info["commitInfo"]["userMetadata"] = text
            metadata = {"metaData": {**old.metadata, "configuration": settings}}
            if table_log.commit(store, old, [info, metadata]) is None:
                raise Conflict("another writer's version came first")
            table_store.settle()
            return True

    return retried(path, attempt)
