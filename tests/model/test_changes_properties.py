"""Composed stretches do to any row what their events do to it one by one."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres import positions as lsns
from lakemark.model import net_change
from tests.kit.nightly import examples
from tests.kit.row_model import COLUMNS, Event, Row, apply, happen, net_of

_TOASTED = st.frozensets(st.sampled_from(["b", "c"]), max_size=2)


@st.composite
def _events(draw, max_size=8):
    kinds = draw(
        st.lists(st.sampled_from(["c", "u", "u", "u", "d", "own", "read"]), max_size=max_size)
    )
    out = []
    for number, kind in enumerate(kinds, 10):
        values = {} if kind == "d" else {c: f"{c}{number}" for c in COLUMNS}
        toasted = draw(_TOASTED) if kind in {"c", "u"} else frozenset()
        out.append(Event(kind, number, values, toasted))
    return out


@st.composite
def _rows(draw):
    if draw(st.booleans()):
        return None
    unknown = draw(_TOASTED)
    values = {c: f"{c}0" for c in COLUMNS if c not in unknown}
    return Row(values, unknown, b"barrier" if unknown else None)


def _compose(nets, splits):
    """`compose` over the nets, parenthesised at random."""
    if not nets:
        return None
    if len(nets) == 1:
        return nets[0]
    at = splits.randrange(1, len(nets))
    left, right = _compose(nets[:at], splits), _compose(nets[at:], splits)
    return net_change.compose(left, right)


@given(events=_events(), row=_rows(), seed=st.integers(0, 2**16))
@settings(max_examples=examples(200))
def test_a_stretch_is_the_sum_of_its_events(events, row, seed):
    pool = []
    net = _compose([net_of(e, pool) for e in events], random.Random(seed))
    expected = row
    for event in events:
        expected = happen(expected, event)
    assert apply(row, net, pool) == expected


def _visible(net):
    """What a net says, without cells that nothing reads and marks that mean nothing."""
    if net is None or net.action == net_change.DELETE:
        return net and (net.action, net.op, net.position, net.source_ts, net.force)
    unknown = net.missing if net.base else net.unavailable
    cells = {c: net.cell(c) for c in COLUMNS if c not in unknown}
    return (
        (net.action, net.op, net.position, net.source_ts, net.force),
        (cells, net.unavailable, net.missing, net.base, net.barrier),
    )


@given(events=_events(), one=st.integers(0, 2**16), other=st.integers(0, 2**16))
@settings(max_examples=examples(200))
def test_composition_is_associative(events, one, other):
    nets = [net_of(e, []) for e in events]
    nets = [n if n.row < 0 else replace(n, row=at) for at, n in enumerate(nets)]
    left = _compose(nets, random.Random(one))
    right = _compose(nets, random.Random(other))
    assert _visible(left) == _visible(right)


@given(events=_events(max_size=3))
def test_none_is_the_unit(events):
    pool = []
    for event in events:
        net = net_of(event, pool)
        assert net_change.compose(None, net) is net


@given(events=_events(), row=_rows())
@settings(max_examples=examples(100))
def test_steps_from_a_row_and_a_stretch_over_it_agree(events, row):
    """`apply_step` from the table's row, event by event, against the same events composed."""
    pool = [dict(row.values)] if row else [{}]
    start = None
    if row is not None:
        start = net_change.NetChange(
            net_change.UPSERT,
            "u",
            lsns.pack(0, 0, 1),
            row=0,
            unavailable=row.unavailable,
            missing=row.unavailable,
            barrier=row.barrier,
        )
    state = net_change.RowState(start)
    expected = row
    for event in events:
        state, _ = net_change.apply_step(state, net_of(event, pool), same=lambda *_: False)
        expected = happen(expected, event)
    assert apply(None, state.row, pool) == expected
