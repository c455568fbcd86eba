"""Any restarts, any batches: what passes the gate is the log without what came again."""

from dataclasses import replace
from itertools import accumulate, groupby, pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from lakemark.connectors.mysql.positions import pack
from lakemark.connectors.postgres import positions as lsns
from lakemark.model import positions
from lakemark.model.decoding import AppliedPosition, Records, StretchPlan
from lakemark.model.events import Kind, SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.source import decoder
from lakemark.source.replay_filter import drop_replays
from tests.kit.shop import ORDERS, event, schema_of

# Steps of (major, minor); (0, 0) repeats a position, as the rows of one COPY record do.
_STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=30)


def _log(steps):
    """One partition's events in commit order; minor starts anew with each transaction."""
    major, minor, out = 1, 1, []
    for major_step, minor_step in steps:
        major, minor = major + major_step, 1 if major_step else minor + minor_step
        out.append((int(Kind.CHANGE), lsns.pack(0, major, minor), major * 10))
    return out


def _emit(log, restarts):
    """The log as a connector with restarts emits it: (after so many events, back to)."""
    out, at = [], 0
    for run, back in restarts:
        end = min(len(log), at + run)
        out += range(at, end)
        at = min(back, end)
    return [*out, *range(at, len(log))]


def _through(emitted, log, cuts):
    """What passes, batch by batch, each with the applied position that the one before left."""
    high, passed = AppliedPosition(), []
    edges = [0, *sorted(c % (len(emitted) + 1) for c in cuts), len(emitted)]
    for begin, end in pairwise(edges):
        part = emitted[begin:end]
        events = [log[i] for i in part]
        found = drop_replays(
            [e[0] for e in events], [e[1] for e in events], [e[2] for e in events], high
        )
        assert found.regressed is None
        assert found.replays == len(part) - len(found.keep)
        again = drop_replays(
            [e[0] for e in events], [e[1] for e in events], [e[2] for e in events], high
        )
        assert again == found  # a repeated batch decides as it did
        passed += [part[i] for i in found.keep]
        high = found.after
    return passed, high


@given(
    steps=_STEPS,
    restarts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=4),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_what_passes_is_the_log(steps, restarts, cuts):
    log = _log(steps)
    emitted = _emit(log, restarts)
    passed, high = _through(emitted, log, cuts)
    assert high.position == log[-1][1]
    # Events at the very applied position may pass again; nothing older ever does.
    seen, first = -1, []
    for index in passed:
        if index > seen:
            first.append(index)
            seen = index
        else:
            assert log[index][1] == log[seen][1]
    assert first == list(range(len(log)))


@given(steps=_STEPS, cuts=st.lists(st.integers(0, 200), max_size=6))
def test_cuts_change_nothing(steps, cuts):
    log = _log(steps)
    whole, high = _through(list(range(len(log))), log, [])
    assert _through(list(range(len(log))), log, cuts) == (whole, high)


@given(
    steps=_STEPS,
    restored=st.integers(0, 29),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_a_restored_source_is_found_out(steps, restored, cuts):
    """The log goes back to an earlier position and goes on with times of its own."""
    log = _log(steps)
    old = log[restored % len(log)]
    newer = (int(Kind.CHANGE), old[1], log[-1][2] + 5)
    found = drop_replays(
        [e[0] for e in [*log, newer]],
        [e[1] for e in [*log, newer]],
        [e[2] for e in [*log, newer]],
        AppliedPosition(),
    )
    assert (found.regressed == len(log)) == (old[1] < log[-1][1])
    assert len(log) not in found.keep or old[1] == log[-1][1]


@given(
    before=_STEPS,
    after=_STEPS,
    lsn=st.integers(0, 100),
    rows=st.integers(1, 4),
)
def test_everything_after_a_row_of_an_own_snapshot_counts(before, after, lsn, rows):
    own = (int(Kind.OWN_SNAPSHOT), lsns.pack(0, 0, lsn), 0)
    log = [*_log(before), *[own] * rows, *_log(after)]
    found = drop_replays(
        [e[0] for e in log], [e[1] for e in log], [e[2] for e in log], AppliedPosition()
    )
    assert found.keep == list(range(len(log)))
    assert found.regressed is None


@example(steps=[(True, "t"), (True, "c"), (False, "d")], restarts=[(3, 0)], cuts=[3])
@given(
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from("ccdt")), min_size=1, max_size=12),
    restarts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=3),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_cuts_leave_the_same_high_water_with_what_its_transaction_did(steps, restarts, cuts):
    """Whether the transaction that may go on has created rows, whatever came again in between."""
    log, commit = [], 1
    for lsn, (ends, op) in enumerate(steps, 10):
        commit = lsn - 1 if ends else commit
        key = None if op == "t" else b'{"id":1}'
        log.append((key, event(op, lsn, {"id": 1}, tx=commit, ts=1)))
    emitted = [log[i] for i in _emit(log, restarts)]
    plan = StretchPlan(
        SourceIdentity("postgresql", "shop"),
        HandlingModes(),
        schemas={ORDERS: schema_of(ORDERS, id="int4")},
        verified=frozenset({ORDERS}),
    )
    place = (f"shop.{ORDERS}", 0)

    def read(begin, end, start):
        keys, values = zip(*emitted[begin:end], strict=True)
        offsets, headers = list(range(begin, end)), [None] * (end - begin)
        records = Records(*place, offsets, list(keys), list(values), headers)
        return decoder.decode_range(records, replace(plan, applied={place: start})).applied_position

    high = AppliedPosition()
    for begin, end in pairwise(sorted({0, *(c % (len(emitted) + 1) for c in cuts), len(emitted)})):
        high = read(begin, end, high)
    assert high == read(0, len(emitted), AppliedPosition())


# -- two servers, of which one has what the other has, at other places -----------------------------

_PLACES = st.lists(st.integers(1, 3), min_size=40, max_size=40)
_MOVES = st.lists(st.tuples(st.sampled_from(["send", "send", "again", "move"]), st.integers(1, 6)))


@given(_PLACES, _PLACES, st.integers(0, 90), _MOVES, st.data())
def test_whichever_server_sends_an_event_it_is_applied_once_and_in_order(one, two, by, moves, data):
    """A row of events in two logs; what is sent again, by either, begins at most six before."""
    logs = [*accumulate(one)], [by + place for place in accumulate(two)]
    makers, sent, log, at = [], [], 0, 0
    for what, count in [*moves, ("send", 40)]:
        if what == "move":
            log = 1 - log
        if what != "send":
            at = max(0, at - count)
            continue
        end = min(at + count, len(logs[0]))
        makers += [log] * (end - len(makers))
        sent += [(event, log) for event in range(at, end)]
        at = end
    kept, epoch, start, left = [], 0, AppliedPosition(), sent
    while left:
        size = data.draw(st.integers(1, len(left)))
        piece, left = left[:size], left[size:]
        while piece:
            number = positions.epoch_number("mysql", epoch)
            where = [pack(number, 1, logs[which][event], 2) for event, which in piece]
            times = [event for event, _ in piece]

            def logged(index, piece=piece, where=where):
                event = piece[index][0]
                name = f"{'ab'[makers[event]]}:{makers[: event + 1].count(makers[event])}"
                return positions.event_of("mysql", name, where[index])

            found = drop_replays([Kind.CHANGE] * len(piece), where, times, start, logged)
            end = len(piece) if found.regressed is None else found.regressed
            if end < len(piece):
                assert found.proven
                epoch += 1
                found = drop_replays([Kind.CHANGE] * end, where[:end], times[:end], start, logged)
            kept += [piece[index][0] for index in found.keep]
            start, piece = found.after, piece[end:]
    assert [event for event, _ in groupby(kept)] == [*range(40)]
