"""Waits: nothing is called visible that need not be, and everything is in the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.postgres.positions import pack
from lakemark.errors import DependencyError, RefusedError, TableError
from lakemark.ops.status import SourceNow, SourceProblem
from lakemark.ops.visibility import hindrance, passed
from lakemark.ops.waits import AGAIN_S, WaitRequest, Waits
from lakemark.state.table_parts import BY_CONNECTOR, StoredPosition
from lakemark.state.tables import CATCHING_UP, ERRORED, PAUSED, LeftOut, PipelineState
from tests.kit.lively import Clock
from tests.kit.table_states import altered
from tests.kit.waited import ToldEvents, board_of, whole_table

A, B = "public.a", "public.b"
NOW = WaitRequest()
ENDS = {"t.a": {0: 5, 1: 5}, "t.b": {0: 3}}


def state_of(**offsets: dict[int, int]) -> PipelineState:
    found = {f"t.{name}": partitions for name, partitions in offsets.items()}
    return PipelineState(
        batch=1, offsets=found, tables={A: whole_table("t.a"), B: whole_table("t.b")}
    )


class Told:
    """Waits over a board and a side that are told by hand."""

    def __init__(self, state: PipelineState, *sides: ToldEvents) -> None:
        self.side = sides[0] if sides else ToldEvents(log_end=100)
        self.board, self.clock = board_of(state), Clock(0.0)
        self.versions: dict[str, int] = {A: 7, B: 9}
        self.waits = Waits(self.board, clock=self.clock)
        self.attached = self.waits.attached(sides or [self.side], self.versions.get)
        self.attached.__enter__()

    def codes(self, wait):
        return {one.table: one.code for one in self.waits.look(wait).tables}


# --- what a table says ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, None),
        ({"state": CATCHING_UP}, "table-behind"),
        ({"state": PAUSED}, "table-behind"),
        ({"state": ERRORED, "code": "no-key", "reason": "none"}, "no-key"),
        ({"complete": ""}, "table-behind"),
        ({"rebuild": "rebuild-1"}, "table-behind"),
        ({"resnapshot": "it was truncated"}, "table-behind"),
        ({"reread_keys": {"[1]": 3}}, "table-behind"),
        ({"reread_missed": 3}, "table-behind"),
    ],
)
def test_what_keeps_a_table_from_showing_everything(fields, code):
    state = state_of()
    state.tables[A] = altered(state.tables[A], **fields)
    found = hindrance(state, A, own_whole=True)
    assert (found and found.code) == code
    assert found is None or found.reason


def test_rows_that_the_connector_has_read_in_part_are_not_all():
    state = state_of()
    state.tables[A] = altered(state.tables[A], complete=BY_CONNECTOR)
    assert hindrance(state, A, own_whole=True) is None
    assert hindrance(state, A, own_whole=False).code == "table-behind"


def test_tables_that_nothing_has_come_of_or_that_are_left_out_show_nothing():
    state = state_of()
    state.left[B] = LeftOut(state.tables.pop(B))
    assert hindrance(state, B, own_whole=True).code == "not-selected"
    assert hindrance(state, "public.c", own_whole=True).code == "table-waiting"


@pytest.mark.parametrize(
    ("applied", "lowest"),
    [
        ({0: pack(0, 3, 9), 1: pack(0, 5, 7)}, pack(0, 3, 9)),
        ({0: pack(0, 3, 9)}, b""),  # the other one has had nothing
        ({0: pack(0, 3, 9), 1: pack(1, 5, 7)}, b""),  # of an older epoch
        ({0: pack(0, 0, 9), 1: pack(0, 5, 7)}, b""),  # of the connector's own snapshot
    ],
)
def test_what_all_partitions_have_passed(applied, lowest):
    state = state_of(a={0: 1, 1: 1})
    state.applied["t.a"] = {n: StoredPosition(position.hex()) for n, position in applied.items()}
    epoch = max(int.from_bytes(position[:4]) for position in applied.values())
    assert passed(state, A, epoch=epoch) == lowest
    state.tables[A].topics.append("t.more")
    assert passed(state, A, epoch=epoch) == b""


# --- evidence ---------------------------------------------------------------------------------


def test_all_is_visible_once_it_is_sent_and_read():
    told = Told(state_of(a={0: 5, 1: 4}, b={0: 3}))
    wait = told.waits.begin(NOW)
    assert told.codes(wait) == dict.fromkeys((A, B), "waits-for-connector")
    told.side.committed, told.side.ends = 99, ENDS
    assert told.codes(wait) == dict.fromkeys((A, B), "waits-for-connector")
    told.side.committed = 100
    assert told.codes(wait) == dict.fromkeys((A, B), "table-behind")
    told.board.tables(state_of(a={0: 5, 1: 5}, b={0: 3}))
    told.side.ends = {"t.a": {0: 90}}  # what comes later does not count
    found = told.waits.look(wait)
    assert found.visible
    assert [(one.table, one.version) for one in found.tables] == [(A, 7), (B, 9)]
    assert [one.position for one in found.positions] == ["0/64"]


def test_one_table_in_trouble_is_named_and_the_others_are_visible():
    state = state_of(a={0: 5, 1: 5}, b={0: 3})
    state.tables[B] = altered(state.tables[B], state=ERRORED, code="no-key", hint="give it one")
    told = Told(state)
    told.side.committed, told.side.ends = 100, ENDS
    found = told.waits.look(told.waits.begin(NOW))
    assert not found.visible
    assert [(t.visible, t.code, t.hint) for t in found.tables] == [
        (True, "", ""), (False, "no-key", "give it one")
    ]  # fmt: skip
    assert told.waits.look(told.waits.begin(WaitRequest((A,)))).visible


def test_a_topic_that_is_gone_or_made_anew_is_not_waited_for_for_ever():
    told = Told(state_of(a={0: 5, 1: 5}, b={0: 1}))
    told.side.committed, told.side.ends = 100, ENDS
    wait = told.waits.begin(NOW)
    assert told.codes(wait) == dict.fromkeys((A, B), "table-behind")
    told.side.ends = {"t.a": {0: 50, 1: 50}, "t.b": {0: 1}}
    assert told.codes(wait) == dict.fromkeys((A, B), "table-behind")
    told.clock.now += AGAIN_S
    assert told.waits.look(wait).visible


def test_events_of_all_partitions_show_it_without_connect():
    state = state_of(a={0: 1, 1: 1}, b={0: 3})
    told = Told(state)
    state.applied["t.a"] = {n: StoredPosition(pack(0, 90, 101 - n).hex()) for n in (0, 1)}
    told.side.counts = {"t.a": 2}
    wait = told.waits.begin(WaitRequest((A,)))
    assert told.waits.look(wait).visible
    assert told.side.asked == 0


def test_an_event_from_before_the_place_shows_nothing():
    state = state_of(a={0: 1, 1: 1}, b={0: 3})
    told = Told(state)
    state.applied["t.a"] = {n: StoredPosition(pack(0, 90, 99 + n).hex()) for n in (0, 1)}
    told.side.counts = {"t.a": 2}
    assert told.codes(told.waits.begin(WaitRequest((A,)))) == {A: "waits-for-connector"}


@pytest.mark.parametrize("counts", [{"t.a": 3}, {}])
def test_a_partition_that_is_not_read_yet_may_have_something(counts):
    state = state_of(a={0: 1, 1: 1}, b={0: 3})
    told = Told(state)
    state.applied["t.a"] = {n: StoredPosition(pack(0, 90, 101).hex()) for n in (0, 1)}
    told.side.counts = counts
    wait = told.waits.begin(WaitRequest((A,)))
    assert told.codes(wait) == {A: "waits-for-connector"}
    told.side.counts, told.side.one_topic = {"t.a": 2}, False
    assert told.codes(wait) == {A: "waits-for-connector"}
    told.side.one_topic = True
    assert told.waits.look(wait).visible


def test_the_log_is_moved_on_only_where_nothing_shows_it():
    told = Told(state_of(a={0: 5, 1: 4}, b={0: 3}))
    told.clock.now = 50.0
    wait = told.waits.begin(NOW)
    told.waits.look(wait)
    assert told.side.moved == [50.0]
    told.clock.now += 2 * AGAIN_S
    told.waits.look(wait)
    assert told.side.moved == [50.0, 50.0 + AGAIN_S]  # a place may be ahead of the log
    told.side.committed, told.side.ends = 100, ENDS
    told.waits.look(wait)
    assert len(told.side.moved) == 2


def test_what_keeps_the_connector_from_being_asked_is_the_reason():
    told = Told(state_of(a={0: 5, 1: 4}, b={0: 3}))
    wait = told.waits.begin(NOW)
    told.side.trouble = DependencyError("Connect is away", code="connect-unavailable", hint="start")
    assert told.codes(wait) == dict.fromkeys((A, B), "connect-unavailable")


def test_a_connector_that_stands_still_is_the_reason_and_its_events_show_it_all_the_same():
    told = Told(state_of(a={0: 5, 1: 5}, b={0: 3}))
    wait = told.waits.begin(NOW)
    paused = SourceProblem("connector-paused", "the connector is PAUSED", "resume it", 1)
    told.board.source(SourceNow(1, watched=True, problems=(paused,)))
    found = told.waits.look(wait)
    assert [(one.code, one.hint) for one in found.tables] == [("connector-paused", "resume it")] * 2
    told.side.committed, told.side.ends = 100, ENDS
    assert told.waits.look(wait).visible


def test_a_lake_that_does_not_answer_is_no_version():
    told = Told(state_of(a={0: 5, 1: 5}, b={0: 3}))
    told.side.committed, told.side.ends = 100, ENDS

    def newest(_: str) -> int:
        raise TableError("no table", code="not-a-table")

    waits = Waits(told.board)
    with waits.attached([told.side], newest):
        found = waits.look(waits.begin(WaitRequest((A,))))
    assert [(one.visible, one.code) for one in found.tables] == [(False, "not-a-table")]


# --- what can be asked for --------------------------------------------------------------------


def test_a_pipeline_that_does_not_stream_says_so():
    told = Told(state_of())
    wait = told.waits.begin(NOW)
    told.attached.__exit__(None, None, None)
    for ask in (lambda: told.waits.begin(NOW), lambda: told.waits.look(wait)):
        with pytest.raises(DependencyError) as away:
            ask()
        assert away.value.code == "cannot-wait"


def test_what_cannot_be_waited_for_is_refused():
    told = Told(state_of())
    for request, code in [
        (WaitRequest(("public.aa",)), "unknown-table"),
        (WaitRequest((), (("", "b.1:4"),)), "bad-value"),
        (WaitRequest((), (("mall", "0/1"),)), "bad-value"),
    ]:
        with pytest.raises(RefusedError) as refused:
            told.waits.begin(request)
        assert refused.value.code == code
        assert refused.value.hint


def test_each_of_several_databases_has_a_place_of_its_own():
    one, other = (ToldEvents(q, f"{q}-connector", log_end=n) for q, n in (("x", 16), ("y", 32)))
    tables = {f"{q}.public.t": whole_table(f"{q}.t") for q in ("x", "y")}
    offsets = {"x.t": {0: 1}, "y.t": {0: 1}}
    told = Told(PipelineState(batch=1, offsets=offsets, tables=tables), one, other)
    wait = told.waits.begin(NOW)
    one.committed, one.ends = 16, {"x.t": {0: 1}}
    assert told.codes(wait) == {"x.public.t": "", "y.public.t": "waits-for-connector"}
    asked = [(p.connector, p.position) for p in told.waits.look(wait).positions]
    assert asked == [("x", "0/10"), ("y", "0/20")]
    again = told.waits.begin(WaitRequest((), (("x", "0/10"), ("y-connector", "0/20"))))
    assert told.codes(again) == told.codes(wait)
    assert told.codes(told.waits.begin(WaitRequest((), (("x", "0/10"),)))) == {"x.public.t": ""}
    assert told.codes(told.waits.begin(WaitRequest(("x.public.t",), (("", "0/8"),)))) == {
        "x.public.t": ""
    }
    for request in (
        WaitRequest((), (("", "0/10"),)),
        WaitRequest(("y.public.t",), (("x", "0/10"),)),
    ):
        with pytest.raises(RefusedError) as refused:
            told.waits.begin(request)
        assert refused.value.code == "bad-value"


# --- a log, a producer that holds partitions back, batches ------------------------------------


class SimulatedLog:
    """Transactions of one event each, a producer that holds partitions back, and batches.

    Args:
        log: the partition of each transaction; number n is at the LSN 10 n + 4, and ends at the
            next multiple of 10.
        place: how many of them have committed when the wait begins.
    """

    def __init__(self, log: list[int], place: int) -> None:
        self.log, self.place = log, place
        self.own = [[n for n, partition in enumerate(log) if partition == p] for p in PARTITIONS]
        self.sent, self.read = [0, 0, 0], [0, 0, 0]
        self.side = ToldEvents(log_end=10 * place, counts={"t.a": 3})
        self.told = Told(self.state(), self.side)
        self.wait = self.told.waits.begin(NOW)

    def state(self) -> PipelineState:
        made = PipelineState(batch=1, offsets={"t.a": dict(enumerate(self.read))})
        made.tables[A] = whole_table("t.a")
        made.applied["t.a"] = {
            p: StoredPosition(pack(0, 10 * n, 10 * n + 4).hex())
            for p in PARTITIONS
            for n in self.own[p][: self.read[p]][-1:]
        }
        return made

    def send(self, p: int) -> None:
        self.sent[p] = min(self.sent[p] + 1, len(self.own[p]))

    def flow(self, p: int) -> None:
        self.send(p)
        self.batch(p)

    def commit(self, _: int) -> None:
        """Commit up to the first event that is held back, then ask for the ends."""
        held = [n for p in PARTITIONS for n in self.own[p][self.sent[p] :][:1]]
        self.side.committed = 10 * min(held, default=len(self.log))
        self.side.ends = {"t.a": dict(enumerate(self.sent))}

    def batch(self, p: int) -> None:
        self.read[p] = self.sent[p]
        self.told.board.tables(self.state())

    def look(self, _: int) -> None:
        if self.is_visible():
            left = [n for p in PARTITIONS for n in self.own[p][self.read[p] :]]
            assert all(n >= self.place for n in left), left

    def is_visible(self) -> bool:
        self.told.clock.now += 3.0
        return self.told.waits.look(self.wait).visible


PARTITIONS = range(3)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "flow", "commit", "batch", "look"]), st.sampled_from(PARTITIONS)
    ),
    min_size=15,
    max_size=60,
)


@given(
    log=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=20),
    place=st.integers(0, 20),
    steps=STEPS,
)
def test_nothing_is_called_visible_before_it_is_applied(log, place, steps):
    simulated = SimulatedLog(log, min(place, len(log)))
    for what, p in steps:
        getattr(simulated, what)(p)
    for p in sorted(log):
        simulated.send(p)
    simulated.commit(0)
    for p in PARTITIONS:
        simulated.batch(p)
    simulated.look(0)
    assert simulated.is_visible()
