"""Whether a batch has ended at a cut: all has come, no more has, and who is not sure is left out."""

from types import SimpleNamespace

import pytest

from lakemark.connectors.postgres.positions import pack
from lakemark.model.cuts import CutProgress, SourceCut
from lakemark.model.decoding import Report, TableReport
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.transactions import TransactionEnd
from lakemark.sources.cutting import Cutting, TransactionTopic, _OfConnector
from lakemark.state.table_parts import BY_SNAPSHOT, StoredPosition, TableProgress
from lakemark.state.tables import PAUSED, PipelineState, TableState

T, U = "public.t", "public.u"
TOPIC = {T: "shop.public.t", U: "shop.public.u"}


def table(topic):
    made = TableState(topics=[topic])
    made.repair.complete = BY_SNAPSHOT
    return made


class Source:
    """A connector of two tables, of which T has two partitions; commits are at 100, 200, …"""

    def __init__(self, sent=None):
        connector = SimpleNamespace(kind="postgresql", qualifier="", reads_all_rows=True, name="c")
        topic = TransactionTopic(
            "shop.transaction", connector, HandlingModes(), bool, lambda _: sent
        )
        self.cutting = Cutting([topic])
        self.state = PipelineState(
            tables={name: table(topic) for name, topic in TOPIC.items()},
            offsets={TOPIC[T]: {0: 10, 1: 10}, TOPIC[U]: {0: 10}},
        )
        self.ended = 0

    def batch(self, counts=(), *, came=None, newest=None, later=(), held=0, may_be=True, **told):
        """One batch: what ends in it, what comes, and how far partitions are then."""
        ended = []
        for count in counts:
            self.ended += 1
            ended.append(TransactionEnd(self.ended, f"7:{100 * self.ended}", count, self.ended))
        self.state.batch += 1
        self.cutting._batch = {"": _OfConnector(ended, may_be=may_be, later=set(later), held=held)}
        at = pack(0, newest if newest is not None else 100 * self.ended - 50, 7)
        reports = []
        for name, events in (came or {}).items():
            self.state.applied.setdefault(TOPIC[name], {})[0] = StoredPosition(at.hex())
            found = {name: TableReport(events=events, **told)}
            reports.append(Report(TOPIC[name], 0, 0, 0, at, 0, found, {}, 0))
        self.cutting.settle(self.state, reports)
        last = self.state.cutting.last
        return last if last is not None and last.batch == self.state.batch else None


def test_all_that_has_ended_has_come():
    source = Source()
    found = source.batch([{T: 2, "public.other": 3}, {T: 1, U: 1}], came={T: 3, U: 1})
    assert (found.transaction, found.ended_ms, found.without) == ("7:200", 2, ())
    assert found.position == pack(0, 150, 7).hex()
    assert source.batch() is None, "nothing has changed"


def test_a_table_of_which_an_event_is_missing_is_left_out_until_it_has_come():
    source = Source()
    assert source.batch([{T: 2, U: 1}], came={T: 1, U: 1}).without == (T,)
    assert source.batch([{U: 1}], came={T: 1, U: 1}).without == ()


@pytest.mark.parametrize("newest", [100, 150])
def test_an_event_of_a_later_transaction_is_no_substitute_for_a_missing_one(newest):
    source = Source()
    assert source.batch([{T: 1}], came={T: 1}, newest=newest) is None
    assert source.batch([{T: 1}], came={T: 1}, newest=150).without == ()


@pytest.mark.parametrize("told", [{"twice": True}, {"replays": 1}, {"bad": 1}])
def test_where_counts_may_be_wrong_they_count_no_more(told):
    source = Source()
    assert source.batch([{T: 2}], came={T: 2}, **told).without == (T,)
    assert source.batch([{T: 1}], came={T: 1}) is None or source.state.cutting.last.without == (T,)
    both, one = [(TOPIC[T], 0), (TOPIC[T], 1)], [(TOPIC[T], 0)]
    source.batch([{U: 1}], came={U: 1}, later=one)
    assert source.state.cutting.last.without == (T,), "a partition may lack one"
    source.batch([{U: 1}], came={U: 1}, later=both)
    assert source.state.cutting.last.without == ()


def test_rows_of_snapshots_are_of_no_transaction():
    source = Source()
    assert source.batch([{T: 1}], came={T: 6}, reads=5).without == ()


def test_more_than_was_due_is_a_wrong_count():
    source = Source()
    assert source.batch([{T: 1}], came={T: 2}).without == (T,)
    source.batch([{T: 1}])
    assert source.state.cutting.last.without == (T,), "as many as were due, and perhaps not those"


def test_what_the_connector_has_committed_proves_all_that_has_ended():
    source = Source({TOPIC[T]: {0: 10, 1: 10}, TOPIC[U]: {0: 10}, "gone": {0: 1}})
    assert source.batch([{T: 2}], came={T: 2}, twice=True, held=3).without == (T,)
    assert source.batch(held=0).without == ()
    behind = Source({TOPIC[T]: {0: 11, 1: 10}})
    behind.batch([{T: 2}], came={T: 2}, twice=True)
    assert behind.batch() is None, "something is unread"


def test_a_table_that_stands_still_is_left_out_and_its_counts_with_it():
    source = Source()
    source.state.tables[T].state = PAUSED
    source.state.tables[T].progress = TableProgress()
    assert source.batch([{T: 1, U: 1}], came={U: 1}).without == (T,)
    source.state.tables[T].state = "streaming"
    source.batch([{T: 1, U: 1}], came={T: 1, U: 1})
    assert source.state.cutting.last.without == (T,), "what came meanwhile was not counted"


def test_beside_rows_of_snapshots_there_is_no_cut():
    source = Source()
    assert source.batch([{T: 1}], came={T: 1}, may_be=False) is None
    assert source.batch([{T: 1}], came={T: 1}).without == ()


def test_who_is_not_counted_begins_anew_and_shows_no_cut():
    """Cuts that are not in the lake yet are kept: they are as true as they were."""
    source = Source()
    source.batch([{"public.t": 1}], came={T: 1})
    off = source.state.own_log("crm")
    off.cutting = CutProgress(read=7, due={"crm.t": 2}, newest={"": 3}, kept=[SourceCut(1, "7:9")])
    off.cutting.last = off.cutting.kept[0]
    before = source.state.cutting.last
    source.cutting.begin(source.state, PipelineState(batch=0))
    assert source.state.cutting.last == before is not None
    assert source.state.logs["crm"].cutting == CutProgress(kept=[SourceCut(1, "7:9")])
    Cutting().begin(source.state, PipelineState(batch=0))
    assert source.state.cutting.last is None
