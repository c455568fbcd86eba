"""The pipeline's newest state, read without Spark: from the checkpoint, else the progress topic.

The checkpoint is on any Hadoop file system. Local ones are read as files, object stores through
delta-rs with ``lake.storage_options``. Nothing is written, claimed or repaired.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow.fs as pafs
from deltalake._internal import DeltaFileSystemHandler

from lakemark.errors import DependencyError
from lakemark.kafka.records import read_compacted
from lakemark.model.offsets import Offsets
from lakemark.settings.config import Config
from lakemark.settings.masking import foreign
from lakemark.state import stored_form, tables
from lakemark.state.checkpoint import Identity
from lakemark.state.progress import tables_of
from lakemark.state.tables import PipelineState, TableState

_OWN: Final = "lakemark"
_QUERY: Final = "metadata"
_STATES: Final = "lakemark/state"
_TOPICS: Final = "topics.json"
_IDENTITY: Final = "pipeline.json"


@dataclass(frozen=True, slots=True)
class Stored:
    """The content of the pipeline's own files in the checkpoint.

    Attributes:
        state: of the newest batch; None before the first.
        topics: Kafka's ids of the change topics as they were when they were read.
        made_for: settings that the checkpoint was made with, as text by dotted path; None if it was
            never used.
        query: id of the query; empty before its first start.
    """

    state: PipelineState | None
    topics: Mapping[str, str]
    made_for: Mapping[str, str] | None = None
    query: str = ""


def newest_state(config: Config) -> Stored:
    """Return the newest state in the checkpoint.

    Raises:
        DependencyError: the checkpoint cannot be read from here.
        StateVersionError: a newer version of lakemark wrote it.
    """
    with _reading(config) as files:
        return stored_in(files)


def kept_states(config: Config) -> list[PipelineState]:
    """Return the states of the newest batches, as many as the checkpoint keeps, the oldest first.

    Raises:
        DependencyError, StateVersionError: as `newest_state`.
    """
    with _reading(config) as files:
        batches = sorted(_batches(files))
        return [stored_form.decode(files.read(f"{_STATES}/{batch}.json")) for batch in batches]


@contextmanager
def _reading(config: Config) -> Iterator["_Local | _Store"]:
    folder = local(config.checkpoint)
    try:
        yield (
            _Local(folder)
            if folder is not None
            else _Store(config.checkpoint, config.lake.options())
        )
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise DependencyError(
            f"the checkpoint {config.checkpoint} cannot be read: {foreign(error)}",
            code="checkpoint-unavailable",
            hint="check the path, its rights and lake.storage_options",
        ) from error


def paused_tables(config: Config) -> PipelineState:
    """Return the progress topic's tables that do not stream; their first offsets not applied.

    Raises:
        DependencyError: Kafka is away.
    """
    known = tables_of(read_compacted(config, config.topics.progress))
    found = {name: entry for name, entry in known.items() if entry.state != tables.STREAMING}
    return PipelineState(tables=found, offsets=_first(found.values()))


def _first(entries: Iterable[TableState]) -> Offsets:
    """Return the lowest offset that any of the tables needs, by topic and partition."""
    first: Offsets = {}
    for entry in entries:
        for topic, partitions in entry.progress.from_offsets.items():
            for partition, offset in partitions.items():
                known = first.setdefault(topic, {}).get(partition, offset)
                first[topic][partition] = min(known, offset)
    return first


def local(path: str) -> Path | None:
    """Return the folder of a local location; None for object stores and Hadoop."""
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    return None if "://" in path else Path(path)


class _Local:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self, folder: str) -> list[str]:
        place = self._folder / folder
        return [path.name for path in place.iterdir()] if place.exists() else []

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()


class _Store:
    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._handler: Any = DeltaFileSystemHandler(url, dict(options))

    def names(self, folder: str) -> list[str]:
        listed = self._handler.get_file_info_selector(folder, True, False)  # noqa: FBT003 - may miss
        return [info.base_name for info in listed if info.type == pafs.FileType.File]

    def read(self, name: str) -> bytes:
        return bytes(self._handler.open_input_file(name).read())


def _batches(files: "_Local | _Store") -> list[int]:
    """Return the batches whose states are kept."""
    names = files.names(_STATES)
    return [int(n[:-5]) for n in names if n.endswith(".json") and n[:-5].isdigit()]


def stored_in(files: _Local | _Store) -> Stored:
    """Return the content of a checkpoint's files."""
    batches = _batches(files)
    state = stored_form.decode(files.read(f"{_STATES}/{max(batches)}.json")) if batches else None
    ids, made_for = {}, None
    own = files.names(_OWN)
    if _TOPICS in own:
        ids = msgspec.json.decode(files.read(f"{_OWN}/{_TOPICS}"), type=dict[str, str])
    if _IDENTITY in own:
        made = msgspec.json.decode(files.read(f"{_OWN}/{_IDENTITY}"), type=Identity)
        made_for = {"name": made.name, "stream.shards": str(made.shards)}
    query = ""
    if _QUERY in files.names(""):
        query = str(msgspec.json.decode(files.read(_QUERY))["id"])
    return Stored(state, ids, made_for, query)
