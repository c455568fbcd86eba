"""A checkpoint and a lake with cuts, as batches have left them."""

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from lakemark.model import commit_note
from lakemark.model.commit_note import CommitNote
from lakemark.model.cuts import CutProgress, SourceCut
from lakemark.ops.cuts import FoundCut
from lakemark.settings.config import Config
from lakemark.sink import kept_cuts
from lakemark.sink.names import folder_of
from lakemark.state import stored_form
from lakemark.state.tables import PipelineState, TableState

QUERY = "query-1"
A, B = "public.a", "public.b"
LSN = {1: 0x100, 2: 0x200, 3: 0x300, 4: 0x400}


def cut(number: int, *, batch: int | None = None, without: Iterable[str] = ()) -> SourceCut:
    """The cut of a transaction; its batch has ten times the number, unless given."""
    at = (1_700_000_000 + number) * 1000
    return SourceCut(batch or number * 10, f"7{number}:{LSN[number]}", at, "", tuple(without))


class CutSite:
    """A checkpoint and a lake of two tables, each with a commit for some batches."""

    def __init__(self, root: Path) -> None:
        self.root = root
        connector = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "topic.prefix": "shop", "provide.transaction.metadata": "true",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        }  # fmt: skip
        (root / "connector.json").write_text(json.dumps({"name": "shop", "config": connector}))
        self.settings = {
            "name": "cuts",
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "source": {"connector_file": str(root / "connector.json")},
            "lake": {"path": str(root / "lake")},
            "checkpoint": str(root / "checkpoint"),
        }
        (root / "lakemark.yaml").write_text(json.dumps(self.settings))
        self.config = Config.model_validate(self.settings, context={"base": root})

    def commit(self, table: str, batch: int | None) -> None:
        """A commit of a batch; the row says which."""
        note = "" if batch is None else commit_note.encode(CommitNote(batch, "stream"))
        rows = pa.table({"batch": pa.array([batch or -1], pa.int64())})
        properties = CommitProperties(custom_metadata={"userMetadata": note} if note else None)
        path = folder_of(self.config.lake, table)
        write_deltalake(path, rows, mode="overwrite", commit_properties=properties)

    def keep(
        self, *, in_lake: Iterable[SourceCut] = (), in_state: Iterable[SourceCut] = ()
    ) -> None:
        """Have these cuts known."""
        if in_lake:
            kept_cuts.keep(self.config.lake, "", in_lake, query=QUERY)
        state = PipelineState(batch=99, tables={A: TableState(), B: TableState()})
        state.cutting = CutProgress(kept=list(in_state))
        folder = self.root / "checkpoint" / "lakemark" / "state"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "99.json").write_bytes(stored_form.encode(state))
        (self.root / "checkpoint" / "metadata").write_text(json.dumps({"id": QUERY}))

    def batches(self, found: FoundCut) -> dict[str, int]:
        """Of which batch the rows of each table's version are."""
        return {
            one.table: DeltaTable(one.path, version=one.version)
            .to_pyarrow_table()["batch"][0]
            .as_py()
            for one in found.tables
            if one.version is not None
        }
