"""Histories in which a table is made anew again and again, with crashes anywhere.

At every moment readers find the old table as it was when the rebuild began, or the new one.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark import failpoints
from lakemark.sink import names
from lakemark.sink.delta import maintenance, rebuild
from lakemark.state import tables
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.nightly import examples
from tests.kit.shop import ORDERS, Shop, schema_of

TOPIC = f"shop.{ORDERS}"
ENGINES = ("task-merge", "deletion-vectors")
CRASHES = st.sampled_from(
    ["", "", "before-saving", *failpoints.OF_REBUILDS, "after-commit", "refused", "lost"]
)
CHANGES = st.lists(st.tuples(st.sampled_from("cud"), st.integers(1, 4)), max_size=4)
ACTIONS = st.sampled_from(
    [*("run", "rebuild", "rebuild", "read", "read", "pause", "resume", "engine")]
)
STEPS = st.lists(st.tuples(CHANGES, ACTIONS, CRASHES), min_size=4, max_size=12)


def refuse() -> None:
    """Stands in for a store that fails when all is done already."""
    raise OSError(5, "Input/output error")


class Histories:
    """A shop whose source is a dict; what a step means."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        schemas = {ORDERS: schema_of(ORDERS, id="int8", v="text")}
        self.shop = Shop(root, Broker(), schemas, settings={"engine": "task-merge"})
        self.patch, self.at = patch, 10
        self.rows: dict[int, str] = {}

    def change(self, op: str, key: int) -> None:
        self.at += 1
        if op == "d":
            if self.rows.pop(key, None) is not None:
                self.shop.put("d", self.at, key)
            return
        op = "u" if key in self.rows else "c"
        self.rows[key] = f"{op}{self.at}"
        self.shop.put(op, self.at, key, v=self.rows[key])

    def say(self, kind: str, **more: object) -> None:
        self.shop.records.append({"type": kind, "table": ORDERS, **more})

    def run(self, crash: str = "") -> None:
        shop, died = self.shop, False
        kept, before = self.visible(), self.shop.state.tables.get(ORDERS)

        def reach(point: str) -> None:
            if point == crash:
                raise DiedError

        shop.checkpoint.dies_before_saving = crash == "before-saving"
        with self.patch.context() as patch:
            patch.setattr(failpoints, "reach", reach)
            if crash == "refused":
                patch.setattr(rebuild, "table_store", SimpleNamespace(settle=refuse))
            elif crash == "lost":  # somebody deletes what is not readers' business
                for made in self.folder.glob("_lakemark/rebuild-*"):
                    shutil.rmtree(made)
                maintenance.forget()
            try:
                shop.run()
            except DiedError:
                died = True
        shop.checkpoint.dies_before_saving = False
        if died:
            maintenance.forget()
            shop.restart()
            shop.again()
            shop.read = shop.broker.ends()
        self.look(kept)
        entry = shop.state.tables.get(ORDERS)
        if (
            crash == "lost"
            and before is not None
            and before.files.rebuild
            and before.size.committed_ms
        ):
            assert entry.files.rebuild, "what is gone takes no table's place"
            assert self.visible() == kept

    def look(self, kept: dict[int, str] | None) -> None:
        """While it is rebuilt the old table is as it was; the new one replaces it whole."""
        entry = self.shop.state.tables.get(ORDERS)
        if entry is not None and entry.files.rebuild and entry.repair.resnapshot:
            assert self.visible() == kept

    @property
    def folder(self) -> Path:
        return Path(names.table_path(self.shop.config.lake.path, ORDERS))

    def visible(self) -> dict[int, str] | None:
        if not DeltaTable.is_deltatable(str(self.folder)):
            return None
        found = pa.table(DeltaTable(self.folder).scan()).to_pylist()
        by_id = {row["id"]: row["v"] for row in found}
        assert len(by_id) == len(found)
        return by_id

    def do(self, action: str, crash: str) -> None:
        if action == "engine":
            self.engine()
        elif action == "read":
            self.read(crash)
            return
        elif action == "rebuild":
            self.rebuild()
        elif action != "run":
            self.say(f"table-{action}")
        self.run(crash)

    def rebuild(self) -> None:
        self.say(
            "table-rebuild",
            id=f"command {self.at}",
            reason="why",
            offsets={TOPIC: {"0": self.end()}},
        )

    def end(self) -> int:
        return self.shop.broker.ends().get(TOPIC, {0: 0})[0]

    def read(self, crash: str) -> None:
        """A snapshot, all of whose chunks are settled when it says so."""
        for key, value in self.rows.items():
            self.shop.put("r", self.at, key, v=value, snapshot="incremental")
        begun = self.shop.batch
        self.run()
        entry = self.shop.state.tables.get(ORDERS)
        if entry is not None and entry.state == tables.STREAMING:
            self.say("table-read", until=begun)
        self.change("u", 5)  # in the batch in which the new table takes its place
        self.run(crash)

    def engine(self) -> None:
        lake = self.shop.config.lake
        other = ENGINES[lake.engine == ENGINES[0]]
        changed = lake.model_copy(update={"engine": other})
        self.shop.config = self.shop.config.model_copy(update={"lake": changed})
        self.shop.restart()

    def end_well(self) -> None:
        self.say("table-resume")
        for _ in range(3):
            self.run()
        for _ in range(5):
            entry = self.shop.state.tables[ORDERS]
            if not entry.files.rebuild and not entry.repair.resnapshot:
                break
            if not self.rows:
                self.change("c", 1)
            self.read("")
            self.run()
        self.change("c", 3)
        self.run()
        entry = self.shop.state.tables[ORDERS]
        assert (entry.state, entry.code, entry.files.rebuild) == (tables.STREAMING, "", "")


@settings(max_examples=examples(8, nightly=300), deadline=None, print_blob=True)
@given(STEPS)
def test_the_table_equals_its_source(steps):
    with TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        maintenance.forget()
        history = Histories(Path(root), patch)
        for changes, action, crash in [([("c", 1), ("c", 2)], "run", ""), *steps]:
            for change in changes:
                history.change(*change)
            history.do(action, crash)
        history.end_well()
        assert history.visible() == history.rows
        assert not list(history.folder.glob("_lakemark/rebuild-*"))
