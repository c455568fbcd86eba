"""The engine with deletion vectors: merges one batch into one Delta table without rewriting files.

The rules are those of task merge. A batch writes its new row versions as one file, marks the rows
that they replace in the deletion vectors of their files, and commits both together:

1. look up what the table has recorded for the app id: as far as `version`, nothing is done;
2. find the rows of the batch's keys: by an index of each file (`index_cache`), made once;
3. read those of them whose values count (`row_rules`);
4. write one data file and one file of deletion vectors;
5. put the next version of the log in place, if nobody has; otherwise begin again at 1.

Rows of chunks that stay in their data files (`chunk_files`) take part as upserts: their file goes
into the table as it is, and a deletion vector hides the rows that do not count.

The first batch gives a table of task merge the feature, in the same commit. Files of deletion
vectors are in the table's folder `_lakemark`, where delta-rs's full vacuum, which takes them for
orphans anywhere else, does not look.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.errors import DependencyError
from lakemark.model.arrays import one_array
from lakemark.sink import row_rules
from lakemark.sink.delta import roaring, table_actions, table_log
from lakemark.sink.delta.chunk_files import InFile, data_file, present
from lakemark.sink.delta.commits import Options, existing, retried
from lakemark.sink.delta.data_files import (
    LakeKey,
    NewFile,
    Places,
    index_of,
    may_meet,
    read_rows,
)
from lakemark.sink.delta.deletion_vectors_rows import Finder, Hits, files_of
from lakemark.sink.delta.engines import DELETION_VECTORS
from lakemark.sink.delta.failures import Conflict, told
from lakemark.sink.delta.key_index import KeyWords
from lakemark.sink.delta.table_log import Action, DataFile, Opened, TableFiles
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.names import CDC, OWN_FOLDER
from lakemark.sink.row_rules import Flags, PairDecision
from lakemark.sink.table_sink import MergeResult, TableSize
from lakemark.sink.write_set import DELETE, INSERT, UPSERT, Staged, prepare

VECTORS_FOLDER: Final = OWN_FOLDER


def merge(
    path: str,
    write_set: pa.Table,
    *,
    key: Sequence[str],
    deletes: str,
    app_id: str,
    version: int,
    storage_options: Options = None,
    opened: Opened | None = None,
    files: Sequence[InFile] = (),
    note: str = "",
) -> MergeResult:
    """Applies a write set in one commit, exactly once per (app_id, version); as `delta_rs.merge`.

    Args:
        path: folder of the table.
        write_set: see `write_set`.
        key: source names of the key columns.
        deletes: `hard` or `soft`.
        app_id: under which the commit is recorded.
        version: that is recorded.
        storage_options: of delta-rs.
        opened: the table, if it is open already.
        files: rows of chunks in data files that the table can have as they are. No two of them,
            and none of the write set, have the same key.
        note: what the commit says of itself, see `commit_note`.

    Raises:
        TableError: as `delta_rs.merge`; `lake-refused` for deletion vectors that cannot be read.
        DependencyError: as `delta_rs.merge`.
    """
    given = [opened]

    def attempt() -> MergeResult:
        with told(path):
            now = given.pop() if given else None
            table = existing(path, storage_options, now, engine=DELETION_VECTORS)
            store = TableStore(path, dict(storage_options or {}))
            before = files_of(table, store)
            recorded = table.transaction_version(app_id)
            if recorded is not None and recorded >= version:
                return _result(before, skipped=True)
            if not (write_set.num_rows or files):
                return _result(before)
            _require_new(path, files, before)
            table_actions.check_writable(path, before)
            schema = pa.schema(table.schema().to_arrow())
            staged = prepare(write_set, schema, key=key)
            batch = _Batch(store, before, staged, schema, deletes)
            return batch.commit(files, app_id, version, note=note)

    return retried(path, attempt)


def _require_new(path: str, files: Sequence[InFile], before: TableFiles) -> None:
    """Check that no file is added twice: a process that was superseded may have added one since.

    Raises:
        DependencyError: `lake-busy`: the rows of a file that the table has are to be read from it.
    """
    known = {file.path for file in before.files.values()}
    for given in files:
        if given.file.path in known:
            raise DependencyError(
                f"{path} has got the file {given.file.path} from another process meanwhile",
                code="lake-busy",
                hint="it is tried again by itself",
            )


def size_of(table: Opened, path: str, storage_options: Options = None) -> TableSize:
    """Live rows, bytes and files of the version that is open, from the log alone.

    Raises:
        DependencyError, TableError: as `commits.open_table`.
    """
    with told(path):
        found = files_of(table, TableStore(path, dict(storage_options or {})))
    return TableSize(rows=found.rows, bytes=found.bytes, files=len(found.files))


def _result(
    files: TableFiles,
    *,
    inserted: int = 0,
    updated: int = 0,
    deleted: int = 0,
    skipped: bool = False,
) -> MergeResult:
    return MergeResult(
        inserted,
        updated,
        deleted,
        skipped=skipped,
        rows=files.rows,
        files=len(files.files),
        bytes=files.bytes,
    )


@dataclass(slots=True)
class _Effects:
    """The effects of a batch: counts, rows to add, rows to delete by file."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    given: list[Places] = field(default_factory=list)
    rows: list[pa.Table] = field(default_factory=list)
    gone: list[tuple[Hits, Places]] = field(default_factory=list)
    adopted: list[tuple[DataFile, Places]] = field(default_factory=list)

    def beat(self, hits: Hits, rows: Places) -> None:
        """Rows of a file are replaced."""
        self.gone.append((hits, rows))
        self.updated += len(rows)


class _Batch:
    """One write set against one version of a table."""

    def __init__(
        self,
        store: TableStore,
        before: TableFiles,
        staged: Staged,
        schema: pa.Schema,
        deletes: str,
    ) -> None:
        self.store, self.before, self.staged = store, before, staged
        self.schema, self.deletes = schema, deletes
        names = sorted((c.name, c.staged) for c in staged.shape.key)
        self.key = LakeKey(tuple(pa.field(n, schema.field(n).type) for n, _ in names))
        self.keys = pa.table([staged.table.column(s) for _, s in names], names=self.key.names)
        self.table = Finder(store, before, self.key)

    def commit(
        self, files: Sequence[InFile], app_id: str, version: int, *, note: str
    ) -> MergeResult:
        """Steps 2 to 5.

        Raises:
            Conflict: another writer committed first.
        """
        now = time.time_ns() // 1_000_000
        effects = self._effects()
        for file in files:
            self._add_file(file, effects, now)
        new = self._new_file(effects, now)
        marked, vectors = self._marked(effects, now)
        actions: list[Action] = [
            table_actions.info("MERGE", now, self.before.version, note=note),
            {"txn": {"appId": app_id, "version": version, "lastUpdated": now}},
            *table_actions.adoption(self.before),
            *marked,
            *new,
        ]
        after = table_log.commit(self.store, self.before, actions)
        if after is None:
            for name in [*vectors, *(add["add"]["path"] for add in new)]:
                self.store.delete(name)
            raise Conflict(f"version {self.before.version + 1} is another writer's")
        return _result(
            after,
            inserted=effects.inserted,
            updated=effects.updated,
            deleted=effects.deleted,
        )

    # -- deciding --------------------------------------------------------------------------------

    def _effects(self) -> _Effects:
        found = _Effects()
        staged = self.staged
        decided = row_rules.decided(staged, self.schema, deletes=self.deletes)
        forced = row_rules.forced(staged)
        nothing = row_rules.is_action(staged, INSERT) & (self.deletes == "hard")
        removes = row_rules.is_action(staged, DELETE)
        positions = one_array(staged.table.column(CDC)).field("position")
        matched = np.zeros(staged.table.num_rows, bool)
        for hits in self.table.by_key(self.keys):
            source = hits.source
            matched[source] = True
            sure = forced | _newer(positions, hits.newest)
            blind = (decided & sure)[source]
            found.given.append(source[blind & ~removes[source]])
            gone = [hits.rows[blind]]
            found.deleted += int((blind & removes[source]).sum())
            found.updated += int((blind & ~removes[source]).sum())
            seen = ~blind & ~nothing[source]
            for which, names in (
                (seen & decided[source], []),
                (seen & ~decided[source], row_rules.needed(staged, self.schema, self.deletes)),
            ):
                if which.any():
                    rows, decision = self._seen(hits, np.flatnonzero(which), names)
                    gone.append(rows)
                    found.rows.append(decision.rows)
                    found.updated += decision.updated
                    found.deleted += decision.deleted
            found.gone.append((hits, np.concatenate(gone)))
        new = ~matched & row_rules.is_action(staged, UPSERT, INSERT)
        found.inserted = int(new.sum())
        found.given.append(np.flatnonzero(new))
        return found

    def _add_file(self, chunk: InFile, effects: _Effects, now: int) -> None:
        """The rows of a chunk's file that count, and those of the table that they replace.

        Of the table's rows only those stay that are newer than the chunk.
        """
        file = data_file(chunk.file)
        count = len(chunk.rows)
        met, lost = np.zeros(count, bool), np.zeros(count, bool)
        whole = count == file.records
        place = np.full(file.records, -1)
        place[chunk.rows] = np.arange(count)
        with present(chunk.file):
            if self.store.stamp(file.path)[0] != file.size:
                raise FileNotFoundError
            found = list(self._hits_of(file))
        for hits in found:
            source = hits.source if whole else place[hits.source]
            counts = source >= 0
            source, rows = source[counts], hits.rows[counts]
            met[source] = True
            if hits.newest > chunk.position:
                order = np.argsort(rows, kind="stable")
                source, rows = source[order], rows[order]
                old = read_rows(self.store, hits.file, rows, pa.schema([self.schema.field(CDC)]))
                positions = pc.struct_field(old.column(CDC), "position").cast(pa.binary())
                newer = pc.greater(positions, pa.scalar(chunk.position, pa.binary()))
                stays = pc.fill_null(newer, False).to_numpy()  # noqa: FBT003
                lost[source[stays]] = True
                rows = rows[~stays]
            effects.beat(hits, rows)
        effects.inserted += int((~met).sum())
        add = {**file.add, "modificationTime": now, "dataChange": True}
        hidden = np.ones(file.records, bool)
        hidden[chunk.rows[~lost]] = False
        effects.adopted.append((DataFile(add, file.stats), np.flatnonzero(hidden)))

    def _hits_of(self, file: DataFile) -> Iterable[Hits]:
        """Rows of the table with keys of a file that it has not yet; `source` is a row of that."""
        there = [one for one in self.before.files.values() if may_meet(one, file, self.key)]
        if not there:
            return
        own = index_of(self.store, file, self.key, self.table.table_id)
        yield from self.table.hits(there, KeyWords(own.first, own.second), own.row.astype(np.int64))

    def _seen(self, hits: Hits, which: Places, names: list[str]) -> tuple[Places, PairDecision]:
        """Return the table's rows that go, and the decision about pairs, by those rows."""
        which = which[np.argsort(hits.rows[which], kind="stable")]
        rows = hits.rows[which]
        schema = pa.schema([self.schema.field(n) for n in [*names, CDC]])
        old = read_rows(self.store, hits.file, rows, schema)
        decision = row_rules.decide(
            self.staged, hits.source[which], old, self.schema, deletes=self.deletes
        )
        return rows[decision.gone], decision

    # -- writing ---------------------------------------------------------------------------------

    def _new_file(self, effects: _Effects, now: int) -> list[Action]:
        given = np.concatenate(effects.given)
        rows = [row_rules.as_given(self.staged, given, self.schema), *effects.rows]
        whole_set = row_rules.together(rows, self.schema)
        if not whole_set.num_rows:
            return []
        new = NewFile(self.schema, self.key)
        new.add(whole_set)
        return [new.write(self.store, self.table.table_id, now, data_change=True)]

    def _marked(self, effects: _Effects, now: int) -> tuple[list[Action], list[str]]:
        """The actions that delete rows, and the file of vectors that was written for them."""
        writer = VectorWriter(self.store)
        actions: list[Action] = []
        by_file: dict[str, tuple[Hits, list[Places]]] = {}
        for hits, rows in effects.gone:
            if len(rows):
                by_file.setdefault(hits.file.path, (hits, [hits.deleted]))[1].append(rows)
        for file, hidden in effects.adopted:
            if not len(hidden):
                actions.append({"add": file.add})
            elif len(hidden) < file.records:
                vector = writer.add(hidden)
                actions.append(table_actions.with_vector(file, vector, file.records))
        for hits, found in by_file.values():
            deleted = _union(found, hits.records)
            actions.append(table_actions.removal(hits.file, now, data_change=True))
            if len(deleted) < hits.records:
                vector = writer.add(deleted)
                actions.append(table_actions.with_vector(hits.file, vector, hits.records))
        return actions, writer.write()


def _union(found: Sequence[Places], records: int) -> Places:
    """Rows of a file with so many that are in any of several sets."""
    if sum(map(len, found)) < records // 64:  # few of many: to sort them costs less
        return np.unique(np.concatenate(found))
    marked = np.zeros(records, bool)
    for rows in found:
        marked[rows] = True
    return np.flatnonzero(marked)


def _newer(positions: pa.Array, bound: bytes) -> Flags:
    """Mark the positions that are not below a bound."""
    if not bound:
        return np.ones(len(positions), bool)
    found: Flags = pc.greater_equal(positions, pa.scalar(bound, positions.type)).to_numpy(
        zero_copy_only=False
    )
    return found


class VectorWriter:
    """Collects deletion vectors, and writes them as one file."""

    def __init__(self, store: TableStore) -> None:
        self.store = store
        self._number = uuid4()
        self._data = bytearray(roaring.FILE_VERSION)

    def add(self, rows: Places) -> Action:
        """A set of rows; its descriptor."""
        data = roaring.encode(rows)
        offset = len(self._data)
        self._data += roaring.framed(data)
        return {
            "storageType": "u",
            "pathOrInlineDv": roaring.named(VECTORS_FOLDER, self._number),
            "offset": offset,
            "sizeInBytes": len(data),
            "cardinality": len(rows),
        }

    def write(self) -> list[str]:
        """Writes the file; its name, none without any vectors.

        Raises:
            OSError: the store does not answer or refuses.
        """
        if len(self._data) == len(roaring.FILE_VERSION):
            return []
        name = roaring.file_of(roaring.named(VECTORS_FOLDER, self._number))
        self.store.write_kept(name, bytes(self._data))
        return [name]
