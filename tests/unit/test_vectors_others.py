"""Tables with deletion vectors beside stores that lose answers, and beside other writers."""

import os

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.sink import delta, table_actions, table_log, vectors, vectors_upkeep
from lakemark.sink.table_store import TableStore
from tests.kit.object_store import serving
from tests.kit.sink_contract import COLUMNS
from tests.kit.sink_contract import row as of
from tests.kit.write_sets import at, delete, table_schema, write_set
from tests.unit.test_vectors import EAGER, cache, merge, numbered, path, rows  # noqa: F401

# -- answers that get lost -------------------------------------------------------------------------


def test_a_commit_whose_answer_is_lost_is_ours_in_an_object_store():
    """The store tells of an error, the client asks again, and finds its own commit there."""
    with serving() as store:
        address, more = "s3://lake/public/t", {"storage_options": store.options}
        delta.ensure(address, table_schema(COLUMNS), key=["id"], **more)

        def put(version: int, *changes):
            return vectors.merge(
                address,
                write_set(changes, COLUMNS),
                key=["id"],
                deletes="hard",
                app_id="q/t/s",
                version=version,
                **more,
            )

        put(1, *numbered(range(10), 1))
        store.lose(r"/_delta_log/\d+\.json$")
        done = put(2, *numbered(range(3), 2, -1), delete(of("3"), at(2)))
        assert store.lost()
        assert (done.skipped, done.updated, done.deleted, done.rows) == (False, 3, 1, 9)
        found = pa.table(DeltaTable(address, **more).scan(columns=["id", "b"])).to_pylist()
        expected = {**{str(n): n for n in range(4, 10)}, **{str(n): -1 for n in range(3)}}
        assert {row["id"]: row["b"] for row in found} == expected
        assert len(found) == len(expected)


@pytest.mark.parametrize("what", ["merge", "upkeep"])
def test_a_commit_whose_answer_is_lost_is_ours_on_a_disk(path, monkeypatch, what):  # noqa: F811
    """A network file system makes the link, loses the answer, and refuses the repetition."""
    for version in range(1, 6):
        merge(path, version, *numbered(range(version, version + 9), version, version))
    expected, real = rows(path), os.link

    def link(source, target):
        real(source, target)
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    if what == "merge":
        done = merge(path, 9, *numbered((1,), 9, -1))
        assert (done.skipped, done.updated) == (False, 1)
        expected["1"] = -1
    else:
        assert vectors_upkeep.maintain(path, key=["id"], policy=EAGER).compacted
    assert rows(path) == expected


def test_a_file_that_somebody_else_wrote_is_not_ours(path):  # noqa: F811
    merge(path, 1, *numbered(range(3), 1))
    store = TableStore(path)
    before = table_log.load(store, DeltaTable(path).version())
    same = [table_actions.info("MERGE", 1, before.version) for _ in range(2)]
    assert table_log.commit(store, before, same[:1]) is not None
    assert table_log.commit(store, before, same[1:]) is None
