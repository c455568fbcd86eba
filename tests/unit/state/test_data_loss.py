"""What Kafka no longer has of what was read, and what was not read yet."""

import pytest

from lakemark.errors import EXPIRED
from lakemark.model.offsets import EARLIEST
from lakemark.state import data_loss
from lakemark.state.data_loss import DELETED, RECREATED, Held
from lakemark.state.table_parts import StoredPosition
from lakemark.state.tables import PipelineState, TableState
from tests.kit.table_states import table_state

TOPIC, OTHER = "shop.public.orders", "shop.public.things"
TABLE = "public.orders"


def state(**offsets):
    found = {int(name[1:]): offset for name, offset in offsets.items()}
    tables = {TABLE: TableState(topics=[TOPIC]), "public.things": TableState(topics=[OTHER])}
    return PipelineState(batch=3, offsets={TOPIC: found, OTHER: {0: 5}}, tables=tables)


def held(first, end, *, number="id1"):
    ids = {TOPIC: number, OTHER: "other"}
    ends = {TOPIC: dict(enumerate(end)), OTHER: {0: 9}}
    return Held(ids, {TOPIC: dict(enumerate(first)), OTHER: {0: 0}}, ends)


def codes(found):
    return [(gap.code, gap.tables) for gap in found]


KNOWN = {TOPIC: "id1", OTHER: "other"}


@pytest.mark.parametrize(
    ("first", "end"), [([0, 0], [10, 20]), ([10, 20], [10, 20]), ([3, 0], [99, 20])]
)
def test_what_is_still_there_is_no_gap(first, end):
    assert data_loss.gaps(state(p0=10, p1=20), KNOWN, held(first, end)) == []


@pytest.mark.parametrize(
    ("first", "end", "number", "code"),
    [
        ([0, 0], [90, 90], "id2", RECREATED),
        ([0, 0], [90, 19], "id1", RECREATED),
        ([0], [90], "id1", DELETED),
        ([11, 0], [90, 90], "id1", EXPIRED),
    ],
)
def test_a_gap_names_the_tables_that_it_concerns(first, end, number, code):
    found = data_loss.gaps(state(p0=10, p1=20), KNOWN, held(first, end, number=number))
    assert codes(found) == [(code, (TABLE,))]
    assert TOPIC in found[0].reason


def test_a_topic_that_is_gone():
    there = Held({OTHER: "other"}, {OTHER: {0: 0}}, {OTHER: {0: 9}})
    assert codes(data_loss.gaps(state(p0=10), KNOWN, there)) == [(DELETED, (TABLE,))]


def test_a_topic_whose_id_nobody_remembers_is_told_by_its_end():
    assert data_loss.gaps(state(p0=10), {}, held([0], [10], number="id7")) == []
    assert codes(data_loss.gaps(state(p0=10), {}, held([0], [9]))) == [(RECREATED, (TABLE,))]


def test_a_table_that_stopped_wants_what_lies_before():
    now = state(p0=10)
    now.tables[TABLE].progress.from_offsets = {TOPIC: {0: 4}}
    assert data_loss.gaps(now, KNOWN, held([4], [10])) == []
    assert codes(data_loss.gaps(now, KNOWN, held([5], [10]))) == [(EXPIRED, (TABLE,))]


def test_a_partition_of_which_nothing_was_read_misses_what_is_gone():
    assert data_loss.gaps(state(p0=10, p1=0), KNOWN, held([0, 0], [10, 20])) == []
    found = data_loss.gaps(state(p0=10, p1=0), KNOWN, held([0, 7], [10, 20]))
    assert codes(found) == [(EXPIRED, (TABLE,))]


def test_a_new_partition_misses_what_is_gone():
    assert data_loss.gaps(state(p0=10), KNOWN, held([0, 0], [10, 20])) == []
    assert codes(data_loss.gaps(state(p0=10), KNOWN, held([0, 7], [10, 20]))) == [
        (EXPIRED, (TABLE,))
    ]


def test_a_table_that_begins_at_the_first_record_hides_no_gap_of_its_topic():
    now = state(p0=4)
    now.tables[TABLE].progress.from_offsets = {TOPIC: {0: EARLIEST}}
    assert codes(data_loss.gaps(now, KNOWN, held([5], [10]))) == [(EXPIRED, (TABLE,))]


@pytest.mark.parametrize(
    ("first", "end", "number", "code"),
    [
        (4, 9, "c1", None),
        (0, 4, "c1", None),
        (5, 9, "c1", EXPIRED),
        (0, 3, "c1", RECREATED),
        (0, 9, "c2", RECREATED),
    ],
)
def test_gaps_of_own_topics(first, end, number, code):
    there = Held({"shop.control": number}, {"shop.control": {0: first}}, {"shop.control": {0: end}})
    found = data_loss.own_gaps({"shop.control": {0: 4}}, {"shop.control": "c1"}, there)
    assert codes(found) == ([(code, ())] if code else [])


def test_the_state_begins_again_where_the_topic_does():
    now = state(p0=10, p1=20)
    applied = {
        TOPIC: {0: StoredPosition("aa", 1), 1: StoredPosition("bb", 1)},
        OTHER: {0: StoredPosition("cc", 1)},
    }
    now.applied = dict(applied)
    now.tables[TABLE].progress.from_offsets = {TOPIC: {0: 4, 1: 4}}
    data_loss.begin_again(now, {TOPIC: {0: 7, 1: 0}})
    assert now.offsets == {TOPIC: {0: 7, 1: 0}, OTHER: {0: 5}}
    assert now.tables[TABLE].progress.from_offsets == {TOPIC: {0: 7, 1: 0}}
    assert now.applied == applied, "a connector that goes on sends some events again"
    assert data_loss.gaps(now, KNOWN, held([7, 0], [8, 1])) == []

    data_loss.begin_again(now, {TOPIC: {0: 0}})
    assert now.applied == {OTHER: applied[OTHER]}, "keys are in other partitions"
    data_loss.begin_again(now, {TOPIC: {}})
    assert now.offsets == {OTHER: {0: 5}}


@pytest.mark.parametrize("anew", [True, False])
def test_what_was_said_of_a_topics_offsets_is_said_of_no_other_topic_of_the_name(anew):
    now = state(p0=10, p1=20)
    now.epochs = [{TOPIC: {0: 5}, OTHER: {0: 1}}, {OTHER: {0: 2}}]
    now.regressed = {TOPIC: {0: 9}}
    data_loss.begin_again(now, {TOPIC: {0: 7, 1: 7}}, anew={TOPIC} if anew else ())
    if anew:
        assert (now.epochs, now.regressed) == ([{OTHER: {0: 1}}, {OTHER: {0: 2}}], {})
    else:
        assert (now.epochs[0][TOPIC], now.regressed) == ({0: 5}, {TOPIC: {0: 9}})


def test_high_waters_of_a_stopped_table_go_where_keys_are_in_other_partitions():
    now = state(p0=10)
    applied = {TOPIC: {0: StoredPosition("aa", 1)}}
    now.tables[TABLE] = table_state(
        topics=[TOPIC], from_offsets={TOPIC: {0: 4}}, high_waters=applied
    )
    data_loss.begin_again(now, {TOPIC: {0: 0}}, anew={TOPIC})
    assert now.tables[TABLE].progress.applied == {TOPIC: {0: StoredPosition("aa", 1)}}
    data_loss.begin_again(now, {TOPIC: {0: 0, 1: 0}}, anew={TOPIC})
    assert now.tables[TABLE].progress.applied == {}
