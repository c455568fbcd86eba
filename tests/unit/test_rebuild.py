"""A table that was made anew takes the place of the old one: all of it or nothing, once."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from lakemark import crashpoints
from lakemark.errors import TableError
from lakemark.sink import delta, rebuild, table_actions, table_log, upkeep, vectors
from lakemark.sink.names import rebuild_path
from tests.kit.delta_table import actions, merged, numbered, values
from tests.kit.sink_contract import COLUMNS, row
from tests.kit.write_sets import at, delete, table_schema, upsert

pytestmark = pytest.mark.usefixtures("cache")

ENGINES = {"task-merge": delta, "deletion-vectors": vectors}
NEW = {"id": pa.int64(), "b": pa.string(), "more": pa.float64()}
OLD_ROWS, NEW_ROWS = {"1": 1, "3": 1}, {10: "a", 12: "c"}


class Crash(BaseException):
    pass


def make(path, engine, columns, *batches, app_id="q/t/s"):
    delta.ensure(path, table_schema(columns), key=["id"], table="public.t")
    for version, batch in enumerate(batches, 1):
        merged(ENGINES[engine], path, batch, version, app_id, columns)


def old(path, engine):
    """Rows 1 and 3; a row was deleted, so that a table with vectors has one."""
    make(path, engine, COLUMNS, numbered((1, 2, 3), 1, 1), [delete(row("2"), at(2))])


def new(path, engine, number=7, app_id="q/t/catchup"):
    rows = [upsert({"id": n, "b": b, "more": 0.5}, at(n)) for n, b in {**NEW_ROWS, 11: "b"}.items()]
    gone = [delete({"id": 11}, at(20))]
    make(rebuild_path(path, number), engine, NEW, rows, gone, app_id=app_id)


def folder(path):
    """All files but those that readers and upkeep know how to find."""
    return sorted(str(p.relative_to(path)) for p in Path(path, "_lakemark").rglob("*"))


@pytest.fixture(params=[(a, b) for a in ENGINES for b in ENGINES], ids="-to-".join)
def engines(request):
    return request.param


@pytest.fixture
def both(path, engines):
    """A table's path; it, and the one that is to take its place, by two engines."""
    upkeep.forget()
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
    done = rebuild.replace(both, 7)
    assert replaced(both, engines[1])
    after = DeltaTable(both)
    assert after.version() == before.version() + 1, "one commit"
    assert after.metadata().id == before.metadata().id
    assert delta.committed(both, "q/t/catchup") == 2
    assert delta.committed(both, "q/t/s") == 2, "of the old table: no batch is done twice"
    assert done == rebuild.Replaced(2, done.bytes)
    assert folder(both) == [
        f"_lakemark/{p.name}" for p in sorted(Path(both, "_lakemark").glob("*.bin"))
    ]
    DeltaTable(both, version=before.version())  # who reads the old version can go on
    assert set(before.file_uris()) <= {str(p) for p in Path(both).glob("*.parquet")}


def test_the_new_engine_goes_on_with_it(both, engines):
    rebuild.replace(both, 7)
    engine = ENGINES[engines[1]]
    for version in (3, 4, 5):
        changes = [upsert({"id": 12, "b": f"v{version}"}, at(30 + version))]
        merged(engine, both, [*changes, delete({"id": 10}, at(40))], version, columns=NEW)
    assert values(both) == {12: "v5"}
    upkeep.maintain(both, key=["id"], engine=engines[1])
    upkeep.vacuum(both, engine=engines[1])
    assert values(both) == {12: "v5"}


@pytest.mark.parametrize("point", crashpoints.OF_REBUILDS)
def test_a_crash_leaves_one_of_them_and_the_repetition_the_new_one(
    both, engines, point, monkeypatch
):
    def reach(name):
        if name == point:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(crashpoints, "reach", reach)
        with pytest.raises(Crash):
            rebuild.replace(both, 7)
    assert replaced(both, engines[1]) == (point == crashpoints.AFTER_REPLACED)
    upkeep.forget()  # it is another process
    rebuild.replace(both, 7)
    assert replaced(both, engines[1])
    version = DeltaTable(both).version()
    assert not [name for name in folder(both) if "rebuild" in name]
    assert rebuild.replace(both, 7) is not None
    assert DeltaTable(both).version() == version, "once"


def test_a_file_that_fails_on_its_way_leaves_the_old_table(both, monkeypatch):
    def full(_from, _to):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.link", full)
        with pytest.raises(Exception, match="lake"):
            rebuild.replace(both, 7)
    assert values(both) == OLD_ROWS
    rebuild.replace(both, 7)
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
    rebuild.replace(both, 7)
    assert others
    assert values(both) == NEW_ROWS


def test_halves_that_wait_come_along_and_those_of_the_old_table_go(both):
    def write(folder, name):
        place = Path(folder, "_lakemark/pending", name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"halves")

    write(both, "q-3.arrow")
    write(rebuild_path(both, 7), "q-9.arrow")
    rebuild.replace(both, 7)
    assert [p.name for p in Path(both, "_lakemark/pending").iterdir()] == ["q-9.arrow"]


def test_a_source_without_rows_empties_the_table_and_keeps_it(path):
    old(path, "task-merge")
    assert rebuild.replace(path, 7) is None
    assert values(path) == {}
    version = DeltaTable(path).version()
    assert rebuild.replace(path, 7) is None
    assert DeltaTable(path).version() == version
    new(path, "task-merge")
    assert rebuild.replace(path, 7)
    assert values(path) == NEW_ROWS


def test_a_table_that_is_not_there_is_made(tmp_path):
    path = str(tmp_path / "none")
    new(path, "deletion-vectors")
    rebuild.replace(path, 7)
    assert values(path) == NEW_ROWS


def test_a_second_rebuild_is_another_one_and_the_first_leaves_nothing(both):
    rebuild.replace(both, 7)
    new(both, "task-merge", number=8, app_id="q/t/again")
    new(both, "task-merge", number=9, app_id="q/t/again")
    rebuild.replace(both, 9)
    assert DeltaTable(both).transaction_version(rebuild.RECORD) == 9
    assert not [name for name in folder(both) if "rebuild" in name]


def test_properties_stay_but_those_of_the_files(both, engines):
    wanted = {"delta.deletedFileRetentionDuration": "interval 3 days", "of.mine": "yes"}
    DeltaTable(both).alter.set_table_properties(wanted, raise_if_not_exists=False)
    rebuild.replace(both, 7)
    found = DeltaTable(both).metadata().configuration
    assert wanted.items() <= found.items()
    assert found["delta.dataSkippingStatsColumns"] == "`id`"
    own = engines[1] if engines[1] == "deletion-vectors" else None
    assert found.get("lakemark.engine") == own


def test_an_old_table_whose_log_is_damaged_says_so_and_stays(both):
    last = max(Path(both, "_delta_log").glob("*.json"))
    last.write_text("{")
    with pytest.raises(TableError, match="cannot be read"):
        rebuild.replace(both, 7)
    assert Path(rebuild_path(both, 7)).is_dir()


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 2}, {"minReaderVersion": 1, "minWriterVersion": 2}, (1, 2, None, None)),
        ({"minReaderVersion": 1, "minWriterVersion": 4}, {"minReaderVersion": 1, "minWriterVersion": 2}, (1, 4, None, None)),
        (
            {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors", "appendOnly"]},
            {"minReaderVersion": 1, "minWriterVersion": 2},
            (1, 7, None, ["appendOnly", "invariants"]),
        ),
        (
            {"minReaderVersion": 1, "minWriterVersion": 4},
            {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]},
            (3, 7, ["deletionVectors"], ["appendOnly", "changeDataFeed", "checkConstraints", "deletionVectors", "invariants"]),
        ),
        (
            {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors", "timestampNtz"], "writerFeatures": ["deletionVectors", "timestampNtz"]},
            {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["timestampNtz"], "writerFeatures": ["timestampNtz"]},
            (3, 7, ["timestampNtz"], ["timestampNtz"]),
        ),
    ],
)  # fmt: skip
def test_a_protocol_needs_what_files_and_properties_need(was, now, expected):
    found = table_actions.joined_protocol(was, now)
    names = ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures")
    assert tuple(found.get(name) for name in names) == expected


def test_the_log_says_what_was_done(both):
    version = DeltaTable(both).version() + 1
    rebuild.replace(both, 7)
    said = actions(both, version)
    assert {one["dataChange"] for one in [*said["add"], *said["remove"]]} == {True}
    assert {one["appId"]: one["version"] for one in said["txn"]}[rebuild.RECORD] == 7


def test_numbers_of_batches_are_recorded_as_the_new_table_has_them(path):
    """A version of the old table may be higher under the same id, if its checkpoint was another."""
    old(path, "task-merge")
    write_deltalake(
        path, DeltaTable(path).to_pyarrow_table(), mode="overwrite",
        commit_properties=CommitProperties(app_transactions=[Transaction("q/t/catchup", 99)]),
    )  # fmt: skip
    new(path, "task-merge")
    rebuild.replace(path, 7)
    assert delta.committed(path, "q/t/catchup") == 2
