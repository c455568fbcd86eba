"""A record over which the process ends twice is left out and answered; any other is carried out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.errors import DependencyError
from lakemark.snapshot import runs, signal_skip
from lakemark.snapshot import signal_processor as desks
from lakemark.state import handling, tables
from lakemark.state.control_records import carry_out, guarded
from lakemark.state.handling import Mark, past
from lakemark.state.schema_refresh import Refresh
from tests.kit.fake_world import ITEMS, ORDERS, CrashError, FakeWorld
from tests.kit.memory_pipeline import MemoryCatalog
from tests.unit.state.test_control_records import START, pause
from tests.unit.state.test_tables import T, streaming

pytestmark = pytest.mark.usefixtures("logs")


# -- the rule ---------------------------------------------------------------------------------


def test_a_mark_counts_the_ends_of_other_processes_only():
    mark = Mark(("0-1",), "a")
    assert past(None, ["0-1"], "a") == handling.Past(0, apart=False, left=frozenset())
    assert past(mark, ["0-1"], "a").deaths == 0
    assert past(mark, ["0-1"], "b").deaths == 1
    assert past(mark, ["0-2"], "b").deaths == 0
    assert past(Mark(("0-1",), "", 1), ["0-1"], "b").deaths == 1, "it waits: nobody ended over it"
    assert past(Mark(("0-1",), "b", 1), ["0-1"], "c").left == {"0-1"}


@given(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), st.data())
def test_only_the_record_to_blame_is_left_out_after_two_ends(places, data):
    """As `guarded` goes about it, with a record that ends every process that handles it."""
    bad = data.draw(st.sampled_from(places))
    mark, deaths, done = None, 0, []
    for process in range(10):
        known = past(mark, places, str(process))
        kept = [place for place in places if place not in known.left]
        done = []
        for group in [[place] for place in kept] if known.apart else [kept]:
            mark = Mark(tuple(group), str(process), known.deaths, tuple(known.left))
            if bad in group:
                deaths += 1
                break
            done += group
        else:
            break
    assert deaths == handling.DEATHS
    assert done == [place for place in places if place != bad]


def test_a_mark_of_another_version_is_none():
    assert handling.decode(b"{") is None
    assert handling.decode(b'{"places":7}') is None
    assert handling.decode(b"\xff") is None
    mark = Mark(("a", "b"), "p", 1, ("c",))
    assert handling.decode(handling.encode(mark)) == mark


# -- signals ----------------------------------------------------------------------------------


def dies_at(monkeypatch, wanted):
    """The process ends whenever a signal of this id is read."""
    read = desks.read

    def deadly(key, value, **more):
        found = read(key, value, **more)
        if found.id == wanted:
            raise CrashError
        return found

    monkeypatch.setattr(desks, "read", deadly)


def lives(world, most=6):
    """Starts the process again whenever it ends; how often it did."""
    ends = 0
    while ends < most:
        try:
            world.go(30)
        except CrashError:
            world.coordinator = None
            ends += 1
        else:
            return ends
    return ends


def test_a_signal_over_which_the_process_ends_is_left_out_the_third_time(monkeypatch):
    dies_at(monkeypatch, "bad")
    world = FakeWorld()
    world.execute("before")
    world.execute("bad")
    world.execute("after", ITEMS)
    assert lives(world) == 2
    world.finish("before", "after")
    assert world.said("bad") == ["REJECTED"]
    note = world.note("bad", "REJECTED")
    assert note["code"] == "crashed-pipeline"
    assert "crashed the pipeline" in note["reason"]
    assert note["hint"]
    assert world.run_state("before") == world.run_state("after") == runs.COMPLETED
    assert desks.HANDLING_KEY not in world.progress
    assert "bad" not in world.coordinator.state.runs


def test_one_end_in_the_midst_of_a_signal_is_nobodys_fault(monkeypatch):
    dies_at(monkeypatch, "once")
    world = FakeWorld()
    world.execute("once")
    with pytest.raises(CrashError):
        world.go(5)
    world.coordinator = None
    monkeypatch.undo()
    world.finish("once")
    assert world.run_state("once") == runs.COMPLETED
    assert desks.HANDLING_KEY not in world.progress


def test_a_process_that_ends_while_a_signal_waits_ends_over_nothing():
    """The database is away: whoever is stopped then is stopped by a person."""
    world = FakeWorld()
    world.away = {"tables"}
    world.execute("r1")
    for _ in range(4):
        world.go(20)
        world.coordinator = None
    world.away = set()
    world.finish("r1")
    assert world.run_state("r1") == runs.COMPLETED


def test_an_end_is_not_forgotten_while_the_signal_waits(monkeypatch):
    world = FakeWorld()
    world.execute("bad")
    with monkeypatch.context() as dying:
        dies_at(dying, "bad")
        with pytest.raises(CrashError):
            world.go(5)
    world.coordinator = None
    world.away = {"tables"}
    world.go(20)
    world.coordinator = None
    world.away = set()
    dies_at(monkeypatch, "bad")
    assert lives(world) == 1
    assert world.said("bad") == ["REJECTED"]


def test_a_new_coordinator_in_the_same_process_has_seen_nobody_end(monkeypatch):
    """The brokers are away when the effects of a signal are kept: the query begins anew."""
    world = FakeWorld()
    monkeypatch.setattr(handling, "PROCESS", "same")
    world.execute("r1")
    for _ in range(4):
        coordinator = world.start()
        coordinator.signals.process = "same"
        with monkeypatch.context() as away:
            away.setattr(coordinator.store, "begin", lambda _: world.away.add("save"))
            coordinator.step()
        world.away = set()
    coordinator = world.start()
    coordinator.signals.process = "same"
    world.finish("r1")
    assert world.run_state("r1") == runs.COMPLETED


@pytest.mark.parametrize("named", ["bad", "signals-0-0"])
def test_a_person_leaves_a_signal_out(monkeypatch, named):
    dies_at(monkeypatch, named)
    world = FakeWorld()
    if named == "bad":
        world.execute("bad")
    else:
        world.inbox.append((b"shop", b"{"))
    world.execute("good", ITEMS)
    world.progress[signal_skip.key_of(named)] = b"{}"
    world.finish("good")
    assert world.said(named) == ["REJECTED"]
    assert world.note(named, "REJECTED")["code"] == "skipped"
    assert not [key for key in world.progress if key.startswith(b"_skip")]


def test_a_person_leaves_out_a_run_that_has_begun():
    world = FakeWorld()
    world.hold = True
    world.execute("bad")
    world.go(20, until=lambda: world.run_state("bad") == runs.READING)
    world.progress[signal_skip.key_of("bad")] = b"{}"
    world.coordinator = None
    world.hold = False
    world.execute("good", ITEMS)
    world.finish("good", "bad")
    assert world.said("bad")[-1] == "ABORTED"
    assert world.note("bad", "ABORTED")["code"] == "skipped"
    assert not [key for key in world.progress if key.startswith(b"_skip")]
    assert not [key for key in world.progress if ORDERS.encode() in key], "no chunks are kept"


# -- control records --------------------------------------------------------------------------


class Commands:
    """Control records of one batch that is repeated until a process gets through it."""

    def __init__(self, *records, bad=None):
        self.records, self.bad = records, bad
        self.mark, self.ends, self.marks = None, 0, 0

    def note(self, mark):
        self.mark = mark
        self.marks += 1

    def carry(self, some, state):
        for record in some:
            if record is self.bad:
                raise CrashError
        refresh = Refresh({"": MemoryCatalog({})}, {})
        carry_out(some, state, before=streaming(p0=10), start=START, refresh=refresh)

    def through(self):
        """The state, and what was left out, in the first process that comes through."""
        for process in range(8):
            state = streaming(p0=10)
            try:
                left = guarded(
                    self.records, lambda some, to=state: self.carry(some, to), first=7,
                    mark=lambda: self.mark, note=self.note, process=str(process),
                )  # fmt: skip
            except CrashError:
                self.ends += 1
            else:
                return state, left
        raise AssertionError("it never comes through")


def test_a_command_over_which_the_process_ends_is_left_out_and_the_others_are_carried_out():
    bad = {"type": "new-epoch", "id": "x"}
    commands = Commands({"type": "run-start", "run": "r1"}, pause(), bad, {"type": "run-end", "run": "r0"}, bad=bad)  # fmt: skip
    state, left = commands.through()
    assert (commands.ends, left) == (2, [bad])
    assert state.tables[T].state == tables.PAUSED
    assert state.runs == {"r1"}
    assert not state.epochs
    again, left = commands.through()
    assert (commands.ends, left, again) == (2, [bad], state), "the batch is repeated"


def test_equal_commands_are_told_apart():
    bad = pause()
    commands = Commands(pause(), bad, bad=bad)
    state, left = commands.through()
    assert (commands.ends, len(left)) == (2, 1)
    assert state.tables[T].state == tables.PAUSED


def test_records_of_snapshots_cost_no_mark():
    commands = Commands({"type": "run-start", "run": "r1"}, {"type": "chunk"}, {})
    commands.through()
    assert commands.marks == 0
    commands = Commands(pause(), pause())
    commands.through()
    assert (commands.marks, commands.mark) == (2, None)


def test_the_mark_of_a_batch_that_waited_for_kafka_blames_nobody():
    commands = Commands(pause())

    def away(_):
        raise DependencyError("Kafka is away", code="kafka-unavailable")

    for _ in range(4):
        with pytest.raises(DependencyError):
            guarded(commands.records, away, first=7, mark=lambda: commands.mark, note=commands.note, process="p")  # fmt: skip
    assert commands.through()[1] == []
