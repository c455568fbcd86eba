"""Commands for a table that is not read now: its connector is away, or the settings leave it out."""

import json

import pytest

from lakemark.state import stored_form
from lakemark.state.tables import LeftOut, PipelineState
from tests.kit.command_line import invoke
from tests.kit.table_states import table_state

T = "public.orders"
TOPIC = f"shop.{T}"


@pytest.fixture
def left_out(folder, kafka):
    """A table that only the checkpoint knows, in a state."""

    def be(**state):
        entry = table_state(topics=[TOPIC], from_offsets={TOPIC: {0: 7}}, **state)
        states = folder / "checkpoint" / "lakemark" / "state"
        states.mkdir(parents=True)
        blob = stored_form.encode(PipelineState(batch=3, left={T: LeftOut(entry)}))
        (states / "3.json").write_bytes(blob)
        kafka.ends = {(TOPIC, 0): 9}

    return be


@pytest.mark.parametrize(
    ("state", "arguments"),
    [("streaming", ["pause"]), ("paused", ["resume"]), ("paused", ["skip", "--yes"])],
)
def test_what_is_asked_of_it_is_written_and_counts_when_it_is_read_again(
    left_out, kafka, state, arguments
):
    left_out(state=state)
    name, *options = arguments
    result = invoke("table", name, T, *options)
    assert result.exit_code == 0, result.output
    assert "is not read now" in result.output
    assert "already" not in result.output
    ((topic, key, value),) = kafka.published
    assert (topic, key, json.loads(value)["type"]) == ("shop.control", T.encode(), f"table-{name}")


@pytest.mark.parametrize("more", [["--yes"], ["--cancel"]])
def test_it_cannot_be_made_anew(left_out, kafka, more):
    left_out(state="streaming")
    result = invoke("table", "rebuild", T, *more)
    assert result.exit_code == 1
    assert "not-read:" in result.stderr
    assert kafka.published == []


def test_one_that_nobody_knows_is_unknown(left_out, kafka):
    left_out(state="streaming")
    result = invoke("table", "pause", "public.customers")
    assert result.exit_code == 1
    assert "unknown-table:" in result.stderr
