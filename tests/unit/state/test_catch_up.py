"""Catching up: every offset once, old partitions first, and into the stream."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.model.offsets import EARLIEST
from lakemark.state import advance, catch_up, new_partitions, stored_form, tables
from lakemark.state.table_parts import StoredPosition
from lakemark.state.tables import PipelineState, TableState
from tests.kit.nightly import examples
from tests.kit.table_states import table_state
from tests.unit.state.test_tables import TOPIC, T, streaming


@given(
    start=st.lists(st.integers(0, 50), min_size=1, max_size=4),
    more=st.lists(st.integers(0, 500), min_size=4, max_size=4),
    limit=st.integers(1, 200),
)
def test_catching_up_reads_every_offset_once_and_ends_in_the_stream(
    start: list[int], more: list[int], limit: int
) -> None:
    end = {TOPIC: {p: o + more[p] for p, o in enumerate(start)}}
    entry = table_state(
        state=tables.CATCHING_UP, topics=[TOPIC], from_offsets={TOPIC: dict(enumerate(start))}
    )
    read: dict[int, list[tuple[int, int]]] = {}
    for batch in range(2000):
        work = catch_up.slice_of(entry, end, limit=limit)
        if work is None:
            catch_up.advance(entry, {}, {}, end, batch)
            break
        begin, to = work
        for partition, first in begin[TOPIC].items():
            assert first < to[TOPIC][partition]
            read.setdefault(partition, []).append((first, to[TOPIC][partition]))
        catch_up.advance(entry, to, {}, end, batch)
        if entry.state == tables.STREAMING:
            break
    assert entry.state == tables.STREAMING
    for partition, first in enumerate(start):
        pieces = read.get(partition, [])
        at = first
        for begin_at, stop_at in pieces:
            assert begin_at == at
            at = stop_at
        assert at == end[TOPIC][partition]


def test_after_a_new_partition_the_old_ones_are_read_to_their_ends_in_one_piece_first() -> None:
    before = streaming(p0=10, p1=10)
    before.applied[TOPIC][1] = StoredPosition("00" * 19 + "02", 1, creates=True)
    state = streaming(p0=10, p1=10)
    now = {TOPIC: {0: 30, 1: 12, 2: 7}}
    assert new_partitions.repartitioned(before.offsets, now) == [TOPIC]
    start = advance.start_offsets(before, now)
    assert start == {TOPIC: {0: 10, 1: 10, 2: 0}}
    tables.stop(state, T, to=tables.CATCHING_UP, start=start, before=before)
    entry = state.tables[T]
    entry.progress.repartition({TOPIC: {0: 40, 1: 12}}, now)
    assert 2 not in entry.progress.applied[TOPIC], (
        "what was lost on its way to another comes to it now"
    )
    assert catch_up.slice_of(entry, now, limit=1) == (
        {TOPIC: {0: 10, 1: 10}},
        {TOPIC: {0: 40, 1: 12}},
    )
    catch_up.advance(entry, {TOPIC: {0: 40, 1: 12}}, {}, now, 6)
    assert entry.state == tables.CATCHING_UP  # ahead of the stream in partition 0
    assert catch_up.slice_of(entry, now, limit=1000) == (
        {TOPIC: {2: 0}},
        {TOPIC: {2: 7}},
    )
    later = {TOPIC: {0: 44, 1: 12, 2: 7}}
    catch_up.advance(entry, {TOPIC: {2: 7}}, {}, now, 7)
    assert entry.state == tables.CATCHING_UP
    assert catch_up.slice_of(entry, later, limit=1000) == ({TOPIC: {0: 40}}, {TOPIC: {0: 44}})
    catch_up.advance(entry, {TOPIC: {0: 44}}, {}, later, 8)
    assert entry.state == tables.STREAMING
    assert entry.progress.from_offsets == {}


def test_a_table_that_stands_still_wants_a_new_partition_from_its_beginning() -> None:
    """Not from whatever is left there by then: what expires unread would be missed by nobody."""
    entry = table_state(state=tables.PAUSED, topics=[TOPIC], from_offsets={TOPIC: {0: 4}})
    entry.progress.repartition({TOPIC: {0: 9}}, {TOPIC: {0: 9, 1: 3}, "other": {0: 1}})
    assert entry.progress.from_offsets == {TOPIC: {0: 4, 1: 0}}
    assert entry.progress.old_ends == {TOPIC: {0: 9}}


def test_partitions_that_come_together_are_one_change() -> None:
    """The second of them gets its first record later, and a batch's log may leave it out."""
    before, state = streaming(p0=10), streaming(p0=10)
    before.tables, state.tables = {}, {T: TableState(topics=[TOPIC])}
    state.offsets = new_partitions.known_ends(before.offsets, {TOPIC: {0: 12, 1: 3}})
    new_partitions.follow(
        state,
        before=before,
        start=before.offsets,
        end_offsets=lambda _: {TOPIC: {0: 12, 1: 4, 2: 0, 3: 5}},
    )
    assert state.offsets == {TOPIC: {0: 12, 1: 3, 2: 0, 3: 0}}
    assert state.tables[T].progress.old_ends == {TOPIC: {0: 12}}
    assert new_partitions.repartitioned(state.offsets, {TOPIC: {0: 12, 1: 3, 2: 1, 3: 5}}) == []


@pytest.mark.parametrize(("count", "multiple"), [(4, True), (6, True), (3, False), (5, False)])
def test_keys_that_moved_between_old_partitions_take_a_run_with_a_sweep(count, multiple) -> None:
    before, state = streaming(p0=10, p1=10), streaming(p0=10, p1=10)
    state.batch = 7
    state.tables["public.paused"] = TableState(state=tables.PAUSED, topics=[TOPIC])
    ends = {TOPIC: dict.fromkeys(range(count), 20)}
    state.offsets = new_partitions.known_ends(before.offsets, ends)
    new_partitions.follow(state, before=before, start=before.offsets, end_offsets=lambda _: ends)
    for entry in state.tables.values():
        assert bool(entry.repair.resnapshot) is not multiple
        assert entry.repair.resnapshot_since == (-1 if multiple else 7)


def test_an_empty_new_partition_changes_nothing() -> None:
    assert new_partitions.repartitioned({TOPIC: {0: 5}}, {TOPIC: {0: 9, 1: 0}}) == []
    assert new_partitions.repartitioned({}, {TOPIC: {0: 9, 1: 3}}) == []


# -- turns: whose slices a batch reads -------------------------------------------------------------

TOPICS = ["shop.a", "shop.b", "shop.c"]


@st.composite
def backlogs(draw) -> PipelineState:
    """Tables in topics of their own and in shared ones, at places of their own or the same."""
    state = PipelineState(offsets={t: {0: 60, 1: 60} for t in TOPICS})
    for number in range(draw(st.integers(1, 7))):
        own, shared = f"shop.own{number}", draw(st.sets(st.sampled_from(TOPICS), max_size=2))
        topics = [own, *sorted(shared)] if draw(st.booleans()) or not shared else sorted(shared)
        state.offsets[own] = {0: 60}
        begin = draw(st.sampled_from([EARLIEST, 0, 17, 40, 60]))
        state.tables[f"public.t{number}"] = table_state(
            state=tables.CATCHING_UP,
            topics=topics,
            since_batch=draw(st.integers(0, 3)),
            from_offsets={t: dict.fromkeys(state.offsets[t], begin) for t in topics},
            high_waters={
                t: {p: StoredPosition(source_ts=begin) for p in state.offsets[t]} for t in topics
            },
        )
    return state


@given(
    state=backlogs(), limit=st.integers(20, 200), most=st.integers(1, 4), grows=st.integers(0, 9)
)
@settings(max_examples=examples(50), deadline=None)
def test_turns_bring_every_table_into_the_stream_and_none_twice_over_the_same(
    state: PipelineState, limit: int, most: int, grows: int
) -> None:
    """A batch reads so much, however many they are; who has waited longest is never left out."""
    state.batch = 3
    places = {
        name: {topic: dict(begins) for topic, begins in entry.progress.from_offsets.items()}
        for name, entry in state.tables.items()
    }
    waits = {name: entry.since_batch for name, entry in state.tables.items()}
    for batch in range(4, 1000):
        state.batch = batch
        if batch < 12:
            state.offsets = {
                t: {p: o + grows for p, o in e.items()} for t, e in state.offsets.items()
            }
        for name in catch_up.go_on(state):
            assert state.tables[name].state == tables.STREAMING
            assert places[name] == {t: state.offsets[t] for t in state.tables[name].topics}
        waiting = state.catching_up()
        turn = catch_up.turn(state, limit=limit, most=most)
        assert turn == catch_up.turn(
            stored_form.decode(stored_form.encode(state)), limit=limit, most=most
        )
        assert bool(turn.tables) == bool(waiting)
        if not waiting:
            break
        assert len(turn.tables) <= most
        assert min(waiting, key=lambda name: (waits[name], name)) in turn.tables
        sizes = [
            (begin, turn.end[t][p] - max(0, begin))
            for t, partitions in turn.start.items()
            for p, begin in partitions.items()
        ]
        # A partition has at least one record of a slice, one without a known place is read whole.
        bounded = [size for begin, size in sizes if begin != EARLIEST]
        assert sum(bounded) <= limit + len(bounded)
        for name in turn.tables:
            waits[name] = batch
            for topic in state.tables[name].topics:
                assert turn.start.get(topic, {}).items() <= places[name][topic].items()
                assert turn.applied[topic] == state.tables[name].progress.applied[topic]
                places[name][topic] |= turn.end.get(topic, {})
        passed = {
            (t, p): StoredPosition(source_ts=o) for t, e in turn.end.items() for p, o in e.items()
        }
        catch_up.end(state, turn, passed)
        for name in turn.tables:
            entry = state.tables[name]
            here = places[name] == {t: state.offsets[t] for t in entry.topics}
            assert (entry.state == tables.STREAMING) == here
            assert here or entry.progress.from_offsets == places[name]
    assert all(entry.state == tables.STREAMING for entry in state.tables.values())


def catching_up(state: PipelineState, name: str, begin: int, **told) -> None:
    state.tables[name] = table_state(
        state=tables.CATCHING_UP, topics=[TOPIC], from_offsets={TOPIC: {0: begin}}, **told
    )


def test_tables_at_one_place_of_a_topic_have_one_turn_those_at_another_have_their_own() -> None:
    state = PipelineState(batch=5, offsets={TOPIC: {0: 50}})
    catching_up(state, "public.a", 10, since_batch=1)
    catching_up(state, "public.b", 20, since_batch=2)
    catching_up(state, "public.c", 10, since_batch=3)
    catching_up(
        state, "public.d", 10, since_batch=4, high_waters={TOPIC: {0: StoredPosition("ff" * 20)}}
    )
    catching_up(state, "public.e", 10, since_batch=5, old_ends={TOPIC: {0: 30}})
    turns = []
    for state.batch in range(5, 9):
        turns.append(catch_up.turn(state, limit=100, most=9))
        catch_up.end(state, turns[-1], {})
    assert [turn.tables for turn in turns] == [
        ["public.a", "public.c"],
        ["public.b"],
        ["public.d"],
        ["public.e"],
    ]
    assert [turn.start[TOPIC][0] for turn in turns] == [10, 20, 10, 10]


@pytest.mark.parametrize("stopped", [{"state": tables.ERRORED}, {"code": "table-changed"}])
def test_a_table_that_its_turn_stopped_stays_where_it_was_and_waits_behind_the_others(stopped):
    state = PipelineState(batch=5, offsets={TOPIC: {0: 50}, "other": {0: 9}})
    catching_up(state, "public.a", 10)
    state.tables["public.b"] = table_state(
        state=tables.CATCHING_UP, topics=["other"], from_offsets={"other": {0: 0}}, since_batch=1
    )
    turn = catch_up.turn(state, limit=100, most=1)
    assert turn.tables == ["public.a"]
    for field, value in stopped.items():
        setattr(state.tables["public.a"], field, value)
    catch_up.end(state, turn, {})
    entry = state.tables["public.a"]
    assert (entry.progress.from_offsets, entry.progress.slice_batch) == ({TOPIC: {0: 10}}, 5)
    entry.state, state.batch = tables.CATCHING_UP, 6
    assert catch_up.turn(state, limit=100, most=1).tables == ["public.b"]
