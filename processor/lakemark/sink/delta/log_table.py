"""A Delta table that is open without delta-rs: what its log says answers for it."""

from collections.abc import Mapping
from dataclasses import dataclass

from deltalake import DeltaTable, Schema
from deltalake.table import ProtocolVersions

from lakemark.sink.delta.table_log import TableFiles


@dataclass(frozen=True, slots=True)
class Metadata:
    """What delta-rs's own has, as far as it is asked for."""

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
        """Of the metadata."""
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
