"""Control records move the tables' states, one after the other."""

from typing import Any

import pytest

from lakemark import tables
from lakemark.control_records import carry_out
from lakemark.refresh import Refresh
from lakemark.tables import PipelineState
from tests.kit.memory_pipeline import MemoryCatalog
from tests.unit.test_tables import TOPIC, T, streaming

START = {TOPIC: {0: 10}}


def told(state: PipelineState, *records: dict[str, Any]) -> PipelineState:
    """The state after the records; it begins at offset 10."""
    refresh = Refresh(MemoryCatalog({}), {})
    carry_out(records, state, before=streaming(p0=10), start=START, refresh=refresh)
    return state


def pause(table: str = T) -> dict[str, Any]:
    return {"type": "table-pause", "table": table}


def test_a_pause_and_a_resume_keep_the_first_offset_not_applied():
    entry = told(streaming(p0=10), pause()).tables[T]
    assert (entry.state, entry.code, entry.from_offsets) == (tables.PAUSED, "paused", START)
    entry = told(streaming(p0=10), pause(), {"type": "table-resume", "table": T}).tables[T]
    assert (entry.state, entry.from_offsets) == (tables.CATCHING_UP, START)


def test_a_skip_waits_for_its_offsets():
    skip = {"type": "table-skip", "table": T, "offsets": {TOPIC: {"0": 12}}}
    assert told(streaming(p0=10), pause(), skip).tables[T].skip_to == {TOPIC: {0: 12}}
    assert told(streaming(p0=10), skip).tables[T].skip_to is None, "it runs"


def test_keys_that_were_read_again_are_no_longer_in_doubt_and_others_are():
    state = streaming(p0=10)
    tables.note_reread(state.tables[T], ["[1]", "[2]"], batch=3)
    told(state, {"type": "table-read", "table": T, "until": 3, "keys": ["[1]"]})
    assert state.tables[T].reread_keys == {"[2]": 3}
    told(state, {"type": "table-read", "table": T, "until": 3})
    assert state.tables[T].reread_keys == {}


def test_a_table_is_in_doubt_and_an_epoch_begins():
    lost = {"type": "table-resnapshot", "table": T, "reason": "a gap"}
    state = told(streaming(p0=10), lost, {"type": "new-epoch"})
    assert told(streaming(p0=10), lost).tables[T].resnapshot == "a gap"
    assert state.epochs == [START]
    assert "epoch" in state.tables[T].resnapshot


def test_runs_are_armed_in_between():
    state = told(streaming(p0=10), {"type": "run-start", "run": "r1", "tables": [T]}, pause())
    assert state.runs == {"r1"}


@pytest.mark.parametrize("kind", ["pause", "resume", "skip", "read", "resnapshot"])
def test_a_table_that_nobody_knows_is_left_unknown(kind: str):
    state = told(streaming(p0=10), {"type": f"table-{kind}", "table": "public.nothing"})
    assert state == streaming(p0=10)
