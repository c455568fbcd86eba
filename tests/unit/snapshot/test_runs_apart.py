"""What one signal, or one table, meets holds up no other one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.errors import DependencyError
from lakemark.model.key_ranges import CUT_TIMEOUT
from lakemark.snapshot import chunk_splitter, runs, signal_validation
from lakemark.snapshot.chunks import ChunkError
from tests.kit.fake_world import ITEMS, ORDERS, SETTINGS, FakeWorld, with_settings

pytestmark = pytest.mark.usefixtures("logs")

MOST = 1_048_588  # bytes of a record, as brokers are set at first


def test_a_number_that_no_key_can_have_is_refused(logs):
    world = FakeWorld()
    for number in ("1e999999999999", "1e-999999999999", "9" * 5000):
        raw = b'{"id":"%s","type":"execute-snapshot","data":{"data-collections":["public.items"],"keys":[%s]}}'  # fmt: skip
        value = raw % (number[:9].encode(), number.encode())
        world.inbox.append((b"shop", value))
    world.execute("r1")
    world.finish("r1")
    assert world.said()[:3] == ["REJECTED"] * 3
    assert not [entry for entry in logs if entry["event"] == "snapshot.internal_error"]


def test_a_defect_that_one_signal_meets_is_its_answer(monkeypatch, logs):
    real = signal_validation.accept

    def accept(signal, known):
        if signal.id == "bad":
            raise ZeroDivisionError
        return real(signal, known)

    monkeypatch.setattr(signal_validation, "accept", accept)
    world = FakeWorld()
    world.execute("bad", ITEMS)
    world.execute("r1")
    world.finish("r1")
    assert world.said("bad") == ["REJECTED"]
    assert world.note("bad", "REJECTED")["code"] == "internal-error"
    assert "report" in world.note("bad", "REJECTED")["hint"]
    assert [entry["id"] for entry in logs if entry["event"] == "snapshot.internal_error"] == ["bad"]


def test_a_signal_that_cannot_be_dealt_with_now_holds_up_no_run():
    world = with_settings(chunk_rows=5)
    world.execute("r1")
    world.go(20, until=lambda: bool(world.stream.applied))
    world.away.add("tables")
    world.execute("r2", ITEMS)
    world.go(300, until=lambda: world.ended("r1"))
    assert world.run_state("r2") == ""
    world.away.clear()
    world.finish("r1", "r2")


@pytest.mark.parametrize("code", ["table-locked", "job-failed", "retried", "lake-forbidden"])
def test_a_table_whose_chunks_cannot_be_read_for_long_holds_up_no_other(code):
    world = with_settings(chunk_rows=2, parallelism=2)
    error = ChunkError(code=code, message="it ended", hint="wait", retried=True)
    world.answers[ORDERS] = [error] * 1000
    world.execute("r1", ORDERS)
    world.execute("r2", ITEMS)
    world.go(60, until=lambda: world.ended("r2"))
    assert world.run_state("r1") == runs.READING
    world.answers.clear()
    world.finish("r1", "r2")


def test_the_folder_of_one_table_is_away_when_its_incomplete_rows_are_looked_for(monkeypatch):
    world = with_settings(chunk_rows=2)
    real = world.partial_keys

    def partial_keys(table):
        if table == ORDERS:
            raise DependencyError("it does not answer", code="lake-unavailable")
        return real(table)

    monkeypatch.setattr(world, "partial_keys", partial_keys)
    world.execute("r1", ORDERS)
    world.go(60, until=lambda: world.run_state("r1") and world.run("r1").tables[0].settled > 10)
    world.go(10)
    world.execute("r2", ITEMS)
    world.go(60, until=lambda: world.ended("r2"))
    assert not world.ended("r1")
    monkeypatch.undo()
    world.finish("r1")


def test_a_table_that_the_connector_itself_reads_holds_up_no_other_of_its_run():
    world = with_settings(chunk_rows=2)
    world.execute("r1", ORDERS, ITEMS)
    for _ in range(100):
        world.stream.table(ORDERS, own_batch=world.stream.number + 1)
        world.step()
    assert world.state("r1", ITEMS) == runs.DONE
    assert world.state("r1", ORDERS) == runs.WAITING
    world.finish("r1")


def test_many_keys_to_be_read_again_are_kept_in_records_that_brokers_take():
    world = FakeWorld(replace(SETTINGS, chunk_rows=100_000))
    keys = [f"[{10**24 + 7919 * n}]" for n in range(30_000)]
    world.partial[ITEMS] = list(keys)
    largest = 0
    real = world.save

    def save(records):
        nonlocal largest
        largest = max(largest, *(len(value or b"") for value in records.values()))
        real(records)

    world.save = save
    world.execute("r1", ITEMS)
    world.finish("r1", seconds=3000)
    assert 100_000 < largest < MOST / 2
    assert sum(len(spec.keys) for spec in world.reads if spec.keys) == len(keys)


@given(
    st.lists(st.lists(st.text(max_size=9000), min_size=1, max_size=2), min_size=1, max_size=40),
    st.integers(1, 20),
)
def test_keys_are_cut_into_chunks_of_so_many_or_so_long(keys, rows):
    found = [chunk.keys for chunk in chunk_splitter._of_keys(keys, rows)]
    assert [key for some in found for key in some] == keys
    for some in found:
        size = sum(len(part.encode()) for key in some for part in key)
        assert len(some) == 1 or (len(some) <= rows and size <= chunk_splitter.KEY_BYTES)


def test_percent_of_a_run_counts_tables_that_are_not_cut_yet():
    world = with_settings(chunk_rows=100)
    world.stream.table(ITEMS, streaming=False)
    world.execute("r1", ORDERS, ITEMS)
    world.go(60, until=lambda: world.run_state("r1") and world.state("r1", ORDERS) == runs.DONE)
    world.send("pause", "p")
    world.go(2)
    note = world.note("r1", "PAUSED")
    assert note["percent"] == "50"
    assert "eta_seconds" not in note


def test_a_run_that_is_armed_and_known_to_nobody_is_disarmed():
    world = FakeWorld()
    world.start()
    world.stream.armed.add("lost")
    world.go(5)
    assert [record["run"] for record in world.records("run-end")] == ["lost"]


def cuts_too_slowly(world, *, first):
    """Every cut of a table takes too long, or every one but the first."""
    real, late = world.cut, DependencyError("it took too long", code=CUT_TIMEOUT, hint="larger")

    def cut(table, *args, within, **more):
        if first or within != runs.EVERYTHING or world.cuts:
            raise late
        return real(table, *args, within=within, **more)

    world.cut = cut


def test_chunks_whose_size_cannot_be_changed_in_time_are_read_as_they_are(logs):
    world = with_settings(parallelism=1, chunk_rows=4)
    cuts_too_slowly(world, first=False)
    world.execute("r1")
    world.go(20, until=lambda: bool(world.stream.applied))
    world.send("set", "s", id="r1", chunk_rows=2)
    world.finish("r1")
    assert world.run_state("r1") == runs.COMPLETED
    assert world.stream.coverage("r1", ORDERS) >= world.database.keys[ORDERS]
    kept = [entry for entry in logs if entry["event"] == "snapshot.cut_kept"]
    assert [entry["table"] for entry in kept] == [ORDERS]


def test_a_table_that_cannot_be_cut_in_time_holds_up_no_other(logs):
    world = FakeWorld()
    cuts_too_slowly(world, first=True)
    world.execute("r1", ORDERS)
    world.execute("k1", ITEMS, keys=[1])
    world.go(60, until=lambda: world.ended("k1"))
    assert world.state("r1", ORDERS) in {runs.WAITING, runs.CUTTING}
    late = [entry for entry in logs if entry["event"] == "snapshot.delayed"]
    assert {entry.get("table") for entry in late} == {ORDERS}


def test_a_cut_that_is_tried_for_long_does_not_count_as_begun_again():
    """Else the table would be behind all others, and what it misses would be left to another run."""
    world = FakeWorld()
    world.away.add("cut")
    world.execute("r1", ITEMS)
    world.go(200)
    assert world.run("r1").tables[0].begun == 1
    world.away.clear()
    world.go(60, until=lambda: bool(world.reads))
    world.stream.table(ITEMS, resnapshot_since=world.stream.number + 1)
    world.finish("r1")
    assert world.run("r1").tables[0].begun == 3
    assert world.stream.tables[ITEMS].resnapshot_since == -1


def test_a_table_with_unreadable_keys_all_the_time_is_read_again_ever_later(logs):
    world = FakeWorld()
    world.stream.voids = ["unreadable-key"] * 10_000
    world.execute("r1", ITEMS)
    world.go(300)
    assert 5 <= len(world.reads) <= 30
    assert world.coordinator.retries.table_trouble.code == "unreadable-key"
    assert "snapshot.delayed" in {entry["event"] for entry in logs}
    world.stream.voids.clear()
    world.finish("r1")
    assert world.coordinator.retries.table_trouble is None
    assert world.stream.coverage("r1", ITEMS) >= world.database.keys[ITEMS]
