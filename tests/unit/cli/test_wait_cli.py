"""`lakemark wait`: it asks the process that runs the pipeline; exit codes, and what it says."""

import json

import pytest

from lakemark.ops.http.server import serving
from lakemark.ops.metrics import Metrics
from lakemark.ops.waits import Waits
from lakemark.settings.config import load
from lakemark.state.tables import PAUSED, PipelineState
from stack.processes import free_port
from tests.kit.command_line import invoke
from tests.kit.waited import ToldEvents, board_of, whole_table

A, B = "public.orders", "public.customers"
ENDS = {"t.a": {0: 5}, "t.b": {0: 3}}


@pytest.fixture(autouse=True)
def bind(monkeypatch):
    monkeypatch.setenv("LAKEMARK_HTTP__BIND", f"127.0.0.1:{free_port()}")


@pytest.fixture
def state():
    tables = {A: whole_table("t.a"), B: whole_table("t.b")}
    offsets = {topic: dict(partitions) for topic, partitions in ENDS.items()}
    return PipelineState(batch=1, offsets=offsets, tables=tables)


@pytest.fixture
def side():
    return ToldEvents(log_end=100, committed=100, ends=ENDS)


@pytest.fixture
def served(folder, state, side):
    board = board_of(state)
    waits = Waits(board)
    config = load(folder / "lakemark.yaml")
    with (
        serving(config, board, Metrics(board), waits=waits),
        waits.attached([side], {A: 7, B: 9}.get),
    ):
        yield waits


def test_what_is_visible(served):
    result = invoke("wait", "--now")
    assert result.exit_code == 0, result.output
    assert "visible up to 0/64" in result.stdout
    assert [line.split() for line in result.stdout.splitlines() if "public" in line] == [
        [B, "visible", "9"],
        [A, "visible", "7"],
    ]
    result = invoke("wait", "--position", "0/64", "--table", A, "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["tables"] == [
        {"table": A, "visible": True, "version": 7, "code": "", "reason": "", "hint": ""}
    ]


def test_the_time_is_over(served, side, state):
    state.tables[B].state = PAUSED
    side.committed = 99
    result = invoke("wait", "--now", "--timeout", "500ms")
    assert result.exit_code == 4, result.output
    assert "not yet up to 0/64" in result.stdout
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if "public" in line}
    assert "waits-for-connector" in lines[A]
    assert f"lakemark table resume {B}" in lines[B]


def test_the_place_of_the_first_answer_is_kept(served, side):
    """What is committed while it waits is not waited for."""
    asked: list[int] = []
    side.committed = 0

    def end():
        asked.append(1)
        return side.place("0/64")

    side.end = end
    result = invoke("wait", "--now", "--timeout", "1s")
    assert (result.exit_code, asked) == (4, [1])


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--now", "--position", "0/1"),
        ("--now", "--connector", "x"),
        ("--position", "0/1", "--connector", "x", "--connector", "y"),
    ],
)
def test_what_is_not_a_wait(folder, arguments):
    assert invoke("wait", *arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--position", "soon"), "bad-value"),
        (("--now", "--table", "public.order"), "unknown-table"),
        (("--position", "0/1", "--connector", "x"), "bad-value"),
    ],
)
def test_what_is_refused(served, arguments, code):
    result = invoke("wait", *arguments)
    assert result.exit_code == 1
    assert code in result.stderr
    assert "→" in result.stderr


def test_nobody_answers(folder, monkeypatch):
    result = invoke("wait", "--now", "--timeout", "5s")
    assert result.exit_code == 1
    assert "no-answer" in result.stderr
    monkeypatch.setenv("LAKEMARK_HTTP__BIND", "none")
    result = invoke("wait", "--now")
    assert result.exit_code == 3
    assert "http.bind" in result.stderr


def test_a_pipeline_that_begins_is_waited_for(served):
    with served.attached([], lambda _: 7):
        result = invoke("wait", "--now", "--timeout", "1500ms")
    assert result.exit_code == 4
    assert "cannot-wait" in result.stderr
