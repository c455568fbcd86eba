"""The actions of our commits, and the tables that they may be made in."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import msgspec

from lakemark.sink.delta.engines import DELETION_VECTORS, ENGINE, USER_METADATA
from lakemark.sink.delta.failures import unsupported_feature
from lakemark.sink.delta.table_log import VECTORS, Action, DataFile, TableFiles
from lakemark.version import __version__

# Those whose rules for writers are kept by what is written here, whatever the table has.
_KNOWN: Final = frozenset(
    {
        VECTORS,
        "timestampNtz",
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "vacuumProtocolCheck",
        "domainMetadata",
        "variantType",  # delta-rs lists it whenever it writes a property; see `check_writable`
    }
)
# Every batch leaves a tombstone for each file of which it deletes a row, and checkpoints hold those
# of this time: a week of them would be millions.
_KEPT_FOR: Final = "delta.deletedFileRetentionDuration"
RETENTION: Final = "interval 1 days"
_LEAST: Final = timedelta(days=1)
_UNSAID: Final = timedelta(days=7)  # what Delta means by a table that does not say
_INTERVAL: Final = re.compile(r"(\d+)'?\s*(week|day|hour|minute|second)", re.IGNORECASE)
_FEATURES_FROM: Final = 7
_READER_FEATURES_FROM: Final = 3
# What writer versions before the list of features meant.
_IMPLIED: Final = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed",),
}
# Writer versions before the list of features that stand for more than is kept: column mapping,
# identity columns. Whatever such a version allows counts as used.
_TOO_MUCH: Final = range(5, _FEATURES_FROM)
# Switches and checks of a table that rows of ours would not obey.
_SWITCHES: Final = ("delta.appendOnly", "delta.enableChangeDataFeed", "delta.enableRowTracking")

_IN_SCHEMA: Final = ("delta.invariants", "delta.generationExpression", '"variant"')


def refused(found: TableFiles) -> list[str]:
    """Return the table's demands on writers that are not met here; empty if it may be written."""
    features = {
        *(found.protocol.get("readerFeatures") or ()),
        *(found.protocol.get("writerFeatures") or ()),
    }
    settings = found.metadata.get("configuration") or {}
    names = sorted(features - _KNOWN)
    if (writer := int(found.protocol["minWriterVersion"])) in _TOO_MUCH:
        names.append(f"writer version {writer}")
    names += [name for name in _SWITCHES if settings.get(name, "").lower() == "true"]
    names += [name for name in settings if name.startswith("delta.constraints.")]
    if settings.get("delta.columnMapping.mode", "none") != "none":
        names.append("delta.columnMapping.mode")
    schema = found.metadata.get("schemaString", "")
    names += [name for name in _IN_SCHEMA if name in schema]
    if found.metadata.get("partitionColumns"):
        names.append("partitionColumns")
    return names


def check_writable(path: str, found: TableFiles) -> None:
    """Refuses a table that asks more of its writers than is done here.

    Raises:
        TableError: `unsupported-table-feature`.
    """
    if names := refused(found):
        raise unsupported_feature(path, ", ".join(names))


def adoption(found: TableFiles) -> list[Action]:
    """The actions that let a table have deletion vectors, and say whose it is; none if it may."""
    settings = dict(found.metadata.get("configuration") or {})
    wanted = {"delta.enableDeletionVectors": "true", ENGINE: DELETION_VECTORS}
    if found.vectors_on and wanted.items() <= settings.items():
        return []
    settings = {_KEPT_FOR: RETENTION, **settings, **wanted}
    return [
        {"protocol": _with_vectors(found.protocol)},
        {"metaData": {**found.metadata, "configuration": settings}},
    ]


def retention(metadata: Mapping[str, Any]) -> timedelta:
    """Return for how long files that left the table are kept for readers of older versions.

    Args:
        metadata: the log's action.

    Returns:
        What the table says, but at least a day; a week where it says nothing that is understood.
    """
    said = (metadata.get("configuration") or {}).get(_KEPT_FOR, "")
    parts = [timedelta(**{f"{unit.lower()}s": int(n)}) for n, unit in _INTERVAL.findall(said)]
    return max(_LEAST, sum(parts, timedelta())) if parts else _UNSAID


def _features(protocol: Action) -> set[str]:
    """Return the features that a protocol lists, or means by the versions before the list."""
    writer = int(protocol["minWriterVersion"])
    features = set(protocol.get("writerFeatures") or ())
    if writer < _FEATURES_FROM:
        for version, implied in _IMPLIED.items():
            features.update(implied if version <= writer else ())
    return features


def _with_vectors(protocol: Action) -> Action:
    writer, reader = int(protocol["minWriterVersion"]), int(protocol["minReaderVersion"])
    features = _features(protocol)
    readers = set(protocol.get("readerFeatures") or ())
    if writer >= _FEATURES_FROM and reader < _READER_FEATURES_FROM:
        readers |= features & {"timestampNtz"}
    return {
        "minReaderVersion": _READER_FEATURES_FROM,
        "minWriterVersion": _FEATURES_FROM,
        "readerFeatures": sorted({*readers, VECTORS}),
        "writerFeatures": sorted({*features, VECTORS}),
    }


def removal(file: DataFile, now: int, *, data_change: bool) -> Action:
    """The action that takes a file out of the table.

    Args:
        file: as the version before has it.
        now: milliseconds since the epoch.
        data_change: whether rows change by it.
    """
    remove = {
        "path": file.add["path"],
        "deletionTimestamp": now,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": file.add.get("partitionValues") or {},
        "size": file.size,
    }
    for name in ("tags", "deletionVector", "baseRowId", "defaultRowCommitVersion"):
        if file.add.get(name) is not None:
            remove[name] = file.add[name]
    return {"remove": remove}


def with_vector(file: DataFile, vector: Action, records: int) -> Action:
    """The action that gives a file another deletion vector: its bounds are wide from now on."""
    stats = _widened(file, records)
    return {"add": {**file.add, "dataChange": True, "stats": stats, "deletionVector": vector}}


def _widened(file: DataFile, records: int) -> str:
    """The statistics with wide bounds, all else to the letter: decimals have more digits than
    a float.
    """
    stats = msgspec.json.decode(str(file.add.get("stats") or "{}"), type=dict[str, msgspec.Raw])
    new = {
        "numRecords": msgspec.Raw(str(records).encode()),
        "tightBounds": msgspec.Raw(b"false"),
    }
    return msgspec.json.encode({**stats, **new}).decode()


def info(operation: str, now: int, version: int, *, note: str = "") -> Action:
    """Return the log's information about a commit, besides its actions.

    Args:
        operation: in Delta's words.
        now: milliseconds since the epoch.
        version: that it was made from.
        note: what it says of itself, see `commit_note`; empty = nothing.
    """
    said = {USER_METADATA: note} if note else {}
    return {
        "commitInfo": {
            "timestamp": now,
            "operation": operation,
            "operationParameters": {},
            "readVersion": version,
            "isBlindAppend": False,
            "engineInfo": f"lakemark/{__version__}",
            "txnId": str(uuid4()),  # no two commits are the same bytes: see `put_absent`
            **said,
        }
    }
