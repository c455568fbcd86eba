"""Verify runs: both sides are digested, and the keys that are not alike are compared as chunks."""

import json

import pytest

from lakemark.errors import DependencyError, TableError
from lakemark.snapshot import runs, verify_scans
from lakemark.snapshot.chunks import STATEMENT_TIMEOUT, ChunkError
from tests.kit.fake_world import ITEMS, ORDERS, CrashError, FakeWorld, Fault, away, with_settings


def alike(world: FakeWorld) -> FakeWorld:
    world.stream.lake = {table: world.database.rows(table) for table in world.database.keys}
    return world


@pytest.fixture(params=[False, True], ids=["digests", "sums"])
def world(request) -> FakeWorld:
    """The database sums its rows, or they are all read."""
    world = alike(FakeWorld())
    world.sums = request.param
    return world


def verify(world: FakeWorld, name="v", *tables: str, **more) -> dict[str, str]:
    """Runs it to its end; its numbers."""
    world.send("verify", name, data_collections=list(tables or [ORDERS]), **more)
    world.finish(name)
    assert world.said(name)[-1] == "COMPLETED", world.notes[-1]
    return numbers(world, name)


def numbers(world, name="v", kind="COMPLETED"):
    told = world.note(name, kind)
    return {
        k.removesuffix("_rows"): int(v)
        for k, v in told.items()
        if k.endswith("_rows") and k != "sent_rows"
    }


def found(world: FakeWorld) -> set[tuple[str, str, str]]:
    every = [(one.table, finding) for one in world.stream.findings for finding in one.findings]
    return {(table, finding.kind, finding.key) for table, finding in every}


def plant(world: FakeWorld) -> set[tuple[str, str, str]]:
    """One missing and one extra in the same range, a value that differs, another table."""
    lake, items = world.stream.lake[ORDERS], world.stream.lake[ITEMS]
    del lake[3]
    lake[41], lake[25], items[2] = 41, -1, -2
    return {
        (ORDERS, "missing", "[3]"), (ORDERS, "extra", "[41]"), (ORDERS, "differing", "[25]"),
        (ITEMS, "differing", "[2]"),
    }  # fmt: skip


def test_tables_that_are_equal_are_proved_without_a_window(world):
    assert verify(world, "v", ORDERS, ITEMS) == {
        "total": 45, "missing": 0, "extra": 0, "differing": 0, "duplicate": 0, "newer": 0, "left": 0,
    }  # fmt: skip
    assert world.note("v", "COMPLETED")["total_rows_scanned"] == "45"
    assert world.scans("v") == {ORDERS: "SUCCEEDED", ITEMS: "SUCCEEDED"}
    assert world.records("run-start") == world.records("chunk") == []
    assert world.stream.windows == {}
    assert found(world) == set()


def test_what_differs_is_found_and_left_as_it_is(world):
    planted = plant(world)
    before = json.dumps(world.stream.lake)
    told = verify(world, "v", ORDERS, ITEMS)
    assert (told["missing"], told["extra"], told["differing"], told["total"]) == (1, 1, 2, 45)
    assert found(world) == planted
    assert json.dumps(world.stream.lake) == before
    (start,) = world.records("run-start")
    assert (start["verify"], start.get("values")) == ("report", None)
    assert world.said("v") == ["STARTED", "COMPLETED"]
    assert verify(world, "w", ORDERS, ITEMS)["differing"] == 2


def test_what_differs_is_mended(world):
    planted = plant(world)
    assert verify(world, "v", ORDERS, ITEMS, repair=True, with_values=True)["differing"] == 2
    assert found(world) == planted
    (start,) = world.records("run-start")
    assert (start["verify"], start["values"]) == ("repair", True)
    told = verify(world, "w", ORDERS, ITEMS)
    assert (told["missing"], told["extra"], told["differing"]) == (0, 0, 0)
    assert world.stream.sweeps == [], "nothing is removed but what was compared"


def test_only_keys_that_are_asked_for(world):
    plant(world)
    told = verify(world, "v", keys=[3, 4])
    assert (told["missing"], told["extra"], told["differing"]) == (1, 0, 0)
    assert world.scanned == [], "there is nothing to scan"


def test_with_a_filter_nobody_knows_what_the_lake_has_too_much(world):
    world.stream.lake[ORDERS] |= {2: -2, 30: -30, 41: 41}
    filters = [{"data-collection": ORDERS, "filter": "id < 5"}]
    told = verify(world, "v", additional_conditions=filters)
    assert (told["differing"], told["extra"], told["total"]) == (1, 0, 5)
    assert found(world) == {(ORDERS, "differing", "[2]")}


def test_chunks_wait_for_the_events_up_to_their_close_rows_also_without_output_topics(world):
    plant(world)
    asked = []
    world.committed = lambda epoch: asked.append(epoch) or world.connect
    verify(world)
    assert asked


def test_what_the_stream_changes_meanwhile_is_no_difference(world):
    def change() -> None:
        for key in range(5, 12):
            world.database.values[ORDERS, key] = world.stream.lake[ORDERS][key] = 100 + key
        world.database.keys[ORDERS].discard(12)
        world.stream.lake[ORDERS].pop(12, None)

    world.then = change
    told = verify(world)
    assert (told["missing"], told["extra"], told["differing"]) == (0, 0, 0)
    assert found(world) == set()


@pytest.mark.parametrize(("few", "scans"), [(3, 2), (100, 1)])
def test_where_many_rows_were_changed_the_lake_is_read_once_more(world, monkeypatch, few, scans):
    monkeypatch.setattr(verify_scans, "FEW", few)
    world.sums = False
    once = []

    def change() -> None:
        if not once:
            once.append(1)
            for key in range(5, 12):
                world.database.values[ORDERS, key] = world.stream.lake[ORDERS][key] = 100 + key
            world.stream.lake[ORDERS][41] = 41

    world.then = change
    told = verify(world)
    assert world.scanned == [ORDERS] * scans
    assert (told["extra"], told["differing"]) == (0, 0), "the extra row came behind the first scan"
    asked = {key for spec in world.reads for key in spec.keys or ()}
    assert len(asked) == (0 if scans == 2 else 7)


def test_keys_beyond_what_a_run_can_carry_are_counted(world, monkeypatch):
    monkeypatch.setattr(verify_scans, "MOST_BYTES", 30)
    world.stream.lake[ORDERS] = {}
    told = verify(world)
    assert told["missing"] + told["left"] == 40
    assert 0 < told["missing"] < 10


def test_a_table_that_the_lake_does_not_have_fails_and_the_others_are_verified(world):
    world.stream.lake[ORDERS] = None
    world.send("verify", "v", data_collections=[ORDERS, ITEMS])
    world.finish("v")
    note = world.note("v", "ABORTED")
    assert (note["code"], note["reason"]) == ("no-table", f"the lake has no table {ORDERS}")
    assert world.scans("v")[ITEMS] == "SUCCEEDED"


def test_of_a_summed_table_only_ranges_that_are_not_alike_are_read(world):
    if not world.sums:
        return
    planted = {one for one in plant(world) if one[0] == ORDERS}
    told = verify(world)
    assert found(world) == planted
    assert told["total"] == 40
    read = [spec for spec in world.reads if spec.digest is not None and spec.ranges is None]
    assert {(spec.span.after, spec.span.upto) for spec in read} == {
        (("2",), ("6",)), (("24",), ("27",)), (("39",), None),
    }  # fmt: skip
    assert {spec.surrogate for spec in read} == {"id"}
    (table,) = world.run("v").tables
    assert (table.tally.scanned, table.tally.sent) == (40, 7)
    assert table.tally.source_bytes > 0
    assert table.tally.lake_bytes == 8 + 16


def test_a_table_whose_sums_take_too_long_is_read(world):
    if not world.sums:
        return
    planted = {one for one in plant(world) if one[0] == ORDERS}
    world.answers[ORDERS] = [ChunkError(code=STATEMENT_TIMEOUT, message="slow", retried=True)]
    verify(world)
    assert found(world) == planted
    (table,) = world.run("v").tables
    assert table.tally.sent == table.tally.scanned == 40


def test_a_comparison_that_fails_for_good_fails_the_table(world):
    plant(world)
    world.stream.uncomparable[ORDERS] = TableError("another type", code="not-comparable", hint="h")
    world.send("verify", "v", data_collections=[ORDERS, ITEMS])
    world.finish("v")
    assert world.note("v", "ABORTED")["code"] == "not-comparable"
    assert (ITEMS, "differing", "[2]") in found(world)


def test_a_comparison_that_fails_for_now_is_done_again(world):
    planted = plant(world)
    world.stream.uncomparable[ORDERS] = DependencyError("away", code="lake-away")
    verify(world, "v", ORDERS, ITEMS)
    assert found(world) == planted


@pytest.mark.parametrize(
    "name",
    [
        *("kept", "cut", "summed_table", "kept_sums", "kept_digests", "read", "kept_keys"),
        *("texts", "found"),
    ],
)
def test_whoever_is_away_is_waited_for(world, name):
    world.sums = (world.sums and name != "cut") or name == "kept_sums"
    planted = plant(world)
    world.away.add(name)
    world.send("verify", "v", data_collections=[ORDERS, ITEMS])
    world.go(40)
    assert not world.ended("v")
    world.away.clear()
    world.finish("v")
    assert world.said("v")[-1] == "COMPLETED"
    assert found(world) == planted


def test_a_chunk_that_takes_too_long_is_read_in_halves(world):
    planted = {one for one in plant(world) if one[0] == ORDERS}
    world.answers[ORDERS] = [ChunkError(code=STATEMENT_TIMEOUT, message="slow", retried=True)] * 2
    verify(world)
    assert found(world) == planted


def test_a_schema_that_changes_in_the_midst_begins_the_scan_again(world):
    planted = {one for one in plant(world) if one[0] == ORDERS}
    world.hold = True
    world.send("verify", "v", data_collections=[ORDERS])
    world.step()
    world.step()
    world.release()  # where it is cut
    world.step()
    world.release(2)
    world.database.fingerprints[ORDERS] = "f2"
    world.hold = False
    world.release()
    world.finish("v")
    assert found(world) == planted
    assert world.scanned.count(ORDERS) == (1 if world.sums else 2)


def test_a_paused_run_scans_nothing_until_it_is_resumed(world):
    world.hold = True
    world.send("verify", "v", data_collections=[ORDERS])
    world.step()
    world.send("pause", "p")
    world.step()
    world.release()
    world.hold = False
    world.go(5)
    assert world.reads == []
    world.send("resume", "r")
    world.finish("v")


def test_a_run_is_stopped_while_it_scans(world):
    world.hold = True
    world.send("verify", "v", data_collections=[ORDERS])
    world.step()
    world.send("stop", "s")
    world.step()
    world.release()
    world.go(5)
    assert world.run_state("v") == runs.STOPPED
    assert world.records("run-start") == []


def test_repairs_do_not_wait_for_a_scan(world):
    world.hold = True
    world.send("verify", "v", data_collections=[ORDERS])
    world.step()
    world.stream.table(ORDERS, reread={"[7]": 1})
    world.hold = False
    world.go(
        10, until=lambda: any(name.startswith("reread-") for name in world.coordinator.state.runs)
    )


def crashing(at: int, repair: bool) -> FakeWorld:
    world = alike(FakeWorld())
    plant(world)
    world.fault = Fault(at, CrashError())
    world.send("verify", "v", data_collections=[ORDERS, ITEMS], repair=repair)
    for _ in range(300):
        try:
            world.step()
        except CrashError:
            world.start()
        if world.coordinator is not None and world.ended("v"):
            return world
    raise AssertionError(f"crash at {at}: {world.said()}")


@pytest.mark.parametrize("repair", [False, True])
def test_a_crash_anywhere_loses_no_finding(repair):
    planted = plant(alike(FakeWorld()))
    for at in range(1, 115):
        world = crashing(at, repair)
        assert world.wrong == []
        assert found(world) == planted, at
        told = numbers(world)
        assert (told["missing"], told["extra"], told["differing"]) == (1, 1, 2), at
        if repair:
            assert world.stream.lake[ORDERS] == world.database.rows(ORDERS)
            assert world.stream.lake[ITEMS] == world.database.rows(ITEMS)


def test_several_chunks_of_suspects():
    world = alike(with_settings(chunk_rows=3))
    world.stream.lake[ORDERS] = dict.fromkeys(world.stream.lake[ORDERS], -1)
    assert verify(world)["differing"] == 40
    assert len(world.records("chunk")) == 14
    assert away().retried
