"""Positions equal commit order, whatever way transactions interleave, and survive restarts."""

from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres import positions as lsns
from lakemark.model import positions

PARTS = st.tuples(st.integers(0, 2**24 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))


@given(PARTS, PARTS)
def test_byte_order_is_tuple_order(a, b):
    assert (lsns.pack(*a) < lsns.pack(*b)) == (a < b)
    assert (lsns.pack(*a) == lsns.pack(*b)) == (a == b)


@given(PARTS)
def test_round_trip(parts):
    packed = lsns.pack(*parts)
    assert lsns.unpack(packed) == parts
    assert len(packed) == lsns.WIDTH


SMALL = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 2**64 - 1))


@given(st.lists(PARTS | SMALL), PARTS | SMALL, st.integers(0, 3))
def test_many_positions_compare_as_one(found, bound, cut):
    packed = [lsns.pack(*parts) for parts in (*found, bound)]
    limit = packed[-1]
    column = pa.array(packed, pa.binary(lsns.WIDTH)).slice(cut)
    assert positions.which_above(column, limit).tolist() == [p > limit for p in packed[cut:]]
    many = pa.chunked_array([column.cast(pa.binary())])
    assert positions.which_below_truncate(many, limit).tolist() == [
        positions.below_truncate(p, limit) for p in packed[cut:]
    ]


@dataclass(frozen=True)
class Event:
    transaction: int  # in commit order
    lsn: int
    sequence: str
    last_commit: int | None


def deliver(
    steps: list[tuple[int, int]], *, last_commit: int | None, resume: int = 0
) -> list[Event]:
    """What pgoutput and Debezium make of writes that interleave.

    Args:
        steps: (transaction, action): action 0 writes a row, 1 writes two rows in one WAL record,
            2 commits. Transactions left open at the end never commit.
        last_commit: what the connector's offset says the last commit was; None = a new slot.
        resume: number of transactions that the offset says are done.
    """
    lsn = 1000
    pending: dict[int, list[int]] = {}
    done: set[int] = set()
    events: list[Event] = []
    committed = 0
    for transaction, action in steps:
        if transaction in done:
            continue
        lsn += 8
        if action < 2:
            pending.setdefault(transaction, []).extend([lsn] * (action + 1))
            continue
        for own in pending.pop(transaction, []):
            first = "null" if last_commit is None else f'"{last_commit}"'
            if committed >= resume:
                events.append(Event(committed, own, f'[{first},"{own}"]', last_commit))
        done.add(transaction)
        if committed >= resume:
            last_commit = lsn
        committed += 1
    return events


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=60)


def packed(event: Event, epoch: int = 1) -> bytes:
    return lsns.pack(epoch, *lsns.of_stream(event.sequence, event.lsn))


@given(STEPS, st.sampled_from([None, 990]))
@example([(0, 0), (1, 0), (1, 2), (0, 2)], None)
def test_equals_commit_order(steps, last_commit):
    """Strictly rising from one transaction to the next, never falling inside one."""
    for a, b in pairwise(deliver(steps, last_commit=last_commit)):
        if a.transaction == b.transaction:
            assert packed(a) <= packed(b)
        else:
            assert packed(a) < packed(b)


@given(STEPS, st.integers(0, 5))
def test_stable_over_connector_restarts(steps, resume):
    """Debezium restores the last commit with its offset: events sent again have equal positions."""
    events = deliver(steps, last_commit=990)
    later = [e for e in events if e.transaction >= resume]
    if later:
        again = deliver(steps, last_commit=later[0].last_commit, resume=resume)
        assert [packed(e) for e in again] == [packed(e) for e in later]


@given(STEPS)
def test_the_first_transaction_may_gain_a_number_and_stays_first(steps):
    new = deliver(steps, last_commit=None)
    restarted = deliver(steps, last_commit=990)
    for a, b in zip(new, restarted, strict=True):
        if a.last_commit is not None:
            assert packed(a) == packed(b)
            assert all(packed(e) < packed(a) for e in restarted if e.transaction < b.transaction)


def test_lsn_alone_loses_a_committed_row():
    """A writes first and commits last: by its own LSN its row would look older than what is
    already applied, and a gate would drop the only event of that row."""
    b, a = deliver([(0, 0), (1, 0), (1, 2), (0, 2)], last_commit=990)
    assert a.lsn < b.lsn  # the wrong comparison
    assert packed(b) < packed(a)  # commit order


@settings(deadline=None)  # the first call imports and compiles
@given(
    st.lists(
        st.one_of(
            st.from_regex(r'\["[0-9]{1,21}","[0-9]{1,21}"\]', fullmatch=True),
            st.from_regex(r'\[(null|"[0-9]{1,3}"),(null|"-?[0-9]{1,3}")\]', fullmatch=True),
            st.text(alphabet='["],10x+-null', max_size=12),
            st.none(),
        ),
        max_size=4,
    )
)
def test_many_at_once_equals_one_by_one(sequences):
    many = lsns.all_of_stream(sequences, 3)
    if many is not None:
        singles = [lsns.of_stream(s, None) for s in sequences]
        assert None not in singles
        assert many == [lsns.pack(3, *parts) for parts in singles]
