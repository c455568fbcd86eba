"""The checkpoint's own files, on Hadoop's local file system and without Hadoop."""

import json

import pytest

from lakemark.state.tables import PipelineState, TableState

pytestmark = pytest.mark.spark

TOPIC, TABLE = "shop.public.orders", "public.orders"


@pytest.fixture
def checkpoint(checkpoint_of, tmp_path):
    """Batches 0 and 1 are committed; of batch 2 the state is stored, and then the process died."""
    found = checkpoint_of(tmp_path)
    for batch in range(3):
        known = {TABLE: TableState(topics=[TOPIC])}
        offsets = {TOPIC: {0: 10 * (batch + 1)}}
        found.save(PipelineState(batch=batch, offsets=offsets, tables=known))
        for folder in ("offsets", "commits") if batch < 2 else ("offsets",):
            (tmp_path / folder).mkdir(exist_ok=True)
            planned = json.dumps({TOPIC: {"0": 10 * (batch + 1)}})
            (tmp_path / folder / str(batch)).write_text(f"v1\n{{}}\n{planned}")
    return found


def test_the_query_goes_on_at_the_committed_batch(checkpoint, tmp_path):
    """Not at the newest state: Spark reads a batch that it has not committed again."""
    assert checkpoint.newest().batch == 2
    state, offsets = checkpoint.goes_on()
    assert (state.batch, offsets) == (1, {TOPIC: {0: 20}})
    (tmp_path / "commits" / "2").write_text("v1\n{}")
    state, offsets = checkpoint.goes_on()
    assert (state.batch, offsets) == (2, {TOPIC: {0: 30}})


def test_before_the_first_commit_there_is_only_the_newest_state(checkpoint_of, tmp_path):
    empty = checkpoint_of(tmp_path)
    assert empty.goes_on() == (PipelineState(), {})
    empty.save(PipelineState(batch=0))
    assert empty.goes_on()[0].batch == 0
