"""The state of a Delta table read from its log: files with their deletion vectors.

delta-rs shows files without their vectors. `load` reads the newest checkpoint and the commits after
it, or only the commits since this process looked last; a `LogTable` answers by that as delta-rs's
own would.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from time import monotonic
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.table import ProtocolVersions

from lakemark.errors import TableError
from lakemark.settings.masking import foreign
from lakemark.sink.delta import roaring
from lakemark.sink.delta.failures import damaged
from lakemark.sink.delta.object_client import NO_FILE, Stamp
from lakemark.sink.delta.table_store import TableStore

LOG: Final = "_delta_log"
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet$")
VECTORS: Final = "deletionVectors"  # the table feature
# States kept in memory: a worker seldom has so many tables.
_KEPT: Final = 256
_SEEN_S: Final = 3600.0

Action = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a table's version, and what is deleted of it.

    Attributes:
        add: the log's action, as it is to be written again.
        stats: its statistics; empty if it has none.
    """

    add: Action
    stats: Action

    @property
    def path(self) -> str:
        """Relative to the table's folder."""
        return unquote(self.add["path"])

    @property
    def vector(self) -> Action | None:
        """The descriptor of its deletion vector."""
        found: Action | None = self.add.get("deletionVector")
        return found

    @property
    def records(self) -> int:
        """Rows in the file, deleted ones included; -1 if the log does not say."""
        return int(self.stats.get("numRecords", -1))

    @property
    def deleted(self) -> int:
        """Rows that its vector deletes."""
        return int(self.vector["cardinality"]) if self.vector else 0

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.add["size"])


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A version of a table.

    Attributes:
        version: its number.
        files: by path as the log has it.
        protocol, metadata: the log's actions.
        gone: removed files whose tombstones the log still has; empty unless asked for.
        stamp: of the newest commit's file.
        recorded: versions of transactions by app id.
        seen: when this process found it to be the newest, by the monotonic clock.
    """

    version: int
    files: Mapping[str, DataFile]
    protocol: Action
    metadata: Action
    gone: tuple[Action, ...] = ()
    stamp: Stamp = NO_FILE
    recorded: Mapping[str, int] = field(default_factory=dict)
    seen: float = field(default_factory=monotonic, compare=False)

    @property
    def rows(self) -> int:
        """Live rows; -1 if a file does not say."""
        if any(file.records < 0 for file in self.files.values()):
            return -1
        return sum(file.records - file.deleted for file in self.files.values())

    @property
    def bytes(self) -> int:
        """Bytes of the data files."""
        return sum(file.size for file in self.files.values())

    @property
    def vectors_on(self) -> bool:
        """Say whether deletion vectors may be written."""
        return VECTORS in (self.protocol.get("writerFeatures") or ())


@dataclass(slots=True)
class _Replay:
    files: dict[str, DataFile] = field(default_factory=dict)
    protocol: Action = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    gone: list[Action] | None = None
    recorded: dict[str, int] = field(default_factory=dict)

    @classmethod
    def after(cls, known: TableFiles) -> "_Replay":
        """One that goes on from a version."""
        return cls(dict(known.files), known.protocol, known.metadata, recorded=dict(known.recorded))

    def at(self, version: int, stamp: Stamp) -> TableFiles:
        """Return the state that was read so far, as a version of the table."""
        return TableFiles(
            version,
            self.files,
            self.protocol,
            self.metadata,
            tuple(self.gone or ()),
            stamp,
            self.recorded,
        )

    def commit(self, actions: Iterable[Action]) -> None:
        """One version: its removals first, since the order within is not defined."""
        added: list[Action] = []
        for action in actions:
            if "remove" in action:
                self._remove(action["remove"])
            elif "add" in action:
                added.append(action["add"])
            elif "metaData" in action:
                self.metadata = action["metaData"]
            elif "protocol" in action:
                self.protocol = action["protocol"]
            elif "txn" in action:
                self.recorded[action["txn"]["appId"]] = action["txn"]["version"]
        for add in added:
            self.files[add["path"]] = data_file(add)

    def _remove(self, remove: Action) -> None:
        if self.gone is not None:
            self.gone.append(remove)
        file = self.files.get(remove["path"])
        if file is not None and vector_id(file.vector) == vector_id(remove.get("deletionVector")):
            del self.files[remove["path"]]


def data_file(add: Action) -> DataFile:
    """The file of an `add` action."""
    plain = {name: value for name, value in add.items() if value is not None}
    return DataFile(plain, json.loads(plain.get("stats") or "{}"))


def vector_id(vector: Action | None) -> str:
    """Return the id that tells the vectors of one file apart; empty for none."""
    if not vector:
        return ""
    offset = vector.get("offset")
    name = f"{vector['storageType']}{vector['pathOrInlineDv']}"
    return name if offset is None else f"{name}@{offset}"


_states: OrderedDict[str, TableFiles] = OrderedDict()
_guard: Final = Lock()


def load(store: TableStore, version: int, *, table_id: str = "") -> TableFiles:
    """The table at a version.

    Args:
        store: the table's folder.
        version: one that exists.
        table_id: of the metadata; what this process knows of another table is not used.

    Raises:
        FileNotFoundError: the log lacks a commit, or another file.
        OSError: the store does not answer or refuses.
    """
    known = _known(store, version, table_id)
    replay = _Replay()
    start = -1
    if known is not None:
        replay = _Replay.after(known)
        start = known.version
    found = _forward(store, replay, start, version)
    now = last_known(store.path)
    newer = now is not None and now.version > version and now.metadata.get("id") == table_id
    # A later version that is still there stays: `newest` goes on from it.
    return found if newer and now is not None and _is_there(store, now) else _keep(store, found)


def newest(store: TableStore) -> TableFiles | None:
    """The newest version, on from the one that this process saw last; None if none of those counts.

    The commits since are asked for one by one, so that costs what has happened since, however long
    the log is. A version counts for an hour: nobody removes commits that are younger.

    Raises:
        OSError: the store does not answer or refuses.
    """
    known = last_known(store.path)
    now = monotonic()
    if known is None or now - known.seen > _SEEN_S or not _is_there(store, known):
        return None
    replay, version = None, known.version
    with suppress(FileNotFoundError):
        while True:
            actions = _commit(store, version + 1)
            replay = replay or _Replay.after(known)
            replay.commit(actions)
            version += 1
    if replay is None:
        return _keep(store, replace(known, seen=now))
    return _keep(store, replay.at(version, store.stamp(commit_name(version))))


def _commit(store: TableStore, version: int) -> list[Action]:
    lines = store.read(commit_name(version)).splitlines()
    try:
        return [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise damaged(store.path, f"{commit_name(version)} is no JSON") from error


def _keep(store: TableStore, found: TableFiles) -> TableFiles:
    with _guard:
        _states[store.path] = found
        _states.move_to_end(store.path)
        while len(_states) > _KEPT:
            _states.popitem(last=False)
    return found


def last_known(path: str) -> TableFiles | None:
    """The version that this process saw last, without looking again; None if it saw none."""
    with _guard:
        return _states.get(path)


def forget() -> None:
    """Drops what this process knows of tables."""
    with _guard:
        _states.clear()


def load_whole(store: TableStore, version: int) -> TableFiles:
    """The table at a version with its tombstones, from nothing but the log.

    Raises:
        FileNotFoundError, OSError: as `load`.
    """
    return _forward(store, _Replay(gone=[]), -1, version)


def _known(store: TableStore, version: int, table_id: str) -> TableFiles | None:
    with _guard:
        known = _states.get(store.path)
    if known is None or known.version > version or known.metadata.get("id") != table_id:
        return None
    try:
        return known if _is_there(store, known) else None
    except OSError:
        return None


def _is_there(store: TableStore, known: TableFiles) -> bool:
    """Say whether the newest commit of a version is still that very file."""
    return known.stamp != NO_FILE and store.stamp(commit_name(known.version)) == known.stamp


def _forward(store: TableStore, replay: _Replay, start: int, version: int) -> TableFiles:
    if start < 0:
        start = _from_checkpoint(store, replay, version)
    for number in range(start + 1, version + 1):
        replay.commit(_commit(store, number))
    return replay.at(version, store.stamp(commit_name(version)))


def commit_name(version: int) -> str:
    """The commit's file, relative to the table's folder."""
    return f"{LOG}/{version:020d}.json"


def newest_checkpoint(store: TableStore, version: int) -> tuple[int, list[str]]:
    """The newest whole checkpoint up to a version, whoever wrote it, and its files.

    Returns:
        Its version, -1 without any; files by name, sorted.

    Raises:
        OSError: the store does not answer or refuses.
    """
    parts: dict[tuple[int, int], list[str]] = {}
    for info in store.listing(LOG):
        match = _CHECKPOINT.search(info.base_name)
        if match and int(match[1]) <= version:
            parts.setdefault((int(match[1]), int(match[3] or 1)), []).append(info.base_name)
    whole = [(at, count) for (at, count), names in parts.items() if len(names) == count]
    if not whole:
        return -1, []
    at, count = max(whole)
    return at, sorted(parts[at, count])


def _from_checkpoint(store: TableStore, replay: _Replay, version: int) -> int:
    """Fills in the newest whole checkpoint up to `version`; its version, -1 without any."""
    at, names = newest_checkpoint(store, version)
    for name in names:
        _read_checkpoint(store, f"{LOG}/{name}", replay)
    return at


def _read_checkpoint(store: TableStore, name: str, replay: _Replay) -> None:
    file = store.parquet(name)
    columns = ["add", "protocol", "metaData", "txn"]
    if replay.gone is not None:
        columns.append("remove")
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=columns)
        for kind in table.column_names:
            column = table.column(kind).drop_null()
            for value in column.to_pylist():
                plain = _plain(value, column.type)
                if kind == "remove":
                    if replay.gone is not None:
                        replay.gone.append(plain)
                else:
                    replay.commit([{kind: plain}])


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A checkpoint's value as JSON would have it: maps as objects, nulls left out."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        members = {f.name: _plain(value[f.name], f.type) for f in kind}
        return {
            name: member
            for name, member in members.items()
            if member is not None and not name.endswith("_parsed")
        }
    if pa.types.is_map(kind):
        return dict(value)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(entry, kind.value_type) for entry in value]
    return value


def commit(store: TableStore, before: TableFiles, actions: Iterable[Action]) -> TableFiles | None:
    """Puts the version after `before` in place; None if somebody else did.

    Its `commitInfo` must tell it from every other commit: by it `TableStore.put_absent` knows it
    again when the answer was lost.

    Raises:
        OSError: the store does not answer or refuses.
        TableError: as `TableStore.put_absent`.
    """
    actions = list(actions)
    lines = [json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions]
    name = commit_name(before.version + 1)
    blob = ("\n".join(lines) + "\n").encode()
    stamp = store.put_absent(name, blob, names=_named(actions, before))
    if stamp is None:
        return None
    replay = _Replay.after(before)
    replay.commit(actions)
    return _keep(store, replay.at(before.version + 1, stamp))


def _named(actions: Iterable[Action], before: TableFiles) -> set[str]:
    """Return the files that a commit names and the version before did not."""
    added = [data_file(action["add"]) for action in actions if "add" in action]
    known = set(map(vector_id, (file.vector for file in before.files.values())))
    new = (one.vector for one in added if vector_id(one.vector) not in known)
    vectors = {roaring.file_of(v["pathOrInlineDv"]) for v in new if v and v["storageType"] == "u"}
    return vectors | {one.path for one in added if one.add["path"] not in before.files}


def keep(store: TableStore, versions: Iterable[int]) -> None:
    """Make commits of delta-rs durable, and the data files that they add, on a local disk.

    Raises:
        OSError: the disk refuses.
        TableError: `table-damaged`.
    """
    if store.local is None:
        return
    names: list[str] = []
    for version in versions:
        with suppress(FileNotFoundError):  # the log was cleaned up to here: it is an old one
            added = (action["add"] for action in _commit(store, version) if "add" in action)
            names += [commit_name(version), *(data_file(add).path for add in added)]
    if names:
        store.keep(names)


def read_vector(store: TableStore, vector: Action, files: dict[str, bytes]) -> roaring.Rows:
    """The rows that a deletion vector deletes.

    Args:
        store: the table's folder.
        vector: its descriptor.
        files: files of vectors that were read before, by name; more are put in.

    Raises:
        TableError: `lake-refused`: it is damaged, or of a kind that is not known.
        FileNotFoundError, OSError: as `TableStore.read`.
    """
    kind, text, size = vector["storageType"], vector["pathOrInlineDv"], int(vector["sizeInBytes"])
    try:
        if kind == "i":
            return roaring.decode(roaring.unz85(text)[:size])
        if kind == "u":
            name = roaring.file_of(text)
            if name not in files:
                files[name] = store.read_kept(name)
            offset = int(vector.get("offset") or 0)
            return roaring.decode(roaring.unframed(files[name], offset, size))
    except roaring.BadVectorError as error:
        raise TableError(
            f"{store.path}: {foreign(error)}",
            code="lake-refused",
            hint="report this message; the table resumes where it stopped",
        ) from error
    raise TableError(
        f"{store.path} has deletion vectors outside its folder",
        code="lake-refused",
        hint="a shallow clone cannot be written: set this table's path to a folder of its own",
    )


@dataclass(frozen=True, slots=True)
class Metadata:
    """The part of delta-rs's own metadata that is used here."""

    id: str
    name: str | None
    configuration: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LogTable:
    """A version of a table, asked as a `DeltaTable` would be.

    Opening one of these costs what has been committed since this process saw the table last;
    delta-rs lists the log's folder each time.

    Attributes:
        files: the version.
    """

    files: TableFiles

    def version(self) -> int:
        """Its number."""
        return self.files.version

    def schema(self) -> Schema:
        """The table's own, from its metadata."""
        return Schema.from_json(self.files.metadata["schemaString"])

    def metadata(self) -> Metadata:
        """Id, name and properties."""
        found = self.files.metadata
        return Metadata(found["id"], found.get("name"), found.get("configuration") or {})

    def protocol(self) -> ProtocolVersions:
        """Versions and features."""
        found = self.files.protocol
        return ProtocolVersions(
            min_reader_version=found["minReaderVersion"],
            min_writer_version=found["minWriterVersion"],
            reader_features=found.get("readerFeatures"),
            writer_features=found.get("writerFeatures"),
        )

    def transaction_version(self, app_id: str) -> int | None:
        """The version that is recorded for an app id."""
        return self.files.recorded.get(app_id)


Opened = DeltaTable | LogTable
