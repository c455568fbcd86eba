"""Verify runs through the whole pipeline: what they find and mend, whatever dies meanwhile."""

import json
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from lakemark.errors import DependencyError, TableError
from lakemark.model.comparisons import ComparedChunk, UnlikeRow
from lakemark.model.proof import PROPERTY, TableProof
from lakemark.reconcile.chunks import Settled
from lakemark.reconcile.outputs import COMPARED, SETTLED
from lakemark.sink import found_rows
from lakemark.sink.names import table_path
from lakemark.state import advance
from lakemark.state.tables import PipelineState
from tests.kit.fake_world import ITEMS, ORDERS
from tests.kit.memory_pipeline import DiedError
from tests.kit.whole_pipeline import Change, World

ROWS = {ORDERS: {n: f"v{n}" for n in range(1, 9)}, ITEMS: {1: "i"}}
FOUND = [("missing", "[2]"), ("differing", "[4]")]


@pytest.fixture
def world(tmp_path) -> World:
    """The lake has all rows, and two of them are wrong."""
    found = World(tmp_path, {})
    for table, rows in ROWS.items():
        found.commit(*(Change("c", table, key, v) for key, v in rows.items()))
    found.step()
    found.step()
    assert found.lake.values() == ROWS[ORDERS]
    table = DeltaTable(table_path(found.lake.config.lake.path, ORDERS))
    table.delete("id = 2")
    table.update({"v": "'other'"}, predicate="id = 4")
    return found


def findings(world: World, run: str = "v") -> list[tuple[str, str]]:
    return [(row["kind"], row["key"]) for row in found_rows.of_run(world.lake.config.lake, run)]


def verify(world: World, name: str = "v", **more) -> dict[str, str]:
    world.send("verify", name, data_collections=[ORDERS, ITEMS], **more)
    world.finish(name)
    return world.note(name, "COMPLETED")


def test_it_finds_and_mends(world):
    told = verify(world)
    assert findings(world) == FOUND
    assert (told["missing_rows"], told["differing_rows"], told["extra_rows"]) == ("1", "1", "0")
    assert world.lake.values()[4] == "other"
    verify(world, "w", repair=True)
    assert findings(world, "w") == FOUND
    assert world.lake.values() == ROWS[ORDERS]
    assert verify(world, "x")["total_rows_scanned"] == "9"
    assert findings(world, "x") == []


def noted(world: World) -> dict[str, Any]:
    """What the Delta table says of its proof."""
    table = DeltaTable(table_path(world.lake.config.lake.path, ORDERS))
    return json.loads(table.metadata().configuration.get(PROPERTY, "{}"))


def test_what_is_proved_is_kept_in_the_state_and_in_the_table(world):
    verify(world)
    proof = world.lake.state.proofs[ORDERS]
    assert (proof.proved_ms, proof.unlike) == (0, 2)
    assert noted(world) == {}
    verify(world, "w", repair=True)
    proof = world.lake.state.proofs[ORDERS]
    assert (proof.proved_by, proof.rows, proof.mended, proof.unlike) == ("w", 8, True, 0)
    assert proof.proved_ms == proof.turn_ms > 0
    assert noted(world) == proof.told()
    message = DeltaTable(table_path(world.lake.config.lake.path, ORDERS)).history(5)
    assert json.dumps(proof.told(), separators=(",", ":")) in {
        one.get("userMetadata") for one in message
    }
    assert bytes.fromhex(proof.position) > b""
    world.commit(Change("u", ORDERS, 1, "new"))
    world.step()
    assert world.lake.values()[1] == "new", "merges go on behind it"
    assert noted(world) == proof.told()


def test_a_table_whose_files_are_others_is_not_proved(world):
    verify(world, "w", repair=True)
    assert world.lake.state.proofs[ORDERS].proved_ms
    world.lake.records.append({"type": "table-rebuild", "table": ORDERS, "id": "c"})
    world.go(60.0, until=lambda: bool(world.table(ORDERS).files.rebuild))
    world.go(120.0, until=lambda: not world.table(ORDERS).files.rebuild)
    assert world.lake.state.proofs[ORDERS] == TableProof(
        files_since=world.lake.state.proofs[ORDERS].files_since
    )
    assert world.lake.state.proofs[ITEMS].proved_ms
    assert noted(world) == {}
    verify(world, "x")
    assert world.lake.state.proofs[ORDERS].proved_by == "x"


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.sampled(6)
@pytest.mark.parametrize("at", range(2, 14))
def test_a_batch_that_dies_behind_its_commits_finds_the_same_again(world, repair, at):
    """And after the findings were kept, too: they are there once."""
    world.send("verify", "v", data_collections=[ORDERS], repair=repair)
    for step in range(60):
        world.lake.checkpoint.dies_before_saving = step == at
        try:
            world.step()
        except DiedError:
            assert step == at
            world.lake.restart()
            world.lake.again()
            world.start()
        if world.ended("v"):
            break
    assert step > at, "it died in the midst of the run"
    assert findings(world) == FOUND
    told = world.note("v", "COMPLETED")
    assert (told["missing_rows"], told["differing_rows"]) == ("1", "1")
    if repair:
        assert world.lake.values() == ROWS[ORDERS]


def test_while_the_lake_takes_no_findings_the_batch_is_tried_again(world, monkeypatch):
    real, tries = found_rows.keep, []

    def away(*args, **more):
        tries.append(1)
        if len(tries) == 1:
            raise DependencyError("the lake is away", code="lake-away")
        return real(*args, **more)

    monkeypatch.setattr(found_rows, "keep", away)
    world.send("verify", "v", data_collections=[ORDERS], repair=True)
    with pytest.raises(DependencyError):
        world.go(30)
    world.lake.restart()
    world.lake.again()
    world.start()
    world.finish("v")
    assert findings(world) == FOUND
    assert world.lake.values() == ROWS[ORDERS]


def test_a_run_whose_findings_cannot_be_kept_fails_and_says_why(world, monkeypatch):
    def taken(*_, **__):
        raise TableError("the folder holds something else", code="lake-refused", hint="move it")

    monkeypatch.setattr(found_rows, "keep", taken)
    world.send("verify", "v", data_collections=[ORDERS])
    world.finish("v")
    assert world.note("v", "ABORTED")["code"] == "lake-refused"
    world.commit(Change("u", ORDERS, 1, "new"))
    world.step()
    assert world.lake.values()[1] == "new", "the stream goes on"


def test_changes_beside_it_are_no_differences(world):
    table = DeltaTable(table_path(world.lake.config.lake.path, ORDERS))
    table.update({"v": "'v4'"}, predicate="id = 4")
    world.commit(Change("u", ORDERS, 2, "back"))  # the row that was gone is made by its event
    world.send("verify", "v", data_collections=[ORDERS])
    for n in range(30):
        keys = [*world.rows[ORDERS]]
        key = keys[n % len(keys)]
        world.commit(Change("d", ORDERS, key) if n % 3 == 0 else Change("u", ORDERS, key, f"w{n}"))
        world.commit(Change("c", ORDERS, 100 + n, "new"))
        world.step()
    world.finish("v")
    assert findings(world) == []


@pytest.mark.parametrize(("stopped", "void"), [((), ""), ((), "own-snapshot"), ((ORDERS,), "")])
def test_what_a_chunk_that_does_not_count_has_found_is_not_kept(stopped, void):
    settled = Settled("v", ORDERS, 0, 7, 0, void=void)
    compared = ComparedChunk("v", ORDERS, 0, 7, 0, b"", "report", 1, 0, [UnlikeRow("[1]", "extra")])
    said = [
        (COMPARED, msgspec.msgpack.encode(compared)),
        (SETTLED, msgspec.json.encode(settled)),
    ]
    news = advance.chunks(PipelineState(), frozenset(stopped), said)
    assert len(news.compared) == (not stopped and not void)
