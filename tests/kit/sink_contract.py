"""What every `TableSink` promises, and a `TableFormat` besides.

The test module of a format inherits `FormatContract` for each of its engines that merge in tasks;
that of an engine which needs more, `SinkContract`.

Starting an engine may be slow, so each test asks as many questions as it can in one merge: one key
per question, all answered at once.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakemark.errors import TableError
from lakemark.model.columns import Column
from lakemark.model.evolution import Evolution
from lakemark.model.fills import Fill, packed
from lakemark.sink import row_images
from lakemark.sink.names import rebuild_path
from lakemark.sink.table_format import TableFormat
from lakemark.sink.table_sink import MergeResult, TableSink, version_of
from tests.kit.write_sets import (
    Change,
    Model,
    at,
    cdc_type,
    content,
    delete,
    fill,
    insert,
    own,
    table_schema,
    upsert,
    write_set,
)


class Engine(Protocol):
    """An engine as the contract calls it."""

    def ensure(self, path: str, schema: pa.Schema, *, key: tuple[str, ...]) -> Evolution: ...

    def merge(
        self,
        path: str,
        rows: pa.Table,
        *,
        key: tuple[str, ...],
        deletes: str,
        app_id: str,
        version: int,
    ) -> MergeResult: ...

    def truncate(
        self, path: str, position: bytes, *, deletes: str, app_id: str, version: int
    ) -> MergeResult: ...

    def committed(self, path: str, app_id: str) -> int | None: ...

    def read(self, path: str) -> pa.Table:
        """The whole table under its own column names."""


@dataclass(frozen=True)
class SinkEngine:
    """A `TableSink` as the contract calls it: one for each call, as for each batch."""

    made_by: TableFormat
    name: str
    read: Callable[[str], pa.Table]

    def _opened(self, path: str) -> TableSink:
        sink = self.made_by.sink_of(path, self.name, {}, query="q")
        sink.open()
        return sink

    def ensure(self, path: str, schema: pa.Schema, *, key: tuple[str, ...]) -> Evolution:
        return self._opened(path).ensure(schema, key=key, table="")

    def merge(self, path: str, rows: pa.Table, **arguments: Any) -> MergeResult:
        return self._opened(path).merge(rows, **arguments, files=())

    def truncate(self, path: str, position: bytes, **arguments: Any) -> MergeResult:
        return self._opened(path).truncate(position, **arguments)

    def committed(self, path: str, app_id: str) -> int | None:
        return self._opened(path).recorded(app_id)


@dataclass
class Scribe:
    """Does to an engine's table and to the model the same."""

    engine: Engine
    path: str
    model: Model
    version: int = 0

    def merge(self, *changes: Change) -> MergeResult:
        self.version += 1
        self.model.apply(changes)
        rows = write_set(changes, self.model.columns, self.model.deletes)
        return self.engine.merge(
            self.path,
            rows,
            key=tuple(self.model.key),
            deletes=self.model.deletes,
            app_id="q/t/stream",
            version=self.version,
        )

    def check(self) -> None:
        assert content(self.engine.read(self.path), self.model.key) == self.model.content()


COLUMNS = {"id": pa.string(), "a": pa.string(), "b": pa.int64(), "c": pa.float64()}


def row(name: str, a: Any = None, b: Any = None, c: Any = None) -> dict[str, Any]:
    return {"id": name, "a": a, "b": b, "c": c}


class SinkContract:
    """Inherit, and give the fixture `engine`."""

    @pytest.fixture
    @abstractmethod
    def engine(self) -> Engine:
        raise NotImplementedError

    @pytest.fixture
    def scribe(self, engine: Engine, tmp_path, deletes: str) -> Scribe:
        return self.scribe_of(engine, tmp_path / "t", COLUMNS, ("id",), deletes)

    def scribe_of(
        self,
        engine: Engine,
        path: Any,
        columns: Mapping[str, pa.DataType],
        key: tuple[str, ...],
        deletes: str = "hard",
    ) -> Scribe:
        engine.ensure(str(path), table_schema(columns, deletes), key=key)
        return Scribe(engine, str(path), Model(columns, key, deletes))

    @pytest.mark.parametrize("deletes", ["hard", "soft"])
    def test_rules(self, scribe: Scribe) -> None:
        """Every rule of the write set, one key each."""
        whole = [
            upsert(row(name, "old", 1, 0.5), at(10))
            for name in (
                "newer", "equal", "older", "older forced", "deleted", "deleted equal",
                "deleted too late", "deleted forced", "insert", "patched", "filled whole",
                "untouched", "dead insert", "dead insert late", "dead upsert", "dead upsert late",
                "dead patched", "dead deleted", "patched older",
            )
        ]  # fmt: skip
        partial = [
            upsert(row(name, None, None, 0.5), at(10), unavailable=("a", "b"), row_barrier=at(7))
            for name in (
                "filled", "filled half", "other incarnation", "patch narrows", "patch fits",
                "dead filled", "overwritten", "deleted partial",
            )
        ]  # fmt: skip
        scribe.merge(*whole, *partial)
        scribe.check()
        scribe.merge(
            *(
                delete(row(n), at(12))
                for n in (
                    "dead insert",
                    "dead insert late",
                    "dead upsert",
                    "dead upsert late",
                    "dead patched",
                    "dead deleted",
                    "dead filled",
                )
            )
        )
        scribe.check()
        scribe.merge(
            upsert(row("newer", "new", 2, 1.5), at(11)),
            upsert(row("equal", "new", None, 1.5), at(10)),
            upsert(row("older", "new"), at(9, 99)),
            upsert(row("older forced", "new"), own(3), force=True),
            delete(row("deleted"), at(11)),
            delete(row("deleted equal"), at(10)),
            delete(row("deleted too late"), at(9)),
            delete(row("deleted forced"), at(9), force=True),
            delete(row("never there"), at(11)),
            delete(row("deleted partial"), at(11)),
            insert(row("insert", "new"), at(50)),
            insert(row("inserted", "new", 3, None), at(50)),
            insert(row("dead insert", "new"), at(13)),
            insert(row("dead insert late", "new"), at(12)),
            upsert(row("dead upsert", "new"), at(12)),
            upsert(row("dead upsert late", "new"), at(11)),
            upsert(row("dead patched", "new", 4), at(13), patch=("b",), unavailable=("b",)),
            delete(row("dead deleted"), at(14)),
            upsert(row("patched", "new", None, 2.5), at(11), patch=("b", "c")),
            upsert(row("patched older", "new", None, 2.5), at(9), patch=("b", "c")),
            upsert(
                row("patched absent", "new"), at(11), patch=("b",), unavailable=("b",),
                row_barrier=at(11),
            ),
            upsert(row("patch narrows", None, 5, 2.5), at(11), patch=("a",)),
            upsert(row("patch fits", None, None, 2.5), at(11), patch=("a", "b")),
            upsert(row("overwritten", "new", 6, 2.5), at(11)),
            fill(row("filled", "found", 7, 9.9), at(7), ("a", "b", "c")),
            fill(row("filled half", "found", 7, 9.9), at(7), ("b",)),
            fill(row("filled whole", "found", 7, 9.9), at(7), ("a",)),
            fill(row("other incarnation", "found", 7, 9.9), at(8), ("a", "b")),
            fill(row("dead filled", "found", 7, 9.9), at(7), ("a", "b")),
            fill(row("filled absent", "found", 7, 9.9), at(7), ("a",)),
        )  # fmt: skip
        scribe.check()
        # Not only equal to the model: the answers that matter most, spelled out.
        found = {r["id"]: r for r in scribe.engine.read(scribe.path).to_pylist()}
        alive = {n for n, r in found.items() if not r["_cdc"].get("deleted")}
        assert found["patched"]["b"] == 1
        assert found["patched"]["a"] == "new"
        assert found["older"]["a"] == "old"
        assert found["older forced"]["_cdc"]["position"] == own(3)
        assert (found["filled"]["a"], found["filled"]["b"], found["filled"]["c"]) == (
            "found",
            7,
            0.5,
        )
        assert found["filled"]["_cdc"]["unavailable"] is None
        assert found["filled half"]["_cdc"]["unavailable"] == ["a"]
        assert found["patch narrows"]["_cdc"]["unavailable"] == ["a"]
        assert not alive & {
            "deleted",
            "deleted equal",
            "deleted forced",
            "never there",
            "filled absent",
        }
        assert "deleted too late" in alive
        assert found["dead patched"]["b"] == 4

    @pytest.mark.parametrize("deletes", ["hard", "soft"])
    def test_truncate(self, scribe: Scribe) -> None:
        scribe.merge(
            upsert(row("below"), at(4)),
            upsert(row("same transaction, below"), at(5, 1)),
            upsert(row("equal"), at(5, 2)),
            upsert(row("above"), at(6)),
            upsert(row("own snapshot below"), own(1)),
            upsert(row("own snapshot equal"), own(2)),
            upsert(row("own snapshot above"), own(3)),
            upsert(row("dead"), at(3)),
        )
        scribe.merge(delete(row("dead"), at(4)))
        position = at(5, 2)
        scribe.model.truncate(position)
        more = {"deletes": scribe.model.deletes, "app_id": "q/t/truncate", "version": 3}
        done = scribe.engine.truncate(scribe.path, position, **more)
        scribe.check()
        assert (done.deleted or done.updated) == 4
        found = scribe.engine.read(scribe.path).to_pylist()
        assert {r["id"] for r in found if not r["_cdc"].get("deleted")} == {
            "equal", "above", "own snapshot above",
        }  # fmt: skip
        scribe.merge(upsert(row("late"), at(2)))
        assert scribe.engine.truncate(scribe.path, position, **more).skipped
        scribe.check()

    @pytest.mark.parametrize("deletes", ["hard"])
    def test_once_per_version(self, scribe: Scribe) -> None:
        scribe.merge(*(upsert(row(str(i), b=i), at(i)) for i in range(10)))
        before = scribe.engine.read(scribe.path)
        again = write_set([delete(row(str(i)), at(99)) for i in range(10)], COLUMNS)
        arguments = {"key": ("id",), "deletes": "hard", "app_id": "q/t/stream"}
        for version in (0, 1):
            done = scribe.engine.merge(scribe.path, again, **arguments, version=version)
            assert done.skipped
            assert (done.inserted, done.updated, done.deleted, done.rows) == (0, 0, 0, 10)
        assert content(scribe.engine.read(scribe.path), ["id"]) == content(before, ["id"])
        assert scribe.engine.committed(scribe.path, "q/t/stream") == 1
        assert scribe.engine.committed(scribe.path, "q/t/other") is None
        # A merge without effect is recorded, one without rows is not.
        scribe.merge(upsert(row("1", "stale"), at(0)))
        assert scribe.engine.committed(scribe.path, "q/t/stream") == 2
        done = scribe.merge()
        assert (done.skipped, done.rows) == (False, 10)
        assert scribe.engine.committed(scribe.path, "q/t/stream") == 2
        scribe.check()

    @pytest.mark.parametrize("deletes", ["hard"])
    def test_versions_that_say_batch_and_content(self, scribe: Scribe) -> None:
        scribe.merge(upsert(row("1"), at(1)))
        arguments = {"key": ("id",), "deletes": "hard", "app_id": "q/t/stream"}
        last = scribe.engine.committed(scribe.path, "q/t/stream")
        for number, digest in enumerate((5, 7, 5)):
            changes = write_set([upsert(row("1", b=number), at(10 + number))], COLUMNS)
            version = version_of(1 << 20, digest, last)
            for done in (False, True):
                result = scribe.engine.merge(scribe.path, changes, **arguments, version=version)
                assert result.skipped == done
            last = scribe.engine.committed(scribe.path, "q/t/stream")
            assert last == version

    def test_counts(self, engine: Engine, tmp_path) -> None:
        scribe = self.scribe_of(engine, tmp_path / "t", COLUMNS, ("id",))
        done = scribe.merge(*(upsert(row(str(i)), at(1)) for i in range(6)))
        assert (done.inserted, done.updated, done.deleted, done.rows) == (6, 0, 0, 6)
        assert done.files >= 1
        assert done.bytes > 0
        done = scribe.merge(
            upsert(row("0"), at(2)), upsert(row("1"), at(0)), delete(row("2"), at(2)),
            upsert(row("9"), at(2)),
        )  # fmt: skip
        assert (done.inserted, done.updated, done.deleted, done.rows) == (1, 1, 1, 6)

    def test_odd_names(self, engine: Engine, tmp_path) -> None:
        """Characters that Delta refuses, names that differ in case only, quotes, other scripts."""
        odd = ["unit price", 'Odd Näme"x', "a`b", "a'b", "a.b", "a,b;{c}(d)", "t\tn\n", "x=y",
               "Id", "ID", "100%", "%41", "select", "日本", "[0]", "back\\slash", "c0", "__x"]  # fmt: skip
        columns = {"id": pa.int64(), **dict.fromkeys(odd, pa.string())}
        scribe = self.scribe_of(engine, tmp_path / "odd table ü", columns, ("id", "unit price"))
        values = {name: f"value of {name}" for name in odd}
        scribe.merge(upsert({"id": 1, **values}, at(1)), upsert({"id": 2, **values}, at(1)))
        some = tuple(n for n in odd if n != "unit price")
        scribe.merge(
            upsert({"id": 1, "unit price": values["unit price"]}, at(2), patch=some),
            upsert({"id": 3, "unit price": ""}, at(2), unavailable=some, row_barrier=at(2)),
        )
        scribe.merge(fill({"id": 3, "unit price": "", **dict.fromkeys(some, "f")}, at(2), some))
        table = engine.read(scribe.path)
        from lakemark.sink.names import sources_of

        back = {"_cdc": "_cdc", **sources_of(table.schema)}
        assert content(table.rename_columns([back[n] for n in table.column_names]), ["id"]) == (
            scribe.model.content()
        )
        assert not set(" ,;{}()\n\t=") & set("".join(table.column_names))

    def test_types(self, engine: Engine, tmp_path) -> None:
        """All canonical types, with their extremes, inserted, updated and kept by a patch."""
        scribe = self.scribe_of(engine, tmp_path / "t", dict(TYPES), ("id",))
        full = {name: values[0] for name, values in VALUES.items()}
        other = {name: values[-1] for name, values in VALUES.items()}
        scribe.merge(upsert({"id": 1, **full}, at(1)), upsert({"id": 2}, at(1)))
        scribe.check()
        scribe.merge(
            upsert({"id": 1}, at(2), patch=tuple(VALUES)),
            upsert({"id": 2, **other}, at(2)),
            upsert({"id": 3}, at(2), patch=tuple(VALUES), unavailable=tuple(VALUES)),
        )
        scribe.check()

    def test_keys(self, engine: Engine, tmp_path) -> None:
        """A composite key of every type that can be one; each row is found again."""
        columns = {**KEY_TYPES, "n": pa.int64()}
        key = tuple(KEY_TYPES)
        scribe = self.scribe_of(engine, tmp_path / "t", columns, key)
        keys = [{name: values[i] for name, values in KEY_VALUES.items()} for i in (0, 1)]
        mixed = {**keys[0], "k_text": keys[1]["k_text"]}
        scribe.merge(*(upsert({**k, "n": 1}, at(1)) for k in (*keys, mixed)))
        done = scribe.merge(upsert({**keys[0], "n": 2}, at(2)), delete({**keys[1]}, at(2)))
        assert (done.inserted, done.updated, done.deleted) == (0, 1, 1)
        scribe.check()

    @pytest.mark.parametrize(
        ("code", "changes"),
        [
            ("null-key", [upsert(row(None), at(1))]),
            ("duplicate-key", [upsert(row("x"), at(1)), delete(row("x"), at(2))]),
            ("write-set-invalid", [Change("displace", row("x"), at(1))]),
        ],
    )
    def test_refused(self, engine: Engine, tmp_path, code: str, changes: list[Change]) -> None:
        scribe = self.scribe_of(engine, tmp_path / "t", COLUMNS, ("id",))
        rows = write_set(changes, COLUMNS)
        with pytest.raises(TableError) as caught:
            engine.merge(scribe.path, rows, key=("id",), deletes="hard", app_id="q/t/s", version=1)
        assert caught.value.code == code
        assert engine.committed(scribe.path, "q/t/s") is None

    def test_evolution(self, engine: Engine, tmp_path) -> None:
        old = {"id": pa.int32(), "n": pa.int16(), "f": pa.float32(), "m": pa.decimal128(6, 2)}
        scribe = self.scribe_of(engine, tmp_path / "t", old, ("id",))
        scribe.merge(upsert({"id": 1, "n": 5, "f": 0.5, "m": Decimal("1.25")}, at(1)))
        new = {"id": pa.int64(), "n": pa.int64(), "f": pa.float64(), "m": pa.decimal128(20, 4),
               "added; x": pa.list_(pa.timestamp("us"))}  # fmt: skip
        applied = engine.ensure(scribe.path, table_schema(new), key=("id",))
        assert [f.name for f in applied.added] == ["added; x"]
        assert {w[0] for w in applied.widened} == {"id", "n", "f", "m"}
        assert not engine.ensure(scribe.path, table_schema(new), key=("id",))
        assert not engine.ensure(scribe.path, table_schema(old), key=("id",))  # a narrow one fits
        assert engine.committed(scribe.path, "q/t/stream") == 1
        scribe.model.columns = new
        (only,) = scribe.model.rows
        scribe.model.rows[only].values["added; x"] = None
        scribe.merge(
            upsert({"id": 2**40, "n": 2**40, "m": Decimal("123456789.0125"),
                    "added; x": [datetime(2026, 1, 1)]}, at(2)),  # noqa: DTZ001
        )  # fmt: skip
        table = engine.read(scribe.path)
        assert table.schema.field("m").type == pa.decimal128(20, 4)
        shown = content(table.rename_columns([*old, *table.column_names[4:]]), ["id"])
        by_id = {r["id"]: r for r in shown}
        assert by_id[1]["m"] == Decimal("1.2500")
        assert by_id[1]["_cdc"]["position"] == at(1)
        assert by_id[2**40]["n"] == 2**40
        with pytest.raises(TableError) as caught:
            engine.ensure(
                scribe.path, table_schema({"id": pa.int64(), "n": pa.string()}), key=("id",)
            )
        assert caught.value.code == "schema-incompatible"
        assert "'n' from int64 to string" in caught.value.message

    def test_soft_deletes_switched_on(self, engine: Engine, tmp_path) -> None:
        scribe = self.scribe_of(engine, tmp_path / "t", COLUMNS, ("id",))
        scribe.merge(upsert(row("kept"), at(1)), upsert(row("gone"), at(1)))
        engine.ensure(scribe.path, table_schema(COLUMNS, "soft"), key=("id",))
        scribe.model.deletes = "soft"
        scribe.merge(delete(row("gone"), at(2)), upsert(row("new"), at(2)))
        found = {r["id"]: bool(r["_cdc"]["deleted"]) for r in engine.read(scribe.path).to_pylist()}
        assert found == {"kept": False, "gone": True, "new": False}

    def test_the_schemas_of_records_switched_on(self, engine: Engine, tmp_path) -> None:
        """Each row has the schema of the change that it is as of; what only fills it changes none."""
        scribe = self.scribe_of(engine, tmp_path / "t", COLUMNS, ("id",))
        names = ["before", "patched", "filled", "gone", "cut"]
        scribe.merge(*(upsert(row(name), at(1)) for name in names))
        kind = row_images.cdc_type(deletes="soft", metadata=["schema_id"])
        schema = table_schema(COLUMNS).set(len(COLUMNS), pa.field("_cdc", kind))
        engine.ensure(scribe.path, schema, key=("id",))
        scribe.model.deletes, scribe.model.names_schemas = "soft", True
        half = {"patch": ("c",), "unavailable": ("c",)}
        scribe.merge(
            upsert(row("patched", b=2), at(3), **half, schema_id=7),
            upsert(row("filled"), at(3), unavailable=("c",), row_barrier=at(3), schema_id=7),
            delete(row("gone"), at(3), schema_id=8),
            upsert(row("cut"), at(2), schema_id=7),
        )
        scribe.merge(replace(fill(row("filled"), at(3), ["c"]), schema_id=9))
        cut = at(2, 5)
        scribe.model.truncate(cut)
        engine.truncate(scribe.path, cut, deletes="soft", app_id="q/t/truncate", version=1)
        scribe.check()
        found = {r["id"]: r["_cdc"]["schema_id"] for r in engine.read(scribe.path).to_pylist()}
        assert found == {"before": None, "patched": 7, "filled": 7, "gone": 8, "cut": None}


ID: Final = [Column("id", pa.string())]
NEW: Final = Fill("w", at(9).hex(), tuple(COLUMNS), packed(pa.array([11], pa.int64())))


class FormatContract(SinkContract):
    """Inherit, and give the format, the engine's name and what reads a table."""

    made_by: ClassVar[TableFormat]
    name: ClassVar[str]

    @abstractmethod
    def read(self, path: str) -> pa.Table:
        """The whole table under its own column names."""

    @pytest.fixture
    def engine(self) -> SinkEngine:
        return SinkEngine(self.made_by, self.name, self.read)

    def test_which_engine_a_table_has(self, tmp_path) -> None:
        sink = self.made_by.sink_of(str(tmp_path / "t"), self.name, {}, query="q")
        assert sink.engine == self.name
        assert sink.merges
        assert self.made_by.merges_in_tasks(self.name)
        assert not self.made_by.merges_in_tasks("")
        usual = self.made_by.engine_for("auto", None, 0)
        assert self.made_by.sink_of("nowhere", "", {}, query="q").engine == usual

    def test_there_is_no_table(self, tmp_path) -> None:
        path = str(tmp_path / "none")
        reader = self.made_by.reader_of(path, {})
        assert reader.columns() is None
        assert reader.schema() is None
        assert [*reader.rows(["id"])] == []
        assert reader.incomplete_keys(ID) == []
        assert reader.keys_below(at(9), key=["id"]).num_rows == 0
        found = reader.read_rows(pa.table({"id": ["x"]}))
        assert (found.num_rows, found.column_names) == (0, ["id"])
        assert not self.made_by.fill(
            path, [NEW], app_id="f", table="", options={}, engine=self.name
        )
        self.made_by.settle()

    @pytest.mark.parametrize("deletes", ["hard", "soft"])
    def test_what_a_reader_finds(self, scribe: Scribe) -> None:
        scribe.merge(
            upsert(row("old", "o", 1), at(3)),
            upsert(row("half", None, 2), at(4), unavailable=("a",)),
            upsert(row("gone", None, 3), at(4), unavailable=("a",)),
            upsert(row("new", "n", 4), at(7)),
        )
        scribe.merge(delete(row("gone"), at(5)))
        self.made_by.settle()
        reader = self.made_by.reader_of(scribe.path, {})
        assert set(reader.columns() or ()) == set(COLUMNS)
        schema = reader.schema()
        assert schema is not None
        assert set(schema.names) == set(COLUMNS)
        whole = [one for piece in reader.rows(["b", "id"]) for one in piece.to_pylist()]
        assert sorted(whole, key=lambda one: one["id"]) == [
            {"b": 2, "id": "half"}, {"b": 4, "id": "new"}, {"b": 1, "id": "old"},
        ]  # fmt: skip
        assert next(reader.rows(["b"])).schema.field("b").type == schema.field("b").type
        assert reader.incomplete_keys(ID) == [b'["half"]']
        assert sorted(reader.keys_below(at(6), key=["id"]).column("id").to_pylist()) == [
            "half", "old",
        ]  # fmt: skip
        found = reader.read_rows(pa.table({"id": ["new", "half", "never"]})).to_pylist()
        by_id = {one["id"]: one for one in found}
        assert {name: one["b"] for name, one in by_id.items()} == {"new": 4, "half": 2}
        assert by_id["new"]["_cdc"]["position"] == at(7)
        gone = scribe.engine.truncate(
            scribe.path, at(6), deletes=scribe.model.deletes, app_id="q/t/cut", version=9
        )
        assert gone.deleted or gone.updated == 2
        assert reader.keys_below(at(6), key=["id"]).num_rows == 0, "it reads what is there now"

    @pytest.mark.parametrize("deletes", ["hard", "soft"])
    def test_a_version_is_read_as_it_was(self, scribe: Scribe) -> None:
        scribe.merge(upsert(row("x", "o", 1), at(3)), upsert(row("gone", "g", 2), at(3)))
        scribe.merge(upsert(row("x", "n", 9), at(7)), delete(row("gone"), at(7)))
        self.made_by.settle()
        sink = self.made_by.sink_of(scribe.path, self.name, {}, query="q")
        sink.open()
        now = sink.opened
        assert now is not None
        assert set(now.columns_of().names) == set(COLUMNS)
        keys = pa.table({"id": pa.array(["x", "gone", "never"])})
        found = {one["id"]: one for one in now.rows_of(keys).to_pylist()}
        alive = {n: one for n, one in found.items() if not one["_cdc"].get("deleted")}
        assert {n: (one["a"], one["b"]) for n, one in alive.items()} == {"x": ("n", 9)}
        before = sink.before(["q/t/stream"], scribe.version)
        assert before is not None
        found = {one["id"]: one["b"] for one in before.rows_of(keys).to_pylist()}
        assert found == {"x": 1, "gone": 2}

    @pytest.mark.parametrize("deletes", ["hard"])
    def test_a_table_knows_its_versions(self, scribe: Scribe) -> None:
        reader = self.made_by.reader_of(scribe.path, {})
        scribe.merge(upsert(row("x", "o", 1), at(3)))
        self.made_by.settle()
        first = reader.history()[0].version
        scribe.merge(upsert(row("x", "n", 9), at(7)))
        self.made_by.settle()
        versions = [one.version for one in reader.history()]
        assert versions[:2] == [first + 1, first]
        assert versions == sorted(versions, reverse=True)
        keys = pa.table({"id": ["x", "never"]})
        for version, b in ((first, 1), (first + 1, 9)):
            found = reader.rows_at(version, keys)
            assert found is not None
            assert [one["b"] for one in found.to_pylist()] == [b]
        assert reader.rows_at(first + 2, keys) is None

    def test_rows_of_our_own_are_added_once(self, tmp_path) -> None:
        path, rows = str(tmp_path / "_lakemark" / "own"), pa.table({"a": ["x", "y"]})
        for app_id in ("one", "one", "other/one"):
            self.made_by.append(path, rows, app_id=app_id, options={})
        found = [one for part in self.made_by.reader_of(path, {}).rows(["a"]) for one in part["a"]]
        assert sorted(map(str, found)) == ["x", "x", "y", "y"]

    @pytest.mark.parametrize("deletes", ["hard"])
    def test_what_a_table_says_of_itself_changes_no_row(self, scribe: Scribe, tmp_path) -> None:
        def note(path: str, text: str) -> bool:
            return self.made_by.note(path, "lakemark.proved", text, options={})

        assert not note(str(tmp_path / "none"), "x"), "there is no table"
        scribe.merge(upsert(row("x", "o", 1), at(3)))
        is_noted = note(scribe.path, '{"at_ms":1}')
        sink = self.made_by.sink_of(scribe.path, self.name, {}, query="q")
        sink.open()
        assert sink.opened is not None
        version = sink.opened.version()
        assert note(scribe.path, '{"at_ms":1}') == is_noted
        sink.open()
        assert sink.opened.version() == version, "done again it changes nothing"
        assert sink.recorded("q/t/stream") is not None
        scribe.merge(upsert(row("x", "n", 9), at(7)))
        assert note(scribe.path, '{"at_ms":2}') == is_noted
        scribe.merge(upsert(row("y", "y", 2), at(8)), delete(row("x"), at(9)))
        self.made_by.settle()
        (kept,) = self.made_by.reader_of(scribe.path, {}).rows(["id", "b"])
        assert kept.to_pylist() == [{"id": "y", "b": 2}]

    @pytest.mark.parametrize("deletes", ["hard"])
    def test_a_batch_with_a_sweep_alone_does_not_say_what_the_key_is(self, scribe: Scribe) -> None:
        scribe.merge(upsert(row("x"), at(1)))
        more = {"key": (), "deletes": "hard", "app_id": "q/t/stream", "version": 7}
        done = scribe.engine.merge(scribe.path, write_set([], COLUMNS), **more)
        assert (done.skipped, done.rows) == (False, 1)
        scribe.check()

    def test_a_table_takes_the_place_of_another_or_none_does(self, engine, tmp_path) -> None:
        made_by, path, name = self.made_by, str(tmp_path / "t"), "rebuild-a-1"
        old = self.scribe_of(engine, path, COLUMNS, ("id",))
        old.merge(upsert(row("old"), at(1)))
        more = {"table": "", "options": {}}
        if not made_by.can_replace(path, {}):
            with pytest.raises(TableError):
                made_by.replace(path, name, **more)
            return
        assert made_by.replace(path, name, **more) is None, "there is no other yet"
        new = self.scribe_of(engine, rebuild_path(path, name), COLUMNS, ("id",))
        new.merge(upsert(row("new", "n", 5), at(2)), upsert(row("more"), at(2)))
        for _ in range(2):
            done = made_by.replace(path, name, **more)
            assert done is not None
            assert done.rows == 2
            assert set(engine.read(path).column("id").to_pylist()) == {"new", "more"}
        made_by.discard(path, name, options={})
        assert set(engine.read(path).column("id").to_pylist()) == {"new", "more"}
        assert made_by.reader_of(rebuild_path(path, name), {}).columns() is None
        made_by.empty(path, "rebuild-a-2", options={})
        assert engine.read(path).num_rows == 0

    def test_older_rows_get_a_column_once_or_nothing_is_done(self, engine, tmp_path) -> None:
        scribe = self.scribe_of(engine, tmp_path / "t", COLUMNS, ("id",))
        scribe.merge(upsert(row("x"), at(1)), upsert(row("y"), at(2)))
        before = engine.read(scribe.path)
        more = {"app_id": "q/t/fill/1", "table": "", "options": {}, "engine": self.name}
        done = self.made_by.fill(scribe.path, [NEW], **more)
        assert self.made_by.fill(scribe.path, [NEW], **more) == done
        after = engine.read(scribe.path)
        if not done:
            assert after.sort_by("id").equals(before.sort_by("id"))
            return
        assert after.column("w").to_pylist() == [11, 11]
        assert pc.all(pc.is_in(after.column("id"), before.column("id"))).as_py()
        assert not self.made_by.fill(scribe.path, [NEW], **{**more, "app_id": "q/t/fill/2"})


def _instant(year: int, *rest: int) -> datetime:
    return datetime(year, *rest, tzinfo=UTC)


VALUES: dict[str, list[Any]] = {
    "i8": [-128, 127], "i16": [-32768, 32767], "i32": [-(2**31), 2**31 - 1],
    "i64": [-(2**63), 2**63 - 1], "f32": [0.5, float("inf")], "f64": [1e300, float("-inf")],
    "yes": [True, False], "text": ["ä\0'\\", ""], "blob": [b"\x00\xff", b""],
    "d38": [Decimal("-1234567890123456789012345678.0123456789"), Decimal(0)],
    "day": [date(1, 1, 1), date(9999, 12, 31)],
    "local": [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)],  # noqa: DTZ001
    "instant": [_instant(1, 1, 1), _instant(9999, 12, 31, 23, 59, 59, 999999)],
    "numbers": [[1, None, 3], []], "nested": [[["a", None], None, []], None],
    "pairs": [[("a", None), ("b", "c")], []],
    "point": [{"x": 1.5, "y": None}, None],
    "rows": [[{"at": datetime(1, 1, 1)}, None], None],  # noqa: DTZ001
}  # fmt: skip
TYPES: dict[str, pa.DataType] = {
    "id": pa.int64(), "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(),
    "f32": pa.float32(), "f64": pa.float64(), "yes": pa.bool_(), "text": pa.string(),
    "blob": pa.binary(), "d38": pa.decimal128(38, 10), "day": pa.date32(),
    "local": pa.timestamp("us"), "instant": pa.timestamp("us", "UTC"),
    "numbers": pa.list_(pa.int32()), "nested": pa.list_(pa.list_(pa.string())),
    "pairs": pa.map_(pa.string(), pa.string()),
    "point": pa.struct([("x", pa.float64()), ("y", pa.float64())]),
    "rows": pa.list_(pa.struct([("at", pa.timestamp("us"))])),
}  # fmt: skip
KEY_VALUES: dict[str, list[Any]] = {
    "k_int": [-(2**63), 7], "k_small": [1, -1], "k_text": ["a'b\\" + "x" * 100, "Ä"],
    "k_decimal": [Decimal("-0.5000"), Decimal("9999999999999999.9999")],
    "k_exact": [Decimal("1.10"), Decimal("2.20")],
    "k_local": [datetime(1, 1, 1, 0, 0, 0, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)],  # noqa: DTZ001
    "k_instant": [_instant(2026, 1, 1, 1, 1, 1, 999999), _instant(9999, 12, 31, 23, 59, 59, 999999)],
    "k_day": [date(1, 1, 1), date(9999, 12, 31)],
    "k_blob": [b"", b"\xff\x00'"], "k_float": [-0.0, float("inf")], "k_yes": [True, False],
    "k_uuid": ["6f9619ff-8b86-d011-b42d-00cf4fc964ff", "00000000-0000-0000-0000-000000000000"],
}  # fmt: skip
KEY_TYPES: dict[str, pa.DataType] = {
    "k_int": pa.int64(), "k_small": pa.int16(), "k_text": pa.string(),
    "k_decimal": pa.decimal128(20, 4), "k_exact": pa.decimal128(10, 2),
    "k_local": pa.timestamp("us"), "k_instant": pa.timestamp("us", "UTC"),
    "k_day": pa.date32(), "k_blob": pa.binary(), "k_float": pa.float64(), "k_yes": pa.bool_(),
    "k_uuid": pa.string(),
}  # fmt: skip
assert cdc_type().num_fields == 5
