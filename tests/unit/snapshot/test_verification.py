"""Which table is verified next, and what a run has shown of it."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lakemark.model.control import REPAIR, REPORT, TableVerified
from lakemark.model.proof import UNPROVED, TableProof
from lakemark.snapshot import runs
from lakemark.snapshot.runs import Run, TableRun
from lakemark.snapshot.tally import VerifyTally
from lakemark.snapshot.verification import (
    FIRST_WAIT_MS,
    LONGEST_WAIT_MS,
    due_ms,
    next_table,
    outcome,
)

DAY = LONGEST_WAIT_MS
WEEK = 7 * DAY
NOW = 100 * WEEK

times = st.integers(0, NOW)
proofs = st.builds(
    TableProof,
    proved_ms=times,
    turn_ms=times,
    ended_ms=times,
    failures=st.integers(0, 100),
    code=st.sampled_from(["", "no-key"]),
    retried=st.booleans(),
)
tables = st.dictionaries(st.sampled_from("abcdefgh"), proofs)


@given(tables, st.integers(1000, WEEK))
def test_of_those_that_are_due_the_oldest_proof_comes_first(found, every):
    chosen = next_table(found, every_ms=every, now_ms=NOW)
    due = {n for n, p in found.items() if due_ms(p, every_ms=every, now_ms=NOW) <= NOW}
    assert (chosen is None) == (not due)
    if chosen is not None:
        assert chosen in due
        assert found[chosen].proved_ms == min(found[name].proved_ms for name in due)


@given(proofs, st.integers(1000, WEEK))
def test_nothing_is_repeated_at_once_and_nothing_is_left_for_longer_than_a_period(proof, every):
    due = due_ms(proof, every_ms=every, now_ms=NOW)
    if not proof.ended_ms:
        assert due == 0
    elif proof.code:
        assert min(every, FIRST_WAIT_MS) <= due - proof.ended_ms <= min(every, DAY)
    else:
        assert due == proof.turn_ms + every


def test_waits_after_failures_grow():
    failed = [
        TableProof(ended_ms=NOW, code="locked", retried=True, failures=n) for n in range(1, 60)
    ]
    waits = [due_ms(one, every_ms=WEEK, now_ms=NOW) - NOW for one in failed]
    assert waits[:4] == [FIRST_WAIT_MS * n for n in (1, 2, 4, 8)]
    assert waits == sorted(waits)
    assert waits[-1] == DAY
    for_good = TableProof(ended_ms=NOW, code="no-key", failures=1)
    assert due_ms(for_good, every_ms=WEEK, now_ms=NOW) == NOW + DAY
    assert due_ms(for_good, every_ms=5000, now_ms=NOW) == NOW + 5000


def test_a_clock_that_was_set_back_keeps_no_table_from_its_turn():
    ahead = TableProof(proved_ms=NOW + WEEK, turn_ms=NOW + WEEK, ended_ms=NOW + WEEK)
    assert next_table({"a": ahead}, every_ms=WEEK, now_ms=NOW) == "a"


class Turns:
    """Tables that are compared one after the other, as the scheduler says; a turn takes a while."""

    def __init__(self, names, every, broken, takes) -> None:
        self.proofs = dict.fromkeys(names, UNPROVED)
        self.every, self.broken, self.takes = every, broken, takes
        self.now, self.turns = NOW, dict[str, list[int]]()

    def go(self, until) -> None:
        while self.now < until:
            name = next_table(self.proofs, every_ms=self.every, now_ms=self.now)
            if name is None:
                self.now += 1000
                continue
            begun, self.now = self.now, self.now + self.takes
            self.turns.setdefault(name, []).append(begun)
            bad = {"code": "locked", "retried": True} if name in self.broken else {}
            good = {} if bad else {"compared": True, "proved": True}
            said = TableVerified(
                table=name, run=f"r{begun}", turn_ms=begun, ended_ms=self.now, **bad, **good
            )
            self.proofs[name] = self.proofs[name].after(said)


@given(st.sets(st.sampled_from("abcdef"), min_size=1), st.data())
def test_every_table_that_can_be_has_its_turn_in_every_period(names, data):
    broken = data.draw(st.sets(st.sampled_from(sorted(names))))
    takes = data.draw(st.integers(100, 5000))
    every = 120_000
    turns = Turns(sorted(names), every, broken, takes)
    turns.go(NOW + 4 * every)
    slack = len(names) * takes + 2000  # one after the other, and the looks between
    for name in names - broken:
        found = turns.turns[name]
        gaps = [b - a for a, b in itertools.pairwise(found)]
        assert len(found) >= 3
        assert all(every <= gap <= every + slack for gap in gaps), gaps
    for name in broken:
        gaps = [b - a for a, b in zip(turns.turns[name], turns.turns[name][1:], strict=False)]
        assert all(gap >= FIRST_WAIT_MS for gap in gaps)
        assert turns.proofs[name].failures == len(turns.turns[name])


# -- what a run has shown -------------------------------------------------------------------------


def a_run(verify=REPORT, *, state=runs.DONE, automatic=True, condition="", scanned=5, **tally):
    table = TableRun("public.orders", state=state, condition=condition)
    table.turn_ms, table.scanned_at, table.scanned_after = scanned, "ab", 7
    table.tally = VerifyTally(scanned=40, **tally)
    return Run("r", [table], verify=verify, automatic=automatic), table


def shown(*args, **more):
    return outcome(*a_run(*args, **more), ended_ms=9)


def test_a_table_is_proved_where_nothing_is_left_that_differs():
    assert shown().proved
    assert shown(newer=3).proved
    assert shown(automatic=False).proved, "whoever asked for it"
    assert not shown(missing=1).proved
    for kind in ("missing", "extra", "differing"):
        assert not shown(REPORT, **{kind: 1}).proved
        assert shown(REPAIR, **{kind: 1}).proved, "all of it is mended"
    for kind in ("duplicate", "left"):
        assert not shown(REPORT, **{kind: 1}).proved
        assert not shown(REPAIR, **{kind: 1}).proved, "nothing mends it"
    said = shown(REPAIR, missing=2, newer=1)
    assert (said.found, said.rows, said.newer, said.position) == ({"missing": 2}, 40, 1, "ab")
    assert (said.turn_ms, said.ended_ms, said.batch, said.mended) == (5, 9, 7, True)


def test_what_is_not_the_whole_table_proves_nothing():
    assert shown(condition="id < 5") is None
    assert shown(scanned=0) is None, "keys that were asked for"
    assert shown("") is None, "a snapshot"
    assert shown(state=runs.STOPPED, automatic=False) is None
    assert shown(state=runs.FAILED, automatic=False) is None


def test_a_turn_in_vain_says_why_and_one_that_was_stopped_was_a_turn():
    run, table = a_run(state=runs.FAILED)
    table.code, table.reason, table.hint, table.retried = "locked", "no", "wait", True
    said = outcome(run, table, ended_ms=9)
    assert (said.code, said.reason, said.hint, said.retried) == ("locked", "no", "wait", True)
    assert (said.compared, said.proved) == (None, None)
    stopped = shown(state=runs.STOPPED)
    assert (stopped.code, stopped.compared, stopped.turn_ms) == ("", None, 5)


# -- the proof ------------------------------------------------------------------------------------


def after(proof, run="r", **more):
    return proof.after(TableVerified(table="t", run=run, turn_ms=20, ended_ms=30, **more))


def test_a_difference_takes_nothing_back_of_what_was_proved():
    proved = after(UNPROVED, compared=True, proved=True, position="aa", rows=5)
    found = after(proved, "s", compared=True, found={"missing": 2}, position="bb")
    assert (found.proved_ms, found.position, found.proved_by) == (20, "aa", "r")
    assert (found.run, found.found, found.unlike) == ("s", {"missing": 2}, 2)
    mended = after(found, "m", compared=True, proved=True, mended=True, found={"missing": 2})
    assert (mended.unlike, mended.found, mended.proved_by) == (0, {"missing": 2}, "m")
    good = after(mended, "g", compared=True, proved=True)
    assert good.found == {}
    duplicate = after(good, "d", compared=True, mended=True, found={"duplicate": 1, "extra": 1})
    assert duplicate.unlike == 1


def test_a_turn_in_vain_keeps_what_was_found_and_counts_once():
    proof = after(UNPROVED, compared=True, found={"missing": 2})
    once = after(proof, "s", code="locked", retried=True)
    assert (once.failures, once.found, once.code) == (1, {"missing": 2}, "locked")
    assert after(once, "s", code="locked", retried=True) == once, "said again after a crash"
    twice = after(once, "t", code="locked", retried=True)
    assert twice.failures == 2
    assert after(twice, "u", compared=True, proved=True).failures == 0


def test_what_was_read_before_the_files_were_others_proves_nothing():
    other = TableProof(files_since=8)
    assert after(other, batch=7, compared=True, proved=True) == other
    assert after(other, batch=8, compared=True, proved=True).proved_ms == 20
