"""A Delta table that is older than the checkpoint: said by name, and nothing is written to it."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakemark.sink import names
from lakemark.sink.delta import table_log
from lakemark.state import tables
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ITEMS, ORDERS, Shop, schema_of
from tests.kit.table_states import flat_form

pytestmark = pytest.mark.usefixtures("letters", "cache")


@pytest.fixture(params=["task-merge", "deletion-vectors"])
def shop(request, tmp_path):
    schemas = {t: schema_of(t, id="int8", v="text") for t in (ORDERS, ITEMS)}
    return Shop(tmp_path, Broker(), schemas, settings={"engine": request.param})


def entry(shop):
    return shop.state.tables[ORDERS]


def folder(shop):
    return Path(names.table_path(shop.config.lake.path, ORDERS))


def newest_commit(shop):
    return max(folder(shop).glob("_delta_log/*.json"))


def applied(shop, *keys):
    """A batch for each key."""
    for key in keys:
        shop.put("c", 10 + key, key, v=f"v{key}")
        shop.run()


def put_back(shop):
    """A copy from before the newest batch."""
    copy = shop.root / "copy"
    shutil.copytree(folder(shop), copy)
    applied(shop, 3)
    shutil.move(folder(shop), shop.root / "newest")
    shutil.move(copy, folder(shop))


def put_back_and_used(shop):
    """The same, and others have committed since: its version is that of the newest one again."""
    put_back(shop)
    if shop.config.lake.engine == "task-merge":
        DeltaTable(folder(shop)).optimize.compact()
    else:  # as upkeep does it: a commit without a batch
        copy = json.loads(newest_commit(shop).read_text().splitlines()[0])
        (
            folder(shop) / f"_delta_log/{DeltaTable(folder(shop)).version() + 1:020d}.json"
        ).write_text(json.dumps(copy) + "\n")


def commit_is_gone(shop):
    applied(shop, 3)
    shutil.copytree(folder(shop), shop.root / "newest")
    newest_commit(shop).unlink()


def commit_is_empty(shop):
    """As a disk leaves it that lost its power before the file's bytes were written."""
    applied(shop, 3)
    shutil.copytree(folder(shop), shop.root / "newest")
    newest_commit(shop).write_bytes(b"")


WAYS = [put_back, put_back_and_used, commit_is_gone, commit_is_empty]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("older", "restarts"),
    [*((way, True) for way in WAYS), (put_back, False), (commit_is_gone, False)],
)
def test_the_table_stops_and_goes_on_when_the_newest_copy_is_back(shop, older, restarts):
    applied(shop, 1, 2)
    older(shop)
    before = shop.values()
    if restarts:
        table_log.forget()
        shop.restart()
    shop.put("c", 20, 1, table=ITEMS, v="other")
    applied(shop, 4)
    assert (entry(shop).state, entry(shop).code) == (tables.ERRORED, "table-older")
    assert "batch 1 " in entry(shop).reason
    assert "batch 2:" in entry(shop).reason
    assert not entry(shop).retried
    assert shop.values() == before, "nothing is written to it"
    assert shop.values(ITEMS) == {1: "other"}

    shop.records.append({"type": "table-resume", "table": ORDERS})
    applied(shop, 5)
    assert entry(shop).code == "table-older", "nobody gets round it"

    shutil.rmtree(folder(shop))
    shutil.move(shop.root / "newest", folder(shop))
    shop.records.append({"type": "table-resume", "table": ORDERS})
    applied(shop, 6, 7)
    assert entry(shop).state == tables.STREAMING
    assert sorted(shop.values()) == [1, 2, 3, 4, 5, 6, 7]
    assert not entry(shop).repair.resnapshot


def test_without_a_newer_copy_a_skip_goes_on_with_this_one(shop):
    applied(shop, 1, 2)
    put_back(shop)
    applied(shop, 4)
    topic = f"shop.{ORDERS}"
    upto = shop.broker.ends()[topic]
    shop.records.append({"type": "table-skip", "table": ORDERS, "offsets": {topic: upto}})
    applied(shop, 5, 6)
    assert entry(shop).state == tables.STREAMING
    assert entry(shop).repair.resnapshot
    assert {1, 2, 6} <= shop.values().keys()
    newest_commit(shop).unlink()
    table_log.forget()
    applied(shop, 7)
    assert entry(shop).code == "table-older", "from then on it counts again"


def test_a_truncate_that_is_gone_is_missed(shop):
    applied(shop, 1, 2)
    shop.put("t", 15, 0)
    shop.run()
    assert shop.values() == {}
    while "/truncate" in newest_commit(shop).read_text():
        newest_commit(shop).unlink()
    table_log.forget()
    applied(shop, 30)
    assert entry(shop).code == "table-older"


def test_what_a_catch_up_committed_is_missed(shop):
    applied(shop, 1)
    shop.records.append({"type": "table-pause", "table": ORDERS})
    applied(shop, 2)
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.run()
    shop.run()
    assert entry(shop).state == tables.STREAMING
    assert shop.values() == {1: "v1", 2: "v2"}
    newest_commit(shop).unlink()
    table_log.forget()
    applied(shop, 3)
    assert entry(shop).code == "table-older"


def test_others_commits_and_batches_without_a_change_are_no_matter(shop):
    applied(shop, 1, 2)
    for number in range(3):
        shop.put("c", 30 + number, number, table=ITEMS, v="other")
        shop.run()
    DeltaTable(folder(shop)).create_checkpoint()
    table_log.forget()
    shop.restart()
    applied(shop, 3)
    assert (entry(shop).state, entry(shop).code) == (tables.STREAMING, "")
    assert sorted(shop.values()) == [1, 2, 3]


def test_a_state_that_does_not_know_the_batch_is_not_held_against_the_table(shop):
    """An older version of lakemark wrote it."""
    applied(shop, 1, 2)
    state = flat_form(shop.checkpoint.states[shop.batch], 4)
    for one in state["tables"].values():
        assert one.pop("recorded") == 1
        one.pop("recorded_as")
    shop.checkpoint.states[shop.batch] = json.dumps(state).encode()
    newest_commit(shop).unlink()
    table_log.forget()
    applied(shop, 3, 4)
    assert (entry(shop).state, entry(shop).files.recorded) == (tables.STREAMING, 3)


def test_a_table_that_is_gone_begins_anew(shop):
    applied(shop, 1, 2)
    shutil.rmtree(folder(shop))
    table_log.forget()
    applied(shop, 3, 4)
    assert (entry(shop).state, entry(shop).code) == (tables.STREAMING, "")
    assert shop.values() == {3: "v3", 4: "v4"}
    assert "gone" in entry(shop).repair.resnapshot


def test_a_table_of_somebody_elses_rows_is_not_taken_for_ours(shop):
    """It never had a batch of this checkpoint."""
    applied(shop, 1, 2)
    rows = pa.table(DeltaTable(folder(shop)).scan())
    shutil.rmtree(folder(shop))
    table_log.forget()
    for _ in range(2):
        write_deltalake(folder(shop), rows, mode="append")
    applied(shop, 3)
    assert entry(shop).code == "table-older"
    assert "no batch" in entry(shop).reason


@pytest.mark.parametrize(
    "damage", [lambda blob: blob[: len(blob) * 2 // 3], lambda blob: bytes(len(blob))]
)
def test_a_commit_that_is_half_written_is_said_by_name(shop, damage):
    applied(shop, 1, 2)
    commit = newest_commit(shop)
    commit.write_bytes(damage(commit.read_bytes()))
    table_log.forget()
    shop.restart()
    applied(shop, 3)
    assert entry(shop).code == "table-damaged", entry(shop).reason
    assert "lakemark table skip" in entry(shop).hint
