"""Several runs and tables at once: they share the windows, and trouble of one is not another's."""

import pytest

from lakemark.errors import DependencyError
from lakemark.snapshot import runs
from lakemark.snapshot.chunks import STATEMENT_TIMEOUT, ChunkError
from lakemark.snapshot.flight import flight
from lakemark.snapshot.signals import Rejection
from tests.kit.fake_world import ITEMS, ORDERS, FakeWorld, with_settings

pytestmark = pytest.mark.usefixtures("logs")


def beside_another(world, interval):
    """A run that reads, one chunk in each interval, and one that is accepted meanwhile."""
    world.execute("r1", ORDERS, chunk_rows=1, delay=f"{interval}s")
    world.go(60, until=lambda: len(world.stream.windows) > 2)
    world.execute("r2", ITEMS)
    world.go(60, until=lambda: "r2" in world.stream.armed)


def manifests(world, run):
    return [record for record in world.records("chunk") if record["run"] == run]


def test_windows_belong_to_a_run_if_they_were_opened_while_it_was_armed():
    """The shards do not know what was done to a table before the run over it was armed."""
    world = with_settings(interval=8.0)
    beside_another(world, 8)
    before = list(world.stream.windows)
    armed = world.clock
    world.go(20, until=lambda: bool(manifests(world, "r2")))
    assert world.clock - armed < 6, "the next window comes early"
    (chunk,) = manifests(world, "r2")
    assert chunk["lo"] not in before
    assert chunk["hi"] not in before
    world.go(20, until=lambda: world.ended("r2"))
    over = len(world.stream.windows)
    world.finish("r1", seconds=600)
    ours = list(world.stream.windows)[:over]
    assert {uuid for one in manifests(world, "r2") for uuid in (one["lo"], one["hi"])} <= set(ours)


def test_a_run_whose_windows_a_transaction_hides_waits_alone_and_says_for_whom(logs):
    """The other run still has a window from before that transaction."""
    world = FakeWorld()
    world.execute("r1", ORDERS, chunk_rows=1, delay="1s")
    world.go(60, until=lambda: len(world.stream.windows) > 2)
    xid = world.database.begin()
    world.execute("r2", ITEMS)
    world.go(20, until=lambda: "r2" in world.stream.armed)
    read = len(world.reads)
    world.go(20)
    assert len(world.reads) > read + 5
    assert {spec.run for spec in world.reads} == {"r1"}
    assert world.records("void") == []
    waits = [entry["blocker"] for entry in logs if entry["event"] == "snapshot.waits"]
    assert len(waits) == 1
    assert f"transaction {xid} " in waits[0]
    assert world.coordinator.state.blocker == waits[0]
    world.database.end(xid)
    world.finish("r1", "r2")
    assert world.coordinator.state.blocker == ""


LOCKED = ChunkError(code="table-locked", message="it is locked", hint="wait", retried=True)
LATE = ChunkError(code=STATEMENT_TIMEOUT, message="it is slow", hint="wait", retried=True)


def locked_while(world, what, table):
    """The table's lock keeps it from being cut, read or checked; returns what ends it."""
    if what == "read":
        world.answers[table] = [LOCKED] * 1000
        return world.answers[table].clear
    real, held = getattr(world, what), [table]

    def refused(name, *args, **more):
        if name in held:
            raise DependencyError(LOCKED.message, code=LOCKED.code, hint=LOCKED.hint)
        return real(name, *args, **more)

    setattr(world, what, refused)
    return held.clear


@pytest.mark.parametrize("what", ["cut", "read", "fingerprint"])
def test_a_table_that_is_locked_waits_and_the_others_do_not(what, logs):
    world = with_settings(chunk_rows=1)
    world.start()
    unlock = locked_while(world, what, ORDERS)
    world.execute("r1", ORDERS, ITEMS)
    world.go(40, until=lambda: world.scans("r1") == {ITEMS: "SUCCEEDED"})
    world.execute("r2", ITEMS)
    world.go(40, until=lambda: world.ended("r2"))
    world.go(100)
    tries = [e["next_try_s"] for e in logs if e["event"] == "snapshot.delayed"]
    assert (tries[0], max(tries)) == (1, 30)
    assert {e["table"] for e in logs if e["event"] == "snapshot.delayed"} == {ORDERS}
    said = flight(world.coordinator)
    assert (said.code, said.reason, said.hint) == (LOCKED.code, LOCKED.message, LOCKED.hint)
    unlock()
    world.finish("r1")
    assert world.scans("r1") == {ITEMS: "SUCCEEDED", ORDERS: "SUCCEEDED"}
    assert flight(world.coordinator).code == ""


@pytest.mark.parametrize("what", ["filter", "rights"])
@pytest.mark.parametrize("against", [None, Rejection("", "not-published", "it is not", "add it")])
def test_a_signal_for_a_locked_table_does_not_hold_up_those_after_it(what, against):
    """What could not be asked when it came is asked when the table's turn comes."""
    world = FakeWorld()
    world.start()
    locked = DependencyError(LOCKED.message, code=LOCKED.code, hint=LOCKED.hint)
    more, unlock = {}, lambda: None
    if what == "rights":
        world.against[ORDERS] = locked
    else:
        unlock = locked_while(world, "condition", ORDERS)
        more = {"additional_conditions": [{"data-collection": ORDERS, "filter": "id > 1"}]}
    world.execute("r1", ORDERS, **more)
    world.execute("r2", ITEMS)
    world.go(10, until=lambda: world.ended("r2"))
    assert (world.run("r2").state, world.run("r1").state) == (runs.COMPLETED, runs.READING)
    assert not [spec for spec in world.reads if spec.table == ORDERS]
    unlock()
    world.against = {ORDERS: against}
    world.finish("r1")
    wanted = (runs.COMPLETED, "") if against is None else (runs.FAILED, "not-published")
    assert (world.run("r1").state, world.run("r1").code) == wanted


def test_a_row_that_takes_too_long_alone_does_not_hold_up_the_others():
    """There is nothing left to halve."""
    world = FakeWorld()
    world.execute("keys", ORDERS, keys=[3])
    world.execute("r1", ITEMS, chunk_rows=1)
    world.answers[ORDERS] = [LATE] * 4
    world.go(15, until=lambda: world.ended("r1"))
    assert not world.ended("keys")
    world.finish("keys")
    assert len([spec for spec in world.reads if spec.table == ORDERS]) == 5


def test_a_chunk_that_the_database_answers_with_an_error_fails_its_table_and_no_other():
    world = FakeWorld()
    refused = ChunkError(code="query-failed", message="error 22012", hint="see the log")
    world.answers[ORDERS] = [refused]
    world.execute("r1", ORDERS, ITEMS)
    world.finish("r1")
    assert world.scans("r1") == {ORDERS: "SQL_EXCEPTION", ITEMS: "SUCCEEDED"}
    aborted = world.note("r1", "ABORTED")
    assert (aborted["code"], aborted["reason"]) == ("query-failed", "error 22012")
    assert (aborted["hint"], aborted["data_collections"]) == ("see the log", ORDERS)
    assert [record["table"] for record in world.stream.sweeps] == [ITEMS]
