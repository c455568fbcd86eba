"""What a batch's reports, outcomes and decided chunks make of the tables."""

import msgspec
import pytest

from lakemark import settle, tables
from lakemark.reconcile import outputs
from lakemark.reconcile.chunks import Settled
from lakemark.reconcile.outputs import Swept
from lakemark.tables import PipelineState, TableState

T, OTHER = "public.orders", "public.items"


def state_of(**found: TableState) -> PipelineState:
    return PipelineState(batch=5, tables={T: TableState(), OTHER: TableState(), **found})


def chunk(table: str = T, attempt: int = 1, **told) -> tuple[str, bytes]:
    told = {"survivors": 2, "lo": "aa", "hi": "bb"} | told
    settled = Settled(run="r1", table=table, chunk=0, attempt=attempt, shard=0, **told)
    return outputs.SETTLED, msgspec.json.encode(settled)


def sweep(table: str = T) -> tuple[str, bytes]:
    return outputs.SWEPT, msgspec.json.encode(Swept("r1", table, "aa"))


# -- chunks: one counts if its table streamed before the batch and after it ------------------------


@pytest.mark.parametrize("after", [tables.PAUSED, tables.ERRORED, tables.CATCHING_UP])
@pytest.mark.parametrize("before", [True, False], ids=["stopped before", "stopped in the batch"])
def test_nothing_of_a_snapshot_counts_whose_table_does_not_stream(before: bool, after: str):
    """Its rows are not in the table: the chunk is read again, the sweep goes out again."""
    state = state_of(**{T: TableState(state=after)})
    stopped = frozenset([T]) if before else frozenset()
    news = settle.chunks(state, stopped, [chunk(), sweep(), chunk(OTHER, 2), sweep(OTHER)])
    assert {one.table: one.void for one in news.settled} == {T: settle.TABLE_STOPPED, OTHER: ""}
    assert {one.table: one.void for one in news.swept} == {T: settle.TABLE_STOPPED, OTHER: ""}
    assert (state.tables[T].horizon, state.tables[OTHER].horizon) == ("", "bb")


def test_a_chunk_whose_table_has_caught_up_in_its_batch_does_not_count():
    """The tasks left its rows out: they knew the table as it was before."""
    state = state_of()
    news = settle.chunks(state, frozenset([T]), [chunk(), sweep()])
    assert [one.void for one in (*news.settled, *news.swept)] == [settle.TABLE_STOPPED] * 2
    assert state.tables[T].horizon == ""


def test_a_void_chunk_keeps_its_reason():
    state = state_of(**{T: TableState(state=tables.ERRORED)})
    news = settle.chunks(state, frozenset(), [chunk(void="unreadable-key")])
    assert [one.void for one in news.settled] == ["unreadable-key"]


@pytest.mark.parametrize(
    ("told", "horizon"),
    [
        ({"survivors": 1}, "bb"),
        ({"survivors": 0, "fills": 1}, "bb"),
        ({"survivors": 0, "fills": 0}, ""),
        ({"void": "own-snapshot"}, ""),
    ],
)
def test_the_horizon_is_that_of_chunks_that_gave_the_table_something(told, horizon):
    state = state_of()
    settle.chunks(state, frozenset(), [chunk(**told)])
    assert state.tables[T].horizon == horizon


def test_the_horizon_only_rises():
    state = state_of(**{T: TableState(horizon="cc")})
    settle.chunks(state, frozenset(), [chunk(hi="bb")])
    assert state.tables[T].horizon == "cc"
    settle.chunks(state, frozenset(), [chunk(hi="dd")])
    assert state.tables[T].horizon == "dd"
