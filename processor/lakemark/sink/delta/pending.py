"""Halves of key changes that wait beside the table for their other half.

One Arrow file per batch and step that left some:
``<table>/_lakemark/pending/<query>-<batch>[-catchup].arrow``. Delta and its VACUUM leave folders
with a leading underscore alone. The file is written before the batch's commit, so a batch that is
repeated after its commit finds it, and one that is repeated before makes the same one again. Once a
later batch has been recorded as done, in a state that is durable, nobody needs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from deltalake._internal import DeltaFileSystemHandler
from deltalake.exceptions import TableNotFoundError

from lakemark.errors import LakemarkError
from lakemark.model import change_batch
from lakemark.sink.delta.engines import DELETION_VECTORS, TASK_MERGE
from lakemark.sink.delta.failures import told
from lakemark.sink.delta.table_store import TableStore

# The handler cannot be had where the table's whole folder is gone.
_GONE: Final = (FileNotFoundError, TableNotFoundError)


@dataclass(frozen=True, slots=True)
class Halves:
    """The halves of key changes that one query leaves beside one table.

    Attributes:
        path: the table's folder.
        query: the query's id.
        options: storage options of delta-rs.
        engine: of the table: its files are read and written as the engine does it.
    """

    path: str
    query: str
    options: Mapping[str, str]
    engine: str = TASK_MERGE

    def save(self, packet: pa.Table, batch: int, step: str) -> None:
        """Writes the halves that a step of a batch leaves.

        Raises:
            DependencyError: the lake did not take them.
            TableError: the table is gone.
        """
        with told(self.path):
            if self._store.is_object_store:
                self._store.write(self._name(batch, step), change_batch.encode(packet))
                return
            out = self._handler().open_output_stream(self._name(batch, step), None)
            out.write(change_batch.encode(packet))
            out.close()
            self._store.keep([self._name(batch, step)])

    def load(self, batch: int, step: str) -> pa.Table | None:
        """Return what a step of a batch left; None if there is nothing of it, or no table at all.

        Raises:
            DependencyError: the lake could not be read.
        """
        with told(self.path):
            try:
                blob = self._store.read(self._name(batch, step))
            except _GONE:
                return None
        return change_batch.decode(blob)

    def remove(self, batch: int, step: str) -> None:
        """Deletes what a step of a batch left; what cannot be deleted stays, and harms nobody."""
        try:
            with told(self.path):
                self._store.delete(self._name(batch, step))
        except LakemarkError:
            return

    @property
    def _store(self) -> TableStore:
        return TableStore(self.path, self.options, native=self.engine != DELETION_VECTORS)

    def _handler(self) -> Any:
        """delta-rs's own file access, which does not make a folder that is gone.

        Its pyarrow wrapper cannot write: it hands the Rust side pyarrow buffers, not bytes.
        """
        return DeltaFileSystemHandler(self.path, dict(self.options))

    def _name(self, batch: int, step: str) -> str:
        which = "" if step == "stream" else f"-{step}"
        return f"_lakemark/pending/{self.query[:8]}-{batch}{which}.arrow"
