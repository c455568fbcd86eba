"""A table that was made anew takes the place of the old one: all of it or nothing, once."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from lakemark import failpoints
from lakemark.errors import TableError
from lakemark.sink.delta import deletion_vectors, delta_rs, maintenance, rebuild, table_log
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.names import rebuild_path
from tests.kit.delta_table import actions, merged, numbered, values
from tests.kit.sink_contract import COLUMNS, row
from tests.kit.write_sets import at, delete, table_schema, upsert

pytestmark = [pytest.mark.usefixtures("cache"), pytest.mark.sampled(2)]

ENGINES = {"task-merge": delta_rs, "deletion-vectors": deletion_vectors}
NEW = {"id": pa.int64(), "b": pa.string(), "more": pa.float64()}
R = "rebuild-a-7"
OLD_ROWS, NEW_ROWS = {"1": 1, "3": 1}, {10: "a", 12: "c"}


class Crash(BaseException):
    pass


def make(path, engine, columns, *batches, app_id="q/t/s"):
    delta_rs.ensure(path, table_schema(columns), key=["id"], table="public.t")
    for version, batch in enumerate(batches, 1):
        merged(ENGINES[engine], path, batch, version, app_id, columns)


def old(path, engine):
    """Rows 1 and 3; a row was deleted, so that a table with vectors has one."""
    make(path, engine, COLUMNS, numbered((1, 2, 3), 1, 1), [delete(row("2"), at(2))])


def new(path, engine, name=R, app_id="q/t/catchup"):
    rows = [upsert({"id": n, "b": b, "more": 0.5}, at(n)) for n, b in {**NEW_ROWS, 11: "b"}.items()]
    gone = [delete({"id": 11}, at(20))]
    make(rebuild_path(path, name), engine, NEW, rows, gone, app_id=app_id)


def folder(path):
    """All files but those that readers and upkeep know how to find."""
    return sorted(str(p.relative_to(path)) for p in Path(path, "_lakemark").rglob("*"))


@pytest.fixture(params=[(a, b) for a in ENGINES for b in ENGINES], ids="-to-".join)
def engines(request):
    return request.param


@pytest.fixture
def both(path, engines):
    """A table's path; it, and the one that is to take its place, by two engines."""
    maintenance.forget()
    path = str(Path(path).parent / "rebuilt")
    old(path, engines[0])
    new(path, engines[1])
    return path


def replaced(path, engine):
    """Whether what is there is the new table, whole; else it must be the old one."""
    table = DeltaTable(path)
    if values(path) == OLD_ROWS:
        assert pa.schema(table.schema().to_arrow()).field("id").type == pa.string()
        return False
    assert values(path) == NEW_ROWS
    assert pa.schema(table.schema().to_arrow()).field("id").type == pa.int64()
    features = set(table.protocol().reader_features or ())
    assert ("deletionVectors" in features) == (engine == "deletion-vectors")
    return True


def test_schema_key_files_and_records_are_those_of_the_new_table(both, engines):
    before = DeltaTable(both)
    done = rebuild.replace(both, R)
    assert replaced(both, engines[1])
    after = DeltaTable(both)
    assert after.version() == before.version() + 1, "one commit"
    assert after.metadata().id == before.metadata().id
    assert delta_rs.committed(both, "q/t/catchup") == 2
    assert delta_rs.committed(both, "q/t/s") == 2, "of the old table: no batch is done twice"
    assert done == rebuild.Replaced(2, done.bytes)
    rebuild.discard(both, R)
    assert folder(both) == [
        f"_lakemark/{p.name}" for p in sorted(Path(both, "_lakemark").glob("*.bin"))
    ]
    DeltaTable(both, version=before.version())  # who reads the old version can go on
    assert set(before.file_uris()) <= {str(p) for p in Path(both).glob("*.parquet")}


def test_the_new_engine_goes_on_with_it(both, engines):
    rebuild.replace(both, R)
    engine = ENGINES[engines[1]]
    for version in (3, 4, 5):
        changes = [upsert({"id": 12, "b": f"v{version}"}, at(30 + version))]
        merged(engine, both, [*changes, delete({"id": 10}, at(40))], version, columns=NEW)
    assert values(both) == {12: "v5"}
    maintenance.maintain(both, key=["id"], engine=engines[1])
    maintenance.vacuum(both, engine=engines[1])
    assert values(both) == {12: "v5"}


@pytest.mark.parametrize("point", failpoints.OF_REBUILDS)
def test_a_crash_leaves_one_of_them_and_the_repetition_the_new_one(
    both, engines, point, monkeypatch
):
    def reach(name):
        if name == point:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", reach)
        with pytest.raises(Crash):
            rebuild.replace(both, R)
    assert replaced(both, engines[1]) == (point == failpoints.AFTER_REPLACED)
    maintenance.forget()  # it is another process
    rebuild.replace(both, R)
    assert replaced(both, engines[1])
    version = DeltaTable(both).version()
    assert rebuild.replace(both, R) is not None
    assert DeltaTable(both).version() == version, "once"
    for _ in range(2):
        rebuild.discard(both, R)
        assert not [name for name in folder(both) if "rebuild" in name]


def test_a_file_that_fails_on_its_way_leaves_the_old_table(both, monkeypatch):
    def full(_from, _to):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.link", full)
        with pytest.raises(Exception, match="lake"):
            rebuild.replace(both, R)
    assert values(both) == OLD_ROWS
    rebuild.replace(both, R)
    assert values(both) == NEW_ROWS


def test_a_writer_that_comes_first_loses_no_file_to_it(both, monkeypatch):
    """Somebody else's compaction: what it has made must go with the rest of the old table."""
    real, others = table_log.commit, []

    def overtaken(store, before, said):
        if not others:
            others.append(1)
            rows = DeltaTable(both).to_pyarrow_table() if not before.vectors_on else None
            if rows is not None:
                write_deltalake(both, rows, mode="overwrite")
            else:
                DeltaTable(both).alter.set_table_properties({"x": "y"}, raise_if_not_exists=False)
        return real(store, before, said)

    monkeypatch.setattr(table_log, "commit", overtaken)
    rebuild.replace(both, R)
    assert others
    assert values(both) == NEW_ROWS


def test_halves_that_wait_come_along_and_those_of_the_old_table_go(both):
    def write(folder, name):
        place = Path(folder, "_lakemark/pending", name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"halves")

    write(both, "q-3.arrow")
    write(rebuild_path(both, R), "q-9.arrow")
    rebuild.replace(both, R)
    assert [p.name for p in Path(both, "_lakemark/pending").iterdir()] == ["q-9.arrow"]


def test_a_source_without_rows_empties_the_table_and_keeps_it(path):
    old(path, "task-merge")
    assert rebuild.replace(path, R) is None
    assert values(path) == OLD_ROWS, "whether that is so, the pipeline's state says"
    for _ in range(2):
        rebuild.empty(path, R)
        assert values(path) == {}
    version = DeltaTable(path).version()
    rebuild.empty(path, R)
    assert DeltaTable(path).version() == version
    new(path, "task-merge")
    assert rebuild.replace(path, R)
    assert values(path) == NEW_ROWS
    rebuild.discard(path, R)
    rebuild.empty(path, R)  # of a process that comes late
    assert values(path) == NEW_ROWS
    assert rebuild.replace(path, R) is None


def test_what_came_to_the_new_table_since_comes_too(both, engines):
    """As where a process that was superseded has replaced the table late, with what it had seen."""
    rebuild.replace(both, R)
    changes = [upsert({"id": 13, "b": "late"}, at(50)), delete({"id": 10}, at(51))]
    merged(ENGINES[engines[1]], rebuild_path(both, R), changes, 3, "q/t/s", NEW)
    maintenance.forget()
    for _ in range(2):
        assert rebuild.replace(both, R) == rebuild.Replaced(2, rebuild.replace(both, R).bytes)
        assert values(both) == {12: "c", 13: "late"}
    assert delta_rs.committed(both, "q/t/s") == 3
    said = actions(both, DeltaTable(both).version())
    paths = [one["path"] for one in said["add"] if "deletionVector" not in one]
    assert not set(paths) & {one["path"] for one in said.get("remove", [])}


def test_the_folder_of_another_table_is_not_taken(both):
    with pytest.raises(TableError, match="not to public") as caught:
        rebuild.replace(both, R, table="public.u")
    assert caught.value.code == "path-clash"
    assert values(both) == OLD_ROWS
    assert rebuild.replace(both, R, table="public.t")


def test_a_store_without_conditions_is_refused_before_anything_is_copied(path, monkeypatch):
    old(path, "task-merge")
    new(path, "task-merge")
    monkeypatch.setenv("allow_unsafe_rename", "true")
    monkeypatch.setattr(TableStore, "copy", lambda *_: pytest.fail("copied"))
    with pytest.raises(TableError) as caught:
        rebuild.replace(path, R)
    assert caught.value.code == "lake-refused"
    assert "--cancel" in caught.value.hint


def test_a_table_that_is_not_there_is_made(tmp_path):
    path = str(tmp_path / "none")
    new(path, "deletion-vectors")
    rebuild.replace(path, R)
    assert values(path) == NEW_ROWS


def test_a_second_rebuild_is_another_one(both):
    rebuild.replace(both, R)
    rows = [upsert({"id": 1, "b": "second", "more": 0.5}, at(60))]
    make(rebuild_path(both, "rebuild-b-1"), "task-merge", NEW, rows, app_id="q/t/again")
    rebuild.replace(both, "rebuild-b-1")
    assert values(both) == {1: "second"}
    rebuild.discard(both, R)
    assert {name for name in folder(both) if name.count("/") == 1 and "rebuild" in name} == {
        "_lakemark/rebuild-b-1"
    }, "each its own"


def test_properties_stay_that_ask_nothing_of_files_and_features(both, engines):
    wanted = {"delta.deletedFileRetentionDuration": "interval 3 days", "of.mine": "yes"}
    others = {"delta.checkpointPolicy": "classic", "delta.enableChangeDataFeed": "false"}
    DeltaTable(both).alter.set_table_properties({**wanted, **others}, raise_if_not_exists=False)
    rebuild.replace(both, R)
    found = DeltaTable(both).metadata().configuration
    assert wanted.items() <= found.items()
    assert not others.keys() & found.keys()
    assert found["delta.dataSkippingStatsColumns"] == "`id`"
    own = engines[1] if engines[1] == "deletion-vectors" else None
    assert found.get("lakemark.engine") == own
    fresh = DeltaTable(rebuild_path(both, R)).protocol()
    assert DeltaTable(both).protocol() == fresh, "no feature of the old one is left"


def test_an_old_table_whose_log_is_damaged_says_so_and_stays(both):
    last = max(Path(both, "_delta_log").glob("*.json"))
    last.write_text("{")
    with pytest.raises(TableError, match="cannot be read"):
        rebuild.replace(both, R)
    assert Path(rebuild_path(both, R)).is_dir()


def test_the_log_says_what_was_done(both):
    version = DeltaTable(both).version() + 1
    rebuild.replace(both, R)
    said = actions(both, version)
    assert {one["dataChange"] for one in [*said["add"], *said["remove"]]} == {True}
    recorded = {one["appId"]: one["version"] for one in said["txn"]}
    assert recorded[f"lakemark/{R}"] == DeltaTable(rebuild_path(both, R)).version()


def test_numbers_of_batches_are_recorded_as_the_new_table_has_them(path):
    """A version of the old table may be higher under the same id, if its checkpoint was another."""
    old(path, "task-merge")
    write_deltalake(
        path, DeltaTable(path).to_pyarrow_table(), mode="overwrite",
        commit_properties=CommitProperties(app_transactions=[Transaction("q/t/catchup", 99)]),
    )  # fmt: skip
    new(path, "task-merge")
    merged(delta_rs, rebuild_path(path, R), [], 9, "lakemark/vacuum", NEW)
    write_deltalake(
        rebuild_path(path, R), DeltaTable(rebuild_path(path, R)).to_pyarrow_table(), mode="overwrite",
        commit_properties=CommitProperties(app_transactions=[Transaction("lakemark/vacuum", 99)]),
    )  # fmt: skip
    rebuild.replace(path, R)
    assert delta_rs.committed(path, "q/t/catchup") == 2
    assert delta_rs.committed(path, "lakemark/vacuum") is None, "that is of the table's own history"
